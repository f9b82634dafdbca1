// SPDX-License-Identifier: MIT OR Apache-2.0
//! The segment that a rank owns.
//!
//! # Safety
//! See [`crate::segment`].
#![allow(unsafe_code, reason = "raw copies to and from mappings")]

use super::{
    ControlHandle, Header, PairControl, PoolMemory, SegmentError, call_failed, cells, reserve,
    set_size,
};
use crate::cells::MappedCells;
use crate::coll::{Channel, EndMemory};
use crate::doorbell::Doorbell;
use crate::failing;
use crate::front::Front;
use crate::layout::{
    BITMAP_OFFSET, ChannelPart, Geometry, HeapOffset, MAGIC, OutOfBounds, PAGE, check_range,
};
use crate::mapping::{Advice, Mapping};
use crate::ring::Consumer;
use crate::sync::{AtomicU64, HeavyFence, Ordering};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The segment that this rank owns.
#[derive(Debug)]
pub struct OwnSegment {
    fd: OwnedFd,
    map: Arc<Mapping>,
    geometry: Geometry,
    rank: u32,
    front: Option<Front>,
    /// Kept for `heap_base`; none if there is no heap, or if a front has mapped it.
    _heap: Option<Mapping>,
    heap_base: usize,
}

impl OwnSegment {
    /// Address of the number that only this segment has.
    #[must_use]
    pub fn nonce_address(&self) -> usize {
        let header: &Header = self.map.shared(0);
        std::ptr::from_ref(&header.nonce) as usize
    }

    /// Makes the segment of `rank`. `nonce` should be unpredictable.
    ///
    /// # Errors
    /// [`SegmentError`]: a geometry that is unusable, a system call that failed, or memory that is not there.
    pub fn create(
        rank: u32,
        geometry: Geometry,
        fence: HeavyFence,
        nonce: u64,
    ) -> Result<Self, SegmentError> {
        geometry.check()?;
        let (fd, front) = memory(rank, &geometry)?;
        let mapped = |offset, len| {
            Mapping::new(fd.as_fd(), offset, len, true).map_err(|e| {
                call_failed(
                    "mmap",
                    format!("the segment of rank {rank}"),
                    e,
                    "lower ONECOPY_HEAP_SIZE, or raise the address space limit (ulimit -v)",
                )
            })
        };
        // The heap apart, so that the hole before it takes no address space; a front has mapped it already.
        let map = mapped(0, geometry.pool_end().0)?;
        // Children inherit the heap, which is memory of the program, and nothing else of a segment.
        map.advise(0, map.len(), Advice::DontFork);
        let heap = match (&front, geometry.heap_bytes) {
            (Some(_), _) | (None, 0) => None,
            (None, bytes) => Some(mapped(geometry.heap_offset().0, bytes)?),
        };
        // The heap profits from huge pages where the administrator allows them for shared memory; refusal changes
        // nothing.
        if let Some(heap) = &heap {
            heap.advise(0, geometry.heap_bytes, Advice::HugePage);
        }
        let heap_base = match (&front, &heap) {
            (Some(front), _) => front.base(),
            (None, Some(heap)) => heap.base().as_ptr().expose_provenance(),
            (None, None) => 0,
        };
        let strong_fences = !fence.is_expedited();
        write_header(&map, rank, &geometry, strong_fences, nonce);
        Ok(Self {
            fd,
            map: Arc::new(map),
            geometry,
            rank,
            front,
            _heap: heap,
            heap_base,
        })
    }

