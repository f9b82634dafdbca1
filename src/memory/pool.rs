// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool of temporary buffers, beneath collectives and the transport.
//!
//! A caller takes a [`PoolBuf`] and gives it back by dropping it. The memory is the pool's and outlives the use.
//! Buffers come in [buckets](Buckets) of page multiples, each request from the smallest that holds it.
//!
//! *Size.* The pool's size is the memory that it has made and not released, in use or free. It grows when no free
//! buffer fits. Growth that would bring it near its capacity (seven eighths) releases free buffers first. A request
//! that brings it beyond is served and counted. A buffer given back while the size is beyond the capacity is released.
//! So what is retained never exceeds the capacity.
//!
//! *Shrinking.* Free buffers of a bucket form a stack. Its least height in a period is the number of buffers that
//! nobody needed. [`Pool::tick`], called from progress, releases that many, the coldest, once per period. Near the
//! capacity the period is shorter.
//!
//! *Threads.* Free buffers lie in shards, one per processor at most, each with its own lock. A thread uses its own
//! shard, and tries others only when that one is empty, without waiting. The shared words are written only when the
//! pool grows or releases.

mod buckets;
mod shard;
#[cfg(test)]
mod tests;

pub use buckets::Buckets;

use crate::error::Result;
use onecopy_obs::{Counters, Knobs};
use onecopy_shm::gate::Threads;
use onecopy_shm::heap::{AllocError, Heap, HeapBuf};
use onecopy_shm::layout::{Geometry, HeapOffset, PAGE};
use onecopy_shm::sync::{AtomicU64, Ordering};
use shard::{Block, Shard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use std::time::{Duration, Instant};

/// Where a buffer's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The rank's segment: peers can read and write it in place. Private memory if the segment's heap is off or full.
    Shared = 0,
    /// Memory of this process alone.
    Private = 1,
}

/// The largest bucket. A larger buffer is made for its one use. Chosen by magnitude: beyond, to make a buffer costs
/// little beside its copies.
const LARGEST: usize = 4 << 20;

/// How a pool behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The sizes of buffers.
    pub buckets: Buckets,
    /// Bytes retained at most.
    pub cap: u64,
    /// After how long unneeded buffers are released.
    pub age: Duration,
    /// Bytes that this rank's collectives may hold at a time.
    pub collective_share: u64,
    /// Shards; a power of two.
    pub shards: usize,
}

impl Settings {
    /// What the knobs ask for in a job with `ranks` on this node.
    #[must_use]
    pub fn new(knobs: &Knobs, ranks: usize, threads: Threads) -> Self {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            buckets: Buckets::new(PAGE, LARGEST),
            cap: knobs.buffers_cap as u64,
            age: knobs.buffers_age,
            // The rest of the part is for the channels.
            collective_share: (knobs.coll_pool / ranks.max(1)) as u64
                - u64::from(Geometry::channels_for(knobs.coll_pool, ranks))
                    * Geometry::channel_bytes_for(ranks),
            shards: match threads {
                Threads::Single => 1,
                Threads::Multiple => processors().next_power_of_two().min(64),
            },
        }
    }

    /// The size from which on the pool is near its capacity.
    #[must_use]
    pub fn near(&self) -> u64 {
        self.cap - self.cap / 8
    }
}

/// What all shards share. Its words change only when the pool grows or shrinks.
struct Common {
    settings: Settings,
    heap: Arc<Heap>,
    born: Instant,
    /// When the next look for cold buffers is due, in microseconds after birth.
    due: AtomicU64,
    size: AtomicU64,
    peak: AtomicU64,
    misses: AtomicU64,
    grown: AtomicU64,
    released: AtomicU64,
    releases: AtomicU64,
    beyond_cap: AtomicU64,
    collective: AtomicU64,
    refusals: AtomicU64,
}

impl Common {
    /// Ends blocks whose bytes count in the size.
    fn release(&self, blocks: Vec<Block>) -> u64 {
        let count = blocks.len() as u64;
        let bytes: u64 = blocks.iter().map(|block| block.memory.len() as u64).sum();
        drop(blocks);
        if count > 0 {
            self.size.fetch_sub(bytes, Ordering::Relaxed);
            self.released.fetch_add(bytes, Ordering::Relaxed);
            self.releases.fetch_add(count, Ordering::Relaxed);
        }
        bytes
    }
}

