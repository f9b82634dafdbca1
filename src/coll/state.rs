// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an engine keeps of each communicator that has collectives, and how they move.

use super::copy_request::CopyRequests;
use super::op::{Op, behind};
use crate::comm::Failed;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::peer::{Gone, Peer};
use onecopy_shm::coll::line::reached;
use onecopy_shm::coll::{Channel, Info};
use onecopy_shm::layout::{COLL_DEPTH, ChannelPart};
use onecopy_shm::segment::OwnSegment;
use onecopy_shm::sync::light_fence;
use std::collections::VecDeque;
use std::sync::Arc;

/// All communicators of an engine that have collectives, by their slot.
#[derive(Default)]
pub(crate) struct Colls {
    pub(crate) slots: Vec<Option<Box<State>>>,
    /// Slots with collectives under way.
    pub(crate) active: Vec<usize>,
    /// Channels in use by this rank: a bit each.
    pub(crate) channels: u64,
    /// Channels whose communicator is gone here, but may be still in use by a peer.
    pub(crate) retired: Vec<Retired>,
    pub(crate) ids: super::agree::Ids,
    /// Up to this size, bytes that peers cannot map are copied to a temporary buffer that they can.
    pub(crate) stage_max: usize,
    /// From this size on receivers of a broadcast take shares of it from each other.
    pub(crate) relay_min: usize,
    /// Whether ranks that wait are asked for what would be read by the kernel.
    pub(crate) asks: bool,
}

/// A channel that this rank has left.
pub(crate) struct Retired {
    pub(crate) channel: u32,
    pub(crate) tag: u64,
    pub(crate) seq: u32,
    pub(crate) members: Arc<[u32]>,
    pub(crate) ends: Vec<Channel>,
}

/// A communicator as its collectives see it.
pub(crate) struct State {
    pub(crate) members: Arc<[u32]>,
    pub(crate) me: usize,
    /// Context of the messages of collectives that have no channel.
    pub(crate) context: u32,
    /// What the tags of these messages have in common.
    pub(crate) tag_base: i32,
    pub(crate) tag: u64,
    /// The channel's number; none: collectives go by messages.
    pub(crate) channel: Option<u32>,
    /// The ends of the channel by place; filled with the first collective.
    pub(crate) ends: Vec<Channel>,
    /// Whether the slots and the stages of the own end are reserved.
    pub(crate) has_slots: bool,
    pub(crate) has_stages: bool,
    /// Whether some member can only be woken behind full fences.
    strong: bool,
    /// Number of the last collective that was started.
    pub(crate) seq: u32,
    /// Up to which this rank has read.
    pub(crate) done: u32,
    /// Up to which every member is known to have read.
    seen: Vec<u32>,
    room: u32,
    pub(crate) ops: VecDeque<Op>,
    pub(crate) failed: Option<Error>,
    pub(crate) copy_requests: CopyRequests,
}

/// Bytes that a step moves at most, so that a call that does not want to wait comes back soon.
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

