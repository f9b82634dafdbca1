// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups of ranks, and communicators made of them.

use super::agree::Share;
use super::state::State;
use crate::comm::{Comm, OWN_CONTEXTS};
use crate::engine::Engine;
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Contexts of communicators other than the one of all ranks begin here.
pub(crate) const SUB_CONTEXTS: u32 = 1 << 30;
/// Contexts that each of them has.
pub(crate) const SUB_SHIFT: u32 = 18;
/// Larger groups have no channel: the lists of parts that ranks exchange would not fit.
pub(crate) const CHANNEL_RANKS: usize = 256;

/// Tags of [`Comm::create_from_group`] and [`Comm::by_messages`] that are told apart.
const TAGS: u32 = 0xFF;

/// A group of ranks, in an order. Ranks are those of the whole job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group(pub(super) Arc<[u32]>);

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
    pub(super) id: u32,
    pub(super) slot: usize,
    pub(super) graves: Arc<Mutex<Vec<usize>>>,
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

impl Engine {
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

pub(super) const fn sub_context(id: u32) -> u32 {
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
        self.form(self, (self.context, 0), (color, key), None, Share::All)
    }

    /// A communicator of the members of `group`, in its order. All members of this one call it, each with the group that it is in, or with any
    /// that it is not in; groups that are formed at the same time have no common member.
    pub fn create(&self, group: &Group) -> Result<Option<Self>> {
        let me = self.world_rank(self.rank());
        let place = group.place_of(me);
        let color = place.and(group.0.first().copied());
        self.check_group(group)?;
        let turn = (self.context, 0);
        self.form(self, turn, (color, 0), Some(group), Share::All)
    }

    /// As [`Self::create`], but only the members of `group` call it. The lowest 8 bits of `tag` tell calls apart that happen at the same
    /// time.
    pub fn create_from_group(&self, group: &Group, tag: u32) -> Result<Self> {
        self.create_within(group, tag, Share::All)
    }

    /// As [`Self::create_from_group`], for one of many communicators: half of the channels and of the number of communicators at a time stay
    /// for others. Without a channel its collectives go by messages.
    ///
    /// # Errors
    /// [`Error::Collective`] on all members when half of the number of communicators is in use with one of them.
    pub fn create_frugal(&self, group: &Group, tag: u32) -> Result<Self> {
        self.create_within(group, tag, Share::Half)
    }

    fn create_within(&self, group: &Group, tag: u32, share: Share) -> Result<Self> {
        let lane = self.by_messages(group, tag)?;
        let turn = (self.context, 1 + (tag & TAGS));
        match self.form(&lane, turn, (Some(0), 0), Some(group), share)? {
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
        state.tag_base = (1 << 29 | (tag & TAGS) << 21).cast_signed();
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
}
