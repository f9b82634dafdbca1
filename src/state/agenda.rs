// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a protocol leaves to the rounds of progress, in which all peers can be borrowed.

use crate::error::Error;
use crate::peer::Gone;

/// The end of a rank, or of everything, that a part of the engine has found. The engine carries it out, once nothing is
/// in the middle of something.
#[derive(Debug)]
pub(crate) enum Ending {
    /// This rank talks with the peer no more.
    Peer(u32, Gone),
    /// The wire-up reports that the rank is over. What it had sent before may still be on its way.
    Reported(u32, Gone),
    /// Every wait ends with the error.
    Everything(Error),
}

/// What is left to the next round of progress.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Ranks that have output or announced messages to look after.
    pub(crate) busy: Vec<u32>,
    /// They are carried out at the end of a round of progress at the latest.
    endings: Vec<Ending>,
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

    /// Has a peer failed that cannot be talked with any more. The first reason that is found counts.
    #[cold]
    pub(crate) fn fail(&mut self, rank: u32, why: Gone) {
        let known = |ending: &Ending| matches!(ending, Ending::Peer(known, _) if *known == rank);
        if !self.endings.iter().any(known) {
            self.endings.push(Ending::Peer(rank, why));
        }
    }

    /// The wire-up has reported the end of a rank.
    #[cold]
    pub(crate) fn report(&mut self, rank: u32, gone: Gone) {
        self.endings.push(Ending::Reported(rank, gone));
    }

    /// Has every wait ended.
    #[cold]
    pub(crate) fn end_everything(&mut self, error: Error) {
        self.endings.push(Ending::Everything(error));
    }

    /// Whether an end is to be carried out.
    #[inline(always)]
    pub(crate) fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    /// The ends to be carried out now. What this rank found of a peer comes before what others report: it says more.
    pub(crate) fn take_endings(&mut self) -> Vec<Ending> {
        let mut endings = std::mem::take(&mut self.endings);
        endings.sort_by_key(|ending| match ending {
            Ending::Peer(..) => 0,
            Ending::Reported(..) => 1,
            Ending::Everything(_) => 2,
        });
        endings
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
