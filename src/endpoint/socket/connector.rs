// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections as they are made: outbound to other ranks, and inbound from them.
//!
//! Both sides of a connection prove that they know the job's secret ([`crate::proof`]). Then the accepting side has the
//! word: it confirms, and the caller answers with one byte, [`GO`], behind which its frames follow. Until then nothing
//! of the other side is believed or kept.
//!
//! Time counts against the other side only while this rank looks. What has come is read before its lateness is judged.
//!
//! Two ranks may call each other at once: the lower rank's call stays. It leaves the other's call unconfirmed as long
//! as its own may succeed. The higher rank confirms at once. It gives its own call up when the lower one's byte has
//! come. So a pair never has two connections that both count, and one that only one side can make is made.

mod inbound;
mod message;
mod outbound;

use super::options::{self, SocketSettings};
use crate::endpoint::hub::{EventSource, Interest, Set};
use inbound::InboundConnection;
use onecopy_shm::attended::AttendedTime;
use outbound::OutboundConnection;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a caller says when the connection is confirmed: the pair talks by it from here on.
const GO: u8 = 0x90;
/// Inbound connections that are not proven yet, at most: beyond that the first of them goes. Chosen by magnitude: a
/// proof takes one round trip, in which few of a job's ranks call at once. It bounds descriptors that strangers can
/// take.
const INBOUND_MAX: usize = 128;
/// How long an inbound connection may take to prove itself. As long as a caller tries by default
/// (`ONECOPY_TCP_CONNECT_TIMEOUT`): a caller that computes proves itself late.
const PROVE: Duration = Duration::from_secs(10);
/// The time of others counts for so long after this rank has looked at its connections. Chosen by magnitude: a rank
/// looks once in 400 ms at least, unless its program computes or it is stopped.
const COUNTED: Duration = Duration::from_secs(1);
/// How long the listener accepts nothing when descriptors or memory are short. Chosen by magnitude: two periods of the
/// looks at peers' lives. Calls wait in the kernel's queue meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// What has become of a connection.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is there.
    Connected(u32, OwnedFd),
    /// This rank cannot be reached, for this reason.
    Failed(u32, String),
}

/// What a rank on another node is to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// There is no connection.
    Apart,
    Connected,
    /// It is not talked with any more.
    Gone,
}

#[derive(Debug)]
struct PeerEntry {
    address: SocketAddr,
    standing: Standing,
    /// This rank has something for it.
    wanted: bool,
}

/// What makes connections.
#[derive(Debug)]
pub(crate) struct Connector {
    settings: SocketSettings,
    set: Arc<Set>,
    listener: TcpListener,
    /// When inbound connections are let in again, if they are not now.
    paused: Option<Instant>,
    warned_of_shortage: bool,
    /// Of the ranks on other nodes.
    entries: Vec<Option<PeerEntry>>,
    inbound: Vec<Option<InboundConnection>>,
    outbound: Vec<OutboundConnection>,
    outcomes: VecDeque<Outcome>,
    /// The time by which others are late.
    time: AttendedTime,
    /// Inbound connections that did not prove to be of the job, or came for nothing.
    pub(crate) refused: u64,
}

impl Connector {
    /// Listens at `address`.
    pub(crate) fn listen(
        address: IpAddr,
        settings: SocketSettings,
        set: &Arc<Set>,
    ) -> io::Result<Self> {
        let listener = options::listen_at(address, &settings)?;
        set.add(&listener, EventSource::Listener, Interest::READ)?;
        Ok(Self {
            settings,
            set: Arc::clone(set),
            listener,
            paused: None,
            warned_of_shortage: false,
            entries: Vec::new(),
            inbound: Vec::new(),
            outbound: Vec::new(),
            outcomes: VecDeque::new(),
            time: AttendedTime::new(COUNTED, Instant::now()),
            refused: 0,
        })
    }

    /// Where this rank listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How many descriptors it has.
    pub(crate) fn descriptors(&self) -> usize {
        1 + self.inbound.len() + self.outbound.len()
    }

