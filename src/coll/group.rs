// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups of ranks, and a rank's place in one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Contexts of communicators other than the one of all ranks begin here.
pub(crate) const SUB_CONTEXTS: u32 = 1 << 30;
/// Contexts that each of them has, as a power of two: the ids of all ([`super::ids::IDS`]) end below those of the
/// library.
pub(crate) const SUB_SHIFT: u32 = 18;
/// Larger groups have no channel: the lists of parts that ranks exchange would not fit. So many entries of 16 bytes
/// fill a slot of 4 KiB.
pub(crate) const CHANNEL_RANKS: usize = 256;

/// A group of ranks, in an order. Ranks are those of the whole job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group(pub(crate) Arc<[u32]>);

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
pub(crate) struct Membership {
    pub(crate) members: Arc<[u32]>,
    pub(crate) me: usize,
    pub(crate) id: u32,
    pub(crate) slot: usize,
    pub(crate) freed_slots: Arc<Mutex<Vec<usize>>>,
}

impl Membership {
    /// The place of a rank of the job.
    pub(crate) fn of(&self, rank: usize) -> usize {
        let place = self
            .members
            .iter()
            .position(|&member| member as usize == rank);
        place.unwrap_or(usize::MAX)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.freed_slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.slot);
    }
}

pub(crate) const fn sub_context(id: u32) -> u32 {
    SUB_CONTEXTS | id << SUB_SHIFT
}
