// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reductions: vectors of elements combined element by element.
//!
//! [`reduce_raw`] is the primitive: `dst = a op b`. Each side may lie in this process or in a peer's mapping, at any
//! alignment, and `dst` may be one of the operands. [`reduce_into`] and [`reduce_under`] are its two in-place forms on
//! memory of the program.
//!
//! Every kernel is compiled twice, for what the architecture guarantees and for AVX2, from one definition of what an
//! operator does with two elements. The processor is asked once. Elements are combined one by one and never across, so
//! both give the same bits.
//!
//! # Order
//! The left operand is the lower rank's. Sums and products of floats do not depend on the order of two operands, but
//! for which of two NaNs is kept. Minimum and maximum of floats do. The result is the right operand where it is smaller
//! (larger), else the left one. So a NaN on the left stays and one on the right is dropped, and of zeros with different
//! signs the left one stays. MINLOC and MAXLOC compare values likewise; of equal values the element with the smaller
//! index is taken whole.
//!
//! # Safety
//! Callers of [`reduce_raw`] promise that the memory is mapped. Nothing here makes a reference to it; see
//! `reduce/kernel.rs`.
#![allow(unsafe_code, reason = "kernels on memory that peers write")]

mod combine;
mod kernel;
pub mod kinds;
#[cfg(all(test, not(loom)))]
mod tests;

pub use kinds::{ElemType, PredefinedOp};

use combine::{
    BitAnd, BitOr, BitXor, Complex, Indexed16, Indexed32, Indexed64, LogicalAnd, LogicalOr,
    LogicalXor, Max, MaxLoc, Min, MinLoc, Prod, Sum,
};
use kernel::{Isa, Operands};

/// `dst = a op b`, elements of kind `elem` in `bytes` bytes each. Gives `false`, and does nothing, if the operator has
/// no meaning for them.
///
/// # Safety
/// All three places are valid for `bytes` bytes, `dst` for writes; `dst` equals `a` or `b` or overlaps neither. Other
/// processes may write to the operands at the same time: the result is then made of whatever was read.
///
/// # Panics
/// If `bytes` is no multiple of the element's size.
#[inline]
pub unsafe fn reduce_raw(
    op: PredefinedOp,
    elem: ElemType,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    bytes: usize,
) -> bool {
    let operands = Operands { dst, a, b, bytes };
    // SAFETY: the caller's promise; the instruction set was found.
    unsafe { dispatch(Isa::best(), op, elem, operands) }
}

/// `acc = acc op input`: `acc` is the lower rank's.
///
/// # Panics
/// If the lengths differ or are no multiple of the element's size.
pub fn reduce_into(op: PredefinedOp, elem: ElemType, acc: &mut [u8], input: &[u8]) -> bool {
    assert_eq!(acc.len(), input.len(), "operands of different length");
    let pointer = acc.as_mut_ptr();
    // SAFETY: slices are valid for their length; an exclusive and a shared one do not overlap.
    unsafe { reduce_raw(op, elem, pointer, pointer, input.as_ptr(), input.len()) }
}

/// `acc = input op acc`: `input` is the lower rank's.
///
/// # Panics
/// If the lengths differ or are no multiple of the element's size.
pub fn reduce_under(op: PredefinedOp, elem: ElemType, acc: &mut [u8], input: &[u8]) -> bool {
    assert_eq!(acc.len(), input.len(), "operands of different length");
    let pointer = acc.as_mut_ptr();
    // SAFETY: as above.
    unsafe { reduce_raw(op, elem, pointer, input.as_ptr(), pointer, input.len()) }
}

/// `out = a op b` in memory of the program.
///
/// # Panics
/// If the lengths differ or are no multiple of the element's size.
pub fn combine_slices(
    op: PredefinedOp,
    elem: ElemType,
    out: &mut [u8],
    a: &[u8],
    b: &[u8],
) -> bool {
    assert!(
        out.len() == a.len() && a.len() == b.len(),
        "operands of different length"
    );
    let (a, b, bytes) = (a.as_ptr(), b.as_ptr(), out.len());
    // SAFETY: slices are valid for their length; an exclusive one overlaps no other.
    unsafe { reduce_raw(op, elem, out.as_mut_ptr(), a, b, bytes) }
}

/// # Safety
/// As [`reduce_raw`]; the processor has `isa`.
unsafe fn dispatch(isa: Isa, op: PredefinedOp, elem: ElemType, operands: Operands) -> bool {
    use ElemType as E;
    use PredefinedOp as P;
    if !op.accepts(elem) {
        debug_assert!(false, "{op:?} has no meaning for {elem:?}");
        return false;
    }
    assert!(
        elem.divides(operands.bytes),
        "{} bytes are no whole number of {elem:?}",
        operands.bytes
    );
    /// A kernel with blocks of 128 and 32 bytes.
    macro_rules! run {
        ($t:ty, $o:ty) => {{
            const WIDE: usize = 128 / size_of::<$t>();
            const NARROW: usize = 32 / size_of::<$t>();
            // SAFETY: the caller's promise; kernels need no alignment.
            unsafe { kernel::run::<$t, $o, WIDE, NARROW>(isa, operands) };
        }};
    }
    /// An operator on each of the kinds listed.
    macro_rules! on {
        ($o:ty: $($kind:ident $t:ty),+) => {
            match elem {
                $(E::$kind => run!($t, $o),)+
                _ => return false,
            }
        };
    }
    macro_rules! on_integers {
        ($o:ty) => {
            on!($o: I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
        };
    }
    macro_rules! on_reals {
        ($o:ty) => {
            on!($o: I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
        };
    }
    macro_rules! on_numbers {
        ($o:ty) => {
            on!($o: I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64,
                ComplexF32 Complex<f32>, ComplexF64 Complex<f64>)
        };
    }
    macro_rules! on_indexed {
        ($o:ty) => {
            on!($o: I16Index Indexed16, I32Index Indexed32<i32>, I64Index Indexed64<i64>, F32Index Indexed32<f32>,
                F64Index Indexed64<f64>)
        };
    }
    match op {
        P::Sum => on_numbers!(Sum),
        P::Prod => on_numbers!(Prod),
        P::Min => on_reals!(Min),
        P::Max => on_reals!(Max),
        P::LogicalAnd => on_reals!(LogicalAnd),
        P::LogicalOr => on_reals!(LogicalOr),
        P::LogicalXor => on_reals!(LogicalXor),
        P::BitAnd => on_integers!(BitAnd),
        P::BitOr => on_integers!(BitOr),
        P::BitXor => on_integers!(BitXor),
        P::MinLoc => on_indexed!(MinLoc),
        P::MaxLoc => on_indexed!(MaxLoc),
    }
    true
}
