// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which rank is on which node.
//!
//! Nodes are numbered in the order of their lowest ranks, which are their *hosts*: node 0 is that of rank 0.

use std::collections::HashMap;
use std::hash::Hash;

/// The nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// By rank.
    node_of: Vec<u32>,
    /// By node.
    hosts: Vec<usize>,
}

impl Nodes {
    /// Ranks with the same key are on the same node.
    pub(crate) fn by_keys<K: Eq + Hash>(keys: impl IntoIterator<Item = K>) -> Self {
        let mut known = HashMap::new();
        let mut this = Self {
            node_of: Vec::new(),
            hosts: Vec::new(),
        };
        for (rank, key) in keys.into_iter().enumerate() {
            let next = this.hosts.len();
            let node = *known.entry(key).or_insert(next);
            if node == next {
                this.hosts.push(rank);
            }
            this.node_of.push(u32::try_from(node).unwrap_or(u32::MAX));
        }
        this
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.hosts.len()
    }

    /// Ranks of the job.
    pub(crate) fn size(&self) -> usize {
        self.node_of.len()
    }

    /// The node of a rank; none if there is no such rank.
    pub(crate) fn node(&self, rank: usize) -> Option<u32> {
        self.node_of.get(rank).copied()
    }

    /// The lowest rank of a node.
    pub(crate) fn host(&self, node: u32) -> Option<usize> {
        self.hosts.get(node as usize).copied()
    }

    /// The node whose host this rank is.
    pub(crate) fn hosted_by(&self, rank: usize) -> Option<u32> {
        let node = self.node(rank)?;
        (self.host(node) == Some(rank)).then_some(node)
    }

    /// The ranks of a node, ascending.
    pub(crate) fn ranks(&self, node: u32) -> impl Iterator<Item = usize> {
        let node_of = self.node_of.iter().enumerate();
        node_of.filter_map(move |(rank, &its)| (its == node).then_some(rank))
    }

    /// The ranks of all other nodes, ascending.
    pub(crate) fn beyond(&self, node: u32) -> impl Iterator<Item = usize> {
        let node_of = self.node_of.iter().enumerate();
        node_of.filter_map(move |(rank, &its)| (its != node).then_some(rank))
    }

    /// As one word. Ranks are mostly dealt out in blocks or in turn: `3*8` is node 3 eight times, `0+4` is nodes 0 to
    /// 3.
    pub(crate) fn encode(&self) -> String {
        let mut runs: Vec<String> = Vec::new();
        let mut rest = &self.node_of[..];
        while let Some(&first) = rest.first() {
            let same = rest.iter().take_while(|&&node| node == first).count();
            let rising = rest
                .iter()
                .zip(first..)
                .take_while(|(node, next)| *node == next);
            let rising = rising.count();
            let (mark, len) = if rising > same {
                ('+', rising)
            } else {
                ('*', same)
            };
            runs.push(format!("{first}{mark}{len}"));
            rest = &rest[len..];
        }
        runs.join(",")
    }

    /// The nodes of a job of `size` ranks in this word.
    pub(crate) fn decode(text: &str, size: usize) -> Option<Self> {
        let mut node_of: Vec<u32> = Vec::new();
        for run in text.split(',') {
            let separator = run.find(['*', '+'])?;
            let (first, len) = (
                run[..separator].parse::<u32>().ok()?,
                run[separator + 1..].parse::<u32>().ok()?,
            );
            if len == 0 || len as usize > size - node_of.len() {
                return None;
            }
            let step = u32::from(run.as_bytes()[separator] == b'+');
            first.checked_add(len)?;
            node_of.extend((0..len).map(|index| first + step * index));
        }
        let this = Self::by_keys(node_of.iter().copied());
        // Numbered in order, or it is none of ours.
        (this.node_of == node_of && node_of.len() == size).then_some(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_and_turns_are_short_words() {
        let blocks = Nodes::by_keys((0..4096).map(|rank| rank / 64));
        let turns = Nodes::by_keys((0..4096).map(|rank| rank % 64));
        for nodes in [&blocks, &turns] {
            assert_eq!((nodes.count(), nodes.size()), (64, 4096));
            let word = nodes.encode();
            assert!(word.len() < 512, "{} bytes", word.len());
            assert_eq!(Nodes::decode(&word, 4096).as_ref(), Some(nodes));
        }
        assert_eq!(blocks.host(3), Some(192));
        assert_eq!(blocks.hosted_by(192), Some(3));
        assert_eq!(blocks.hosted_by(193), None);
        assert_eq!(turns.ranks(1).take(2).collect::<Vec<_>>(), [1, 65]);
        assert_eq!(turns.beyond(0).count(), 63 * 64);
        assert_eq!(turns.node(4096), None);
    }

    #[test]
    fn other_words_mean_nothing() {
        for word in [
            "",
            "0",
            "0*",
            "0*3",
            "0*1",
            "1*2",
            "0*0",
            "0+2,5*0",
            "0*2,",
            "0*-2",
            "0*1,2*1",
            "0+4294967295",
        ] {
            assert_eq!(Nodes::decode(word, 2), None, "{word}");
        }
        assert!(Nodes::decode("0*1,1*1", 2).is_some() && Nodes::decode("0+2", 2).is_some());
    }

    proptest! {
        #[test]
        fn each_distribution_comes_back(keys in proptest::collection::vec(0_u8..5, 1..40)) {
            let nodes = Nodes::by_keys(&keys);
            prop_assert_eq!(Nodes::decode(&nodes.encode(), keys.len()), Some(nodes));
        }

        #[test]
        fn noise_never_panics(text in "[0-9*+,]{0,30}", size in 0_usize..50) {
            let _ = Nodes::decode(&text, size);
        }
    }
}
