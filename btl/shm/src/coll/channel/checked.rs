// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where an end of a channel lies when the models run: in memory that loom checks. Payload, slots
//! and stages are cells. Two threads that use one of them, without an order between them and one of
//! them to write, fail the model.
//!
//! # Safety
//! loom's `UnsafeCell` fails the model before two threads have pointers to one cell at the same time,
//! one of them to write.
#![allow(unsafe_code, reason = "plain memory under loom's eyes")]

use super::super::checked_line::INLINE;
use super::{Line, Lines};
use crate::layout::{COLL_SLOT, COLL_SLOTS, COLL_STAGE, COLL_STAGES};
use loom::cell::UnsafeCell;
use std::sync::Arc;

/// Bytes whose every access loom checks; zero until they are written.
#[derive(Debug, Default)]
pub(super) struct Bytes(UnsafeCell<Vec<u8>>);

// SAFETY: loom checks each access.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

/// What a line carries itself.
pub(super) type Payload = Bytes;

impl Bytes {
    fn put(&self, offset: usize, bytes: &[u8]) {
        self.0.with_mut(|all| {
            // SAFETY: loom has checked that nobody else uses it now.
            let all = unsafe { &mut *all };
            let end = offset + bytes.len();
            if all.len() < end {
                all.resize(end, 0);
            }
            all[offset..end].copy_from_slice(bytes); // short
        });
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        self.0.with(|all| {
            // SAFETY: loom has checked that nobody writes now.
            let all = unsafe { &*all };
            (offset..offset + len)
                .map(|index| all.get(index).copied().unwrap_or(0))
                .collect()
        })
    }
}

/// As the view of mapped memory, as far as models need it.
#[derive(Debug, Clone, Copy)]
pub struct View<'m> {
    bytes: &'m Bytes,
    offset: usize,
    len: usize,
}

impl View<'_> {
    /// The `len` bytes from `offset` on; none if they do not lie in the view.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        (offset <= self.len && len <= self.len - offset).then_some(Self {
            offset: self.offset + offset,
            len,
            ..self
        })
    }

    /// Copies the bytes out.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        self.bytes.get(self.offset, self.len)
    }
}

#[derive(Debug, Default)]
struct Parts {
    lines: Lines,
    slots: [Bytes; COLL_SLOTS],
    stages: [Bytes; COLL_STAGES],
}

/// The memory of one end.
#[derive(Debug, Clone, Default)]
pub struct EndMemory(Arc<Parts>);

impl EndMemory {
    pub(super) fn lines(&self) -> &Lines {
        &self.0.lines
    }

    #[expect(clippy::unused_self, reason = "production's memory needs it")]
    pub(super) fn slot_bytes(&self) -> usize {
        COLL_SLOT
    }

    pub(super) fn put_line(&self, line: &Line, bytes: &[u8]) {
        assert!(bytes.len() <= INLINE);
        line.payload.put(0, bytes);
    }

    pub(super) fn payload(&self, line: &Line) -> [u8; INLINE] {
        let mut payload = [0; INLINE];
        payload.copy_from_slice(&line.payload.get(0, INLINE)); // short
        payload
    }

    pub(super) fn first_word(&self, line: &Line) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&line.payload.get(0, 8)); // short
        u64::from_le_bytes(word)
    }

    pub(super) fn view_line<'m>(&'m self, line: &'m Line) -> View<'m> {
        View {
            bytes: &line.payload,
            offset: 0,
            len: INLINE,
        }
    }

    pub(super) fn put_slot(&self, slot: usize, offset: usize, bytes: &[u8]) {
        assert!(offset <= COLL_SLOT && bytes.len() <= COLL_SLOT - offset);
        self.0.slots[slot].put(offset, bytes);
    }

    pub(super) fn view_slot(&self, slot: usize) -> View<'_> {
        View {
            bytes: &self.0.slots[slot],
            offset: 0,
            len: COLL_SLOT,
        }
    }

    pub(super) fn put_stage(&self, stage: usize, bytes: &[u8]) {
        assert!(bytes.len() <= COLL_STAGE);
        self.0.stages[stage].put(0, bytes);
    }

    pub(super) fn view_stage(&self, stage: usize) -> View<'_> {
        View {
            bytes: &self.0.stages[stage],
            offset: 0,
            len: COLL_STAGE,
        }
    }
}
