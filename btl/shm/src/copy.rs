// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy kernels: how bytes move between memory of the program and memory that is shared.
//!
//! Three kernels for large copies: the C library's `memcpy`, non-temporal stores (which leave the destination out of
//! the cache) and `rep movsb`. Two that prefetch, for lines that another processor has just written. Which is best from
//! which size depends on the machine and is a matter of calibration, so the choice is data ([`CopyPlan`]). Copies of up
//! to 128 bytes are done in place with a few moves.
//!
//! # Safety
//! Every function takes raw pointers because one side may be memory that another process writes at the same time: no
//! reference may exist to it. The bytes then may be torn, which callers accept: such bytes are payload, or are checked
//! after the copy. Callers guarantee that both ranges are mapped and do not overlap.
#![allow(unsafe_code, reason = "raw copies to and from memory that peers write")]

#[cfg(target_arch = "x86_64")]
#[path = "copy/x86_64.rs"]
mod arch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "copy/other.rs"]
mod arch;

use crate::layout::{LINE, PAGE};
use std::ptr;
use std::time::Instant;

/// What is known of the string instruction: hints of this process, which order nothing.
mod hint {
    use crate::sync::{AtomicBool, Ordering};

    static VECTORS: AtomicBool = AtomicBool::new(false);
    static SLOW_STRINGS: AtomicBool = AtomicBool::new(false);
    static PROBED: AtomicBool = AtomicBool::new(false);

    /// Whether it is slow between some addresses ([`super::is_slow_for_strings`]).
    #[inline]
    pub(super) fn slow_strings() -> bool {
        SLOW_STRINGS.load(Ordering::Relaxed)
    }

    /// Whether that is known.
    pub(super) fn is_probed() -> bool {
        PROBED.load(Ordering::Relaxed)
    }

    pub(super) fn set_slow_strings(on: bool) {
        SLOW_STRINGS.store(on, Ordering::Relaxed);
        PROBED.store(true, Ordering::Relaxed);
    }

    /// Whether copies of [`super::BY_VECTORS`] bytes keep from it.
    #[inline]
    pub(super) fn vectors() -> bool {
        VECTORS.load(Ordering::Relaxed)
    }

    pub(super) fn set_vectors(on: bool) {
        VECTORS.store(on, Ordering::Relaxed);
    }
}

/// Copies of so many bytes are made by vectors where that is asked for. They begin where the C library changes to the
/// string instruction on processors of AMD, at 2112 bytes (B, Zen 5, 11-22). By vectors 3 KiB near take 0.16 instead of
/// 0.21 us, 8 KiB 0.29 instead of 0.52. They end where the string instruction pays: 16 KiB near take 0.60 us by it, and
/// 0.62 by vectors (docs/performance.md, "Chunks on processors whose strings take lines").
const BY_VECTORS: std::ops::Range<usize> = 2048..16 << 10;
/// Copies of so many bytes that [`Kernel::Memcpy`] makes go by vectors, from the first byte to the last.
///
/// The C library copies backwards where the destination lies at the source's place in a page or just behind it. Else it
/// goes forwards, but writes the first line last. So a sender wrote lines in one order, and its receiver asked for them
/// in another. 2 KiB take 0.46 instead of 0.63 us, 4 KiB 0.70 instead of 0.75. Above, its wider vectors gain more: 8000
/// bytes take 1.05 by them, 1.14 by these (A, near, 11-29; docs/performance.md, "In the order in which lines are
/// written").
const FORWARDS: std::ops::RangeInclusive<usize> = 640..=4096;
/// Copies of so many bytes that [`Kernel::Memcpy`] makes go by vectors of a whole cache line. That holds where the
/// processor has them and strings are slow to take lines. The C library goes by strings from 8 KiB on: 8 KiB take 1.22
/// there and back by them, 1.11 by these (A, near, 11-29). Below 2 KiB the shorter steps of [`FORWARDS`] gain more: 1
/// KiB takes 0.37 by them, 0.44 by these.
const WIDE: std::ops::RangeInclusive<usize> = 2048..=8192;
/// Fewer bytes are never copied by the string instruction, which takes longer to begin. A message in many short pieces
/// of the program's memory consists of such copies. It is where its processors' vectors begin ([`BY_VECTORS`]); by
/// itself it was not measured.
const BY_STRING_MIN: usize = BY_VECTORS.start;

/// Says whether [`Kernel::Memcpy`] is to avoid the string instruction for short copies, where it starts slowly, in this
/// process.
pub fn prefer_vectors(on: bool) {
    hint::set_vectors(on && arch::has_vectors());
}

/// Whether vectors are preferred, as [`prefer_vectors`] last set.
#[must_use]
pub fn prefers_vectors() -> bool {
    hint::vectors()
}

