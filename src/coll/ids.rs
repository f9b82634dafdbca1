// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ids of communicators, and whose turn it is to take one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Ids of communicators at a time, the one of all ranks included. Chosen by magnitude: programs have tens. A proposal
/// carries a bit for each, 256 bytes in all.
pub(super) const IDS: u32 = 2048;
pub(super) const WORDS: usize = IDS as usize / 64;

/// Identifies and orders agreements, the same on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    /// The context of the parent.
    pub(crate) context: u32,
    pub(crate) participants: Participants,
}

/// Who of the parent's members takes part in an agreement. In this order they have their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Participants {
    /// All of them.
    All,
    /// A group. The tag tells agreements of one parent apart that happen at the same time.
    Group { tag: u32 },
}

/// A communicator with the members of another one, in a context of its own.
pub(super) struct InContext {
    pub(super) context: u32,
    /// The slot of the other one, and its own.
    pub(super) parent: usize,
    pub(super) slot: usize,
}

/// Ids of communicators.
pub(crate) struct Ids {
    pub(super) used: [u64; WORDS],
    /// Slot and id of those in use.
    pub(super) of_slots: Vec<(usize, u32)>,
    /// Where to look for a free one first, so that an id rests before it is used again.
    pub(crate) next: u32,
    /// Users of channels so far.
    pub(super) users: u32,
    /// Whose agreement holds the ids.
    pub(super) holder: Option<Turn>,
    pub(super) waiting: BTreeSet<Turn>,
    pub(crate) freed_slots: Arc<Mutex<Vec<usize>>>,
    pub(super) by_context: Vec<InContext>,
}

impl Default for Ids {
    fn default() -> Self {
        let mut used = [0; WORDS];
        // All ranks.
        used[0] = 1;
        Self {
            used,
            of_slots: Vec::new(),
            next: 1,
            users: 1,
            holder: None,
            waiting: BTreeSet::new(),
            freed_slots: Arc::default(),
            by_context: Vec::new(),
        }
    }
}
