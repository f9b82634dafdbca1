// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each collective is done at each size, and why: the runtime's own decisions, made for every size.

mod between;

use super::{
    Algorithm, FLAT, NodeLimits, NodeScheme, Pair, Placement, PlacementLimits, contribution,
    node_scheme, relay_min, slot_for, temp_max, why, why_placed,
};
use crate::coll::group::CHANNEL_RANKS;
use crate::coll::nodes::MembersByNode;
use crate::coll::observed;
use crate::coll::pieces::kept::LONGEST as BOUNCE_LONGEST;
use crate::coll::{Collective, ElemType, Op, Parts, PredefinedOp};
use crate::memory::channels;
use onecopy_btl::LayerId;
use onecopy_btl::cost::Costs;
use onecopy_btl::registry::{LayerSet, Power};
use onecopy_obs::{Knobs, seeds};
use onecopy_shm::coll::INLINE;
use onecopy_shm::layout::{COLL_SLOT, COLL_SLOT_LONG};

/// What is chosen for a range of sizes: one row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The collective's name.
    pub collective: &'static str,
    /// The smallest payload that this holds for.
    pub from: u64,
    /// The largest; none: no end.
    pub to: Option<u64>,
    /// Where a contribution stands, in memory from `alloc` and in other memory.
    pub placement: (&'static str, &'static str),
    /// How contributions are combined, or that they are only moved.
    pub algorithm: &'static str,
    /// Why.
    pub why: String,
}

/// The table, and what holds for all of it.
#[derive(Debug, Clone)]
pub struct Table {
    /// Ranks of the communicator.
    pub ranks: usize,
    /// Nodes that they are on.
    pub nodes: usize,
    /// Channels that each rank has; none: collectives go by messages.
    pub channels: u32,
    /// Up to this size a temporary copy is made of memory that peers cannot map, unless it goes as a message.
    pub temp_max: usize,
    /// From this size on receivers of a broadcast take shares of it from each other; none: never.
    pub relay_min: Option<usize>,
    /// The choices, by collective and size.
    pub choices: Vec<Choice>,
    /// What decides where contributions stand.
    limits: PlacementLimits,
    /// Whether members learn which of two ways is faster.
    learns: bool,
}

