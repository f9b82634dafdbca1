// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every operator on every kind against an oracle that is written another way, at odd lengths and places, in all forms.

use super::*;
use proptest::prelude::*;
use std::cmp::Ordering;

/// An element as the oracle sees it.
#[derive(Debug, Clone, Copy)]
enum Value {
    /// An integer and its bits.
    Int(i128, u32),
    F32(f32),
    F64(f64),
}

fn value(elem: ElemType, bytes: &[u8]) -> Value {
    use ElemType as E;
    macro_rules! read {
        ($t:ty) => {
            <$t>::from_le_bytes(bytes[..size_of::<$t>()].try_into().unwrap())
        };
    }
    match elem {
        E::I8 => Value::Int(read!(i8).into(), 8),
        E::U8 => Value::Int(read!(u8).into(), 8),
        E::I16 | E::I16Index => Value::Int(read!(i16).into(), 16),
        E::U16 => Value::Int(read!(u16).into(), 16),
        E::I32 | E::I32Index => Value::Int(read!(i32).into(), 32),
        E::U32 => Value::Int(read!(u32).into(), 32),
        E::I64 | E::I64Index => Value::Int(read!(i64).into(), 64),
        E::U64 => Value::Int(read!(u64).into(), 64),
        E::F32 | E::F32Index => Value::F32(read!(f32)),
        E::F64 | E::F64Index => Value::F64(read!(f64)),
        E::ComplexF32 | E::ComplexF64 | E::Opaque(_) => panic!("{elem:?} is no single value"),
    }
}

fn index(elem: ElemType, bytes: &[u8]) -> i32 {
    let offset = if matches!(elem, ElemType::I64Index | ElemType::F64Index) {
        8
    } else {
        4
    };
    i32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

/// How two values compare; none if one is not a number.
fn order(a: Value, b: Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a, _), Value::Int(b, _)) => Some(a.cmp(&b)),
        (Value::F32(a), Value::F32(b)) => a.partial_cmp(&b),
        (Value::F64(a), Value::F64(b)) => a.partial_cmp(&b),
        _ => panic!("different kinds"),
    }
}

fn is_zero(a: Value) -> bool {
    match a {
        Value::Int(a, _) => a == 0,
        Value::F32(a) => a == 0.0,
        Value::F64(a) => a == 0.0,
    }
}

fn number(value: Value, yes: bool) -> Vec<u8> {
    match value {
        Value::Int(_, bits) => i128::from(yes).to_le_bytes()[..bits as usize / 8].to_vec(),
        Value::F32(_) => f32::from(u8::from(yes)).to_le_bytes().to_vec(),
        Value::F64(_) => f64::from(u8::from(yes)).to_le_bytes().to_vec(),
    }
}

