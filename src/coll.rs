// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives: what all ranks of a communicator do together.
//!
//! A [`Collective`] says what is to be done, on bytes; the typed calls of [`Comm`](crate::Comm) and
//! [`Scope`](crate::Scope) are made of it. All members of a communicator start its collectives in the same order; each
//! may wait for them or go on. Every call of the runtime moves them.
//!
//! How they work: each communicator has a *channel*, lines of shared memory in the segment of every member
//! (`btl/shm/src/coll.rs`). What a rank contributes to a collective stands in its line, in a slot next to it, or in a
//! buffer that the line describes. Members that need it load it from there. No message is matched. Nothing depends on
//! what a reader knows in advance: the line says where the bytes are, so each rank chooses by its own buffer. Only how
//! a reduction is shared between the ranks follows from sizes that all know ([`select`]). A communicator for which no
//! channel is left does the same by messages (`coll/messages.rs`). One whose members are on several nodes has two
//! levels: a channel on each node, and messages between the nodes (`coll/levels.rs`).
//!
//! Reductions combine contributions in the order of the ranks, so that operators need not commute. Results are the
//! same, bit for bit, from run to run with the same number of ranks.

pub(crate) mod agree;
mod communicator;
mod context;
mod contribution;
mod copy_request;
mod exchange;
pub(crate) mod failed;
pub(crate) mod fast;
mod fold;
pub(crate) mod group;
pub(crate) mod ids;
mod levels;
mod lines;
mod member_buffer;
mod messages;
pub mod nodes;
mod observed;
mod op;
mod pieces;
pub(crate) mod plan;
mod push;
mod reader;
mod relay;
mod requested_copies;
mod schedule;
pub mod select;
mod spares;
mod start;
pub(crate) mod state;
mod stream;
mod swap;
pub(crate) mod tags;
mod tally;
mod tree;
mod worker;

pub(crate) use contribution::CallBuffers;
pub use group::Group;
pub use onecopy_shm::reduce::{ElemType, PredefinedOp};
pub(crate) use start::Call;
pub(crate) use worker::Worker;

use crate::error::Error;
use bytemuck::{AnyBitPattern, NoUninit};
use onecopy_shm::gate;
use std::sync::Arc;

/// An operator of the program: combines a vector of elements, the left operands, into another one, the right operands
/// and the result.
pub type UserFunction = dyn Fn(&[u8], &mut [u8]) + Send + Sync;

/// An operator of a reduction.
///
/// ```
/// use onecopy::coll::Op;
/// use onecopy::coll::PredefinedOp;
/// let sum: Op = PredefinedOp::Sum.into();
/// let first = Op::user(|left, right| right.copy_from_slice(left));
/// # let _ = (sum, first);
/// ```
#[derive(Clone)]
pub enum Op {
    /// One that all know.
    Predefined(PredefinedOp),
    /// One of the program, by [`Self::user`].
    User(Arc<UserFunction>),
}

impl Op {
    /// An operator of the program: `function(left, right)` sets each element of `right` to `left op right`. It must be
    /// associative; it need not be commutative, since elements are combined in the order of the ranks. Both vectors
    /// have the same whole number of elements.
    ///
    /// It is called inside of the runtime: if it uses the runtime, the process ends with a panic.
    pub fn user(function: impl Fn(&[u8], &mut [u8]) + Send + Sync + 'static) -> Self {
        Self::User(Arc::new(move |left, right| {
            gate::calling_out(|| function(left, right));
        }))
    }

    /// Whether it combines such elements.
    #[inline]
    fn suits(&self, elem: ElemType) -> bool {
        let defined = match self {
            Self::Predefined(op) => op.accepts(elem),
            Self::User(_) => true,
        };
        defined && (1..=MAX_ELEMENT).contains(&elem.size())
    }

    /// Why it does not.
    #[cold]
    fn misfit(&self, elem: ElemType) -> Error {
        let reason = match self {
            Self::Predefined(op) if !op.accepts(elem) => {
                format!("{op:?} has no meaning for elements of kind {elem:?}")
            }
            _ => format!(
                "elements of {} bytes; 1 to {MAX_ELEMENT} are possible in a reduction",
                elem.size()
            ),
        };
        Error::Collective { reason }
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Predefined(op) => op.fmt(f),
            Self::User(_) => f.write_str("User"),
        }
    }
}

impl From<PredefinedOp> for Op {
    fn from(op: PredefinedOp) -> Self {
        Self::Predefined(op)
    }
}

/// Bytes of the largest element of a reduction: one must fit into half a slot.
pub const MAX_ELEMENT: usize = onecopy_shm::layout::COLL_SLOT / 2;

/// Types whose vectors can be reduced by predefined operators.
pub trait Element: NoUninit + AnyBitPattern {
    /// The kind of element.
    const TYPE: ElemType;
}

macro_rules! elements {
    ($($t:ty => $kind:ident),+ $(,)?) => {$(
        impl Element for $t {
            const TYPE: ElemType = ElemType::$kind;
        }
    )+};
}

elements! {
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64, f32 => F32, f64 => F64,
    [f32; 2] => ComplexF32, [f64; 2] => ComplexF64,
}

/// Bytes of a buffer, or of a vector, that follow one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// Where the first one is.
    pub offset: usize,
    /// How many they are.
    pub len: usize,
}

impl ByteRange {
    /// The first `len` of them all.
    #[inline]
    pub(crate) fn first(len: usize) -> Self {
        Self { offset: 0, len }
    }

    /// Those from `begin` on, up to `end`, which is not before it.
    #[inline]
    pub(crate) fn between(begin: usize, end: usize) -> Self {
        Self {
            offset: begin,
            len: end - begin,
        }
    }

