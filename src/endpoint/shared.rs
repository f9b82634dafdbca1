// SPDX-License-Identifier: MIT OR Apache-2.0
//! The endpoint of a peer on this node: its segment is mapped here, and this rank's there. Records travel in rings,
//! chunks stay where they were written, and the bell is a futex.

use super::home::Home;
use super::{
    BadRecord, ChunkIndex, CooperativeBlock, Endpoint, Medium, Naming, Pack, Part, Put, Record,
    RecordRoom,
};
use crate::error::{Error, Result};
use onecopy_shm::cells::MappedCells;
use onecopy_shm::coll::Channel;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::OutOfBounds;
use onecopy_shm::pool::Outstanding;
use onecopy_shm::ring::{self, Consumer, Producer};
use onecopy_shm::segment::{ControlHandle, PeerSegment, SegmentError};
use onecopy_shm::sync::{Ordering, light_fence};
use std::os::fd::OwnedFd;

/// Why a peer's segment is not used.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// It is none of this job: nothing can be believed of this peer, now or later.
    Foreign(String),
    /// It could not be mapped here.
    Failed(Error),
}

/// The two rings of a pair with what belongs to them.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    /// The peer's segment.
    pub(crate) segment: PeerSegment,
    /// Whether this rank must use full fences when it tells the peer of something.
    strong: bool,

    /// The ring to the peer, made on the first record.
    tx: Option<Producer<MappedCells>>,
    tx_control: ControlHandle,
    /// Chunks that the peer has not given back.
    outstanding: Outstanding,

    rx: Consumer<MappedCells>,
    rx_control: ControlHandle,
    /// Chunks passed since the tail was last published, and how many may be.
    chunks_passed: u32,
    chunks_held: u32,
    /// How far the ring from the peer had been read when [`Self::takes_turns`] was asked last.
    read_before: u64,
}

impl SharedMemory {
    /// Opens the segment of `rank` that came as `fd`. Up to `chunks_held` of its chunks are kept back before they are
    /// given back.
    pub(crate) fn open(
        home: &Home,
        fd: OwnedFd,
        rank: u32,
        chunks_held: u32,
    ) -> std::result::Result<Self, OpenError> {
        let own = &home.segment;
        let segment =
            PeerSegment::open(fd, rank, own.rank(), own.geometry()).map_err(
                |error| match error {
                    SegmentError::Foreign { .. } => OpenError::Foreign(error.to_string()),
                    other => OpenError::Failed(other.into()),
                },
            )?;
        Ok(Self {
            strong: !home.is_expedited() || segment.needs_strong_fences(),
            tx: None,
            tx_control: segment.control_handle(),
            outstanding: Outstanding::default(),
            rx: own.consumer(rank),
            rx_control: own.control_handle(rank),
            chunks_passed: 0,
            chunks_held,
            read_before: 0,
            segment,
        })
    }
}

/// For a short message.
impl Medium for SharedMemory {
    type Room<'e> = ring::Claim<'e, MappedCells>;

    #[inline(always)]
    fn of(endpoint: &mut Endpoint) -> Option<&mut Self> {
        match endpoint {
            Endpoint::SharedMemory(own) => Some(own),
            Endpoint::Socket(_) => None,
        }
    }

    #[inline(always)]
    fn claim(&mut self, slots: usize) -> Option<Self::Room<'_>> {
        self.tx.as_mut()?.claim(slots)
    }

    #[inline(always)]
    fn notify(&mut self) -> bool {
        match &self.tx {
            Some(tx) if tx.must_notify(self.strong) => self.notify_cold(),
            _ => false,
        }
    }

    #[inline(always)]
    fn is_empty(&mut self) -> bool {
        self.rx.is_empty()
    }

    #[inline(always)]
    fn peek(&mut self) -> std::result::Result<Option<Record>, BadRecord> {
        self.rx.peek()
    }

    #[inline(always)]
    fn read(&self, record: &Record, offset: usize, out: &mut [u8]) {
        self.rx.read(record, offset, out);
    }

    #[inline(always)]
    fn advance(&mut self, record: Record) -> bool {
        self.rx.advance(record)
    }

    #[inline]
    fn notify_room(&self) -> bool {
        light_fence(self.strong);
        self.rx_control.sender_waits.load(Ordering::Relaxed) != 0 && self.segment.bell().ring()
    }

    #[inline(always)]
    fn part(&self) -> Option<Part> {
        None
    }

    #[inline(always)]
    fn read_chunk(
        &mut self,
        chunk: ChunkIndex,
        offset: usize,
        out: &mut [u8],
        kernel: Kernel,
    ) -> std::result::Result<(), OutOfBounds> {
        self.segment.read_chunk(chunk, offset, out, kernel)
    }

    /// The tail, which gives chunks back, is published every few of them: its line travels to the sender.
    #[inline]
    fn passed_chunk(&mut self) -> bool {
        self.chunks_passed += 1;
        let due = self.chunks_passed >= self.chunks_held;
        if due {
            self.chunks_passed = 0;
            self.rx.publish_tail();
        }
        due
    }
}

impl RecordRoom for ring::Claim<'_, MappedCells> {
    #[inline(always)]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        Self::write(self, offset, bytes);
    }

    #[inline(always)]
    fn publish(self, kind: u8, len: usize, meta: u64) {
        Self::publish(self, kind, len, meta);
    }
}

