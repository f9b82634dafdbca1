// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which ranks are polled, and how often this rank looks at what it does not poll.

use super::wires;
use crate::peer::Peer;

/// A rank that has sent something and could not be connected with yet.
#[derive(Debug)]
struct Unreached {
    rank: u32,
    tries: u32,
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
}

impl Polling {
    /// Polls no rank yet. `several_nodes`: there are connections to look at.
    pub(super) fn new(several_nodes: bool) -> Self {
        Self {
            ranks: Vec::new(),
            unreached: Vec::new(),
            rounds: 0,
            look_mask: if several_nodes {
                wires::ROUNDS
            } else {
                wires::ROUNDS_ONE_NODE
            },
        }
    }

    /// Begins a round. `true`: it is time to look at what is not polled.
    #[inline(always)]
    pub(super) fn next_round(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        self.rounds & self.look_mask == 0
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

    /// One more try to reach a rank has failed. Gives how many did.
    pub(super) fn failed_to_reach(&mut self, rank: u32) -> u32 {
        match self.unreached.iter_mut().find(|other| other.rank == rank) {
            Some(unreached) => {
                unreached.tries += 1;
                unreached.tries
            }
            None => {
                self.unreached.push(Unreached { rank, tries: 1 });
                1
            }
        }
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
