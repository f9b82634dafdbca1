// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communicators made of groups.

use super::Comm;
use super::agree::Coloring;
use crate::coll::Worker;
use crate::coll::agree::IdShare;
use crate::coll::group::{Group, Membership};
use crate::coll::ids::{Participants, Turn};
use crate::coll::state::CommState;
use crate::coll::tags::Tags;
use crate::error::{Error, Result};
use crate::matching::OWN_CONTEXTS;
use std::sync::Arc;

/// Tags of [`Comm::create_from_group`] and [`Comm::by_messages`] that are distinguished.
const TAGS: u32 = 0xFF;

impl Comm {
    /// The members of the communicator.
    #[must_use]
    pub fn group(&self) -> Group {
        Group(self.members())
    }

    pub(crate) fn members(&self) -> Arc<[u32]> {
        match &self.membership {
            Some(membership) => Arc::clone(&membership.members),
            None => (0..self.handle.size as u32).collect(),
        }
    }

    /// The communicator's index, made now for one that shares its members with another.
    pub(crate) fn index(&self, worker: &mut Worker) -> usize {
        match self.index {
            Some(index) => index,
            None => {
                let parent = self
                    .membership
                    .as_ref()
                    .map_or(0, |membership| membership.slot);
                worker.collectives.slot_of(self.context, parent)
            }
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

    /// Communicators of those who name the same `color`, ordered by `key`, then by rank. All members call it; a member
    /// that names none is in none.
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
        let turn = self.turn_of_all();
        self.form(self, turn, Coloring { color, key }, None, IdShare::All)
    }

    /// A communicator of the members of `group`, in its order. All members of this one call it, each with the group
    /// that it is in, or with any that it is not in. Groups that are formed at the same time have no common member.
    pub fn create(&self, group: &Group) -> Result<Option<Self>> {
        let me = self.world_rank(self.rank());
        let place = group.place_of(me);
        let color = place.and(group.0.first().copied());
        self.check_group(group)?;
        let turn = self.turn_of_all();
        let coloring = Coloring { color, key: 0 };
        self.form(self, turn, coloring, Some(group), IdShare::All)
    }

    /// The turn of an agreement of all members.
    fn turn_of_all(&self) -> Turn {
        Turn {
            context: self.context,
            participants: Participants::All,
        }
    }

    /// As [`Self::create`], but only the members of `group` call it. The lowest 8 bits of `tag` tell calls apart that
    /// happen at the same time.
    pub fn create_from_group(&self, group: &Group, tag: u32) -> Result<Self> {
        self.create_within(group, tag, IdShare::All)
    }

    /// As [`Self::create_from_group`], for one of many communicators: half of the channels and of the number of
    /// communicators at a time stay for others. Without a channel its collectives go by messages.
    ///
    /// # Errors
    /// [`Error::Collective`] on all members when half of the number of communicators is in use with one of them.
    pub fn create_frugal(&self, group: &Group, tag: u32) -> Result<Self> {
        self.create_within(group, tag, IdShare::Half)
    }

    fn create_within(&self, group: &Group, tag: u32, share: IdShare) -> Result<Self> {
        let agreement_comm = self.by_messages(group, tag)?;
        let turn = Turn {
            context: self.context,
            participants: Participants::Group { tag: tag & TAGS },
        };
        let all = Coloring {
            color: Some(0),
            key: 0,
        };
        match self.form(&agreement_comm, turn, all, Some(group), share)? {
            Some(comm) => Ok(comm),
            None => Err(Error::Collective {
                reason: "a communicator without members".into(),
            }),
        }
    }

    /// A communicator of the members of `group` whose collectives go by messages of this one's context, under `tag`.
    /// No agreement is needed, so nobody waits here. The pair of context and `tag` must be unique while it lives.
    pub fn by_messages(&self, group: &Group, tag: u32) -> Result<Self> {
        self.check_group(group)?;
        let me = self.world_rank(self.rank());
        let place = group.place_of(me).ok_or_else(|| Error::Collective {
            reason: "this rank is not in the group".into(),
        })?;
        let members = Arc::clone(&group.0);
        let own = self.context | OWN_CONTEXTS;
        let mut worker = self.handle.gate.enter();
        let mut state = CommState::new(
            Arc::clone(&members),
            place,
            own,
            0,
            None,
            worker.collectives.tuning,
        );
        state.tags = Tags::of_group(tag, &members);
        let index = worker.collectives.add(state);
        let freed_slots = Arc::clone(&worker.collectives.ids.freed_slots);
        drop(worker);
        Ok(Self {
            handle: self.handle.clone(),
            context: self.context,
            membership: Some(Arc::new(Membership {
                members,
                me: place,
                id: 0,
                slot: index,
                freed_slots,
            })),
            index: Some(index),
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

#[cfg(test)]
mod tests;
