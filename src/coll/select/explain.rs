// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each collective is done at each size, and why: the runtime's own decisions, made for every size.

mod between;

use super::{
    Algorithm, Placement, algorithm, by_halves, by_message, chunks_are_cheaper, has_one_reader,
    may_go_in_pieces, placement, relay_min, relays, temp_max, why, why_placed,
};
use crate::coll::group::CHANNEL_RANKS;
use crate::coll::nodes::MembersByNode;
use crate::coll::state::FLAT;
use crate::coll::{Collective, ElemType, Op, Parts, PredefinedOp};
use crate::memory::channels;
use onecopy_btl::LayerId;
use onecopy_btl::cost::Costs;
use onecopy_btl::registry::{LayerSet, Power};
use onecopy_obs::{Knobs, seeds};
use onecopy_shm::coll::INLINE;
use onecopy_shm::layout::{COLL_SLOT, COLL_SLOT_LONG, Geometry};

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
    /// Bytes of a slot.
    slot: usize,
    /// Whether memory from `alloc` can be mapped.
    heap: bool,
    /// Whether messages are better than reads by the kernel, or there are none.
    over_calls: bool,
}

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
    }
}

/// Whether the user permits some layer that reads by a call of the kernel.
fn calls_are_allowed(knobs: &Knobs) -> bool {
    let mut calls = LayerSet::ALL.by(Power::Copy);
    calls.any(|layer| knobs.layers.allows(layer.name()))
}

impl Table {
    /// The table for a communicator of `ranks` ranks in a job of as many; `crowded`: those are more than processors.
    #[must_use]
    pub fn new(knobs: &Knobs, costs: &Costs, ranks: usize, crowded: bool) -> Self {
        let mut table = Self::empty(knobs, costs, ranks, crowded);
        for (title, collective) in collectives() {
            table.add(title, &collective);
        }
        table
    }