impl State {
    pub(crate) fn new(
        members: Arc<[u32]>,
        me: usize,
        context: u32,
        tag: u64,
        channel: Option<u32>,
    ) -> Self {
        Self {
            seen: vec![0; members.len()],
            members,
            me,
            context,
            tag_base: 0,
            tag,
            channel,
            ends: Vec::new(),
            has_slots: false,
            has_stages: false,
            strong: false,
            seq: 0,
            done: 0,
            room: 0,
            ops: VecDeque::new(),
            failed: None,
            copy_requests: CopyRequests::default(),
        }
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// Whether collectives go by the channel, which is ready then.
    #[inline]
    pub(crate) fn has_channel(&self) -> bool {
        !self.ends.is_empty()
    }

    #[inline]
    pub(crate) fn own(&self) -> &Channel {
        &self.ends[self.me]
    }

    /// Whether `place` has read all of collective `seq`.
    #[inline]
    pub(crate) fn has_read(&mut self, place: usize, seq: u32) -> bool {
        if !reached(self.seen[place], seq) {
            self.saw(place, self.ends[place].done());
        }
        reached(self.seen[place], seq)
    }

    /// A member was heard to have read up to `done`.
    #[inline]
    pub(crate) fn saw(&mut self, place: usize, done: u32) {
        // A peer's word is believed only as far as there can be collectives: nobody is more than all lines ahead of this rank.
        let most = self.seq.wrapping_add(COLL_DEPTH as u32);
        if reached(done, self.seen[place]) && reached(most, done) {
            self.seen[place] = done;
        }
    }

    /// Whether the contribution of `place` to `seq` has not come to this phase.
    pub(crate) fn lacks(&self, place: usize, seq: u32, phase: u32) -> bool {
        self.ends[place].look(seq) < phase
    }

    /// Whether a collective under way needs something of `place` that is not there.
    fn awaits(&self, place: usize) -> bool {
        self.copy_requests.asks(place) || self.ops.iter().any(|op| op.awaits(self, place))
    }

    /// Whether the line of `seq` may be written: everyone has read what stood in it, this rank too. It reads its own contribution from there,
    /// and may come to it last, although its collectives are stepped in their order: what the older one waits for can come between the two.
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

    /// Makes sure that the own slots can be written.
    pub(crate) fn need_slots(&mut self, segment: &OwnSegment) -> Result<()> {
        if let (false, Some(channel)) = (self.has_slots, self.channel) {
            segment.reserve_channel(channel, ChannelPart::Slots)?;
            self.has_slots = true;
        }
        Ok(())
    }

    /// Makes sure that peers can write to the own stages.
    pub(crate) fn need_stages(&mut self, segment: &OwnSegment) -> Result<()> {
        if let (false, Some(channel)) = (self.has_stages, self.channel) {
            segment.reserve_channel(channel, ChannelPart::Stages)?;
            self.has_stages = true;
        }
        Ok(())
    }

    /// Publishes this rank's contribution to `seq` and wakes who may wait for it.
    #[inline]
    pub(crate) fn publish(&self, peers: &[Option<Box<Peer>>], seq: u32, kind: u8, payload: &[u8]) {
        self.publish_in(peers, seq, 1, kind, payload);
    }

    /// As `publish`, in a later phase at once.
    #[inline]
    pub(crate) fn publish_in(
        &self,
        peers: &[Option<Box<Peer>>],
        seq: u32,
        phase: u32,
        kind: u8,
        payload: &[u8],
    ) {
        let info = Info {
            done: self.done,
            kind,
            len: payload.len() as u8,
        };
        self.own().publish(seq, phase, info, payload);
        self.wake(peers);
    }

    /// Moves this rank's contribution on to a later phase.
    pub(crate) fn advance(&self, peers: &[Option<Box<Peer>>], seq: u32, phase: u32) {
        self.own().advance(seq, phase);
        self.wake(peers);
    }

    /// Wakes members that sleep: they may wait for what was just written.
    #[inline]
    pub(crate) fn wake(&self, peers: &[Option<Box<Peer>>]) {
        light_fence(self.strong);
        for &rank in &*self.members {
            if let Some(peer) = &peers[rank as usize] {
                peer.segment.bell().ring();
            }
        }
    }

    /// This rank has read all of `seq` and everything before.
    #[inline]
    pub(crate) fn set_done(&mut self, seq: u32) {
        self.done = seq;
        self.own().set_done(seq);
    }

    /// Whether a member has said that the communicator has failed.
    pub(crate) fn failure_of(&self, place: usize) -> Option<Error> {
        match self.ends[place].failure() {
            0 => None,
            word => {
                let rank = self.members[place] as usize;
                Some(
                    Failed::decode(word)
                        .err()
                        .unwrap_or_else(|| super::given_up(rank)),
                )
            }
        }
    }
}

impl Engine {
    /// Makes the channel of a communicator ready: connects to all members. Errors fail the communicator.
    #[cold]
    pub(crate) fn open_channel(&mut self, slot: usize) -> Result<()> {
        let Some(state) = &self.colls.slots[slot] else {
            return Ok(());
        };
        let Some(channel) = state.channel else {
            return Ok(());
        };
        let (members, me) = (Arc::clone(&state.members), state.me);
        let mut ends = Vec::with_capacity(members.len());
        let mut strong = !self.core.fence.is_expedited();
        for (place, &rank) in members.iter().enumerate() {
            let end = if place == me {
                self.core.segment.channel(channel)
            } else {
                let (_, peer) = self.peer(rank)?;
                strong |= peer.strong;
                peer.segment.channel(channel)
            };
            ends.push(end.ok_or_else(|| Error::Collective {
                reason: format!("channel {channel} does not exist"),
            })?);
        }
        if let Some(state) = &mut self.colls.slots[slot] {
            let seq = ends[me].done();
            state.seen = vec![seq; members.len()];
            (state.seq, state.done, state.room) = (seq, seq, seq);
            state.ends = ends;
            state.strong = strong;
        }
        Ok(())
    }

    /// Moves all collectives that can move.
    #[cold]
    pub(crate) fn step_colls(&mut self) -> bool {
        let mut moved = false;
        let mut index = 0;
        while index < self.colls.active.len() {
            let slot = self.colls.active[index];
            moved |= self.step_slot(slot);
            let idle = self.colls.slots[slot]
                .as_ref()
                .is_none_or(|state| state.ops.is_empty());
            if idle {
                self.colls.active.swap_remove(index);
            } else {
                index += 1;
            }
        }
        moved
    }

    fn step_slot(&mut self, slot: usize) -> bool {
        // Taken out, so that a collective can use the engine.
        let Some(mut state) = self.colls.slots[slot].take() else {
            return false;
        };
        let served = state.has_channel() && super::copy_request::serve(self, &mut state);
        let moved = self.step_state(&mut state);
        self.colls.slots[slot] = Some(state);
        served || moved
    }

