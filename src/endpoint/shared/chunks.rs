// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunks between two ranks in shared memory: which one goes next, which of the peer's are kept, and what comes back.
//!
//! A chunk belongs to one side at any moment (docs/memory-model.md, "Chunks"). What counts them without knowing of
//! memory is [`onecopy_shm::pool`].

use super::SharedMemory;
use crate::endpoint::home::Home;
use crate::endpoint::{ChunkDemand, ChunkIndex, ChunkName, Medium, Naming, Pack, Put};
use onecopy_shm::fault;
use onecopy_shm::pool::{KeptChunks, Outstanding};
use onecopy_shm::ring::Producer;
use onecopy_shm::sync::Ordering;

/// How many chunks of one peer a rank keeps.
#[derive(Debug, Clone, Copy)]
struct Keeping {
    /// Whatever it sends.
    least: usize,
    /// While the two send in turn.
    most: usize,
}

impl Keeping {
    /// The most chunks that are given back at once, whatever a peer may have out. A sender that gets them late goes
    /// round in more of them. With eight, Sapphire Rapids near takes 0.93 instead of 0.87 us for 4 KiB (11-29).
    const AT_ONCE: usize = 4;

    /// Of a peer that may have `share` chunks out to this rank, and `depth` in a pipeline. Its pool has `part` of them
    /// for each rank. Whatever it sends, a small part of that is kept. While the two send in turn, as much as leaves
    /// the peer such a part. What all ranks keep together leaves a sender most of its pool.
    fn of(share: usize, depth: usize, part: usize) -> Self {
        let most = part / 4;
        let out = share.min(depth);
        let given_back = (out / 8).min(Self::AT_ONCE).min(most).max(1);
        Self {
            least: given_back - 1,
            most: out.saturating_sub(given_back).min(most),
        }
    }
}

/// What is kept of a peer's chunks.
impl SharedMemory {
    /// From now on chunks are kept of a peer that may have `bytes` of them out to this rank, and `depth` in a pipeline.
    /// It is no more than the least where none can return. Messages of `return_min` bytes and more are sent in them.
    pub(crate) fn keep_of(&mut self, bytes: usize, depth: usize, return_min: usize) {
        self.return_min = return_min;
        let chunk = self.segment.chunk_bytes();
        let geometry = self.own.geometry();
        let pool = geometry.chunks as usize * geometry.chunk_bytes as usize / chunk;
        let keeping = Keeping::of(
            (bytes / chunk).max(1),
            depth,
            pool / geometry.ranks as usize,
        );
        let most = if self.segment.returns_chunks() {
            keeping.most
        } else {
            keeping.least
        };
        self.kept = KeptChunks::new(keeping.least, most);
    }

    /// Whether more of the peer's chunks may be kept than always are, so that some return.
    pub(in crate::endpoint) fn returns_chunks(&self) -> bool {
        self.kept.may_return()
    }

    pub(in crate::endpoint) fn expects_answer(&self) -> bool {
        self.kept.expects_answer()
    }

    /// What comes next is not answered: as little is kept as of any peer.
    pub(in crate::endpoint) fn expect_no_answer(&mut self) {
        self.kept.expect_no_answer();
        self.give_back();
    }
}

/// A chunk to be sent.
#[derive(Clone, Copy)]
struct NextChunk {
    chunk: ChunkName,
    /// Where the record ends that a chunk of the peer's came with.
    position: u64,
}

