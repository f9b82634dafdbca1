// SPDX-License-Identifier: MIT OR Apache-2.0
//! The out-of-band connections of one host: rank 0's host has one to every other host, any other has one to rank 0's.
//! They carry cards, deaths and aborts, never payload.
//!
//! This module decides which host gets a message, which hosts live, and when a connection is over. The
//! [broker](super::broker) decides what a message means for the ranks.

mod connect;
mod connection;
mod message;

pub(super) use connect::{HostPair, HostStream, connect};
pub(crate) use message::{Frames, ToHost};

use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::acceptor::{Acceptor, AcceptorToken, ProvenHost};
use super::nodes::Nodes;
use super::poll_args::Polled;
use connection::{Connection, Heard, Loss};

/// Names what to poll for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OobToken {
    /// At the acceptor.
    Acceptor(AcceptorToken),
    /// The connection to this node.
    Connection(u32),
}

/// What a connection brought.
#[derive(Debug)]
pub(super) enum OobEvent {
    /// Its other side has sent this.
    Message(u32, ToHost),
    /// It is over, and its node with it.
    Lost(u32, Loss),
}

/// What a host needs to be joined to others.
#[derive(Debug)]
pub(super) struct Config {
    /// Which rank is where.
    pub(super) nodes: Arc<Nodes>,
    /// This host's node.
    pub(super) own: u32,
    /// A connection that is silent for so long is dead.
    pub(super) timeout: Duration,
    /// How it begins.
    pub(super) first: Start,
}

/// How a host's connections begin.
#[derive(Debug)]
pub(super) enum Start {
    /// Rank 0's: the others come to this acceptor. When all have, the sender gets the addresses to
    /// which they came.
    Accepts(Box<Acceptor>, Sender<Vec<IpAddr>>),
    /// Any other's: it has called.
    Called(TcpStream),
}

/// The connections of one host.
#[derive(Debug)]
pub(super) struct Oob {
    nodes: Arc<Nodes>,
    own: u32,
    timeout: Duration,
    connections: Vec<Connection>,
    /// Connections that are over already, still to be reported.
    broken: Vec<(u32, Loss)>,
    acceptor: Option<(Box<Acceptor>, Sender<Vec<IpAddr>>)>,
    /// To which of our addresses connections have come.
    came_to: Vec<IpAddr>,
    looked: Instant,
    /// Since when the other side knows that this one ends.
    ending: Option<Instant>,
}

impl Oob {
    pub(super) fn new(config: Config, now: Instant) -> std::io::Result<Self> {
        let (acceptor, connections) = match config.first {
            Start::Accepts(acceptor, complete) => (Some((acceptor, complete)), Vec::new()),
            Start::Called(stream) => (None, vec![Connection::new(stream, 0, now)?]),
        };
        Ok(Self {
            nodes: config.nodes,
            own: config.own,
            timeout: config.timeout,
            connections,
            broken: Vec::new(),
            acceptor,
            came_to: Vec::new(),
            looked: now,
            ending: None,
        })
    }

