// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operators mean, one element at a time and without the runtime.

use onecopy::coll::{Collective, ElemType, PredefinedOp};

fn bytes<const N: usize>(raw: &[u8]) -> [u8; N] {
    raw[..N].try_into().expect("an element")
}

/// `left op right` for one element.
pub(crate) fn apply(op: PredefinedOp, elem: ElemType, left: &[u8], right: &[u8]) -> Vec<u8> {
    use PredefinedOp as P;
    macro_rules! integer {
        ($t:ty) => {{
            let (x, y) = (
                <$t>::from_ne_bytes(bytes(left)),
                <$t>::from_ne_bytes(bytes(right)),
            );
            let r: $t = match op {
                P::Sum => x.wrapping_add(y),
                P::Prod => x.wrapping_mul(y),
                P::Min => x.min(y),
                P::Max => x.max(y),
                P::LogicalAnd => (x != 0 && y != 0).into(),
                P::LogicalOr => (x != 0 || y != 0).into(),
                P::LogicalXor => ((x != 0) ^ (y != 0)).into(),
                P::BitAnd => x & y,
                P::BitOr => x | y,
                P::BitXor => x ^ y,
                P::MinLoc | P::MaxLoc => unreachable!(),
            };
            r.to_ne_bytes().to_vec()
        }};
    }
    macro_rules! float {
        ($t:ty) => {{
            let (x, y) = (
                <$t>::from_ne_bytes(bytes(left)),
                <$t>::from_ne_bytes(bytes(right)),
            );
            let truth = |b: bool| if b { 1.0 } else { 0.0 };
            let r: $t = match op {
                P::Sum => x + y,
                P::Prod => x * y,
                P::Min => x.min(y),
                P::Max => x.max(y),
                P::LogicalAnd => truth(x != 0.0 && y != 0.0),
                P::LogicalOr => truth(x != 0.0 || y != 0.0),
                P::LogicalXor => truth((x != 0.0) ^ (y != 0.0)),
                _ => unreachable!(),
            };
            r.to_ne_bytes().to_vec()
        }};
    }
    macro_rules! complex {
        ($t:ty, $n:literal) => {{
            let part = |raw: &[u8], i: usize| <$t>::from_ne_bytes(bytes(&raw[i * $n..]));
            let (a, b, c, d) = (part(left, 0), part(left, 1), part(right, 0), part(right, 1));
            let (re, im) = match op {
                P::Sum => (a + c, b + d),
                P::Prod => (a * c - b * d, a * d + b * c),
                _ => unreachable!(),
            };
            [re.to_ne_bytes(), im.to_ne_bytes()].concat()
        }};
    }
    macro_rules! indexed {
        ($t:ty, $offset:literal) => {{
            let value = |e: &[u8]| <$t>::from_ne_bytes(bytes(e));
            let index = |e: &[u8]| i32::from_ne_bytes(bytes(&e[$offset..]));
            let (x, y) = (value(left), value(right));
            let right_wins = match op {
                P::MinLoc => y < x || y == x && index(right) < index(left),
                P::MaxLoc => y > x || y == x && index(right) < index(left),
                _ => unreachable!(),
            };
            if right_wins {
                right.to_vec()
            } else {
                left.to_vec()
            }
        }};
    }
    match elem {
        ElemType::I8 => integer!(i8),
        ElemType::I16 => integer!(i16),
        ElemType::I32 => integer!(i32),
        ElemType::I64 => integer!(i64),
        ElemType::U8 => integer!(u8),
        ElemType::U16 => integer!(u16),
        ElemType::U32 => integer!(u32),
        ElemType::U64 => integer!(u64),
        ElemType::F32 => float!(f32),
        ElemType::F64 => float!(f64),
        ElemType::ComplexF32 => complex!(f32, 4),
        ElemType::ComplexF64 => complex!(f64, 8),
        ElemType::I16Index => indexed!(i16, 4),
        ElemType::I32Index => indexed!(i32, 4),
        ElemType::I64Index => indexed!(i64, 8),
        ElemType::F32Index => indexed!(f32, 4),
        ElemType::F64Index => indexed!(f64, 8),
        ElemType::Opaque(_) => unreachable!(),
    }
}

/// An element made of a number, small enough that sums and short products are exact in every order.
pub(crate) fn element(elem: ElemType, number: u64) -> Vec<u8> {
    let small = (number % 3) as i8 - 1;
    let index = (number / 3 % 5) as i32;
    macro_rules! pair {
        ($t:ty, $size:literal, $offset:literal) => {{
            let mut e = vec![0; $size];
            e[..size_of::<$t>()].copy_from_slice(&<$t>::from(small).to_ne_bytes());
            e[$offset..$offset + 4].copy_from_slice(&index.to_ne_bytes());
            e
        }};
    }
    match elem {
        ElemType::F32 => f32::from(small).to_ne_bytes().to_vec(),
        ElemType::F64 => f64::from(small).to_ne_bytes().to_vec(),
        ElemType::ComplexF32 => [f32::from(small), index as f32 - 2.0]
            .map(f32::to_ne_bytes)
            .concat(),
        ElemType::ComplexF64 => [f64::from(small), f64::from(index) - 2.0]
            .map(f64::to_ne_bytes)
            .concat(),
        ElemType::I16Index => pair!(i16, 8, 4),
        ElemType::I32Index => pair!(i32, 8, 4),
        ElemType::I64Index => pair!(i64, 16, 8),
        ElemType::F32Index => pair!(f32, 8, 4),
        ElemType::F64Index => pair!(f64, 16, 8),
        other => {
            let bits = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number >> 7;
            bits.to_ne_bytes()
                .iter()
                .copied()
                .cycle()
                .take(other.size())
                .collect()
        }
    }
}

/// A result with zeroes that have no sign: the sign of a zero in a complex product depends on the order of the factors.
pub(crate) fn unsigned_zeroes(what: &Collective, result: &[u8]) -> Vec<u8> {
    let part = match what {
        Collective::Reduce { elem, .. }
        | Collective::Allreduce { elem, .. }
        | Collective::ReduceScatter { elem, .. }
        | Collective::Scan { elem, .. }
        | Collective::Exscan { elem, .. } => match elem {
            ElemType::ComplexF32 => 4,
            ElemType::ComplexF64 => 8,
            _ => 0,
        },
        _ => 0,
    };
    let mut result = result.to_vec();
    for number in result.chunks_exact_mut(part.max(1)) {
        // All bits but the sign's, which is the last of a number here.
        if part > 0 && number[part - 1] == 0x80 && number[..part - 1].iter().all(|&b| b == 0) {
            number[part - 1] = 0;
        }
    }
    result
}

/// The product of matrices of two rows modulo 2^32: associative, not commutative.
pub(crate) fn matrices(left: &[u8], right: &mut [u8]) {
    for (l, r) in left.chunks_exact(16).zip(right.chunks_exact_mut(16)) {
        let get = |m: &[u8], i: usize| u32::from_ne_bytes(bytes(&m[i * 4..]));
        let a: [u32; 4] = std::array::from_fn(|i| get(l, i));
        let b: [u32; 4] = std::array::from_fn(|i| get(r, i));
        for i in 0..4 {
            let (row, column) = (i / 2, i % 2);
            let first = a[row * 2].wrapping_mul(b[column]);
            let second = a[row * 2 + 1].wrapping_mul(b[2 + column]);
            r[i * 4..i * 4 + 4].copy_from_slice(&first.wrapping_add(second).to_ne_bytes());
        }
    }
}
