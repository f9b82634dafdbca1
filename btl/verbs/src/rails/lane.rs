// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lane by several rails: its connections, and the stripes that are read.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::note::{Attempt, Keys};
use crate::adapter::{CACHE_ENTRIES, Shows};
use crate::changed::Listed;
use crate::matching::OfferedRail;

/// How long after a failure a connection is made again; after each further one twice as long, up to [`BACKOFF_MAX`].
/// Both are chosen by magnitude: a link that comes back needs some seconds. One that does not costs an attempt a
/// minute.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(64);
/// Keys of a peer's memory that are known at once. Older ones are forgotten: their memory is read by the first rail.
/// Twice as many as pieces of memory that a rank keeps registered.
const KEYS_MAX: usize = 2 * CACHE_ENTRIES;

/// A connection of a lane by one rail.
#[derive(Debug)]
pub(super) struct Connection {
    /// The own rail, and the peer's.
    pub(super) rail: usize,
    pub(super) peer_rail: usize,
    /// Megabits a second of the slower port of both; never 0.
    pub(super) speed: u32,
    /// The *inner* lane, on that rail's adapter; none while it is lost.
    pub(super) inner: Option<u64>,
    /// The number of the latest attempt to make it.
    pub(super) attempt: u32,
    /// Whether this side is connected and has notified the peer; whether the peer is, and has notified this side.
    pub(super) is_ready: bool,
    pub(super) peer_is_ready: bool,
    /// When the leader makes it again, and how long after the next failure.
    pub(super) retry_at: Instant,
    backoff: Duration,
    /// When the peer last offered it.
    pub(super) offered_at: Option<Instant>,
}

impl Connection {
    pub(super) fn new(rail: usize, inner: Option<u64>) -> Self {
        Self {
            rail,
            peer_rail: 0,
            speed: 1,
            inner,
            attempt: 0,
            is_ready: false,
            peer_is_ready: false,
            retry_at: Instant::now(),
            backoff: BACKOFF,
            offered_at: None,
        }
    }

    /// Which of the peer's rails it leads to; the own one has that speed.
    pub(super) fn set_peer(&mut self, peer: &OfferedRail, own: u32) {
        self.peer_rail = usize::from(peer.index);
        self.speed = own.min(peer.speed).max(1);
    }

    /// The inner lane, if both sides may read by it.
    pub(super) fn usable(&self) -> Option<u64> {
        self.inner.filter(|_| self.is_ready && self.peer_is_ready)
    }

    /// It is lost on this side. Only one that has read something shows that its way works.
    pub(super) fn mark_lost(&mut self, now: Instant, has_read: bool) {
        if has_read {
            self.backoff = BACKOFF;
        }
        self.inner = None;
        (self.is_ready, self.peer_is_ready) = (false, false);
        self.retry_at = now + self.backoff;
        self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
    }

    /// Its port came back, so it is made again soon.
    pub(super) fn retry_soon(&mut self, now: Instant) {
        self.backoff = BACKOFF;
        // Not at once: a peer offers no faster than this.
        self.retry_at = self.retry_at.min(now + BACKOFF);
    }
}

/// A key of a peer's memory, as an announcement carries it. It is the device's key, and in the upper half by which of
/// its owner's rails the memory has that key, and of which registration. A rank with one rail has zeros there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailKey {
    pub(super) key: u32,
    pub(super) rail: usize,
    /// 24 bits; 0: no note says its keys.
    pub(super) registration: u32,
}

impl RailKey {
    pub(super) fn from_bits(bits: u64) -> Self {
        Self {
            key: bits as u32,
            rail: (bits >> 32) as usize & 0xff,
            registration: (bits >> 40) as u32,
        }
    }

    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.registration) << 40 | (self.rail as u64) << 32 | u64::from(self.key)
    }
}

/// A part of a long message, of which a read is posted or is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stripe {
    /// Who reads.
    pub(super) token: u64,
    /// The token of the read by the inner lane.
    pub(super) inner_token: u64,
    pub(super) from: u64,
    pub(super) key: RailKey,
    pub(super) len: u64,
    /// The connection by which it is read; none: it is to be read by another one.
    pub(super) connection: Option<usize>,
}