    /// The descriptor to hand to peers.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// The geometry.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// The owner's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }
    /// This rank's doorbell.
    #[inline]
    #[must_use]
    pub fn doorbell(&self) -> &Doorbell {
        &self.map.shared::<Header>(0).doorbell
    }
    /// Control words of the pair `sender` → this rank.
    #[must_use]
    pub fn control(&self, sender: u32) -> &PairControl {
        self.map.shared(self.geometry.ctrl_offset(sender).0)
    }
    /// A handle on the control words of the pair `sender` → this rank.
    #[must_use]
    pub fn control_handle(&self, sender: u32) -> ControlHandle {
        ControlHandle::new(&self.map, self.geometry.ctrl_offset(sender))
    }
    /// Takes the senders that became active since the last call out of word `index` of the bitmap.
    #[inline]
    #[must_use]
    pub fn take_active(&self, index: usize) -> u64 {
        let word = self.bitmap_word(index);
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // SYNC(active.set): acquire what made the sender active
        word.swap(0, Ordering::AcqRel)
    }
    /// Whether senders became active since the last [`Self::take_active`].
    #[must_use]
    pub fn has_active(&self, index: usize) -> bool {
        self.bitmap_word(index).load(Ordering::Acquire) != 0
    }
    /// Words of the bitmap of active senders.
    #[must_use]
    pub fn bitmap_words(&self) -> usize {
        (self.geometry.ranks as usize).div_ceil(64)
    }
    #[inline]
    fn bitmap_word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bitmap_words());
        self.map.shared((BITMAP_OFFSET + index * 8) as u64)
    }
    /// The reading end of the ring that `sender` writes. To be made once per sender.
    #[must_use]
    pub fn consumer(&self, sender: u32) -> Consumer<MappedCells> {
        Consumer::new(cells(&self.map, &self.geometry, sender))
    }
    /// This rank's end of a channel, for its lines alone; none if there is no such channel.
    #[must_use]
    pub fn channel(&self, channel: u32) -> Option<Channel> {
        (channel < self.geometry.coll_channels).then(|| {
            let offset = self.geometry.channel_offset(channel);
            let slot = self.geometry.slot_bytes();
            Channel::new(
                EndMemory::new(&self.map, self.doorbell(), offset, slot),
                self.geometry.heap_bytes,
            )
        })
    }
    /// Reserves a part of a channel, before it is used for the first time.
    ///
    /// # Errors
    /// [`SegmentError::Reserve`].
    pub fn reserve_channel(&self, channel: u32, part: ChannelPart) -> Result<(), SegmentError> {
        let (begin, len) = part.range(self.geometry.slot_bytes());
        let offset = self.geometry.channel_offset(channel).0 + begin;
        check_range("the channels", offset, len, self.geometry.pool_offset().0)
            .expect("only channels that exist are used");
        reserve(self.fd.as_fd(), "a channel for collectives", offset, len)
    }
    /// What peers left in the proof word `index`.
    #[must_use]
    pub fn proof(&self, index: u32) -> u64 {
        self.map.shared::<Header>(0).proof[index as usize % 64].load(Ordering::Acquire)
    }
    /// Reserves `count` chunks of the pool from `first` on.
    ///
    /// # Errors
    /// [`SegmentError::Reserve`].
    pub fn reserve_chunks(&self, first: u32, count: u32) -> Result<(), SegmentError> {
        let size = u64::from(self.geometry.chunk_bytes);
        reserve(
            self.fd.as_fd(),
            "payload chunks",
            self.geometry.pool_offset().0 + u64::from(first) * size,
            u64::from(count) * size,
        )
    }
    /// Gives the memory of `count` chunks from `first` on back to the system. Nobody may read them any more.
    pub fn release_chunks(&self, first: u32, count: u32) {
        let size = u64::from(self.geometry.chunk_bytes);
        let begin = self.geometry.pool_offset().0 + u64::from(first) * size;
        self.release(begin, u64::from(count) * size);
    }
    /// The chunks of the pool.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> PoolMemory<'_> {
        let begin = self.geometry.pool_offset().0;
        PoolMemory::new(&self.map, begin, &self.geometry, true)
    }
    pub(crate) fn reserve_heap(&self, offset: u64, bytes: u64) -> Result<(), SegmentError> {
        reserve(
            self.fd.as_fd(),
            "memory from alloc",
            self.geometry.heap_offset().0 + offset,
            bytes,
        )
    }
    pub(crate) fn release_heap(&self, offset: u64, bytes: u64) {
        self.release(self.geometry.heap_offset().0 + offset, bytes);
    }
    fn release(&self, begin: u64, bytes: u64) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // A refusal only keeps the pages.
        let _ = fallocate(
            self.fd.as_fd(),
            flags,
            begin as libc::off_t,
            bytes as libc::off_t,
        );
    }
    /// The malloc front whose memory this heap is, if it is.
    pub(crate) fn front(&self) -> Option<&Front> {
        self.front.as_ref()
    }
    /// Where `len` bytes at `offset` of the heap are in this process.
    pub(crate) fn heap_address(
        &self,
        offset: HeapOffset,
        len: u64,
    ) -> Result<*mut u8, OutOfBounds> {
        check_range("the heap", offset.0, len, self.geometry.heap_bytes)?;
        Ok(std::ptr::with_exposed_provenance_mut(
            self.heap_base + offset.0 as usize,
        ))
    }
    /// Where in this rank's heap an address of this process lies, if it does with all of `len` bytes.
    #[inline]
    #[must_use]
    pub fn heap_offset_of(&self, address: usize, len: usize) -> Option<HeapOffset> {
        let offset = address.checked_sub(self.heap_base)? as u64;
        (offset.checked_add(len as u64)? <= self.geometry.heap_bytes
            && offset < self.geometry.heap_bytes)
            .then_some(HeapOffset(offset))
    }
}

