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
mod hub;
mod medium;
mod shared;
mod socket;

pub(crate) use home::{Doorbell, Home};
#[cfg(test)]
pub(crate) use hub::Set;
pub(crate) use hub::{EventSource, Hub};
pub(crate) use medium::{Medium, MediumOp, RecordRoom};
pub(crate) use onecopy_shm::cells::FIRST_PAYLOAD;
pub(crate) use onecopy_shm::coop::CooperativeBlock;
pub(crate) use onecopy_shm::doorbell::SleepOutcome;
pub(crate) use onecopy_shm::layout::{ChunkIndex, ChunkName};
pub(crate) use onecopy_shm::ring::{BadRecord, MAX_RECORD_SLOTS, Record, payload_of, slots_for};
pub(crate) use shared::{OpenError, SharedMemory};
pub(crate) use socket::{
    Connector, Outcome, RemoteReads, STREAM_INPUT, SharedLanes, Socket, SocketSettings,
    stream_output,
};

use crate::error::Result;
use onecopy_btl::LayerId;
use onecopy_btl::lanes::ExposedMemory;
use onecopy_obs::Knobs;
use onecopy_shm::cells::MappedCells;
use onecopy_shm::coll::Channel;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::OutOfBounds;
use onecopy_shm::loan::LoanError;
use onecopy_shm::ring;

/// As [`Endpoint::looks_at_most`], where a stream leads to the peer: each look takes what has come by it. Chosen by
/// magnitude: of 64 KiB each they take 16 MiB, more than the kernel's buffers hold by default (tcp(7)).
const STREAM_LOOKS: usize = 256;

/// Slots of the largest record that always fits an emptied ring of `slots`. It may waste as many slots, less one, at
/// the ring's end. One slot stays free, and the consumer may not have returned a quarter of the ring yet.
const fn largest_record(slots: usize) -> usize {
    let kept_back = slots / 4 - 1;
    (slots - kept_back) / 2
}

/// Bytes of the largest record that a peer which reads always makes room for.
pub(crate) fn largest_payload(knobs: &Knobs) -> usize {
    payload_of(largest_record(knobs.ring_slots_at_least()))
}

/// The way to one peer, and from it.
#[expect(
    clippy::large_enum_variant,
    reason = "one exists for each peer, in a box of its own; shared memory is reached without another step"
)]
#[derive(Debug)]
pub(crate) enum Endpoint {
    /// Each maps the other's segment.
    SharedMemory(SharedMemory),
    /// It is on another node: a stream leads to it.
    Socket(Box<Socket>),
}

/// Which medium an endpoint has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MediumKind {
    SharedMemory,
    Socket,
}

impl MediumKind {
    /// Does what is to be done by way of an endpoint of this medium. It is put together for each, where it is used.
    #[inline(always)]
    pub(crate) fn run<U: MediumOp>(self, what: impl FnOnce() -> U) -> U::Outcome {
        match self {
            Self::SharedMemory => what().run_on::<SharedMemory>(),
            Self::Socket => by_socket(what()),
        }
    }
}

/// Apart, so that the code for shared memory is in one piece.
#[inline(never)]
fn by_socket<U: MediumOp>(what: U) -> U::Outcome {
    what.run_on::<Socket>()
}

impl Endpoint {
    #[inline(always)]
    pub(crate) fn medium(&self) -> MediumKind {
        match self {
            Self::SharedMemory(_) => MediumKind::SharedMemory,
            Self::Socket(_) => MediumKind::Socket,
        }
    }
}

/// What a message needs of chunks to go out at once, and how many it may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkDemand {
    /// Bytes of the message.
    pub(crate) total: usize,
    /// Bytes of a chunk that it uses at most.
    pub(crate) step: usize,
    /// How many chunks it takes.
    pub(crate) chunks: usize,
    /// A limit, not a need: so many chunks of this rank's may be on their way to the peer.
    pub(crate) share: usize,
}

