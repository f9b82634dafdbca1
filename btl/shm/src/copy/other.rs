// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of processors that have none of their own. Safety: see [`super`].

use std::ptr;

pub(super) fn has_vectors() -> bool {
    false
}

pub(super) fn has_wide_vectors() -> bool {
    false
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn wide_vectors(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn vectors(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn vectors_ahead<const OWN: bool, const ALIGN: bool>(
    to: *mut u8,
    from: *const u8,
    len: usize,
) {
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
