// SPDX-License-Identifier: MIT OR Apache-2.0
//! A peer's segment as a rank sees it.
//!
//! # Safety
//! See [`crate::segment`].
#![allow(unsafe_code, reason = "raw copies to and from mappings")]

use super::peer_heap::PeerHeap;
use super::{ControlHandle, Header, PoolMemory, SegmentError, call_failed, cells, reserve};
use crate::cells::MappedCells;
use crate::coll::{Channel, EndMemory};
use crate::doorbell::Doorbell;
use crate::layout::{BITMAP_OFFSET, Geometry, MAGIC};
use crate::mapping::{Advice, Mapping};
use crate::ring::Producer;
use crate::sync::{AtomicU64, Ordering};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Seals that a segment may have: they keep its size, and nothing else, as it is. Kernels that start programs from no
/// memfd add the last one.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL | F_SEAL_EXEC;
/// From the kernel's `fcntl.h`; not every C library has it.
const F_SEAL_EXEC: i32 = 0x20;

/// Whether a descriptor that a peer handed over can be mapped as its segment; otherwise what is wrong with it.
fn check_descriptor(fd: &OwnedFd, expected: &Geometry) -> Result<(), String> {
    let refused = |call: &str, error: Errno| format!("it is no memfd ({call}: {error})");
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|e| refused("fcntl(F_GETFL)", e))?;
    // Only memfds, and files of tmpfs and hugetlbfs, have seals. A file of tmpfs has the seal against seals and no
    // other.
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|e| refused("fcntl(F_GET_SEALS)", e))?;
    let system = fstatfs(fd).map_err(|e| refused("fstatfs", e))?;
    if system.filesystem_type() != TMPFS_MAGIC {
        // Huge pages run out at an access: then the kernel sends SIGBUS.
        return Err("it is a memfd on huge pages, or of another unusual kind".into());
    }
    if flags & libc::O_ACCMODE != libc::O_RDWR {
        return Err("it was not opened for reading and writing".into());
    }
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err("it is not sealed against shrinking".into());
    }
    if seals & !SEALS != 0 {
        return Err(format!(
            "it has seals that forbid its use (seals {seals:#x})"
        ));
    }
    let size = fstat(fd).map_err(|e| refused("fstat", e))?.st_size;
    let needed = expected.total_bytes();
    if !u64::try_from(size).is_ok_and(|size| size >= needed) {
        return Err(format!(
            "it has {size} bytes instead of {needed}; do all ranks have the same ONECOPY_ settings?"
        ));
    }
    Ok(())
}

/// A peer's segment as this rank sees it.
#[derive(Debug)]
pub struct PeerSegment {
    fd: OwnedFd,
    /// Header, control lines, rings: written by this rank too.
    control: Arc<Mapping>,
    /// The payload pool: read, and if it is mapped writable, written where this rank returns a chunk.
    pool: Option<Mapping>,
    /// Whether it is mapped writable.
    pool_writable: bool,
    geometry: Geometry,
    rank: u32,
    me: u32,
}

