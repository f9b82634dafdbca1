// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that may change while one reads them, and what is done with them: copied out, or combined with others.
//!
//! # Safety
//! A view is an address and a length that are readable for its lifetime. It is no reference: nothing is assumed of the bytes, and they are
//! read by raw loads only. Only this crate makes views of mappings.
#![allow(unsafe_code, reason = "raw loads from memory that peers write")]

use crate::copy::{self, Kernel};
use crate::reduce::{ElemType, PredefinedOp};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Readable bytes, possibly a peer's.
#[derive(Debug, Clone, Copy)]
pub struct View<'m> {
    at: NonNull<u8>,
    len: usize,
    _of: PhantomData<&'m u8>,
}

impl<'m> View<'m> {
    /// # Safety
    /// `len` bytes at `at` are readable while `'m` lasts.
    pub(crate) unsafe fn new(at: NonNull<u8>, len: usize) -> Self {
        Self {
            at,
            len,
            _of: PhantomData,
        }
    }

    /// A view of memory of the program.
    #[must_use]
    pub fn of(bytes: &'m [u8]) -> Self {
        Self {
            at: NonNull::from(bytes).cast(),
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

    /// The `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If they do not lie in the view.
    #[inline]
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset);
        Self {
            // SAFETY: offset <= len.
            at: unsafe { self.at.add(offset) },
            len,
            _of: PhantomData,
        }
    }

    /// Copies the bytes out. `out` may overlap the view.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_to(self, out: &mut [u8], kernel: Kernel) {
        assert_eq!(self.len, out.len());
        if self.len <= 128 {
            // SAFETY: both are valid for the length. `out` is an exclusive slice; a view of the same bytes is at the same place, where
            // short copies load before they store.
            unsafe { copy::copy_from_raw(self.at.as_ptr(), out) };
            return;
        }
        let begin = out.as_ptr() as usize;
        let apart = (self.at.as_ptr() as usize).abs_diff(begin) >= self.len;
        if apart {
            // SAFETY: both are valid for the length and lie apart.
            unsafe { copy::copy(kernel, out.as_mut_ptr(), self.at.as_ptr(), self.len) };
        } else {
            // SAFETY: both are valid for the length; this copy minds overlaps.
            unsafe { std::ptr::copy(self.at.as_ptr(), out.as_mut_ptr(), self.len) };
        }
    }
}

/// `out[i] = a[i] op b[i]`. `a` and `b` may each be the same bytes as `out`, or lie apart from it.
///
/// # Panics
/// If the lengths differ or are no multiple of the element's size.
pub fn combine(op: PredefinedOp, elem: ElemType, out: &mut [u8], a: View<'_>, b: View<'_>) {
    assert!(a.len == out.len() && b.len == out.len() && out.len().is_multiple_of(elem.size()));
    let (to, a, b) = (out.as_mut_ptr(), a.at.as_ptr(), b.at.as_ptr());
    // SAFETY: three ranges of the same length, which is a multiple of the element's size; `out` is exclusive.
    unsafe { scalar::reduce_raw(op, elem, to, a, b, out.len()) };
}

/// `out[i] = out[i] op b[i]`.
///
/// # Panics
/// As [`combine`].
pub fn accumulate(op: PredefinedOp, elem: ElemType, out: &mut [u8], b: View<'_>) {
    assert!(b.len == out.len() && out.len().is_multiple_of(elem.size()));
    let (to, b) = (out.as_mut_ptr(), b.at.as_ptr());
    // SAFETY: as above; the first operand is the result's own bytes.
    unsafe { scalar::reduce_raw(op, elem, to, to, b, out.len()) };
}

/// `out[i] = a[i] op out[i]`.
///
/// # Panics
/// As [`combine`].
pub fn precede(op: PredefinedOp, elem: ElemType, out: &mut [u8], a: View<'_>) {
    assert!(a.len == out.len() && out.len().is_multiple_of(elem.size()));
    let (to, a) = (out.as_mut_ptr(), a.at.as_ptr());
    // SAFETY: as above; the second operand is the result's own bytes.
    unsafe { scalar::reduce_raw(op, elem, to, a, to, out.len()) };
}

/// Element by element.
mod scalar {
    use crate::reduce::{ElemType, PredefinedOp};

