// SPDX-License-Identifier: MIT OR Apache-2.0
//! The endpoint of a peer on this node: its segment is mapped here, and this rank's there. Records travel in rings,
//! chunks stay where they were written, and the bell is a futex.

use super::home::Home;
use super::{
    BadRecord, ChunkIndex, ChunkName, CooperativeBlock, Endpoint, Medium, Naming, Pack, Part, Put,
    Record, RecordRoom,
};
use crate::error::{Error, Result};
use onecopy_shm::cells::MappedCells;
use onecopy_shm::coll::Channel;
use onecopy_shm::copy::Kernel;
use onecopy_shm::fault;
use onecopy_shm::layout::OutOfBounds;
use onecopy_shm::pool::{Kept, Outstanding};
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
    pub(crate) segment: PeerSegment,
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
    kept: Kept,
    returned_ever: u64,
}

/// How many chunks of one peer a rank keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    /// Whatever it sends.
    pub(crate) least: usize,
    /// While the two send in turn.
    pub(crate) most: usize,
}

impl Keeping {
    /// Of a peer that may have `share` chunks out to this rank, and `depth` in a pipeline, and whose pool has `part` of
    /// them for each rank. Whatever it sends, a small part of that is kept. While the two send in turn, as much as
    /// leaves the peer such a part. What all ranks keep together leaves a sender most of its pool.
    pub(crate) fn of(share: usize, depth: usize, part: usize) -> Self {
        let most = part / 4;
        let given_back = (share.min(depth) / 8).min(most).max(1);
        Self {
            least: given_back - 1,
            most: share.saturating_sub(given_back).min(most),
        }
    }
}

impl SharedMemory {
    /// Opens the segment of `rank` that came as `fd`. None of its chunks are kept before [`Self::keep_as`] says more.
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
            began_in_turn: false,
            read_before: 0,
            rx: own.consumer(rank),
            rx_control: own.control_handle(rank),
            kept: Kept::new(0, 0),
            returned_ever: 0,
            own: Arc::clone(own),
            segment,
        })
    }
}

/// What is kept of a peer's chunks.
impl SharedMemory {
    /// As many chunks are kept as `keeping` says: no more than the least where none can return.
    pub(crate) fn keep_as(&mut self, keeping: Keeping) {
        let most = if self.segment.returns_chunks() {
            keeping.most
        } else {
            keeping.least
        };
        self.kept = Kept::new(keeping.least, most);
    }

    pub(super) fn expects_answer(&self) -> bool {
        self.kept.expects_answer()
    }

    /// What comes next is not answered: as little is kept as of any peer.
    pub(super) fn expect_no_answer(&mut self) {
        self.kept.expect_no_answer();
        self.give_back();
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
        self.rx_control.sender_waits.load(Ordering::Relaxed) != 0 && self.segment.bell().ring()
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
            // One that the peer does not have is not for it to name.
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
        body: impl FnOnce(ChunkName) -> [u8; N],
        source: &impl Pack,
    ) -> Put {
        if !self.tx.as_mut().is_some_and(|tx| tx.claim_would_fit(1)) {
            return Put::NoRoom;
        }
        let Some((chunk, position)) = self.take_chunk(home, naming) else {
            return Put::NoChunk;
        };
        let mut fits = true;
        let shown = source.show(|at, bytes| {
            fits &= match chunk {
                ChunkName::Sent(chunk) => home.write(chunk, at, bytes, naming.kernel),
                ChunkName::Returned(chunk) => self.segment.pool().is_some_and(|pool| {
                    let written = pool.write(chunk, at, bytes, naming.kernel);
                    written.is_ok()
                }),
            };
        });
        if shown.is_err() || !fits {
            self.untake(home, chunk, position);
            return Put::Withdrawn;
        }
        let Some(mut claim) = self.tx.as_mut().and_then(|tx| tx.claim(1)) else {
            self.untake(home, chunk, position);
            return Put::NoRoom;
        };
        if let ChunkName::Returned(_) = chunk {
            self.returned_ever += 1;
            // A tail that gives this chunk back is published later, and whoever reads it sees this, too.
            let returned = &self.rx_control.returned;
            returned.store(self.returned_ever, Ordering::Relaxed);
            fault::point("chunk.return");
        }
        claim.write(0, &body(chunk));
        claim.publish(naming.kind, N, naming.meta);
        match chunk {
            ChunkName::Sent(chunk) => {
                let position = self.tx.as_ref().map_or(0, Producer::position);
                self.outstanding.push(position, chunk);
                Put::Sent
            }
            ChunkName::Returned(_) => Put::Returned,
        }
    }

    /// The chunk to send next: one of the peer's that it can have back, one that has come back, any other. And where
    /// the record ends that the peer's came with.
    #[inline]
    fn take_chunk(&mut self, home: &mut Home, naming: Naming) -> Option<(ChunkName, u64)> {
        if self.can_return(naming.len)
            && let Some((position, chunk)) = self.kept.take(self.rx.published())
        {
            self.sent_warm = true;
            return Some((ChunkName::Returned(chunk), position));
        }
        let share = naming.share.max(1);
        // The receiver's tail is looked at only when chunks are short: its line travels for that.
        if self.outstanding.len() >= share
            || (!home.has_free() && self.came_back.is_empty() && !self.outstanding.is_empty())
        {
            self.collect_chunks(home);
        }
        if self.outstanding.len() >= share {
            return None;
        }
        let warm = self.came_back.pop_front();
        self.sent_warm = warm.is_some();
        let chunk = warm.or_else(|| home.take())?;
        Some((ChunkName::Sent(chunk), 0))
    }

