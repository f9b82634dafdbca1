// SPDX-License-Identifier: MIT OR Apache-2.0
//! Endpoints: how records, chunks, credit and wake-ups reach a peer, and come from it.
//!
//! Matching, protocols, collectives and the engine work on an [`Endpoint`] and on this rank's [`Home`]. They do not
//! know whether a peer is in shared memory. What every endpoint promises:
//!
//! - Records arrive whole, once, and in their order. A record that was claimed is published or becomes a no-op.
//! - A chunk that a record names can be read until that record is passed, and no longer.
//! - Nothing blocks: what has no room says so, and the caller tries again.
//! - What a peer writes is checked before it is used; a fault is an error that says what was seen.

mod home;
mod shared;
#[cfg(feature = "socket-endpoint")]
mod socket;

pub(crate) use home::{Bell, Home};
pub(crate) use onecopy_shm::cells::FIRST_PAYLOAD;
pub(crate) use onecopy_shm::coop::CoopBlock;
pub(crate) use onecopy_shm::doorbell::Woken;
pub(crate) use onecopy_shm::layout::ChunkIndex;
pub(crate) use onecopy_shm::ring::{BadRecord, MAX_RECORD_SLOTS, Record, payload_of, slots_for};
pub(crate) use shared::{OpenError, SharedMemory};
#[cfg(feature = "socket-endpoint")]
pub(crate) use socket::Socket;

use crate::error::Result;
use onecopy_shm::cells::MappedCells;
use onecopy_shm::coll::Channel;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::OutOfBounds;
use onecopy_shm::ring;

/// The way to one peer, and from it.
#[derive(Debug)]
pub(crate) enum Endpoint {
    /// Each maps the other's segment.
    SharedMemory(SharedMemory),
    /// A stream leads to it; for tests.
    #[cfg(feature = "socket-endpoint")]
    Socket(Socket),
}

/// Room for one record. Dropping it publishes nothing that the peer sees.
pub(crate) enum Claim<'e> {
    /// In a ring.
    Ring(ring::Claim<'e, MappedCells>),
    /// In a frame of a stream.
    #[cfg(feature = "socket-endpoint")]
    Frame(socket::Frame<'e>),
}

impl Claim<'_> {
    /// Writes payload bytes at `offset`.
    #[inline(always)]
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Ring(claim) => claim.write(offset, bytes),
            #[cfg(feature = "socket-endpoint")]
            Self::Frame(frame) => frame.write(offset, bytes),
        }
    }

    /// Publishes the record with `len` bytes of payload.
    #[inline(always)]
    pub(crate) fn publish(self, kind: u8, len: usize, meta: u64) {
        match self {
            Self::Ring(claim) => claim.publish(kind, len, meta),
            #[cfg(feature = "socket-endpoint")]
            Self::Frame(frame) => frame.publish(kind, len, meta),
        }
    }
}

/// The same call on whichever endpoint it is.
macro_rules! each {
    ($self:expr, $endpoint:ident => $call:expr) => {
        match $self {
            Self::SharedMemory($endpoint) => $call,
            #[cfg(feature = "socket-endpoint")]
            Self::Socket($endpoint) => $call,
        }
    };
}

/// To the peer.
impl Endpoint {
    /// Whether records can be claimed.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        each!(self, to => to.is_open())
    }

    /// Makes what records to the peer need.
    #[cold]
    pub(crate) fn open(&mut self) -> Result<()> {
        each!(self, to => to.make_ready())
    }

    /// Room for a record of `slots` slots. `None`: it is not open, or the peer must catch up first.
    #[inline(always)]
    pub(crate) fn claim(&mut self, slots: usize) -> Option<Claim<'_>> {
        each!(self, to => to.claim(slots))
    }

    /// Whether a record of `slots` slots could be claimed, once it is open.
    #[inline]
    pub(crate) fn has_room(&mut self, slots: usize) -> bool {
        each!(self, to => to.has_room(slots))
    }

    /// Whether something waits inside of the endpoint to be written. Each look for records writes what can be written.
    #[inline(always)]
    pub(crate) fn has_output(&self) -> bool {
        each!(self, to => to.has_output())
    }

    /// Tells the peer of what was just published, if it does not poll. Says whether a sleeper was woken.
    #[inline(always)]
    pub(crate) fn notify(&mut self) -> bool {
        each!(self, to => to.notify())
    }

    /// Wakes the peer, if it sleeps, to look at what is not a record: a block, a line of a collective.
    #[inline]
    pub(crate) fn wake(&self) {
        each!(self, to => to.wake());
    }

    /// Rings the peer's bell. The caller has issued the fence that keeps what it wrote before.
    #[inline]
    pub(crate) fn ring(&self) {
        each!(self, to => to.ring());
    }

    /// Whether this peer can only be woken behind full fences.
    pub(crate) fn is_strong(&self) -> bool {
        each!(self, to => to.is_strong())
    }

    /// Credit that the peer has given back, ever.
    #[inline]
    pub(crate) fn credit_back(&self) -> u64 {
        each!(self, to => to.credit_back())
    }

    /// A chunk to be filled for the peer, which may have `share` of them. `None`: it must give one back first, or
    /// memory is short for the moment.
    #[inline]
    pub(crate) fn take_chunk(&mut self, home: &mut Home, share: usize) -> Option<ChunkIndex> {
        each!(self, to => to.take_chunk(home, share))
    }

    /// Writes to a chunk that was taken. `false`: the bytes do not fit.
    #[inline]
    pub(crate) fn write_chunk(
        &mut self,
        home: &Home,
        chunk: ChunkIndex,
        at: usize,
        bytes: &[u8],
        kernel: Kernel,
    ) -> bool {
        each!(self, to => to.write_chunk(home, chunk, at, bytes, kernel))
    }

    /// The record that was published last names this chunk.
    #[inline]
    pub(crate) fn has_named(&mut self, chunk: ChunkIndex) {
        each!(self, to => to.has_named(chunk));
    }

    /// A chunk that was taken is not sent.
    pub(crate) fn return_chunk(&mut self, home: &mut Home, chunk: ChunkIndex) {
        each!(self, to => to.return_chunk(home, chunk));
    }

    /// Takes back the chunks that the peer has read.
    pub(crate) fn collect_chunks(&mut self, home: &mut Home) {
        each!(self, to => to.collect_chunks(home));
    }

    /// Takes back all chunks: the peer is gone.
    pub(crate) fn reclaim_all(&mut self, home: &mut Home) {
        each!(self, to => to.reclaim_all(home));
    }

    /// Whether a record, and a chunk if `share` of them may be out, could go out now.
    pub(crate) fn could_write(&mut self, share: usize, any_chunk: bool) -> bool {
        each!(self, to => to.could_write(share, any_chunk))
    }

    /// Tells the peer whether this rank sleeps until there is room for it.
    pub(crate) fn wait_for_room(&self, waits: bool) {
        each!(self, to => to.wait_for_room(waits));
    }

    /// Tells the peer that this rank does not talk with it any more, and wakes it to find that.
    #[cold]
    pub(crate) fn give_up(&mut self) {
        each!(self, to => to.give_up());
    }
}

