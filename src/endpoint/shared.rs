// SPDX-License-Identifier: MIT OR Apache-2.0
//! The endpoint of a peer on this node: its segment is mapped here, and this rank's there. Records travel in rings,
//! chunks stay where they were written, and the doorbell is a futex.

mod chunks;

use super::home::Home;
use super::{
    BadRecord, ChunkIndex, ChunkName, CooperativeBlock, Endpoint, Medium, Part, Record, RecordRoom,
};
use crate::error::{Error, Result};
use onecopy_btl::Refusal;
use onecopy_btl::contract::PeerAccess;
use onecopy_btl::link::{Link, Permitted};
use onecopy_shm::cells::MappedCells;
use onecopy_shm::coll::Channel;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::OutOfBounds;
use onecopy_shm::pool::{KeptChunks, Outstanding};
use onecopy_shm::ring::{self, Consumer, Producer};
use onecopy_shm::segment::{ControlHandle, OwnSegment, PeerSegment, SegmentError};
use onecopy_shm::sync::{Ordering, light_fence};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

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
    segment: PeerSegment,
    /// This rank's.
    own: Arc<OwnSegment>,
    /// Whether this rank must use full fences when it tells the peer of something.
    strong: bool,

    /// The ring to the peer, made on the first record.
    tx: Option<Producer<MappedCells>>,
    tx_control: ControlHandle,
    /// Chunks that the peer has not given back.
    outstanding: Outstanding,
    /// Chunks that have returned with messages, which are sent first: their lines are in this processor's cache.
    /// And how many there were, ever.
    came_back: VecDeque<ChunkIndex>,
    came_back_ever: u64,
    /// Whether the last chunk sent was one that had come from the peer before.
    sent_warm: bool,
    /// Whether the last message in chunks began in turn.
    began_in_turn: bool,
    /// How far the ring from the peer had been read then.
    read_before: u64,

    rx: Consumer<MappedCells>,
    rx_control: ControlHandle,
    /// Chunks of the peer's that were read and are not given back. And how many were returned, ever.
    kept: KeptChunks,
    returned_ever: u64,
    /// A message of fewer bytes is not sent in them.
    return_min: usize,
}

impl SharedMemory {
    /// Opens the segment of `rank` that came as `fd`. None of its chunks are kept before [`Self::keep_of`] says more.
    pub(crate) fn open(
        home: &Home,
        fd: OwnedFd,
        rank: u32,
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
            came_back: VecDeque::new(),
            came_back_ever: 0,
            sent_warm: false,
            began_in_turn: true,
            read_before: 0,
            rx: own.consumer(rank),
            rx_control: own.control_handle(rank),
            kept: KeptChunks::new(0, 0),
            return_min: usize::MAX,
            returned_ever: 0,
            own: Arc::clone(own),
            segment,
        })
    }

    /// Proves the layers of the pair, each by a transfer.
    pub(crate) fn connect(
        &mut self,
        means: &PeerAccess,
        permitted: &Permitted,
    ) -> std::result::Result<Link, Refusal> {
        Link::connect(&mut self.segment, means, permitted)
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

    #[inline]
    fn notify_room(&self) -> bool {
        light_fence(self.strong);
        self.rx_control.sender_waits.load(Ordering::Relaxed) != 0 && self.segment.doorbell().ring()
    }

    #[inline(always)]
    fn part(&self) -> Option<Part> {
        None
    }

    #[inline(always)]
    fn read_chunk(
        &mut self,
        chunk: ChunkName,
        offset: usize,
        out: &mut [u8],
        kernel: Kernel,
    ) -> std::result::Result<(), OutOfBounds> {
        let (pool, chunk) = match chunk {
            ChunkName::Sent(chunk) => (self.segment.pool(), chunk),
            // A peer may return only a chunk that this rank has lent to it.
            ChunkName::Returned(chunk) if self.outstanding.has(chunk) => {
                (Some(self.own.pool()), chunk)
            }
            ChunkName::Returned(_) => (None, ChunkIndex(0)),
        };
        let nowhere = OutOfBounds::nowhere("a chunk that the peer does not have");
        pool.ok_or(nowhere)?.read(chunk, offset, out, kernel)
    }

    /// The tail, which gives chunks back, is published every few of them: its line travels to the sender.
    #[inline(always)]
    fn pass(&mut self, record: Record, chunk: Option<ChunkName>) -> bool {
        let published = self.rx.advance(record);
        match chunk {
            None => published,
            Some(ChunkName::Sent(chunk)) => published | self.keep(chunk),
            Some(ChunkName::Returned(chunk)) => {
                self.comes_back(chunk);
                published
            }
        }
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
        // The sleeper arms its doorbell and then looks at its bitmap: one of us must see the other.
        light_fence(self.strong);
        self.segment.doorbell().ring()
    }

    #[inline]
    pub(super) fn wake(&self) {
        light_fence(self.strong);
        self.segment.doorbell().ring();
    }

    #[inline]
    pub(super) fn ring(&self) {
        self.segment.doorbell().ring();
    }

    pub(super) fn is_strong(&self) -> bool {
        self.strong
    }

    #[inline]
    pub(super) fn credit_back(&self) -> u64 {
        self.tx_control.credit.load(Ordering::Relaxed)
    }

    pub(super) fn could_write(&mut self, share: usize, any_chunk: bool) -> bool {
        let Some(tx) = &mut self.tx else { return true };
        let room = tx.claim_would_fit(2);
        self.kept.gave_back(self.rx.published());
        let before = self.outstanding.len();
        let given_back = self.given_back();
        room && (before == 0
            || !self.came_back.is_empty()
            || !self.kept.is_empty()
            || self.outstanding.would_reclaim(given_back)
            || before < share && any_chunk)
    }

    pub(super) fn wait_for_room(&self, waiting: bool) {
        let waiting = u32::from(waiting);
        self.tx_control
            .sender_waits
            .store(waiting, Ordering::Relaxed);
    }

    /// The word stands in this rank's segment already ([`Home::give_up`]). The peer finds it when it is woken, or with
    /// its next look at the lives of its peers.
    pub(super) fn give_up(&mut self) {
        self.segment.set_active();
        light_fence(true);
        self.segment.doorbell().ring();
    }
}

/// From the peer.
impl SharedMemory {
    pub(super) fn chunk_bytes(&self) -> usize {
        self.segment.chunk_bytes()
    }

    /// Polls that empty the ring: each takes a record at least. There are twice as many as slots, for records that
    /// arrive meanwhile.
    pub(super) fn looks_at_most(&self) -> usize {
        2 * self.own.geometry().ring_slots as usize
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

    pub(super) fn want_announced(&self, from: Option<u64>) {
        let word = from.map_or(0, |from| u32::try_from(from).unwrap_or(u32::MAX));
        self.rx_control
            .wants_announced
            .store(word, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn wants_announced(&self) -> u64 {
        match self.tx_control.wants_announced.load(Ordering::Relaxed) {
            0 => u64::MAX,
            from => u64::from(from),
        }
    }

    pub(super) fn want_exposed(&self, wants: bool) {
        let word = if wants { 2 } else { 1 };
        self.rx_control.wants_region.store(word, Ordering::Relaxed);
    }

    pub(super) fn wants_exposed(&self) -> Option<bool> {
        match self.tx_control.wants_region.load(Ordering::Relaxed) {
            0 => None,
            word => Some(word == 2),
        }
    }
}
