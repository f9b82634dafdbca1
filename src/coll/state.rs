// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank keeps of a communicator that has collectives, apart from those under way.

use super::ByteRange;
use super::failed::Failed;
use super::observed::ObservedKinds;
use super::pieces::kept::KeptBounce;
use super::requested_copies::CopyRequests;
use super::select::{NodeLimits, PlacementLimits};
use super::spares::Spares;
use super::tags::Tags;
use crate::endpoint::Home;
use crate::error::{Error, Result};
use crate::peer::Peer;
use onecopy_shm::coll::line::reached;
use onecopy_shm::coll::{Channel, CheckedLine, Content, INLINE, Info, SpareOf, View, kind};
use onecopy_shm::layout::{COLL_DEPTH, COLL_SLOT, ChannelPart};
use onecopy_shm::sync::light_fence;
use std::ops::Range;
use std::sync::Arc;

/// What selection decided once for all collectives of a rank.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tuning {
    /// What decides where contributions stand.
    pub(crate) limits: PlacementLimits,
    /// From this size on receivers of a broadcast take shares of it from each other.
    pub(crate) relay_min: usize,
    /// Whether ranks that wait are asked for what would be read by the kernel.
    pub(crate) asks: bool,
}

/// A communicator as its collectives see it.
pub(crate) struct CommState {
    pub(crate) members: Arc<[u32]>,
    pub(crate) me: usize,
    /// Context of the messages of collectives.
    pub(crate) context: u32,
    /// What the tags of these messages have in common.
    pub(crate) tags: Tags,
    pub(crate) tag: u64,
    /// The channel's number; none: collectives go by messages.
    pub(crate) channel: Option<u32>,
    /// The ends of the channel by place; filled with the first collective.
    pub(crate) channel_ends: Vec<Channel>,
    /// Whether the slots and the stages of the own end are reserved.
    pub(crate) has_slots: bool,
    pub(crate) has_stages: bool,
    /// The last collective for which this rank published something in its slot.
    in_slot: u32,
    /// Whether some member can only be woken behind full fences.
    pub(super) strong: bool,
    /// Number of the last collective that was started.
    pub(crate) seq: u32,
    /// A short collective of this number is under way, and no operation of the queue. Nothing starts behind it: its
    /// thread may give it to the queue.
    pub(crate) in_short: bool,
    /// Up to which this rank has read.
    pub(crate) done: u32,
    /// Up to which every member is known to have read.
    pub(super) seen: Vec<u32>,
    pub(super) room: u32,
    pub(crate) failed: Option<Error>,
    pub(crate) copy_requests: CopyRequests,
    pub(crate) tuning: Tuning,
    pub(super) observed: ObservedKinds,
    /// Of two ranks: what they give each other pieces in, and which spare slots this one holds.
    pub(crate) bounce: KeptBounce,
    pub(crate) spares: Spares,
}

/// Bytes that a step moves at most, so that a call that does not want to wait comes back within tenths of a
/// millisecond. At 10 GB/s it is 0.2. Chosen by magnitude.
pub(crate) const STEP_MAX: usize = 2 << 20;

/// How a step of a collective went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It waits for someone.
    Idle,
    /// It has come on.
    Moved,
    /// This part of it is over.
    Done,
}

