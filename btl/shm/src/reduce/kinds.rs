// SPDX-License-Identifier: MIT OR Apache-2.0
//! What reductions are made of: kinds of elements and the predefined operators on them.
//!
//! An element has a fixed size and no meaning beyond its kind. Vectors of elements are passed as bytes, so that the
//! layers above need no type parameters; every length is a multiple of the element's size.

/// A kind of element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElemType {
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// Two singles: real part, imaginary part.
    ComplexF32,
    /// Two doubles: real part, imaginary part.
    ComplexF64,
    /// A 16-bit value and a 32-bit index, 8 bytes; the bytes between have no meaning.
    I16Index,
    /// A 32-bit value and a 32-bit index, 8 bytes.
    I32Index,
    /// A 64-bit value and a 32-bit index, 16 bytes; the last four have no meaning.
    I64Index,
    /// A single and a 32-bit index, 8 bytes.
    F32Index,
    /// A double and a 32-bit index, 16 bytes; the last four have no meaning.
    F64Index,
    /// So many bytes that only operators of the program understand.
    Opaque(u32),
}

impl ElemType {
    /// All kinds that predefined operators know.
    pub const KNOWN: [Self; 17] = [
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F32,
        Self::F64,
        Self::ComplexF32,
        Self::ComplexF64,
        Self::I16Index,
        Self::I32Index,
        Self::I64Index,
        Self::F32Index,
        Self::F64Index,
    ];

    /// Bytes of one element.
    #[inline]
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64
            | Self::U64
            | Self::F64
            | Self::ComplexF32
            | Self::I16Index
            | Self::I32Index
            | Self::F32Index => 8,
            Self::ComplexF64 | Self::I64Index | Self::F64Index => 16,
            Self::Opaque(bytes) => bytes as usize,
        }
    }

    /// Whether so many bytes are a whole number of elements. Most sizes are powers of two, and need no division.
    #[inline]
    #[must_use]
    pub const fn divides(self, bytes: usize) -> bool {
        let size = self.size();
        if size.is_power_of_two() {
            bytes & (size - 1) == 0
        } else {
            bytes.is_multiple_of(size)
        }
    }

    const fn class(self) -> Class {
        match self {
            Self::I8
            | Self::I16
            | Self::I32
            | Self::I64
            | Self::U8
            | Self::U16
            | Self::U32
            | Self::U64 => Class::Integer,
            Self::F32 | Self::F64 => Class::Float,
            Self::ComplexF32 | Self::ComplexF64 => Class::Complex,
            Self::I16Index | Self::I32Index | Self::I64Index | Self::F32Index | Self::F64Index => {
                Class::Indexed
            }
            Self::Opaque(_) => Class::Opaque,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    Complex,
    Indexed,
    Opaque,
}

/// A predefined operator. All are associative and commutative up to rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PredefinedOp {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Prod,
    /// The smaller one. Of floats, the first operand unless the second is smaller.
    Min,
    /// The larger one. Of floats, the first operand unless the second is larger.
    Max,
    /// Whether both are not zero: 1 or 0.
    LogicalAnd,
    /// Whether one is not zero: 1 or 0.
    LogicalOr,
    /// Whether exactly one is not zero: 1 or 0.
    LogicalXor,
    /// Bits set in both.
    BitAnd,
    /// Bits set in one.
    BitOr,
    /// Bits set in exactly one.
    BitXor,
    /// The smaller value with its index; of equal ones the smaller index.
    MinLoc,
    /// The larger value with its index; of equal ones the smaller index.
    MaxLoc,
}

impl PredefinedOp {
    /// All operators.
    pub const ALL: [Self; 12] = [
        Self::Sum,
        Self::Prod,
        Self::Min,
        Self::Max,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::MinLoc,
        Self::MaxLoc,
    ];

    /// Whether the operator has a meaning for such elements.
    #[must_use]
    pub const fn accepts(self, elem: ElemType) -> bool {
        match (self, elem.class()) {
            (_, Class::Opaque) => false,
            (Self::Sum | Self::Prod, class) => !matches!(class, Class::Indexed),
            (
                Self::Min | Self::Max | Self::LogicalAnd | Self::LogicalOr | Self::LogicalXor,
                class,
            ) => matches!(class, Class::Integer | Class::Float),
            (Self::BitAnd | Self::BitOr | Self::BitXor, class) => matches!(class, Class::Integer),
            (Self::MinLoc | Self::MaxLoc, class) => matches!(class, Class::Indexed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_accept_what_mpi_lets_them() {
        let count = |op: PredefinedOp| {
            ElemType::KNOWN
                .into_iter()
                .filter(|&e| op.accepts(e))
                .count()
        };
        let counts = PredefinedOp::ALL.map(count);
        assert_eq!(counts, [12, 12, 10, 10, 10, 10, 10, 8, 8, 8, 5, 5]);
        assert!(
            !PredefinedOp::ALL
                .iter()
                .any(|op| op.accepts(ElemType::Opaque(8)))
        );
    }
}
