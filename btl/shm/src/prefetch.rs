// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking for cache lines ahead of need.
//!
//! # Safety
//! A prefetch is a hint: it accesses no memory as far as the program can tell, and never faults, whatever the address.
#![allow(unsafe_code, reason = "an instruction that has no safe form")]

use crate::layout::LINE;
use std::ptr::NonNull;

/// Keeps what is asked for after it behind the stores before it.
///
/// A processor asks for such lines while stores before wait for theirs. Those of a message that was just sent would
/// come later for it, and so to its receiver. Nothing else orders hints: a locked instruction, with which the compiler
/// makes a fence, lets them pass.
#[inline]
pub fn after_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has the instruction; it changes no memory.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
}

/// Asks for the cache line of `pointer` for writing, ahead of need.
#[inline(always)]
pub fn for_write<T>(pointer: NonNull<T>) {
    for_write_at(pointer.as_ptr().cast());
}

/// As [`for_write`].
#[inline(always)]
pub(crate) fn for_write_at(pointer: *mut u8) {
    // The intrinsic becomes a prefetch for reading, which is worse than none, unless the target is known to have
    // `prefetchw`. All 64-bit processors accept the instruction; those that cannot do it do nothing.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// Asks for the cache line of `pointer` for reading, ahead of need.
#[inline(always)]
pub fn for_read<T>(pointer: NonNull<T>) {
    for_read_at(pointer.as_ptr().cast());
}

/// As [`for_read`].
#[inline(always)]
pub(crate) fn for_read_at(pointer: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            pointer.cast_const().cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// Asks for the lines of `len` bytes from `pointer` on for reading, ahead of need.
#[inline]
pub fn range_for_read(pointer: NonNull<u8>, len: usize) {
    each_line(pointer, len, for_read_at);
}

/// Asks for the lines of `len` bytes from `pointer` on for writing, ahead of need.
#[inline]
pub fn range_for_write(pointer: NonNull<u8>, len: usize) {
    each_line(pointer, len, for_write_at);
}

#[inline(always)]
fn each_line(pointer: NonNull<u8>, len: usize, ask: impl Fn(*mut u8)) {
    // A `step_by` has more instructions for each line than this has for all of a short range.
    let mut line = 0;
    while line < len {
        ask(pointer.as_ptr().wrapping_add(line));
        line += LINE;
    }
}