    /// Moves the collectives of a communicator. Each moves a finite number of times, whatever its members write.
    fn step_state(&mut self, state: &mut State) -> bool {
        let mut moved = false;
        let mut ops = std::mem::take(&mut state.ops);
        let mut failure = None;
        for op in &mut ops {
            match op.step(self, state) {
                Ok(Step::Idle) => {}
                Ok(_) => moved = true,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if state.has_channel() {
            let mut done = state.done;
            for op in &ops {
                if !op.has_read {
                    break;
                }
                done = op.seq;
            }
            if done != state.done {
                state.set_done(done);
                state.wake(&self.peers);
                moved = true;
            }
        }
        state.ops = ops;
        if let Some(error) = failure {
            if let Error::Protocol { rank, detail } = &error
                && self.gone.get(*rank).is_some_and(Option::is_none)
            {
                // First the member, so that nobody waits for it.
                self.fail_peer(*rank as u32, Gone::Protocol(detail.clone()));
            }
            self.fail_comm(state, error);
            return true;
        }
        while state
            .ops
            .front()
            .is_some_and(|op| op.is_over() && op.has_read)
        {
            state.ops.pop_front();
        }
        moved
    }

    /// Ends a communicator's collectives, those under way and all later ones, and tells the members.
    #[cold]
    pub(crate) fn fail_comm(&mut self, state: &mut State, error: Error) {
        if state.failed.is_none() {
            let word = Failed::encode(Some(&error));
            if state.has_channel() {
                state
                    .own()
                    .fail(if word == 0 { Failed::GIVEN_UP } else { word });
                state.wake(&self.peers);
                self.await_writers(state);
            } else {
                super::messages::poison(self, state, word);
            }
            state.failed = Some(error.clone());
        }
        for mut op in state.ops.drain(..) {
            op.abandon(self);
            self.core.requests.complete(op.id, Err(error.clone()));
        }
    }

    /// Waits until no member writes into this rank's buffers any more: they go back to the program. Members were told; one that writes comes to the
    /// end of its segment, or it ends.
    fn await_writers(&mut self, state: &State) {
        for (place, end) in state.ends.iter().enumerate() {
            let mut polls = 0u32;
            while place != state.me && end.is_writing() {
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(64) {
                    if self.has_ended(state.members[place]) {
                        break;
                    }
                    std::thread::yield_now();
                }
                onecopy_shm::sync::spin_hint();
            }
        }
    }

    /// Fails all collectives under way: the program gets its buffers back.
    #[cold]
    pub(crate) fn fail_colls(&mut self, error: &Error) {
        for index in 0..self.colls.slots.len() {
            let Some(mut state) = self.colls.slots[index].take() else {
                continue;
            };
            if state.has_channel() && !state.ops.is_empty() {
                self.fail_comm(&mut state, error.clone());
            }
            self.colls.slots[index] = Some(state);
        }
    }

    /// Looks whether a communicator with collectives under way has failed at a member, or has lost one.
    #[cold]
    pub(crate) fn check_colls(&mut self) {
        for index in 0..self.colls.slots.len() {
            let Some(mut state) = self.colls.slots[index].take() else {
                continue;
            };
            if state.failed.is_none() && !state.ops.is_empty() {
                // What can be completed with what the lost member left is completed. Members are served once: a
                // member that asks again and again must not keep this rank here.
                if state.has_channel() {
                    super::copy_request::serve(self, &mut state);
                }
                while self.step_state(&mut state) {}
                if let Some(error) = self.loss(&mut state) {
                    self.fail_comm(&mut state, error);
                }
            }
            self.colls.slots[index] = Some(state);
        }
    }

    /// Why the oldest collective under way can never end, if that is known.
    fn loss(&mut self, state: &mut State) -> Option<Error> {
        let last = state.ops.back()?.seq;
        // A member that left after it published `done`: it may lie about its part.
        let mut left = None;
        for place in 0..state.size() {
            let rank = state.members[place];
            if place == state.me {
                continue;
            }
            match &self.gone[rank as usize] {
                // All that it wrote has been taken up by now: what is missing of its part stays missing. Who waits for
                // another one that lives hears from that one.
                Some(Gone::Left) if state.has_channel() && state.has_read(place, last) => {
                    if state.awaits(place) {
                        return Some(Gone::Left.error(rank));
                    }
                    left = Some(rank);
                }
                Some(gone) if state.has_channel() || !matches!(gone, Gone::Left) => {
                    return Some(gone.error(rank));
                }
                _ => {}
            }
            if state.has_channel()
                && let Some(error) = state.failure_of(place)
            {
                return Some(error);
            }
        }
        if !state.has_channel() {
            return super::messages::poisoned(self, state);
        }
        // Where nobody is left, nothing more comes, whatever it is.
        let mut others = behind(state.size(), state.me).map(|place| state.members[place]);
        let alone = others.all(|rank| self.gone[rank as usize].is_some());
        left.filter(|_| alone).map(|rank| Gone::Left.error(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_free_when_all_have_read_it_and_its_owner_too() {
        let mut state = State::new(Arc::new([0, 1, 2]), 1, 0, 0, None);
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
