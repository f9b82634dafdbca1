// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's statistics page: its counters, and what came from each peer, where tools can read them.
//!
//! The page is a memfd of its own with the name [`NAME`]: tools find it under `/proc/PID/fd` and need nothing from the
//! rank. Its layout is a [`Head`], the counters, then a row for each peer. The rank's adds are plain. A reader
//! ([`shown`]) loads each value atomically.
//!
//! # Safety
//! [`StatsPage`] gives `&mut` into its memory, so nobody else may write it:
//!
//! * In this process it has the only mapping, and lends it with its own borrow.
//! * The file is sealed with `F_SEAL_FUTURE_WRITE` before `create` returns, and before anything is counted. From then
//!   on nobody can write to it or map it writable, through this descriptor or a new one. `F_SEAL_SEAL` keeps it so. It
//!   cannot shrink, so no access faults. Without any of these seals the values lie in private memory instead.
//! * Before that, only who may look into the descriptors of this process could have mapped it, by a guess of the
//!   moment. That is a process of the same user, or of an administrator. Values are integers of which every bit
//!   pattern is valid, and nothing is found by them.
//! * A child of a fork does not inherit the mapping; the gate keeps it out of the engine.
//!
//! Readers in other processes only load. In this process nobody reads but through the borrow.
#![allow(unsafe_code, reason = "references into a page that others read")]

pub mod shown;

use crate::layout::MAX_RANKS;
use crate::mapping::Mapping;
use crate::segment::set_size;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use onecopy_obs::Counters;
use onecopy_obs::stats::{MECHANISMS, Row, names};
use std::io;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// The name of the memfd.
pub const NAME: &str = "onecopy-stats";
/// What a page begins with: `1copstat` in memory.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"1copstat");
/// The version of the layout.
pub const VERSION: u32 = 1;

/// What a page begins with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// How many mechanisms a row has.
    pub mechanisms: u32,
    /// Bytes of the whole page.
    pub bytes: u64,
    /// The hash of all names in their order.
    pub names: u64,
    /// A number that only the ranks of one job share.
    pub job: u64,
    /// The process, as it numbers itself.
    pub pid: u32,
    /// The rank.
    pub rank: u32,
    /// How many ranks the job has.
    pub size: u32,
    /// How many counters there are.
    pub counters: u32,
    /// Zero.
    pub spare: u64,
}

const COUNTERS_AT: usize = size_of::<Head>();
const COUNTERS_LEN: usize = size_of::<Counters>();
/// Rows begin with a line of the cache.
const ROWS_AT: usize = (COUNTERS_AT + COUNTERS_LEN).next_multiple_of(64);

// The layout of version 1.
const _: () = {
    assert!(offset_of!(Head, magic) == 0 && offset_of!(Head, version) == 8);
    assert!(offset_of!(Head, mechanisms) == 12 && offset_of!(Head, bytes) == 16);
    assert!(offset_of!(Head, names) == 24 && offset_of!(Head, job) == 32);
    assert!(offset_of!(Head, pid) == 40 && offset_of!(Head, rank) == 44);
    assert!(offset_of!(Head, size) == 48 && offset_of!(Head, counters) == 52);
    assert!(size_of::<Head>() == 64 && align_of::<Head>() == 8);
    assert!(size_of::<Row>() == 16 * MECHANISMS.len() && align_of::<Row>() == 8);
    assert!(COUNTERS_LEN.is_multiple_of(8) && align_of::<Counters>() == 8);
};

/// Bytes of a page of a job of this size.
fn bytes_of(size: u32) -> u64 {
    ROWS_AT as u64 + u64::from(size) * size_of::<Row>() as u64
}

/// Bytes of memory that the page of a rank takes, in a job of this size.
#[must_use]
pub fn memory_of(size: u32) -> u64 {
    bytes_of(size).next_multiple_of(crate::layout::PAGE as u64)
}

