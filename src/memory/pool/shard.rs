// SPDX-License-Identifier: MIT OR Apache-2.0
//! One of the parts that a pool's free buffers lie in, so that threads seldom meet.

use super::{Common, MemoryKind};
use crossbeam_utils::CachePadded;
use onecopy_shm::heap::HeapBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The memory of a buffer.
pub(super) struct Block {
    pub(super) memory: HeapBuf,
}

/// The free buffers of one bucket. The one given back last is taken first: it is warm, and those at the bottom grow
/// cold.
#[derive(Default)]
struct Shelf {
    free: Vec<Block>,
    /// The fewest that lay here since the last look: so many were not needed.
    low: usize,
}

impl Shelf {
    fn pop(&mut self) -> Option<Block> {
        let block = self.free.pop()?;
        self.low = self.low.min(self.free.len());
        Some(block)
    }

    fn push(&mut self, block: Block) {
        self.free.push(block);
    }

    /// Takes out the coldest `count`.
    fn drop_coldest(&mut self, count: usize, into: &mut Vec<Block>) {
        let count = count.min(self.free.len());
        into.extend(self.free.drain(..count));
        self.low = self.low.min(self.free.len());
    }
}

/// The free buffers of a shard and what was counted at it.
pub(super) struct Shelves {
    /// By kind and bucket.
    shelves: [Vec<Shelf>; 2],
    pub(super) hits: u64,
    pub(super) free_bytes: u64,
}

impl Shelves {
    pub(super) fn pop(&mut self, kind: MemoryKind, bucket: usize) -> Option<Block> {
        let block = self.shelves[kind as usize][bucket].pop()?;
        self.hits += 1;
        self.free_bytes -= block.memory.len() as u64;
        Some(block)
    }

    pub(super) fn push(&mut self, kind: MemoryKind, bucket: usize, block: Block) {
        self.free_bytes += block.memory.len() as u64;
        self.shelves[kind as usize][bucket].push(block);
    }

    /// Takes out what was not needed since the last look, and begins a new one.
    pub(super) fn take_cold(&mut self, into: &mut Vec<Block>) {
        let first = into.len();
        for shelf in self.shelves.iter_mut().flatten() {
            let low = shelf.low;
            shelf.drop_coldest(low, into);
            shelf.low = shelf.free.len();
        }
        self.forget(&into[first..]);
    }

    /// Takes out free buffers, the largest and of them the coldest first, until `bytes` were found.
    pub(super) fn take_any(&mut self, bytes: u64, into: &mut Vec<Block>) -> u64 {
        let first = into.len();
        let mut found = 0;
        let buckets = self.shelves[0].len();
        for bucket in (0..buckets).rev() {
            for shelves in &mut self.shelves {
                let shelf = &mut shelves[bucket];
                while found < bytes && !shelf.free.is_empty() {
                    shelf.drop_coldest(1, into);
                    found += into.last().map_or(0, |block| block.memory.len() as u64);
                }
            }
        }
        self.forget(&into[first..]);
        found
    }

    fn forget(&mut self, blocks: &[Block]) {
        let bytes: u64 = blocks.iter().map(|block| block.memory.len() as u64).sum();
        self.free_bytes -= bytes;
    }
}

/// A shard. A buffer goes back to the shard that it was taken at.
pub(super) struct Shard {
    pub(super) common: Arc<Common>,
    /// On cache lines of their own.
    shelves: CachePadded<Mutex<Shelves>>,
}

impl Shard {
    pub(super) fn new(common: &Arc<Common>) -> Self {
        let shelves = || {
            let buckets = common.settings.buckets.sizes();
            buckets.iter().map(|_| Shelf::default()).collect()
        };
        Self {
            common: Arc::clone(common),
            shelves: CachePadded::new(Mutex::new(Shelves {
                shelves: [shelves(), shelves()],
                hits: 0,
                free_bytes: 0,
            })),
        }
    }

    /// The shelves. Nobody holds them for longer than it takes to move a few words, and never while memory is made or
    /// released.
    pub(super) fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shelves, if no other thread is at them.
    pub(super) fn try_shelves(&self) -> Option<MutexGuard<'_, Shelves>> {
        match self.shelves.try_lock() {
            Ok(shelves) => Some(shelves),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
