// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank has of its own for all its peers: the segment that they map, the chunks in it, and the doorbell.

use super::{ChunkIndex, SleepOutcome};
use crate::error::{Error, Result};
use onecopy_shm::coll::Channel;
use onecopy_shm::copy::Kernel;
use onecopy_shm::heap::Heap;
use onecopy_shm::layout::{ChannelPart, Geometry, HeapOffset};
use onecopy_shm::pool::ChunkPool;
use onecopy_shm::prefetch;
use onecopy_shm::segment::OwnSegment;
use onecopy_shm::sync::{HeavyFence, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A rank's own side of its endpoints.
#[derive(Debug)]
pub(crate) struct Home {
    pub(super) segment: Arc<OwnSegment>,
    pool: ChunkPool,
    /// Why the pool has no chunk at all, if one was asked for.
    refused: Option<Error>,
    fence: HeavyFence,
}

/// The futex word by which a rank that sleeps is woken.
#[derive(Debug, Clone)]
pub(crate) struct Doorbell(Arc<OwnSegment>);

impl Doorbell {
    /// Wakes the rank's sleeper. Says whether there was one.
    pub(crate) fn ring(&self) -> bool {
        self.0.doorbell().ring()
    }

    /// Sleeps until it rings, no longer than `timeout`.
    pub(crate) fn sleep(&self, timeout: Duration) -> SleepOutcome {
        self.0.doorbell().sleep(timeout)
    }
}

impl Home {
    /// Makes the segment of rank `me`.
    pub(crate) fn create(
        me: u32,
        geometry: Geometry,
        fence: HeavyFence,
        nonce: u64,
    ) -> Result<Self> {
        let segment = Arc::new(OwnSegment::create(me, geometry, fence, nonce)?);
        Ok(Self {
            segment,
            pool: ChunkPool::new(geometry.chunks),
            refused: None,
            fence,
        })
    }

    /// The descriptor that peers map.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// Bytes of the segment as the kernel counts them.
    pub(crate) fn bytes(&self) -> u64 {
        nix::sys::stat::fstat(self.segment.fd())
            .map_or(0, |stat| stat.st_blocks.unsigned_abs() * 512)
    }

    /// Address of a number that only this rank has.
    pub(crate) fn nonce_address(&self) -> usize {
        self.segment.nonce_address()
    }

    /// The heap in the segment.
    pub(crate) fn heap(&self) -> Arc<Heap> {
        Heap::new(Arc::clone(&self.segment))
    }

    /// Bytes that the heap of any rank may have.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.segment.geometry().heap_bytes
    }

    /// Where `len` bytes at `address` lie in the heap, if they do.
    #[inline]
    pub(crate) fn heap_offset_of(&self, address: usize, len: usize) -> Option<HeapOffset> {
        self.segment.heap_offset_of(address, len)
    }

    /// Where `bytes` are in this rank's heap; none: they are not there.
    #[inline]
    pub(crate) fn heap_offset_of_bytes(&self, bytes: &[u8]) -> Option<HeapOffset> {
        self.heap_offset_of(bytes.as_ptr().addr(), bytes.len())
    }

    /// The doorbell of this rank.
    pub(crate) fn doorbell(&self) -> Doorbell {
        Doorbell(Arc::clone(&self.segment))
    }

    /// Whether peers and this rank fence by the kernel's call.
    pub(crate) fn is_expedited(&self) -> bool {
        self.fence.is_expedited()
    }

    /// The heavy side of the fences between this rank and its peers.
    pub(crate) fn fence(&self) {
        self.fence.issue();
    }

    /// This rank is about to sleep: a peer that has something for it from now on rings.
    pub(crate) fn arm(&self) {
        self.segment.doorbell().arm();
    }

    /// This rank polls again.
    pub(crate) fn disarm(&self) {
        self.segment.doorbell().disarm();
    }

    /// Words of the bitmap of senders that have become active.
    #[inline(always)]
    pub(crate) fn active_words(&self) -> usize {
        self.segment.bitmap_words()
    }

    /// Takes the bits of the senders of one word that have become active.
    #[inline(always)]
    pub(crate) fn take_active(&self, word: usize) -> u64 {
        self.segment.take_active(word)
    }

    /// Whether any sender has become active.
    pub(crate) fn any_active(&self) -> bool {
        (0..self.segment.bitmap_words()).any(|word| self.segment.has_active(word))
    }

    /// Says in this rank's segment that it does not talk with `rank` any more, which may never have been connected.
    pub(crate) fn give_up(&self, rank: u32) {
        let control = self.segment.control_handle(rank);
        // SYNC(pair.given_up): release everything before
        control.given_up.store(1, Ordering::Release);
    }

    /// Channels for collectives that each rank has.
    pub(crate) fn channels(&self) -> u32 {
        self.segment.geometry().coll_channels
    }

    /// This rank's end of a channel.
    pub(crate) fn channel(&self, channel: u32) -> Option<Channel> {
        self.segment.channel(channel)
    }

    /// Makes sure that a part of this rank's end of a channel can be written.
    pub(crate) fn reserve_channel(&self, channel: u32, part: ChannelPart) -> Result<()> {
        Ok(self.segment.reserve_channel(channel, part)?)
    }
}

