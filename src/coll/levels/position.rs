// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's place in a communicator that spans nodes.

use super::super::nodes::MembersByNode;
use std::sync::Arc;

/// Who the members are, where they are, and which of them this rank is.
pub(in crate::coll) struct Position {
    pub(super) nodes: MembersByNode,
    pub(super) members: Arc<[u32]>,
    pub(super) me: usize,
}

/// Ranks of the job that talk for nodes.
#[derive(Debug, Clone)]
pub(super) struct Leaders {
    /// In the order in which their nodes stand on the wire.
    pub(super) ranks: Arc<[u32]>,
    /// Which of them talks for this rank's node.
    pub(super) me: usize,
}

/// The nodes beside this rank's in a row of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neighbours {
    pub(super) before: Option<usize>,
    pub(super) next: Option<usize>,
}

impl Position {
    /// This rank's node.
    pub(super) fn node(&self) -> usize {
        self.nodes.node_of(self.me)
    }

    /// The members on this rank's node.
    pub(super) fn group(&self) -> &[usize] {
        self.nodes.members_of(self.node())
    }

    pub(super) fn is_alone(&self) -> bool {
        self.group().len() == 1
    }

    /// The member that talks for a node: the root for its own.
    pub(super) fn leader(&self, node: usize, root: Option<usize>) -> usize {
        match root {
            Some(root) if self.nodes.node_of(root) == node => root,
            _ => self.nodes.members_of(node)[0],
        }
    }

    /// Whether this rank talks for its node.
    pub(super) fn leads(&self, root: Option<usize>) -> bool {
        self.leader(self.node(), root) == self.me
    }

    /// The place in the node group of the one that talks for this rank's node.
    pub(super) fn leader_within(&self, root: Option<usize>) -> usize {
        let leader = self.leader(self.node(), root);
        let within = self.group().iter().position(|&place| place == leader);
        within.unwrap_or(0)
    }

    /// The nodes beside this rank's in the row of nodes that begins with the root's.
    pub(super) fn neighbours(&self, root: usize) -> Neighbours {
        let (count, first) = (self.nodes.count(), self.nodes.node_of(root));
        let index = (self.node() + count - first) % count;
        let node_at = |index: usize| (first + index) % count;
        Neighbours {
            before: index.checked_sub(1).map(node_at),
            next: (index + 1 < count).then(|| node_at(index + 1)),
        }
    }

    /// The leaders of two nodes, one of which is this rank's.
    pub(super) fn pair(&self, from: usize, to: usize, root: usize) -> Leaders {
        let leader = |node| self.members[self.leader(node, Some(root))];
        Leaders {
            ranks: Arc::new([leader(from), leader(to)]),
            me: usize::from(self.node() != from),
        }
    }

    /// The leaders of all nodes. `last`: the root's node stands last.
    pub(super) fn wire(&self, root: Option<usize>, last: bool) -> Leaders {
        let count = self.nodes.count();
        let first = match root {
            Some(root) if last => self.nodes.node_of(root) + 1,
            _ => 0,
        };
        let ranks = (0..count)
            .map(|step| self.members[self.leader((first + step) % count, root)])
            .collect();
        Leaders {
            ranks,
            me: (self.node() + count - first % count) % count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_leads_its_node_and_may_stand_last_on_the_wire() {
        let place = Position {
            nodes: MembersByNode::of([0, 1, 2, 0, 1, 2]),
            members: Arc::new([10, 11, 12, 13, 14, 15]),
            me: 4,
        };
        assert!(!place.leads(None) && place.leads(Some(4)) && !place.leads(Some(3)));
        assert_eq!(place.leader_within(Some(4)), 1);
        let leaders = |leaders: Leaders| (leaders.ranks.to_vec(), leaders.me);
        assert_eq!(leaders(place.wire(Some(3), false)).0, [13, 11, 12]);
        let beside = |before, next| Neighbours { before, next };
        assert_eq!(place.neighbours(3), beside(Some(0), Some(2)));
        assert_eq!(place.neighbours(1), beside(None, Some(2)));
        assert_eq!(place.neighbours(5), beside(Some(0), None));
        assert_eq!(leaders(place.pair(0, 1, 3)), (vec![13, 11], 1));
        assert_eq!(leaders(place.pair(1, 2, 3)), (vec![11, 12], 0));
        let leaders_of = |root| leaders(place.wire(Some(root), true));
        assert_eq!(leaders_of(3), (vec![11, 12, 13], 0));
        assert_eq!(leaders_of(4), (vec![12, 10, 14], 2));
    }
}