/// A lane.
///
/// Invariants: the connections stand in one order on both sides, and the first carries the stream. A stripe stays until
/// its bytes were released. Those of one token come in their order, whichever rail reads them.
#[derive(Debug)]
pub(super) struct Lane {
    rank: u32,
    is_listed: bool,
    pub(super) failed: Option<String>,
    pub(super) connections: Vec<Connection>,
    /// What the peer was offered, in the order of the connections then.
    pub(super) offered: Vec<OfferedRail>,
    /// Whether the peer's offer has come.
    pub(super) is_matched: bool,
    /// Whether this side makes connections again.
    pub(super) leads: bool,
    pub(super) stripes: VecDeque<Stripe>,
    /// Whether it stands among those with stripes whose connection was lost.
    pub(super) is_waiting: bool,
    pub(super) next_inner_token: u64,
    /// Tokens of reads that no rail can do, until who reads has given them up.
    pub(super) unreadable: Vec<u64>,
    pub(super) shows: Shows,
    keys: VecDeque<(u32, Keys)>,
}

impl Listed for Lane {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn is_listed(&mut self) -> &mut bool {
        &mut self.is_listed
    }
}

impl Lane {
    pub(super) fn new(rank: u32, connections: Vec<Connection>) -> Self {
        Self {
            rank,
            is_listed: false,
            failed: None,
            connections,
            offered: Vec::new(),
            is_matched: false,
            leads: false,
            stripes: VecDeque::new(),
            is_waiting: false,
            next_inner_token: 0,
            unreadable: Vec::new(),
            shows: Shows::default(),
            keys: VecDeque::new(),
        }
    }

    /// The connection that carries the stream: its rail, and the inner lane.
    pub(super) fn first(&self) -> Option<(usize, u64)> {
        let first = self.connections.first()?;
        Some((first.rail, first.inner?))
    }

    /// The inner lane of a connection, if reads may be posted there once it is connected.
    pub(super) fn usable(&self, index: usize) -> Option<u64> {
        let connection = self.connections.get(index)?;
        match index {
            0 => connection.inner,
            _ => connection.usable(),
        }
    }

    /// The oldest stripe of a token.
    pub(super) fn next_stripe(&self, token: u64) -> Option<&Stripe> {
        self.stripes.iter().find(|stripe| stripe.token == token)
    }

    /// The rail and the inner lane by which a stripe is read, if there is one.
    pub(super) fn connection_of(&self, stripe: &Stripe) -> Option<(usize, u64)> {
        let connection = self.connections.get(stripe.connection?)?;
        Some((connection.rail, connection.inner?))
    }

    /// The keys of a registration of the peer's, by each of its rails.
    pub(super) fn add_keys(&mut self, registration: u32, keys: Keys) {
        self.keys.retain(|(known, _)| *known != registration);
        if self.keys.len() == KEYS_MAX {
            self.keys.pop_front();
        }
        self.keys.push_back((registration, keys));
    }

    /// The device's key of memory by a connection, if it can be read there.
    pub(super) fn key(&self, connection: &Connection, key: RailKey) -> Option<u32> {
        if connection.peer_rail == key.rail {
            return Some(key.key);
        }
        let mut known = self.keys.iter().rev();
        let known = known.find(|(known, _)| *known == key.registration && *known != 0);
        let (_, keys) = known?;
        *keys.get(connection.peer_rail)?
    }

    /// The latest attempt to make a connection.
    pub(super) fn attempt(&self, connection: usize) -> Attempt {
        let number = self.connections.get(connection).map_or(0, |c| c.attempt);
        Attempt {
            connection: connection as u8,
            number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_reads_nothing_is_made_ever_more_seldom() {
        let mut connection = Connection::new(1, None);
        let now = Instant::now();
        let mut lost = |has_read| {
            connection.inner = Some(1);
            (connection.is_ready, connection.peer_is_ready) = (true, true);
            connection.mark_lost(now, has_read);
            (connection.retry_at - now).as_secs()
        };
        assert_eq!([false, false, false].map(&mut lost), [1, 2, 4]);
        assert_eq!([true, false].map(&mut lost), [1, 2]);
        assert_eq!([false; 9].map(&mut lost)[8], BACKOFF_MAX.as_secs());
    }
}
