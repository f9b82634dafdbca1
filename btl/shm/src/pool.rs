// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sender's chunks: which are free, and which wait for which peer.
//!
//! A chunk is named by a record in a peer's ring and is free again when the peer's tail has passed that record. So all
//! that is needed is a queue per peer of (ring position, chunk), known to the sender alone. When a peer dies, its queue
//! goes back to the pool.

use crate::layout::ChunkIndex;
use std::collections::VecDeque;

/// Free chunks of this rank's pool. The one that has been free longest is used first. The lines of one that was just
/// read lie in the reader's cache. Taking them back costs more than a line that nobody holds any more
/// (docs/performance.md).
#[derive(Debug)]
pub struct ChunkPool {
    free: VecDeque<ChunkIndex>,
    reserved: u32,
    limit: u32,
    /// The fewest that were free since the last [`Self::shrink`]: so many were not needed.
    low: usize,
}

/// Chunks that a pool keeps at least once it has had some.
const KEPT: u32 = 8;

impl ChunkPool {
    /// A pool of at most `limit` chunks, none reserved yet.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            free: VecDeque::new(),
            reserved: 0,
            limit,
            low: 0,
        }
    }

    /// Takes a free chunk. When none is free, `reserve(first, count)` is asked to reserve more until the limit is
    /// reached. `None` means that the caller must wait for chunks to come back.
    ///
    /// # Errors
    /// That of `reserve`. The pool is as before then.
    pub fn take<E>(
        &mut self,
        reserve: impl FnOnce(u32, u32) -> Result<(), E>,
    ) -> Result<Option<ChunkIndex>, E> {
        if let Some(chunk) = self.free.pop_front() {
            self.low = self.low.min(self.free.len());
            return Ok(Some(chunk));
        }
        // Doubling keeps the number of calls small and the memory of a rank that needs one chunk small too.
        let count = self
            .reserved
            .clamp(KEPT, 64)
            .min(self.limit - self.reserved);
        if count == 0 {
            return Ok(None);
        }
        reserve(self.reserved, count)?;
        self.low = 0;
        self.free
            .extend((self.reserved + 1..self.reserved + count).map(ChunkIndex));
        let first = ChunkIndex(self.reserved);
        self.reserved += count;
        Ok(Some(first))
    }

    /// Gives a chunk back.
    #[inline]
    pub fn give(&mut self, chunk: ChunkIndex) {
        debug_assert!(chunk.0 < self.reserved && !self.free.contains(&chunk));
        self.free.push_back(chunk);
    }

    /// Gives up chunks that nothing needed since the last call. Returns the first and the count of those whose memory
    /// can be released, if there are any. They are the last ones, so that what is reserved stays one range.
    pub fn shrink(&mut self) -> Option<(u32, u32)> {
        let unneeded = u32::try_from(self.low.min(self.free.len())).unwrap_or(u32::MAX);
        self.low = self.free.len();
        let least = (self.reserved.saturating_sub(unneeded)).max(KEPT.min(self.reserved));
        let mut is_free = vec![false; self.reserved as usize];
        for chunk in &self.free {
            is_free[chunk.0 as usize] = true;
        }
        let mut first = self.reserved;
        while first > least && is_free[first as usize - 1] {
            first -= 1;
        }
        let count = self.reserved - first;
        if count == 0 {
            return None;
        }
        self.free.retain(|chunk| chunk.0 < first);
        self.low = self.free.len();
        self.reserved = first;
        Some((first, count))
    }

    /// The chunk that the next [`Self::take`] gives, if one is free.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<ChunkIndex> {
        self.free.front().copied()
    }

    /// The chunks that the next calls of [`Self::take`] give, as far as they are free.
    #[inline]
    pub fn coming(&self) -> impl Iterator<Item = ChunkIndex> + '_ {
        self.free.iter().copied()
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
    #[inline]
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
        fn chunks_are_never_shared(limit in 1u32..200, steps in prop::collection::vec((0u8..5, 0usize..3), 0..400)) {
            let mut pool = ChunkPool::new(limit);
            let mut peers: Vec<(Outstanding, u64)> = (0..3).map(|_| (Outstanding::default(), 0)).collect();
            let mut out = std::collections::HashSet::new();
            let mut reserved = 0;
            for (what, who) in steps {
                if what == 4 {
                    if let Some((first, count)) = pool.shrink() {
                        prop_assert!(out.iter().all(|chunk: &ChunkIndex| chunk.0 < first), "a chunk that is out was released");
                        prop_assert_eq!(first + count, reserved);
                        prop_assert!(first >= KEPT.min(limit));
                        reserved = first;
                    }
                    prop_assert_eq!(pool.free() + out.len(), reserved as usize);
                    continue;
                }
                let (queue, position) = &mut peers[who];
                if what < 3 {
                    let got = pool.take(|first, count| {
                        assert!(first == reserved && first + count <= limit);
                        reserved = first + count;
                        Ok::<(), ()>(())
                    }).unwrap();
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
    fn chunks_that_nothing_needs_are_given_up() {
        let mut pool = ChunkPool::new(100);
        let take = |pool: &mut ChunkPool| pool.take(|_, _| Ok::<(), ()>(())).unwrap().unwrap();
        let burst: Vec<_> = (0..64).map(|_| take(&mut pool)).collect();
        assert_eq!((pool.reserved(), pool.shrink()), (64, None));
        for chunk in burst {
            pool.give(chunk);
        }
        assert_eq!(pool.shrink(), None, "they were needed in this period");
        // Ten are used at a time from now on.
        for _ in 0..2 {
            let ten: Vec<_> = (0..10).map(|_| take(&mut pool)).collect();
            for chunk in ten {
                pool.give(chunk);
            }
            pool.shrink();
        }
        assert_eq!(pool.reserved(), 10);
        pool.shrink();
        pool.shrink();
        assert_eq!((pool.reserved(), pool.free()), (8, 8));
    }

    #[test]
    fn a_refused_reservation_is_passed_on() {
        let mut pool = ChunkPool::new(8);
        assert_eq!(pool.take(|_, _| Err("no memory")), Err("no memory"));
        assert_eq!(pool.reserved(), 0);
    }
}