/// Where the values lie.
#[derive(Debug)]
enum Memory {
    /// In a file that tools find by its descriptor.
    Shared { fd: OwnedFd, _map: Mapping },
    /// In memory that nobody else sees.
    Private { _words: Vec<u64> },
}

/// The counters of a rank and what came from each peer.
#[derive(Debug)]
pub struct StatsPage {
    base: NonNull<u8>,
    size: u32,
    memory: Memory,
}

// SAFETY: it owns its memory, as a box would.
unsafe impl Send for StatsPage {}
// SAFETY: a shared borrow of it only reads.
unsafe impl Sync for StatsPage {}

impl StatsPage {
    /// The page of `rank` of `size`, all zero. `job`: what only the ranks of its job share. Where there can be no such
    /// file, the values are kept where nobody else sees them.
    #[must_use]
    pub fn new(job: u64, rank: u32, size: u32) -> Self {
        Self::create(job, rank, size).unwrap_or_else(|_| Self::private(size))
    }

    /// One that nobody else sees.
    #[must_use]
    pub fn private(size: u32) -> Self {
        let bytes = usize::try_from(bytes_of(size)).unwrap_or(ROWS_AT);
        let mut words = vec![0_u64; bytes / size_of::<u64>()];
        // A vector is never empty here, and it is never touched again.
        let base = NonNull::new(words.as_mut_ptr().cast()).unwrap_or(NonNull::dangling());
        Self {
            base,
            size,
            memory: Memory::Private { _words: words },
        }
    }

    /// One that tools find.
    fn create(job: u64, rank: u32, size: u32) -> io::Result<Self> {
        if size > MAX_RANKS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = bytes_of(size);
        let fd = memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        set_size(fd.as_fd(), bytes)?;
        // Without room a store would end the process: better no page.
        fallocate(&fd, FallocateFlags::empty(), 0, bytes.cast_signed())?;
        let map = Mapping::of_file(fd.as_fd(), bytes, true)?;
        let head = Head {
            magic: MAGIC,
            version: VERSION,
            mechanisms: MECHANISMS.len() as u32,
            bytes,
            names: names(),
            job,
            pid: std::process::id(),
            rank,
            size,
            counters: (COUNTERS_LEN / size_of::<u64>()) as u32,
            spare: 0,
        };
        let base = map.base();
        // SAFETY: a mapping begins with a page of memory, which is longer than a head, aligned, and ours alone.
        unsafe { base.cast::<Head>().write(head) };
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_FUTURE_WRITE
            | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self {
            base,
            size,
            memory: Memory::Shared { fd, _map: map },
        })
    }

    /// The descriptor of the page, if tools can find it.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.memory {
            Memory::Shared { fd, .. } => Some(fd.as_fd()),
            Memory::Private { .. } => None,
        }
    }

    /// What came from `peer`; none if the job has no such rank.
    #[inline(always)]
    pub fn row(&mut self, peer: u32) -> Option<&mut Row> {
        if peer >= self.size {
            return None;
        }
        // SAFETY: rows of all ranks lie in the memory (`bytes_of`), from `ROWS_AT` on.
        let pointer = unsafe { self.base.add(ROWS_AT + peer as usize * size_of::<Row>()) };
        // SAFETY: aligned, as its place and its size are; every bit pattern is a row; ours alone (see above).
        Some(unsafe { pointer.cast::<Row>().as_mut() })
    }

    #[inline(always)]
    fn counters(&self) -> NonNull<Counters> {
        // SAFETY: they lie behind the head, in the memory.
        unsafe { self.base.add(COUNTERS_AT) }.cast()
    }
}

impl Deref for StatsPage {
    type Target = Counters;
    #[inline(always)]
    fn deref(&self) -> &Counters {
        // SAFETY: in the memory, aligned, every bit pattern is valid; nobody writes but through `&mut self`.
        unsafe { self.counters().as_ref() }
    }
}

impl DerefMut for StatsPage {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Counters {
        // SAFETY: as above; nobody else has a reference into this process's only mapping.
        unsafe { self.counters().as_mut() }
    }
}

#[cfg(test)]
mod tests;