/// What a pool has done, and its size. Sums and levels of one moment per shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes made and not released.
    pub bytes: u64,
    /// Bytes of them that are free.
    pub free_bytes: u64,
    /// The most bytes there ever were.
    pub peak_bytes: u64,
    /// Requests served from free buffers.
    pub hits: u64,
    /// Requests for which a buffer was made.
    pub misses: u64,
    /// Bytes made, ever.
    pub grown_bytes: u64,
    /// Buffers released, ever.
    pub releases: u64,
    /// Bytes released, ever.
    pub released_bytes: u64,
    /// Requests served beyond the capacity.
    pub beyond_cap: u64,
    /// Bytes that collectives hold.
    pub collective_bytes: u64,
    /// Requests of collectives refused for their share.
    pub collective_refusals: u64,
}

impl Stats {
    /// Puts the figures in their counters.
    pub fn fill(&self, counters: &mut Counters) {
        counters.buffers_bytes = self.bytes;
        counters.buffers_free_bytes = self.free_bytes;
        counters.buffers_peak_bytes = self.peak_bytes;
        counters.buffers_hits = self.hits;
        counters.buffers_misses = self.misses;
        counters.buffers_grown_bytes = self.grown_bytes;
        counters.buffers_released_bytes = self.released_bytes;
        counters.buffers_beyond_cap = self.beyond_cap;
        counters.coll_pool_bytes = self.collective_bytes;
        counters.coll_pool_refusals = self.collective_refusals;
    }
}

/// A rank's temporary buffers. Cheap to clone; all clones are one pool.
#[derive(Clone)]
pub struct Pool {
    shards: Arc<[Arc<Shard>]>,
}

static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// A number for this thread, which spreads threads over shards.
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

impl Pool {
    /// A pool that takes shared memory from `heap`.
    #[must_use]
    pub fn new(settings: Settings, heap: Arc<Heap>) -> Self {
        let zero = || AtomicU64::new(0);
        let shards = settings.shards.max(1).next_power_of_two();
        let common = Arc::new(Common {
            due: AtomicU64::new(settings.age.as_micros() as u64),
            settings,
            heap,
            born: Instant::now(),
            size: zero(),
            peak: zero(),
            misses: zero(),
            grown: zero(),
            released: zero(),
            releases: zero(),
            beyond_cap: zero(),
            collective: zero(),
            refusals: zero(),
        });
        Self {
            shards: (0..shards).map(|_| Arc::new(Shard::new(&common))).collect(),
        }
    }

    fn common(&self) -> &Common {
        &self.shards[0].common
    }

