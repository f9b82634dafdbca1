// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sender's chunks: which are free, and which wait for which peer.
//!
//! A chunk is named by a record in a peer's ring and is free again when the peer's tail has passed that record. So all
//! that is needed is a queue per peer of (ring position, chunk), known to the sender alone. When a peer dies, its queue
//! goes back to the pool.
//!
//! *Chunks that return.* A peer that has read a chunk may keep it, and send its next message in it. The lines of the
//! chunk are in the peer's cache by then, and in this rank's once it has read that message. So each line travels once
//! per message, not twice (docs/performance.md). The peer may do so until it publishes a tail behind the record that
//! named the chunk. It counts the chunks that it returns. The tail says nothing of chunks as long as this rank has read
//! fewer of them: one may be under way.

use crate::layout::ChunkIndex;
use std::collections::VecDeque;

/// Free chunks of this rank's pool. The one that has been free longest is used first. The lines of one that was just
/// read lie in the reader's cache. Taking them back costs more than a line that nobody holds any more
/// (docs/performance.md).
#[derive(Debug)]
pub struct ChunkPool {
    free: VecDeque<ChunkIndex>,
    reserved: u32,
    limit: u32,
    /// The fewest that were free since the last [`Self::shrink`]: so many were not needed.
    low: usize,
}

/// Chunks that a pool keeps at least once it has had some, and gets at first. Chosen by magnitude,
/// not by a measurement. Half would be a call of the kernel more for ranks that send, twice as many only more memory.
const KEPT: u32 = 8;

impl ChunkPool {
    /// A pool of at most `limit` chunks, none reserved yet.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            free: VecDeque::new(),
            reserved: 0,
            limit,
            low: 0,
        }
    }

    /// Takes a free chunk. When none is free, `reserve(first, count)` is asked to reserve more until the limit is
    /// reached. `None` means that the caller must wait for chunks to come back.
    ///
    /// # Errors
    /// That of `reserve`. The pool is as before then.
    pub fn take<E>(
        &mut self,
        reserve: impl FnOnce(u32, u32) -> Result<(), E>,
    ) -> Result<Option<ChunkIndex>, E> {
        if let Some(chunk) = self.free.pop_front() {
            self.low = self.low.min(self.free.len());
            return Ok(Some(chunk));
        }
        // Doubling keeps the number of calls small and the memory of a rank that needs one chunk small too.
        let count = self
            .reserved
            .clamp(KEPT, 64)
            .min(self.limit - self.reserved);
        if count == 0 {
            return Ok(None);
        }
        reserve(self.reserved, count)?;
        self.low = 0;
        self.free
            .extend((self.reserved + 1..self.reserved + count).map(ChunkIndex));
        let first = ChunkIndex(self.reserved);
        self.reserved += count;
        Ok(Some(first))
    }

    /// Gives a chunk back whose lines are in this processor's cache: it is used first.
    #[inline]
    pub fn give_warm(&mut self, chunk: ChunkIndex) {
        debug_assert!(chunk.0 < self.reserved && !self.free.contains(&chunk));
        self.free.push_front(chunk);
    }

    /// Gives a chunk back.
    #[inline]
    pub fn give(&mut self, chunk: ChunkIndex) {
        debug_assert!(chunk.0 < self.reserved && !self.free.contains(&chunk));
        self.free.push_back(chunk);
    }

    /// Gives up chunks that nothing needed since the last call. Returns the first and the count of those whose memory
    /// can be released, if there are any. They are the last ones, so that what is reserved stays one range.
    pub fn shrink(&mut self) -> Option<(u32, u32)> {
        let unneeded = u32::try_from(self.low.min(self.free.len())).unwrap_or(u32::MAX);
        self.low = self.free.len();
        let least = (self.reserved.saturating_sub(unneeded)).max(KEPT.min(self.reserved));
        let mut is_free = vec![false; self.reserved as usize];
        for chunk in &self.free {
            is_free[chunk.0 as usize] = true;
        }
        let mut first = self.reserved;
        while first > least && is_free[first as usize - 1] {
            first -= 1;
        }
        let count = self.reserved - first;
        if count == 0 {
            return None;
        }
        self.free.retain(|chunk| chunk.0 < first);
        self.low = self.free.len();
        self.reserved = first;
        Some((first, count))
    }

    /// The chunk that the next [`Self::take`] gives, if one is free.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<ChunkIndex> {
        self.free.front().copied()
    }

    /// The chunks that the next calls of [`Self::take`] give, as far as they are free.
    #[inline]
    pub fn coming(&self) -> impl Iterator<Item = ChunkIndex> + '_ {
        self.free.iter().copied()
    }

    /// Chunks reserved so far.
    #[must_use]
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Chunks that are reserved and free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