/// One element of the result.
fn oracle(op: PredefinedOp, elem: ElemType, a: &[u8], b: &[u8]) -> Vec<u8> {
    use PredefinedOp as P;
    if matches!(elem, ElemType::ComplexF32 | ElemType::ComplexF64) {
        return complex(op, elem, a, b);
    }
    let (x, y) = (value(elem, a), value(elem, b));
    match op {
        P::MinLoc | P::MaxLoc => {
            let wanted = if op == P::MinLoc {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            let take_b = match order(y, x) {
                Some(Ordering::Equal) => index(elem, b) < index(elem, a),
                found => found == Some(wanted),
            };
            if take_b { b.to_vec() } else { a.to_vec() }
        }
        P::Min | P::Max => {
            let wanted = if op == P::Min {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            if order(y, x) == Some(wanted) {
                b.to_vec()
            } else {
                a.to_vec()
            }
        }
        P::LogicalAnd => number(x, !is_zero(x) && !is_zero(y)),
        P::LogicalOr => number(x, !is_zero(x) || !is_zero(y)),
        P::LogicalXor => number(x, is_zero(x) != is_zero(y)),
        P::BitAnd => a.iter().zip(b).map(|(a, b)| a & b).collect(),
        P::BitOr => a.iter().zip(b).map(|(a, b)| a | b).collect(),
        P::BitXor => a.iter().zip(b).map(|(a, b)| a ^ b).collect(),
        P::Sum | P::Prod => match (x, y) {
            (Value::Int(x, bits), Value::Int(y, _)) => {
                let wide = if op == P::Sum {
                    x + y
                } else {
                    x.wrapping_mul(y)
                };
                wide.to_le_bytes()[..bits as usize / 8].to_vec()
            }
            (Value::F32(x), Value::F32(y)) => {
                let z = if op == P::Sum { x + y } else { x * y };
                z.to_le_bytes().to_vec()
            }
            (Value::F64(x), Value::F64(y)) => {
                let z = if op == P::Sum { x + y } else { x * y };
                z.to_le_bytes().to_vec()
            }
            _ => panic!("different kinds"),
        },
    }
}

fn complex(op: PredefinedOp, elem: ElemType, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (half, part) = match elem {
        ElemType::ComplexF32 => (4, ElemType::F32),
        _ => (8, ElemType::F64),
    };
    let real = |op, a: &[u8], b: &[u8]| oracle(op, part, a, b);
    let (are, aim, bre, bim) = (&a[..half], &a[half..], &b[..half], &b[half..]);
    let (re, im) = if op == PredefinedOp::Sum {
        (real(op, are, bre), real(op, aim, bim))
    } else {
        let product = |a: &[u8], b: &[u8]| real(PredefinedOp::Prod, a, b);
        let mut minus = product(aim, bim);
        // A difference is the sum with the other sign.
        minus[half - 1] ^= 0x80;
        (
            real(PredefinedOp::Sum, &product(are, bre), &minus),
            real(PredefinedOp::Sum, &product(are, bim), &product(aim, bre)),
        )
    };
    [re, im].concat()
}

/// Whether a part of an element carries meaning, and whether two results may differ in what kind of NaN they are.
fn same(op: PredefinedOp, elem: ElemType, got: &[u8], expected: &[u8]) -> bool {
    use ElemType as E;
    let float = |offset: usize, size: usize| {
        let (g, e) = (
            &got[offset..offset + size],
            &expected[offset..offset + size],
        );
        let is_nan = |bytes: &[u8]| match size {
            4 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            _ => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        };
        // Arithmetic gives some NaN; choices give the very one.
        let arithmetic = matches!(op, PredefinedOp::Sum | PredefinedOp::Prod);
        g == e || arithmetic && is_nan(g) && is_nan(e)
    };
    match elem {
        E::F32 => float(0, 4),
        E::F64 => float(0, 8),
        E::ComplexF32 => float(0, 4) && float(4, 4),
        E::ComplexF64 => float(0, 8) && float(8, 8),
        E::I16Index => got[..2] == expected[..2] && got[4..] == expected[4..],
        E::I64Index | E::F64Index => got[..12] == expected[..12],
        _ => got == expected,
    }
}

/// Bytes in which special values are frequent.
fn operand(elem: ElemType, count: usize, mut seed: u64) -> Vec<u8> {
    let mut random = move || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let mut bytes = Vec::new();
    while bytes.len() < count * elem.size() {
        let choice = random() % 8;
        match elem {
            ElemType::F32 | ElemType::ComplexF32 => {
                let special = [
                    0.0,
                    -0.0,
                    f32::NAN,
                    f32::INFINITY,
                    f32::NEG_INFINITY,
                    f32::MIN_POSITIVE / 4.0,
                ];
                let common = (random() % 2001) as f32 / 8.0 - 125.0;
                let x = special.get(choice as usize).copied().unwrap_or(common);
                bytes.extend(x.to_le_bytes());
            }
            ElemType::F64 | ElemType::ComplexF64 => {
                let special = [
                    0.0,
                    -0.0,
                    f64::NAN,
                    f64::INFINITY,
                    f64::NEG_INFINITY,
                    f64::MIN_POSITIVE / 4.0,
                ];
                let common = (random() % 2001) as f64 / 8.0 - 125.0;
                let x = special.get(choice as usize).copied().unwrap_or(common);
                bytes.extend(x.to_le_bytes());
            }
            ElemType::F32Index => {
                let x = [f32::NAN, 1.0, 1.0, 2.0, 0.0, -0.0, -3.0, 1.0][choice as usize];
                bytes.extend(x.to_le_bytes());
                bytes.extend((random() as i32 % 5 - 2).to_le_bytes());
            }
            ElemType::F64Index => {
                let x = [f64::NAN, 1.0, 1.0, 2.0, 0.0, -0.0, -3.0, 1.0][choice as usize];
                bytes.extend(x.to_le_bytes());
                bytes.extend((random() as i32 % 5 - 2).to_le_bytes());
                bytes.extend([9; 4]);
            }
            ElemType::I16Index | ElemType::I32Index | ElemType::I64Index => {
                let size = elem.size();
                let offset = if size == 16 { 8 } else { 4 };
                let mut one = vec![7; size];
                let x = i64::from(random() as i32 % 3);
                let value = if elem == ElemType::I16Index {
                    2
                } else {
                    offset
                };
                one[..value].copy_from_slice(&x.to_le_bytes()[..value]);
                one[offset..offset + 4].copy_from_slice(&(random() as i32 % 5 - 2).to_le_bytes());
                bytes.extend(one);
            }
            _ if choice < 2 => bytes.extend(vec![0; elem.size()]),
            _ if choice == 2 => bytes.extend(vec![0xFF; elem.size()]),
            _ => bytes.extend(&(random() << 31 | random()).to_le_bytes()[..elem.size()]),
        }
    }
    bytes.truncate(count * elem.size());
    bytes
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Apart,
    OnLeft,
    OnRight,
}

/// Runs a kernel with every operand `shifts` bytes off its page, and gives the result, having checked what lies around
/// it.
fn run(
    isa: Isa,
    form: Form,
    op: PredefinedOp,
    elem: ElemType,
    operands: (&[u8], &[u8]),
    shifts: [usize; 3],
) -> Vec<u8> {
    const AROUND: usize = 64;
    let (a, b) = operands;
    let bytes = a.len();
    let room = |shift: usize, from: &[u8]| {
        let mut room = vec![0xA5; bytes + 2 * AROUND + 64];
        // From a known alignment on, so that the shift is what it says.
        let begin = room.as_ptr().align_offset(64) + AROUND / 2 + shift % 32;
        room[begin..begin + bytes].copy_from_slice(from);
        (room, begin)
    };
    let (mut left, left_at) = room(shifts[0], a);
    let (mut right, right_at) = room(shifts[1], b);
    let (mut third, third_at) = room(shifts[2], &vec![0; bytes]);
    let x = left[left_at..].as_mut_ptr();
    let y = right[right_at..].as_mut_ptr();
    let z = third[third_at..].as_mut_ptr();
    let dst = match form {
        Form::Apart => z,
        Form::OnLeft => x,
        Form::OnRight => y,
    };
    let operands = Operands {
        dst,
        a: x,
        b: y,
        bytes,
    };
    // SAFETY: valid for `bytes`, apart or equal.
    assert!(unsafe { dispatch(isa, op, elem, operands) });
    let (got, begin) = match form {
        Form::Apart => (third, third_at),
        Form::OnLeft => (left, left_at),
        Form::OnRight => (right, right_at),
    };
    let mut outside = got[..begin].iter().chain(&got[begin + bytes..]);
    assert!(
        outside.all(|&byte| byte == 0xA5),
        "{op:?} {elem:?} {isa:?} {form:?} wrote outside"
    );
    got[begin..begin + bytes].to_vec()
}

fn pairs() -> impl Iterator<Item = (PredefinedOp, ElemType)> {
    PredefinedOp::ALL
        .into_iter()
        .flat_map(|op| ElemType::KNOWN.map(|elem| (op, elem)))
        .filter(|(op, elem)| op.accepts(*elem))
}

fn isas() -> Vec<Isa> {
    let mut isas = vec![Isa::Baseline];
    if Isa::best() != Isa::Baseline {
        isas.push(Isa::best());
    }
    isas
}

const FORMS: [Form; 3] = [Form::Apart, Form::OnLeft, Form::OnRight];

fn check(op: PredefinedOp, elem: ElemType, count: usize, seed: u64, shifts: [usize; 3]) {
    let (a, b) = (operand(elem, count, seed), operand(elem, count, !seed));
    let size = elem.size();
    let elements = a.chunks(size).zip(b.chunks(size));
    let expected: Vec<u8> = elements.flat_map(|(a, b)| oracle(op, elem, a, b)).collect();
    let mut first: Option<Vec<u8>> = None;
    for isa in isas() {
        for form in FORMS {
            let got = run(isa, form, op, elem, (&a, &b), shifts);
            for (index, (got, expected)) in got.chunks(size).zip(expected.chunks(size)).enumerate()
            {
                assert!(
                    same(op, elem, got, expected),
                    "{op:?} {elem:?} {isa:?} {form:?}, element {index} of {count}: {:?} and {:?} give {got:?}, expected {expected:?}",
                    &a[index * size..][..size],
                    &b[index * size..][..size],
                );
            }
            let first = first.get_or_insert_with(|| got.clone());
            let mut alike = first.chunks(size).zip(got.chunks(size));
            // All kernels give the same bits; which of two NaNs a sum gives is the instruction's choice.
            assert!(
                alike.all(|(x, y)| x == y || !nan_free(elem, x)),
                "{op:?} {elem:?} {isa:?} {form:?} differs from the other kernels"
            );
        }
    }
}

/// Whether no part of the element is a NaN.
fn nan_free(elem: ElemType, bytes: &[u8]) -> bool {
    let (part, half) = match elem {
        ElemType::ComplexF32 => (ElemType::F32, 4),
        ElemType::ComplexF64 => (ElemType::F64, 8),
        elem => (elem, bytes.len()),
    };
    bytes.chunks(half).all(|bytes| match value(part, bytes) {
        Value::F32(x) => !x.is_nan(),
        Value::F64(x) => !x.is_nan(),
        Value::Int(..) => true,
    })
}

#[test]
fn every_operator_on_every_kind() {
    for (op, elem) in pairs() {
        for count in [0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 127, 129, 300] {
            check(op, elem, count, 77 + count as u64, [0, 0, 0]);
        }
        check(op, elem, 261, 5, [1, 2, 3]);
        check(op, elem, 261, 6, [elem.size(), 0, elem.size()]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn at_any_place_and_length(which in 0usize..98, count in 0usize..400, seed: u64, shifts: [u8; 3]) {
        let all: Vec<_> = pairs().collect();
        let (op, elem) = all[which % all.len()];
        check(op, elem, count, seed, shifts.map(usize::from));
    }
}

#[test]
fn the_left_operand_decides_between_equals_and_keeps_its_nan() {
    let min = |a: f64, b: f64| {
        let mut acc = a.to_le_bytes();
        assert!(reduce_into(
            PredefinedOp::Min,
            ElemType::F64,
            &mut acc,
            &b.to_le_bytes()
        ));
        f64::from_le_bytes(acc)
    };
    assert!(min(f64::NAN, 1.0).is_nan());
    assert_eq!(min(1.0, f64::NAN), 1.0);
    assert!(min(-0.0, 0.0).is_sign_negative() && min(0.0, -0.0).is_sign_positive());
    let mut acc = 1.0f64.to_le_bytes();
    assert!(reduce_under(
        PredefinedOp::Max,
        ElemType::F64,
        &mut acc,
        &f64::NAN.to_le_bytes()
    ));
    assert!(
        f64::from_le_bytes(acc).is_nan(),
        "the input was the left one"
    );
}

#[test]
fn what_has_no_meaning_is_refused() {
    assert!(!PredefinedOp::Sum.accepts(ElemType::Opaque(4)));
    let refused = std::panic::catch_unwind(|| {
        let mut acc = [0; 8];
        reduce_into(PredefinedOp::Sum, ElemType::Opaque(8), &mut acc, &[1; 8])
    });
    // Debug builds say so louder.
    assert!(!refused.unwrap_or(false));
    let uneven = std::panic::catch_unwind(|| {
        reduce_into(PredefinedOp::Sum, ElemType::F64, &mut [0; 9], &[0; 9]);
    });
    assert!(uneven.is_err());
}
