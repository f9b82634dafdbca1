// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where an end of a channel lies: in a segment, which all members map.
//!
//! # Safety
//! The pointer leads into a mapping that [`EndMemory`] keeps alive; [`crate::segment`] constructs one
//! with offsets of a checked geometry. Control words are atomics. Payload, slots and stages are raw
//! bytes after a range check that holds in release builds too.
#![allow(unsafe_code, reason = "raw access to a mapping that peers write")]

use super::super::checked_line::INLINE;
pub(super) use super::super::view::View;
use super::{Channel, Line, Lines};
use crate::copy::{self, Kernel};
use crate::doorbell::Doorbell;
use crate::layout::{COLL_DEPTH, COLL_SLOTS, COLL_STAGE, COLL_STAGES, PAGE, SegOffset};
use crate::mapping::{Mapping, SharedStruct};
use crate::prefetch;
use crate::sync::{AtomicU64, Ordering};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// What a line carries itself.
pub(super) type Payload = [AtomicU64; INLINE / 8];

const _: () = assert!(size_of::<Lines>() <= PAGE);
// SAFETY: all atomics.
unsafe impl SharedStruct for Lines {}

const SLOTS: usize = PAGE;

/// The memory of one end.
#[derive(Debug, Clone)]
pub struct EndMemory {
    map: Arc<Mapping>,
    lines: NonNull<Lines>,
    /// That of the rank whose segment it is.
    doorbell: NonNull<Doorbell>,
    begin: u64,
    /// Bytes of a slot.
    slot: usize,
}

// SAFETY: see Mapping; control words are atomics, the rest is raw bytes.
unsafe impl Send for EndMemory {}
// SAFETY: as above.
unsafe impl Sync for EndMemory {}

impl EndMemory {
    /// `slot`: bytes of a slot. The doorbell lies in the mapping, too.
    pub(crate) fn new(
        map: &Arc<Mapping>,
        doorbell: &Doorbell,
        offset: SegOffset,
        slot: usize,
    ) -> Self {
        let lines = NonNull::from(map.shared::<Lines>(offset.0));
        let doorbell = NonNull::from(doorbell);
        Self {
            map: Arc::clone(map),
            lines,
            doorbell,
            begin: offset.0,
            slot,
        }
    }

    #[inline(always)]
    pub(super) fn lines(&self) -> &Lines {
        // SAFETY: made from a reference into the mapping that this keeps alive.
        unsafe { self.lines.as_ref() }
    }

    #[inline(always)]
    pub(super) fn doorbell(&self) -> &Doorbell {
        // SAFETY: made from a reference into the same mapping, as its maker promises; an atomic word.
        unsafe { self.doorbell.as_ref() }
    }

    #[inline]
    fn area(&self, offset: usize, len: usize) -> NonNull<u8> {
        self.map
            .at("a channel", self.begin + offset as u64, len as u64)
            .expect("channels lie in the part of the segment that all map")
    }