/// Chunks that one peer has not given back yet, in the order of its ring.
#[derive(Debug, Default)]
pub struct Outstanding {
    queue: VecDeque<(u64, ChunkIndex)>,
}

impl Outstanding {
    /// `chunk` is named by a record that ends at ring position `position`.
    #[inline]
    pub fn push(&mut self, position: u64, chunk: ChunkIndex) {
        debug_assert!(self.queue.back().is_none_or(|last| last.0 <= position));
        self.queue.push_back((position, chunk));
    }

    /// Chunks outstanding.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none is outstanding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the peer has this chunk.
    #[inline]
    #[must_use]
    pub fn has(&self, chunk: ChunkIndex) -> bool {
        self.queue.iter().any(|&(_, out)| out == chunk)
    }

    /// The peer has returned this chunk with a message. `false`: it did not have it.
    #[inline]
    pub fn take_back(&mut self, chunk: ChunkIndex) -> bool {
        // Nearly always the first: chunks return in the order in which they were sent.
        let found = self.queue.iter().position(|&(_, out)| out == chunk);
        found.and_then(|index| self.queue.remove(index)).is_some()
    }

    /// Whether [`Self::reclaim`] would give anything back.
    #[must_use]
    pub fn would_reclaim(&self, released: u64) -> bool {
        self.queue
            .front()
            .is_some_and(|&(position, _)| position <= released)
    }

    /// Gives back to `pool` what the peer has passed, `released` being its tail.
    pub fn reclaim(&mut self, released: u64, pool: &mut ChunkPool) {
        while let Some(&(position, chunk)) = self.queue.front() {
            if position > released {
                break;
            }
            self.queue.pop_front();
            pool.give(chunk);
        }
    }

    /// Gives everything back: the peer is dead.
    pub fn reclaim_all(&mut self, pool: &mut ChunkPool) {
        self.reclaim(u64::MAX, pool);
    }
}

/// Chunks of a peer's that this rank has read and neither given back nor returned, each with the position behind its
/// record. The peer's again are those that a tail was published behind, whatever published it.
///
/// How many are kept follows from what the two do. If they send in turn, as many as the peer's message had are kept for
/// the answer. It is the longer one of its last two: short and long ones often alternate. A peer that sends more
/// without one gets them back as before, and they are only counted.
#[derive(Debug)]
pub struct KeptChunks {
    chunks: VecDeque<(u64, ChunkIndex)>,
    /// As many may stay.
    most: usize,
    least: usize,
    limit: usize,
    /// Chunks read since a message in chunks went to the peer, whichever of the two they belong to.
    read: usize,
    /// The same of the message before.
    read_before: usize,
    /// Whether the peer was answered since it last sent more than was kept.
    answered: bool,
    /// Chunks that were read while the peer was not answered, and are neither kept nor given back.
    passed: usize,
    /// Where the record of the last of these ends.
    passed_to: u64,
    /// By how many chunks the peer's last message was longer than `limit`. If the next one is as long, all of it cannot
    /// be kept. So its first `surplus` chunks are given back, and the later ones are kept.
    surplus: usize,
}

