// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank shows of itself to tools, defined once: its counters, and what it received from each peer.
//!
//! The values lie in one statistics page per rank (`onecopy_shm::stats`). A reader knows by [`names`] whether the
//! page has the names, in the order, that the reader was built with.

use crate::counters::COUNTERS;

/// How bytes come to a rank, in the order of a [`Row`]. First the names of the layers, in the order of the registry,
/// then what is no layer.
pub const MECHANISMS: &[&str] = &[
    "self", "heap", "xpmem", "cma", "knem", "cico", "verbs", "tcp", "device",
];

/// Where among them a copy from device to device stands.
pub const DEVICE: usize = MECHANISMS.len() - 1;

/// The names of the layers.
pub const LAYERS: &[&str] = MECHANISMS.split_at(DEVICE).0;

/// Whether two names are the same: of use where tables are compared when they are compiled.
#[must_use]
pub const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// What came by one mechanism: into this rank's memory, whether this rank copied it or its peer did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages whose last bytes came so, and collectives of which some did.
    pub messages: u64,
    /// Payload.
    pub bytes: u64,
}

/// What came from one peer, by mechanism.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// In the order of [`MECHANISMS`].
    pub by: [Totals; MECHANISMS.len()],
}

impl Row {
    /// Counts a message that has ended, all of whose bytes came so.
    #[inline(always)]
    pub fn add(&mut self, mechanism: usize, bytes: u64) {
        self.add_message(mechanism);
        self.add_bytes(mechanism, bytes);
    }

    /// Counts bytes that came.
    #[inline(always)]
    pub fn add_bytes(&mut self, mechanism: usize, bytes: u64) {
        if let Some(totals) = self.by.get_mut(mechanism) {
            totals.bytes = totals.bytes.wrapping_add(bytes);
        }
    }

    /// Counts the end of a message.
    #[inline(always)]
    pub fn add_message(&mut self, mechanism: usize) {
        if let Some(totals) = self.by.get_mut(mechanism) {
            totals.messages = totals.messages.wrapping_add(1);
        }
    }

    /// All payload.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.by.iter().map(|totals| totals.bytes).sum()
    }
}

/// A hash of all names in their order: of the counters, then of the mechanisms.
#[must_use]
pub fn names() -> u64 {
    let counters = COUNTERS.iter().map(|counter| counter.name);
    hash(counters.chain(MECHANISMS.iter().copied()))
}

/// FNV-1a, with an end after each name.
fn hash(names: impl Iterator<Item = &'static str>) -> u64 {
    let bytes = names.flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_by_mechanism() {
        let mut row = Row::default();
        row.add_bytes(1, 7);
        row.add_bytes(5, 3);
        row.add_message(5);
        row.add_bytes(MECHANISMS.len(), 9);
        assert_eq!(row.bytes(), 10);
        let expected = Totals {
            messages: 1,
            bytes: 3,
        };
        assert_eq!(row.by[5], expected);
    }

    #[test]
    fn names_are_the_same_from_end_to_end() {
        assert!(is_same("cma", "cma") && is_same("", ""));
        for other in ["cm", "cmaa", "cmb", ""] {
            assert!(!is_same("cma", other) && !is_same(other, "cma"));
        }
    }

    #[test]
    fn the_order_of_names_and_their_ends_matter() {
        let hash_of = |names: &[&'static str]| hash(names.iter().copied());
        assert_ne!(hash_of(&["a", "b"]), hash_of(&["b", "a"]));
        assert_ne!(hash_of(&["ab"]), hash_of(&["a", "b"]));
        assert_ne!(names(), 0);
    }
}
