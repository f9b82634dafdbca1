// SPDX-License-Identifier: MIT OR Apache-2.0
//! `long double`: predefined operations on the x87 format, which Rust has no type for.
//!
//! # Safety
//! The assembly loads two operands and stores one result through references to 16 bytes each. By the ABI the x87 stack
//! is empty when a function is entered, and it is empty again at the end.
#![allow(unsafe_code, reason = "arithmetic that only the processor has")]

use crate::datatype::predefined::{Basic, Kind};
use onecopy::coll::{ElemType, Op, PredefinedOp};

type Number = [u8; 16];

#[cfg(target_arch = "x86_64")]
macro_rules! arithmetic {
    ($name:ident, $instruction:literal) => {
        fn $name(a: Number, b: Number) -> Number {
            let mut result = [0; 16];
            let (left, right, out) = (a.as_ptr(), b.as_ptr(), result.as_mut_ptr());
            // SAFETY: see the module's safety case; ten bytes are read and written at each place.
            unsafe {
                std::arch::asm!(
                    "fld tbyte ptr [{a}]",
                    "fld tbyte ptr [{b}]",
                    $instruction,
                    "fstp tbyte ptr [{c}]",
                    a = in(reg) left,
                    b = in(reg) right,
                    c = in(reg) out,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack),
                );
            }
            result
        }
    };
}

#[cfg(target_arch = "x86_64")]
arithmetic!(add, "faddp st(1), st");
#[cfg(target_arch = "x86_64")]
arithmetic!(subtract, "fsubp st(1), st");
#[cfg(target_arch = "x86_64")]
arithmetic!(multiply, "fmulp st(1), st");

fn parts(number: Number) -> (bool, u16, u64) {
    let mut eight = [0; 8];
    eight.copy_from_slice(&number[..8]);
    let head = u16::from_le_bytes([number[8], number[9]]);
    (head >> 15 != 0, head & 0x7fff, u64::from_le_bytes(eight))
}

/// Whether `a < b`. With what is no number nothing is less.
fn less(a: Number, b: Number) -> bool {
    let ((a_minus, a_exponent, a_digits), (b_minus, b_exponent, b_digits)) = (parts(a), parts(b));
    let no_number = |exponent: u16, digits: u64| exponent == 0x7fff && digits << 1 != 0;
    if no_number(a_exponent, a_digits) || no_number(b_exponent, b_digits) {
        return false;
    }
    let (size_a, size_b) = ((a_exponent, a_digits), (b_exponent, b_digits));
    match (a_minus, b_minus) {
        (false, false) => size_a < size_b,
        (true, true) => size_b < size_a,
        (true, false) => a_digits != 0 || b_digits != 0,
        (false, true) => false,
    }
}

fn number(bytes: &[u8]) -> Number {
    let mut number = [0; 16];
    number.copy_from_slice(&bytes[..16]);
    number
}

/// A function on one element: the left operand, the right one and the result.
type Function = fn(&[u8], &mut [u8]);

#[cfg(target_arch = "x86_64")]
fn complex_product(left: &[u8], right: &mut [u8]) {
    let (a, b) = (number(left), number(&left[16..]));
    let (x, y) = (number(right), number(&right[16..]));
    right[..16].copy_from_slice(&subtract(multiply(a, x), multiply(b, y)));
    right[16..].copy_from_slice(&add(multiply(a, y), multiply(b, x)));
}

fn keep(left: &[u8], right: &mut [u8], wins: fn(Number, Number) -> bool) {
    let (a, b) = (number(left), number(right));
    let index = |bytes: &[u8]| i32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    let equal = !less(a, b) && !less(b, a);
    if wins(a, b) || (right.len() > 16 && equal && index(left) < index(right)) {
        right.copy_from_slice(left);
    }
}

#[cfg(target_arch = "x86_64")]
fn function(op: PredefinedOp, kind: Kind) -> Option<Function> {
    use PredefinedOp as P;
    Some(match (op, kind) {
        (P::Sum, Kind::Float(16)) => |l, r| r.copy_from_slice(&add(number(l), number(r))),
        (P::Prod, Kind::Float(16)) => |l, r| r.copy_from_slice(&multiply(number(l), number(r))),
        (P::Sum, Kind::Complex(16)) => |l, r| {
            for offset in [0, 16] {
                let sum = add(number(&l[offset..]), number(&r[offset..]));
                r[offset..offset + 16].copy_from_slice(&sum);
            }
        },
        (P::Prod, Kind::Complex(16)) => complex_product,
        (P::Min, Kind::Float(16)) | (P::MinLoc, Kind::Pair(Basic::F80, _)) => {
            |l, r| keep(l, r, less)
        }
        (P::Max, Kind::Float(16)) | (P::MaxLoc, Kind::Pair(Basic::F80, _)) => {
            |l, r| keep(l, r, |a, b| less(b, a))
        }
        _ => return None,
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn function(_op: PredefinedOp, _kind: Kind) -> Option<Function> {
    None
}

/// The operator on elements of this kind, if it is one of `long double`.
pub(super) fn operator(op: PredefinedOp, kind: Kind, extent: usize) -> Option<(ElemType, Op)> {
    let function = function(op, kind)?;
    let all = move |left: &[u8], right: &mut [u8]| {
        for (left, right) in left
            .chunks_exact(extent)
            .zip(right.chunks_exact_mut(extent))
        {
            function(left, right);
        }
    };
    Some((ElemType::Opaque(extent as u32), Op::user(all)))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn number(minus: bool, exponent: u16, digits: u64) -> Number {
        let mut number = [0; 16];
        number[..8].copy_from_slice(&digits.to_le_bytes());
        let head = exponent | u16::from(minus) << 15;
        number[8..10].copy_from_slice(&head.to_le_bytes());
        number
    }

    #[test]
    fn arithmetic_and_order() {
        let one = number(false, 0x3fff, 1 << 63);
        let two = number(false, 0x4000, 1 << 63);
        let minus_three = number(true, 0x4000, 3 << 62);
        assert_eq!(add(one, one)[..10], two[..10]);
        assert_eq!(
            add(minus_three, two)[..10],
            number(true, 0x3fff, 1 << 63)[..10]
        );
        assert_eq!(multiply(one, minus_three)[..10], minus_three[..10]);
        assert_eq!(subtract(two, one)[..10], one[..10]);
        assert!(less(minus_three, one) && less(one, two) && !less(two, two));
        assert!(
            !less(number(true, 0, 0), number(false, 0, 0)),
            "zeros are equal"
        );
        let none = number(false, 0x7fff, 3 << 62);
        assert!(!less(none, one) && !less(one, none));
    }
}