/// To the peer.
impl SharedMemory {
    #[inline]
    pub(in crate::endpoint) fn put_chunk<const N: usize>(
        &mut self,
        home: &mut Home,
        naming: Naming,
        body: impl FnOnce(ChunkName) -> [u8; N],
        source: &impl Pack,
    ) -> Put {
        if !self.tx.as_mut().is_some_and(|tx| tx.claim_would_fit(1)) {
            return Put::NoRoom;
        }
        let Some(next) = self.take_chunk(home, naming) else {
            return Put::NoChunk;
        };
        let chunk = next.chunk;
        let mut is_written = true;
        let shown = source.show(|offset, bytes| {
            let offset = naming.begin + offset;
            is_written &= match chunk {
                ChunkName::Sent(chunk) => home.write(chunk, offset, bytes, naming.kernel),
                ChunkName::Returned(chunk) => self.segment.pool().is_some_and(|pool| {
                    let written = pool.write(chunk, offset, bytes, naming.kernel);
                    written.is_ok()
                }),
            };
        });
        if shown.is_err() || !is_written {
            self.untake(home, next);
            return Put::Withdrawn;
        }
        let Some(mut claim) = self.tx.as_mut().and_then(|tx| tx.claim(1)) else {
            self.untake(home, next);
            return Put::NoRoom;
        };
        if let ChunkName::Returned(_) = chunk {
            self.returned_ever += 1;
            // A tail that gives this chunk back is published later. A peer that reads it sees this, too.
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

    /// The chunk to send next: one of the peer's that it can have back, one that has come back, any other.
    #[inline]
    fn take_chunk(&mut self, home: &mut Home, naming: Naming) -> Option<NextChunk> {
        if self.can_return(naming.total, naming.begin + naming.len)
            && let Some((position, chunk)) = self.kept.take(self.rx.published())
        {
            self.sent_warm = true;
            return Some(NextChunk {
                chunk: ChunkName::Returned(chunk),
                position,
            });
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
        Some(NextChunk {
            chunk: ChunkName::Sent(chunk),
            position: 0,
        })
    }

    /// A hint that the first `len` bytes of a chunk are read next, for the receive that is looked up meanwhile.
    #[inline(always)]
    pub(in crate::endpoint) fn will_read_chunk(&self, chunk: ChunkName, len: usize) {
        if let ChunkName::Sent(chunk) = chunk
            && let Some(pool) = self.segment.pool()
        {
            pool.will_read(chunk, len);
        }
    }

    /// A chunk was taken and nothing was sent in it.
    #[cold]
    fn untake(&mut self, home: &mut Home, next: NextChunk) {
        match next.chunk {
            ChunkName::Sent(chunk) => home.pool().give(chunk),
            ChunkName::Returned(chunk) => self.kept.put_back((next.position, chunk)),
        }
    }

    /// Whether `len` bytes of a message of `total` can be sent in a chunk of the peer's. All of its chunks return, or
    /// none: else one would be left over, and the next message would seem to get no answer.
    #[inline]
    fn can_return(&self, total: usize, len: usize) -> bool {
        total >= self.return_min
            && len <= self.segment.chunk_bytes()
            && self.segment.returns_chunks()
    }

    pub(in crate::endpoint) fn has_room_for(
        &mut self,
        home: &mut Home,
        demand: ChunkDemand,
    ) -> bool {
        let ChunkDemand {
            total,
            step,
            chunks: count,
            share,
        } = demand;
        if !self.tx.as_mut().is_some_and(|tx| tx.claim_would_fit(count)) {
            return false;
        }
        self.kept.gave_back(self.rx.published());
        let kept = if self.can_return(total, step) {
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
    pub(in crate::endpoint) fn sent_warm(&self) -> bool {
        self.sent_warm
    }

    #[inline]
    pub(in crate::endpoint) fn is_in_turn(&self) -> bool {
        self.rx.position() != self.read_before
    }

    /// A message begins that goes in chunks, or might.
    #[inline]
    pub(in crate::endpoint) fn begins(&mut self) {
        self.began_in_turn = self.is_in_turn();
        self.read_before = self.rx.position();
    }

    #[inline]
    pub(in crate::endpoint) fn began_chunks(&mut self, total: usize) {
        self.begins();
        if total >= self.return_min {
            self.kept.sends();
        } else {
            self.kept.sends_otherwise();
        }
    }

    /// A message in chunks is out. What was read before it is free as a rule, and the chunks of the next message are
    /// kept. This is the moment to say so.
    #[inline]
    pub(in crate::endpoint) fn ended_chunks(&mut self) {
        if self.kept.expects_answer() && self.kept.is_empty() && self.rx.publish_tail_early() {
            self.notify_room();
        }
    }

    #[inline]
    pub(in crate::endpoint) fn began_in_turn(&self) -> bool {
        self.began_in_turn
    }

    /// How far the peer's tail gives chunks back. Nowhere, while one is under way that returns: the tail may stand
    /// behind the record that it was sent with.
    pub(super) fn given_back(&mut self) -> u64 {
        let released = self.tx.as_mut().map_or(0, Producer::released);
        // The tail was read first, and orders this.
        let returned = self.tx_control.returned.load(Ordering::Relaxed);
        if returned == self.came_back_ever {
            released
        } else {
            0
        }
    }

    pub(in crate::endpoint) fn collect_chunks(&mut self, home: &mut Home) {
        while let Some(chunk) = self.came_back.pop_back() {
            home.pool().give_warm(chunk);
        }
        if !self.outstanding.is_empty() {
            let given_back = self.given_back();
            self.outstanding.reclaim(given_back, home.pool());
        }
    }

    /// A peer that lives may still answer in what it keeps. So that is not used any more.
    pub(in crate::endpoint) fn reclaim_all(&mut self, home: &mut Home, lives: bool) {
        self.collect_chunks(home);
        if lives {
            self.outstanding = Outstanding::default();
        } else {
            self.outstanding.reclaim_all(home.pool());
        }
        self.kept.gave_back(u64::MAX);
    }
}

/// From the peer.
impl SharedMemory {
    /// Keeps a chunk whose record was passed. Says whether the tail was published, which gives back what was kept:
    /// every few of them, since its line travels to the sender.
    #[inline]
    pub(super) fn keep(&mut self, chunk: ChunkIndex) -> bool {
        let due = self.kept.keep(self.rx.position(), chunk);
        if due {
            self.rx.publish_tail();
        }
        self.kept.gave_back(self.rx.published());
        due
    }

    #[inline]
    pub(super) fn comes_back(&mut self, chunk: ChunkIndex) {
        self.came_back_ever += 1;
        self.kept.came_back();
        if self.outstanding.take_back(chunk) {
            self.came_back.push_back(chunk);
        }
    }

    pub(in crate::endpoint) fn give_back(&mut self) {
        if self.kept.holds_any() {
            self.rx.publish_tail();
            self.kept.gave_back(self.rx.published());
            self.notify_room();
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
                    let out = share.min(depth);
                    assert!(least < out && most < out, "{share} {depth} {part}");
                    assert!(most <= part / 4 && (least <= most || least == 0));
                }
            }
        }
        // 256 KiB for a peer in chunks of 16 and of 8 KiB.
        let many = Keeping::of(16, 4, 2048);
        assert_eq!((many.least, many.most), (0, 3));
        let many = Keeping::of(16, 16, 2048);
        assert_eq!((many.least, many.most), (1, 14));
        assert_eq!(Keeping::of(32, 32, 2048).most, 28);
    }
}