/// Whether the string instruction, and so the C library and the kernel, copies slowly between these addresses here.
///
/// Some processors copy slowly by `rep movsb` where the destination lies less than a line behind the source, modulo a
/// page. They take it for memory that overlaps, and copy byte by byte: 15 to 30 times slower on a Zen 3. Large buffers
/// of `malloc` are an example: they begin 16 bytes behind a page, and a chunk at one (docs/performance.md).
#[inline]
#[must_use]
pub fn is_slow_for_strings(to: usize, from: usize) -> bool {
    let behind = to.wrapping_sub(from) % PAGE;
    behind.wrapping_sub(1) < LINE - 1 && hint::slow_strings()
}

/// Measures whether this processor's string instruction is slow there, once in a process: 23 µs where it is, else two.
pub fn probe_strings() {
    if !hint::is_probed() {
        assume_slow_strings(are_strings_slow());
    }
}

/// Sets the result of [`probe_strings`], for tests.
pub fn assume_slow_strings(on: bool) {
    hint::set_slow_strings(on && arch::has_vectors());
}

/// Whether the string instruction is known to be slow between some addresses here.
#[must_use]
pub fn has_slow_strings() -> bool {
    hint::slow_strings()
}

fn are_strings_slow() -> bool {
    const LEN: usize = PAGE;
    /// Copies of a sample, and samples: one that nothing interrupts is enough. With a page each that is some ten
    /// microseconds in all (docs/performance.md, "Addresses between which strings are slow").
    const COPIES: usize = 4;
    const SAMPLES: usize = 4;
    /// Other processors are slowed by far less than this factor, those with slow strings by far more. On G a page takes
    /// 1376 ns there instead of 51 (11-28).
    const SLOWER: u32 = 4;
    let from = vec![1u8; LEN];
    let mut to = vec![0u8; LEN + 2 * PAGE];
    let congruent = from.as_ptr().addr().wrapping_sub(to.as_ptr().addr()) % PAGE;
    let mut fastest = |behind: usize| {
        let to = &mut to[congruent + behind..][..LEN];
        let sample = || {
            let begun = Instant::now();
            for _ in 0..COPIES {
                // SAFETY: slices of this length; an exclusive and a shared one do not overlap.
                unsafe { arch::rep_movsb(to.as_mut_ptr(), from.as_ptr(), LEN) };
            }
            begun.elapsed()
        };
        std::iter::repeat_with(sample).take(SAMPLES).min()
    };
    matches!((fastest(16), fastest(0)), (Some(behind), Some(congruent)) if behind > congruent * SLOWER)
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[inline]
unsafe fn memcpy(to: *mut u8, from: *const u8, len: usize) {
    if len < *FORWARDS.start() {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { memcpy_long(to, from, len) }
    }
}

/// As [`memcpy`] from where [`FORWARDS`] begins. Out of line: most copies are short.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[inline(never)]
unsafe fn memcpy_long(to: *mut u8, from: *const u8, len: usize) {
    let forwards = FORWARDS.contains(&len) && arch::has_vectors();
    let slow_string = BY_VECTORS.contains(&len) && hint::vectors();
    if WIDE.contains(&len) && !hint::vectors() && arch::has_wide_vectors() {
        // SAFETY: the caller's promise; such a length is above 256, and the processor has such vectors.
        unsafe { arch::wide_vectors(to, from, len) }
    } else if forwards || slow_string || is_slow_for_strings(to.addr(), from.addr()) {
        // SAFETY: the caller's promise; such a length is above 128. `forwards` asks whether the processor has the
        // vectors, and the hints are only given where it has.
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
    /// The string instruction `rep movsb`, from 2 KiB on; `Memcpy` below. Vectors between addresses where it is slow.
    RepMovsb,
    /// Vectors behind prefetches of the source, where vectors are preferred ([`prefer_vectors`]); else `Memcpy`. For a
    /// source whose lines another processor has.
    Ahead,
    /// As [`Self::Ahead`], of lines that this rank writes next: they are taken over as they are read.
    AheadOwning,
}

/// Fewer bytes are copied without prefetches: loads that wait for their lines go side by side. With 1 KiB, B takes
/// longer near: 2 KiB 0.162 instead of 0.152 us. With 2 KiB, G far takes up to 0.97 instead of 0.71 us for 2 KiB. Both
/// are with returned chunks from there on (11-27; docs/performance.md, "Answer in the chunks that were read").
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
        Kernel::RepMovsb if !is_slow_for_strings(to.addr(), from.addr()) => unsafe {
            arch::rep_movsb(to, from, len)
        },
        Kernel::RepMovsb if len >= AHEAD_MIN => {
            // SAFETY: the caller's promise; the processor has vectors where its strings are known to be slow.
            unsafe { arch::vectors_ahead::<false, true>(to, from, len) }
        }
        Kernel::Ahead if len >= AHEAD_MIN && hint::vectors() => {
            // SAFETY: the caller's promise. The hint is only given where the processor has the vectors, and so many
            // bytes are more than the first prefetches and a step.
            unsafe { arch::vectors_ahead::<false, false>(to, from, len) }
        }
        Kernel::AheadOwning if len >= AHEAD_MIN && hint::vectors() => {
            // SAFETY: as above.
            unsafe { arch::vectors_ahead::<true, false>(to, from, len) }
        }
        // SAFETY: the caller's promise.
        Kernel::RepMovsb | Kernel::Ahead | Kernel::AheadOwning => unsafe { memcpy(to, from, len) },
    }
}

