// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of the ends of ranks, and what ends every wait.

use crate::error::{Error, Result};
use crate::matching::Pattern;
use crate::peer::Gone;
use std::time::{Duration, Instant};

/// Which ranks are gone, whether there was a peer for them or not, and when this rank looks again.
#[derive(Debug)]
pub(crate) struct Lives {
    gone: Vec<Option<Gone>>,
    /// Ranks of which the wire-up has reported that they are over.
    over: Vec<bool>,
    /// Whether the wire-up says nothing more.
    is_closed: bool,
    /// Ranks that are gone and that the program has not acknowledged: they fail receives from any source.
    unacknowledged: Vec<u32>,
    /// Something that ends every wait.
    fatal: Option<Error>,
    /// When this rank looked last.
    looked: Instant,
    /// It is to look again.
    is_due: bool,
}

impl Lives {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            gone: (0..size).map(|_| None).collect(),
            over: vec![false; size],
            is_closed: false,
            unacknowledged: Vec::new(),
            fatal: None,
            looked: Instant::now(),
            is_due: false,
        }
    }

    /// This rank looks now.
    pub(crate) fn looks(&mut self, now: Instant) {
        (self.looked, self.is_due) = (now, false);
    }

    /// Has this rank look again, if it last did so longer ago than that.
    pub(crate) fn note_time(&mut self, now: Instant, pause: Duration) {
        self.is_due |= now.saturating_duration_since(self.looked) >= pause;
    }

    /// Whether this rank is to look again.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// What has become of a rank that is not talked with any more.
    #[inline(always)]
    pub(crate) fn gone(&self, rank: u32) -> Option<&Gone> {
        self.gone[rank as usize].as_ref()
    }

    #[inline(always)]
    pub(crate) fn is_gone(&self, rank: u32) -> bool {
        self.gone(rank).is_some()
    }

    /// Whether there is such a rank, and it is not gone.
    #[inline(always)]
    pub(crate) fn is_there(&self, rank: usize) -> bool {
        matches!(self.gone.get(rank), Some(None))
    }

    /// Whether there is such a rank.
    pub(crate) fn knows(&self, rank: usize) -> bool {
        rank < self.gone.len()
    }

    /// The error of a rank that is gone.
    pub(crate) fn error_of(&self, rank: u32) -> Option<Error> {
        self.gone(rank).map(|gone| gone.error(rank))
    }

    /// The error of the first rank that is gone, if one is.
    pub(crate) fn first_error(&self) -> Option<Error> {
        (0..self.gone.len() as u32).find_map(|rank| self.error_of(rank))
    }

    /// Something that ends every wait.
    #[inline(always)]
    pub(crate) fn fatal(&self) -> Option<&Error> {
        self.fatal.as_ref()
    }

    /// An error if every wait ends.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.fatal.clone().map_or(Ok(()), Err)
    }

    /// Every wait ends with the first such error.
    pub(crate) fn end_everything(&mut self, error: &Error) {
        self.fatal.get_or_insert_with(|| error.clone());
    }

    /// A rank is gone.
    pub(crate) fn mark(&mut self, rank: u32, gone: Gone) {
        // A rank that finalized in order fails no receive from any source.
        if gone != Gone::Left {
            self.unacknowledged.push(rank);
        }
        self.gone[rank as usize] = Some(gone);
    }

    /// The wire-up says that a rank is over.
    pub(crate) fn mark_over(&mut self, rank: u32) {
        self.over[rank as usize] = true;
    }

    /// The wire-up says nothing more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether the wire-up has reported that a rank is over, or will report nothing of it.
    pub(crate) fn is_over(&self, rank: u32) -> bool {
        self.is_closed || self.over[rank as usize]
    }

    /// Whether a rank has nothing under way for this one: it has announced that, or this rank has rejected its
    /// messages.
    pub(crate) fn has_ended(&self, rank: u32) -> bool {
        matches!(self.gone(rank), Some(Gone::Protocol(_) | Gone::Left)) || self.over[rank as usize]
    }

    /// Why nothing can ever match `pattern`, if that is so.
    pub(crate) fn unmatchable(&self, pattern: &Pattern) -> Option<Error> {
        let source = pattern.source.or(self.unacknowledged.first().copied())?;
        self.error_of(source)
    }

    /// If all others are gone, the error of the last one.
    pub(crate) fn alone(&self, me: u32) -> Option<Error> {
        let mut others = (0..self.gone.len() as u32).filter(|&rank| rank != me);
        if !others.clone().all(|rank| self.is_gone(rank)) {
            return None;
        }
        self.error_of(others.next_back()?)
    }

    /// The program knows of all deaths so far: receives from any source go on without the dead.
    pub(crate) fn acknowledge(&mut self) -> Vec<usize> {
        self.unacknowledged.clear();
        self.gone
            .iter()
            .enumerate()
            .filter(|(_, gone)| gone.as_ref().is_some_and(|gone| *gone != Gone::Left))
            .map(|(rank, _)| rank)
            .collect()
    }
}
