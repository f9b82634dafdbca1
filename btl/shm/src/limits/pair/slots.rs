// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of numbered lines: what a ring costs at least.

use super::{LimitError, Pair, RING, RING_SLOTS};
use crate::sync::Ordering;

impl Pair {
    pub(super) fn slots(&mut self, direction: usize, window: usize) -> Result<(), LimitError> {
        if self.side == direction {
            self.put_slots(direction, window);
            Ok(())
        } else {
            self.take_slots(direction, window)
        }
    }

    pub(super) fn slots_both(&mut self, window: usize) -> Result<(), LimitError> {
        self.put_slots(self.side, window);
        self.take_slots(1 - self.side, window)
    }

    fn put_slots(&mut self, direction: usize, window: usize) {
        let mut c = self.slots[direction];
        for _ in 0..window {
            c += 1;
            let slot = Self::slot(direction, c);
            self.arena
                .word(slot + 8)
                .store(c.wrapping_mul(7), Ordering::Relaxed);
            self.raise(slot, c);
        }
        self.slots[direction] = c;
    }

    fn take_slots(&mut self, direction: usize, window: usize) -> Result<(), LimitError> {
        let mut c = self.slots[direction];
        let mut sum = 0_u64;
        for _ in 0..window {
            c += 1;
            let slot = Self::slot(direction, c);
            self.wait(slot, c)?;
            sum = sum.wrapping_add(self.arena.word(slot + 8).load(Ordering::Relaxed));
        }
        std::hint::black_box(sum);
        self.slots[direction] = c;
        Ok(())
    }

    #[inline(always)]
    fn slot(direction: usize, c: u64) -> usize {
        RING[direction] + (c % RING_SLOTS) as usize * 64
    }
}