/// A record that names a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming {
    pub(crate) kind: u8,
    pub(crate) meta: u64,
    /// Where in the chunk the bytes begin. A stream has no such place: 0.
    pub(crate) begin: usize,
    /// Bytes in the chunk.
    pub(crate) len: usize,
    /// Bytes of the message.
    pub(crate) total: usize,
    /// What copies them, if this processor does.
    pub(crate) kernel: Kernel,
    /// How many chunks may be out.
    pub(crate) share: usize,
}

/// Where the bytes of a chunk lie.
pub(crate) trait Pack {
    /// Shows them, piece by piece, in their order, each with its place. All of them or none: an error comes before the
    /// first piece.
    fn show(&self, to: impl FnMut(usize, &[u8])) -> std::result::Result<(), LoanError>;
}

impl Pack for Vec<u8> {
    fn show(&self, mut to: impl FnMut(usize, &[u8])) -> std::result::Result<(), LoanError> {
        to(0, self);
        Ok(())
    }
}

/// What became of a record that names a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is published; the peer is still to be notified.
    Sent,
    /// The same, in a chunk of the peer's, which returns with it.
    Returned,
    /// There is no room for it at the moment.
    NoRoom,
    /// There is no chunk for it at the moment.
    NoChunk,
    /// Its bytes were taken away, or do not fit.
    Withdrawn,
}

/// As much of a chunk as has come: what is shown of it with the record that names it. When that is passed, the same
/// record comes again with the next part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where in the chunk it begins.
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// Bytes of the whole chunk.
    pub(crate) whole: u32,
}

/// Room for one record. Dropping it publishes nothing that the peer sees.
pub(crate) enum Claim<'e> {
    /// In a ring.
    Ring(ring::Claim<'e, MappedCells>),
    /// In a frame of a stream.
    Frame(socket::Frame<'e>),
}

impl RecordRoom for Claim<'_> {
    #[inline(always)]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Ring(claim) => claim.write(offset, bytes),
            Self::Frame(frame) => frame.write(offset, bytes),
        }
    }

    #[inline(always)]
    fn publish(self, kind: u8, len: usize, meta: u64) {
        match self {
            Self::Ring(claim) => claim.publish(kind, len, meta),
            Self::Frame(frame) => frame.publish(kind, len, meta),
        }
    }
}

/// The same call on whichever endpoint it is.
macro_rules! each {
    ($self:expr, $endpoint:ident => $call:expr) => {
        match $self {
            Self::SharedMemory($endpoint) => $call,
            Self::Socket($endpoint) => $call,
        }
    };
}

