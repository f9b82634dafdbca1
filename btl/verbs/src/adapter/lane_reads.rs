// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one lane reads of its peer's memory.

use std::collections::VecDeque;

use crate::memory::Slot;
use crate::provider::Provider;

/// A read that was posted.
#[derive(Debug)]
pub(super) struct Read<P: Provider> {
    pub(super) token: u64,
    pub(super) number: u32,
    pub(super) len: usize,
    /// Where they are, once they have come.
    pub(super) slot: Option<Slot<P>>,
}

/// The reads of a lane, in the order in which they were posted.
///
/// Invariant: a read stays until its bytes were released, and those of one token come in their order.
#[derive(Debug)]
pub(super) struct LaneReads<P: Provider> {
    reads: VecDeque<Read<P>>,
    /// The number of the next read: how many there were, ever.
    number: u32,
    /// Bytes of reads that have not come.
    under_way: u64,
    /// Whether any has come.
    has_read: bool,
}

impl<P: Provider> Default for LaneReads<P> {
    fn default() -> Self {
        Self {
            reads: VecDeque::new(),
            number: 0,
            under_way: 0,
            has_read: false,
        }
    }
}

impl<P: Provider> LaneReads<P> {
    /// The number of the next read: how many there were, ever.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// A read was posted.
    pub(super) fn add(&mut self, token: u64, len: usize) {
        self.reads.push_back(Read {
            token,
            number: self.number,
            len,
            slot: None,
        });
        self.number = self.number.wrapping_add(1);
        self.under_way += len as u64;
    }

    /// The bytes of a read have come; how many.
    pub(super) fn fill(&mut self, number: u32, slot: Slot<P>) -> Option<usize> {
        let mut reads = self.reads.iter_mut();
        let read = reads.find(|read| read.number == number)?;
        read.slot = Some(slot);
        self.under_way -= read.len as u64;
        self.has_read = true;
        Some(read.len)
    }

    /// Bytes of reads that have not come.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Whether any has come.
    pub(super) fn has_read(&self) -> bool {
        self.has_read
    }

    /// The oldest read of a token.
    pub(super) fn next_of(&self, token: u64) -> Option<&Read<P>> {
        self.reads.iter().find(|read| read.token == token)
    }

    /// Forgets it.
    pub(super) fn release(&mut self, token: u64) {
        let index = self.reads.iter().position(|read| read.token == token);
        if let Some(read) = index.and_then(|index| self.reads.remove(index))
            && read.slot.is_none()
        {
            self.under_way -= read.len as u64;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Whether the device has yet to tell of one.
    pub(super) fn is_under_way(&self) -> bool {
        self.reads.iter().any(|read| read.slot.is_none())
    }
}
