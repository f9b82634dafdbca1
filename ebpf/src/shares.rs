// SPDX-License-Identifier: MIT OR Apache-2.0
//! Room that those who are observed fill, so that none takes the place of others. The kernel's programs have the same
//! rule (`ebpf/bpf/shares.h`).

use std::collections::BTreeMap;

/// Room for so much, and what each owner has of it. An owner gets no more than three times what is left. So one alone
/// gets three quarters, and however many there are, the next one finds some.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    room: u64,
    taken: u64,
    by_owner: BTreeMap<u32, u64>,
}

impl Shares {
    pub(crate) fn new(room: u64) -> Self {
        Self {
            room,
            taken: 0,
            by_owner: BTreeMap::new(),
        }
    }

    /// Whether an owner may have so much more.
    pub(crate) fn has(&self, owner: u32, amount: u64) -> bool {
        let (taken, own) = (self.taken + amount, self.taken_by(owner) + amount);
        // Whatever is left after it: one page that fills the room shuts out all others.
        taken <= self.room && own <= 3 * (self.room - taken) + 3
    }

    /// Takes it, whether it may or not.
    pub(crate) fn add(&mut self, owner: u32, amount: u64) {
        self.taken += amount;
        *self.by_owner.entry(owner).or_default() += amount;
    }

    /// What an owner has.
    pub(crate) fn taken_by(&self, owner: u32) -> u64 {
        self.by_owner.get(&owner).copied().unwrap_or(0)
    }

    /// Gives back.
    pub(crate) fn give(&mut self, owner: u32, amount: u64) {
        let Some(own) = self.by_owner.get_mut(&owner) else {
            return;
        };
        let amount = amount.min(*own);
        *own -= amount;
        self.taken -= amount;
        if *own == 0 {
            self.by_owner.remove(&owner);
        }
    }

    /// The owner that has most, if more is taken than there is room for.
    pub(crate) fn beyond(&self) -> Option<u32> {
        let most = self.by_owner.iter().max_by_key(|(_, own)| **own);
        most.map(|(owner, _)| *owner)
            .filter(|_| self.taken > self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_leaves_room_for_others() {
        let mut shares = Shares::new(64);
        let mut fill = |owner| {
            while shares.has(owner, 1) {
                shares.add(owner, 1);
            }
            shares.taken_by(owner)
        };
        assert_eq!([fill(1), fill(2), fill(3)], [48, 12, 3]);
        assert!(!shares.has(1, 1) && !shares.has(4, 2));
        shares.give(1, 48);
        assert!(shares.has(4, 1) && shares.has(1, 1));
        assert_eq!(shares.taken_by(1), 0);
    }

    #[test]
    fn who_has_most_gives_first() {
        let mut shares = Shares::new(5);
        shares.add(1, 2);
        shares.add(2, 3);
        assert_eq!(shares.beyond(), None);
        shares.add(1, 2);
        assert_eq!(shares.beyond(), Some(1));
        shares.give(1, 9);
        assert_eq!((shares.taken_by(1), shares.beyond()), (0, None));
    }
}
