// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks: what the region holds must be the child's own afterwards, as all its other memory is.
//!
//! The mapping is shared, so without more parent and child would write into the same pages. Before the fork what is in use and has
//! pages is therefore copied to private memory, which the child inherits and moves to the region's place, and the parent drops. That costs
//! a copy of the region per fork, and for the child as much memory; `posix_spawn` and `vfork`, by which programs are started
//! as a rule, call no handlers and share all memory until the program starts, and so cost nothing.
//!
//! If there is no room for the copy, the child gets a private mapping of the memfd: what it writes is its own, but what the parent writes
//! later may be seen until then. A process that is made by `clone` without these handlers shares the region.
//!
//! # Safety
//!
//! The lock is held from before the fork until after it on both sides: no range changes hands meanwhile. Handlers only make system
//! calls and copy; the child's allocates nothing.
#![allow(
    unsafe_code,
    reason = "copying and replacing the region's memory around a fork"
)]

use crate::region::{HUGE, Region, lock, unlock, with_held};
use libc::off_t;
use onecopy_shm::layout::HEAP_AT;
use onecopy_shm::sync::{AtomicUsize, Ordering};
use std::ops::Range;
use std::ptr::{null_mut, with_exposed_provenance_mut};

/// Where the copy is while a fork is under way; 0: there is none.
static COPY: AtomicUsize = AtomicUsize::new(0);

/// Has the handlers called from now on.
pub(crate) fn register() {
    // SAFETY: three functions that may be called around any fork.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

extern "C" fn before() {
    lock();
    let copy = with_held(|region| match region.private {
        true => 0,
        false => snapshot(region).unwrap_or(0),
    });
    COPY.store(copy.unwrap_or(0), Ordering::Relaxed);
}

extern "C" fn in_parent() {
    let copy = COPY.swap(0, Ordering::Relaxed);
    with_held(|region| {
        if copy != 0 {
            // SAFETY: the copy, which nobody uses in this process.
            unsafe { libc::munmap(with_exposed_provenance_mut(copy), region.bytes) };
        }
    });
    unlock();
}

extern "C" fn in_child() {
    let copy = COPY.swap(0, Ordering::Relaxed);
    with_held(|region| {
        if !region.private {
            replace(region, copy);
            region.private = true;
            // SAFETY: our own descriptor; in this process the memfd is not used any more.
            unsafe { libc::close(region.fd) };
            region.fd = -1;
        }
    });
    unlock();
}

/// Private memory of the region's size with a copy of what is in use.
fn snapshot(region: &Region) -> Option<usize> {
    // SAFETY: new memory at an address that the kernel chooses.
    let copy = unsafe {
        libc::mmap(
            null_mut(),
            region.bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if copy == libc::MAP_FAILED {
        return None;
    }
    for range in region.in_use() {
        if range.end - range.start >= HUGE as u64 {
            // Copying is mostly the price of fresh pages: fewer of them.
            let at = with_exposed_provenance_mut(copy as usize + range.start as usize);
            let len = (range.end - range.start) as usize;
            // SAFETY: our new mapping; the advice changes no content, and its refusal nothing.
            unsafe { libc::madvise(at, len, libc::MADV_HUGEPAGE) };
        }
        let mut rest = range;
        while let Some(part) = next_data(region, &rest) {
            let (begin, len) = (part.start as usize, (part.end - part.start) as usize);
            let from = with_exposed_provenance_mut::<u8>(region.base + begin);
            let to = with_exposed_provenance_mut::<u8>(copy as usize + begin);
            // SAFETY: both ranges lie in their mappings, which do not overlap. Other threads may write meanwhile, as they may during any
            // fork: then the child has some of it.
            unsafe { from.copy_to_nonoverlapping(to, len) };
            rest.start = part.end;
        }
    }
    Some(copy as usize)
}

/// The first part of `range` that has pages; none if there is none.
fn next_data(region: &Region, range: &Range<u64>) -> Option<Range<u64>> {
    if range.is_empty() {
        return None;
    }
    let seek = |at: u64, what| {
        // SAFETY: our own descriptor; no memory is touched. Nobody uses its file position.
        let found = unsafe { libc::lseek(region.fd, (HEAP_AT + at) as off_t, what) };
        u64::try_from(found).ok()?.checked_sub(HEAP_AT)
    };
    // Behind the last data there is an error.
    let begin = seek(range.start, libc::SEEK_DATA)?;
    if begin >= range.end {
        return None;
    }
    let end = seek(begin, libc::SEEK_HOLE).unwrap_or(range.end);
    Some(begin..end.min(range.end))
}

/// Puts private memory in the region's place.
fn replace(region: &Region, copy: usize) {
    let base = with_exposed_provenance_mut(region.base);
    if copy != 0 {
        // SAFETY: both are mappings of this size; what was at the region's place is replaced by its copy.
        let moved = unsafe {
            libc::mremap(
                with_exposed_provenance_mut(copy),
                region.bytes,
                region.bytes,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                base,
            )
        };
        if moved != libc::MAP_FAILED {
            return;
        }
    }
    // SAFETY: the same memory at the same place, but from now on private.
    let mapped = unsafe {
        libc::mmap(
            base,
            region.bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE,
            region.fd,
            HEAP_AT as off_t,
        )
    };
    if mapped == libc::MAP_FAILED {
        // To go on would mean to write into the parent's memory.
        std::process::abort();
    }
}
