// SPDX-License-Identifier: MIT OR Apache-2.0
//! How members agree on a communicator.
//!
//! A communicator has an id that no two communicators with a common member share at a time: its messages' contexts are
//! made of it. Members agree on the smallest id that is free with all of them, and on a channel for collectives in the
//! same way. They also agree on a number that tells the channel's users apart. In each round a member tells the others
//! which ids are free with it. Rounds go on until one in which this agreement holds the ids of all members.
//!
//! Threads may form several communicators at a time. On each rank one agreement holds the ids for the length of a
//! round: the one with the lowest [`Turn`] of those that wait there. Turns are ordered alike on all ranks, so the
//! lowest finishes first. **An agreement queues for its turn only after all its members have arrived**; its first round
//! reports no more. Otherwise two agreements could wait for each other: each for a member whose thread is still in
//! the other one.

use super::communicator::Communicator;
use super::contribution::behind;
use super::group::{CHANNEL_RANKS, Membership, SUB_SHIFT, sub_context};
use super::ids::{IDS, Turn, WORDS};
use super::levels::Levels;
use super::state::CommState;
use super::tags::Tags;
use super::worker::{Retired, Worker};
use crate::error::{Error, Result};
use crate::matching::OWN_CONTEXTS;
use onecopy_shm::coll::line::reached;
use onecopy_shm::layout::ChannelPart;
use std::sync::{Arc, PoisonError};

/// What a rank proposes when a communicator is formed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Proposal {
    /// Whether the ids are this agreement's.
    pub(crate) ready: u64,
    /// Its part, plus one; 0: none.
    pub(crate) color: u64,
    pub(crate) key: i64,
    next: u32,
    users: u32,
    free_channels: u64,
    free: [u64; WORDS],
}

/// Numbers that a proposal is sent as.
pub(crate) const NUMBERS: usize = 6 + WORDS;

impl Proposal {
    pub(crate) fn encode(&self) -> Vec<u64> {
        let mut numbers = vec![
            self.ready,
            self.color,
            self.key.cast_unsigned(),
            u64::from(self.next),
            u64::from(self.users),
            self.free_channels,
        ];
        numbers.extend(self.free);
        numbers
    }

    pub(crate) fn decode(numbers: &[u64]) -> Self {
        let mut free = [0; WORDS];
        free.copy_from_slice(&numbers[6..NUMBERS]); // short
        Self {
            ready: numbers[0],
            color: numbers[1],
            key: numbers[2].cast_signed(),
            next: numbers[3] as u32,
            users: numbers[4] as u32,
            free_channels: numbers[5],
            free,
        }
    }
}

/// How much of what communicators share one more may take: ids, and channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdShare {
    All,
    /// Half of it stays for others.
    Half,
}

/// What all members have come to.
pub(crate) struct Agreement {
    id: u32,
    channel: Option<u32>,
    tag: u64,
}

impl Worker {
    /// What this rank proposes to an agreement at which all members have arrived.
    pub(crate) fn offer_ids(&mut self, turn: Turn, share: IdShare) -> Proposal {
        self.reclaim_freed();
        let all = self.engine.core.home.channels();
        let mask = if all >= 64 { u64::MAX } else { (1 << all) - 1 };
        let mut free_channels = mask & !self.collectives.channels;
        let ids = &mut self.collectives.ids;
        let mut free = ids.used.map(|word| !word);
        if share == IdShare::Half {
            if free_channels.count_ones() * 2 <= all {
                free_channels = 0;
            }
            if free.iter().map(|word| word.count_ones()).sum::<u32>() * 2 <= IDS {
                free = [0; WORDS];
            }
        }
        ids.waiting.insert(turn);
        let mine = ids.holder.is_none() && ids.waiting.first() == Some(&turn);
        if mine {
            ids.holder = Some(turn);
        }
        Proposal {
            ready: u64::from(mine),
            color: 0,
            key: 0,
            next: ids.next,
            users: ids.users,
            free_channels,
            free,
        }
    }

    pub(crate) fn end_round(&mut self, turn: Turn, over: bool) {
        let ids = &mut self.collectives.ids;
        if ids.holder == Some(turn) {
            ids.holder = None;
        }
        if over {
            ids.waiting.remove(&turn);
        }
    }

