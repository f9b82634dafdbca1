// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of a segment in this process's address space, and what may be referenced there.
//!
//! # Safety
//! See [`crate::segment`], which alone makes mappings: from descriptors whose size was checked and sealed.
#![allow(unsafe_code, reason = "pointers into mappings")]

use crate::failing;
use crate::layout::{OutOfBounds, PAGE, check_range};
use crate::sync::AtomicU64;
use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Advice that changes no content: there is none here that takes pages away.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
pub(crate) enum Advice {
    /// Children of a fork do not inherit it.
    DontFork = libc::MADV_DONTFORK,
    /// Huge pages are worth while.
    HugePage = libc::MADV_HUGEPAGE,
    /// It is written soon.
    PopulateWrite = libc::MADV_POPULATE_WRITE,
}

/// A part of a memfd in this process's address space.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
}

// SAFETY: a mapping is an address range; what is done with it is the business of the structures above, which use
// atomics and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// For [`crate::segment`] alone, which has checked the size of the file and that it stays.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> io::Result<Self> {
        failing::attempt("segment.map")?;
        Self::of(fd, offset, len, writable)
    }

    /// The whole of a file for [`crate::stats`], of a size that was checked and sealed. A child of a fork does not
    /// inherit it; where the kernel refuses that, there is none.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, len: u64, writable: bool) -> io::Result<Self> {
        let mapping = Self::of(fd, 0, len, writable)?;
        if writable && !mapping.advise(0, len, Advice::DontFork) {
            return Err(io::Error::last_os_error());
        }
        Ok(mapping)
    }

    fn of(fd: BorrowedFd<'_>, offset: u64, len: u64, writable: bool) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        // By number, which spares a second descriptor; `fd` is open for the whole call.
        let fd = fd.as_raw_fd();
        let mut options = MmapOptions::new();
        options.offset(offset).len(len).no_reserve_swap();
        let map = if writable {
            options.map_raw(fd)?
        } else {
            options.map_raw_read_only(fd)?
        };
        Ok(Self { map })
    }

    /// As [`new`](Self::new), but a child of a fork does not inherit the mapping.
    pub(crate) fn new_own(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> io::Result<Self> {
        let mapping = Self::new(fd, offset, len, writable)?;
        // Where the kernel refuses, the gate alone keeps children out.
        mapping.advise(0, mapping.len(), Advice::DontFork);
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    #[inline]
    pub(crate) fn at(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
    ) -> Result<NonNull<u8>, OutOfBounds> {
        check_range(what, offset, len, self.len())?;
        // SAFETY: the range lies in the mapping.
        Ok(unsafe { self.base().add(offset as usize) })
    }

    /// A structure of atomics at `offset`.
    pub(crate) fn shared<T: SharedStruct>(&self, offset: u64) -> &T {
        let pointer = self
            .at("structure in the segment", offset, size_of::<T>() as u64)
            .expect("offsets of control structures come from a checked geometry");
        assert_eq!(pointer.as_ptr() as usize % align_of::<T>(), 0);
        // SAFETY: in the mapping, aligned, alive as long as self; T is made of atomics (trait's promise).
        unsafe { pointer.cast::<T>().as_ref() }
    }

    /// Tells the kernel what is going to happen to a range. Whether it took that.
    pub(crate) fn advise(&self, offset: u64, len: u64, advice: Advice) -> bool {
        let begin = offset & !(PAGE as u64 - 1);
        let Ok(pointer) = self.at("advice", begin, len + (offset - begin)) else {
            return false;
        };
        // SAFETY: the range lies in our mapping; no advice of the list changes content or takes pages away.
        let result = unsafe {
            libc::madvise(
                pointer.as_ptr().cast(),
                (len + (offset - begin)) as usize,
                advice as libc::c_int,
            )
        };
        result == 0
    }
}

/// Structures that may be referenced in shared memory.
///
/// # Safety
/// Every field is an atomic (or made of atomics), and every bit pattern is valid.
pub(crate) unsafe trait SharedStruct {}

// SAFETY: an atomic.
unsafe impl SharedStruct for AtomicU64 {}
