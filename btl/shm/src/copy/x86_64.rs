// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of this processor. Safety: see [`super`].

use crate::layout::LINE;
use crate::prefetch;
use std::arch::asm;
use std::arch::x86_64::{
    __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256,
    _mm512_loadu_si512, _mm512_storeu_si512,
};
use std::ptr;

pub(super) fn has_vectors() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Whether vectors of a cache line cost no more than others. The first processors with AVX-512 slow down for all code
/// that follows. Those that do not have this later extension, too: Ice Lake, Zen 4, and their successors.
pub(super) fn has_wide_vectors() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vbmi2")
}

/// Vectors that are moved at a time. Chosen by magnitude: four loads hide one another's wait, and need few registers.
const LANES: usize = 4;
/// Bytes of a vector.
const NARROW: usize = 32;
const WIDE: usize = 64;
/// Bytes of [`LANES`] narrow ones.
const STEP: usize = LANES * NARROW;

/// Where the second step of `LANES` vectors begins: at a place from which on no store crosses a cache line. Stores that
/// do take twice as long. The steps behind it follow each other: what each would have to find out takes longer than a
/// step.
#[inline]
fn second<const VECTOR: usize>(to: *mut u8) -> usize {
    LANES * VECTOR - to.addr() % VECTOR
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`], with `len >= STEP` and AVX2 present.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
    let step = |offset: usize| {
        // SAFETY: `in_steps` gives offsets of steps within the range.
        unsafe { step(to.wrapping_add(offset), from.wrapping_add(offset)) };
    };
    in_steps::<NARROW>(to, len, step);
}

/// As [`vectors`], by those of a whole cache line.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`], with `len >= 2 * STEP` and AVX-512 present.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn wide_vectors(to: *mut u8, from: *const u8, len: usize) {
    let step = |offset: usize| {
        // SAFETY: `in_steps` gives offsets of steps within the range.
        unsafe { wide_step(to.wrapping_add(offset), from.wrapping_add(offset)) };
    };
    in_steps::<WIDE>(to, len, step);
}

/// Calls `step` with the offset of each step of `LANES` vectors, in order. The second step and the last may overlap
/// those before them. There is room for one step at least.
#[inline(always)]
fn in_steps<const VECTOR: usize>(to: *mut u8, len: usize, step: impl Fn(usize)) {
    let last = len - LANES * VECTOR;
    step(0);
    let mut offset = second::<VECTOR>(to);
    while offset < last {
        step(offset);
        offset += LANES * VECTOR;
    }
    step(last);
}

/// How far ahead lines are asked for: so many at first, then one for each that is copied. With 16 lines 8 KiB from
/// a far processor take longer, with 48 16 KiB from a near one do (docs/performance.md).
const AHEAD: usize = 32 * LINE;
const _: () = assert!(super::AHEAD_MIN >= AHEAD + STEP);

/// As [`vectors`], behind prefetches of the source, which take its lines over if `OWN`. None goes behind the end:
/// such a line may be another message's, whose sender writes it. Stores are aligned if `ALIGN`.
///
/// # Safety
/// As [`vectors`], with `len >= AHEAD + STEP`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn vectors_ahead<const OWN: bool, const ALIGN: bool>(
    to: *mut u8,
    from: *const u8,
    len: usize,
) {
    let ask = |offset: usize| {
        let pointer = from.wrapping_add(offset).cast_mut();
        if OWN {
            prefetch::for_write_at(pointer);
        } else {
            prefetch::for_read_at(pointer);
        }
    };
    // The compiler unrolls it.
    for line in 0..AHEAD / LINE {
        ask(line * LINE);
    }
    ask(AHEAD);
    ask(AHEAD + LINE);
    // SAFETY: STEP <= len.
    unsafe { step(to, from) };
    let mut offset = if ALIGN { second::<NARROW>(to) } else { STEP };
    while offset + AHEAD + STEP <= len {
        ask(offset + AHEAD);
        ask(offset + AHEAD + LINE);
        // SAFETY: offset + STEP <= len.
        unsafe { step(to.wrapping_add(offset), from.wrapping_add(offset)) };
        offset += STEP;
    }
    // SAFETY: AHEAD bytes at least are left, which is more than a step.
    unsafe {
        vectors(
            to.wrapping_add(offset),
            from.wrapping_add(offset),
            len - offset,
        )
    }
}

