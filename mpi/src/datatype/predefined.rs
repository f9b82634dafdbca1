// SPDX-License-Identifier: MIT OR Apache-2.0
//! The predefined datatypes, from the table of constants.

use super::layout::Layout;
use crate::c;

/// What an element is to arithmetic and to the external representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    None,
    /// Signed integers of so many bytes.
    Int(u8),
    /// Unsigned integers.
    Uint(u8),
    /// Floating point. 16 is the x87 format where the type is `long double`, binary128 where it is `MPI_REAL16`.
    Float(u8),
    /// Two of the above.
    Complex(u8),
    /// Fortran logicals.
    Logical(u8),
    /// C's bool.
    Bool,
    Byte,
    Char,
    Wchar,
    Packed,
    /// A value and an `int` or a value of its own kind.
    Pair(Basic, Basic),
}

/// A part of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Basic {
    I16,
    I32,
    I64,
    F32,
    F64,
    F80,
}

impl Basic {
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
            Self::F80 => 16,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::I16 => Kind::Int(2),
            Self::I32 => Kind::Int(4),
            Self::I64 => Kind::Int(8),
            Self::F32 => Kind::Float(4),
            Self::F64 => Kind::Float(8),
            Self::F80 => Kind::Float(16),
        }
    }
}

/// An element of typemaps: a predefined datatype, by the low byte of its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Element(u8);

const fn eq(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut index = 0;
    while index < a.len() {
        if a[index] != b[index] {
            return false;
        }
        index += 1;
    }
    true
}

const fn kind_of(word: &str) -> Kind {
    const WORDS: &[(&str, Kind)] = &[
        ("none", Kind::None),
        ("i8", Kind::Int(1)),
        ("i16", Kind::Int(2)),
        ("i32", Kind::Int(4)),
        ("i64", Kind::Int(8)),
        ("i128", Kind::Int(16)),
        ("u8", Kind::Uint(1)),
        ("u16", Kind::Uint(2)),
        ("u32", Kind::Uint(4)),
        ("u64", Kind::Uint(8)),
        ("f16", Kind::Float(2)),
        ("f32", Kind::Float(4)),
        ("f64", Kind::Float(8)),
        ("f80", Kind::Float(16)),
        ("f128", Kind::Float(16)),
        ("c16", Kind::Complex(2)),
        ("c32", Kind::Complex(4)),
        ("c64", Kind::Complex(8)),
        ("c80", Kind::Complex(16)),
        ("c128", Kind::Complex(16)),
        ("l8", Kind::Logical(1)),
        ("l16", Kind::Logical(2)),
        ("l32", Kind::Logical(4)),
        ("l64", Kind::Logical(8)),
        ("l128", Kind::Logical(16)),
        ("bool", Kind::Bool),
        ("byte", Kind::Byte),
        ("char", Kind::Char),
        ("wchar", Kind::Wchar),
        ("packed", Kind::Packed),
        ("f32+i32", Kind::Pair(Basic::F32, Basic::I32)),
        ("f64+i32", Kind::Pair(Basic::F64, Basic::I32)),
        ("i64+i32", Kind::Pair(Basic::I64, Basic::I32)),
        ("i32+i32", Kind::Pair(Basic::I32, Basic::I32)),
        ("i16+i32", Kind::Pair(Basic::I16, Basic::I32)),
        ("f80+i32", Kind::Pair(Basic::F80, Basic::I32)),
        ("f32+f32", Kind::Pair(Basic::F32, Basic::F32)),
        ("f64+f64", Kind::Pair(Basic::F64, Basic::F64)),
    ];
    let mut index = 0;
    while index < WORDS.len() {
        if eq(WORDS[index].0.as_bytes(), word.as_bytes()) {
            return WORDS[index].1;
        }
        index += 1;
    }
    panic!("a word in the table of datatypes that has no meaning")
}

const fn size_of_kind(kind: Kind) -> usize {
    match kind {
        Kind::None => 0,
        Kind::Int(n) | Kind::Uint(n) | Kind::Float(n) | Kind::Logical(n) => n as usize,
        Kind::Complex(n) => 2 * n as usize,
        Kind::Bool | Kind::Byte | Kind::Char | Kind::Packed => 1,
        Kind::Wchar => 4,
        Kind::Pair(a, b) => a.size() + b.size(),
    }
}

/// By the low byte of the handle.
const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::None; 256];
    let mut index = 0;
    while index < c::DATATYPES.len() {
        let (_, handle, word) = c::DATATYPES[index];
        kinds[handle & 0xff] = kind_of(word);
        index += 1;
    }
    kinds
};

/// Bytes of an element, if it fills its extent; 0 otherwise.
static DENSE_SIZES: [u8; 256] = {
    let mut sizes = [0; 256];
    let mut index = 0;
    while index < 256 {
        let kind = KINDS[index];
        sizes[index] = match kind {
            Kind::Pair(a, b) if a.size() != b.size() => 0,
            _ => size_of_kind(kind) as u8,
        };
        index += 1;
    }
    sizes
};

