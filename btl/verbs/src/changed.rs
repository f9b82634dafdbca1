// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lanes that have changed since their user last looked, each listed once.

use crate::table::Table;

/// A lane, as far as the list needs to know it.
pub(crate) trait Listed {
    /// The peer's rank.
    fn rank(&self) -> u32;
    /// Whether it stands in the list.
    fn is_listed(&mut self) -> &mut bool;
}

/// Names of lanes by which something came, that have room again, or that failed.
#[derive(Debug, Default)]
pub(crate) struct Changed(Vec<u64>);

impl Changed {
    /// Adds a lane, unless it stands in the list.
    pub(crate) fn add(&mut self, name: u64, lane: &mut impl Listed) {
        if !std::mem::replace(lane.is_listed(), true) {
            self.0.push(name);
        }
    }

    /// Takes one from the list: the peer's rank.
    pub(crate) fn next<L: Listed>(&mut self, lanes: &mut Table<L>) -> Option<u32> {
        let name = self.next_name(lanes)?;
        lanes.get(name).map(L::rank)
    }

    /// Takes one from the list: its name.
    pub(crate) fn next_name<L: Listed>(&mut self, lanes: &mut Table<L>) -> Option<u64> {
        while let Some(name) = self.0.pop() {
            if let Some(lane) = lanes.get_mut(name) {
                *lane.is_listed() = false;
                return Some(name);
            }
        }
        None
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lane(u32, bool);

    impl Listed for Lane {
        fn rank(&self) -> u32 {
            self.0
        }
        fn is_listed(&mut self) -> &mut bool {
            &mut self.1
        }
    }

    #[test]
    fn each_lane_is_reported_once_and_none_that_is_gone() {
        let (mut lanes, mut changed) = (Table::default(), Changed::default());
        let names = [4, 5].map(|rank| lanes.insert(Lane(rank, false)).expect("a name"));
        for name in [names[0], names[1], names[0]] {
            changed.add(name, lanes.get_mut(name).expect("a lane"));
        }
        assert!(lanes.remove(names[1]).is_some());
        assert!(!changed.is_empty());
        assert_eq!(changed.next(&mut lanes), Some(4));
        assert_eq!((changed.next(&mut lanes), changed.is_empty()), (None, true));
        changed.add(names[0], lanes.get_mut(names[0]).expect("a lane"));
        assert_eq!(changed.next(&mut lanes), Some(4));
    }
}
