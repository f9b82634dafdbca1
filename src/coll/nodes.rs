// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the members of a communicator are spread over nodes. All members know it alike.

/// The name by which `onecopy info collectives` knows it.
pub use MembersByNode as Nodes;

/// The nodes of a communicator, counted in the order of their first members. Members are named by their places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembersByNode {
    by_place: Vec<usize>,
    members: Vec<Vec<usize>>,
}

impl MembersByNode {
    /// From the node of each member, by place.
    #[must_use]
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Self {
        let (mut names, mut by_place, mut members) =
            (Vec::new(), Vec::new(), Vec::<Vec<usize>>::new());
        for (place, name) in nodes.into_iter().enumerate() {
            let node = names.iter().position(|&other| other == name);
            let node = node.unwrap_or_else(|| {
                names.push(name);
                members.push(Vec::new());
                names.len() - 1
            });
            by_place.push(node);
            members[node].push(place);
        }
        Self { by_place, members }
    }

    /// `ranks` ranks dealt to `nodes` nodes in blocks, as evenly as possible.
    #[must_use]
    pub fn blocks(ranks: usize, nodes: usize) -> Self {
        let nodes = nodes.clamp(1, ranks.max(1));
        Self::of((0..ranks).map(|rank| (rank * nodes / ranks) as u32))
    }

    /// How many nodes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// How many members there are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.by_place.len()
    }

    /// The node of a place.
    #[must_use]
    pub fn node_of(&self, place: usize) -> usize {
        self.by_place[place]
    }

    /// The places on a node, in order.
    #[must_use]
    pub fn members_of(&self, node: usize) -> &[usize] {
        &self.members[node]
    }

    /// All places, one of each node after the other.
    #[must_use]
    pub fn in_turn(&self) -> Vec<usize> {
        let turn = |turn: usize| {
            self.members
                .iter()
                .filter_map(move |places| places.get(turn))
        };
        (0..self.largest()).flat_map(turn).copied().collect()
    }

    /// Members on the node that has most of them.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.members.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether the members of each node stand side by side.
    #[must_use]
    pub fn in_runs(&self) -> bool {
        let changes = self
            .by_place
            .windows(2)
            .filter(|pair| pair[0] != pair[1])
            .count();
        changes < self.count().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_node_may_stand_side_by_side_or_not() {
        let blocks = MembersByNode::of([7, 7, 3, 3]);
        assert_eq!((blocks.count(), blocks.largest()), (2, 2));
        assert!(blocks.in_runs());
        let turns = MembersByNode::of([7, 3, 7]);
        assert_eq!(turns.members_of(0), [0, 2]);
        assert_eq!(turns.node_of(1), 1);
        assert!(!turns.in_runs());
        assert_eq!(
            MembersByNode::blocks(5, 2),
            MembersByNode::of([0, 0, 0, 1, 1])
        );
        assert_eq!(MembersByNode::blocks(2, 4).count(), 2);
        assert!(MembersByNode::of([]).in_runs());
        assert_eq!(MembersByNode::of([0, 0, 0, 1]).in_turn(), [0, 3, 1, 2]);
    }
}