    /// What all proposals together say. `group`: members on the node that has most of them.
    pub(crate) fn agree(proposals: &[Proposal], group: usize) -> Result<Agreement> {
        let mut free = [u64::MAX; WORDS];
        let mut free_channels = u64::MAX;
        let (mut next, mut users) = (0, 0);
        for proposal in proposals {
            free.iter_mut()
                .zip(proposal.free)
                .for_each(|(all, one)| *all &= one);
            free_channels &= proposal.free_channels;
            next = next.max(proposal.next);
            users = users.max(proposal.users);
        }
        let is_free = |id: &u32| free[*id as usize / 64] & 1 << (id % 64) != 0;
        let id = (0..IDS)
            .map(|step| (next % IDS + step) % IDS)
            .find(is_free)
            .ok_or_else(|| Error::Collective {
                reason: format!("{IDS} communicators at a time; drop some"),
            })?;
        let channel =
            (free_channels != 0 && group <= CHANNEL_RANKS).then(|| free_channels.trailing_zeros());
        Ok(Agreement {
            id,
            channel,
            tag: u64::from(users.wrapping_add(1)) << 32 | u64::from(id),
        })
    }

    /// Makes the state of a communicator that this rank is a member of.
    pub(crate) fn settle(
        &mut self,
        agreed: &Agreement,
        members: &Arc<[u32]>,
        me: usize,
    ) -> Membership {
        let ids = &mut self.collectives.ids;
        ids.used[agreed.id as usize / 64] |= 1 << (agreed.id % 64);
        ids.next = (agreed.id + 1) % IDS;
        ids.users = (agreed.tag >> 32) as u32;
        let context = sub_context(agreed.id) | OWN_CONTEXTS;
        // Members on other nodes, which all know, have the channel of the same number there. A member that is alone
        // needs none.
        let group = members
            .iter()
            .filter(|&&rank| self.engine.shares_node(rank));
        let needed = group.count() > 1 || members.len() == 1;
        let used = agreed.channel.filter(|_| needed);
        let reserved = used.map_or(Ok(()), |channel| {
            self.engine
                .core
                .home
                .reserve_channel(channel, ChannelPart::Lines)
        });
        if let (Ok(()), Some(channel)) = (&reserved, used) {
            self.collectives.channels |= 1 << channel;
            if let Some(end) = self.engine.core.home.channel(channel) {
                end.open(agreed.tag, 0);
            }
        }
        let mut state = CommState::new(
            Arc::clone(members),
            me,
            context,
            agreed.tag,
            // Where there is no memory nobody may write.
            agreed.channel.filter(|_| reserved.is_ok()),
            self.collectives.tuning,
        );
        // Without memory for it every collective of the communicator fails here, and at the members, which are told
        // before they use it.
        state.failed = reserved.err();
        let Self {
            engine,
            collectives,
        } = self;
        let slot = collectives.add_on_nodes(engine, state);
        self.collectives.ids.of_slots.push((slot, agreed.id));
        Membership {
            members: Arc::clone(members),
            me,
            id: agreed.id,
            slot,
            freed_slots: Arc::clone(&self.collectives.ids.freed_slots),
        }
    }

    /// Whether collectives of the communicator in `slot` can be used here.
    pub(crate) fn is_prepared(&self, slot: usize) -> bool {
        let comm = self.collectives.slots.get(slot).and_then(Option::as_ref);
        comm.is_none_or(|comm| comm.state.failed.is_none())
    }

    /// The member `rank` could not prepare its end of the channel: collectives of the communicator in `slot`, of which
    /// none has begun, fail here too.
    pub(crate) fn give_up_with(&mut self, slot: usize, rank: usize) {
        if let Some(Some(comm)) = self.collectives.slots.get_mut(slot) {
            comm.state.failed.get_or_insert(Error::given_up(rank));
        }
    }

