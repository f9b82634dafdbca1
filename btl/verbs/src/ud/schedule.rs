// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which lanes are to be served next, and when the first of them is due.

use std::collections::VecDeque;
use std::time::Duration;

use super::Lane;
use crate::directory::Directory;
use crate::provider::Provider;

/// Why a lane is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// It received something: its peer may wait for an answer.
    Touched,
    /// It waits for room in the device.
    Hungry,
    /// It waits for a time.
    Watched,
}

/// In which lists a lane stands.
#[derive(Debug, Default)]
pub(super) struct InLists([bool; 3]);

/// Names of lanes to serve, a list for each reason.
///
/// Invariants: a lane stands in a list once, and knows that it does. No watched lane is due before `due`.
#[derive(Debug)]
pub(super) struct Schedule {
    lists: [VecDeque<u64>; 3],
    due: Duration,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            lists: Default::default(),
            due: Duration::MAX,
        }
    }

    /// Adds a lane to a list, unless it stands there.
    #[inline]
    pub(super) fn add(&mut self, list: List, name: u64, in_lists: &mut InLists) {
        if !std::mem::replace(&mut in_lists.0[list as usize], true) {
            self.lists[list as usize].push_back(name);
        }
    }

    /// Adds a lane that waits for that time.
    #[inline]
    pub(super) fn watch(&mut self, name: u64, in_lists: &mut InLists, due: Duration) {
        self.due = self.due.min(due);
        self.add(List::Watched, name, in_lists);
    }

    /// How many lanes stand in a list. A round takes as many: those that are added meanwhile wait for the next round.
    #[inline]
    pub(super) fn count(&self, list: List) -> usize {
        self.lists[list as usize].len()
    }

    /// Takes the first lane of a list; none if that lane is gone.
    pub(super) fn take<'a, P: Provider>(
        &mut self,
        list: List,
        lanes: &'a mut Directory<Lane<P>>,
    ) -> Option<(u64, &'a mut Lane<P>)> {
        let name = self.lists[list as usize].pop_front()?;
        let lane = lanes.get_mut(name)?;
        lane.in_lists.0[list as usize] = false;
        Some((name, lane))
    }

    /// The name at an index among those that wait for a time.
    pub(super) fn watched(&self, index: usize) -> Option<u64> {
        self.lists[List::Watched as usize].get(index).copied()
    }

    /// How many lanes are to be looked at now since one of them may be due. Those that still wait are to be added
    /// again.
    pub(super) fn begin_round(&mut self, now: Duration) -> usize {
        if now < self.due {
            return 0;
        }
        self.due = Duration::MAX;
        self.count(List::Watched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_stands_in_each_list_once() {
        let (mut schedule, mut in_lists) = (Schedule::new(), InLists::default());
        for list in [List::Hungry, List::Touched, List::Hungry] {
            schedule.add(list, 7, &mut in_lists);
        }
        schedule.watch(7, &mut in_lists, Duration::from_millis(3));
        let counts = [List::Touched, List::Hungry, List::Watched].map(|list| schedule.count(list));
        assert_eq!(counts, [1; 3]);
        assert_eq!((schedule.watched(0), schedule.watched(1)), (Some(7), None));
    }

    #[test]
    fn a_round_begins_at_the_first_time_that_is_waited_for() {
        let mut schedule = Schedule::new();
        let after = Duration::from_millis;
        assert_eq!(schedule.begin_round(after(9)), 0);
        for (name, due) in [(1, 5), (2, 3), (3, 8)] {
            schedule.watch(name, &mut InLists::default(), after(due));
        }
        assert_eq!(schedule.begin_round(after(2)), 0);
        assert_eq!(schedule.begin_round(after(3)), 3);
        assert_eq!(schedule.begin_round(after(9)), 0, "none was added again");
    }
}
