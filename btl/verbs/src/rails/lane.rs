// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lane by several rails: its connections, and the stripes that were asked for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::note::{Keys, Place};
use crate::changed::Listed;
use crate::matching::OfferedRail;

/// How long after a failure a connection is made again; after each further one twice as long, up to [`BACKOFF_MAX`].
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(64);
/// Keys of a peer's memory that are known at once. Older ones are forgotten: their memory is read by the first rail.
const KEYS_MAX: usize = 256;

/// A connection of a lane by one rail.
#[derive(Debug)]
pub(super) struct Connection {
    /// The own rail, and the peer's.
    pub(super) rail: usize,
    pub(super) peer: usize,
    /// Megabits a second of the slower port of both; never 0.
    pub(super) speed: u32,
    /// Its lane on that rail's adapter; none while there is none.
    pub(super) lane: Option<u64>,
    /// How often it was begun, ever.
    pub(super) attempt: u32,
    /// Whether this side is connected and has said so; whether the peer has.
    pub(super) said_ready: bool,
    pub(super) heard_ready: bool,
    /// When the leader makes it again, and how long after the next failure.
    pub(super) again_at: Instant,
    backoff: Duration,
    /// When the peer last offered it.
    pub(super) offered: Option<Instant>,
}

impl Connection {
    pub(super) fn new(rail: usize, lane: Option<u64>) -> Self {
        Self {
            rail,
            peer: 0,
            speed: 1,
            lane,
            attempt: 0,
            said_ready: false,
            heard_ready: false,
            again_at: Instant::now(),
            backoff: BACKOFF,
            offered: None,
        }
    }

    /// By which of the peer's rails it goes; the own one has that speed.
    pub(super) fn goes_to(&mut self, peer: &OfferedRail, own: u32) {
        self.peer = usize::from(peer.index);
        self.speed = own.min(peer.speed).max(1);
    }

    /// Its lane, if both sides may read by it.
    pub(super) fn usable(&self) -> Option<u64> {
        self.lane.filter(|_| self.said_ready && self.heard_ready)
    }

    /// It is over on this side. Only one that has read something shows that its way works.
    pub(super) fn ends(&mut self, now: Instant, has_read: bool) {
        if has_read {
            self.backoff = BACKOFF;
        }
        self.lane = None;
        (self.said_ready, self.heard_ready) = (false, false);
        self.again_at = now + self.backoff;
        self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
    }

    /// Its port came back.
    pub(super) fn comes_back(&mut self, now: Instant) {
        self.backoff = BACKOFF;
        // Not at once: a peer offers no faster than this.
        self.again_at = self.again_at.min(now + BACKOFF);
    }
}

/// What the upper half of a key says: by which of its owner's rails the memory has that key, and what names the memory.
/// A rank with one rail has zeros there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) rail: usize,
    /// 24 bits; never 0 where there is a name.
    pub(super) id: u32,
}

impl Name {
    pub(super) fn of(key: u64) -> Self {
        Self {
            rail: (key >> 32) as usize & 0xff,
            id: (key >> 40) as u32,
        }
    }

    pub(super) fn with(self, key: u32) -> u64 {
        u64::from(self.id) << 40 | (self.rail as u64) << 32 | u64::from(key)
    }
}

/// Bytes of the peer's memory that were asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stripe {
    /// Who reads.
    pub(super) token: u64,
    /// What the rail knows it by.
    pub(super) name: u64,
    pub(super) from: u64,
    /// By which the memory is read, and what names it.
    pub(super) key: u64,
    pub(super) len: u64,
    /// The connection that was asked; none: it is to be asked for again.
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
    /// Whether it stands among those with stripes that are to be asked for again.
    pub(super) is_waiting: bool,
    pub(super) next_name: u64,
    /// Who asked for memory that no rail can read, and has not given that up yet.
    pub(super) hopeless: Vec<u64>,
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
            next_name: 0,
            hopeless: Vec::new(),
            keys: VecDeque::new(),
        }
    }

    /// The connection that carries the stream: its rail, and its lane there.
    pub(super) fn first(&self) -> Option<(usize, u64)> {
        let first = self.connections.first()?;
        Some((first.rail, first.lane?))
    }

    /// The oldest stripe of a token.
    pub(super) fn next_of(&self, token: u64) -> Option<&Stripe> {
        self.stripes.iter().find(|stripe| stripe.token == token)
    }

    /// Its rail and its lane there, if one was asked.
    pub(super) fn asked(&self, stripe: &Stripe) -> Option<(usize, u64)> {
        let connection = self.connections.get(stripe.connection?)?;
        Some((connection.rail, connection.lane?))
    }

    /// The peer says by which keys it has shown some memory.
    pub(super) fn learn(&mut self, id: u32, keys: Keys) {
        self.keys.retain(|(known, _)| *known != id);
        if self.keys.len() == KEYS_MAX {
            self.keys.pop_front();
        }
        self.keys.push_back((id, keys));
    }

    /// The key of memory by a connection, if it can be read there.
    pub(super) fn key(&self, connection: &Connection, key: u64) -> Option<u32> {
        let name = Name::of(key);
        if connection.peer == name.rail {
            return Some(key as u32);
        }
        let mut known = self.keys.iter().rev();
        let (_, keys) = known.find(|(known, _)| *known == name.id && name.id != 0)?;
        *keys.get(connection.peer)?
    }

    /// What a note says about a connection.
    pub(super) fn place(&self, connection: usize) -> Place {
        let attempt = self.connections.get(connection).map_or(0, |c| c.attempt);
        Place {
            connection: connection as u8,
            attempt,
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
        let mut ends = |has_read| {
            connection.lane = Some(1);
            (connection.said_ready, connection.heard_ready) = (true, true);
            connection.ends(now, has_read);
            (connection.again_at - now).as_secs()
        };
        assert_eq!([false, false, false].map(&mut ends), [1, 2, 4]);
        assert_eq!([true, false].map(&mut ends), [1, 2]);
        assert_eq!([false; 9].map(&mut ends)[8], BACKOFF_MAX.as_secs());
    }
}
