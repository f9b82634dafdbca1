// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that both sides of a measurement map.

use super::LimitError;
use crate::sync::{AtomicU64, Ordering};
use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of control words and slot rings before the pools. The last ring of `pair.rs` ends at 192 KiB.
pub(super) const CONTROL: usize = 256 << 10;
/// Two sides, a source and a destination each.
const POOLS: usize = 4;
/// Byte offset of the word that ends the measurement.
pub(super) const STOP: usize = 1024;
/// Bytes of a pool at most: well beyond the third-level caches, so that copies of its pieces are from memory.
const POOL_MAX: usize = 256 << 20;
/// Bytes of a pool at least, however little memory is free. A large message still fits.
const POOL_MIN: usize = 8 << 20;
const PAGE: usize = 4096;

/// Which of a side's two shared pools.
#[derive(Clone, Copy)]
pub(super) enum Pool {
    Source,
    Destination,
}

/// A memfd with the control words and, per side, a source and a destination pool.
///
/// The pools are holes until a measurement needs them. What it needs is reserved with `fallocate` first, so lack of
/// memory is an error and never a SIGBUS.
#[derive(Debug)]
pub struct Arena {
    fd: OwnedFd,
    map: MmapRaw,
    pool: usize,
}

/// The pool size for this machine: 256 MiB, less where so much of it would not be free.
#[must_use]
pub fn largest_pool(available_bytes: usize) -> usize {
    // Four shared pools here, and two private ones on each side.
    let affordable = available_bytes / 12;
    let rounded = affordable / POOL_MIN * POOL_MIN;
    rounded.clamp(POOL_MIN, POOL_MAX)
}

impl Arena {
    /// A new arena whose pools hold `pool` bytes each.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the memfd, its seals or the mapping.
    pub fn create(pool: usize) -> Result<Self, LimitError> {
        let pool = pool.next_multiple_of(PAGE).max(PAGE);
        let fd = memfd_create(
            c"onecopy-limits",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )
        .map_err(LimitError::io("memfd_create"))?;
        let total = CONTROL + POOLS * pool;
        crate::segment::set_size(fd.as_fd(), total as u64).map_err(LimitError::io("ftruncate"))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(LimitError::io("F_ADD_SEALS"))?;
        let arena = Self::open(fd)?;
        arena.reserve(0, CONTROL)?;
        Ok(arena)
    }

    /// Maps an arena that another process made.
    ///
    /// # Errors
    ///
    /// If the descriptor is not a sealed arena, or cannot be mapped.
    pub fn open(fd: OwnedFd) -> Result<Self, LimitError> {
        let bad = |why: &str| LimitError::Io {
            what: "arena",
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, why),
        };
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(LimitError::io("F_GET_SEALS"))?;
        if seals & SealFlag::F_SEAL_SHRINK.bits() == 0 {
            return Err(bad("the memory is not sealed against shrinking"));
        }
        let stat = nix::sys::stat::fstat(&fd).map_err(LimitError::io("fstat"))?;
        let total = usize::try_from(stat.st_size).unwrap_or(0);
        if total <= CONTROL || !(total - CONTROL).is_multiple_of(POOLS * PAGE) {
            return Err(bad("the memory does not have an arena's size"));
        }
        let file = File::from(fd);
        let map = MmapOptions::new()
            .len(total)
            .map_raw(&file)
            .map_err(|source| LimitError::Io {
                what: "mmap",
                source,
            })?;
        Ok(Self {
            fd: file.into(),
            map,
            pool: (total - CONTROL) / POOLS,
        })
    }

    /// Another mapping of the same memory, as a second thread needs it.
    ///
    /// # Errors
    ///
    /// If the descriptor cannot be duplicated or mapped.
    pub fn again(&self) -> Result<Self, LimitError> {
        let fd = self.fd.try_clone().map_err(|source| LimitError::Io {
            what: "dup",
            source,
        })?;
        Self::open(fd)
    }

    /// The descriptor, to be inherited by the processes that measure.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes of one pool.
    #[must_use]
    pub fn pool(&self) -> usize {
        self.pool
    }

    /// Ends every wait of both sides with [`LimitError::Stopped`].
    pub fn stop(&self) {
        self.word(STOP).store(1, Ordering::Release);
    }

    /// The control word at this byte offset.
    #[inline(always)]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < CONTROL);
        let word = self.map.as_mut_ptr().wrapping_add(offset);
        debug_assert!(word.addr().is_multiple_of(8));
        // SAFETY: the assertion keeps the word inside the control area, which is mapped read-write for as long as
        // `self` lives. The mapping starts on a page, so the word is aligned. Both sides reach it only as an atomic.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// Address of `bytes` bytes at `offset` of a side's pool.
    pub(super) fn pool_at(&self, side: usize, which: Pool, offset: usize, bytes: usize) -> *mut u8 {
        assert!(side < 2 && offset <= self.pool && bytes <= self.pool - offset);
        let base = CONTROL + (side * 2 + which as usize) * self.pool;
        self.map.as_mut_ptr().wrapping_add(base + offset)
    }

    /// Reserves and maps the first `bytes` of a side's two pools.
    pub(super) fn make_ready(&self, side: usize, bytes: usize) -> Result<(), LimitError> {
        for which in [Pool::Source, Pool::Destination] {
            let bytes = bytes.next_multiple_of(PAGE).min(self.pool);
            let base = CONTROL + (side * 2 + which as usize) * self.pool;
            self.reserve(base, bytes)?;
            // A kernel that lacks this advice faults the pages in later, in a batch that warms up.
            let _ = self.map.advise_range(Advice::PopulateWrite, base, bytes);
        }
        Ok(())
    }

    fn reserve(&self, offset: usize, bytes: usize) -> Result<(), LimitError> {
        let convert = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        fallocate(
            &self.fd,
            FallocateFlags::empty(),
            convert(offset),
            convert(bytes),
        )
        .map_err(LimitError::io(
            "fallocate of the shared pools of the limits",
        ))
    }
}
