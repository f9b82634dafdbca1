// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a ring is made of: slots of one cache line, and the control words around them.
//!
//! The ring's algorithm is written against [`Cells`]. So the same code runs on a mapping in production and on loom's
//! checked cells in the models. A slot is `[header: u64][meta: u64][48 payload bytes]`; a record that spans slots has
//! its payload continue over the whole of the following ones, headers included.
//!
//! # Safety
//! [`MappedCells`] keeps raw pointers into a mapping that its owner keeps alive (see [`crate::segment`], which alone
//! constructs it). All payload accesses are bounded by the ring's size with checks that hold in release builds too.
#![allow(unsafe_code, reason = "raw access to a mapping that peers write")]

use crate::sync::{AtomicU32, AtomicU64};

/// Payload bytes in a record's first slot.
pub const FIRST_PAYLOAD: usize = 48;
/// Bytes of header and meta word at the front of a record.
pub const RECORD_HEAD: usize = 16;

/// Payloads of so many bytes are written to the record's first line last.
///
/// A consumer that waits looks at that line all the time. It takes the line away from a producer that wrote there but
/// has not published it yet, and the producer has to fetch it back. A shorter payload is written before that happens.
/// Then the first line is better written first, as all lines are on their way at once. 256 bytes written last take 20 %
/// longer, 1 KiB near 0.205 instead of 0.231 us (D, 11-25). On B, 300 B to 1.5 KiB differ by 2 % either way
/// (docs/performance.md, "Small messages").
#[cfg(not(loom))]
const FIRST_LINE_LAST: usize = 384;

/// Storage of one ring and its control words.
pub trait Cells {
    /// Number of slots; a power of two.
    fn slots(&self) -> usize;
    /// Header word of a slot: zero until a record that begins there is published.
    fn header(&self, slot: usize) -> &AtomicU64;
    /// Second word of a slot, ordered by the header.
    fn meta(&self, slot: usize) -> &AtomicU64;
    /// Slots consumed so far; written by the consumer.
    fn tail(&self) -> &AtomicU64;
    /// Nonzero while the consumer polls this ring; written by the consumer.
    fn wake(&self) -> &AtomicU32;
    /// A hint that `slots` slots from `slot` on, up to the end of the ring, are written soon.
    fn will_write(&self, slot: usize, slots: usize) {
        let _ = (slot, slots);
    }
    /// A hint that `slots` slots from `slot` on, up to the end of the ring, are read soon.
    fn will_read(&self, slot: usize, slots: usize) {
        let _ = (slot, slots);
    }
    /// Copies `bytes` to the payload of the record that begins at `slot`, `offset` bytes into it.
    ///
    /// # Panics
    /// If the range leaves the ring's last slot.
    fn write(&self, slot: usize, offset: usize, bytes: &[u8]);
    /// Copies payload of the record that begins at `slot` out to `out`.
    ///
    /// # Panics
    /// If the range leaves the ring's last slot.
    fn read(&self, slot: usize, offset: usize, out: &mut [u8]);
}

#[cfg(not(loom))]
mod mapped {
    use super::{AtomicU32, AtomicU64, Cells, FIRST_LINE_LAST, FIRST_PAYLOAD, RECORD_HEAD};
    use crate::copy::{AHEAD_MIN, Kernel, copy, copy_from_raw, copy_to_raw};
    use crate::layout::LINE;
    use crate::mapping::Mapping;
    use crate::prefetch;
    use std::ptr::NonNull;
    use std::sync::Arc;

    /// A ring in a mapping, which it keeps alive.
    #[derive(Debug)]
    pub struct MappedCells {
        _map: Arc<Mapping>,
        ring: NonNull<u8>,
        slots: usize,
        tail: NonNull<AtomicU64>,
        wake: NonNull<AtomicU32>,
    }

    // SAFETY: the pointers lead to shared memory that lives as long as the owner of these cells keeps its mapping.
    // Control words are accessed as atomics and payload by raw byte copies, neither of which depends on the thread.
    unsafe impl Send for MappedCells {}

    impl MappedCells {
        /// Cells over `slots` slots at `ring`, with the control words at `tail` and `wake`.
        ///
        /// # Safety
        /// All pointers are aligned and lie in `map`; `ring` is the first of
        /// `slots * 64` bytes; `slots` is a power of two.
        #[must_use]
        pub(crate) unsafe fn new(
            map: Arc<Mapping>,
            ring: NonNull<u8>,
            slots: usize,
            tail: NonNull<AtomicU64>,
            wake: NonNull<AtomicU32>,
        ) -> Self {
            debug_assert!(slots.is_power_of_two());
            Self {
                _map: map,
                ring,
                slots,
                tail,
                wake,
            }
        }