    macro_rules! each {
        ($t:ty, $to:ident, $a:ident, $b:ident, $len:ident, $f:expr) => {{
            let f = $f;
            for i in 0..$len / size_of::<$t>() {
                // SAFETY: i elements lie in the range.
                let x = unsafe { $a.cast::<$t>().add(i).read_unaligned() };
                // SAFETY: as above.
                let y = unsafe { $b.cast::<$t>().add(i).read_unaligned() };
                // SAFETY: as above.
                unsafe { $to.cast::<$t>().add(i).write_unaligned(f(x, y)) };
            }
        }};
    }
    macro_rules! numbers {
        ($t:ty, $op:ident, $to:ident, $a:ident, $b:ident, $len:ident, $sum:expr, $prod:expr) => {{
            let zero = <$t>::default();
            match $op {
                PredefinedOp::Sum => each!($t, $to, $a, $b, $len, $sum),
                PredefinedOp::Prod => each!($t, $to, $a, $b, $len, $prod),
                PredefinedOp::Min => each!($t, $to, $a, $b, $len, |x: $t, y: $t| if y < x { y } else { x }),
                PredefinedOp::Max => each!($t, $to, $a, $b, $len, |x: $t, y: $t| if y > x { y } else { x }),
                PredefinedOp::LogicalAnd => each!($t, $to, $a, $b, $len, |x: $t, y: $t| (x != zero && y != zero) as u8 as $t),
                PredefinedOp::LogicalOr => each!($t, $to, $a, $b, $len, |x: $t, y: $t| (x != zero || y != zero) as u8 as $t),
                PredefinedOp::LogicalXor => each!($t, $to, $a, $b, $len, |x: $t, y: $t| ((x != zero) != (y != zero)) as u8 as $t),
                _ => return false,
            }
        }};
    }
    macro_rules! integers {
        ($t:ty, $op:ident, $to:ident, $a:ident, $b:ident, $len:ident) => {
            match $op {
                PredefinedOp::BitAnd => each!($t, $to, $a, $b, $len, |x: $t, y: $t| x & y),
                PredefinedOp::BitOr => each!($t, $to, $a, $b, $len, |x: $t, y: $t| x | y),
                PredefinedOp::BitXor => each!($t, $to, $a, $b, $len, |x: $t, y: $t| x ^ y),
                _ => numbers!($t, $op, $to, $a, $b, $len, |x: $t, y: $t| x.wrapping_add(y), |x: $t, y: $t| x.wrapping_mul(y)),
            }
        };
    }
    macro_rules! complexes {
        ($t:ty, $op:ident, $to:ident, $a:ident, $b:ident, $len:ident) => {
            match $op {
                PredefinedOp::Sum => each!([$t; 2], $to, $a, $b, $len, |x: [$t; 2], y: [$t; 2]| [x[0] + y[0], x[1] + y[1]]),
                PredefinedOp::Prod => each!([$t; 2], $to, $a, $b, $len, |x: [$t; 2], y: [$t; 2]| [
                    x[0] * y[0] - x[1] * y[1],
                    x[0] * y[1] + x[1] * y[0]
                ]),
                _ => return false,
            }
        };
    }
    macro_rules! indexed {
        ($t:ty, $size:expr, $at:expr, $op:ident, $to:ident, $a:ident, $b:ident, $len:ident) => {{
            let value = |x: &[u8; $size]| <$t>::from_ne_bytes(x[..size_of::<$t>()].try_into().unwrap_or_default());
            let index = |x: &[u8; $size]| i32::from_ne_bytes(x[$at..$at + 4].try_into().unwrap_or_default());
            let pick = |x: [u8; $size], y: [u8; $size], better: bool, equal: bool| {
                if better || equal && index(&y) < index(&x) { y } else { x }
            };
            match $op {
                PredefinedOp::MinLoc => each!([u8; $size], $to, $a, $b, $len, |x: [u8; $size], y: [u8; $size]| pick(x, y, value(&y) < value(&x), value(&y) == value(&x))),
                PredefinedOp::MaxLoc => each!([u8; $size], $to, $a, $b, $len, |x: [u8; $size], y: [u8; $size]| pick(x, y, value(&y) > value(&x), value(&y) == value(&x))),
                _ => return false,
            }
        }};
    }

    /// # Safety
    /// `len` bytes, a multiple of the element's size, are readable at `a` and `b` and writable at `to`.
    pub(super) unsafe fn reduce_raw(op: PredefinedOp, elem: ElemType, to: *mut u8, a: *const u8, b: *const u8, len: usize) -> bool {
        match elem {
            ElemType::I8 => integers!(i8, op, to, a, b, len),
            ElemType::I16 => integers!(i16, op, to, a, b, len),
            ElemType::I32 => integers!(i32, op, to, a, b, len),
            ElemType::I64 => integers!(i64, op, to, a, b, len),
            ElemType::U8 => integers!(u8, op, to, a, b, len),
            ElemType::U16 => integers!(u16, op, to, a, b, len),
            ElemType::U32 => integers!(u32, op, to, a, b, len),
            ElemType::U64 => integers!(u64, op, to, a, b, len),
            ElemType::F32 => numbers!(f32, op, to, a, b, len, |x: f32, y: f32| x + y, |x: f32, y: f32| x * y),
            ElemType::F64 => numbers!(f64, op, to, a, b, len, |x: f64, y: f64| x + y, |x: f64, y: f64| x * y),
            ElemType::ComplexF32 => complexes!(f32, op, to, a, b, len),
            ElemType::ComplexF64 => complexes!(f64, op, to, a, b, len),
            ElemType::I16Index => indexed!(i16, 8, 4, op, to, a, b, len),
            ElemType::I32Index => indexed!(i32, 8, 4, op, to, a, b, len),
            ElemType::I64Index => indexed!(i64, 16, 8, op, to, a, b, len),
            ElemType::F32Index => indexed!(f32, 8, 4, op, to, a, b, len),
            ElemType::F64Index => indexed!(f64, 16, 8, op, to, a, b, len),
            ElemType::Opaque(_) => return false,
        }
        true
    }
}
