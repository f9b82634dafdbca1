// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two words that order everything in a channel.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Number of a collective and its phase: what stands next to it may be read when the word is there.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Head(AtomicU64);

const fn word(seq: u32, phase: u32) -> u64 {
    (seq as u64) << 32 | phase as u64
}

impl Head {
    /// A member that finds `seq` in a phase of at least `phase` sees everything written before.
    #[inline]
    pub fn publish(&self, seq: u32, phase: u32) {
        // SYNC(coll.publish): release the payload, and what was written to the buffers it describes
        self.0.store(word(seq, phase), Ordering::Release);
    }

    /// The phase of collective `seq`; 0 if it is not there.
    #[inline]
    #[must_use]
    pub fn phase(&self, seq: u32) -> u32 {
        // SYNC(coll.publish): acquire what was published
        let word = self.0.load(Ordering::Acquire);
        if (word >> 32) as u32 == seq {
            word as u32
        } else {
            0
        }
    }
}

/// Up to which collective a member has read all it needs.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Done(AtomicU32);

impl Done {
    /// This member reads nothing more of collectives up to `seq`.
    #[inline]
    pub fn set(&self, seq: u32) {
        // SYNC(coll.done): release the reads, which come before the owners' next writes
        self.0.store(seq, Ordering::Release);
    }

    /// Up to which collective the member has read.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u32 {
        // SYNC(coll.done): acquire the member's reads
        self.0.load(Ordering::Acquire)
    }
}

/// Whether `done` has come to `seq`. Numbers wrap; no two that are compared are 2^31 apart.
#[inline]
#[must_use]
pub fn reached(done: u32, seq: u32) -> bool {
    done.wrapping_sub(seq).cast_signed() >= 0
}
