// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks: what the region holds must be the child's own afterwards, as all its other memory is.
//!
//! The mapping is shared, so without more parent and child would write into the same pages. Before the fork what is in
//! use and has pages is therefore copied to private memory. The child inherits that and moves it to the region's place,
//! and the parent drops it. That costs a copy of the region per fork, and for the child as much memory. Programs are
//! started by `posix_spawn` and `vfork` as a rule. These call no handlers and share all memory until the program
//! starts, and so cost nothing.
//!
//! If there is no room for the copy, the child gets private mappings of the memfd where something is in use. What it
//! writes is its own, but what the parent writes later may be seen until then. A process that is made by `clone`
//! without these handlers shares the region.
//!
//! What a child allocates comes from the next allocator, never from the region: there might be bytes of the parent in
//! it.
//!
//! # Whose handlers come first
//!
//! Other libraries have handlers too, and may allocate, free and write in them. So ours run last before the fork and
//! first after it. The snapshot has all that was written. The child's memory is its own before anyone writes to it, and
//! nobody else's handler runs while the lock is held. The C library calls handlers in the reverse order of their
//! registration before the fork and in that order after it. So ours must be registered first. Constructors of other
//! libraries run before ours. So we stand in front of the function by which all of them register: `__register_atfork`,
//! which `pthread_atfork` calls. We register ours at its first call.
//!
//! # Safety
//!
//! The lock is held from just before the fork until just after it on both sides: no range changes hands meanwhile.
//! Handlers only make system calls and copy; the child's allocates nothing.
#![allow(
    unsafe_code,
    reason = "copying and replacing the region's memory around a fork"
)]

use crate::region::{HUGE, Region, lock, unlock, with_held};
use libc::{c_int, c_void, off_t};
use onecopy_shm::layout::HEAP_AT;
use onecopy_shm::sync::{AtomicUsize, Ordering};
use std::mem::transmute;
use std::ops::Range;
use std::ptr::{null_mut, with_exposed_provenance_mut};

/// Where the copy is while a fork is under way; 0: there is none.
static COPY: AtomicUsize = AtomicUsize::new(0);

/// A handler, and the function that registers three of them for a library.
type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// The C library's function; none before the handlers were registered.
static REGISTER: AtomicUsize = AtomicUsize::new(0);

/// Has the handlers called from now on. The first caller does it: other libraries' constructors may run before ours.
pub(crate) fn register() {
    ours_first();
}

/// Registers our handlers unless that is done; returns the C library's function.
fn ours_first() -> Option<Register> {
    let known = REGISTER.load(Ordering::Relaxed);
    let address = match known {
        0 => {
            // SAFETY: the name is a C string; the call changes nothing in the program.
            unsafe { libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()) as usize }
        }
        address => address,
    };
    // SAFETY: none, or the C library's function of that name, which has this type in every version of it.
    let function = unsafe { transmute::<usize, Option<Register>>(address) }?;
    let first = REGISTER.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_ok() {
        // No library's: this one is never unloaded.
        // SAFETY: three functions that may be called around any fork.
        unsafe { function(Some(before), Some(in_parent), Some(in_child), null_mut()) };
    }
    Some(function)
}

/// As the C library's, behind our own.
///
/// # Safety
/// As for the C library's: handlers that may be called around any fork until the library of `handle` is unloaded.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    handle: *mut c_void,
) -> c_int {
    match ours_first() {
        // SAFETY: the caller's promise.
        Some(function) => unsafe { function(prepare, parent, child, handle) },
        None => libc::ENOMEM,
    }
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
            let pointer = with_exposed_provenance_mut(copy as usize + range.start as usize);
            let len = (range.end - range.start) as usize;
            // SAFETY: our new mapping; the advice changes no content, and its refusal nothing.
            unsafe { libc::madvise(pointer, len, libc::MADV_HUGEPAGE) };
        }
        let mut rest = range;
        while let Some(part) = next_data(region, &rest) {
            let (begin, len) = (part.start as usize, (part.end - part.start) as usize);
            let from = with_exposed_provenance_mut::<u8>(region.base + begin);
            let to = with_exposed_provenance_mut::<u8>(copy as usize + begin);
            // SAFETY: both ranges lie in their mappings, which do not overlap. Other threads may write meanwhile, as
            // they may during any fork: then the child has some of it.
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
    let seek = |offset: u64, what| {
        // SAFETY: our own descriptor; no memory is touched. Nobody uses its file position.
        let found = unsafe { libc::lseek(region.fd, (HEAP_AT + offset) as off_t, what) };
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
    let rest = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the region's place, which is ours. What is in use comes back below before anyone looks.
    let mut mapped = unsafe { libc::mmap(base, region.bytes, libc::PROT_NONE, rest, -1, 0) };
    for range in region.in_use() {
        if mapped == libc::MAP_FAILED {
            break;
        }
        // SAFETY: a part of the region: the same memory at the same place, but from now on private.
        mapped = unsafe {
            libc::mmap(
                with_exposed_provenance_mut(region.base + range.start as usize),
                (range.end - range.start) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE,
                region.fd,
                (HEAP_AT + range.start) as off_t,
            )
        };
    }
    if mapped == libc::MAP_FAILED {
        // To go on would mean to write into the parent's memory.
        let text = b"onecopy: fork(): no memory of its own for the child's large allocations; raise the limit of memory (ulimit -v, -d)\n";
        // SAFETY: a buffer with its length.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        std::process::abort();
    }
}