impl PeerSegment {
    /// Opens the segment of `rank` for rank `me`. Everything that the peer claims in its header is checked.
    ///
    /// # Errors
    /// [`SegmentError::Foreign`] if it is no segment of that rank with the `expected` geometry, [`SegmentError::Call`]
    /// if it cannot be mapped.
    pub fn open(
        fd: OwnedFd,
        rank: u32,
        me: u32,
        expected: &Geometry,
    ) -> Result<Self, SegmentError> {
        let foreign = |reason: String| SegmentError::Foreign { rank, reason };
        // Before anything is mapped: an access to a mapping of another kind of file can end this process.
        check_descriptor(&fd, expected).map_err(foreign)?;
        let control =
            Mapping::new_own(fd.as_fd(), 0, expected.pool_offset().0, true).map_err(|e| {
                call_failed(
                    "mmap",
                    format!("the segment of rank {rank}"),
                    e,
                    "raise the limits on mappings and address space",
                )
            })?;
        let header: &Header = control.shared(0);
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(foreign(
                "it does not begin as a segment of this version does".into(),
            ));
        }
        // Read once: the peer may write it again.
        let geometry = header.geometry();
        if header.rank.load(Ordering::Relaxed) != rank || !geometry.is_like(expected) {
            return Err(foreign(format!(
                "it was made for rank {} with {geometry:?} instead of {expected:?}; do all ranks have the same ONECOPY_ settings?",
                header.rank.load(Ordering::Relaxed),
            )));
        }
        Ok(Self {
            fd,
            control: Arc::new(control),
            pool: None,
            pool_writable: false,
            geometry,
            rank,
            me,
        })
    }

    /// The peer's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }
    /// Whether this peer can only be woken behind full fences.
    #[must_use]
    pub fn needs_strong_fences(&self) -> bool {
        self.control
            .shared::<Header>(0)
            .strong_fences
            .load(Ordering::Relaxed)
            != 0
    }
    /// The peer's doorbell.
    #[inline]
    #[must_use]
    pub fn doorbell(&self) -> &Doorbell {
        &self.control.shared::<Header>(0).doorbell
    }
    /// Reserves this rank's ring in the peer's segment and gives its writing end. To be made once.
    ///
    /// # Errors
    /// [`SegmentError::Reserve`].
    pub fn producer(&self) -> Result<Producer<MappedCells>, SegmentError> {
        reserve(
            self.fd.as_fd(),
            "a ring",
            self.geometry.ring_offset(self.me).0,
            self.geometry.ring_bytes(),
        )?;
        Ok(Producer::new(cells(&self.control, &self.geometry, self.me)))
    }
    /// Control words of the pair this rank → peer.
    #[must_use]
    pub fn control_handle(&self) -> ControlHandle {
        ControlHandle::new(&self.control, self.geometry.ctrl_offset(self.me))
    }
    /// The peer's end of a channel; none if there is no such channel.
    #[must_use]
    pub fn channel(&self, channel: u32) -> Option<Channel> {
        (channel < self.geometry.coll_channels).then(|| {
            let offset = self.geometry.channel_offset(channel);
            Channel::new(
                EndMemory::new(
                    &self.control,
                    self.doorbell(),
                    offset,
                    self.geometry.slot_bytes(),
                ),
                self.geometry.heap_bytes,
            )
        })
    }
    /// Tells the peer that this rank's ring has records; it will look at it until it says otherwise.
    pub fn set_active(&self) {
        let word: &AtomicU64 = self
            .control
            .shared((BITMAP_OFFSET + self.me as usize / 64 * 8) as u64);
        // SYNC(active.set): release what made this rank active
        word.fetch_or(1 << (self.me % 64), Ordering::AcqRel);
        crate::fault::point("active.set");
    }
    /// Address of the peer's header in the peer, and the number to be found at [`Self::nonce_address`].
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.control
            .shared::<Header>(0)
            .nonce
            .load(Ordering::Relaxed)
    }
    /// Address, in the peer, of its nonce.
    #[must_use]
    pub fn nonce_address(&self) -> u64 {
        self.control
            .shared::<Header>(0)
            .address
            .load(Ordering::Relaxed)
            .wrapping_add(std::mem::offset_of!(Header, nonce) as u64)
    }
    /// Address, in the peer, of the word where this rank may write to prove that it can.
    #[must_use]
    pub fn proof_address(&self) -> u64 {
        let index = self.me as usize % 64;
        self.control
            .shared::<Header>(0)
            .address
            .load(Ordering::Relaxed)
            .wrapping_add((std::mem::offset_of!(Header, proof) + index * 8) as u64)
    }
    /// What stands in that word, seen through the mapping.
    #[must_use]
    pub fn proof(&self) -> u64 {
        self.control.shared::<Header>(0).proof[self.me as usize % 64].load(Ordering::Acquire)
    }

    /// Writes a number to this rank's word in the peer's segment and looks whether it stands there.
    #[must_use]
    pub fn prove(&self) -> bool {
        let word = &self.control.shared::<Header>(0).proof[self.me as usize % 64];
        let token = self.nonce().rotate_left(self.me % 64) | 1;
        word.store(token, Ordering::Release);
        word.load(Ordering::Acquire) == token
    }

    /// Maps the peer's payload pool if it is not mapped yet. `writable` says how it is mapped: chunks can be returned
    /// with messages in them only if it is writable. On some processors a line that was read through a writable mapping
    /// is cheaper for its owner to write again, too.
    ///
    /// # Errors
    /// [`SegmentError::Call`]: `mmap` failed.
    pub fn map_pool(&mut self, writable: bool) -> Result<(), SegmentError> {
        if self.pool.is_none() {
            let map = Mapping::new_own(
                self.fd.as_fd(),
                self.geometry.pool_offset().0,
                self.geometry.pool_bytes(),
                writable,
            )
            .map_err(|e| {
                call_failed(
                    "mmap",
                    format!("the payload pool of rank {}", self.rank),
                    e,
                    "raise the limits on mappings and address space",
                )
            })?;
            self.pool = Some(map);
            self.pool_writable = writable;
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn pool_address(&self) -> Option<usize> {
        self.pool.as_ref().map(|map| map.base().as_ptr().addr())
    }

    /// Bytes in one of the peer's chunks.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.geometry.chunk_bytes as usize
    }

    /// The peer's chunks; none if the pool is not mapped.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> Option<PoolMemory<'_>> {
        let map = self.pool.as_ref()?;
        let memory = PoolMemory::new(map, 0, &self.geometry, self.pool_writable);
        Some(memory)
    }

    /// Whether chunks of the peer's can be written here.
    #[inline]
    #[must_use]
    pub fn returns_chunks(&self) -> bool {
        self.pool.is_some() && self.pool_writable
    }

    /// Maps the peer's heap.
    ///
    /// # Errors
    /// [`SegmentError::Foreign`] if the peer has no heap, [`SegmentError::Call`] if `mmap` failed.
    pub fn map_heap(&self) -> Result<PeerHeap, SegmentError> {
        if self.geometry.heap_bytes == 0 {
            return Err(SegmentError::Foreign {
                rank: self.rank,
                reason: "it has no heap (ONECOPY_HEAP_SIZE is 0)".into(),
            });
        }
        let map = Mapping::new_own(
            self.fd.as_fd(),
            self.geometry.heap_offset().0,
            self.geometry.heap_bytes,
            true,
        )
        .map_err(|e| {
            call_failed(
                "mmap",
                format!("the heap of rank {}", self.rank),
                e,
                "lower ONECOPY_HEAP_SIZE or raise the address space limit (ulimit -v)",
            )
        })?;
        map.advise(0, self.geometry.heap_bytes, Advice::HugePage);
        Ok(PeerHeap::new(map))
    }
}
