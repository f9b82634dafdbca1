// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of calls by their result.

use std::time::Duration;

use crate::notes::{self, Notes};
use crate::outcome::Outcome;

/// Results that are told apart: 0 success, up to 133 an errno, 134 anything else.
pub(super) const RESULTS: usize = 135;

/// Who writes a row.
#[derive(Clone, Copy)]
pub(super) enum Writer {
    Main,
    Thread,
    Child,
}
const WRITERS: usize = 3;

/// Kinds of names.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// An xpmem segment of some pages.
    Segment,
    /// An xpmem segment of a whole address space.
    Whole,
    /// A knem region.
    Cookie,
    /// What an old knem sender offers.
    Sent,
}

impl notes::Kind for Kind {
    const COUNT: usize = 4;
    const REMEMBERED: usize = 64;

    fn place(self) -> usize {
        self as usize
    }
}

/// What all processes share.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) notes: Notes<Kind>,
    slots: usize,
    /// Kinds of calls.
    calls: usize,
}

impl Table {
    pub(super) fn new(slots: usize, calls: usize) -> Outcome<Self> {
        let notes = Notes::new(slots * WRITERS * Self::row_length(calls))?;
        Ok(Self {
            notes,
            slots,
            calls,
        })
    }

    /// Calls, progress, then results of each call, then the time that each took.
    const fn row_length(calls: usize) -> usize {
        2 + calls * (RESULTS + 1)
    }

    fn row(&self, slot: usize, writer: Writer) -> usize {
        (slot * WRITERS + writer as usize) * Self::row_length(self.calls)
    }

    /// Counts a call, which may be one on a device.
    pub(super) fn count(
        &self,
        slot: usize,
        writer: Writer,
        (call, device): (usize, bool),
        result: usize,
    ) {
        let row = self.row(slot, writer);
        if device {
            self.notes.add(row, 1);
        }
        self.notes
            .add(row + 2 + call * RESULTS + result.min(RESULTS - 1), 1);
    }

    /// Shows that a writer is alive, and how long its last call took.
    pub(super) fn step(&self, slot: usize, writer: Writer, call: usize, took: Duration) {
        let row = self.row(slot, writer);
        self.notes.add(row + 1, 1);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.notes.add(row + self.time(call), nanoseconds);
    }

    fn time(&self, call: usize) -> usize {
        2 + self.calls * RESULTS + call
    }

    /// The time that all calls of a kind took together.
    pub(super) fn spent(&self, call: usize) -> Duration {
        Duration::from_nanos(self.sum(self.time(call)))
    }

    /// Calls on the devices so far.
    pub(super) fn calls(&self) -> u64 {
        self.sum(0)
    }

    /// How often a call had a result.
    pub(super) fn results(&self, call: usize, result: usize) -> u64 {
        self.sum(2 + call * RESULTS + result)
    }

    fn sum(&self, offset: usize) -> u64 {
        (0..self.slots)
            .flat_map(|slot| {
                [Writer::Main, Writer::Thread, Writer::Child].map(|writer| self.row(slot, writer))
            })
            .map(|row| self.notes.count(row + offset))
            .sum()
    }

    /// Steps of a slot's first thread.
    pub(super) fn progress(&self, slot: usize) -> u64 {
        self.notes.count(self.row(slot, Writer::Main) + 1)
    }
}
