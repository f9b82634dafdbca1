// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes of which their users must hear, each once.

use crate::table::Table;

/// A lane, as far as this needs to know it.
pub(crate) trait Newsworthy {
    /// The peer's rank.
    fn rank(&self) -> u32;
    /// Whether it stands in the list.
    fn has_news(&mut self) -> &mut bool;
}

/// Names of lanes to which something came, or that failed.
#[derive(Debug, Default)]
pub(crate) struct News(Vec<u64>);

impl News {
    /// There is news of a lane.
    pub(crate) fn note(&mut self, name: u64, lane: &mut impl Newsworthy) {
        if !std::mem::replace(lane.has_news(), true) {
            self.0.push(name);
        }
    }

    /// Takes one from the list: the peer's rank.
    pub(crate) fn next<L: Newsworthy>(&mut self, lanes: &mut Table<L>) -> Option<u32> {
        while let Some(name) = self.0.pop() {
            if let Some(lane) = lanes.get_mut(name) {
                *lane.has_news() = false;
                return Some(lane.rank());
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

    impl Newsworthy for Lane {
        fn rank(&self) -> u32 {
            self.0
        }
        fn has_news(&mut self) -> &mut bool {
            &mut self.1
        }
    }

    #[test]
    fn each_lane_is_told_once_and_none_that_is_gone() {
        let (mut lanes, mut news) = (Table::default(), News::default());
        let names = [4, 5].map(|rank| lanes.insert(Lane(rank, false)).expect("a place"));
        for name in [names[0], names[1], names[0]] {
            news.note(name, lanes.get_mut(name).expect("a lane"));
        }
        assert!(lanes.remove(names[1]).is_some());
        assert!(!news.is_empty());
        assert_eq!(news.next(&mut lanes), Some(4));
        assert_eq!((news.next(&mut lanes), news.is_empty()), (None, true));
        news.note(names[0], lanes.get_mut(names[0]).expect("a lane"));
        assert_eq!(news.next(&mut lanes), Some(4));
    }
}