/// To the peer.
impl Endpoint {
    /// Whether records can be claimed.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::SharedMemory(to) => to.is_open(),
            Self::Socket(_) => true,
        }
    }

    /// Makes what records to the peer need.
    #[cold]
    pub(crate) fn open(&mut self) -> Result<()> {
        match self {
            Self::SharedMemory(to) => to.make_ready(),
            Self::Socket(_) => Ok(()),
        }
    }

    /// Room for a record of `slots` slots. `None`: it is not open, or the peer must catch up first.
    #[inline(always)]
    pub(crate) fn claim(&mut self, slots: usize) -> Option<Claim<'_>> {
        match self {
            Self::SharedMemory(to) => to.claim(slots).map(Claim::Ring),
            Self::Socket(to) => to.claim(slots).map(Claim::Frame),
        }
    }

    /// Whether something waits inside of the endpoint to be written. Each look for records writes what can be written.
    #[inline(always)]
    pub(crate) fn has_output(&self) -> bool {
        match self {
            Self::SharedMemory(_) => false,
            Self::Socket(to) => to.has_output(),
        }
    }

    /// Writes what waits inside of the endpoint, as far as that is possible.
    #[inline]
    pub(crate) fn push_out(&mut self) {
        if let Self::Socket(to) = self {
            to.push_out();
        }
    }

    /// Tells the peer of what was just published, if it does not poll. Says whether a sleeper was woken.
    #[inline(always)]
    pub(crate) fn notify(&mut self) -> bool {
        each!(self, to => to.notify())
    }

    /// Wakes the peer, if it sleeps, to look at what is not a record: a block, a line of a collective.
    #[inline]
    pub(crate) fn wake(&self) {
        if let Self::SharedMemory(to) = self {
            to.wake();
        }
    }

    /// Rings the peer's doorbell. The caller has issued the fence that keeps what it wrote before.
    #[inline]
    pub(crate) fn ring(&self) {
        if let Self::SharedMemory(to) = self {
            to.ring();
        }
    }

    /// Whether this peer can only be woken behind full fences.
    pub(crate) fn is_strong(&self) -> bool {
        matches!(self, Self::SharedMemory(to) if to.is_strong())
    }

    /// Credit that the peer has given back, ever.
    #[inline]
    pub(crate) fn credit_back(&self) -> u64 {
        each!(self, to => to.credit_back())
    }

    /// Sends a record together with the chunk that it names: `body` is the record's, once the chunk has a number.
    #[inline]
    pub(crate) fn put_chunk<const N: usize>(
        &mut self,
        home: &mut Home,
        naming: Naming,
        body: impl FnOnce(ChunkName) -> [u8; N],
        source: &impl Pack,
    ) -> Put {
        match self {
            Self::SharedMemory(to) => to.put_chunk(home, naming, body, source),
            Self::Socket(to) => to.put_chunk(naming, body, source),
        }
    }

    /// Whether the peer has sent something since the last message in chunks to it: the two send in turn.
    #[inline]
    pub(crate) fn is_in_turn(&self) -> bool {
        match self {
            Self::SharedMemory(with) => with.is_in_turn(),
            Self::Socket(_) => false,
        }
    }

    /// Whether the two send in turn, and did when a message last began that may go in chunks. Then this one is
    /// answered, too.
    #[inline]
    pub(crate) fn is_answered(&self) -> bool {
        match self {
            Self::SharedMemory(with) => with.began_in_turn() && with.is_in_turn(),
            Self::Socket(_) => false,
        }
    }

    /// A message that might have gone in chunks goes in slots.
    #[inline]
    pub(crate) fn begins_in_slots(&mut self) {
        if let Self::SharedMemory(to) = self {
            to.begins();
        }
    }

    /// The first chunk of a message of `total` bytes is out.
    #[inline]
    pub(crate) fn began_chunks(&mut self, total: usize) {
        if let Self::SharedMemory(to) = self {
            to.began_chunks(total);
        }
    }

    /// The last chunk of a message is out.
    #[inline]
    pub(crate) fn ended_chunks(&mut self) {
        if let Self::SharedMemory(to) = self {
            to.ended_chunks();
        }
    }

    /// Whether the two sent in turn when the last message in chunks began.
    #[inline]
    pub(crate) fn began_in_turn(&self) -> bool {
        match self {
            Self::SharedMemory(to) => to.began_in_turn(),
            Self::Socket(_) => false,
        }
    }

    /// Whether a message can go out now, all of it in chunks, each with its record.
    pub(crate) fn has_room_for(&mut self, home: &mut Home, demand: ChunkDemand) -> bool {
        match self {
            Self::SharedMemory(to) => to.has_room_for(home, demand),
            Self::Socket(_) => false,
        }
    }

    /// Takes back the chunks that the peer has read.
    pub(crate) fn collect_chunks(&mut self, home: &mut Home) {
        if let Self::SharedMemory(to) = self {
            to.collect_chunks(home);
        }
    }

    /// Whether the last chunk sent was one that had come from the peer before: its lines were in the cache. The next
    /// one is likely to be such a chunk, too.
    #[inline]
    pub(crate) fn sent_warm(&self) -> bool {
        match self {
            Self::SharedMemory(to) => to.sent_warm(),
            Self::Socket(_) => true,
        }
    }

    /// Takes back the chunks: the peer is gone, and sends no more unless it `lives`.
    pub(crate) fn reclaim_all(&mut self, home: &mut Home, lives: bool) {
        match self {
            Self::SharedMemory(to) => to.reclaim_all(home, lives),
            Self::Socket(to) => to.reclaim_all(home),
        }
    }

    /// Whether a record, and a chunk if `share` of them may be out, could go out now.
    pub(crate) fn could_write(&mut self, share: usize, any_chunk: bool) -> bool {
        match self {
            Self::SharedMemory(to) => to.could_write(share, any_chunk),
            Self::Socket(to) => to.could_write(),
        }
    }

    /// Tells the peer whether this rank sleeps until there is room for it.
    pub(crate) fn wait_for_room(&self, waiting: bool) {
        each!(self, to => to.wait_for_room(waiting));
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

    /// Polls until a record is there, at most `polls` times.
    #[inline(always)]
    pub(crate) fn comes_within(&mut self, polls: usize) -> bool {
        each!(self, from => from.comes_within(polls))
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

    /// What has come of the chunk that the next record names. None: all of it.
    #[inline(always)]
    pub(crate) fn part(&self) -> Option<Part> {
        each!(self, from => from.part())
    }

    /// Copies bytes of the chunk that the next record names, by `kernel` if this processor does; of its part, if there
    /// is only one. They are read once, in their order.
    #[inline]
    pub(crate) fn read_chunk(
        &mut self,
        chunk: ChunkName,
        offset: usize,
        out: &mut [u8],
        kernel: Kernel,
    ) -> std::result::Result<(), OutOfBounds> {
        each!(self, from => from.read_chunk(chunk, offset, out, kernel))
    }

    /// A hint that the first `len` bytes of a chunk are read next.
    #[inline(always)]
    pub(crate) fn will_read_chunk(&self, chunk: ChunkName, len: usize) {
        if let Self::SharedMemory(from) = self {
            from.will_read_chunk(chunk, len);
        }
    }

    /// Bytes that one of the peer's chunks has at most.
    pub(crate) fn chunk_bytes(&self) -> usize {
        each!(self, from => from.chunk_bytes())
    }

    /// Looks for records that take all that the peer can have written before the first. More of them only follow a peer
    /// that goes on writing.
    pub(crate) fn looks_at_most(&self) -> usize {
        match self {
            Self::SharedMemory(from) => from.looks_at_most(),
            Self::Socket(_) => STREAM_LOOKS,
        }
    }

    /// Passes the next record, or the part of its chunk that is shown, and the chunk that it names. The chunk is kept
    /// for an answer, or given back with a few others. Returns whether the peer was notified of room, for which it may
    /// wait.
    #[inline(always)]
    pub(crate) fn pass(&mut self, record: Record, chunk: Option<ChunkName>) -> bool {
        each!(self, from => from.pass(record, chunk))
    }

    /// Gives back the chunks that were passed and are kept, if there are any, and wakes a peer that waits for them.
    pub(crate) fn give_back(&mut self) {
        if let Self::SharedMemory(from) = self {
            from.give_back();
        }
    }

    /// As [`Self::give_back`], unless they are kept for an answer.
    pub(crate) fn give_back_unneeded(&mut self) {
        if let Self::SharedMemory(from) = self
            && !from.expects_answer()
        {
            from.give_back();
        }
    }

    /// What comes next is not answered in its chunks: they are given back as they are read.
    pub(crate) fn expect_no_answer(&mut self) {
        if let Self::SharedMemory(from) = self {
            from.expect_no_answer();
        }
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
    pub(crate) fn set_polling(&mut self, polling: bool) {
        each!(self, from => from.set_polling(polling));
    }

    /// Whether the peer has announced that it does not talk with this rank any more.
    pub(crate) fn has_given_up(&self) -> bool {
        each!(self, from => from.has_given_up())
    }
}

/// What only a peer on another node has.
impl Endpoint {
    /// The connection between nodes, if it is one.
    #[inline]
    pub(crate) fn wire(&mut self) -> Option<&mut Socket> {
        match self {
            Self::SharedMemory(_) => None,
            Self::Socket(wire) => Some(wire),
        }
    }
}

/// Memory of the program that a peer on another node reads where it lies.
impl Endpoint {
    /// Lets the peer read it, if that is worth it and possible.
    pub(crate) fn show(&self, bytes: &[u8]) -> Option<ExposedMemory> {
        match self {
            Self::SharedMemory(_) => None,
            Self::Socket(to) => to.show(bytes),
        }
    }

    /// The reads of what the peer has shown, if there can be any.
    pub(crate) fn remote_reads(&self) -> Option<RemoteReads<'_>> {
        match self {
            Self::SharedMemory(_) => None,
            Self::Socket(from) => from.remote_reads(),
        }
    }
}

/// What only memory that both share has.
impl Endpoint {
    /// Whether there is such memory: for cooperative blocks, lists in chunks, and channels of collectives.
    #[inline]
    pub(crate) fn shares_memory(&self) -> bool {
        matches!(self, Self::SharedMemory(_))
    }

    /// Whether the two may answer each other in the chunks that they have read.
    pub(crate) fn returns_chunks(&self) -> bool {
        match self {
            Self::SharedMemory(endpoint) => endpoint.returns_chunks(),
            Self::Socket(_) => false,
        }
    }

    /// The layer that carries records and chunks from the peer.
    #[inline(always)]
    pub(crate) fn carrier(&self) -> LayerId {
        match self {
            Self::SharedMemory(_) => LayerId::CHUNKS,
            Self::Socket(endpoint) if endpoint.is_by_lane() => LayerId::LANE,
            Self::Socket(_) => LayerId::WIRE,
        }
    }

    /// The block of transfers to this rank. It is not opened where no memory is shared.
    #[inline]
    pub(crate) fn block_in(&self) -> &CooperativeBlock {
        match self {
            Self::SharedMemory(endpoint) => endpoint.block_in(),
            Self::Socket(endpoint) => endpoint.block(),
        }
    }

    /// The block of transfers to the peer. None is ever open in it where no memory is shared.
    #[inline]
    pub(crate) fn block_out(&self) -> &CooperativeBlock {
        match self {
            Self::SharedMemory(endpoint) => endpoint.block_out(),
            Self::Socket(endpoint) => endpoint.block(),
        }
    }

    /// The peer's end of a channel of collectives; `None`: there is none of that number, or no memory is shared.
    pub(crate) fn channel(&self, channel: u32) -> Option<Channel> {
        match self {
            Self::SharedMemory(endpoint) => endpoint.channel(channel),
            Self::Socket(_) => None,
        }
    }

    /// Tells the peer from which size on this rank wants messages announced that would come in chunks; none: no such
    /// size.
    pub(crate) fn want_announced(&self, from: Option<u64>) {
        if let Self::SharedMemory(endpoint) = self {
            endpoint.want_announced(from);
        }
    }

    /// From which size on the peer wants messages announced that would go in chunks.
    #[inline]
    pub(crate) fn wants_announced(&self) -> u64 {
        match self {
            Self::SharedMemory(endpoint) => endpoint.wants_announced(),
            Self::Socket(_) => u64::MAX,
        }
    }

    /// Tells the peer whether this rank can read its messages only where they were exposed.
    pub(crate) fn want_exposed(&self, wants: bool) {
        if let Self::SharedMemory(endpoint) = self {
            endpoint.want_exposed(wants);
        }
    }

    /// Whether the peer can read messages only where they were exposed, if it has announced that.
    pub(crate) fn wants_exposed(&self) -> Option<bool> {
        match self {
            Self::SharedMemory(endpoint) => endpoint.wants_exposed(),
            Self::Socket(_) => None,
        }
    }
}
