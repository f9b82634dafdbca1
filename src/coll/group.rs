// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups of ranks, and communicators made of them.
//!
//! A communicator has an id that no two communicators with a common member share at a time: its messages' contexts are made of it. Members agree on
//! the smallest id that is free with all of them, on a channel for collectives in the same way, and on a number that tells the channel's
//! users apart. Only one agreement at a time holds a rank's ids, the one of the parent with the smallest context; threads that form other
//! communicators at that time try again, so that no two get the same.

use super::state::{Retired, State};
use crate::comm::{Comm, OWN_CONTEXTS};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::runtime::Handle;
use onecopy_shm::coll::line::reached;
use onecopy_shm::layout::ChannelPart;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Ids of communicators at a time, the one of all ranks included.
const IDS: u32 = 2048;
const WORDS: usize = IDS as usize / 64;
/// Contexts of communicators other than the one of all ranks begin here.
pub(crate) const SUB_CONTEXTS: u32 = 1 << 30;
/// Contexts that each of them has.
pub(crate) const SUB_SHIFT: u32 = 18;
/// Larger groups have no channel: the lists of parts that ranks exchange would not fit.
pub(crate) const CHANNEL_RANKS: usize = 256;

/// A group of ranks, in an order. Ranks are those of the whole job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group(Arc<[u32]>);

impl Group {
    /// The group of these ranks of the job, in this order.
    ///
    /// # Panics
    /// If a rank is named twice.
    #[must_use]
    pub fn of(ranks: &[usize]) -> Self {
        let mut seen = BTreeSet::new();
        assert!(
            ranks.iter().all(|rank| seen.insert(rank)),
            "a rank is twice in a group"
        );
        Self(
            ranks
                .iter()
                .map(|&rank| u32::try_from(rank).unwrap_or(u32::MAX))
                .collect(),
        )
    }

    /// Ranks in the group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// The ranks of the job that are in it.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|&rank| rank as usize)
    }

    /// The place of a rank of the job in the group.
    #[must_use]
    pub fn place_of(&self, rank: usize) -> Option<usize> {
        self.0.iter().position(|&member| member as usize == rank)
    }

    /// The members at these places, in this order.
    ///
    /// # Panics
    /// If there is no such place, or one is named twice.
    #[must_use]
    pub fn include(&self, places: &[usize]) -> Self {
        Self::of(
            &places
                .iter()
                .map(|&place| self.0[place] as usize)
                .collect::<Vec<_>>(),
        )
    }

    /// The members but those at these places.
    #[must_use]
    pub fn exclude(&self, places: &[usize]) -> Self {
        let keep = |place: &usize| !places.contains(place);
        Self(
            (0..self.size())
                .filter(keep)
                .map(|place| self.0[place])
                .collect(),
        )
    }

    /// The members of this group, then those of the other that are not in this one.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let more = other.0.iter().filter(|rank| !self.0.contains(rank));
        Self(self.0.iter().chain(more).copied().collect())
    }

    /// The members of this group that are in the other, too.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self.0.iter().filter(|rank| other.0.contains(rank));
        Self(both.copied().collect())
    }

    /// The members of this group that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let only = self.0.iter().filter(|rank| !other.0.contains(rank));
        Self(only.copied().collect())
    }
}

/// A communicator's members and this rank's place among them. The communicator ends with the last handle on it.
pub(crate) struct Place {
    pub(crate) members: Arc<[u32]>,
    pub(crate) me: usize,
    id: u32,
    slot: usize,
    graves: Arc<Mutex<Vec<usize>>>,
}

impl Place {
    /// The place of a rank of the job.
    pub(crate) fn of(&self, rank: usize) -> usize {
        let place = self
            .members
            .iter()
            .position(|&member| member as usize == rank);
        place.unwrap_or(usize::MAX)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.graves
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.slot);
    }
}

/// Ids of communicators.
pub(crate) struct Ids {
    used: [u64; WORDS],
    /// Slot and id of those in use.
    of_slots: Vec<(usize, u32)>,
    /// Where to look for a free one first, so that an id rests before it is used again.
    next: u32,
    /// Users of channels so far.
    users: u32,
    /// Context of the parent whose agreement holds the ids.
    holder: Option<u32>,
    waiting: BTreeSet<u32>,
    graves: Arc<Mutex<Vec<usize>>>,
    by_context: Vec<(u32, usize)>,
}

