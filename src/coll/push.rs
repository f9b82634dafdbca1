// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing into members' receive buffers. A rank that waits in the call writes its bytes straight into the buffers that
//! need them. So both processors copy, bytes for several members are loaded once, and no member fetches lines that were
//! written just now.
//!
//! A line says `OPEN` if its second buffer, where the owner receives, lies where members can write by stores of their
//! own. It says `WRITES` if its owner will write into the open buffers: the owner waits in the call, and maps the
//! memory of all members. All read the same flags, so writer and receiver agree. The writer's second phase says that
//! all is written.

use super::ByteRange;
use super::context::{MemoryParts, StepMemory};
use super::lines;
use super::state::CommState;
use crate::error::{Error, Result};
use crate::peer::Peer;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{CheckedLine, Content, kind};
use onecopy_shm::loan::Loan;
use std::io::IoSlice;

/// The phase of a line whose owner has written, or combined, all that it had to.
pub(crate) const WRITTEN: u32 = 2;
/// Bytes that are copied to one place after the other: they stay in the first cache between. Half of the smallest first
/// cache.
pub(crate) const PIECE: usize = 16 << 10;

/// What of a rank's offer goes where in the buffer of a member that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gives {
    /// Members read all of it themselves.
    Nothing,
    /// All of it: into the member's part for this rank, of equal parts.
    All,
    /// Of equal parts of so many bytes, the one for the member: into the member's part for this rank.
    Parts(usize),
    /// What lies behind [`half`] of it, to the same place; the member reads the front itself.
    Half,
}

/// What a rank's line promises beside what it describes; see above, and [`kind::ANSWERS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Promises {
    pub(crate) open: bool,
    pub(crate) writes: bool,
    pub(crate) answers: bool,
}

impl Promises {
    /// For the line.
    pub(crate) fn flags(self) -> u8 {
        let flag = |on, flag| if on { flag } else { 0 };
        flag(self.open, kind::OPEN)
            | flag(self.writes, kind::WRITES)
            | flag(self.answers, kind::ANSWERS)
    }
}

/// Bytes of `len` that the receiver copies, when both ends copy.
pub(crate) fn half(len: usize) -> usize {
    (len / 2).next_multiple_of(4096).min(len)
}

/// The place of the next `n` of `len` bytes, of which `done` are done. Every other collective goes backwards: what the
/// one before touched last is in the cache still.
pub(crate) fn place_of(seq: u32, len: usize, done: usize, n: usize) -> usize {
    if seq & 1 == 1 { len - done - n } else { done }
}

/// Whether this rank maps the memory of all members.
pub(crate) fn reaches_all(peers: &[Option<Box<Peer>>], state: &CommState) -> bool {
    let reaches = |rank: u32| {
        let peer = peers[rank as usize].as_ref();
        peer.is_some_and(|peer| peer.link.has(LayerId::MAP))
    };
    state
        .members
        .iter()
        .enumerate()
        .all(|(place, &rank)| place == state.me || reaches(rank))
}

/// The receive buffer of the member that says this, if members may write into it.
pub(crate) fn opened(line: &CheckedLine) -> Option<RemoteRange> {
    let is_open = line.has(kind::OPEN) && line.content != Content::Pieces;
    is_open.then(|| lines::range(line.result))
}

/// Where what is written to members stands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WriteSource<'a> {
    /// In a buffer of this rank, from this byte on.
    Loan(Loan, usize),
    Bytes(&'a [u8]),
}

/// Where bytes are written to a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteTarget {
    pub(crate) place: usize,
    /// The buffer, or a part of it.
    pub(crate) range: RemoteRange,
}

/// Writes bytes of `source` to all of `targets`, to the same range of each.
pub(crate) fn put_to_all(
    memory: &mut StepMemory<'_>,
    state: &CommState,
    targets: &[WriteTarget],
    range: ByteRange,
    source: WriteSource<'_>,
) -> Result<()> {
    let MemoryParts {
        loans,
        counters,
        peers,
    } = memory.parts();
    let places = targets.iter().map(|target| target.place);
    let ByteRange { offset, len } = range;
    let write = |bytes: &[u8]| {
        targets.iter().try_for_each(|target| {
            let to = target.range.part(offset as u64, len as u64);
            put(peers, state, target.place, to, bytes)
        })
    };
    writing(state, places, || match source {
        WriteSource::Loan(loan, from) => loans.read(loan.range(from, len), write)?,
        WriteSource::Bytes(bytes) => write(bytes),
    })?;
    counters.put_bytes += (len * targets.len()) as u64;
    Ok(())
}

/// Lets `f` write into buffers of `places`, unless one of them has given the communicator up, or has freed it. What
/// belonged to that one may be used for something else.
fn writing<R>(
    state: &CommState,
    places: impl IntoIterator<Item = usize>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let own = state.own();
    own.begin_writes();
    let lost = places.into_iter().find_map(|place| {
        let is_open = state.channel_ends[place].tag() == state.tag;
        let given_up = || Error::given_up(state.members[place] as usize);
        state
            .failure_of(place)
            .or_else(|| (!is_open).then(given_up))
    });
    let result = lost.map_or_else(f, Err);
    own.end_writes();
    result
}

/// Writes `bytes` to `to` in the memory of `place`; within [`writing`].
fn put(
    peers: &[Option<Box<Peer>>],
    state: &CommState,
    place: usize,
    to: RemoteRange,
    bytes: &[u8],
) -> Result<()> {
    let rank = state.members[place] as usize;
    let Some(peer) = &peers[rank] else {
        return Err(Error::PeerLeft { rank });
    };
    let put = peer.link.put(LayerId::MAP, &[to], &[IoSlice::new(bytes)]);
    put.map_err(|error| Error::Collective {
        reason: format!("the receive buffer of rank {rank} cannot be written: {error}"),
    })
}