/// To the peer.
impl SharedMemory {
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.tx.is_some()
    }

    pub(super) fn make_ready(&mut self) -> Result<()> {
        if self.tx.is_none() {
            self.tx = Some(self.segment.producer()?);
        }
        Ok(())
    }

    #[cold]
    fn notify_cold(&self) -> bool {
        self.segment.set_active();
        // The sleeper arms its bell and then looks at its bitmap: one of us must see the other.
        light_fence(self.strong);
        self.segment.bell().ring()
    }

    #[inline]
    pub(super) fn wake(&self) {
        light_fence(self.strong);
        self.segment.bell().ring();
    }

    #[inline]
    pub(super) fn ring(&self) {
        self.segment.bell().ring();
    }

    pub(super) fn is_strong(&self) -> bool {
        self.strong
    }

    #[inline]
    pub(super) fn credit_back(&self) -> u64 {
        self.tx_control.credit.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn put_chunk<const N: usize>(
        &mut self,
        home: &mut Home,
        naming: Naming,
        body: impl FnOnce(ChunkIndex) -> [u8; N],
        source: &impl Pack,
    ) -> Put {
        if !self.tx.as_mut().is_some_and(|tx| tx.claim_would_fit(1)) {
            return Put::NoRoom;
        }
        let Some(chunk) = self.take_chunk(home, naming.share) else {
            return Put::NoChunk;
        };
        let mut fits = true;
        let shown = source.show(|at, bytes| {
            fits &= home.write(chunk, at, bytes, naming.kernel);
        });
        if shown.is_err() || !fits {
            home.pool().give(chunk);
            return Put::Withdrawn;
        }
        let Some(mut claim) = self.tx.as_mut().and_then(|tx| tx.claim(1)) else {
            home.pool().give(chunk);
            return Put::NoRoom;
        };
        claim.write(0, &body(chunk));
        claim.publish(naming.kind, N, naming.meta);
        let position = self.tx.as_ref().map_or(0, Producer::position);
        self.outstanding.push(position, chunk);
        Put::Sent
    }

    #[inline]
    fn take_chunk(&mut self, home: &mut Home, share: usize) -> Option<ChunkIndex> {
        // The receiver's tail is looked at only when chunks are short: its line travels for that.
        if self.outstanding.len() >= share.max(1)
            || (!home.has_free() && !self.outstanding.is_empty())
        {
            self.collect_chunks(home);
        }
        if self.outstanding.len() >= share.max(1) {
            return None;
        }
        home.take()
    }

    /// Whether the peer has sent something since this was asked last: the two send in turn.
    #[inline]
    pub(super) fn takes_turns(&mut self) -> bool {
        let read = self.rx.position();
        std::mem::replace(&mut self.read_before, read) != read
    }

    pub(super) fn collect_chunks(&mut self, home: &mut Home) {
        if !self.outstanding.is_empty() {
            let released = self.tx.as_mut().map_or(0, Producer::released);
            self.outstanding.reclaim(released, home.pool());
        }
    }

    pub(super) fn reclaim_all(&mut self, home: &mut Home) {
        self.outstanding.reclaim_all(home.pool());
    }

    pub(super) fn could_write(&mut self, share: usize, any_chunk: bool) -> bool {
        let Some(tx) = &mut self.tx else { return true };
        let before = self.outstanding.len();
        let released = tx.released();
        let room = tx.claim_would_fit(2);
        room && (before == 0
            || self.outstanding.would_reclaim(released)
            || before < share && any_chunk)
    }

    pub(super) fn wait_for_room(&self, waits: bool) {
        let waits = u32::from(waits);
        self.tx_control.sender_waits.store(waits, Ordering::Relaxed);
    }

    /// The word stands in this rank's segment already ([`Home::give_up`]): the peer finds it when it is woken, or with
    /// its next look at the lives of its peers.
    pub(super) fn give_up(&mut self) {
        self.segment.set_active();
        light_fence(true);
        self.segment.bell().ring();
    }
}

/// From the peer.
impl SharedMemory {
    pub(super) fn chunk_bytes(&self) -> usize {
        self.segment.chunk_bytes()
    }

    pub(super) fn give_back(&mut self) {
        if self.chunks_passed > 0 {
            self.chunks_passed = 0;
            self.rx.publish_tail();
            self.notify_room();
        }
    }

    #[inline]
    pub(super) fn give_credit(&mut self, total: u64) {
        self.rx_control.credit.store(total, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn set_polling(&self, polling: bool) {
        self.rx.set_polling(polling);
    }

    pub(super) fn has_given_up(&self) -> bool {
        // SYNC(pair.given_up): acquire what it wrote before
        self.tx_control.given_up.load(Ordering::Acquire) != 0
    }
}

/// What is shared besides.
impl SharedMemory {
    #[inline]
    pub(super) fn block_in(&self) -> &CooperativeBlock {
        &self.rx_control.coop
    }

    #[inline]
    pub(super) fn block_out(&self) -> &CooperativeBlock {
        &self.tx_control.coop
    }

    pub(super) fn channel(&self, channel: u32) -> Option<Channel> {
        self.segment.channel(channel)
    }

    pub(super) fn want_exposed(&self, wants: bool) {
        let said = if wants { 2 } else { 1 };
        self.rx_control.wants_region.store(said, Ordering::Relaxed);
    }

    pub(super) fn wants_exposed(&self) -> Option<bool> {
        match self.tx_control.wants_region.load(Ordering::Relaxed) {
            0 => None,
            said => Some(said == 2),
        }
    }
}
