// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring on the heap, every part of it watched by loom.

use super::watched::Watched;
use loom::sync::Arc;
use onecopy_shm::cells::{Cells, FIRST_PAYLOAD, RECORD_HEAD};
use onecopy_shm::layout::LINE;
use onecopy_shm::sync::{AtomicU32, AtomicU64, Ordering};

/// Slots of a model's ring: the fewest with which a record of two slots can wrap.
pub(crate) const SLOTS: usize = 4;

struct Slot {
    header: AtomicU64,
    meta: AtomicU64,
    payload: Watched<[u8; FIRST_PAYLOAD]>,
}

struct Words {
    slots: Vec<Slot>,
    tail: AtomicU64,
    wake: AtomicU32,
}

/// Both ends share one of these.
#[derive(Clone)]
pub(crate) struct HeapCells(Arc<Words>);

impl HeapCells {
    /// A zeroed ring. `wake` says whether the consumer polls it from the start.
    pub(crate) fn new(wake: bool) -> Self {
        let slot = |_| Slot {
            header: AtomicU64::new(0),
            meta: AtomicU64::new(0),
            payload: Watched::new([0; FIRST_PAYLOAD]),
        };
        Self(Arc::new(Words {
            slots: (0..SLOTS).map(slot).collect(),
            tail: AtomicU64::new(0),
            wake: AtomicU32::new(u32::from(wake)),
        }))
    }

    /// Walks over the parts of a record's payload: the slot, the byte in it, and the range of the caller's bytes.
    fn parts(
        slot: usize,
        offset: usize,
        len: usize,
        mut f: impl FnMut(usize, usize, std::ops::Range<usize>),
    ) {
        let begin = slot * LINE + RECORD_HEAD + offset;
        assert!(begin + len <= SLOTS * LINE, "the range leaves the ring");
        let mut done = 0;
        while done < len {
            let (slot, offset) = ((begin + done) / LINE, (begin + done) % LINE);
            let end = match offset {
                0..8 => 8,
                8..RECORD_HEAD => RECORD_HEAD,
                _ => LINE,
            };
            let n = (end - offset).min(len - done);
            f(slot, offset, done..done + n);
            done += n;
        }
    }

    /// The word that a record continues over: models write such words as a whole.
    fn word(&self, slot: usize, offset: usize, len: usize) -> &AtomicU64 {
        assert!(offset % 8 == 0 && len == 8, "models write whole words");
        let slot = &self.0.slots[slot];
        if offset == 0 {
            &slot.header
        } else {
            &slot.meta
        }
    }
}

impl Cells for HeapCells {
    fn slots(&self) -> usize {
        SLOTS
    }
    fn header(&self, slot: usize) -> &AtomicU64 {
        &self.0.slots[slot].header
    }
    fn meta(&self, slot: usize) -> &AtomicU64 {
        &self.0.slots[slot].meta
    }
    fn tail(&self) -> &AtomicU64 {
        &self.0.tail
    }
    fn wake(&self) -> &AtomicU32 {
        &self.0.wake
    }
    fn write(&self, slot: usize, offset: usize, bytes: &[u8]) {
        Self::parts(slot, offset, bytes.len(), |slot, offset, range| {
            let part = &bytes[range];
            if offset < RECORD_HEAD {
                let word = part.try_into().map(u64::from_le_bytes).unwrap_or(0);
                self.word(slot, offset, part.len())
                    .store(word, Ordering::Relaxed);
            } else {
                self.0.slots[slot].payload.change(|to| {
                    to[offset - RECORD_HEAD..][..part.len()].copy_from_slice(part);
                });
            }
        });
    }
    fn read(&self, slot: usize, offset: usize, out: &mut [u8]) {
        Self::parts(slot, offset, out.len(), |slot, offset, range| {
            let part = &mut out[range];
            if offset < RECORD_HEAD {
                let word = self.word(slot, offset, part.len()).load(Ordering::Relaxed);
                part.copy_from_slice(&word.to_le_bytes());
            } else {
                self.0.slots[slot].payload.look(|from| {
                    part.copy_from_slice(&from[offset - RECORD_HEAD..][..part.len()]);
                });
            }
        });
    }
}
