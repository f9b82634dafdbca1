// SPDX-License-Identifier: MIT OR Apache-2.0
//! The malloc front. Preloaded into an ordinary program (`onecopy run --heap`), it serves large allocations from a
//! memfd. If the program comes to start a runtime, that takes the memfd as its segment. So the program's own buffers
//! are memory that peers read in place.
//!
//! The next allocator in the program, whatever that is, gets what is smaller than `ONECOPY_MALLOC_MIN`. It gets
//! everything when there is no room or no memfd. A pointer says by its value whose it is, so each is freed where it
//! came from, and a program may change sides with `realloc`. The parts: `real` is the next allocator, `region` the
//! memfd and what is in use of it. `fork` keeps the memory of parent and child apart, and `front` is what the runtime
//! sees. Here are the functions that the program calls.
//!
//! # Invariants
//!
//! - Nothing here allocates through the functions that it replaces: Rust's own allocations go to `real` directly. The
//!   lock is never taken twice by one thread.
//! - No memory exists before the first large allocation: a shell or a compiler that inherits the preloading pays for a
//!   comparison.
//! - Memory is taken when it is touched, as the program expects of `malloc`, and goes back to the system when it is
//!   freed. A bounded amount (`ONECOPY_MALLOC_KEEP`) is kept for the next allocation of about that size.
//! - After a fork the child's memory is its own: a snapshot is made before. `vfork` and `posix_spawn`, hence `system`
//!   and `popen`, need none. Other libraries' handlers of a fork may allocate and free in any size: ours are between
//!   them and the fork (`heap/src/fork.rs`).
//! - No thread is cancelled while it holds the lock. A signal handler that leaves `malloc` or `free` by `longjmp`
//!   leaves the lock behind, as it does with the C library's. Neither may be called, nor left, in a handler.
//! - The region is refused where `ulimit -f` is in its way, before the kernel ends the program for it.
//! - `free` keeps `errno`.
//!
//! # Safety
//!
//! The functions have the contracts of the C library's. Every pointer that they return is valid for the size asked for
//! until it is freed. Ranges that are given out do not overlap (`heap/src/region.rs`), and their mapping is never
//! removed. A pointer that is not in the region is only ever handed on to the next allocator.
#![allow(
    unsafe_code,
    reason = "the C allocator's interface: raw pointers in and out"
)]

mod fork;
mod front;
mod real;
mod region;

use libc::{c_int, c_void, size_t};
use region::{NewMemory, Region};
use std::ptr::{copy_nonoverlapping, null_mut, write_bytes};

#[global_allocator]
static RUST: real::Real = real::Real;

/// Runs when the library is loaded, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn construct() {
        real::resolve();
        fork::register();
        region::configure();
    }
    construct
};

/// Memory of the region, for a size that belongs there.
fn large(size: usize, align: usize) -> Option<NewMemory> {
    if size < region::threshold() {
        return None;
    }
    Region::alloc(size, align)
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: size_t) -> *mut c_void {
    match large(size, 1) {
        Some(fresh) => fresh.pointer,
        None => real::malloc(size),
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    let fresh = count
        .checked_mul(size)
        .and_then(|total| Some((large(total, 1)?, total)));
    match fresh {
        Some((fresh, total)) => {
            if fresh.dirty {
                // SAFETY: the range was just given out for at least `total` bytes, to nobody else.
                unsafe { write_bytes(fresh.pointer.cast::<u8>(), 0, total) };
            }
            fresh.pointer
        }
        None => real::calloc(count, size),
    }
}

/// As the C library's.
///
/// # Safety
/// `pointer` is null or came from one of these functions and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    if region::contains(pointer) {
        Region::free(pointer);
    } else {
        // SAFETY: it is not ours, so it is the next allocator's; the rest is the caller's promise.
        unsafe { real::free(pointer) };
    }
}

/// As the C library's.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(pointer: *mut c_void, size: size_t) -> *mut c_void {
    if pointer.is_null() {
        return malloc(size);
    }
    if !region::contains(pointer) {
        // SAFETY: the caller's promise; it is the next allocator's.
        let had = unsafe { real::usable_size(pointer) };
        let Some(fresh) = large(size, 1) else {
            // SAFETY: as above.
            return unsafe { real::realloc(pointer, size) };
        };
        // SAFETY: `had` bytes are readable at the old place, `size` writable at the new one, which nobody else has.
        unsafe {
            copy_nonoverlapping(
                pointer.cast::<u8>(),
                fresh.pointer.cast::<u8>(),
                had.min(size),
            )
        };
        // SAFETY: as above; the old memory is not used any more.
        unsafe { real::free(pointer) };
        return fresh.pointer;
    }
    if size == 0 {
        Region::free(pointer);
        return null_mut();
    }
    if size >= region::threshold() && Region::resize(pointer, size) {
        return pointer;
    }
    let had = Region::usable_size(pointer);
    let moved = malloc(size);
    if moved.is_null() {
        return moved;
    }
    // SAFETY: `had` bytes are readable at the old place, `size` writable at the new one, which was just given out.
    unsafe { copy_nonoverlapping(pointer.cast::<u8>(), moved.cast::<u8>(), had.min(size)) };
    Region::free(pointer);
    moved
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    match large(size, align) {
        Some(fresh) => fresh.pointer,
        None => real::memalign(align, size),
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    match large(size, align) {
        Some(fresh) => fresh.pointer,
        None => real::aligned_alloc(align, size),
    }
}

/// As the C library's.
///
/// # Safety
/// `to` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    to: *mut *mut c_void,
    align: size_t,
    size: size_t,
) -> c_int {
    let valid = align.is_power_of_two() && align.is_multiple_of(size_of::<*mut c_void>());
    match valid.then(|| large(size, align)).flatten() {
        Some(fresh) => {
            // SAFETY: the caller's promise.
            unsafe { to.write(fresh.pointer) };
            0
        }
        // SAFETY: the caller's promise.
        None => unsafe { real::posix_memalign(to, align, size) },
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: size_t) -> *mut c_void {
    match large(size, 1) {
        Some(fresh) => fresh.pointer,
        None => real::valloc(size),
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    match large(size, 1) {
        Some(fresh) => fresh.pointer,
        None => real::pvalloc(size),
    }
}

/// As the C library's.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> size_t {
    if region::contains(pointer) {
        Region::usable_size(pointer)
    } else {
        // SAFETY: the caller's promise; it is the next allocator's, or null.
        unsafe { real::usable_size(pointer) }
    }
}
