// SPDX-License-Identifier: MIT OR Apache-2.0
//! The links of one host: of rank 0's to that of every other node, of any other to rank 0's.
//!
//! This module decides who hears what, who lives, and when a link is over. What a word means for the ranks is the
//! [broker](super::broker)'s.

use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::link::{End, Link, Word};
use super::nodes::Nodes;
use super::port::{self, Port};

/// Names what to poll for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// At the port.
    Port(port::Token),
    /// The link to this node.
    Link(u32),
}

/// What a link brought.
#[derive(Debug)]
pub(super) enum News {
    /// Its other side says this.
    Word(u32, Word),
    /// It is over, and its node with it.
    Lost(u32, End),
}

/// What a host needs to be joined to others.
#[derive(Debug)]
pub(super) struct Plan {
    /// Which rank is where.
    pub(super) nodes: Arc<Nodes>,
    /// This host's node.
    pub(super) own: u32,
    /// A link that is silent for so long is dead.
    pub(super) timeout: Duration,
    /// How it begins.
    pub(super) first: First,
}

/// How a host's links begin.
#[derive(Debug)]
pub(super) enum First {
    /// Rank 0's: the others come to this port. When all have, it is said to which of our addresses.
    Port(Port, Sender<Vec<IpAddr>>),
    /// Any other's: it has called.
    Called(TcpStream),
}

/// The links of one host.
#[derive(Debug)]
pub(super) struct Links {
    nodes: Arc<Nodes>,
    own: u32,
    timeout: Duration,
    links: Vec<Link>,
    /// Links that are over already, which is still to be told.
    broken: Vec<(u32, End)>,
    port: Option<(Port, Sender<Vec<IpAddr>>)>,
    /// To which of our addresses links have come.
    came_to: Vec<IpAddr>,
    looked: Instant,
    /// Since when the other side knows that this one ends.
    ending: Option<Instant>,
}

impl Links {
    pub(super) fn new(plan: Plan, now: Instant) -> std::io::Result<Self> {
        let (port, links) = match plan.first {
            First::Port(port, told) => (Some((port, told)), Vec::new()),
            First::Called(stream) => (None, vec![Link::new(stream, 0, now)?]),
        };
        Ok(Self {
            nodes: plan.nodes,
            own: plan.own,
            timeout: plan.timeout,
            links,
            broken: Vec::new(),
            port,
            came_to: Vec::new(),
            looked: now,
            ending: None,
        })
    }

    /// Descriptors to watch: for reading, and for writing if the flags are set.
    pub(super) fn polled(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>, bool, bool)> {
        let port = self.port.iter().flat_map(|(port, _)| port.polled());
        let port = port.map(|(token, fd, writes)| (Token::Port(token), fd, !writes, writes));
        let links = self.links.iter().map(|link| {
            let token = Token::Link(link.node());
            (token, link.as_fd(), true, !link.is_flushed())
        });
        port.chain(links)
    }

