// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each process did so far.

use crate::notes::{self, Notes};
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

impl notes::Kind for Kind {
    const COUNT: usize = 4;
    const REMEMBERED: usize = 32;

    fn place(self) -> usize {
        self as usize
    }
}

/// Progress, then the deeds.
const ROW: usize = 1 + DEEDS.len();

/// What all processes share.
#[derive(Clone, Copy)]
pub(super) struct Board {
    pub(super) notes: Notes<Kind>,
    places: usize,
}

impl Board {
    pub(super) fn new(places: usize) -> Outcome<Self> {
        let notes = Notes::new(places * ROW)?;
        Ok(Self { notes, places })
    }

    /// Shows that a place's process is alive.
    pub(super) fn step(&self, place: usize) {
        self.notes.add(place * ROW, 1);
    }

    pub(super) fn progress(&self, place: usize) -> u64 {
        self.notes.count(place * ROW)
    }

    pub(super) fn did(&self, place: usize, deed: Deed) {
        self.notes.add(Self::deed(place, deed), 1);
    }

    /// How often all together did it.
    fn done(&self, deed: Deed) -> u64 {
        (0..self.places)
            .map(|place| self.notes.count(Self::deed(place, deed)))
            .sum()
    }

    /// How often each deed was done.
    pub(super) fn all(&self) -> Vec<u64> {
        DEEDS.iter().map(|(deed, _)| self.done(*deed)).collect()
    }

    fn deed(place: usize, deed: Deed) -> usize {
        place * ROW + 1 + deed as usize
    }
}
