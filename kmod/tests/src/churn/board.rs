// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all processes share: what each did so far, and names of objects that others may try.
//!
//! A row of counts has one writer. Names are written by all without order: a torn or old one is as
//! good a try as another.

use crate::mem::{Area, PAGE};
use crate::outcome::Outcome;

/// What somebody did, and it was not refused.
#[derive(Clone, Copy)]
pub(super) enum Deed {
    Export,
    Attach,
    Load,
    Store,
    Prefault,
    Copy,
    Region,
    RegionCopy,
    Fork,
    Exec,
    Punch,
    Truncate,
    Move,
    Revoke,
    Starve,
    Block,
    Register,
    MemRead,
    MemWrite,
    VmRead,
    Peek,
    Compact,
}

/// All, with their names. Every one must have been done.
pub(super) const DEEDS: &[(Deed, &str)] = &[
    (Deed::Export, "exports"),
    (Deed::Attach, "attachments"),
    (Deed::Load, "loads from attachments"),
    (Deed::Store, "stores to attachments"),
    (Deed::Prefault, "PREFAULT"),
    (Deed::Copy, "COPY"),
    (Deed::Region, "regions"),
    (Deed::RegionCopy, "copies of regions"),
    (Deed::Fork, "forks"),
    (Deed::Exec, "execs"),
    (Deed::Punch, "holes punched"),
    (Deed::Truncate, "truncations"),
    (Deed::Move, "mremap"),
    (Deed::Revoke, "REVOKE, REMOVE"),
    (Deed::Starve, "processes without memory"),
    (Deed::Block, "userfaultfd"),
    (Deed::Register, "notifiers registered"),
    (Deed::MemRead, "reads of /proc/PID/mem"),
    (Deed::MemWrite, "writes to /proc/PID/mem"),
    (Deed::VmRead, "process_vm_readv of an owner"),
    (Deed::Peek, "words read by ptrace"),
    (Deed::Compact, "times all memory was compacted"),
];

/// Kinds of names.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// An xpmem segment.
    Segment,
    /// A knem region.
    Cookie,
    /// A process, above 2^48, and one of its attachments.
    View,
    /// A process, and memory that it exports.
    Own,
}
const KINDS: usize = 4;
/// Names that are remembered, of each kind.
const NAMES: usize = 32;

const STOP: usize = 0;
const NAMES_AT: usize = 8;
const ROWS_AT: usize = NAMES_AT + KINDS * NAMES * 8;
/// Progress, then the deeds.
const ROW: usize = 8 * (1 + DEEDS.len());

/// The shared memory.
#[derive(Clone, Copy)]
pub(super) struct Board {
    area: Area,
    places: usize,
}

impl Board {
    pub(super) fn new(places: usize) -> Outcome<Self> {
        let area = Area::shared((ROWS_AT + places * ROW).next_multiple_of(PAGE))?;
        Ok(Self { area, places })
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

    fn add(&self, at: usize) {
        self.area.store(at, self.area.load(at) + 1);
    }

    /// Shows that a place's process is alive.
    pub(super) fn step(&self, place: usize) {
        self.add(ROWS_AT + place * ROW);
    }

    pub(super) fn progress(&self, place: usize) -> u64 {
        self.area.load(ROWS_AT + place * ROW)
    }

    pub(super) fn did(&self, place: usize, deed: Deed) {
        self.add(ROWS_AT + place * ROW + 8 * (1 + deed as usize));
    }

    /// How often all together did it.
    pub(super) fn done(&self, deed: Deed) -> u64 {
        (0..self.places)
            .map(|place| {
                self.area
                    .load(ROWS_AT + place * ROW + 8 * (1 + deed as usize))
            })
            .sum()
    }

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
