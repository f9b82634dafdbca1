// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sender's chunks: which are free, and which wait for which peer.
//!
//! A chunk is named by a record in a peer's ring and is free again when the peer's tail has passed that record. So all that is needed is a
//! queue per peer of (ring position, chunk), known to the sender alone. When a peer dies, its queue goes back to the pool.

use crate::layout::ChunkIndex;
use std::collections::VecDeque;

/// Free chunks of this rank's pool. The one that has been free longest is used first: the lines of one that was just read lie in the
/// reader's cache, and taking them back costs more than a line that nobody holds any more (docs/performance.md).
#[derive(Debug)]
pub struct ChunkPool {
    free: VecDeque<ChunkIndex>,
    reserved: u32,
    limit: u32,
}

impl ChunkPool {
    /// A pool of at most `limit` chunks, none reserved yet.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            free: VecDeque::new(),
            reserved: 0,
            limit,
        }
    }

    /// Takes a free chunk. When none is free, `reserve(first, count)` is asked to reserve more until the limit is reached; `None` means that
    /// the caller must wait for chunks to come back.
    pub fn take<E>(
        &mut self,
        reserve: impl FnOnce(u32, u32) -> Result<(), E>,
    ) -> Result<Option<ChunkIndex>, E> {
        if let Some(chunk) = self.free.pop_front() {
            return Ok(Some(chunk));
        }
        // Doubling keeps the number of calls small and the memory of a rank that needs one chunk small too.
        let count = self.reserved.clamp(8, 64).min(self.limit - self.reserved);
        if count == 0 {
            return Ok(None);
        }
        reserve(self.reserved, count)?;
        self.free
            .extend((self.reserved + 1..self.reserved + count).map(ChunkIndex));
        let first = ChunkIndex(self.reserved);
        self.reserved += count;
        Ok(Some(first))
    }

    /// Gives a chunk back.
    pub fn give(&mut self, chunk: ChunkIndex) {
        debug_assert!(chunk.0 < self.reserved && !self.free.contains(&chunk));
        self.free.push_back(chunk);
    }

    /// The chunk that the next [`Self::take`] gives, if one is free.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<ChunkIndex> {
        self.free.front().copied()
    }

    /// Chunks reserved so far.
    #[must_use]
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Chunks that are reserved and free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

/// Chunks that one peer has not given back yet, in the order of its ring.
#[derive(Debug, Default)]
pub struct Outstanding {
    queue: VecDeque<(u64, ChunkIndex)>,
}

impl Outstanding {
    /// `chunk` is named by a record that ends at ring position `position`.
    pub fn push(&mut self, position: u64, chunk: ChunkIndex) {
        debug_assert!(self.queue.back().is_none_or(|last| last.0 <= position));
        self.queue.push_back((position, chunk));
    }

    /// Chunks outstanding.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none is outstanding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether [`Self::reclaim`] would give anything back.
    #[must_use]
    pub fn would_reclaim(&self, released: u64) -> bool {
        self.queue
            .front()
            .is_some_and(|&(position, _)| position <= released)
    }

    /// Gives back to `pool` what the peer has passed, `released` being its tail.
    pub fn reclaim(&mut self, released: u64, pool: &mut ChunkPool) {
        while let Some(&(position, chunk)) = self.queue.front() {
            if position > released {
                break;
            }
            self.queue.pop_front();
            pool.give(chunk);
        }
    }

    /// Gives everything back: the peer is dead.
    pub fn reclaim_all(&mut self, pool: &mut ChunkPool) {
        self.reclaim(u64::MAX, pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// No chunk is ever out twice, the limit holds, and everything comes back.
        #[test]
        fn chunks_are_never_shared(limit in 1u32..200, steps in prop::collection::vec((0u8..4, 0usize..3), 0..400)) {
            let mut pool = ChunkPool::new(limit);
            let mut peers: Vec<(Outstanding, u64)> = (0..3).map(|_| (Outstanding::default(), 0)).collect();
            let mut out = std::collections::HashSet::new();
            for (what, who) in steps {
                let (queue, position) = &mut peers[who];
                if what < 3 {
                    let got = pool.take(|first, count| { assert!(first + count <= limit); Ok::<(), ()>(()) }).unwrap();
                    match got {
                        Some(chunk) => {
                            prop_assert!(chunk.0 < limit);
                            prop_assert!(out.insert(chunk), "{chunk:?} was out already");
                            *position += 1;
                            queue.push(*position, chunk);
                        }
                        None => prop_assert_eq!(out.len(), limit as usize),
                    }
                } else {
                    let before: Vec<_> = queue.queue.iter().copied().collect();
                    let released = position.saturating_sub(2);
                    queue.reclaim(released, &mut pool);
                    for (at, chunk) in before {
                        if at <= released { out.remove(&chunk); }
                    }
                }
            }
            for (queue, _) in &mut peers {
                queue.reclaim_all(&mut pool);
            }
            prop_assert_eq!(pool.free(), pool.reserved() as usize);
        }
    }

    #[test]
    fn a_refused_reservation_is_passed_on() {
        let mut pool = ChunkPool::new(8);
        assert_eq!(pool.take(|_, _| Err("no memory")), Err("no memory"));
        assert_eq!(pool.reserved(), 0);
    }
}
