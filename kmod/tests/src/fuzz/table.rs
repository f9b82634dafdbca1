// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all processes share: counts of calls by their result, and names of objects that others may try.
//!
//! Each row of counts has one writer. Names are written by all without order: a torn or old one is as good a try as another.

use std::time::Duration;

use crate::mem::Area;
use crate::outcome::Outcome;

use super::calls::CALLS;

/// Results that are told apart: 0 success, up to 133 an errno, 134 anything else.
pub(super) const RESULTS: usize = 135;
/// Names that are remembered, of each kind.
const NAMES: usize = 64;

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
const KINDS: usize = 4;

const STOP: usize = 0;
const NAMES_AT: usize = 8;
const ROWS_AT: usize = NAMES_AT + KINDS * NAMES * 8;

/// The shared memory.
#[derive(Clone, Copy)]
pub(super) struct Table {
    area: Area,
    slots: usize,
}

impl Table {
    pub(super) fn new(slots: usize) -> Outcome<Self> {
        let length = ROWS_AT + slots * WRITERS * Self::row_length();
        let area = Area::shared(length.next_multiple_of(crate::mem::PAGE))?;
        Ok(Self { area, slots })
    }

    /// Calls, progress, then results of each call, then the time that each took.
    fn row_length() -> usize {
        8 * (2 + CALLS.len() * (RESULTS + 1))
    }

    fn row(slot: usize, writer: Writer) -> usize {
        ROWS_AT + (slot * WRITERS + writer as usize) * Self::row_length()
    }

    fn add(&self, at: usize) {
        self.add_many(at, 1);
    }

    fn add_many(&self, at: usize, count: u64) {
        self.area.store(at, self.area.load(at) + count);
    }

    pub(super) fn stop(&self) {
        self.area.store(STOP, 1);
    }

    pub(super) fn let_go(&self) {
        self.area.store(STOP, 0);
    }

    pub(super) fn stopped(&self) -> bool {
        self.area.load(STOP) != 0
    }

    /// Counts a call.
    pub(super) fn count(&self, slot: usize, writer: Writer, call: usize, result: usize) {
        let row = Self::row(slot, writer);
        if CALLS[call].device {
            self.add(row);
        }
        self.add(row + 8 * (2 + call * RESULTS + result.min(RESULTS - 1)));
    }

    /// Shows that a writer is alive, and how long its last call took.
    pub(super) fn step(&self, slot: usize, writer: Writer, call: usize, took: Duration) {
        let row = Self::row(slot, writer);
        self.add(row + 8);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.add_many(row + Self::time(call), nanoseconds);
    }

    fn time(call: usize) -> usize {
        8 * (2 + CALLS.len() * RESULTS + call)
    }

    /// The time that all calls of a kind took together.
    pub(super) fn spent(&self, call: usize) -> Duration {
        Duration::from_nanos(self.sum(Self::time(call)))
    }

    /// Calls on the devices so far.
    pub(super) fn calls(&self) -> u64 {
        self.sum(0)
    }

    /// How often a call had a result.
    pub(super) fn results(&self, call: usize, result: usize) -> u64 {
        self.sum(8 * (2 + call * RESULTS + result))
    }

    fn sum(&self, offset: usize) -> u64 {
        (0..self.slots)
            .flat_map(|slot| {
                [Writer::Main, Writer::Thread, Writer::Child].map(|writer| Self::row(slot, writer))
            })
            .map(|row| self.area.load(row + offset))
            .sum()
    }

    /// Steps of a slot's first thread.
    pub(super) fn progress(&self, slot: usize) -> u64 {
        self.area.load(Self::row(slot, Writer::Main) + 8)
    }

    /// Remembers a name.
    pub(super) fn offer(&self, kind: Kind, at: u64, name: u64) {
        self.area.store(Self::name(kind, at), name);
    }

    /// A name that somebody offered; zero if nobody did.
    pub(super) fn name_at(&self, kind: Kind, at: u64) -> u64 {
        self.area.load(Self::name(kind, at))
    }

    fn name(kind: Kind, at: u64) -> usize {
        NAMES_AT + (kind as usize * NAMES + at as usize % NAMES) * 8
    }
}
