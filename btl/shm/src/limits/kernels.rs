// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three ways in which one core can copy.

/// How one core copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKernel {
    /// The C library's `memcpy`.
    Memcpy,
    /// Loads as usual, stores past the cache.
    NonTemporal,
    /// The processor's string instruction.
    RepMovsb,
}

impl CopyKernel {
    /// Those that this processor has.
    #[must_use]
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx2") {
                return &[Self::Memcpy, Self::NonTemporal, Self::RepMovsb];
            }
            &[Self::Memcpy, Self::RepMovsb]
        }
        #[cfg(not(target_arch = "x86_64"))]
        &[Self::Memcpy]
    }
}

/// Copies `bytes` bytes with this kernel; one that the processor lacks is replaced by `memcpy`.
///
/// # Safety
///
/// `source` is readable and `destination` writable for `bytes` bytes, and the two do not overlap.
pub(super) unsafe fn copy(
    kernel: CopyKernel,
    destination: *mut u8,
    source: *const u8,
    bytes: usize,
) {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        CopyKernel::RepMovsb => {
            // SAFETY: the caller's promise is that of `rep movsb`.
            unsafe { rep_movsb(destination, source, bytes) };
            return;
        }
        CopyKernel::NonTemporal if std::arch::is_x86_feature_detected!("avx2") => {
            // SAFETY: avx2 was just detected; the rest is the caller's promise.
            unsafe { non_temporal(destination, source, bytes) };
            return;
        }
        CopyKernel::Memcpy | CopyKernel::NonTemporal => {}
    }
    let _ = kernel;
    // SAFETY: the caller's promise is that of `copy_nonoverlapping` for bytes, which have no alignment and no invalid
    // value.
    unsafe { std::ptr::copy_nonoverlapping(source, destination, bytes) };
}

#[cfg(target_arch = "x86_64")]
unsafe fn rep_movsb(destination: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: reads `bytes` from `source` and writes as many to `destination`, which the caller allows. The direction
    // flag is clear by the calling convention. Nothing else is touched.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rdi") destination => _,
            inout("rsi") source => _,
            inout("rcx") bytes => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "the loads are unaligned ones, and the alignment of the stores is tested first"
)]
unsafe fn non_temporal(destination: *mut u8, source: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    /// Bytes of one turn: four stores under way hide the loads before them.
    const STEP: usize = 128;
    let aligned = destination.addr().is_multiple_of(32);
    let body = if aligned { bytes / STEP * STEP } else { 0 };
    for begin in (0..body).step_by(STEP) {
        for lane in (begin..begin + STEP).step_by(32) {
            let from = source.wrapping_add(lane).cast::<__m256i>();
            let to = destination.wrapping_add(lane).cast::<__m256i>();
            // SAFETY: `lane + 32 <= body <= bytes`, which the caller allows to be read; the load needs no alignment.
            let value = unsafe { _mm256_loadu_si256(from) };
            // SAFETY: likewise for writing, and `to` is 32-aligned because `destination` is and `lane` is a multiple of
            // 32.
            unsafe { _mm256_stream_si256(to, value) };
        }
    }
    let (rest_to, rest_from) = (destination.wrapping_add(body), source.wrapping_add(body));
    // SAFETY: the bytes after `body`, which the caller allows.
    unsafe { std::ptr::copy_nonoverlapping(rest_from, rest_to, bytes - body) };
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_copies_every_byte() {
        for &kernel in CopyKernel::available() {
            for bytes in [0, 1, 31, 127, 128, 129, 4096, 10_001] {
                for shift in [0, 1, 32] {
                    let source: Vec<u8> =
                        (0..bytes + shift).map(|i| (i * 31 % 251) as u8).collect();
                    let mut destination = vec![0_u8; bytes + shift];
                    let to = destination[shift..].as_mut_ptr();
                    // SAFETY: both vectors hold `bytes` bytes after `shift`, and they are different allocations.
                    unsafe { copy(kernel, to, source[shift..].as_ptr(), bytes) };
                    assert_eq!(
                        source[shift..],
                        destination[shift..],
                        "{kernel:?} {bytes} {shift}"
                    );
                }
            }
        }
    }
}