    /// The table for a communicator of a job on several nodes; `crowded`: one of them has more ranks than processors.
    #[must_use]
    pub fn between(knobs: &Knobs, costs: &Costs, nodes: &MembersByNode, crowded: bool) -> Self {
        let mut table = Self::empty(knobs, costs, nodes.largest(), crowded);
        if table.channels > 0 {
            // A rank has room for all ranks of the job.
            table.channels = channels(knobs, nodes.ranks());
        }
        table.slot = Geometry::slot_for(nodes.ranks());
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

    fn empty(knobs: &Knobs, costs: &Costs, ranks: usize, crowded: bool) -> Self {
        let relay_min = Some(relay_min(knobs, crowded)).filter(|&min| min < usize::MAX);
        Self {
            ranks,
            nodes: 1,
            channels: if ranks > CHANNEL_RANKS {
                0
            } else {
                channels(knobs, ranks)
            },
            temp_max: temp_max(costs),
            relay_min,
            choices: Vec::new(),
            slot: Geometry::slot_for(ranks),
            heap: knobs.layers.allows(LayerId::MAP.name()),
            over_calls: chunks_are_cheaper(costs) || !calls_are_allowed(knobs),
        }
    }

    fn add(&mut self, title: &'static str, collective: &Collective) {
        // Decisions change at these sizes only.
        let mut edges = vec![
            0,
            INLINE + 1,
            COLL_SLOT + 1,
            self.slot + 1,
            COLL_SLOT_LONG + 1,
            self.temp_max + 1,
        ];
        if by_halves(collective, seeds::HALVES_MIN, self.ranks) {
            edges.push(seeds::HALVES_MIN);
        }
        if has_one_reader(collective, self.ranks) {
            edges.push(seeds::BOTH_COPY_MIN);
        }
        if matches!(collective, Collective::Reduce { .. }) {
            edges.push(seeds::HELPED_MIN);
        }
        let relay_min = self
            .relay_min
            .filter(|&min| relays(collective, min, self.ranks, min));
        edges.extend(relay_min);
        edges.sort_unstable();
        if matches!(collective, Collective::Barrier) {
            edges.truncate(1);
        }
        edges.dedup();
        let lasts = edges.iter().skip(1).map(|&next| Some(next as u64 - 1));
        for (&from, to) in edges.iter().zip(lasts.chain([None])) {
            let (placement, algorithm, why) = self.decide(collective, from);
            if let Some(last) = self.choices.last_mut()
                && (last.collective, last.algorithm, last.placement)
                    == (title, algorithm, placement)
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

    fn decide(
        &self,
        collective: &Collective,
        len: usize,
    ) -> ((&'static str, &'static str), &'static str, String) {
        if self.channels == 0 {
            let reason = "no channel is left for the communicator";
            return (("-", "-"), "messages", reason.to_owned());
        }
        if matches!(collective, Collective::Barrier) {
            let flat = "everyone polls everyone's line";
            let tree = "up a tree of lines, down by one that all poll";
            let reason = if self.ranks > FLAT { tree } else { flat };
            return (("line", "line"), "flags", reason.to_owned());
        }
        if len > COLL_SLOT && has_one_reader(collective, self.ranks) {
            let halves = by_halves(collective, len, self.ranks);
            let label = if halves { "halves" } else { "move" };
            let alloc = if halves {
                "both copy a half"
            } else {
                "read in place"
            };
            let (plain, other) = if by_message(len, self.slot, true, self.over_calls) {
                ("message", "as a message, see 'onecopy info protocols'")
            } else {
                let limit = if self.heap { self.temp_max } else { 0 };
                let placed = placement(len, false, self.slot, limit);
                (name(placed), why_placed(placed))
            };
            let mapped = if self.heap { "buffer" } else { plain };
            let reason = format!("alloc: {alloc}; other: {other}");
            return ((mapped, plain), label, reason);
        }
        if self
            .relay_min
            .is_some_and(|min| relays(collective, len, self.ranks, min))
        {
            let reason = "alloc: read in place where peers map it. Other: each takes a share from the root and the rest from the others, \
                          because copies out of one address space hinder each other";
            return (("buffer", "buffer"), "shares", reason.to_owned());
        }
        let chosen = algorithm(collective, len, self.ranks);
        let label = match chosen {
            None => "move",
            Some(Algorithm::Flat) => "flat",
            Some(Algorithm::Helped) => "helped",
            Some(Algorithm::Tree) => "tree",
            Some(Algorithm::Split) => "split",
            Some(Algorithm::Stream) => {
                return (
                    ("buffer", "buffer"),
                    "stream",
                    why(Algorithm::Stream).to_owned(),
                );
            }
        };
        let limit = if self.heap { self.temp_max } else { 0 };
        // A share of the result is left beside the vector, for which a slot has no room.
        let slot = match chosen {
            Some(Algorithm::Split) => COLL_SLOT,
            _ => self.slot,
        };
        let in_pieces = self.heap && chosen.is_some() && may_go_in_pieces(len, self.ranks);
        let (mapped, plain) = (
            placement(len, self.heap, slot, limit),
            if in_pieces {
                Placement::Pieces
            } else {
                placement(len, false, slot, limit)
            },
        );
        let place = if mapped == plain {
            why_placed(plain).to_owned()
        } else {
            format!(
                "alloc: {}; other: {}",
                why_placed(mapped),
                why_placed(plain)
            )
        };
        let first = chosen.map(|algorithm| format!("{}; ", why(algorithm)));
        let reason = first.unwrap_or_default() + &place;
        ((name(mapped), name(plain)), label, reason)
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
        let placed = |title: &str, len: u64| {
            let covers = |choice: &&Choice| {
                let to = choice.to.unwrap_or(u64::MAX);
                choice.collective == title && (choice.from..=to).contains(&len)
            };
            pair.choices
                .iter()
                .find(covers)
                .map(|choice| choice.placement)
        };
        assert_eq!(placed("allreduce", 16 << 10), Some(("buffer", "slot")));
        for reduction in ["reduce", "allreduce", "reduce_scatter"] {
            let long = placed(reduction, 20 << 10);
            assert_eq!(long, Some(("buffer", "pieces")), "{reduction}");
        }
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