/// Sizes of the basic elements by the low byte of the handle, and whether there are two.
static BASICS: [([u64; 2], bool); 256] = {
    let mut basics = [([0; 2], false); 256];
    let mut index = 0;
    while index < 256 {
        let kind = KINDS[index];
        basics[index] = match kind {
            Kind::Pair(a, b) => ([a.size() as u64, b.size() as u64], true),
            _ => ([size_of_kind(kind) as u64, 0], false),
        };
        index += 1;
    }
    basics
};

/// Bytes of a predefined datatype that fills its extent.
#[inline(always)]
pub(crate) fn dense_size(handle: usize) -> Option<usize> {
    if handle & !0xff != 0x200 {
        return None;
    }
    match DENSE_SIZES[handle & 0xff] {
        0 => None,
        size => Some(usize::from(size)),
    }
}

impl Element {
    /// How many there may be.
    pub(crate) const COUNT: usize = KINDS.len();

    /// Its number among them.
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The kind of the one of this number.
    pub(crate) const fn kind_at(index: usize) -> Kind {
        KINDS[index]
    }

    /// The element of a handle.
    #[inline]
    pub(crate) fn from_handle(handle: usize) -> Option<Self> {
        (handle & !0xff == 0x200 && KINDS[handle & 0xff] != Kind::None)
            .then_some(Self(handle as u8))
    }

    pub(crate) fn handle(self) -> usize {
        0x200 | usize::from(self.0)
    }

    pub(crate) fn kind(self) -> Kind {
        Self::kind_at(self.index())
    }

    /// Whether its 16 bytes are binary128 and not the x87 format.
    pub(crate) fn is_binary128(self) -> bool {
        matches!(
            crate::ffi::Datatype(self.handle()),
            c::REAL16 | c::COMPLEX32
        )
    }

    pub(crate) fn size(self) -> usize {
        size_of_kind(self.kind())
    }

    /// Sizes of the basic elements, which a pair has two of.
    pub(crate) fn basics(self) -> &'static [u64] {
        let (sizes, is_pair) = &BASICS[usize::from(self.0)];
        if *is_pair { sizes } else { &sizes[..1] }
    }

    pub(crate) fn align(self) -> usize {
        match self.kind() {
            Kind::Complex(n) => usize::from(n),
            Kind::Pair(a, b) => a.size().max(b.size()),
            kind => size_of_kind(kind).max(1),
        }
    }

    /// Displacement of a pair's second part.
    pub(crate) fn second(self) -> Option<(Kind, Kind, usize)> {
        match self.kind() {
            Kind::Pair(a, b) => Some((a.kind(), b.kind(), a.size().next_multiple_of(b.size()))),
            _ => None,
        }
    }

    /// Bytes up to the end of the last part.
    pub(crate) fn true_extent(self) -> usize {
        match (self.kind(), self.second()) {
            (Kind::Pair(_, b), Some((_, _, offset))) => offset + b.size(),
            _ => self.size(),
        }
    }

    pub(crate) fn extent(self) -> usize {
        self.true_extent().next_multiple_of(self.align())
    }

    pub(crate) fn layout(self) -> Layout {
        match (self.kind(), self.second()) {
            (Kind::Pair(a, b), Some((_, _, offset))) => Layout::list([
                Layout::run(0, a.size() as u64),
                Layout::run(offset as i64, b.size() as u64),
            ]),
            _ => Layout::run(0, self.size() as u64),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        c::DATATYPES
            .iter()
            .find(|(_, handle, _)| *handle == self.handle())
            .map_or("", |(name, _, _)| name)
    }
}

/// All elements.
pub(crate) fn all() -> impl Iterator<Item = Element> {
    c::DATATYPES
        .iter()
        .filter_map(|(_, handle, _)| Element::from_handle(*handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_encoding_where_it_tells_them() {
        for element in all() {
            let handle = element.handle();
            if matches!(handle & 0x3c0, 0x240 | 0x2c0) {
                assert_eq!(
                    element.size(),
                    1 << ((handle >> 3) & 7),
                    "{}",
                    element.name()
                );
            }
        }
        assert_eq!(all().count(), 70);
        let extent = |handle: crate::ffi::Datatype| {
            let element = Element::from_handle(handle.0).unwrap();
            (element.size(), element.extent())
        };
        assert_eq!(extent(c::DOUBLE_INT), (12, 16));
        assert_eq!(extent(c::LONG_INT), (12, 16));
        assert_eq!(extent(c::SHORT_INT), (6, 8));
        assert_eq!(extent(c::LONG_DOUBLE_INT), (20, 32));
        assert_eq!(dense_size(c::DOUBLE_INT.0), None);
        assert_eq!(dense_size(c::TWOINT.0), Some(8));
    }
}