/// Moves `STEP` bytes.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`] of so many bytes, with AVX2 present.
#[target_feature(enable = "avx2")]
#[inline]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "loads and stores are unaligned ones"
)]
unsafe fn step(to: *mut u8, from: *const u8) {
    let (source, target) = (from.cast::<__m256i>(), to.cast::<__m256i>());
    let mut lanes = [source; LANES];
    for (lane, place) in lanes.iter_mut().enumerate() {
        // SAFETY: lane * 32 + 32 <= STEP.
        *place = unsafe { source.add(lane) };
    }
    // SAFETY: unaligned loads within the range.
    let values = lanes.map(|place| unsafe { _mm256_loadu_si256(place) });
    for (lane, value) in values.into_iter().enumerate() {
        // SAFETY: as above.
        let place = unsafe { target.add(lane) };
        // SAFETY: unaligned store within the range.
        unsafe { _mm256_storeu_si256(place, value) };
    }
}

/// Moves `LANES` wide vectors.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`] of so many bytes, with AVX-512 present.
#[target_feature(enable = "avx512f")]
#[inline]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "loads and stores are unaligned ones"
)]
unsafe fn wide_step(to: *mut u8, from: *const u8) {
    let (source, target) = (from.cast::<__m512i>(), to.cast::<__m512i>());
    let mut lanes = [source; LANES];
    for (lane, place) in lanes.iter_mut().enumerate() {
        // SAFETY: lane < LANES.
        *place = unsafe { source.add(lane) };
    }
    // SAFETY: unaligned loads within the range.
    let values = lanes.map(|place| unsafe { _mm512_loadu_si512(place) });
    for (lane, value) in values.into_iter().enumerate() {
        // SAFETY: as above.
        let place = unsafe { target.add(lane) };
        // SAFETY: unaligned store within the range.
        unsafe { _mm512_storeu_si512(place, value) };
    }
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn rep_movsb(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the ABI keeps the direction flag clear; the caller promises both ranges.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _, options(nostack, preserves_flags));
    }
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn non_temporal(to: *mut u8, from: *const u8, len: usize) {
    if len < 256 || !is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise.
        return unsafe { ptr::copy_nonoverlapping(from, to, len) };
    }
    // SAFETY: avx2 was found; the caller's promise.
    unsafe { stream_avx2(to, from, len) }
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`], with `len >= 32` and AVX2 present.
#[target_feature(enable = "avx2")]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "the loads are unaligned ones, the stores are aligned by the lead"
)]
unsafe fn stream_avx2(to: *mut u8, from: *const u8, len: usize) {
    let lead = to.align_offset(32).min(len);
    // SAFETY: lead <= len.
    unsafe { ptr::copy_nonoverlapping(from, to, lead) };
    let mut offset = lead;
    while offset + 128 <= len {
        // SAFETY: offset + 128 <= len.
        let source = unsafe { from.add(offset) }.cast::<__m256i>();
        // SAFETY: as above.
        let target = unsafe { to.add(offset) }.cast::<__m256i>();
        for lane in 0..4 {
            // SAFETY: lane * 32 + 32 <= 128.
            let source = unsafe { source.add(lane) };
            // SAFETY: as above; unaligned load.
            let value = unsafe { _mm256_loadu_si256(source) };
            // SAFETY: as above.
            let target = unsafe { target.add(lane) };
            // SAFETY: `to + lead` is 32-aligned and so are all steps from it.
            unsafe { _mm256_stream_si256(target, value) };
        }
        offset += 128;
    }
    _mm_sfence();
    // SAFETY: offset <= len.
    let source = unsafe { from.add(offset) };
    // SAFETY: offset <= len.
    let target = unsafe { to.add(offset) };
    // SAFETY: the remainder of both ranges.
    unsafe { ptr::copy_nonoverlapping(source, target, len - offset) };
}