/// The chunks.
impl Home {
    /// A free chunk; more are reserved if none is free. `None`: there is none, or no memory for one. If none will come
    /// back either, the reason is kept for [`Self::take_refusal`].
    pub(super) fn take(&mut self) -> Option<ChunkIndex> {
        let segment = &self.segment;
        let taken = self
            .pool
            .take(|first, count| segment.reserve_chunks(first, count));
        taken.unwrap_or_else(|error| {
            // The chunks that are there are waited for.
            if self.pool.reserved() == 0 {
                self.refused = Some(error.into());
            }
            None
        })
    }

    /// Whether a reservation was refused. A refusal counts only while the pool has no chunk.
    #[cold]
    pub(crate) fn has_refusal(&self) -> bool {
        self.refused.is_some() && self.pool.reserved() == 0
    }

    /// Takes the reason why the last reservation was refused, if one was.
    #[cold]
    pub(crate) fn take_refusal(&mut self) -> Option<Error> {
        self.refused.take()
    }

    /// Whether a chunk is free without reserving more.
    pub(super) fn has_free(&self) -> bool {
        self.pool.next().is_some()
    }

    pub(super) fn pool(&mut self) -> &mut ChunkPool {
        &mut self.pool
    }

    #[inline]
    pub(super) fn write(
        &self,
        chunk: ChunkIndex,
        offset: usize,
        bytes: &[u8],
        kernel: Kernel,
    ) -> bool {
        self.segment
            .pool()
            .write(chunk, offset, bytes, kernel)
            .is_ok()
    }

    /// Chunks that have memory.
    pub(crate) fn chunks_reserved(&self) -> u32 {
        self.pool.reserved()
    }

    /// Chunks that have memory and are free.
    pub(crate) fn chunks_free(&self) -> usize {
        self.pool.free()
    }

    /// Asks for the lines of `len` bytes of the next `count` chunks ahead of their being written. It does so at once,
    /// or after what was written before is out.
    pub(crate) fn will_write_chunks(&self, count: usize, len: usize, after: bool) {
        if after {
            prefetch::after_stores();
        }
        let memory = self.segment.pool();
        for chunk in self.pool.coming().take(count) {
            memory.will_write(chunk, len);
        }
    }

    /// Gives chunks back to the system that were not needed for a while. Says whether there were any.
    pub(crate) fn shrink(&mut self) -> bool {
        let unneeded = self.pool.shrink();
        if let Some((first, count)) = unneeded {
            self.segment.release_chunks(first, count);
        }
        unneeded.is_some()
    }
}
