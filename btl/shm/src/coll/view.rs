// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that may change while one reads them, and what is done with them: copied out, or combined with others.
//!
//! # Safety
//! A view is an address and a length that are readable for its lifetime. It is no reference: nothing is assumed of the
//! bytes, and they are read by raw loads only. A maker of one over a mapping answers for that.
#![allow(unsafe_code, reason = "raw loads from memory that peers write")]

use crate::copy::{self, Kernel};
use crate::reduce::{ElemType, PredefinedOp, reduce_raw};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Readable bytes, possibly a peer's.
#[derive(Debug, Clone, Copy)]
pub struct View<'m> {
    pointer: NonNull<u8>,
    len: usize,
    _of: PhantomData<&'m u8>,
}

impl<'m> View<'m> {
    /// A view of mapped memory.
    ///
    /// # Safety
    /// `len` bytes at `pointer` are readable while `'m` lasts.
    #[must_use]
    pub unsafe fn new(pointer: NonNull<u8>, len: usize) -> Self {
        Self {
            pointer,
            len,
            _of: PhantomData,
        }
    }

    /// A view of memory of the program.
    #[must_use]
    pub fn of(bytes: &'m [u8]) -> Self {
        Self {
            pointer: NonNull::from(bytes).cast(),
            len: bytes.len(),
            _of: PhantomData,
        }
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `offset` on; none if they do not lie in the view.
    #[inline]
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        (offset <= self.len && len <= self.len - offset).then(|| Self {
            // SAFETY: offset <= len.
            pointer: unsafe { self.pointer.add(offset) },
            len,
            _of: PhantomData,
        })
    }

    /// Copies the bytes out. `out` may overlap the view.
    ///
    /// # Panics
    /// If the lengths differ: a caller makes the view as long as `out` by [`Self::part`], never as long as a peer says.
    #[inline]
    pub fn copy_to(self, out: &mut [u8], kernel: Kernel) {
        assert_eq!(self.len, out.len());
        if self.len <= 128 {
            // SAFETY: both are valid for the length. `out` is an exclusive slice; a view of the same bytes is at the
            // same place, where short copies load before they store.
            unsafe { copy::copy_from_raw(self.pointer.as_ptr(), out) };
            return;
        }
        // SAFETY: both are valid for the length.
        unsafe {
            copy::copy_overlapping(kernel, out.as_mut_ptr(), self.pointer.as_ptr(), self.len)
        };
    }
}

/// `out[i] = a[i] op b[i]`. `a` and `b` may each be the same bytes as `out`, or lie apart from it.
///
/// # Panics
/// If the lengths differ or are no multiple of the element's size.
pub fn combine(op: PredefinedOp, elem: ElemType, out: &mut [u8], a: View<'_>, b: View<'_>) {
    assert!(a.len == out.len() && b.len == out.len() && elem.divides(out.len()));
    let (to, a, b) = (out.as_mut_ptr(), a.pointer.as_ptr(), b.pointer.as_ptr());
    // SAFETY: three ranges of the same length, which is a multiple of the element's size; `out` is exclusive.
    unsafe { reduce_raw(op, elem, to, a, b, out.len()) };
}

/// `out[i] = out[i] op b[i]`.
///
/// # Panics
/// As [`combine`].
pub fn accumulate(op: PredefinedOp, elem: ElemType, out: &mut [u8], b: View<'_>) {
    assert!(b.len == out.len() && elem.divides(out.len()));
    let (to, b) = (out.as_mut_ptr(), b.pointer.as_ptr());
    // SAFETY: as above; the first operand is the result's own bytes.
    unsafe { reduce_raw(op, elem, to, to, b, out.len()) };
}

/// `out[i] = a[i] op out[i]`.
///
/// # Panics
/// As [`combine`].
pub fn precede(op: PredefinedOp, elem: ElemType, out: &mut [u8], a: View<'_>) {
    assert!(a.len == out.len() && elem.divides(out.len()));
    let (to, a) = (out.as_mut_ptr(), a.pointer.as_ptr());
    // SAFETY: as above; the second operand is the result's own bytes.
    unsafe { reduce_raw(op, elem, to, a, to, out.len()) };
}