/// What is decided for one size: where a contribution stands in memory from `alloc` and in other memory, how
/// contributions are combined, and why.
type Decision = ((&'static str, &'static str), &'static str, String);

fn collectives() -> [(&'static str, Collective); 10] {
    let (root, elem) = (0, ElemType::F64);
    let op = || Op::from(PredefinedOp::Sum);
    let parts = || Parts::Equal(0);
    let (send, recv) = (parts(), parts());
    [
        ("barrier", Collective::Barrier),
        ("bcast", Collective::Bcast { root }),
        (
            "gather",
            Collective::Gather {
                root,
                parts: parts(),
            },
        ),
        ("allgather", Collective::Allgather { parts: parts() }),
        ("scatter, alltoall", Collective::Alltoall { send, recv }),
        (
            "reduce",
            Collective::Reduce {
                root,
                elem,
                op: op(),
            },
        ),
        ("allreduce", Collective::Allreduce { elem, op: op() }),
        (
            "reduce_scatter",
            Collective::ReduceScatter {
                parts: parts(),
                elem,
                op: op(),
            },
        ),
        ("scan", Collective::Scan { elem, op: op() }),
        ("exscan", Collective::Exscan { elem, op: op() }),
    ]
}

fn name(placement: Placement) -> &'static str {
    match placement {
        Placement::Line => "line",
        Placement::Slot => "slot",
        Placement::Buffer => "buffer",
        Placement::Copy => "copy",
        Placement::Pieces => "pieces",
        Placement::Message => "message",
    }
}

/// Whether the user permits some layer that reads by a call of the kernel.
fn calls_are_allowed(knobs: &Knobs) -> bool {
    let mut calls = LayerSet::ALL.by(Power::Copy);
    calls.any(|layer| knobs.layers.allows(layer.name()))
}

/// Whether two ranks compare calls of the kernel with the other ways. They do so where the user permits both, and has
/// decided for none of the layers where calls begin. Which of these a pair has is not known here.
fn learns(knobs: &Knobs) -> bool {
    let mut calls = LayerSet::ALL.by(Power::Copy);
    let is_open = |layer: LayerId| !knobs.layers.allows(layer.name()) || layer.min(knobs).is_none();
    calls_are_allowed(knobs) && knobs.layers.allows(LayerId::CHUNKS.name()) && calls.all(is_open)
}

impl Table {
    /// The table for a communicator of `ranks` ranks in a job of as many; `oversubscribed`: they outnumber
    /// processors.
    #[must_use]
    pub fn new(knobs: &Knobs, costs: &Costs, ranks: usize, oversubscribed: bool) -> Self {
        let mut table = Self::empty(knobs, costs, ranks, oversubscribed);
        for (title, collective) in collectives() {
            table.add(title, &collective);
        }
        table
    }

    /// The table for a communicator of a job on several nodes; `oversubscribed`: on one of them
    /// ranks outnumber processors.
    #[must_use]
    pub fn between(
        knobs: &Knobs,
        costs: &Costs,
        nodes: &MembersByNode,
        oversubscribed: bool,
    ) -> Self {
        let mut table = Self::empty(knobs, costs, nodes.largest(), oversubscribed);
        if table.channels > 0 {
            // A rank has room for all ranks of the job.
            table.channels = channels(knobs, nodes.ranks());
        }
        table.limits.slot = slot_for(nodes.ranks());
        if table.channels == 0 && nodes.largest() > 1 {
            for (title, collective) in collectives() {
                table.add(title, &collective);
            }
        } else {
            table.choices = between::choices(nodes, &table);
        }
        (table.ranks, table.nodes) = (nodes.ranks(), nodes.count());
        table
    }

    fn empty(knobs: &Knobs, costs: &Costs, ranks: usize, oversubscribed: bool) -> Self {
        let relay_min = Some(relay_min(knobs, oversubscribed)).filter(|&min| min < usize::MAX);
        let limits = PlacementLimits::new(knobs, costs, ranks);
        Self {
            ranks,
            nodes: 1,
            channels: if ranks > CHANNEL_RANKS {
                0
            } else {
                channels(knobs, ranks)
            },
            temp_max: temp_max(costs),
            learns: ranks == 2 && learns(knobs),
            relay_min,
            choices: Vec::new(),
            limits: PlacementLimits {
                over_calls: limits.over_calls || !calls_are_allowed(knobs),
                ..limits
            },
        }
    }

    /// How `len` bytes are done on one node, and how many of them a member gives.
    fn scheme(&self, collective: &Collective, len: usize) -> (NodeScheme, usize) {
        let mut collective = collective.clone();
        if let Collective::ReduceScatter { parts, .. } = &mut collective {
            *parts = Parts::Equal(len.div_ceil(self.ranks));
        }
        let limits = NodeLimits {
            slot: self.limits.slot,
            relay_min: self.relay_min.unwrap_or(usize::MAX),
        };
        let given = contribution(&collective, len, self.ranks);
        (node_scheme(&collective, len, self.ranks, &limits), given)
    }

    fn add(&mut self, title: &'static str, collective: &Collective) {
        // Decisions change at these sizes only.
        let edges = [
            0,
            INLINE + 1,
            COLL_SLOT + 1,
            self.limits.slot + 1,
            COLL_SLOT_LONG + 1,
            self.temp_max + 1,
            BOUNCE_LONGEST + 1,
            seeds::HALVES_MIN,
            seeds::BOTH_COPY_MIN,
            seeds::HELPED_MIN,
            observed::MIN,
        ];
        let mut edges: Vec<usize> = edges.into_iter().chain(self.relay_min).collect();
        if matches!(collective, Collective::ReduceScatter { .. }) && self.ranks == 2 {
            // Each gives a half.
            let twice = edges.iter().map(|&edge| 2 * edge.saturating_sub(1) + 1);
            edges = edges
                .iter()
                .copied()
                .chain(twice.collect::<Vec<_>>())
                .collect();
        }
        edges.sort_unstable();
        edges.dedup();
        if matches!(collective, Collective::Barrier) {
            edges.truncate(1);
        }
        let lasts = edges.iter().skip(1).map(|&next| Some(next as u64 - 1));
        for (&from, to) in edges.iter().zip(lasts.chain([None])) {
            let (placement, algorithm, why) = self.decide(collective, from);
            if let Some(last) = self.choices.last_mut()
                && (last.collective, last.algorithm, last.placement)
                    == (title, algorithm, placement)
                && last.why == why
            {
                last.to = to;
                continue;
            }
            self.choices.push(Choice {
                collective: title,
                from: from as u64,
                to,
                placement,
                algorithm,
                why,
            });
        }
    }

    fn decide(&self, collective: &Collective, len: usize) -> Decision {
        if self.channels == 0 {
            let reason = "no channel is left for the communicator";
            return (("-", "-"), "messages", reason.to_owned());
        }
        let (scheme, given) = self.scheme(collective, len);
        let mapped = scheme.placement(given, self.limits.maps, &self.limits);
        let has_rivals = observed::has_rivals(given, &self.limits);
        let learned = self.learns && has_rivals && scheme.has_two_ways(&self.limits);
        let unlearned = scheme.placement(given, false, &self.limits);
        let plain = if learned && !self.limits.over_calls {
            // What is learned begins with calls of the kernel.
            scheme.placement_to_read(given, false, &self.limits)
        } else {
            unlearned
        };
        let placed = why_placed(mapped);
        let places = if mapped == plain {
            placed.to_owned()
        } else {
            format!("alloc: {placed}; other: {}", why_placed(plain))
        };
        let mut reason = match (self.how(scheme), scheme) {
            (Some(how), NodeScheme::Meet | NodeScheme::Relay) => how.to_owned(),
            (Some(how), _) => format!("{how}; {places}"),
            (None, _) => places,
        };
        if learned {
            reason
                .push_str("; other, in calls that wait: by the kernel or not, as times were seen");
        }
        let in_pieces = plain == Placement::Pieces;
        let pair = match scheme {
            NodeScheme::Exchange { pair, .. } if in_pieces => pair,
            _ => None,
        };
        if pair == Some(Pair::OneGives) {
            reason.push_str("; other: as a message if a rank gives twice in a row");
        }
        if plain != unlearned || pair.is_some() {
            let moves = matches!(scheme, NodeScheme::Exchange { .. });
            reason.push_str("; other, in calls that do not wait: ");
            reason.push_str(match unlearned {
                Placement::Pieces if !moves => "in pieces",
                _ => "as a message",
            });
        }
        ((name(mapped), name(plain)), label(scheme), reason)
    }

    /// Why the members do it so. None: they do it in the usual way, in which each member takes the data that is meant
    /// for it.
    fn how(&self, scheme: NodeScheme) -> Option<&'static str> {
        Some(match scheme {
            NodeScheme::Meet if self.ranks > FLAT => {
                "up a tree of lines, down by one that all poll"
            }
            NodeScheme::Meet => "everyone polls everyone's line",
            NodeScheme::Exchange { halves: true, .. } => "where peers map it, both copy a half",
            NodeScheme::Exchange { .. } => return None,
            NodeScheme::Relay => {
                "alloc: read in place where peers map it. Other: each takes a share from the root and the rest from the others, \
                 because copies out of one address space hinder each other"
            }
            NodeScheme::Combine { algorithm, .. } => why(algorithm),
        })
    }
}

