// SPDX-License-Identifier: MIT OR Apache-2.0
//! A member's buffer as another member reads it, and the destination of the bytes.

use super::ByteRange;
use super::contribution::RESULT;
use super::state::CommState;
use crate::error::{Error, Result};
use onecopy_btl::RemoteRange;
use onecopy_shm::coll::{CheckedLine, kind};
use onecopy_shm::loan::{Loan, LoanTable};

/// A member's buffer during a collective.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberBuffer {
    pub(crate) seq: u32,
    pub(crate) place: usize,
    /// Which of the member's buffers.
    pub(crate) buffer: usize,
    pub(crate) range: RemoteRange,
    /// Whether the member copies at once what it is asked for.
    pub(crate) answers: bool,
}

impl MemberBuffer {
    /// One of the two buffers that the line of `place` describes.
    pub(crate) fn of(line: &CheckedLine, seq: u32, place: usize, buffer: usize) -> Self {
        let described = if buffer == RESULT {
            line.result
        } else {
            line.given
        };
        Self {
            seq,
            place,
            buffer,
            range: super::lines::range(described),
            answers: line.has(kind::ANSWERS),
        }
    }
}

/// Where bytes go.
pub(crate) enum CopyTarget<'t> {
    Loan(Loan, usize),
    Bytes(&'t mut [u8]),
}

impl CopyTarget<'_> {
    /// Lets `f` write `len` bytes from `begin` on.
    pub(crate) fn write<R>(
        &mut self,
        loans: &mut LoanTable,
        begin: usize,
        len: usize,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        match self {
            Self::Loan(loan, offset) => Ok(loans.write(loan.range(*offset + begin, len), f)?),
            Self::Bytes(bytes) => Ok(f(&mut bytes[begin..begin + len])),
        }
    }
}

/// A part of the source's range, checked.
pub(crate) fn part(
    state: &CommState,
    source: &MemberBuffer,
    wanted: ByteRange,
) -> Result<RemoteRange> {
    let ByteRange { offset, len } = wanted;
    if offset
        .checked_add(len)
        .is_none_or(|end| end as u64 > source.range.len)
    {
        let (place, given) = (source.place, source.range.len);
        return Err(Error::Collective {
            reason: format!(
                "rank {} gave {given} bytes where bytes {offset}..{offset}+{len} were expected",
                state.members[place]
            ),
        });
    }
    Ok(source.range.part(offset as u64, len as u64))
}

/// A member gave more or less than what all should give.
pub(crate) fn mismatch(state: &CommState, place: usize, given: u64, expected: usize) -> Error {
    unequal(state.members[place] as usize, given, expected)
}

/// As [`mismatch`], of a rank.
pub(crate) fn unequal(rank: usize, given: u64, expected: usize) -> Error {
    Error::Collective {
        reason: format!("rank {rank} gave {given} bytes where {expected} were expected; {REMEDY}"),
    }
}

/// `rank` has ended a collective of which more was expected.
pub(crate) fn unlike(rank: usize) -> Error {
    Error::Collective {
        reason: format!("rank {rank} has ended it with less than was expected; {REMEDY}"),
    }
}

/// What a program has to do whose members disagree.
pub(crate) const REMEDY: &str = "call it with matching lengths on all ranks of the communicator";
