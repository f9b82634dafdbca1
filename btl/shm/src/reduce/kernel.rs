// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loops. Blocks of elements are loaded by value, combined and stored, so no two accesses can alias. The compiler
//! makes vector code of them, in whatever instruction set the function around them has.
//!
//! # Safety
//! As [`crate::copy`]: raw pointers, because a side may be memory that another process writes at the same time. No
//! reference to it exists; elements are plain numbers, so a torn one is a number, too.
#![allow(
    unsafe_code,
    reason = "raw loads and stores of memory that peers write"
)]

use super::combine::Combine;

/// The places of a reduction, and the bytes of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    pub(super) dst: *mut u8,
    pub(super) a: *const u8,
    pub(super) b: *const u8,
    pub(super) bytes: usize,
}

/// The instruction set that a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isa {
    /// What every processor of the architecture has.
    Baseline,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The best that this processor has. The standard library looks once and remembers.
    #[inline]
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Self::Avx2;
        }
        Self::Baseline
    }
}

/// Combines one block of `N` elements.
///
/// # Safety
/// All three places are valid for `N` elements, and `dst` equals `a` or `b` or overlaps neither.
#[inline(always)]
unsafe fn block<T: Copy, O: Combine<T>, const N: usize>(dst: *mut T, a: *const T, b: *const T) {
    // SAFETY: the caller's promise.
    let x = unsafe { a.cast::<[T; N]>().read_unaligned() };
    // SAFETY: the caller's promise.
    let y = unsafe { b.cast::<[T; N]>().read_unaligned() };
    let mut result = x;
    for ((result, x), y) in result.iter_mut().zip(x).zip(y) {
        *result = O::combine(x, y);
    }
    // SAFETY: the caller's promise.
    unsafe { dst.cast::<[T; N]>().write_unaligned(result) };
}

/// Combines `count` elements from element `done` on, in blocks of `N`, and gives how many are done.
///
/// # Safety
/// All three places are valid for `count` elements, and `dst` equals `a` or `b` or overlaps neither.
#[inline(always)]
unsafe fn blocks<T: Copy, O: Combine<T>, const N: usize>(
    dst: *mut T,
    a: *const T,
    b: *const T,
    mut done: usize,
    count: usize,
) -> usize {
    while count - done >= N {
        // SAFETY: done + N <= count.
        let to = unsafe { dst.add(done) };
        // SAFETY: as above.
        let left = unsafe { a.add(done) };
        // SAFETY: as above.
        let right = unsafe { b.add(done) };
        // SAFETY: as above; places equal to one another stay so, and others stay apart.
        unsafe { block::<T, O, N>(to, left, right) };
        done += N;
    }
    done
}

/// Combines `count` elements: `WIDE` at a time, then `NARROW`, then one.
///
/// # Safety
/// As [`blocks`].
#[inline(always)]
unsafe fn all<T: Copy, O: Combine<T>, const WIDE: usize, const NARROW: usize>(
    dst: *mut T,
    a: *const T,
    b: *const T,
    from: usize,
    count: usize,
) {
    // SAFETY: the caller's promise.
    let done = unsafe { blocks::<T, O, WIDE>(dst, a, b, from, count) };
    // SAFETY: the caller's promise.
    let done = unsafe { blocks::<T, O, NARROW>(dst, a, b, done, count) };
    // SAFETY: the caller's promise.
    unsafe { blocks::<T, O, 1>(dst, a, b, done, count) };
}

/// Combines the whole elements in `bytes` bytes.
///
/// # Safety
/// As [`blocks`], whatever the alignment; the processor has `isa`.
#[inline]
pub(super) unsafe fn run<T: Copy, O: Combine<T>, const WIDE: usize, const NARROW: usize>(
    isa: Isa,
    operands: Operands,
) {
    let Operands { dst, a, b, bytes } = operands;
    let (dst, a, b) = (dst.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    let count = bytes / size_of::<T>();
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            // SAFETY: the processor has AVX2; the caller's promise.
            unsafe { x86::run::<T, O, WIDE, NARROW>(dst, a, b, count) };
        }
        Isa::Baseline => {
            // SAFETY: the caller's promise.
            unsafe { all::<T, O, WIDE, NARROW>(dst, a, b, 0, count) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::combine::Combine;
    use super::{all, block};
    use crate::prefetch;
    use std::ptr::NonNull;

    /// # Safety
    /// As [`super::run`], with AVX2 present.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn run<T: Copy, O: Combine<T>, const WIDE: usize, const NARROW: usize>(
        dst: *mut T,
        a: *const T,
        b: *const T,
        count: usize,
    ) {
        // SAFETY: the caller's promise.
        let done = unsafe { fetching::<T, O, WIDE>(dst, a, b, count) };
        // SAFETY: the caller's promise; done <= count.
        unsafe { all::<T, O, WIDE, NARROW>(dst, a, b, done, count) };
    }

    /// Bytes before their need that lines of the result are asked for. Allreduces of 64 KiB of plain memory take 10.4
    /// instead of 11.5 us (A, 11-22; docs/performance.md, "Collectives").
    const AHEAD: usize = 1024;

    /// Combines blocks of `WIDE` elements as long as [`AHEAD`] bytes follow, and gives how many elements are done. A
    /// peer may have read the result of the time before: its lines come back while those before them are combined.
    ///
    /// # Safety
    /// As [`super::run`], with AVX2 present.
    #[target_feature(enable = "avx2")]
    unsafe fn fetching<T: Copy, O: Combine<T>, const WIDE: usize>(
        dst: *mut T,
        a: *const T,
        b: *const T,
        count: usize,
    ) -> usize {
        let mut done = 0;
        while count - done >= WIDE + AHEAD / size_of::<T>() {
            // SAFETY: done + WIDE <= count.
            let to = unsafe { dst.add(done) };
            // SAFETY: the block and AHEAD bytes behind it lie within the place.
            let next = unsafe { to.cast::<u8>().add(AHEAD) };
            if let Some(next) = NonNull::new(next) {
                prefetch::range_for_write(next, WIDE * size_of::<T>());
            }
            // SAFETY: done + WIDE <= count.
            let left = unsafe { a.add(done) };
            // SAFETY: as above.
            let right = unsafe { b.add(done) };
            // SAFETY: the caller's promise.
            unsafe { block::<T, O, WIDE>(to, left, right) };
            done += WIDE;
        }
        done
    }
}
