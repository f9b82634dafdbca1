// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank contributes to a collective, of any kind: ranges of buffers, who reads them, and where they are.

use super::observed::Timed;
use crate::error::Result;
use crate::memory::pool::{MemoryKind, Pool, PoolBuf};
use crate::select::observed::Rival;
use onecopy_btl::RemoteRange;
use onecopy_shm::loan::{Loan, LoanRange};

/// The buffers of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallBuffers {
    pub(crate) send: Option<Loan>,
    pub(crate) recv: Option<Loan>,
}

/// Bytes of one entry of a table of parts.
pub(crate) const ENTRY: usize = 16;
/// The buffer that a rank gives in a collective.
pub(crate) const GIVEN: usize = 0;
/// The buffer in which a rank leaves its part of a result.
pub(crate) const RESULT: usize = 1;

/// Who reads this rank's memory in a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    Nobody,
    Only(usize),
    Everyone,
}

impl Readers {
    /// Whether `place` is one of them.
    pub(crate) fn include(self, place: usize) -> bool {
        match self {
            Self::Nobody => false,
            Self::Only(only) => only == place,
            Self::Everyone => true,
        }
    }

    /// The others of them, beginning behind `me`: no two ranks begin with the same.
    pub(crate) fn others(self, size: usize, me: usize) -> impl Iterator<Item = usize> {
        behind(size, me).filter(move |&place| self.include(place))
    }
}

/// All other members, beginning behind `me`.
pub(crate) fn behind(size: usize, me: usize) -> impl Iterator<Item = usize> {
    (1..size).map(move |step| (me + step) % size)
}

/// Memory that peers may read during a collective, or call for.
pub(crate) enum Served {
    Loan(LoanRange),
    /// The temporary buffer of the collective.
    Temp,
    /// The bounce buffer that the communicator keeps.
    Kept,
}

/// What a rank serves to the others in one collective.
pub(crate) struct Contribution {
    /// Who reads this rank's buffers.
    pub(crate) readers: Readers,
    pub(crate) served: [Option<Served>; 2],
    pub(crate) temp: Option<PoolBuf>,
    /// Whether the program waits in the call.
    pub(crate) blocking: bool,
    /// Whether it waits, and no other collective of the communicator was under way on this rank when it began.
    pub(crate) alone: bool,
    /// Whether this rank leaves a share of the result for others to read.
    pub(crate) shares: bool,
    /// The way of what cannot be mapped: chosen, perhaps as a try, or expected by a rank that only takes. None: sizes
    /// decide.
    pub(super) way: Option<Rival>,
    /// How it is timed, if it is.
    pub(super) timed: Option<Timed>,
}

/// What a collective works on besides buffers: partial results, and copies of what it cannot read in place.
#[derive(Default)]
pub(crate) struct Scratch(Option<PoolBuf>);

impl Scratch {
    /// Sees that there are `len` bytes. Says whether they are new, so that what stood in others is lost.
    pub(crate) fn renew(&mut self, buffers: &mut Pool, len: usize) -> Result<bool> {
        if self.0.as_ref().map_or(0, |bytes| bytes.len()) >= len {
            return Ok(false);
        }
        self.0 = Some(buffers.take(len, MemoryKind::Private)?);
        Ok(true)
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self) {
        self.0 = None;
    }
}

/// Where a buffer is, for a line's payload.
pub(crate) fn describe(range: &RemoteRange, out: &mut [u8]) {
    let words = [
        range.address,
        range.heap.map_or(u64::MAX, |offset| offset.0),
        range.len,
    ];
    for (place, word) in out.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// How long a message is, for a line's payload: it has no address.
pub(crate) fn describe_message(len: usize, out: &mut [u8]) {
    let range = RemoteRange {
        address: 0,
        heap: None,
        region: None,
        len: len as u64,
    };
    describe(&range, out);
}

/// Where a temporary buffer is, for a peer.
pub(crate) fn range_of_temp(temp: &PoolBuf) -> RemoteRange {
    RemoteRange {
        address: temp.as_ptr() as u64,
        heap: temp.offset(),
        region: None,
        len: temp.len() as u64,
    }
}