impl CommState {
    pub(crate) fn new(
        members: Arc<[u32]>,
        me: usize,
        context: u32,
        tag: u64,
        channel: Option<u32>,
        tuning: Tuning,
    ) -> Self {
        Self {
            seen: vec![0; members.len()],
            members,
            me,
            context,
            tags: Tags::of_user((tag >> 32) as u32),
            tag,
            channel,
            channel_ends: Vec::new(),
            has_slots: false,
            has_stages: false,
            in_slot: 0,
            strong: false,
            seq: 0,
            in_short: false,
            done: 0,
            room: 0,
            failed: None,
            copy_requests: CopyRequests::default(),
            tuning,
            observed: ObservedKinds::default(),
            bounce: KeptBounce::default(),
            spares: Spares::default(),
        }
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// Whether collectives go by the channel, which is ready then.
    #[inline]
    pub(crate) fn has_channel(&self) -> bool {
        !self.channel_ends.is_empty()
    }

    /// Bytes of a slot of the channel.
    #[inline]
    pub(crate) fn slot_bytes(&self) -> usize {
        self.tuning.limits.slot
    }

    #[inline]
    pub(crate) fn own(&self) -> &Channel {
        &self.channel_ends[self.me]
    }

    /// Whether `place` has read all of collective `seq`.
    #[inline]
    pub(crate) fn has_read(&mut self, place: usize, seq: u32) -> bool {
        if !reached(self.seen[place], seq) {
            self.note_done(place, self.channel_ends[place].done());
        }
        reached(self.seen[place], seq)
    }

    /// A member has reported that it has read up to `done`.
    #[inline]
    pub(crate) fn note_done(&mut self, place: usize, done: u32) {
        // A peer's word is believed only as far as there can be collectives: nobody is more than all lines ahead of
        // this rank.
        let most = self.seq.wrapping_add(COLL_DEPTH as u32);
        if reached(done, self.seen[place]) && reached(most, done) {
            self.seen[place] = done;
        }
    }

    /// Whether the contribution of `place` to `seq` has not come to this phase.
    pub(crate) fn lacks(&self, place: usize, seq: u32, phase: u32) -> bool {
        self.channel_ends[place].phase(seq) < phase
    }

    /// Whether the line of `seq` may be written: all members have read what stood in it, this rank too. It reads its
    /// own contribution from there, and may be the last to do so.
    #[inline]
    pub(crate) fn has_room(&mut self, seq: u32) -> bool {
        let needed = seq.wrapping_sub(COLL_DEPTH as u32);
        reached(self.done, needed) && (reached(self.room, needed) || self.find_room(needed))
    }

    #[cold]
    fn find_room(&mut self, needed: u32) -> bool {
        let all = (0..self.size()).all(|place| place == self.me || self.has_read(place, needed));
        if all {
            self.room = needed;
            let me = self.me;
            let others = self
                .seen
                .iter()
                .enumerate()
                .filter(|&(place, _)| place != me);
            // As far as all have come, so that the next collectives need not look.
            if let Some((_, &least)) =
                others.min_by_key(|&(_, &done)| done.wrapping_sub(needed).cast_signed())
            {
                self.room = least;
            }
        }
        all
    }

    /// What decides how members on one node do a collective, beside what they are.
    pub(crate) fn limits(&self) -> NodeLimits {
        NodeLimits {
            slot: self.tuning.limits.slot,
            relay_min: self.tuning.relay_min,
        }
    }

    /// What decides where this rank's contributions stand. `over_calls`: see [`PlacementLimits::over_calls`].
    pub(crate) fn placement_limits(&self, over_calls: bool) -> PlacementLimits {
        PlacementLimits {
            over_calls,
            ..self.tuning.limits
        }
    }

    /// Makes sure that the own slots can be written.
    pub(crate) fn need_slots(&mut self, home: &Home) -> Result<()> {
        if let (false, Some(channel)) = (self.has_slots, self.channel) {
            home.reserve_channel(channel, ChannelPart::Slots)?;
            self.has_slots = true;
        }
        Ok(())
    }

    /// Makes sure that peers can write to the own stages.
    pub(crate) fn need_stages(&mut self, home: &Home) -> Result<()> {
        if let (false, Some(channel)) = (self.has_stages, self.channel) {
            home.reserve_channel(channel, ChannelPart::Stages)?;
            self.has_stages = true;
        }
        Ok(())
    }

    /// Publishes this rank's contribution to `seq` and wakes who may wait for it.
    #[inline]
    pub(crate) fn publish(&self, seq: u32, kind: u8, payload: &[u8]) {
        self.publish_in(seq, 1, kind, payload);
    }

    /// Publishes `bytes`, no more than a slot takes, in the line of `seq`, or in the slot next to it. Others read the
    /// ranges `filled` of them alone. [`Self::need_slots`] has made sure of the slot.
    #[inline(always)]
    pub(crate) fn publish_short<I>(&mut self, seq: u32, bytes: &[u8], filled: impl Fn() -> I)
    where
        I: Iterator<Item = Range<usize>>,
    {
        if bytes.len() <= INLINE {
            self.publish(seq, kind::INLINE, bytes);
            return;
        }
        let next = self.next_in_slot(seq);
        let own = self.own();
        for part in filled() {
            own.write_slot(seq, part.start, &bytes[part]);
        }
        let len = (bytes.len() as u64).to_le_bytes();
        self.publish(seq, kind::SLOT, &len);
        if bytes.len() <= COLL_SLOT {
            for part in filled() {
                own.hand_over_slot(seq, part);
            }
        }
        own.hand_over(seq);
        // The lines of the next contribution come back while this rank waits for the others'.
        own.will_publish(next);
        for part in filled() {
            own.will_fill_slot(next, part);
        }
    }

    /// As [`Self::publish_short`], of more bytes than a line carries, in a spare slot that this rank holds. The one
    /// other rank reads them, and holds the slot then: what this rank needs of them it has elsewhere. `false`: nothing
    /// is published, as it holds none.
    #[inline(never)]
    pub(crate) fn publish_in_spare(
        &mut self,
        seq: u32,
        bytes: &[u8],
        filled: impl Iterator<Item = Range<usize>>,
    ) -> bool {
        let Some(place) = self.spares.next() else {
            return false;
        };
        let end = &self.channel_ends[place];
        let is_own = place == self.me;
        if !is_own {
            // Its owner may have taken the channel back. It sees that this rank writes, or this rank sees that.
            self.own().begin_writes();
            if end.tag() != self.tag || end.failure() != 0 {
                self.own().end_writes();
                return false;
            }
        }
        for part in filled {
            end.write_spare(part.start, &bytes[part]);
        }
        if !is_own {
            self.own().end_writes();
        }
        self.spares.gave(place);
        let kind = if is_own {
            kind::SPARE
        } else {
            kind::READERS_SPARE
        };
        self.publish(seq, kind, &(bytes.len() as u64).to_le_bytes());
        self.own().hand_over(seq);
        true
    }

    /// Bytes of a contribution of `place` to `seq` that stands in the channel, as its line says; none if they do not
    /// lie within it.
    pub(crate) fn in_channel(
        &self,
        place: usize,
        seq: u32,
        line: &CheckedLine,
        part: ByteRange,
    ) -> Option<View<'_>> {
        let ByteRange { offset, len } = part;
        match line.content {
            Content::Spare(of, there) => {
                let end = &self.channel_ends[self.place_of_spare(place, of)?];
                end.in_spare(0, there)?.part(offset, len)
            }
            _ => self.channel_ends[place].bytes(seq, line, offset, len),
        }
    }

