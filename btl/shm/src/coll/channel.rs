// SPDX-License-Identifier: MIT OR Apache-2.0
//! A member's end of a channel, as its owner or a peer sees it.
//!
//! The words and their order are here. Where they lie, and how bytes get there, is [`EndMemory`]'s: a
//! mapping in production, memory that loom checks in the models.

#[cfg(not(loom))]
pub(super) mod memory;
#[cfg(loom)]
#[path = "channel/checked.rs"]
pub(super) mod memory;

use super::checked_line::{
    BadLine, CheckedLine, Content, INLINE, Info, ShortContribution, ShortPlace, SpareOf, check,
};
use super::line::{Done, Head};
use crate::layout::{COLL_DEPTH, COLL_STAGE, COLL_STAGES};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use memory::{EndMemory, Payload, View};

/// What a member asks of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRequest {
    /// The collective.
    pub seq: u32,
    /// Tells one request from the next; never zero.
    pub ticket: u32,
    /// The peer's place in the group.
    pub owner: u32,
    /// Which of its buffers.
    pub buffer: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes; at most a stage.
    pub len: u32,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line {
    head: Head,
    info: AtomicU64,
    payload: Payload,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct LineAligned<T>(T);

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct CopyRequestLine {
    /// Number of the collective and ticket.
    head: Head,
    who: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Lines {
    /// The communicator that uses the channel at this member; 0: none.
    tag: AtomicU64,
    /// Why the communicator failed here; 0: it did not.
    failed: AtomicU64,
    done: LineAligned<Done>,
    /// Whether the owner is writing into a member's buffer; 0: it is not.
    writing: LineAligned<AtomicU64>,
    /// Members that call, by their place modulo 64; set by them, taken by the owner.
    called: LineAligned<AtomicU64>,
    /// What the owner asks of peers, per stage; and the peers' answers.
    copy_requests: [CopyRequestLine; COLL_STAGES],
    answers: [LineAligned<Head>; COLL_STAGES],
    acks: [LineAligned<Head>; COLL_DEPTH],
    pub(super) lines: [Line; COLL_DEPTH],
    _pad: AtomicU32,
}

/// The spare slot's number: it stands behind those of the lines.
const SPARE: usize = COLL_DEPTH;

/// One member's end of a channel.
#[derive(Debug, Clone)]
pub struct Channel {
    pub(super) memory: EndMemory,
    /// Bytes of the owner's heap.
    heap_bytes: u64,
}

impl Channel {
    /// The end that lies in `memory`.
    #[must_use]
    pub fn new(memory: EndMemory, heap_bytes: u64) -> Self {
        Self { memory, heap_bytes }
    }

    /// Bytes of a slot.
    #[inline(always)]
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes()
    }

    #[inline(always)]
    fn lines(&self) -> &Lines {
        self.memory.lines()
    }

    #[inline(always)]
    pub(super) fn line(&self, seq: u32) -> &Line {
        &self.lines().lines[seq as usize % COLL_DEPTH]
    }

    /// Makes the owner's end ready for a communicator whose collectives begin after `seq`. Nobody looks at it now.
    pub fn open(&self, tag: u64, seq: u32) {
        let lines = self.lines();
        for line in &lines.lines {
            line.head.publish(seq, 0);
        }
        for ack in &lines.acks {
            ack.0.publish(seq, 0);
        }
        for request in &lines.copy_requests {
            request.head.publish(seq, 0);
        }
        for answer in &lines.answers {
            answer.0.publish(seq, 0);
        }
        lines.called.0.store(0, Ordering::Relaxed);
        lines.writing.0.store(0, Ordering::Relaxed);
        lines.failed.store(0, Ordering::Relaxed);
        lines.done.0.set(seq);
        self.set_tag(tag);
    }

    /// The owner's end serves no communicator any more.
    pub fn close(&self) {
        self.set_tag(0);
        // As of `failed`: a member that writes here has seen that, or this rank sees that it writes.
        crate::sync::fence(Ordering::SeqCst);
    }

    fn set_tag(&self, tag: u64) {
        // SYNC(coll.tag): release the end's state
        self.lines().tag.store(tag, Ordering::Release);
    }

    /// The communicator that uses this end; 0: none.
    #[must_use]
    pub fn tag(&self) -> u64 {
        // SYNC(coll.tag): acquire the end's state
        self.lines().tag.load(Ordering::Acquire)
    }

    /// The communicator has failed at the owner.
    pub fn fail(&self, why: u64) {
        // SYNC(coll.failed): release before the owner's memory is used for something else
        self.lines().failed.swap(why, Ordering::SeqCst);
        crate::sync::fence(Ordering::SeqCst);
        crate::fault::point("coll.failed");
    }

    /// Why the communicator has failed at the owner; 0: it has not. What was read of the owner's memory before this
    /// call is good if it gives 0.
    #[inline]
    #[must_use]
    pub fn failure(&self) -> u64 {
        crate::sync::fence(Ordering::Acquire);
        // SYNC(coll.failed): acquire after the reads of the owner's memory
        self.lines().failed.load(Ordering::Acquire)
    }

    /// The owner is about to write into members' buffers. It may write to members that have not given the communicator
    /// up by now. These wait for `end_writes` before their buffers go back to the program.
    #[inline]
    pub fn begin_writes(&self) {
        self.lines().writing.0.store(1, Ordering::Relaxed);
        // A member that gives up has a full fence between its `failed` and its look at this word: one of the two sees
        // the other's.
        crate::sync::fence(Ordering::SeqCst);
    }

    /// The owner writes no more.
    #[inline]
    pub fn end_writes(&self) {
        crate::fault::point("coll.written");
        // SYNC(coll.writing): release the writes
        self.lines().writing.0.store(0, Ordering::Release);
    }

    /// Whether the owner may be writing into a buffer of a member that has given the communicator up before this call.
    #[inline]
    #[must_use]
    pub fn is_writing(&self) -> bool {
        // SYNC(coll.writing): acquire the end of the writes
        self.lines().writing.0.load(Ordering::Acquire) != 0
    }

    /// Up to which collective the owner has read.
    #[inline]
    #[must_use]
    pub fn done(&self) -> u32 {
        self.lines().done.0.get()
    }

    /// Publishes up to which collective the owner has read.
    #[inline]
    pub fn set_done(&self, seq: u32) {
        crate::fault::point("coll.done");
        self.lines().done.0.set(seq);
    }

    /// Wakes the owner if it sleeps; see [`Doorbell::ring`](crate::doorbell::Doorbell::ring).
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn ring(&self) {
        self.memory.doorbell().ring();
    }

    /// Publishes the owner's contribution to collective `seq`.
    ///
    /// # Panics
    /// If the payload does not fit into a line.
    #[inline]
    pub fn publish(&self, seq: u32, phase: u32, info: Info, payload: &[u8]) {
        assert!(payload.len() <= INLINE);
        let line = self.line(seq);
        line.info.store(info.encode(), Ordering::Relaxed);
        self.memory.put_line(line, payload);
        crate::fault::point("coll.publish");
        line.head.publish(seq, phase);
        crate::fault::point("coll.published");
    }

    /// Moves collective `seq` on to `phase`; what the line holds stays.
    #[inline]
    pub fn advance(&self, seq: u32, phase: u32) {
        crate::fault::point("coll.publish");
        self.line(seq).head.publish(seq, phase);
        crate::fault::point("coll.published");
    }

    /// The phase that the owner published for `seq`; 0: none yet. Acquire: what the line describes can be read if this
    /// is not 0.
    #[inline]
    #[must_use]
    pub fn phase(&self, seq: u32) -> u32 {
        self.line(seq).head.phase(seq)
    }

    /// Reads the line of `seq` once, and checks it. Its phase was not 0.
    ///
    /// # Errors
    /// [`BadLine`]: no correct peer writes such a line.
    pub fn read_line(&self, seq: u32) -> Result<CheckedLine, BadLine> {
        let line = self.line(seq);
        let info = Info::decode(line.info.load(Ordering::Relaxed));
        let limits = (self.slot_bytes(), self.heap_bytes);
        check(seq, info, &self.memory.payload(line), limits)
    }

    /// As [`Self::read_line`], for a reader that can use a short contribution only.
    #[inline]
    #[must_use]
    pub fn read_short(&self, seq: u32) -> ShortContribution {
        ShortContribution(self.line(seq).info.load(Ordering::Relaxed))
    }

    /// The bytes of a short contribution, if they are so many.
    #[inline]
    #[must_use]
    pub fn short_bytes(&self, seq: u32, short: ShortContribution, len: usize) -> Option<View<'_>> {
        let first = || self.memory.first_word(self.line(seq));
        match short.place(len, self.slot_bytes(), first) {
            ShortPlace::Line => self.in_line(seq, 0, len),
            ShortPlace::Slot => self.in_slot(seq, 0, len),
            ShortPlace::Spare(_) | ShortPlace::Elsewhere => None,
        }
    }

    /// In whose spare slot the bytes of a short contribution stand, if they are so many, and in one.
    #[inline]
    #[must_use]
    pub fn short_spare(&self, seq: u32, short: ShortContribution, len: usize) -> Option<SpareOf> {
        let first = || self.memory.first_word(self.line(seq));
        match short.place(len, self.slot_bytes(), first) {
            ShortPlace::Spare(of) => Some(of),
            ShortPlace::Line | ShortPlace::Slot | ShortPlace::Elsewhere => None,
        }
    }

    /// Bytes from `offset` on of what the line of `seq` carries, or its slot. None if they stand elsewhere, or do not
    /// lie within what the line describes.
    #[must_use]
    pub fn bytes(
        &self,
        seq: u32,
        checked: &CheckedLine,
        offset: usize,
        len: usize,
    ) -> Option<View<'_>> {
        match checked.content {
            Content::Inline(there) => self.in_line(seq, 0, there)?.part(offset, len),
            Content::Slot(there) => self.in_slot(seq, 0, there)?.part(offset, len),
            Content::Nothing
            | Content::Spare(..)
            | Content::Buffer
            | Content::Message
            | Content::Pieces => None,
        }
    }

    /// Bytes of the payload in the line of `seq`; none if they do not lie in it.
    #[inline]
    #[must_use]
    pub fn in_line(&self, seq: u32, offset: usize, len: usize) -> Option<View<'_>> {
        self.memory.view_line(self.line(seq)).part(offset, len)
    }

    /// Bytes of the slot of `seq`; none if they do not lie in it.
    #[inline]
    #[must_use]
    pub fn in_slot(&self, seq: u32, offset: usize, len: usize) -> Option<View<'_>> {
        let slot = seq as usize % COLL_DEPTH;
        self.memory.view_slot(slot).part(offset, len)
    }

    /// Publishes that the owner has come to `phase` in reading others' contributions to `seq`.
    #[inline]
    pub fn set_ack(&self, seq: u32, phase: u32) {
        self.lines().acks[seq as usize % COLL_DEPTH]
            .0
            .publish(seq, phase);
    }

    /// To which phase the owner has read others' contributions to `seq`.
    #[inline]
    #[must_use]
    pub fn ack(&self, seq: u32) -> u32 {
        self.lines().acks[seq as usize % COLL_DEPTH].0.phase(seq)
    }

    /// Bytes of the spare slot; none if they do not lie in it.
    #[inline]
    #[must_use]
    pub fn in_spare(&self, offset: usize, len: usize) -> Option<View<'_>> {
        self.memory.view_slot(SPARE).part(offset, len)
    }

    /// Writes to the spare slot; for the one of two members that holds it.
    ///
    /// # Panics
    /// If the bytes do not lie in the slot.
    #[inline]
    pub fn write_spare(&self, offset: usize, bytes: &[u8]) {
        self.memory.put_slot(SPARE, offset, bytes);
    }

    /// Writes to the slot of `seq`; for the owner.
    ///
    /// # Panics
    /// If the bytes do not lie in the slot.
    #[inline]
    pub fn write_slot(&self, seq: u32, offset: usize, bytes: &[u8]) {
        self.memory
            .put_slot(seq as usize % COLL_DEPTH, offset, bytes);
    }

    /// Asks `request.owner`, whose end is `theirs`, to copy into stage `stage` of this end. `me` is the place of the
    /// caller in the group.
    pub fn ask(&self, theirs: &Self, me: usize, stage: usize, request: CopyRequest) {
        let line = &self.lines().copy_requests[stage % COLL_STAGES];
        line.who.store(
            u64::from(request.owner) | u64::from(request.buffer) << 32,
            Ordering::Relaxed,
        );
        line.offset.store(request.offset, Ordering::Relaxed);
        line.len.store(u64::from(request.len), Ordering::Relaxed);
        line.head.publish(request.seq, request.ticket);
        // SYNC(coll.called): release the copy request
        theirs
            .lines()
            .called
            .0
            .fetch_or(1 << (me % 64), Ordering::AcqRel);
        crate::fault::point("coll.asked");
    }

    /// Members that have called the owner since this was asked last, by their place modulo 64.
    #[inline]
    #[must_use]
    pub fn take_called(&self) -> u64 {
        let called = &self.lines().called.0;
        if called.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // SYNC(coll.called): acquire the copy requests
        called.swap(0, Ordering::AcqRel)
    }

    /// What the owner of this end asks for collective `seq`, for `stage`, if it has not been answered.
    #[must_use]
    pub fn copy_request(&self, seq: u32, stage: usize) -> Option<CopyRequest> {
        let line = &self.lines().copy_requests[stage % COLL_STAGES];
        let ticket = line.head.phase(seq);
        if ticket == 0 || self.is_answered(seq, stage, ticket) {
            return None;
        }
        let who = line.who.load(Ordering::Relaxed);
        Some(CopyRequest {
            seq,
            ticket,
            owner: who as u32,
            buffer: (who >> 32) as u32,
            offset: line.offset.load(Ordering::Relaxed),
            len: line.len.load(Ordering::Relaxed).min(COLL_STAGE as u64) as u32,
        })
    }

    /// Answers a copy request of this end's owner with `bytes`.
    pub fn answer(&self, stage: usize, request: &CopyRequest, bytes: &[u8]) {
        let stage = stage % COLL_STAGES;
        let len = bytes.len().min(COLL_STAGE);
        self.memory.put_stage(stage, &bytes[..len]);
        crate::fault::point("coll.answer");
        self.lines().answers[stage]
            .0
            .publish(request.seq, request.ticket);
    }

    /// Whether the copy request with this ticket is answered.
    #[inline]
    #[must_use]
    pub fn is_answered(&self, seq: u32, stage: usize, ticket: u32) -> bool {
        self.lines().answers[stage % COLL_STAGES].0.phase(seq) == ticket
    }

    /// The first `len` bytes of a stage; none if it has fewer.
    #[inline]
    #[must_use]
    pub fn stage(&self, stage: usize, len: usize) -> Option<View<'_>> {
        self.memory.view_stage(stage % COLL_STAGES).part(0, len)
    }
}
