// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's lanes: by their names, by the numbers that messages carry, and those that have changed.

use std::collections::HashMap;

use crate::changed::{Changed, Listed};
use crate::table::Table;

/// A lane that can fail.
pub(crate) trait Failing: Listed {
    /// Why it carries nothing any more, if so.
    fn failed(&mut self) -> &mut Option<String>;
}

/// Lanes, and how they are found.
///
/// Invariants: a number leads to one lane at most. A lane that fails keeps its first reason, and counts as changed.
#[derive(Debug)]
pub(crate) struct Directory<L> {
    lanes: Table<L>,
    /// The name of the lane that a completion or a packet is for.
    by_number: HashMap<u32, u64>,
    changed: Changed,
}

impl<L> Default for Directory<L> {
    fn default() -> Self {
        Self {
            lanes: Table::default(),
            by_number: HashMap::new(),
            changed: Changed::default(),
        }
    }
}

impl<L: Failing> Directory<L> {
    /// Puts a lane in, to be found by that number, too. Gives its name; none when there are too many.
    pub(crate) fn insert(&mut self, number: u32, lane: L) -> Option<u64> {
        let name = self.lanes.insert(lane)?;
        self.by_number.insert(number, name);
        Some(name)
    }

    pub(crate) fn get(&self, name: u64) -> Option<&L> {
        self.lanes.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: u64) -> Option<&mut L> {
        self.lanes.get_mut(name)
    }

    /// A lane, and the list to add it to once it has changed.
    pub(crate) fn with_changed(&mut self, name: u64) -> Option<(&mut L, &mut Changed)> {
        Some((self.lanes.get_mut(name)?, &mut self.changed))
    }

    pub(crate) fn name_of(&self, number: u32) -> Option<u64> {
        self.by_number.get(&number).copied()
    }

    pub(crate) fn names(&self) -> Vec<u64> {
        self.lanes.names()
    }

    /// Has no number lead to a lane any more.
    pub(crate) fn forget_numbers_of(&mut self, name: u64) {
        self.by_number.retain(|_, lane| *lane != name);
    }

    pub(crate) fn forget_number(&mut self, number: u32) {
        self.by_number.remove(&number);
    }

    pub(crate) fn remove(&mut self, name: u64) -> Option<L> {
        self.lanes.remove(name)
    }

    pub(crate) fn fail(&mut self, name: u64, reason: String) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.failed().get_or_insert(reason);
            self.changed.add(name, lane);
        }
    }

    pub(crate) fn fail_all(&mut self, reason: &str) {
        for name in self.lanes.names() {
            self.fail(name, reason.to_owned());
        }
    }

    /// Takes a lane that has changed: its name.
    pub(crate) fn next_changed_name(&mut self) -> Option<u64> {
        self.changed.next_name(&mut self.lanes)
    }

    /// Takes a lane that has changed: the peer's rank.
    pub(crate) fn next_changed(&mut self) -> Option<u32> {
        self.changed.next(&mut self.lanes)
    }

    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lane(u32, bool, Option<String>);

    impl Listed for Lane {
        fn rank(&self) -> u32 {
            self.0
        }
        fn is_listed(&mut self) -> &mut bool {
            &mut self.1
        }
    }

    impl Failing for Lane {
        fn failed(&mut self) -> &mut Option<String> {
            &mut self.2
        }
    }

    #[test]
    fn a_lane_is_found_by_its_number_until_it_is_forgotten() {
        let mut lanes = Directory::default();
        let [a, b] = [7, 8].map(|rank| {
            let name = lanes.insert(100 + rank, Lane(rank, false, None));
            name.expect("a name")
        });
        assert_eq!((lanes.name_of(107), lanes.name_of(108)), (Some(a), Some(b)));
        lanes.forget_numbers_of(a);
        lanes.forget_number(108);
        assert_eq!((lanes.name_of(107), lanes.name_of(108)), (None, None));
        assert!(lanes.get(a).is_some() && lanes.get_mut(b).is_some());
    }

    #[test]
    fn a_lane_that_fails_has_changed_and_keeps_its_first_reason() {
        let mut lanes = Directory::default();
        let name = lanes.insert(1, Lane(7, false, None)).expect("a name");
        lanes.fail(name, "first".to_owned());
        lanes.fail_all("second");
        let failed = lanes.get(name).and_then(|lane| lane.2.as_deref());
        assert_eq!(failed, Some("first"));
        assert_eq!(
            (lanes.next_changed(), lanes.next_changed()),
            (Some(7), None)
        );
        assert!(!lanes.has_changed());
        assert!(lanes.remove(name).is_some());
        assert!(lanes.with_changed(name).is_none());
    }
}