    /// Takes back ids and channels of communicators that are gone.
    fn reclaim_freed(&mut self) {
        let freed_slots = Arc::clone(&self.collectives.ids.freed_slots);
        let mut freed_slots = freed_slots.lock().unwrap_or_else(PoisonError::into_inner);
        freed_slots.retain(|&slot| !self.reclaim_slot(slot));
        self.take_back_channels();
    }

    /// Ends a communicator of which nobody has a handle, and those with the same members in other contexts. `false`:
    /// something of it is under way.
    fn reclaim_slot(&mut self, slot: usize) -> bool {
        let Self {
            engine,
            collectives,
        } = self;
        let mut slots = collectives.slots_beside(slot);
        slots.push(slot);
        let busy = slots.iter().any(|slot| {
            let comm = collectives.slots[*slot].as_mut();
            let levels = collectives.levels.get(slot);
            // Requests that outlive the communicator still go on.
            comm.is_some_and(|comm| comm.is_busy(engine)) || levels.is_some_and(Levels::is_busy)
        });
        if busy {
            return false;
        }
        for &beside in &slots[..slots.len() - 1] {
            collectives.slots[beside] = None;
        }
        let ids = &mut collectives.ids;
        ids.by_context.retain(|known| known.parent != slot);
        let group = collectives.levels.remove(&slot);
        let Some(comm) = collectives.slots[slot].take() else {
            return true;
        };
        let Communicator { state, .. } = *comm;
        let of_slot = ids.of_slots.iter().position(|&(other, _)| other == slot);
        if let Some(index) = of_slot {
            let (_, id) = ids.of_slots.swap_remove(index);
            ids.used[id as usize / 64] &= !(1 << (id % 64));
            // Members begin nothing under this id before this rank says that it is free.
            engine
                .discard(|envelope| is_of(id, envelope.context) && !Tags::is_others(envelope.tag));
        } else if state.failed.is_some() {
            // One that has not failed has received all; proposals that are there are of the next one of the same group.
            engine.discard(|envelope| {
                envelope.context == state.context && state.tags.has(envelope.tag)
            });
        }
        let state = group.and_then(Levels::into_group).unwrap_or(state);
        if let Some(channel) = state.channel {
            // Of one that has failed here, a member may come to one more collective, and has to hear of that first.
            let more = u32::from(state.failed.is_some());
            collectives.retired.push(Retired {
                channel,
                tag: state.tag,
                seq: state.seq.wrapping_add(more),
                members: state.members,
                me: state.me,
                channel_ends: state.channel_ends,
                bounce: state.bounce,
                spares: state.spares,
            });
        }
        true
    }

    /// Takes back the channels of communicators that are gone, once no member uses them. Then each has read all, has
    /// given the communicator up, or has taken the channel back.
    fn take_back_channels(&mut self) {
        let Self {
            engine,
            collectives,
        } = self;
        let lives = &engine.lives;
        let channels = &mut collectives.channels;
        collectives.retired.retain(|retired| {
            let is_gone = |rank: u32| lives.is_gone(rank);
            let mut ends = retired.channel_ends.iter().zip(&*retired.members);
            let left = ends.all(|(end, &rank)| {
                is_gone(rank)
                    || end.tag() != retired.tag
                    || reached(end.done(), retired.seq)
                    || end.failure() != 0
            });
            if !left {
                return true;
            }
            if let Some(own) = retired.channel_ends.get(retired.me) {
                own.close();
            }
            // Only a member that calls one collective more than this rank did may write into a kept buffer or a spare
            // slot. It sees that the channel is closed, or this rank sees here that it writes.
            let mut others = behind(retired.members.len(), retired.me);
            let is_lent = retired.bounce.own_bytes() > 0
                || retired.channel_ends.len() == 2 && !retired.spares.holds(retired.me);
            let is_written = is_lent
                && others.any(|place| {
                    !is_gone(retired.members[place]) && retired.channel_ends[place].is_writing()
                });
            if !is_written {
                *channels &= !(1 << retired.channel);
            }
            is_written
        });
    }
}

/// Whether `context` is one of the library's own in a communicator with this id.
fn is_of(id: u32, context: u32) -> bool {
    context >> SUB_SHIFT << SUB_SHIFT == sub_context(id) | OWN_CONTEXTS
}
