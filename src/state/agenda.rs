// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a protocol leaves to the rounds of progress, in which all peers can be borrowed.

use crate::peer::Gone;

/// What is left to the next round of progress.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Ranks that have output or announced messages to look after.
    pub(crate) busy: Vec<u32>,
    /// Peers that cannot be talked with any more, found in the middle of something; they are failed at the end of a
    /// round of progress.
    broken: Vec<(u32, Gone)>,
    /// A send found no chunk: those that any peer has given back are to be collected.
    starved: bool,
}

impl Agenda {
    /// Puts a rank on the list of those to look after.
    #[inline]
    pub(crate) fn make_busy(&mut self, rank: u32) {
        if !self.busy.contains(&rank) {
            self.busy.push(rank);
        }
    }

    /// Has a peer failed that cannot be talked with any more.
    #[cold]
    pub(crate) fn fail(&mut self, rank: u32, why: Gone) {
        self.broken.push((rank, why));
    }

    /// Whether a peer is to be failed.
    #[inline]
    pub(crate) fn has_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// The next peer to be failed.
    pub(crate) fn next_broken(&mut self) -> Option<(u32, Gone)> {
        self.broken.pop()
    }

    /// Has chunks collected that any peer has given back.
    pub(crate) fn starve(&mut self) {
        self.starved = true;
    }

    /// Whether chunks are to be collected, which is done now.
    #[inline]
    pub(crate) fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// A rank is gone: nothing more is to be done for it.
    pub(crate) fn forget(&mut self, rank: u32) {
        self.busy.retain(|&busy| busy != rank);
    }
}