/// As [`copy`], of ranges that may overlap. Those that do are copied by the C library.
///
/// # Safety
/// Both ranges are valid for `len` bytes, `to` for writes.
#[inline]
pub unsafe fn copy_overlapping(kernel: Kernel, to: *mut u8, from: *const u8, len: usize) {
    if to.addr().abs_diff(from.addr()) >= len {
        // SAFETY: the caller's promise; the ranges lie apart.
        unsafe { copy(kernel, to, from, len) }
    } else {
        // SAFETY: the caller's promise; this copy minds overlaps.
        unsafe { ptr::copy(from, to, len) }
    }
}

/// Copies between two slices of the same length with `kernel`. Unlike [`slice::copy_from_slice`]
/// it avoids strings between addresses where they are slow.
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

/// Moves the cache lines of `len` bytes from `pointer` on, which were written just now. They go to where other
/// processors fetch them sooner than from this one's own cache. A hint; processors that do not know it do nothing.
#[inline]
pub fn demote_range(pointer: ptr::NonNull<u8>, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(LINE) {
        let line = pointer.as_ptr().wrapping_add(line);
        // SAFETY: a hint: it changes no memory as far as the program can tell, never faults, and is a no-op where it is
        // not known.
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (pointer, len);
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
    // One word is the most usual length, and the next ones follow. Nothing is usual, too: tested last, it cost a
    // message and its receive 27 instructions.
    if len >= 8 {
        match len {
            8..=16 => two!(u64),
            17..=32 => two!(u128),
            33..=64 => two!([u128; 2]),
            // SAFETY: the caller's promise.
            _ => unsafe { memcpy(to, from, len) },
        }
    } else if len >= 4 {
        two!(u32);
    } else if len >= 2 {
        two!(u16);
    } else if len == 1 {
        // SAFETY: len == 1.
        let byte = unsafe { from.read() };
        // SAFETY: len == 1.
        unsafe { to.write(byte) };
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
                511, 512, 513, 639, 640, 641, 1000, 1400, 2047, 2048, 2049, 2113, 3071, 3072, 3073,
                3200, 4096, 4097, 4160,
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
        let check = |len: usize, shift: usize, copy: unsafe fn(*mut u8, *const u8, usize)| {
            let mut target = vec![0xAA; 17_000];
            let to = target[shift..].as_mut_ptr();
            // SAFETY: both vectors have more bytes; the feature was found.
            unsafe { copy(to, source[3..].as_ptr(), len) };
            assert_eq!(&target[shift..shift + len], &source[3..3 + len]);
            let rest = target[..shift].iter().chain(&target[shift + len..]);
            assert!(rest.into_iter().all(|&b| b == 0xAA), "{len} wrote outside");
        };
        for len in (128..900).chain([2048, 4095, 4096, 4097, 8192, 16_383]) {
            for shift in [0, 1, 31, 63] {
                // SAFETY: as this kernel demands.
                check(len, shift, |to, from, len| unsafe {
                    arch::vectors(to, from, len)
                });
                if arch::has_wide_vectors() && len >= 256 {
                    // SAFETY: as this kernel demands.
                    check(len, shift, |to, from, len| unsafe {
                        arch::wide_vectors(to, from, len)
                    });
                }
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

    /// Where the string instruction would be slow, vectors copy: the same bytes, and no others.
    #[test]
    fn what_lies_just_behind_its_source_is_copied() {
        const MOST: usize = 20_000;
        let source: Vec<u8> = (0..MOST as u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut target = vec![0xAA; MOST + 2 * PAGE];
        let congruent = source.as_ptr().addr().wrapping_sub(target.as_ptr().addr()) % PAGE;
        let all = [
            Kernel::Memcpy,
            Kernel::RepMovsb,
            Kernel::Ahead,
            Kernel::AheadOwning,
        ];
        probe_strings();
        let found = hint::slow_strings();
        for on in [true, false] {
            assume_slow_strings(on);
            for kernel in all {
                for behind in [0, 1, 16, 63, 64] {
                    for len in [2047, 2048, 3071, 3072, 4097, 16_384, MOST] {
                        target.fill(0xAA);
                        let begin = congruent + behind;
                        let to = target[begin..].as_mut_ptr();
                        let is_slow = is_slow_for_strings(to.addr(), source.as_ptr().addr());
                        assert_eq!(is_slow, hint::slow_strings() && (1..64).contains(&behind));
                        copy_slices(kernel, &mut target[begin..][..len], &source[..len]);
                        assert_eq!(target[begin..][..len], source[..len]);
                        let mut rest = target[..begin].iter().chain(&target[begin + len..]);
                        assert!(rest.all(|&byte| byte == 0xAA), "{len} wrote outside");
                    }
                }
            }
        }
        hint::set_slow_strings(found);
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