    /// When [`tick`](Self::tick) has something to do at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        if !self.broken.is_empty() {
            return Some(self.looked);
        }
        let links = self.links.iter().map(|link| link.due(self.timeout));
        let port = self.port.as_ref().and_then(|(port, _)| port.due());
        let ending = self.ending.map(|since| since + self.timeout);
        // As often as a side has to look that may blame others for silence.
        let look = (!self.links.is_empty()).then(|| self.looked + self.timeout / 4);
        links.chain(port).chain(ending).chain(look).min()
    }

    /// Serves what is ready.
    pub(super) fn ready(&mut self, token: Token, now: Instant) -> Vec<News> {
        match token {
            Token::Port(token) => {
                let come = self
                    .port
                    .as_mut()
                    .and_then(|(port, _)| port.ready(token, now));
                if let Some((rank, stream)) = come {
                    self.let_in(rank, stream, now);
                }
                Vec::new()
            }
            Token::Link(node) => self.serve(node, now),
        }
    }

    fn serve(&mut self, node: u32, now: Instant) -> Vec<News> {
        let Some(link) = self.links.iter_mut().find(|link| link.node() == node) else {
            return Vec::new();
        };
        let (mut words, mut end) = link.read(now);
        // Room to write is no news; that there is nobody to write to is noticed by reading.
        if end.is_none()
            && let Err(unsent) = link.flush()
        {
            let (last, found) = link.read(now);
            words.extend(last);
            end = found.or(Some(unsent));
        }
        let mut news: Vec<News> = words
            .into_iter()
            .map(|word| News::Word(node, word))
            .collect();
        if let Some(end) = end {
            self.remove(node);
            news.push(News::Lost(node, end));
        }
        news
    }

    /// A host has proven itself.
    fn let_in(&mut self, rank: u32, stream: TcpStream, now: Instant) {
        let node = self
            .nodes
            .hosted_by(rank as usize)
            .filter(|&node| node != self.own);
        let Some(node) = node.filter(|&node| self.links.iter().all(|link| link.node() != node))
        else {
            tracing::warn!(
                "rank {rank} called as the host of a node, and is none or has called before"
            );
            return;
        };
        let address = stream.local_addr();
        match (Link::new(stream, node, now), address) {
            (Ok(link), Ok(address)) => {
                self.links.push(link);
                self.came_to.push(address.ip().to_canonical());
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!("the connection to the host of node {node}: {error}");
                return;
            }
        }
        if self.came_to.len() + 1 == self.nodes.count()
            && let Some((_, told)) = self.port.take()
        {
            // Nobody asks any more if the rank has given up.
            let _ = told.send(std::mem::take(&mut self.came_to));
        }
    }

    /// Nobody is let in any more.
    pub(super) fn close_port(&mut self) {
        self.port = None;
    }

    /// Says what is due and finds out who is silent.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<News> {
        if let Some((port, _)) = &mut self.port {
            port.tick(now);
        }
        // This side looks four times in that time. If it did not, the others are not to blame.
        let late = now.saturating_duration_since(self.looked) > self.timeout / 2;
        self.looked = now;
        // After its farewell a side says nothing.
        let beats = self.ending.is_none();
        let mut news = Vec::new();
        let mut silent = Vec::new();
        for link in &mut self.links {
            if late {
                link.forgive(now);
            }
            match link.tick(self.timeout, beats, now) {
                Ok(()) => {}
                Err(End::Silent(_)) => silent.push(link.node()),
                Err(end) => self.broken.push((link.node(), end)),
            }
        }
        for node in silent {
            // What has come but was not read yet counts.
            news.extend(self.serve(node, now));
            let link = self.links.iter_mut().find(|link| link.node() == node);
            if let Some(Err(end)) = link.map(|link| link.tick(self.timeout, beats, now)) {
                self.broken.push((node, end));
            }
        }
        for (node, end) in std::mem::take(&mut self.broken) {
            // Who hears nothing any more may have said something before: at best its farewell.
            news.extend(self.serve(node, now));
            if self.remove(node) {
                news.push(News::Lost(node, end));
            }
        }
        news
    }

    /// Says a word about a rank, or about nobody, to all hosts that are to hear it. From rank 0's host these are all
    /// but the host of the rank's own node. From another host it is rank 0's, if the word is about a rank of its own.
    pub(super) fn tell(&mut self, about: Option<usize>, word: &Word, now: Instant) {
        let node = about.and_then(|rank| self.nodes.of(rank));
        if self.own != 0 && node != Some(self.own) {
            return;
        }
        for link in &mut self.links {
            if Some(link.node()) != node
                && let Err(end) = link.say(word, now)
            {
                self.broken.push((link.node(), end));
            }
        }
    }

    /// Whether nothing is left to be sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.links.iter().all(Link::is_flushed)
    }

    /// Takes a link down; whether there was one.
    pub(super) fn remove(&mut self, node: u32) -> bool {
        let before = self.links.len();
        self.links.retain(|link| link.node() != node);
        self.links.len() < before
    }

    /// All ranks of this node are out of the job. Whether nothing is left to do: rank 0's host serves until the other
    /// nodes are done as well, any other until rank 0's knows.
    pub(super) fn is_done(&mut self, now: Instant) -> bool {
        let Some(link) = self.links.first_mut().filter(|_| self.own != 0) else {
            return self.links.is_empty();
        };
        let since = match self.ending {
            Some(since) => since,
            None => {
                if link.say(&Word::Farewell, now).is_err() {
                    return true;
                }
                *self.ending.insert(now)
            }
        };
        if link.is_flushed() {
            link.finish();
        }
        now.saturating_duration_since(since) >= self.timeout
    }
}

#[cfg(test)]
mod tests;