    /// A chunk was taken and nothing was sent in it.
    #[cold]
    fn untake(&mut self, home: &mut Home, chunk: ChunkName, position: u64) {
        match chunk {
            ChunkName::Sent(chunk) => home.pool().give(chunk),
            ChunkName::Returned(chunk) => self.kept.put_back((position, chunk)),
        }
    }

    /// Whether a message of `len` bytes can be sent in a chunk of the peer's.
    #[inline]
    fn can_return(&self, len: usize) -> bool {
        self.segment.returns_chunks() && len <= self.segment.chunk_bytes()
    }

    pub(super) fn has_room_for(
        &mut self,
        home: &mut Home,
        (count, len): (usize, usize),
        share: usize,
    ) -> bool {
        if !self.tx.as_mut().is_some_and(|tx| tx.claim_would_fit(count)) {
            return false;
        }
        self.kept.gave_back(self.rx.published());
        let kept = if self.can_return(len) {
            self.kept.len()
        } else {
            0
        };
        let room = |own: &Self, home: &Home| {
            let share = share.saturating_sub(own.outstanding.len());
            kept + share.min(own.came_back.len() + home.chunks_free()) >= count
        };
        if !room(self, home) {
            self.collect_chunks(home);
        }
        room(self, home)
    }

    #[inline]
    pub(super) fn sent_warm(&self) -> bool {
        self.sent_warm
    }

    #[inline]
    pub(super) fn is_in_turn(&self) -> bool {
        self.rx.position() != self.read_before
    }

    #[inline]
    pub(super) fn began_chunks(&mut self) {
        self.began_in_turn = self.is_in_turn();
        self.read_before = self.rx.position();
        self.kept.sends();
    }

    /// A message in chunks is out. What was read before it is free as a rule, and the chunks of the next message are
    /// kept: this is the moment to say so.
    #[inline]
    pub(super) fn ended_chunks(&mut self) {
        if self.kept.expects_answer() && self.kept.is_empty() && self.rx.publish_tail_early() {
            self.notify_room();
        }
    }

    #[inline]
    pub(super) fn began_in_turn(&self) -> bool {
        self.began_in_turn
    }

    /// How far the peer's tail gives chunks back. Nowhere, while one is under way that returns: the tail may stand
    /// behind the record that it was sent with.
    fn given_back(&mut self) -> u64 {
        let released = self.tx.as_mut().map_or(0, Producer::released);
        // The tail was read first, and orders this.
        let returned = self.tx_control.returned.load(Ordering::Relaxed);
        if returned == self.came_back_ever {
            released
        } else {
            0
        }
    }

    pub(super) fn collect_chunks(&mut self, home: &mut Home) {
        while let Some(chunk) = self.came_back.pop_back() {
            home.pool().give_warm(chunk);
        }
        if !self.outstanding.is_empty() {
            let given_back = self.given_back();
            self.outstanding.reclaim(given_back, home.pool());
        }
    }

    /// A peer that lives may still answer in what it keeps. So that is not used any more.
    pub(super) fn reclaim_all(&mut self, home: &mut Home, lives: bool) {
        self.collect_chunks(home);
        if lives {
            self.outstanding = Outstanding::default();
        } else {
            self.outstanding.reclaim_all(home.pool());
        }
        self.kept.gave_back(u64::MAX);
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

    /// Keeps a chunk whose record was passed. Says whether the tail was published, which gives back what was kept:
    /// every few of them, since its line travels to the sender.
    #[inline]
    fn keep(&mut self, chunk: ChunkIndex) -> bool {
        let due = self.kept.keep(self.rx.position(), chunk);
        if due {
            self.rx.publish_tail();
        }
        self.kept.gave_back(self.rx.published());
        due
    }

    #[inline]
    fn comes_back(&mut self, chunk: ChunkIndex) {
        self.came_back_ever += 1;
        if self.outstanding.take_back(chunk) {
            self.came_back.push_back(chunk);
        }
    }

    pub(super) fn give_back(&mut self) {
        if !self.kept.is_empty() {
            self.rx.publish_tail();
            self.kept.gave_back(self.rx.published());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_left_chunks_enough() {
        for share in 1..200 {
            for depth in [1, 2, 4, 16, 64] {
                for part in [0, 1, 2, 8, 64, 1000] {
                    let Keeping { least, most } = Keeping::of(share, depth, part);
                    // Of what a peer may have out it is always left one at least, in a pipeline, too.
                    assert!(
                        least < share.min(depth) && most < share,
                        "{share} {depth} {part}"
                    );
                    assert!(most <= part / 4 && (least <= most || least == 0));
                }
            }
        }
        // 256 KiB for a peer in chunks of 16 and of 8 KiB.
        let many = Keeping::of(16, 4, 2048);
        assert_eq!((many.least, many.most), (0, 15));
        assert_eq!(Keeping::of(32, 32, 2048).most, 28);
    }
}
