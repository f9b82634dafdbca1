// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy kernels: how bytes move between memory of the program and memory that is shared.
//!
//! Three kernels for large copies: the C library's `memcpy`, non-temporal stores (which leave the destination out of
//! the cache) and `rep movsb`. One for copies of some KiB from memory that another processor has just written. Which is
//! best from which size depends on the machine and is a matter of calibration, so the choice is data ([`CopyPlan`]).
//! Copies of up to 128 bytes are done in place with a few moves.
//!
//! # Safety
//! Every function takes raw pointers because one side may be memory that another process writes at the same time: no
//! reference may exist to it. The bytes then may be torn, which callers accept: such bytes are payload, or are checked
//! after the copy. Callers guarantee that both ranges are mapped and do not overlap.
#![allow(unsafe_code, reason = "raw copies to and from memory that peers write")]

use std::ptr;

/// Whether copies of [`BY_VECTORS`] bytes keep from the string instruction: a hint of this process, which orders
/// nothing.
mod hint {
    use crate::sync::{AtomicBool, Ordering};

    static VECTORS: AtomicBool = AtomicBool::new(false);

    #[inline]
    pub(super) fn vectors() -> bool {
        VECTORS.load(Ordering::Relaxed)
    }

    pub(super) fn set_vectors(on: bool) {
        VECTORS.store(on, Ordering::Relaxed);
    }
}

/// Copies of so many bytes are made by vectors where that is asked for. They begin where the C library changes to the
/// string instruction on processors of AMD. They end where the string instruction pays.
const BY_VECTORS: std::ops::Range<usize> = 2048..16 << 10;
/// Fewer bytes are never copied by the string instruction, which takes longer to begin. A message in many short pieces
/// of the program's memory consists of such copies.
const BY_STRING_MIN: usize = 2048;

/// Says whether [`Kernel::Memcpy`] is to keep from the string instruction where that begins too slowly, in this
/// process.
pub fn prefer_vectors(on: bool) {
    hint::set_vectors(on && arch::has_vectors());
}

