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

    /// The node before this rank's, and the one behind it, in the row of nodes that begins with the root's.
    pub(super) fn neighbours(&self, root: usize) -> (Option<usize>, Option<usize>) {
        let (count, first) = (self.nodes.count(), self.nodes.node_of(root));
        let index = (self.node() + count - first) % count;
        let node_at = |index: usize| (first + index) % count;
        let before = index.checked_sub(1).map(node_at);
        (before, (index + 1 < count).then(|| node_at(index + 1)))
    }

    /// The ranks of the job that talk for two nodes.
    pub(super) fn pair(&self, from: usize, to: usize, root: usize) -> Arc<[u32]> {
        let leader = |node| self.members[self.leader(node, Some(root))];
        Arc::new([leader(from), leader(to)])
    }

    /// The ranks of the job that talk for the nodes, in the order in which they stand on the wire. And which of them
    /// talks for this rank's. `last`: the root's node stands last.
    pub(super) fn wire(&self, root: Option<usize>, last: bool) -> (Arc<[u32]>, usize) {
        let count = self.nodes.count();
        let first = match root {
            Some(root) if last => self.nodes.node_of(root) + 1,
            _ => 0,
        };
        let ranks = (0..count)
            .map(|step| self.members[self.leader((first + step) % count, root)])
            .collect();
        (ranks, (self.node() + count - first % count) % count)
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
        assert_eq!(*place.wire(Some(3), false).0, [13, 11, 12]);
        assert_eq!(place.neighbours(3), (Some(0), Some(2)));
        assert_eq!(place.neighbours(1), (None, Some(2)));
        assert_eq!(place.neighbours(5), (Some(0), None));
        assert_eq!(*place.pair(0, 1, 3), [13, 11]);
        let (ranks, me) = place.wire(Some(3), true);
        assert_eq!((&*ranks, me), (&[11, 12, 13][..], 0));
        let (ranks, me) = place.wire(Some(4), true);
        assert_eq!((&*ranks, me), (&[12, 10, 14][..], 2));
    }
}