/// The name of what is done.
fn label(scheme: NodeScheme) -> &'static str {
    match scheme {
        NodeScheme::Meet => "flags",
        NodeScheme::Exchange { halves: true, .. } => "halves",
        NodeScheme::Exchange { .. } => "move",
        NodeScheme::Relay => "shares",
        NodeScheme::Combine { algorithm, .. } => match algorithm {
            Algorithm::Flat => "flat",
            Algorithm::Helped => "helped",
            Algorithm::Tree => "tree",
            Algorithm::Split => "split",
            Algorithm::Stream => "stream",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_the_runtime_does() {
        let table = Table::new(&Knobs::default(), &Costs::default(), 4, false);
        let choice = |title: &str, len: u64| {
            let mut choices = table
                .choices
                .iter()
                .filter(|choice| choice.collective == title);
            choices
                .find(|line| line.from <= len && line.to.is_none_or(|to| len <= to))
                .map(|line| (line.algorithm, line.placement))
        };
        assert_eq!(choice("allreduce", 8), Some(("flat", ("line", "line"))));
        assert_eq!(
            choice("allreduce", 1 << 20),
            Some(("split", ("buffer", "buffer")))
        );
        assert_eq!(
            choice("reduce", (128 << 10) - 1).map(|line| line.0),
            Some("flat")
        );
        assert_eq!(
            choice("reduce", 128 << 10).map(|line| line.0),
            Some("helped")
        );
        assert_eq!(choice("bcast", 4097), Some(("move", ("buffer", "slot"))));
        let beyond = choice("bcast", (16 << 10) + 1);
        assert_eq!(beyond, Some(("move", ("buffer", "buffer"))));
        assert_eq!(
            choice("bcast", 1 << 20),
            Some(("shares", ("buffer", "buffer")))
        );
        assert_eq!(
            choice("scan", 1 << 20),
            Some(("stream", ("buffer", "buffer")))
        );
        assert!(table.channels > 0 && table.choices.iter().all(|choice| !choice.why.is_empty()));
        let pair = Table::new(&Knobs::default(), &Costs::default(), 2, false);
        let choice_of = |table: &Table, title: &str, len: u64| {
            let covers = |choice: &&Choice| {
                let to = choice.to.unwrap_or(u64::MAX);
                choice.collective == title && (choice.from..=to).contains(&len)
            };
            table.choices.iter().find(covers).cloned()
        };
        let placed = |title: &str, len| choice_of(&pair, title, len).map(|choice| choice.placement);
        assert_eq!(placed("allreduce", 16 << 10), Some(("buffer", "slot")));
        assert_eq!(placed("allreduce", 20 << 10), Some(("buffer", "pieces")));
        // The root alone combines, and reads by the kernel where that is cheaper.
        let calls = Knobs::from_iter([("ONECOPY_LAYERS", "self,heap,cico")]);
        let no_calls = Table::new(&calls.expect("a knob").0, &Costs::default(), 2, false);
        let placed_without =
            |title: &str, len| choice_of(&no_calls, title, len).map(|choice| choice.placement);
        assert_eq!(
            placed_without("reduce", 20 << 10),
            Some(("buffer", "pieces"))
        );
        assert_ne!(placed("reduce", 20 << 10), Some(("buffer", "pieces")));
        // Each gives a half.
        assert_eq!(placed("reduce_scatter", 96), Some(("line", "line")));
        assert_eq!(placed("reduce_scatter", 97), Some(("slot", "slot")));
        let [fits, longer] = [32 << 10, (32 << 10) + 2];
        assert_eq!(placed("reduce_scatter", fits), Some(("buffer", "slot")));
        let longer = placed_without("reduce_scatter", longer);
        assert_eq!(longer, Some(("buffer", "pieces")));
        assert_eq!(
            placed("exscan", 20 << 10).map(|(alloc, _)| alloc),
            Some("buffer")
        );
        let learned = |table: &Table, title: &str, len| {
            let choice = choice_of(table, title, len).expect("a choice");
            choice.why.contains("as times were seen")
        };
        for (title, len, expected) in [
            ("allreduce", 64 << 10, true),
            ("allreduce", (64 << 10) - 1, false),
            ("bcast", 1 << 20, true),
            ("scan", 1 << 20, false),
        ] {
            assert_eq!(learned(&pair, title, len), expected, "{title}, {len}");
        }
        let decided = Knobs::from_iter([("ONECOPY_CMA_MIN", "32K")])
            .expect("a knob")
            .0;
        let decided = Table::new(&decided, &Costs::default(), 2, false);
        assert!(!learned(&decided, "allreduce", 1 << 20));
        assert_eq!(placed("scan", 1 << 20), Some(("buffer", "buffer")));
        assert_eq!(placed("allgather", 16 << 10), Some(("buffer", "slot")));
        let none = Knobs::from_iter([("ONECOPY_COLL_POOL", "0")])
            .expect("a knob")
            .0;
        let table = Table::new(&none, &Costs::default(), 4, false);
        assert!(
            table
                .choices
                .iter()
                .all(|choice| choice.algorithm == "messages")
        );
    }
}