/// What was said last.
#[must_use]
pub fn prefers_vectors() -> bool {
    hint::vectors()
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[inline]
unsafe fn memcpy(to: *mut u8, from: *const u8, len: usize) {
    if BY_VECTORS.contains(&len) && hint::vectors() {
        // SAFETY: the caller's promise; such a length is above 128, and the hint is only given where the processor has
        // the vectors.
        unsafe { arch::vectors(to, from, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }
}

/// A way to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The C library's `memcpy`, or vectors where it is known to choose badly ([`prefer_vectors`]).
    Memcpy,
    /// Vector loads and non-temporal stores.
    NonTemporal,
    /// The string instruction `rep movsb`, from 2 KiB on; `Memcpy` below.
    RepMovsb,
    /// Vectors behind prefetches of the source, where vectors are preferred ([`prefer_vectors`]); else `Memcpy`. For a
    /// source whose lines another processor has.
    Ahead,
    /// As [`Self::Ahead`], of lines that this rank writes next: they are taken over as they are read.
    AheadOwning,
}

/// Fewer bytes are copied without prefetches: loads that wait for their lines go side by side (docs/performance.md).
pub const AHEAD_MIN: usize = 3 << 10;

/// Which kernel copies what, decided once per machine.
#[derive(Debug, Clone, Copy)]
pub struct CopyPlan {
    /// Kernel below `nt_min` bytes.
    pub small: Kernel,
    /// From this size on non-temporal stores are used; `usize::MAX` for never.
    pub nt_min: usize,
}

impl Default for CopyPlan {
    fn default() -> Self {
        Self {
            small: Kernel::Memcpy,
            nt_min: usize::MAX,
        }
    }
}

impl CopyPlan {
    /// The kernel for a transfer of `transfer` bytes in all.
    #[inline]
    #[must_use]
    pub fn kernel(&self, transfer: usize) -> Kernel {
        if transfer >= self.nt_min {
            Kernel::NonTemporal
        } else {
            self.small
        }
    }
}

/// Copies `len` bytes from `from` to `to` with `kernel`.
///
/// # Safety
/// Both ranges are valid for `len` bytes, `to` for writes, and do not overlap.
#[inline]
pub unsafe fn copy(kernel: Kernel, to: *mut u8, from: *const u8, len: usize) {
    match kernel {
        // SAFETY: the caller's promise.
        Kernel::Memcpy => unsafe { memcpy(to, from, len) },
        // SAFETY: the caller's promise.
        Kernel::NonTemporal => unsafe { arch::non_temporal(to, from, len) },
        // SAFETY: the caller's promise.
        Kernel::RepMovsb if len < BY_STRING_MIN => unsafe { memcpy(to, from, len) },
        // SAFETY: the caller's promise.
        Kernel::RepMovsb => unsafe { arch::rep_movsb(to, from, len) },
        Kernel::Ahead if len >= AHEAD_MIN && hint::vectors() => {
            // SAFETY: the caller's promise; the hint is only given where the processor has the vectors, and so many
            // bytes are more than the first prefetches and a step.
            unsafe { arch::vectors_ahead::<false>(to, from, len) }
        }
        Kernel::AheadOwning if len >= AHEAD_MIN && hint::vectors() => {
            // SAFETY: as above.
            unsafe { arch::vectors_ahead::<true>(to, from, len) }
        }
        // SAFETY: the caller's promise.
        Kernel::Ahead | Kernel::AheadOwning => unsafe { memcpy(to, from, len) },
    }
}

/// Copies between two slices of the same length with `kernel`, so that kernels can be compared.
///
/// # Panics
/// If the lengths differ.
pub fn copy_slices(kernel: Kernel, to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    // SAFETY: slices are valid for their length; an exclusive and a shared one do not overlap.
    unsafe { copy(kernel, to.as_mut_ptr(), from.as_ptr(), from.len()) };
}

/// Copies a slice to raw memory; fast for a few bytes.
///
/// # Safety
/// `to` is valid for writes of `bytes.len()` bytes that do not overlap `bytes`.
#[inline(always)]
pub unsafe fn copy_to_raw(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's promise; a slice is valid for its length.
    unsafe { copy_short(to, bytes.as_ptr(), bytes.len()) }
}

/// Copies raw memory to a slice; fast for a few bytes.
///
/// # Safety
/// `from` is valid for reads of `out.len()` bytes that do not overlap `out`.
#[inline(always)]
pub unsafe fn copy_from_raw(from: *const u8, out: &mut [u8]) {
    // SAFETY: the caller's promise; a slice is valid for its length.
    unsafe { copy_short(out.as_mut_ptr(), from, out.len()) }
}

/// Moves the cache lines of `len` bytes from `at` on, which were written just now. They go to where other processors
/// fetch them sooner than from this one's own cache. A hint; processors that do not know it do nothing.
#[inline]
pub fn demote_range(at: ptr::NonNull<u8>, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(crate::layout::LINE) {
        let line = at.as_ptr().wrapping_add(line);
        // SAFETY: a hint: it changes no memory as far as the program can tell, never faults, and is a no-op where it is
        // not known.
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, len: usize) {
    // Two moves that may overlap cover every length between one and two times their width.
    macro_rules! two {
        ($t:ty) => {{
            let width = size_of::<$t>();
            // SAFETY: len >= width, so the first and the last `width` bytes lie in both ranges.
            let first = unsafe { from.cast::<$t>().read_unaligned() };
            // SAFETY: as above.
            let last_at = unsafe { from.add(len - width) };
            // SAFETY: as above.
            let last = unsafe { last_at.cast::<$t>().read_unaligned() };
            // SAFETY: as above.
            unsafe { to.cast::<$t>().write_unaligned(first) };
            // SAFETY: as above.
            let to_last = unsafe { to.add(len - width) };
            // SAFETY: as above.
            unsafe { to_last.cast::<$t>().write_unaligned(last) };
        }};
    }
    match len {
        0 => {}
        1 => {
            // SAFETY: len == 1.
            let byte = unsafe { from.read() };
            // SAFETY: len == 1.
            unsafe { to.write(byte) };
        }
        2..=3 => two!(u16),
        4..=7 => two!(u32),
        8..=15 => two!(u64),
        16..=32 => two!(u128),
        33..=64 => two!([u128; 2]),
        // SAFETY: the caller's promise.
        _ => unsafe { memcpy(to, from, len) },
    }
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::layout::LINE;
    use crate::prefetch;
    use std::arch::asm;
    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_storeu_si256,
        _mm256_stream_si256,
    };
    use std::ptr;

    pub(super) fn has_vectors() -> bool {
        is_x86_feature_detected!("avx2")
    }

    /// Bytes that are moved at a time.
    const STEP: usize = 128;

    /// # Safety
    /// As [`ptr::copy_nonoverlapping`], with `len >= STEP` and AVX2 present.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
        // The last step may overlap the one before.
        let last = len - STEP;
        let mut at = 0;
        loop {
            // SAFETY: at + STEP <= len.
            unsafe { step(to.wrapping_add(at), from.wrapping_add(at)) };
            if at == last {
                return;
            }
            at = (at + STEP).min(last);
        }
    }

    /// How far ahead lines are asked for: so many at first, then one for each that is copied. With 16 lines 8 KiB from
    /// a far processor take longer, with 48 16 KiB from a near one do (docs/performance.md).
    const AHEAD: usize = 32 * LINE;
    const _: () = assert!(super::AHEAD_MIN >= AHEAD + STEP);

    /// As [`vectors`], behind prefetches of the source, which take its lines over if `OWN`. None goes behind the end:
    /// such a line may be another message's, whose sender writes it.
    ///
    /// # Safety
    /// As [`vectors`], with `len >= AHEAD + STEP`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn vectors_ahead<const OWN: bool>(to: *mut u8, from: *const u8, len: usize) {
        let ask = |at: usize| {
            let at = from.wrapping_add(at);
            if OWN {
                prefetch::for_write_at(at.cast_mut());
            } else {
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }
        };
        // The compiler unrolls it.
        for line in 0..AHEAD / LINE {
            ask(line * LINE);
        }
        let mut at = 0;
        while at + AHEAD + STEP <= len {
            ask(at + AHEAD);
            ask(at + AHEAD + LINE);
            // SAFETY: at + STEP <= len.
            unsafe { step(to.wrapping_add(at), from.wrapping_add(at)) };
            at += STEP;
        }
        // SAFETY: AHEAD bytes at least are left, which is more than a step.
        unsafe { vectors(to.wrapping_add(at), from.wrapping_add(at), len - at) }
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
        let mut lanes = [source; STEP / 32];
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
        let mut at = lead;
        while at + 128 <= len {
            // SAFETY: at + 128 <= len.
            let source = unsafe { from.add(at) }.cast::<__m256i>();
            // SAFETY: as above.
            let target = unsafe { to.add(at) }.cast::<__m256i>();
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
            at += 128;
        }
        _mm_sfence();
        // SAFETY: at <= len.
        let source = unsafe { from.add(at) };
        // SAFETY: at <= len.
        let target = unsafe { to.add(at) };
        // SAFETY: the remainder of both ranges.
        unsafe { ptr::copy_nonoverlapping(source, target, len - at) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use std::ptr;

    pub(super) fn has_vectors() -> bool {
        false
    }

    /// # Safety
    /// As [`ptr::copy_nonoverlapping`].
    pub(super) unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }

    /// # Safety
    /// As [`ptr::copy_nonoverlapping`].
    pub(super) unsafe fn vectors_ahead<const OWN: bool>(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }

    /// # Safety
    /// As [`ptr::copy_nonoverlapping`].
    pub(super) unsafe fn rep_movsb(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }

    /// # Safety
    /// As [`ptr::copy_nonoverlapping`].
    pub(super) unsafe fn non_temporal(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_copies_every_length() {
        const MOST: usize = 20_000;
        let source: Vec<u8> = (0..MOST as u32 + 100)
            .map(|i| (i * 7 + (i >> 8)) as u8)
            .collect();
        let before = prefers_vectors();
        let all = [
            Kernel::Memcpy,
            Kernel::NonTemporal,
            Kernel::RepMovsb,
            Kernel::Ahead,
        ];
        for (kernel, vectors) in all
            .into_iter()
            .flat_map(|kernel| [(kernel, false), (kernel, true)])
        {
            prefer_vectors(vectors);
            let long = [
                511, 512, 513, 1000, 1400, 2047, 2048, 2049, 2113, 3071, 3072, 3073, 3200, 4097,
                4160,
            ];
            for len in (0..300).chain(long).chain([8191, 16_383, 16_384, MOST]) {
                for shift in [0, 1, 5, 31] {
                    let mut target = vec![0xAA; MOST + 100];
                    // SAFETY: shift + len < MOST + 100.
                    let to = unsafe { target.as_mut_ptr().add(shift) };
                    // SAFETY: both vectors have MOST + 100 bytes.
                    unsafe { copy(kernel, to, source.as_ptr(), len) };
                    assert_eq!(&target[shift..shift + len], &source[..len]);
                    assert!(
                        target[..shift]
                            .iter()
                            .chain(&target[shift + len..])
                            .all(|&b| b == 0xAA),
                        "{kernel:?} {len} wrote outside"
                    );
                }
            }
        }
        prefer_vectors(before);
    }

    #[test]
    fn vectors_copy_every_length_and_nothing_else() {
        let source: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        if !arch::has_vectors() {
            return;
        }
        for len in (128..700).chain([2048, 4095, 4096, 4097, 16_383]) {
            for shift in [0, 1, 31] {
                let mut target = vec![0xAA; 17_000];
                let to = target[shift..].as_mut_ptr();
                // SAFETY: both vectors have more bytes; the feature was found.
                unsafe { arch::vectors(to, source[3..].as_ptr(), len) };
                assert_eq!(&target[shift..shift + len], &source[3..3 + len]);
                let rest = target[..shift].iter().chain(&target[shift + len..]);
                assert!(rest.into_iter().all(|&b| b == 0xAA), "{len} wrote outside");
            }
        }
        for on in [true, false] {
            prefer_vectors(on);
            for len in [2047, 2048, 9000, 16_383, 16_384] {
                let mut target = vec![0; len];
                copy_slices(Kernel::Memcpy, &mut target, &source[..len]);
                assert_eq!(target, source[..len]);
            }
        }
    }

    #[test]
    fn short_copies_are_exact() {
        let source: Vec<u8> = (1..=200).collect();
        for len in 0..=200 {
            let mut target = vec![0; 202];
            // SAFETY: 1 + len <= 201.
            unsafe { copy_to_raw(target[1..].as_mut_ptr(), &source[..len]) };
            assert_eq!(target[0], 0);
            assert_eq!(&target[1..=len], &source[..len]);
            assert_eq!(target[len + 1], 0);
        }
    }
}