    /// The place of the end whose spare slot the other one of two ranks, at `giver`, has given in.
    #[inline]
    pub(crate) fn place_of_spare(&self, giver: usize, of: SpareOf) -> Option<usize> {
        (self.size() == 2 && giver != self.me).then_some(match of {
            SpareOf::Giver => giver,
            SpareOf::Reader => self.me,
        })
    }

    /// A request is through with `seq`. What the other one of two ranks gave in a spare slot is read.
    pub(crate) fn take_spare(&mut self, seq: u32) {
        let giver = 1 - self.me;
        if self.channel_ends[giver].phase(seq) == 0 {
            return;
        }
        if let Ok(line) = self.channel_ends[giver].read_line(seq)
            && let Content::Spare(of, _) = line.content
            && let Some(place) = self.place_of_spare(giver, of)
        {
            self.spares.came(place);
        }
    }

    /// The collective for which this rank will fill its slot next, if it does so for `seq` now. It is as far ahead as
    /// the one before was behind. Where roots take turns, a rank gives every second time, or less often.
    #[inline(always)]
    fn next_in_slot(&mut self, seq: u32) -> u32 {
        let since = seq.wrapping_sub(std::mem::replace(&mut self.in_slot, seq));
        let ahead = match since as usize % COLL_DEPTH {
            // That slot is being read.
            0 => 1,
            _ => since,
        };
        seq.wrapping_add(ahead)
    }