impl Default for Ids {
    fn default() -> Self {
        let mut used = [0; WORDS];
        // All ranks.
        used[0] = 1;
        Self {
            used,
            of_slots: Vec::new(),
            next: 1,
            users: 1,
            holder: None,
            waiting: BTreeSet::new(),
            graves: Arc::default(),
            by_context: Vec::new(),
        }
    }
}

/// What a rank says when a communicator is formed.
#[derive(Debug, Clone, Copy)]
struct Word {
    /// Whether the ids are this agreement's.
    ready: u64,
    /// Its part, plus one; 0: none.
    color: u64,
    key: i64,
    next: u32,
    users: u32,
    free_channels: u64,
    free: [u64; WORDS],
}

/// Numbers that a word is sent as.
const NUMBERS: usize = 6 + WORDS;

impl Word {
    fn encode(&self) -> Vec<u64> {
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

    fn decode(numbers: &[u64]) -> Self {
        let mut free = [0; WORDS];
        free.copy_from_slice(&numbers[6..NUMBERS]);
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

struct Agreed {
    id: u32,
    channel: Option<u32>,
    tag: u64,
}

impl Engine {
    /// What this rank says about its ids to the agreement of the parent with `context`.
    fn offer_ids(&mut self, context: u32) -> Word {
        self.bury();
        let all = self.geometry.coll_channels;
        let mask = if all >= 64 { u64::MAX } else { (1 << all) - 1 };
        let free_channels = mask & !self.colls.channels;
        let ids = &mut self.colls.ids;
        ids.waiting.insert(context);
        let mine = ids.holder.is_none() && ids.waiting.first() == Some(&context);
        if mine {
            ids.holder = Some(context);
        }
        Word {
            ready: u64::from(mine),
            color: 0,
            key: 0,
            next: ids.next,
            users: ids.users,
            free_channels,
            free: ids.used.map(|word| !word),
        }
    }

    fn end_agreement(&mut self, context: u32, over: bool) {
        let ids = &mut self.colls.ids;
        if ids.holder == Some(context) {
            ids.holder = None;
        }
        if over {
            ids.waiting.remove(&context);
        }
    }

    /// What all words together say.
    fn agree(words: &[Word], ranks: usize) -> Result<Agreed> {
        let mut free = [u64::MAX; WORDS];
        let mut free_channels = u64::MAX;
        let (mut next, mut users) = (0, 0);
        for word in words {
            free.iter_mut()
                .zip(word.free)
                .for_each(|(all, one)| *all &= one);
            free_channels &= word.free_channels;
            next = next.max(word.next);
            users = users.max(word.users);
        }
        let is_free = |id: &u32| free[*id as usize / 64] & 1 << (id % 64) != 0;
        let id = (0..IDS)
            .map(|step| (next + step) % IDS)
            .find(is_free)
            .ok_or_else(|| Error::Collective {
                reason: format!("{IDS} communicators at a time; drop some"),
            })?;
        let channel =
            (free_channels != 0 && ranks <= CHANNEL_RANKS).then(|| free_channels.trailing_zeros());
        Ok(Agreed {
            id,
            channel,
            tag: u64::from(users + 1) << 32 | u64::from(id),
        })
    }

    /// Makes the state of a communicator that this rank is a member of.
    fn settle(&mut self, agreed: &Agreed, members: &Arc<[u32]>, me: usize) -> Place {
        let ids = &mut self.colls.ids;
        ids.used[agreed.id as usize / 64] |= 1 << (agreed.id % 64);
        ids.next = (agreed.id + 1) % IDS;
        ids.users = (agreed.tag >> 32) as u32;
        let context = sub_context(agreed.id) | OWN_CONTEXTS;
        let channel = agreed.channel;
        if let Some(channel) = channel {
            self.colls.channels |= 1 << channel;
        }
        let reserved = channel.map_or(Ok(()), |channel| {
            self.core
                .segment
                .reserve_channel(channel, ChannelPart::Lines)
        });
        if let (Ok(()), Some(channel)) = (&reserved, channel)
            && let Some(end) = self.core.segment.channel(channel)
        {
            end.open(agreed.tag, 0);
        }
        let mut state = State::new(Arc::clone(members), me, context, agreed.tag, channel);
        // Without memory for it every collective of the communicator fails here.
        state.failed = reserved.err().map(Error::from);
        let slot = self.colls.add(state);
        self.colls.ids.of_slots.push((slot, agreed.id));
        Place {
            members: Arc::clone(members),
            me,
            id: agreed.id,
            slot,
            graves: Arc::clone(&self.colls.ids.graves),
        }
    }

    /// Takes back ids and channels of communicators that are gone.
    fn bury(&mut self) {
        let graves = Arc::clone(&self.colls.ids.graves);
        let mut graves = graves.lock().unwrap_or_else(PoisonError::into_inner);
        graves.retain(|&slot| {
            let Some(state) = &self.colls.slots[slot] else {
                return false;
            };
            if !state.ops.is_empty() {
                // Requests that outlive the communicator still go on.
                return true;
            }
            let Some(state) = self.colls.slots[slot].take() else {
                return false;
            };
            if let Some(channel) = state.channel {
                self.colls.retired.push(Retired {
                    channel,
                    tag: state.tag,
                    seq: state.seq,
                    members: Arc::clone(&state.members),
                    ends: state.ends,
                });
            }
            let ids = &mut self.colls.ids;
            if let Some(index) = ids.of_slots.iter().position(|&(other, _)| other == slot) {
                let (_, id) = ids.of_slots.swap_remove(index);
                ids.used[id as usize / 64] &= !(1 << (id % 64));
            }
            false
        });
        let gone = &self.gone;
        let channels = &mut self.colls.channels;
        self.colls.retired.retain(|retired| {
            let left = retired
                .ends
                .iter()
                .zip(&*retired.members)
                .all(|(end, &rank)| {
                    gone[rank as usize].is_some()
                        || end.tag() != retired.tag
                        || reached(end.done(), retired.seq)
                });
            if left {
                *channels &= !(1 << retired.channel);
            }
            !left
        });
    }

    /// The slot of a communicator that has a context of its own but no channel.
    pub(crate) fn slot_of(&mut self, context: u32, members: &Arc<[u32]>, me: usize) -> usize {
        let found = self.colls.ids.by_context.iter();
        if let Some(&(_, slot)) = found.clone().find(|&&(other, _)| other == context) {
            return slot;
        }
        let own = context | OWN_CONTEXTS;
        let slot = self
            .colls
            .add(State::new(Arc::clone(members), me, own, 0, None));
        self.colls.ids.by_context.push((context, slot));
        slot
    }
}

impl super::state::Colls {
    /// Finds a slot for a communicator.
    pub(crate) fn add(&mut self, state: State) -> usize {
        // A slot whose communicator is taken out for a moment is in the list of those active.
        let active = &self.active;
        let free = (0..self.slots.len())
            .find(|slot| self.slots[*slot].is_none() && !active.contains(slot));
        let state = Some(Box::new(state));
        match free {
            Some(slot) => {
                self.slots[slot] = state;
                slot
            }
            None => {
                self.slots.push(state);
                self.slots.len() - 1
            }
        }
    }
}

const fn sub_context(id: u32) -> u32 {
    SUB_CONTEXTS | id << SUB_SHIFT
}

impl Comm {
    /// The members of the communicator.
    #[must_use]
    pub fn group(&self) -> Group {
        Group(self.members())
    }

    pub(crate) fn members(&self) -> Arc<[u32]> {
        match &self.place {
            Some(place) => Arc::clone(&place.members),
            None => (0..self.handle.size as u32).collect(),
        }
    }

    /// The communicator's slot, made now for one that shares its members with another.
    pub(crate) fn slot(&self, engine: &mut Engine) -> usize {
        match self.slot {
            Some(slot) => slot,
            None => engine.slot_of(self.context, &self.members(), self.rank()),
        }
    }

    /// A communicator of the same ranks with messages and collectives of its own. All members call it.
    pub fn dup(&self) -> Result<Self> {
        match self.split(Some(0), 0)? {
            Some(comm) => Ok(comm),
            None => Err(Error::Collective {
                reason: "a communicator without members".into(),
            }),
        }
    }

    /// Communicators of those who name the same `color`, ordered by `key`, then by rank. All members call it; who names none is in none.
    ///
    /// ```
    /// onecopy::local(4, |rt| {
    ///     let world = rt.world();
    ///     let color = (world.rank() % 2) as u32;
    ///     let half = world.split(Some(color), 0).unwrap().unwrap();
    ///     assert_eq!((half.size(), half.rank()), (2, world.rank() / 2));
    ///     half.barrier().unwrap();
    /// });
    /// ```
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        self.form(self, color, key, None)
    }

    /// A communicator of the members of `group`, in its order. All members of this one call it, each with the group that it is in, or with any
    /// that it is not in; groups that are formed at the same time have no common member.
    pub fn create(&self, group: &Group) -> Result<Option<Self>> {
        let me = self.world_rank(self.rank());
        let place = group.place_of(me);
        let color = place.and(group.0.first().copied());
        self.check_group(group)?;
        self.form(self, color, 0, Some(group))
    }

    /// As [`Self::create`], but only the members of `group` call it. `tag` tells calls apart that happen at the same time.
    pub fn create_from_group(&self, group: &Group, tag: u32) -> Result<Self> {
        let lane = self.by_messages(group, tag)?;
        match self.form(&lane, Some(0), 0, Some(group))? {
            Some(comm) => Ok(comm),
            None => Err(Error::Collective {
                reason: "a communicator without members".into(),
            }),
        }
    }

    /// A communicator of the members of `group` whose collectives go by messages of this one's context, under `tag`. Its members agree on
    /// nothing, so nobody waits for anybody here; at a time, the pair of context and `tag` is its alone.
    pub fn by_messages(&self, group: &Group, tag: u32) -> Result<Self> {
        self.check_group(group)?;
        let me = self.world_rank(self.rank());
        let place = group.place_of(me).ok_or_else(|| Error::Collective {
            reason: "this rank is not in the group".into(),
        })?;
        let members = Arc::clone(&group.0);
        let own = self.context | OWN_CONTEXTS;
        let mut state = State::new(Arc::clone(&members), place, own, 0, None);
        state.tag_base = (1 << 29 | (tag & 0xFF) << 21).cast_signed();
        let mut engine = self.handle.gate.enter();
        let slot = engine.colls.add(state);
        let graves = Arc::clone(&engine.colls.ids.graves);
        drop(engine);
        Ok(Self {
            handle: self.handle.clone(),
            context: self.context,
            place: Some(Arc::new(Place {
                members,
                me: place,
                id: 0,
                slot,
                graves,
            })),
            slot: Some(slot),
        })
    }

    fn check_group(&self, group: &Group) -> Result<()> {
        let members = self.members();
        match group.0.iter().find(|rank| !members.contains(rank)) {
            Some(&rank) => Err(Error::NoSuchRank {
                rank: rank as usize,
                size: members.len(),
            }),
            None => Ok(()),
        }
    }

    /// Forms communicators; `lane` carries what is said.
    fn form(
        &self,
        lane: &Self,
        color: Option<u32>,
        key: i64,
        group: Option<&Group>,
    ) -> Result<Option<Self>> {
        let handle: &Handle = &self.handle;
        let mut numbers = vec![0u64; NUMBERS * lane.size()];
        loop {
            let mut word = handle.gate.enter().offer_ids(self.context);
            (word.color, word.key) = (color.map_or(0, |color| u64::from(color) + 1), key);
            let said = lane.allgather(&word.encode(), &mut numbers);
            let words: Vec<Word> = numbers.chunks_exact(NUMBERS).map(Word::decode).collect();
            let ready = words.iter().all(|word| word.ready != 0);
            let over = ready || said.is_err();
            if !over {
                handle.gate.enter().end_agreement(self.context, false);
                std::thread::yield_now();
                continue;
            }
            let formed = said.and_then(|()| self.settle(lane, &words, color, group));
            handle.gate.enter().end_agreement(self.context, true);
            let formed = formed?;
            // Nobody uses the channel before all have prepared their ends.
            lane.barrier()?;
            return Ok(formed);
        }
    }

    fn settle(
        &self,
        lane: &Self,
        words: &[Word],
        color: Option<u32>,
        group: Option<&Group>,
    ) -> Result<Option<Self>> {
        let members: Arc<[u32]> = match (color, group) {
            (None, _) => Arc::from([]),
            (Some(_), Some(group)) => Arc::clone(&group.0),
            (Some(color), None) => {
                let ours = u64::from(color) + 1;
                let mut chosen: Vec<(i64, usize)> = words
                    .iter()
                    .enumerate()
                    .filter(|(_, word)| word.color == ours)
                    .map(|(place, word)| (word.key, place))
                    .collect();
                chosen.sort_unstable();
                let rank = |&(_, place): &(i64, usize)| lane.world_rank(place) as u32;
                chosen.iter().map(rank).collect()
            }
        };
        let mut engine = self.handle.gate.enter();
        // The same on all ranks, also on those that are in no group.
        let agreed = Engine::agree(words, words.len())?;
        let own = engine.core.me;
        let Some(me) = members.iter().position(|&rank| rank == own) else {
            return Ok(None);
        };
        let place = engine.settle(&agreed, &members, me);
        let (slot, context) = (place.slot, sub_context(place.id));
        drop(engine);
        Ok(Some(Self {
            handle: self.handle.clone(),
            context,
            place: Some(Arc::new(place)),
            slot: Some(slot),
        }))
    }
}