/// From the peer.
impl Endpoint {
    /// Whether nothing has come. A cheap look without any check.
    #[inline(always)]
    pub(crate) fn is_empty(&mut self) -> bool {
        each!(self, from => from.is_empty())
    }

    /// The record that comes next, if it is there.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> std::result::Result<Option<Record>, BadRecord> {
        each!(self, from => from.peek())
    }

    /// Copies payload of the next record, from `offset` on.
    #[inline(always)]
    pub(crate) fn read(&self, record: &Record, offset: usize, out: &mut [u8]) {
        each!(self, from => from.read(record, offset, out));
    }

    /// Copies bytes of the chunk that the next record names.
    #[inline]
    pub(crate) fn read_chunk(
        &self,
        chunk: ChunkIndex,
        offset: usize,
        out: &mut [u8],
    ) -> std::result::Result<(), OutOfBounds> {
        each!(self, from => from.read_chunk(chunk, offset, out))
    }

    /// Bytes that one of the peer's chunks has at most.
    pub(crate) fn chunk_bytes(&self) -> usize {
        each!(self, from => from.chunk_bytes())
    }

    /// Passes the next record. Says whether the peer was told of room, for which it may wait.
    #[inline(always)]
    pub(crate) fn advance(&mut self, record: Record) -> bool {
        each!(self, from => from.advance(record))
    }

    /// A chunk was read: it is given back with a few others. Says whether the peer was told of room.
    #[inline]
    pub(crate) fn passed_chunk(&mut self) -> bool {
        each!(self, from => from.passed_chunk())
    }

    /// Gives back the chunks that were passed and are kept back, if there are any, and wakes a peer that waits for
    /// them.
    pub(crate) fn give_back(&mut self) {
        each!(self, from => from.give_back());
    }

    /// Wakes the peer if it waits for room or credit. Says whether a sleeper was woken.
    #[inline]
    pub(crate) fn notify_room(&self) -> bool {
        each!(self, from => from.notify_room())
    }

    /// Tells the peer how much credit it was given back, ever.
    #[inline]
    pub(crate) fn give_credit(&mut self, total: u64) {
        each!(self, from => from.give_credit(total));
    }

    /// Says whether this rank polls for records; after `false` the caller issues a heavy fence and looks once more.
    #[inline]
    pub(crate) fn set_polling(&self, polling: bool) {
        each!(self, from => from.set_polling(polling));
    }

    /// Whether the peer rings this rank's bell for a record, so that this rank may sleep.
    pub(crate) fn rings(&self) -> bool {
        each!(self, from => from.rings())
    }

    /// Whether the peer has said that it does not talk with this rank any more.
    pub(crate) fn has_given_up(&self) -> bool {
        each!(self, from => from.has_given_up())
    }
}

/// What only memory that both share has.
impl Endpoint {
    /// Whether there is such memory: for cooperative blocks, lists in chunks, and channels of collectives.
    #[inline]
    pub(crate) fn shares_memory(&self) -> bool {
        each!(self, of => of.shares_memory())
    }

    /// The block of transfers to this rank. Nobody opens it where no memory is shared.
    #[inline]
    pub(crate) fn block_in(&self) -> &CoopBlock {
        each!(self, of => of.block_in())
    }

    /// The block of transfers to the peer. None is ever open in it where no memory is shared.
    #[inline]
    pub(crate) fn block_out(&self) -> &CoopBlock {
        each!(self, of => of.block_out())
    }

    /// The peer's end of a channel of collectives; `None`: there is none of that number, or no memory is shared.
    pub(crate) fn channel(&self, channel: u32) -> Option<Channel> {
        each!(self, of => of.channel(channel))
    }

    /// Tells the peer whether this rank can read its messages only where they were exposed.
    pub(crate) fn want_exposed(&self, wants: bool) {
        each!(self, of => of.want_exposed(wants));
    }

    /// Whether the peer can read messages only where they were exposed, if it has said.
    pub(crate) fn wants_exposed(&self) -> Option<bool> {
        each!(self, of => of.wants_exposed())
    }
}