    /// Bytes of a slot.
    #[inline(always)]
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot
    }

    /// Where a stage begins, behind the slots.
    #[inline]
    fn stage_at(&self, stage: usize) -> usize {
        SLOTS + COLL_SLOTS * self.slot + stage * COLL_STAGE
    }

    /// Writes the payload of a line.
    ///
    /// # Panics
    /// If it does not fit.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "the models' memory needs it")]
    pub(super) fn put_line(&self, line: &Line, bytes: &[u8]) {
        assert!(bytes.len() <= INLINE);
        // SAFETY: the bytes fit into the payload, which does not overlap memory of the program.
        unsafe { copy::copy_to_raw(line.payload.as_ptr().cast_mut().cast(), bytes) };
    }

    /// The payload of a line, each word read once.
    #[inline(always)]
    pub(super) fn payload(&self, line: &Line) -> [u8; INLINE] {
        let mut payload = [0; INLINE];
        for (out, word) in payload.chunks_exact_mut(8).zip(&line.payload) {
            out.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        payload
    }

    /// The first word of a line's payload.
    #[inline(always)]
    pub(super) fn first_word(&self, line: &Line) -> u64 {
        line.payload[0].load(Ordering::Relaxed)
    }

    /// All of a line's payload.
    #[inline(always)]
    pub(super) fn view_line<'m>(&'m self, line: &'m Line) -> View<'m> {
        let payload = NonNull::from(&line.payload).cast();
        // SAFETY: the bytes lie in the mapping, which `self` keeps alive.
        unsafe { View::new(payload, INLINE) }
    }

    /// Writes to a slot.
    ///
    /// # Panics
    /// If the bytes do not lie in the slot.
    #[inline]
    pub(super) fn put_slot(&self, slot: usize, offset: usize, bytes: &[u8]) {
        assert!(slot < COLL_SLOTS && offset <= self.slot && bytes.len() <= self.slot - offset);
        let pointer = self.area(SLOTS + slot * self.slot + offset, bytes.len());
        // SAFETY: the range lies in the slot, which does not overlap memory of the program.
        unsafe { copy::copy_to_raw(pointer.as_ptr(), bytes) };
    }

    /// All of a slot.
    #[inline]
    pub(super) fn view_slot(&self, slot: usize) -> View<'_> {
        debug_assert!(slot < COLL_SLOTS);
        let pointer = self.area(SLOTS + slot * self.slot, self.slot);
        // SAFETY: the bytes lie in the mapping, which `self` keeps alive.
        unsafe { View::new(pointer, self.slot) }
    }

    /// Writes to the front of a stage.
    ///
    /// # Panics
    /// If the bytes do not lie in the stage.
    #[inline]
    pub(super) fn put_stage(&self, stage: usize, bytes: &[u8]) {
        assert!(stage < COLL_STAGES && bytes.len() <= COLL_STAGE);
        let pointer = self.area(self.stage_at(stage), bytes.len());
        // SAFETY: the range lies in the stage, which does not overlap memory of the program.
        unsafe {
            copy::copy(
                Kernel::Memcpy,
                pointer.as_ptr(),
                bytes.as_ptr(),
                bytes.len(),
            )
        };
    }

    /// All of a stage.
    #[inline]
    pub(super) fn view_stage(&self, stage: usize) -> View<'_> {
        let pointer = self.area(self.stage_at(stage), COLL_STAGE);
        // SAFETY: the bytes lie in the mapping, which `self` keeps alive.
        unsafe { View::new(pointer, COLL_STAGE) }
    }
}

/// Hints to the processor, which nothing depends on.
impl Channel {
    /// A hint that the line of `seq` is written soon.
    #[inline]
    pub fn will_publish(&self, seq: u32) {
        prefetch::for_write(NonNull::from(self.line(seq)));
    }

    /// A hint that `part` of the slot of `seq` is written soon; for the owner.
    #[inline]
    pub fn will_fill_slot(&self, seq: u32, part: Range<usize>) {
        let (pointer, len) = self.part_of_slot(seq, &part);
        prefetch::range_for_write(pointer, len);
    }

    /// A hint that others read `part` of the slot of `seq` now; for the owner, who has published
    /// it.
    #[inline]
    pub fn hand_over_slot(&self, seq: u32, part: Range<usize>) {
        let (pointer, len) = self.part_of_slot(seq, &part);
        copy::demote_range(pointer, len);
    }

    /// A hint that others read the line of `seq` now; for the owner, who has published it.
    #[inline]
    pub fn hand_over(&self, seq: u32) {
        copy::demote_range(NonNull::from(self.line(seq)).cast(), size_of::<Line>());
    }

    fn part_of_slot(&self, seq: u32, part: &Range<usize>) -> (NonNull<u8>, usize) {
        let bytes = self.memory.slot;
        let (begin, end) = (part.start.min(bytes), part.end.min(bytes));
        let slot = SLOTS + seq as usize % COLL_DEPTH * bytes;
        let len = end.saturating_sub(begin);
        (self.memory.area(slot + begin, len), len)
    }
}
