// SPDX-License-Identifier: MIT OR Apache-2.0
//! `external32`: every element in big-endian order and in a size that the standard fixes.
//!
//! Most elements have the same size here and there, and only their bytes are turned. `long` has 4 bytes outside,
//! `wchar_t` 2 (UCS-2), `long double` 16 in the format binary128, which the x87 format is converted to and from.

use crate::datatype::TypeObject;
use crate::datatype::predefined::{Element, Kind};
use crate::ffi::{Addr, Datatype};
use crate::{c, memory};

/// A part of an element: bytes here, bytes outside, how one becomes the other.
#[derive(Clone, Copy)]
struct ElementPart {
    offset: usize,
    native: usize,
    outside: usize,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Signed,
    Unsigned,
    X87,
}

/// One or two parts.
fn parts(element: Element) -> ([ElementPart; 2], usize) {
    let handle = Datatype(element.handle());
    let number = |offset, size, form| ElementPart {
        offset,
        native: size,
        outside: if form == Form::Plain
            || handle != c::LONG_INT && handle != c::LONG && handle != c::UNSIGNED_LONG
        {
            size
        } else if size == 8 {
            4
        } else {
            size
        },
        form,
    };
    let part = |kind: Kind, offset: usize| match kind {
        Kind::Int(n) => number(offset, usize::from(n), Form::Signed),
        Kind::Uint(n) => number(offset, usize::from(n), Form::Unsigned),
        Kind::Float(16) | Kind::Complex(16) if !element.is_binary128() => {
            number(offset, 16, Form::Plain).with(Form::X87)
        }
        Kind::Float(n) | Kind::Complex(n) | Kind::Logical(n) => {
            number(offset, usize::from(n), Form::Plain)
        }
        Kind::Wchar => ElementPart {
            offset,
            native: 4,
            outside: 2,
            form: Form::Unsigned,
        },
        _ => number(offset, element.size(), Form::Plain),
    };
    match (element.kind(), element.second()) {
        (_, Some((a, b, offset))) => ([part(a, 0), part(b, offset)], 2),
        (kind @ Kind::Complex(n), None) => ([part(kind, 0), part(kind, usize::from(n))], 2),
        (kind, None) => ([part(kind, 0); 2], 1),
    }
}

impl ElementPart {
    fn with(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// To the external form.
    fn put(self, native: &[u8], out: &mut [u8]) {
        let wide;
        let native = if self.form == Form::X87 {
            wide = binary128_from_x87(native);
            &wide[..]
        } else {
            native
        };
        for (index, byte) in out.iter_mut().rev().enumerate() {
            *byte = native[index];
        }
    }

    /// From the external form.
    fn take(self, outside: &[u8], native: &mut [u8]) {
        if self.form == Form::X87 {
            let mut wide = [0; 16];
            for (index, byte) in outside.iter().rev().enumerate() {
                wide[index] = *byte;
            }
            native.copy_from_slice(&x87_from_binary128(wide));
            return;
        }
        let negative =
            self.form == Form::Signed && outside.first().is_some_and(|&top| top >> 7 != 0);
        let fill = if negative { 0xff } else { 0 };
        for (index, byte) in native.iter_mut().enumerate() {
            *byte = if index < outside.len() {
                outside[outside.len() - 1 - index]
            } else {
                fill
            };
        }
    }
}

/// The x87 format in 16 bytes as binary128. Its fraction is longer, so nothing is lost.
fn binary128_from_x87(bytes: &[u8]) -> [u8; 16] {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[..8]);
    let significand = u64::from_le_bytes(eight);
    let head = u16::from_le_bytes([bytes[8], bytes[9]]);
    // The integer bit is not stored; what follows it is the top of the fraction.
    let fraction = u128::from(significand << 1) << 48;
    (u128::from(head) << 112 | fraction).to_le_bytes()
}

/// Back, to the nearest.
fn x87_from_binary128(bytes: [u8; 16]) -> [u8; 16] {
    let value = u128::from_le_bytes(bytes);
    let mut head = (value >> 112) as u16;
    let fraction = value & ((1 << 112) - 1);
    let mut top = (fraction >> 49) as u64;
    let rest = fraction & ((1 << 49) - 1);
    let half = 1 << 48;
    let special = head & 0x7fff == 0x7fff;
    if !special && (rest > half || (rest == half && top & 1 == 1)) {
        top += 1;
        if top >> 63 != 0 {
            top = 0;
            head += 1;
        }
    }
    let integer = u64::from(head & 0x7fff != 0) << 63;
    let mut out = [0; 16];
    out[..8].copy_from_slice(&(integer | top).to_le_bytes());
    out[8..10].copy_from_slice(&head.to_le_bytes());
    out
}

fn element_size(element: Element) -> u64 {
    let (parts, n) = parts(element);
    parts[..n].iter().map(|part| part.outside as u64).sum()
}

/// Bytes of one instance in the external form.
pub(super) fn size(object: &TypeObject) -> u64 {
    if let Some(element) = object.shape.uniform {
        let instances = object.shape.elements / element.basics().len() as u64;
        return instances.saturating_mul(element_size(element));
    }
    let mut bytes = 0;
    object.shape.map.walk(0, &mut |element, _| {
        bytes += element_size(element);
        true
    });
    bytes
}

fn each_part(
    object: &TypeObject,
    count: u64,
    base: Addr,
    mut f: impl FnMut(ElementPart, Addr, usize),
) {
    let mut done = 0;
    let extent = object.shape.extent();
    for turn in 0..count as i64 {
        object
            .shape
            .map
            .walk(turn * extent, &mut |element, offset| {
                let (parts, n) = parts(element);
                for part in &parts[..n] {
                    f(*part, base.offset(offset + part.offset as i64), done);
                    done += part.outside;
                }
                true
            });
    }
}

pub(super) fn pack(object: &TypeObject, count: u64, base: Addr, out: &mut [u8]) {
    each_part(object, count, base, |part, at, done| {
        memory::with_bytes(at, part.native, |native| {
            part.put(native, &mut out[done..done + part.outside]);
        });
    });
}

pub(super) fn unpack(object: &TypeObject, count: u64, base: Addr, bytes: &[u8]) {
    each_part(object, count, base, |part, at, done| {
        memory::with_bytes_mut(at, part.native, |native| {
            part.take(&bytes[done..done + part.outside], native);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn x87(head: u16, significand: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&significand.to_le_bytes());
        bytes[8..10].copy_from_slice(&head.to_le_bytes());
        bytes
    }

    #[test]
    fn x87_values_survive_binary128() {
        let one = x87(0x3fff, 1 << 63);
        assert_eq!(
            u128::from_le_bytes(binary128_from_x87(&one)),
            0x3fff << 112,
            "1.0"
        );
        for value in [
            one,
            x87(0xbfff, 3 << 62),
            x87(0x4001, 0xdead_beef_1234_5677 | 1 << 63),
            x87(0x7fff, 1 << 63),
            x87(0, 0),
            x87(0x7ffe, u64::MAX),
        ] {
            assert_eq!(x87_from_binary128(binary128_from_x87(&value)), value);
        }
    }
}