    /// As `publish`, in a later phase at once.
    #[inline]
    pub(crate) fn publish_in(&self, seq: u32, phase: u32, kind: u8, payload: &[u8]) {
        let info = Info {
            done: self.done,
            kind,
            len: payload.len() as u8,
        };
        self.own().publish(seq, phase, info, payload);
        self.wake();
    }

    /// Moves this rank's contribution on to a later phase.
    pub(crate) fn advance(&self, seq: u32, phase: u32) {
        self.own().advance(seq, phase);
        self.wake();
    }

    /// Wakes members that sleep: they may wait for what was just written.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        light_fence(self.strong);
        // Of two there is one other.
        if let [first, second] = &*self.channel_ends {
            let other = if self.me == 0 { second } else { first };
            other.ring();
            return;
        }
        for (place, end) in self.channel_ends.iter().enumerate() {
            if place != self.me {
                end.ring();
            }
        }
    }

    /// The same where the channel is not open here: its members are known by what leads to them.
    #[cold]
    pub(super) fn wake_unopened(&self, peers: &[Option<Box<Peer>>]) {
        light_fence(true);
        for &rank in &*self.members {
            if let Some(peer) = &peers[rank as usize] {
                peer.endpoint.ring();
            }
        }
    }

    /// This rank has read all of `seq` and everything before.
    #[inline]
    pub(crate) fn set_done(&mut self, seq: u32) {
        self.done = seq;
        self.own().set_done(seq);
    }

    /// Whether a member has reported that the communicator has failed.
    pub(crate) fn failure_of(&self, place: usize) -> Option<Error> {
        match self.channel_ends[place].failure() {
            0 => None,
            word => {
                let rank = self.members[place] as usize;
                Some(
                    Failed::decode(word)
                        .err()
                        .unwrap_or_else(|| Error::given_up(rank)),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that gives every time, every second or every third time asks for the lines that it writes next.
    #[test]
    fn the_next_slot_is_as_far_ahead_as_the_last_one_behind() {
        let mut state = CommState::new(Arc::new([0, 1]), 0, 0, 0, None, Tuning::default());
        let depth = COLL_DEPTH as u32;
        for (seq, next) in [(1, 2), (2, 3), (4, 6), (6, 8), (9, 12)] {
            assert_eq!(state.next_in_slot(seq), next);
        }
        // The slot that was just written is being read.
        assert_eq!(state.next_in_slot(9 + depth), 10 + depth);
        state.next_in_slot(u32::MAX);
        assert_eq!(state.next_in_slot(1), 3);
    }

    #[test]
    fn a_line_is_free_when_all_have_read_it_and_its_owner_too() {
        let mut state = CommState::new(Arc::new([0, 1, 2]), 1, 0, 0, None, Tuning::default());
        let depth = COLL_DEPTH as u32;
        (state.seq, state.done) = (depth, 4);
        // The others are ahead.
        state.seen = vec![6, 0, 7];
        assert!(state.has_room(depth + 4));
        assert!(!state.has_room(depth + 5), "its owner has not read it");
        state.done = 6;
        assert!(state.has_room(depth + 5) && state.has_room(depth + 6));
    }
}