        #[inline(always)]
        fn word(&self, slot: usize, index: usize) -> &AtomicU64 {
            assert!(slot < self.slots);
            // SAFETY: slot < slots, so the offset lies in the ring (type invariant).
            let pointer = unsafe { self.ring.add(slot * LINE + index * 8) };
            // SAFETY: the address is 8-aligned (slots are 64-aligned) and valid for the life of self. It is only ever
            // accessed as an atomic or as raw payload bytes.
            unsafe { pointer.cast::<AtomicU64>().as_ref() }
        }

        /// The lines of `slots` slots from `slot` on, up to the end of the ring.
        #[inline(always)]
        fn lines(&self, slot: usize, slots: usize) -> impl Iterator<Item = NonNull<u8>> {
            let ring = self.ring;
            let end = (slot + slots).min(self.slots);
            // SAFETY: slot < end <= slots of the ring, so the offset lies in it (type invariant).
            (slot..end).map(move |slot| unsafe { ring.add(slot * LINE) })
        }

        #[inline(always)]
        fn payload(&self, slot: usize, offset: usize, len: usize) -> NonNull<u8> {
            let begin = slot * LINE + RECORD_HEAD + offset;
            assert!(
                slot < self.slots
                    && offset <= self.slots * LINE
                    && len <= self.slots * LINE
                    && begin + len <= self.slots * LINE
            );
            // SAFETY: begin + len lies in the ring, checked above.
            unsafe { self.ring.add(begin) }
        }
    }

    impl Cells for MappedCells {
        #[inline(always)]
        fn slots(&self) -> usize {
            self.slots
        }
        #[inline(always)]
        fn header(&self, slot: usize) -> &AtomicU64 {
            self.word(slot, 0)
        }
        #[inline(always)]
        fn meta(&self, slot: usize) -> &AtomicU64 {
            self.word(slot, 1)
        }
        #[inline(always)]
        fn tail(&self) -> &AtomicU64 {
            // SAFETY: type invariant.
            unsafe { self.tail.as_ref() }
        }
        #[inline(always)]
        fn wake(&self) -> &AtomicU32 {
            // SAFETY: type invariant.
            unsafe { self.wake.as_ref() }
        }
        #[inline(always)]
        fn will_read(&self, slot: usize, slots: usize) {
            // The loop costs a short message 17 instructions, even where its end is known.
            match slots {
                1 => prefetch::for_read(NonNull::from(self.word(slot, 0))),
                _ => self.lines(slot, slots).for_each(prefetch::for_read),
            }
        }
        #[inline(always)]
        fn will_write(&self, slot: usize, slots: usize) {
            self.lines(slot, slots).for_each(prefetch::for_write);
        }
        #[inline(always)]
        fn write(&self, slot: usize, offset: usize, bytes: &[u8]) {
            let to = self.payload(slot, offset, bytes.len());
            if offset == 0 && bytes.len() >= FIRST_LINE_LAST {
                let (first, rest) = bytes.split_at(FIRST_PAYLOAD);
                // SAFETY: there are as many bytes from `to` on.
                let next = unsafe { to.add(FIRST_PAYLOAD) };
                // SAFETY: payload() checked the range, of which this is a part.
                unsafe { copy_to_raw(next.as_ptr(), rest) }
                // SAFETY: as above.
                unsafe { copy_to_raw(to.as_ptr(), first) }
                return;
            }
            // SAFETY: payload() checked the range; the ring does not overlap memory of the program.
            unsafe { copy_to_raw(to.as_ptr(), bytes) }
        }
        #[inline(always)]
        fn read(&self, slot: usize, offset: usize, out: &mut [u8]) {
            let from = self.payload(slot, offset, out.len());
            if out.len() >= AHEAD_MIN {
                // SAFETY: payload() checked the range; the ring does not overlap memory of the program.
                unsafe { copy(Kernel::Ahead, out.as_mut_ptr(), from.as_ptr(), out.len()) }
                return;
            }
            // SAFETY: payload() checked the range; the ring does not overlap memory of the program.
            unsafe { copy_from_raw(from.as_ptr(), out) }
        }
    }
}

#[cfg(not(loom))]
pub use mapped::MappedCells;
