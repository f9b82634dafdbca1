// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each operator does with two elements: the one definition that every kernel is made from.

/// Combines two elements of type `T`.
pub(super) trait Combine<T> {
    fn combine(a: T, b: T) -> T;
}

/// A 16-bit value and an index.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Indexed16 {
    value: i16,
    _between: [u8; 2],
    index: i32,
}

/// A 32-bit value and an index.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Indexed32<V> {
    value: V,
    index: i32,
}

/// A 64-bit value and an index.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Indexed64<V> {
    value: V,
    index: i32,
    _after: [u8; 4],
}

/// Real and imaginary part.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Complex<V> {
    re: V,
    im: V,
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct LogicalAnd;
pub(super) struct LogicalOr;
pub(super) struct LogicalXor;
pub(super) struct BitAnd;
pub(super) struct BitOr;
pub(super) struct BitXor;
pub(super) struct MinLoc;
pub(super) struct MaxLoc;

/// `combine!(Operator, types, |a, b| expression)`.
macro_rules! combine {
    ($op:ty, $($t:ty)+, |$a:ident, $b:ident| $e:expr) => {$(
        impl Combine<$t> for $op {
            #[inline(always)]
            fn combine($a: $t, $b: $t) -> $t {
                $e
            }
        }
    )+};
}

macro_rules! logical {
    ($one:expr, $zero:expr, $($t:ty)+) => {
        combine!(LogicalAnd, $($t)+, |a, b| if (a != $zero) & (b != $zero) { $one } else { $zero });
        combine!(LogicalOr, $($t)+, |a, b| if (a != $zero) | (b != $zero) { $one } else { $zero });
        combine!(LogicalXor, $($t)+, |a, b| if (a != $zero) ^ (b != $zero) { $one } else { $zero });
    };
}

combine!(Sum, i8 i16 i32 i64 u8 u16 u32 u64, |a, b| a.wrapping_add(b));
combine!(Prod, i8 i16 i32 i64 u8 u16 u32 u64, |a, b| a.wrapping_mul(b));
combine!(Sum, f32 f64, |a, b| a + b);
combine!(Prod, f32 f64, |a, b| a * b);
combine!(Sum, Complex<f32> Complex<f64>, |a, b| Complex { re: a.re + b.re, im: a.im + b.im });
combine!(Prod, Complex<f32> Complex<f64>, |a, b| Complex {
    re: a.re * b.re - a.im * b.im,
    im: a.re * b.im + a.im * b.re,
});
// Exactly what the vector instructions do with their operands swapped: a NaN on the left stays, one on the right goes.
combine!(Min, i8 i16 i32 i64 u8 u16 u32 u64 f32 f64, |a, b| if b < a { b } else { a });
combine!(Max, i8 i16 i32 i64 u8 u16 u32 u64 f32 f64, |a, b| if b > a { b } else { a });
logical!(1, 0, i8 i16 i32 i64 u8 u16 u32 u64);
logical!(1.0, 0.0, f32 f64);
combine!(BitAnd, i8 i16 i32 i64 u8 u16 u32 u64, |a, b| a & b);
combine!(BitOr, i8 i16 i32 i64 u8 u16 u32 u64, |a, b| a | b);
combine!(BitXor, i8 i16 i32 i64 u8 u16 u32 u64, |a, b| a ^ b);
combine!(MinLoc, Indexed16 Indexed32<i32> Indexed32<f32> Indexed64<i64> Indexed64<f64>, |a, b| {
    if (b.value < a.value) | ((b.value == a.value) & (b.index < a.index)) { b } else { a }
});
combine!(MaxLoc, Indexed16 Indexed32<i32> Indexed32<f32> Indexed64<i64> Indexed64<f64>, |a, b| {
    if (b.value > a.value) | ((b.value == a.value) & (b.index < a.index)) { b } else { a }
});