    /// Where they end.
    #[inline]
    #[must_use]
    pub fn end(self) -> usize {
        self.offset + self.len
    }

    /// Those behind the first `len`, which are no more than there are.
    #[inline]
    pub(crate) fn skip(self, len: usize) -> Self {
        Self {
            offset: self.offset + len,
            len: self.len - len,
        }
    }
}

/// Which bytes of a buffer belong to which rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parts {
    /// So many bytes for each, one after the other.
    Equal(usize),
    /// Those of each rank.
    Listed(Arc<[ByteRange]>),
}

impl Parts {
    /// The part of a rank.
    #[inline]
    #[must_use]
    pub fn of(&self, rank: usize) -> ByteRange {
        match self {
            &Self::Equal(len) => ByteRange {
                offset: rank.saturating_mul(len),
                len,
            },
            Self::Listed(parts) => parts.get(rank).copied().unwrap_or_default(),
        }
    }

    /// Parts of elements of `size` bytes, from counts and displacements in elements.
    #[must_use]
    pub fn listed(counts: &[usize], displacements: &[usize], size: usize) -> Self {
        let part = |(&count, &displacement): (&usize, &usize)| ByteRange {
            offset: displacement.saturating_mul(size),
            len: count.saturating_mul(size),
        };
        Self::Listed(counts.iter().zip(displacements).map(part).collect())
    }

    /// Parts of elements of `size` bytes, one after the other.
    #[must_use]
    pub fn packed(counts: &[usize], size: usize) -> Self {
        let mut end = 0usize;
        let part = |&count: &usize| {
            let len = count.saturating_mul(size);
            let offset = end;
            end = end.saturating_add(len);
            ByteRange { offset, len }
        };
        Self::Listed(counts.iter().map(part).collect())
    }

    /// Where the last byte of any of `ranks` parts ends.
    #[inline]
    pub(crate) fn end(&self, ranks: usize) -> usize {
        match self {
            Self::Equal(len) => len.saturating_mul(ranks),
            Self::Listed(parts) => {
                let used = parts.iter().take(ranks).filter(|part| part.len > 0);
                let ends = used.map(|part| part.offset.saturating_add(part.len));
                ends.max().unwrap_or(0)
            }
        }
    }
}

/// What the ranks do together. Ranks are those of the communicator, parts are in bytes. Every member names the same
/// collective with the same root, kind of elements and operator. A part that is sent has the length of the part that it
/// is received into.
///
/// | collective | send buffer | receive buffer | without a send buffer (in place) |
/// | --- | --- | --- | --- |
/// | `Bcast` | none | the bytes, in and out | |
/// | `Gather` | what the rank gives | at the root, by `parts` | root: its part is in place |
/// | `Scatter` | at the root, by `parts` | the rank's part | |
/// | `Allgather` | what the rank gives | by `parts` | its part is in place |
/// | `Alltoall` | by `send` | by `recv` | parts are replaced; `recv` describes both |
/// | `Reduce` | the vector | at the root, the result | root: the vector is in the receive buffer |
/// | `Allreduce`, `Scan`, `Exscan` | the vector | the result | the vector is in the receive buffer |
/// | `ReduceScatter` | the vector, by `parts` | the rank's part | the vector is in the receive buffer, the part comes to its front |
///
/// Where lengths do not match, a member that takes something gets an error that names the rank. The communicator has
/// failed then. A member that needs nothing more of the others is through before, and hears of it in its next
/// collective there. One that takes no bytes does not look at what it is given. Where collectives go by messages, and
/// between nodes, a member may wait for a message that nobody sends, until that rank leaves.
///
/// The root of a `Scatter` that has no receive buffer keeps its part where it is. An `Alltoall` of [`Parts::Equal`] at
/// one member is one at all of them.
#[derive(Debug, Clone)]
pub enum Collective {
    /// Everyone waits for everyone.
    Barrier,
    /// The root's bytes to everyone.
    Bcast {
        /// Who has them.
        root: usize,
    },
    /// Everyone's bytes to the root.
    Gather {
        /// Who gets them.
        root: usize,
        /// Where in the root's receive buffer; of no meaning elsewhere.
        parts: Parts,
    },
    /// The root's parts to everyone.
    Scatter {
        /// Who has them.
        root: usize,
        /// Where in the root's send buffer; of no meaning elsewhere.
        parts: Parts,
    },
    /// Everyone's bytes to everyone.
    Allgather {
        /// Where in the receive buffer.
        parts: Parts,
    },
    /// A part of everyone's to everyone.
    Alltoall {
        /// Where in the send buffer.
        send: Parts,
        /// Where in the receive buffer.
        recv: Parts,
    },
    /// All vectors combined, at the root.
    Reduce {
        /// Who gets the result.
        root: usize,
        /// Of what the vectors are.
        elem: ElemType,
        /// How they are combined.
        op: Op,
    },
    /// All vectors combined, everywhere.
    Allreduce {
        /// Of what the vectors are.
        elem: ElemType,
        /// How they are combined.
        op: Op,
    },
    /// All vectors combined, to each rank its part.
    ReduceScatter {
        /// The parts, one after the other.
        parts: Parts,
        /// Of what the vectors are.
        elem: ElemType,
        /// How they are combined.
        op: Op,
    },
    /// To each rank the vectors of those before it and its own, combined.
    Scan {
        /// Of what the vectors are.
        elem: ElemType,
        /// How they are combined.
        op: Op,
    },
    /// To each rank the vectors of those before it, combined; the first rank's receive buffer stays as it is.
    Exscan {
        /// Of what the vectors are.
        elem: ElemType,
        /// How they are combined.
        op: Op,
    },
}