    /// How the pool behaves.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.common().settings
    }

    /// Takes a buffer of `bytes` bytes. What stands in it is whatever its last user left, or zeros.
    pub fn take(&self, bytes: usize, kind: MemoryKind) -> Result<PoolBuf> {
        let here = THREAD.with(|&number| number as usize) & (self.shards.len() - 1);
        let shard = &self.shards[here];
        let buf = |block, bucket| PoolBuf {
            block: Some(block),
            shard: Arc::clone(shard),
            kind,
            bucket,
            len: bytes,
            charged: false,
        };
        let Some(bucket) = self.settings().buckets.index(bytes) else {
            let size = bytes.checked_next_multiple_of(PAGE).unwrap_or(bytes);
            return Ok(buf(self.grow(size, kind)?, None));
        };
        if let Some(block) = self.find(here, kind, bucket) {
            return Ok(buf(block, Some(bucket)));
        }
        let size = self.settings().buckets.size(bucket);
        Ok(buf(self.grow(size, kind)?, Some(bucket)))
    }

    /// A free buffer from this thread's shard or, without waiting, from another.
    fn find(&self, here: usize, kind: MemoryKind, bucket: usize) -> Option<Block> {
        if let Some(block) = self.shards[here].shelves().pop(kind, bucket) {
            return Some(block);
        }
        if self.common().size.load(Ordering::Relaxed) == 0 {
            return None;
        }
        (1..self.shards.len()).find_map(|step| {
            let other = &self.shards[(here + step) & (self.shards.len() - 1)];
            other.try_shelves()?.pop(kind, bucket)
        })
    }

    /// Makes a block of `size` bytes.
    #[cold]
    fn grow(&self, size: usize, kind: MemoryKind) -> Result<Block> {
        let common = self.common();
        let bytes = size as u64;
        common.misses.fetch_add(1, Ordering::Relaxed);
        let room = |now: u64| (now + bytes).saturating_sub(common.settings.near());
        let excess = room(common.size.load(Ordering::Relaxed));
        if excess > 0 {
            self.release_free(excess);
        }
        let size_now = common.size.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let memory = match self.make(size, kind) {
            Ok(memory) => memory,
            Err(error) => {
                common.size.fetch_sub(bytes, Ordering::Relaxed);
                return Err(error.into());
            }
        };
        common.peak.fetch_max(size_now, Ordering::Relaxed);
        common.grown.fetch_add(bytes, Ordering::Relaxed);
        if size_now > common.settings.cap {
            common.beyond_cap.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Block { memory })
    }

    fn make(&self, size: usize, kind: MemoryKind) -> Result<HeapBuf, AllocError> {
        let heap = &self.common().heap;
        if kind == MemoryKind::Shared {
            if let Ok(memory) = heap.alloc(size) {
                return Ok(memory);
            }
            // What lies free in the heap may be what is missing.
            if self.release_free(u64::MAX) > 0
                && let Ok(memory) = heap.alloc(size)
            {
                return Ok(memory);
            }
        }
        heap.alloc_private(size).or_else(|error| {
            if self.release_free(u64::MAX) == 0 {
                return Err(error);
            }
            heap.alloc_private(size)
        })
    }

    /// Releases free buffers of `bytes` in all, or all there are.
    pub fn release_free(&self, bytes: u64) -> u64 {
        let mut found = 0;
        for shard in self.shards.iter() {
            if found >= bytes {
                break;
            }
            let mut blocks = Vec::new();
            shard.shelves().take_any(bytes - found, &mut blocks);
            found += self.common().release(blocks);
        }
        found
    }

    /// Takes a shared buffer of `bytes` bytes for a collective, within this rank's part of the node's budget. `None`
    /// says that the part is used up, or that no memory that peers can read is to be had. Then the collective goes a
    /// way that needs no buffer.
    #[must_use]
    pub fn try_take_collective(&self, bytes: usize) -> Option<PoolBuf> {
        let common = self.common();
        let buf = self.take_charged(bytes, common.settings.collective_share);
        if buf.is_none() {
            common.refusals.fetch_add(1, Ordering::Relaxed);
        }
        buf
    }

    /// The same of a buffer that outlives its collective: within half of that part, so that others find room.
    #[must_use]
    pub fn try_take_kept(&self, bytes: usize) -> Option<PoolBuf> {
        self.take_charged(bytes, self.common().settings.collective_share / 2)
    }

    /// Takes a shared buffer, if collectives hold no more than `share` then.
    fn take_charged(&self, bytes: usize, share: u64) -> Option<PoolBuf> {
        let common = self.common();
        let buckets = &common.settings.buckets;
        let size = match buckets.index(bytes) {
            Some(bucket) => buckets.size(bucket) as u64,
            None => bytes.checked_next_multiple_of(PAGE)? as u64,
        };
        let charge = |used: u64| used.checked_add(size).filter(|&used| used <= share);
        let charged = common
            .collective
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge);
        let buf = charged.is_ok().then(|| {
            let mut buf = self.take(bytes, MemoryKind::Shared).ok();
            match &mut buf {
                Some(buf) => buf.charged = true,
                None => {
                    common.collective.fetch_sub(size, Ordering::Relaxed);
                }
            }
            buf
        });
        // A buffer that peers cannot read gives its charge back as it is dropped here.
        buf.flatten().filter(|buf| buf.offset().is_some())
    }

    /// Releases what is cold, if it is time to look, and says whether it was. Cheap when it is not. Called from
    /// progress.
    pub fn tick(&self, now: Instant) -> bool {
        let common = self.common();
        let size = common.size.load(Ordering::Relaxed);
        let now = now.saturating_duration_since(common.born).as_micros() as u64;
        let due = common.due.load(Ordering::Relaxed);
        let age = common.settings.age.as_micros() as u64;
        // Near the capacity a buffer is cold sooner.
        let early = if size > common.settings.near() {
            age - age / 8
        } else {
            0
        };
        if now + early < due {
            return false;
        }
        let claimed =
            common
                .due
                .compare_exchange(due, now + age, Ordering::Relaxed, Ordering::Relaxed);
        if claimed.is_ok() {
            self.age_out();
        }
        claimed.is_ok()
    }

    /// Releases what was not needed since the last call.
    pub fn age_out(&self) -> u64 {
        let mut bytes = 0;
        for shard in self.shards.iter() {
            let mut blocks = Vec::new();
            shard.shelves().take_cold(&mut blocks);
            bytes += self.common().release(blocks);
        }
        bytes
    }

    /// Releases what is free and begins a new peak, so that [`Stats::peak_bytes`] tells what is used from now on.
    pub fn restart_peak(&self) {
        self.release_free(u64::MAX);
        let common = self.common();
        let size = common.size.load(Ordering::Relaxed);
        common.peak.store(size, Ordering::Relaxed);
    }

    /// What the pool has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let common = self.common();
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (mut hits, mut free_bytes) = (0, 0);
        for shard in self.shards.iter() {
            let shelves = shard.shelves();
            hits += shelves.hits;
            free_bytes += shelves.free_bytes;
        }
        Stats {
            bytes: load(&common.size),
            free_bytes,
            peak_bytes: load(&common.peak),
            hits,
            misses: load(&common.misses),
            grown_bytes: load(&common.grown),
            releases: load(&common.releases),
            released_bytes: load(&common.released),
            beyond_cap: load(&common.beyond_cap),
            collective_bytes: load(&common.collective),
            collective_refusals: load(&common.refusals),
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A buffer of a pool. Dropping gives it back.
pub struct PoolBuf {
    /// There until the buffer is dropped.
    block: Option<Block>,
    shard: Arc<Shard>,
    kind: MemoryKind,
    /// None: larger than any bucket.
    bucket: Option<usize>,
    len: usize,
    /// Whether it counts in what collectives hold.
    charged: bool,
}

impl PoolBuf {
    fn block(&self) -> &Block {
        self.block
            .as_ref()
            .expect("there until the buffer is dropped")
    }

    /// Where in this rank's heap the buffer is, for peers to read it; none if its memory is private.
    #[must_use]
    pub fn offset(&self) -> Option<HeapOffset> {
        self.block().memory.offset()
    }

    /// Bytes of the whole buffer, of which [`len`](slice::len) were asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.block().memory.len()
    }
}

impl Deref for PoolBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.block().memory[..self.len]
    }
}

impl DerefMut for PoolBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match &mut self.block {
            Some(block) => &mut block.memory[..len],
            None => &mut [],
        }
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return;
        };
        let common = &self.shard.common;
        if self.charged {
            let bytes = block.memory.len() as u64;
            common.collective.fetch_sub(bytes, Ordering::Relaxed);
        }
        // Private memory that stands in for shared would keep later users from the shared memory that may be there by
        // then.
        let stand_in = self.kind == MemoryKind::Shared
            && block.memory.offset().is_none()
            && common.heap.limit() > 0;
        let beyond = common.size.load(Ordering::Relaxed) > common.settings.cap;
        match self.bucket {
            Some(bucket) if !beyond && !stand_in => {
                self.shard.shelves().push(self.kind, bucket, block);
            }
            _ => {
                common.release(vec![block]);
            }
        }
    }
}

impl std::fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolBuf")
            .field("len", &self.len)
            .field("kind", &self.kind)
            .field("offset", &self.offset())
            .finish_non_exhaustive()
    }
}