/// A memfd of this size that nobody can resize.
fn sealed_memfd(rank: u32, bytes: u64) -> Result<OwnedFd, SegmentError> {
    let object = || format!("the segment of rank {rank}");
    let made = failing::attempt("segment.create").and_then(|()| {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        Ok(memfd_create("onecopy", flags)?)
    });
    let fd = made.map_err(|e| {
        call_failed(
            "memfd_create",
            object(),
            e,
            "a kernel of 3.17 or later that permits memfd_create is needed",
        )
    })?;
    set_size(fd.as_fd(), bytes).map_err(|e| {
        call_failed(
            "ftruncate",
            object(),
            e,
            "lower ONECOPY_HEAP_SIZE, or raise the file size limit (ulimit -f)",
        )
    })?;
    fcntl(
        &fd,
        FcntlArg::F_ADD_SEALS(
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL,
        ),
    )
    .map_err(|e| {
        call_failed(
            "fcntl(F_ADD_SEALS)",
            object(),
            e,
            "a kernel with memfd seals is needed",
        )
    })?;
    Ok(fd)
}

/// Whether a memfd is one of ours still: so long, and not to be made shorter.
fn check_sealed(fd: BorrowedFd<'_>, bytes: u64) -> bool {
    let sealed = fcntl(fd, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK));
    let size = nix::sys::stat::fstat(fd).map_or(0, |found| found.st_size);
    sealed && u64::try_from(size).is_ok_and(|size| size >= bytes)
}

/// The memory of a rank's segment, with room for what it writes at once: a front's that fits, or new memory.
fn memory(rank: u32, geometry: &Geometry) -> Result<(OwnedFd, Option<Front>), SegmentError> {
    let front = Front::adopt(geometry);
    let adopted = front.as_ref().and_then(|front| {
        let fd = front.descriptor().ok()?;
        check_sealed(fd.as_fd(), geometry.total_bytes()).then_some(fd)
    });
    let front = front.filter(|_| adopted.is_some());
    let fd = match adopted {
        Some(fd) => fd,
        None => sealed_memfd(rank, geometry.total_bytes())?,
    };
    let rings = geometry.rings_offset().0;
    reserve(fd.as_fd(), "a rank's control lines", 0, rings)?;
    if geometry.coll_channels > 0 {
        let lines = geometry.channel_offset(0).0;
        reserve(fd.as_fd(), "a channel's lines", lines, PAGE as u64)?;
    }
    Ok((fd, front))
}

/// Writes the header, the magic number last: a peer that finds that finds the rest.
fn write_header(map: &Mapping, rank: u32, geometry: &Geometry, strong_fences: bool, nonce: u64) {
    let header: &Header = map.shared(0);
    header.rank.store(rank, Ordering::Relaxed);
    header.ranks.store(geometry.ranks, Ordering::Relaxed);
    header
        .ring_slots
        .store(geometry.ring_slots, Ordering::Relaxed);
    header
        .chunk_bytes
        .store(geometry.chunk_bytes, Ordering::Relaxed);
    header.chunks.store(geometry.chunks, Ordering::Relaxed);
    header
        .heap_bytes
        .store(geometry.heap_bytes, Ordering::Relaxed);
    header
        .coll_channels
        .store(geometry.coll_channels, Ordering::Relaxed);
    header
        .strong_fences
        .store(u32::from(strong_fences), Ordering::Relaxed);
    header
        .address
        .store(map.base().as_ptr() as u64, Ordering::Relaxed);
    header.nonce.store(nonce, Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
}