    /// Descriptors to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = Polled<'_, OobToken>> {
        let acceptor = self
            .acceptor
            .iter()
            .flat_map(|(acceptor, _)| acceptor.polled());
        let acceptor = acceptor.map(|polled| polled.map(OobToken::Acceptor));
        let connections = self.connections.iter().map(|connection| Polled {
            token: OobToken::Connection(connection.node()),
            fd: connection.as_fd(),
            read: true,
            write: !connection.is_flushed(),
        });
        acceptor.chain(connections)
    }

    /// When [`tick`](Self::tick) has something to do at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        if !self.broken.is_empty() {
            return Some(self.looked);
        }
        let connections = self
            .connections
            .iter()
            .map(|connection| connection.due(self.timeout));
        let acceptor = self
            .acceptor
            .as_ref()
            .and_then(|(acceptor, _)| acceptor.due());
        let ending = self.ending.map(|since| since + self.timeout);
        // As often as a side has to look that may blame others for silence.
        let look = (!self.connections.is_empty()).then(|| self.looked + self.timeout / 4);
        connections.chain(acceptor).chain(ending).chain(look).min()
    }

    /// Serves what is ready.
    pub(super) fn ready(&mut self, token: OobToken, now: Instant) -> Vec<OobEvent> {
        match token {
            OobToken::Acceptor(token) => {
                let accepted = self
                    .acceptor
                    .as_mut()
                    .and_then(|(acceptor, _)| acceptor.ready(token, now));
                if let Some(host) = accepted {
                    self.let_in(host, now);
                }
                Vec::new()
            }
            OobToken::Connection(node) => self.serve(node, now),
        }
    }

    fn serve(&mut self, node: u32, now: Instant) -> Vec<OobEvent> {
        let Some(connection) = self
            .connections
            .iter_mut()
            .find(|connection| connection.node() == node)
        else {
            return Vec::new();
        };
        let Heard {
            mut messages,
            mut end,
        } = connection.read(now);
        // Room to write is no event; the end of the other side is noticed by reading.
        if end.is_none()
            && let Err(unsent) = connection.flush()
        {
            let last = connection.read(now);
            messages.extend(last.messages);
            end = last.end.or(Some(unsent));
        }
        let mut events: Vec<OobEvent> = messages
            .into_iter()
            .map(|message| OobEvent::Message(node, message))
            .collect();
        if let Some(end) = end {
            self.remove(node);
            events.push(OobEvent::Lost(node, end));
        }
        events
    }

    /// A host has proven itself.
    fn let_in(&mut self, ProvenHost { rank, stream }: ProvenHost, now: Instant) {
        let node = self
            .nodes
            .hosted_by(rank as usize)
            .filter(|&node| node != self.own);
        let Some(node) = node.filter(|&node| {
            self.connections
                .iter()
                .all(|connection| connection.node() != node)
        }) else {
            tracing::warn!(
                "rank {rank} called as the host of a node, and is none or has called before"
            );
            return;
        };
        let address = stream.local_addr();
        match (Connection::new(stream, node, now), address) {
            (Ok(connection), Ok(address)) => {
                self.connections.push(connection);
                self.came_to.push(address.ip().to_canonical());
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!("the connection to the host of node {node}: {error}");
                return;
            }
        }
        if self.came_to.len() + 1 == self.nodes.count()
            && let Some((_, complete)) = self.acceptor.take()
        {
            // If the rank has given up, nothing receives this any more.
            let _ = complete.send(std::mem::take(&mut self.came_to));
        }
    }

    /// No node is let in any more.
    pub(super) fn stop_accepting(&mut self) {
        self.acceptor = None;
    }

    /// Sends heartbeats that are due, and finds silent nodes.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<OobEvent> {
        let acceptor = self.acceptor.as_mut();
        let proven = acceptor.map_or_else(Vec::new, |(acceptor, _)| acceptor.tick(now));
        for host in proven {
            self.let_in(host, now);
        }
        // This side looks four times in that time. If it did not, the others are not to blame.
        let late = now.saturating_duration_since(self.looked) > self.timeout / 2;
        self.looked = now;
        // After its farewell a side sends nothing.
        let beats = self.ending.is_none();
        let mut events = Vec::new();
        let mut silent = Vec::new();
        for connection in &mut self.connections {
            if late {
                connection.forgive(now);
            }
            match connection.tick(self.timeout, beats, now) {
                Ok(()) => {}
                Err(Loss::Silent(_)) => silent.push(connection.node()),
                Err(end) => self.broken.push((connection.node(), end)),
            }
        }
        for node in silent {
            // What has come but was not read yet counts.
            events.extend(self.serve(node, now));
            let connection = self
                .connections
                .iter_mut()
                .find(|connection| connection.node() == node);
            if let Some(Err(end)) =
                connection.map(|connection| connection.tick(self.timeout, beats, now))
            {
                self.broken.push((node, end));
            }
        }
        for (node, end) in std::mem::take(&mut self.broken) {
            // A node that takes nothing any more may have sent something before: at best its farewell.
            events.extend(self.serve(node, now));
            if self.remove(node) {
                events.push(OobEvent::Lost(node, end));
            }
        }
        events
    }

    /// Sends a message about a rank, or about none, to all hosts that are to get it. From rank 0's host these are all
    /// but the host of the rank's own node. From another host it is rank 0's, if the message is about a rank of its
    /// own.
    pub(super) fn broadcast(&mut self, about: Option<usize>, message: &ToHost, now: Instant) {
        let node = about.and_then(|rank| self.nodes.node(rank));
        if self.own != 0 && node != Some(self.own) {
            return;
        }
        for connection in &mut self.connections {
            if Some(connection.node()) != node
                && let Err(end) = connection.send(message, now)
            {
                self.broken.push((connection.node(), end));
            }
        }
    }

    /// Whether nothing is left to be sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.connections.iter().all(Connection::is_flushed)
    }

    /// Takes a connection down; whether there was one.
    pub(super) fn remove(&mut self, node: u32) -> bool {
        let before = self.connections.len();
        self.connections
            .retain(|connection| connection.node() != node);
        self.connections.len() < before
    }

    /// All ranks of this node are out of the job: says farewell to rank 0's host, and sends nothing more. Gives whether
    /// nothing is left to do: rank 0's host serves until the other nodes have left as well, any other until rank 0's
    /// knows.
    pub(super) fn leave(&mut self, now: Instant) -> bool {
        let Some(connection) = self.connections.first_mut().filter(|_| self.own != 0) else {
            return self.connections.is_empty();
        };
        if self.ending.is_none() && connection.send(&ToHost::Farewell, now).is_err() {
            return true;
        }
        let since = *self.ending.get_or_insert(now);
        if connection.is_flushed() {
            connection.finish();
        }
        now.saturating_duration_since(since) >= self.timeout
    }
}

#[cfg(test)]
mod tests;
