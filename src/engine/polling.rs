// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which ranks are polled, and how often this rank looks at what it does not poll.

use super::wires;
use crate::peer::Peer;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Calls that complete at once between two full rounds of progress, less one. Chosen by magnitude: a round takes about
/// as long as one message, so it adds a hundredth to such a call.
const READY_CALLS: u32 = 127;

/// A rank that has sent something and could not be connected with yet.
#[derive(Debug)]
struct Unreached {
    rank: u32,
    since: Instant,
}

/// What a rank polls.
#[derive(Debug)]
pub(crate) struct Polling {
    /// Ranks whose endpoints are polled.
    pub(crate) ranks: Vec<u32>,
    unreached: Vec<Unreached>,
    /// Rounds of progress.
    rounds: u32,
    /// When these bits of the rounds are all zero, connections are looked at.
    look_mask: u32,
    /// Calls that look at one ring alone, or at a line of a collective.
    calls: u32,
    /// The coarse clock when it was last looked at.
    tick: Option<TimeSpec>,
}

impl Polling {
    /// Polls no rank yet. `several_nodes`: there are connections to look at.
    pub(super) fn new(several_nodes: bool) -> Self {
        Self {
            ranks: Vec::new(),
            unreached: Vec::new(),
            rounds: 0,
            calls: 0,
            tick: None,
            look_mask: if several_nodes {
                wires::ROUNDS
            } else {
                wires::ROUNDS_ONE_NODE
            },
        }
    }

    /// How many rounds of progress there were; it wraps.
    #[cfg(test)]
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Begins a round. `true`: it is time to look at what is not polled.
    #[inline(always)]
    pub(super) fn next_round(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        self.rounds & self.look_mask == 0
    }

    /// Counts a call that may find at once what it wants, and makes no round of progress then. `true`: it is to look
    /// at everything else first. Else a program whose messages are always there would never do so.
    #[inline(always)]
    pub(crate) fn counts_call(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.calls & READY_CALLS == 0
    }

    /// Whether time has passed since this was last asked, by a clock that is cheap and moves every few milliseconds. A
    /// program may call seldom, so that rounds say nothing of the time.
    #[inline]
    pub(super) fn time_has_passed(&mut self) -> bool {
        let tick = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).ok();
        std::mem::replace(&mut self.tick, tick) != tick
    }

    /// Whether this round also looks for what has not been needed for a while, as every job does.
    pub(super) fn ages(&self) -> bool {
        self.rounds & wires::ROUNDS_ONE_NODE == 0
    }

    /// Polls a peer from now on.
    pub(super) fn poll(&mut self, peer: &mut Peer) {
        peer.endpoint.set_polling(true);
        peer.idle_polls = 0;
        if !peer.polled {
            peer.polled = true;
            self.ranks.push(peer.rank);
        }
    }

    /// Polls a peer again that is polled no more, and is not gone. Says whether it does.
    pub(super) fn poll_again(&mut self, peer: &mut Peer) -> bool {
        let again = !peer.polled && !peer.life.is_gone();
        if again {
            self.poll(peer);
        }
        again
    }

    /// One more try to reach a rank has failed. Gives for how long they did, if it is not the first.
    pub(super) fn failed_to_reach(&mut self, rank: u32, now: Instant) -> Option<Duration> {
        let known = self.unreached.iter().find(|other| other.rank == rank);
        let lasts = known.map(|known| now.saturating_duration_since(known.since));
        if lasts.is_none() {
            self.unreached.push(Unreached { rank, since: now });
        }
        lasts
    }

    /// A rank is reached, or given up.
    pub(super) fn settled(&mut self, rank: u32) {
        self.unreached.retain(|unreached| unreached.rank != rank);
    }

    /// The ranks that could not be reached.
    pub(super) fn unreached(&self) -> Vec<u32> {
        let all = self.unreached.iter();
        all.map(|unreached| unreached.rank).collect()
    }
}