    /// Sets where the ranks on other nodes listen, by rank.
    pub(crate) fn set_addresses(&mut self, addresses: impl Iterator<Item = Option<SocketAddr>>) {
        let entry = |address| PeerEntry {
            address,
            standing: Standing::Apart,
            wanted: false,
        };
        self.entries = addresses.map(|address| address.map(entry)).collect();
    }

    fn entry(&self, rank: u32) -> Option<&PeerEntry> {
        self.entries.get(rank as usize)?.as_ref()
    }

    /// Where a rank listens; none: it is on this node, or published no address.
    pub(crate) fn address_of(&self, rank: u32) -> Option<SocketAddr> {
        self.entry(rank).map(|entry| entry.address)
    }

    fn standing(&self, rank: u32) -> Option<Standing> {
        self.entry(rank).map(|entry| entry.standing)
    }

    /// Whether this rank is making a connection with another one.
    fn connects_to(&self, rank: u32) -> bool {
        self.outbound.iter().any(|outbound| outbound.rank == rank)
    }

    /// Nothing more is to be had from a rank.
    pub(crate) fn give_up(&mut self, rank: u32) {
        self.settle(rank, Standing::Gone);
    }

    /// Whether a connection is being made.
    pub(crate) fn is_busy(&self) -> bool {
        !self.outbound.is_empty()
            || self.paused.is_some()
            || self.inbound.iter().any(Option::is_some)
            || !self.outcomes.is_empty()
    }

    /// The next thing that has become of a connection.
    pub(crate) fn outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Ends all that was under way with a rank.
    fn settle(&mut self, rank: u32, standing: Standing) {
        if let Some(Some(entry)) = self.entries.get_mut(rank as usize) {
            entry.standing = standing;
        }
        self.drop_outbound(rank);
        for index in 0..self.inbound.len() {
            if self.inbound[index]
                .as_ref()
                .is_some_and(|g| g.rank() == Some(rank))
            {
                self.drop_inbound(index);
            }
        }
    }

    fn connected(&mut self, rank: u32, fd: OwnedFd) {
        self.settle(rank, Standing::Connected);
        self.outcomes.push_back(Outcome::Connected(rank, fd));
    }

    /// Something is ready that is this part's.
    pub(crate) fn ready(&mut self, source: EventSource, now: Instant) {
        match source {
            EventSource::Listener => self.let_in(now),
            EventSource::Inbound(index) => self.hear_inbound(index as usize, now),
            EventSource::Outbound(rank) => self.move_outbound(rank, now),
            EventSource::Stop | EventSource::Pair(_) | EventSource::Device => {}
        }
    }

    /// Closes an inbound connection, unless what it has sent proves who it is: this rank may not have looked for long.
    fn refuse_unproven(&mut self, index: usize, why: &str, now: Instant) {
        self.hear_inbound(index, now);
        let one = self.inbound.get(index).and_then(Option::as_ref);
        if one.is_some_and(|one| one.rank().is_none()) {
            self.refuse(index, why);
        }
    }

    /// An inbound connection has sent something, or has gone.
    fn hear_inbound(&mut self, index: usize, now: Instant) {
        // A rank that gives its call up has another one, or comes again; else it is called.
        if let Some(rank) = self.on_inbound(index) {
            self.connect_if_wanted(rank, now);
        }
    }

    /// Does what is due by the clock.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
            let _ = self
                .set
                .watch(&self.listener, EventSource::Listener, Interest::READ);
        }
        let time = self.time.looks(now);
        for index in 0..self.inbound.len() {
            let late = |one: &InboundConnection| one.rank().is_none() && time > one.since + PROVE;
            if self.inbound[index].as_ref().is_some_and(late) {
                self.refuse_unproven(index, "it has not proven itself in time", now);
            }
        }
        self.tick_calls(now);
    }
}

#[cfg(test)]
mod tests;