impl KeptChunks {
    /// Keeps `least` chunks whatever the two do, and never more than `limit`.
    #[must_use]
    pub fn new(least: usize, limit: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            most: least,
            least,
            limit: limit.max(least),
            read: 0,
            read_before: 0,
            answered: true,
            passed: 0,
            passed_to: 0,
            surplus: 0,
        }
    }

    /// Whether chunks may be kept for an answer.
    #[must_use]
    pub fn may_return(&self) -> bool {
        self.limit > self.least
    }

    /// `chunk` was read, with the record that ends at `position`. `true`: all have to be given back now.
    #[inline]
    #[must_use]
    pub fn keep(&mut self, position: u64, chunk: ChunkIndex) -> bool {
        self.read += 1;
        if !self.answered {
            self.passed += 1;
            self.passed_to = position;
            return self.chunks.len() + self.passed > self.least;
        }
        self.chunks.push_back((position, chunk));
        let comes_first = self.read <= self.surplus;
        let most = if comes_first { self.least } else { self.most };
        let too_many = self.chunks.len() > most;
        if too_many && !comes_first {
            // The peer sends more than it is answered.
            self.expect_no_answer();
        }
        too_many || self.read == self.surplus || self.chunks.len() + self.passed > self.limit
    }

    /// Notes that one of this rank's own chunks came back with the peer's message, and counts it among that message's.
    #[inline]
    pub fn came_back(&mut self) {
        self.read += 1;
    }

    /// Notes that a message goes to the peer in chunks, and that chunks of the peer's may be among them. What was read
    /// since the last such message decides how many chunks are kept from now on.
    #[inline]
    pub fn sends(&mut self) {
        // Where none can return there is nothing to keep for an answer.
        if self.read > 0 && self.limit > self.least {
            let longer = self.read.max(self.read_before);
            self.most = longer.clamp(self.least, self.limit);
            self.surplus = self.read.saturating_sub(self.limit);
            (self.read_before, self.read) = (self.read, 0);
            self.answered = true;
        }
    }

    /// Notes that a message goes to the peer in chunks, none of which may be a chunk of the peer's.
    #[inline]
    pub fn sends_otherwise(&mut self) {
        // A later message may still answer what was read. But what was read is no single long message, so no part of it
        // may count as a surplus.
        self.read = self.read.min(self.limit);
    }

    /// A tail was published: what was read before it is the peer's again.
    #[inline]
    pub fn gave_back(&mut self, tail: u64) {
        if self.passed_to <= tail {
            self.passed = 0;
        }
        while self.chunks.front().is_some_and(|kept| kept.0 <= tail) {
            self.chunks.pop_front();
        }
    }

    /// Whether a tail behind all that was read would give the peer any, if none was published since
    /// [`Self::gave_back`].
    #[must_use]
    pub fn holds_any(&self) -> bool {
        !self.chunks.is_empty() || self.passed > 0
    }

    /// Takes one that was kept, to return it. `tail` is the one that was published last.
    #[inline]
    pub fn take(&mut self, tail: u64) -> Option<(u64, ChunkIndex)> {
        self.gave_back(tail);
        self.chunks.pop_front()
    }

    /// It was not returned after all.
    pub fn put_back(&mut self, kept: (u64, ChunkIndex)) {
        self.chunks.push_front(kept);
    }

    /// What comes next is not answered.
    pub fn expect_no_answer(&mut self) {
        (self.most, self.surplus, self.read_before) = (self.least, 0, 0);
        self.answered = false;
    }

    /// Whether more are kept than a peer has to do without that is not answered.
    #[must_use]
    pub fn expects_answer(&self) -> bool {
        self.most > self.least
    }

    /// How many are kept, if no tail was published since [`Self::gave_back`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// No chunk is ever out twice, the limit holds, and everything comes back.
        #[test]
        fn chunks_are_never_shared(limit in 1u32..200, steps in prop::collection::vec((0u8..5, 0usize..3), 0..400)) {
            let mut pool = ChunkPool::new(limit);
            let mut peers: Vec<(Outstanding, u64)> = (0..3).map(|_| (Outstanding::default(), 0)).collect();
            let mut out = std::collections::HashSet::new();
            let mut reserved = 0;
            for (what, who) in steps {
                if what == 4 {
                    if let Some((first, count)) = pool.shrink() {
                        prop_assert!(out.iter().all(|chunk: &ChunkIndex| chunk.0 < first), "a chunk that is out was released");
                        prop_assert_eq!(first + count, reserved);
                        prop_assert!(first >= KEPT.min(limit));
                        reserved = first;
                    }
                    prop_assert_eq!(pool.free() + out.len(), reserved as usize);
                    continue;
                }
                let (queue, position) = &mut peers[who];
                if what < 3 {
                    let got = pool.take(|first, count| {
                        assert!(first == reserved && first + count <= limit);
                        reserved = first + count;
                        Ok::<(), ()>(())
                    }).unwrap();
                    match got {
                        Some(chunk) => {
                            prop_assert!(chunk.0 < limit);
                            prop_assert!(out.insert(chunk), "{chunk:?} was out already");
                            *position += 1;
                            queue.push(*position, chunk);
                        }
                        None => prop_assert_eq!(out.len(), limit as usize),
                    }
                } else {
                    let before: Vec<_> = queue.queue.iter().copied().collect();
                    let released = position.saturating_sub(2);
                    queue.reclaim(released, &mut pool);
                    for (pushed, chunk) in before {
                        if pushed <= released { out.remove(&chunk); }
                    }
                }
            }
            for (queue, _) in &mut peers {
                queue.reclaim_all(&mut pool);
            }
            prop_assert_eq!(pool.free(), pool.reserved() as usize);
        }
    }

    /// Two ranks that send each other chunks, as `src/endpoint/shared.rs` does. The reader of a chunk keeps it,
    /// returns it with a message, or gives it back by a tail. No chunk ever has two owners.
    mod returns {
        use super::*;

        /// A rank's chunks, its way to the other one, and what it keeps of the other's.
        struct Side {
            pool: ChunkPool,
            out: Outstanding,
            came_back: Vec<ChunkIndex>,
            came_back_ever: u64,
            kept: KeptChunks,
            /// What the other one sees: records sent, the tail of what was read, chunks returned.
            sent: Vec<(ChunkIndex, bool)>,
            read: usize,
            tail: u64,
            returned: u64,
        }

        impl Side {
            /// Of `chunks`, of which the other one keeps `least` of a peer that is not answered and `limit` at most.
            fn new(chunks: u32, least: usize, limit: usize) -> Self {
                Self {
                    pool: ChunkPool::new(chunks),
                    out: Outstanding::default(),
                    came_back: Vec::new(),
                    came_back_ever: 0,
                    kept: KeptChunks::new(least, limit),
                    sent: Vec::new(),
                    read: 0,
                    tail: 0,
                    returned: 0,
                }
            }

            fn collect(&mut self, other: &Self) {
                for chunk in self.came_back.drain(..) {
                    self.pool.give_warm(chunk);
                }
                if other.returned == self.came_back_ever {
                    self.out.reclaim(other.tail, &mut self.pool);
                }
            }

            /// A message in one chunk.
            fn send(&mut self, other: &Self, returns: bool) {
                if returns {
                    self.kept.sends();
                } else {
                    self.kept.sends_otherwise();
                }
                self.send_chunk(other, returns);
            }

            fn send_chunk(&mut self, other: &Self, returns: bool) {
                if returns && let Some((_, chunk)) = self.kept.take(self.tail) {
                    self.returned += 1;
                    self.sent.push((chunk, true));
                    return;
                }
                self.collect(other);
                if let Ok(Some(chunk)) = self.pool.take(|_, _| Ok::<(), ()>(())) {
                    self.sent.push((chunk, false));
                    self.out.push(self.sent.len() as u64, chunk);
                }
            }

            fn receive(&mut self, other: &Self) {
                let Some(&(chunk, returned)) = other.sent.get(self.read) else {
                    return;
                };
                self.read += 1;
                if returned {
                    self.came_back_ever += 1;
                    assert!(
                        self.out.take_back(chunk),
                        "{chunk:?} was not the other one's"
                    );
                    self.came_back.push(chunk);
                    self.kept.came_back();
                } else {
                    if self.kept.keep(self.read as u64, chunk) {
                        self.give_back();
                    }
                    self.kept.gave_back(self.tail);
                    let held = self.kept.chunks.len() + self.kept.passed;
                    assert!(held <= self.kept.limit, "{held} are held");
                }
            }

            /// As a rank that has waited for long.
            fn idle(&mut self) {
                self.kept.gave_back(self.tail);
                if self.kept.holds_any() {
                    self.give_back();
                }
            }

            fn give_back(&mut self) {
                // Its publisher need not say so.
                self.tail = self.read as u64;
            }

            /// Chunks of this side's pool that it may write, and such of the other's.
            fn writable(&self) -> (Vec<ChunkIndex>, Vec<ChunkIndex>) {
                let own = self.pool.free.iter().chain(&self.came_back).copied();
                let kept = self.kept.chunks.iter().filter(|kept| kept.0 > self.tail);
                (own.collect(), kept.map(|kept| kept.1).collect())
            }
        }

        fn check(owner: &Side, other: &Side) -> Result<(), TestCaseError> {
            let mut all = owner.writable().0;
            all.extend(other.writable().1);
            // What is under way, in either direction, is nobody's to write.
            let unread = |from: &Side, to: &Side, returned: bool| -> Vec<ChunkIndex> {
                let under_way = from.sent[to.read..].iter();
                under_way
                    .filter(|sent| sent.1 == returned)
                    .map(|sent| sent.0)
                    .collect()
            };
            all.extend(unread(owner, other, false));
            all.extend(unread(other, owner, true));
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), count, "a chunk has two owners");
            Ok(())
        }

        proptest! {
            #[test]
            fn no_chunk_has_two_owners(steps in prop::collection::vec((0u8..10, any::<bool>()), 0..300)) {
                let (mut a, mut b) = (Side::new(6, 1, 4), Side::new(6, 1, 4));
                for (what, first) in steps {
                    let (one, other) = if first { (&mut a, &b) } else { (&mut b, &a) };
                    match what {
                        0..3 => one.send(other, what < 2),
                        3..6 => one.receive(other),
                        6 => one.give_back(),
                        7 => one.idle(),
                        8 => one.kept.expect_no_answer(),
                        _ => one.collect(other),
                    }
                    check(&a, &b)?;
                    check(&b, &a)?;
                }
                // Everything comes back once all is read.
                for _ in 0..600 {
                    a.receive(&b);
                    b.receive(&a);
                }
                a.idle();
                b.idle();
                a.collect(&b);
                b.collect(&a);
                for side in [&a, &b] {
                    prop_assert_eq!(side.pool.free(), side.pool.reserved() as usize);
                }
            }
        }

        proptest! {
            /// Two ranks that send in turn messages of one length, or of two that alternate, return all chunks in the
            /// end. It does not matter what one of them gave back before, having waited for long.
            #[test]
            fn who_sends_in_turn_returns_chunks(
                one_count in 1usize..=16,
                other_count in prop::option::of(1usize..=16),
                (least, limit) in (0usize..=3).prop_flat_map(|least| (Just(least), least + 1..=15 - least)),
                waiting in prop::collection::vec((0usize..8, 0usize..32, any::<bool>()), 0..8),
            ) {
                // Which are given back of more than may be kept is known by the last message alone.
                let other_count = other_count.filter(|&other| one_count.max(other) <= limit);
                let new = || Side::new(16, least, limit);
                let (mut a, mut b) = (new(), new());
                for round in 0..14 {
                    let before = a.returned + b.returned;
                    let count = other_count.filter(|_| round % 2 == 1).unwrap_or(one_count);
                    for turn in 0..2 * count {
                        let first = turn < count;
                        let (one, other) = if first { (&mut a, &mut b) } else { (&mut b, &mut a) };
                        if turn % count == 0 {
                            one.kept.sends();
                        }
                        for &(.., sender) in waiting.iter().filter(|wait| (wait.0, wait.1) == (round, turn)) {
                            if sender { one.idle() } else { other.idle() }
                        }
                        let sent = one.sent.len();
                        one.send_chunk(other, true);
                        prop_assert!(one.sent.len() > sent, "no chunk");
                        other.receive(one);
                        check(&a, &b)?;
                        check(&b, &a)?;
                    }
                    let now = (a.returned + b.returned - before) as usize;
                    prop_assert!(round < 9 || now >= count.min(limit), "{now} of {count}, {round}");
                }
            }
        }

        /// Chunks that are only counted take the place of others.
        #[test]
        fn no_more_is_held_than_may_be() {
            let mut kept = KeptChunks::new(2, 3);
            kept.expect_no_answer();
            assert!(!kept.keep(1, ChunkIndex(1)) && !kept.keep(2, ChunkIndex(2)));
            assert!(kept.is_empty() && kept.holds_any());
            kept.sends();
            assert!(!kept.keep(3, ChunkIndex(3)));
            assert!(kept.keep(4, ChunkIndex(4)), "four of three are held");
            // That is no sign of a peer that is not answered.
            kept.gave_back(4);
            assert!(!kept.keep(5, ChunkIndex(5)) && kept.len() == 1);
            // Those that are listed still count once no answer is expected.
            kept.expect_no_answer();
            assert!(!kept.keep(6, ChunkIndex(6)));
            assert!(kept.keep(7, ChunkIndex(7)), "three of two are held");
        }

        /// Reads a peer's chunks one after the other, and publishes a tail where that is due.
        struct ChunkReader {
            kept: KeptChunks,
            position: u64,
        }

        impl ChunkReader {
            /// Keeps one chunk without an answer, and four at most.
            fn new() -> Self {
                let kept = KeptChunks::new(1, 4);
                Self { kept, position: 0 }
            }

            /// Reads `count` chunks. Gives the last tail that was published; 0: none.
            fn read(&mut self, count: usize) -> u64 {
                let mut tail = 0;
                for _ in 0..count {
                    self.position += 1;
                    let chunk = ChunkIndex(self.position as u32);
                    if self.kept.keep(self.position, chunk) {
                        tail = self.position;
                        self.kept.gave_back(tail);
                    }
                }
                tail
            }

            /// A reader that answers each of two messages of `count` chunks.
            fn of_answered(count: usize) -> Self {
                let mut reader = Self::new();
                for _ in 0..2 {
                    reader.read(count);
                    reader.kept.sends();
                }
                reader
            }
        }

        #[test]
        fn keeps_as_many_as_the_last_answered_message() {
            let mut reader = ChunkReader::new();
            // One that comes first may be answered.
            reader.read(1);
            reader.kept.sends();
            assert_eq!(reader.kept.take(0), Some((1, ChunkIndex(1))));
            // A message has three: they are given back before it is whole.
            reader.read(3);
            assert!(reader.kept.is_empty() && !reader.kept.expects_answer());
            reader.kept.sends();
            assert!(reader.kept.expects_answer());
            reader.read(3);
            assert_eq!(reader.kept.len(), 3);
        }

        #[test]
        fn an_unanswered_peer_gets_chunks_back() {
            let mut reader = ChunkReader::of_answered(3);
            assert_eq!(reader.kept.len(), 3);
            // The peer sends more, unanswered.
            reader.read(1);
            assert!(reader.kept.is_empty() && !reader.kept.expects_answer());
            // Every second one gives both back.
            assert!(!reader.kept.holds_any());
            assert_eq!((reader.read(1), reader.kept.len()), (0, 0));
            assert!(reader.kept.holds_any());
            assert!(reader.read(1) > 0 && !reader.kept.holds_any());
            reader.read(1);
            reader.kept.gave_back(u64::MAX);
            assert!(!reader.kept.holds_any());
            // Of a long message that is answered chunks are kept again, as many as may be.
            reader.kept.sends();
            for _ in 0..2 {
                reader.read(20);
                reader.kept.sends();
            }
            assert_eq!(reader.kept.len(), 4);
        }

        #[test]
        fn a_long_message_keeps_its_last_chunks() {
            let reader = ChunkReader::of_answered(20);
            let positions: Vec<u64> = reader.kept.chunks.iter().map(|kept| kept.0).collect();
            assert_eq!(positions, [37, 38, 39, 40]);
        }

        #[test]
        fn take_drops_chunks_before_the_tail() {
            let mut reader = ChunkReader::of_answered(20);
            // Three of them stand before a tail that nobody has reported.
            let last = reader.kept.chunks.back().copied();
            assert_eq!(last, Some((40, ChunkIndex(40))));
            assert_eq!(reader.kept.take(39), last);
            assert!(reader.kept.is_empty());
        }
    }

    #[test]
    fn chunks_that_nothing_needs_are_given_up() {
        let mut pool = ChunkPool::new(100);
        let take = |pool: &mut ChunkPool| pool.take(|_, _| Ok::<(), ()>(())).unwrap().unwrap();
        let burst: Vec<_> = (0..64).map(|_| take(&mut pool)).collect();
        assert_eq!((pool.reserved(), pool.shrink()), (64, None));
        for chunk in burst {
            pool.give(chunk);
        }
        assert_eq!(pool.shrink(), None, "they were needed in this period");
        // Ten are used at a time from now on.
        for _ in 0..2 {
            let ten: Vec<_> = (0..10).map(|_| take(&mut pool)).collect();
            for chunk in ten {
                pool.give(chunk);
            }
            pool.shrink();
        }
        assert_eq!(pool.reserved(), 10);
        pool.shrink();
        pool.shrink();
        assert_eq!((pool.reserved(), pool.free()), (8, 8));
    }

    #[test]
    fn a_refused_reservation_is_passed_on() {
        let mut pool = ChunkPool::new(8);
        assert_eq!(pool.take(|_, _| Err("no memory")), Err("no memory"));
        assert_eq!(pool.reserved(), 0);
    }
}
