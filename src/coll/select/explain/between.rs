// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each collective goes between nodes.

use super::super::levels::{
    Combining, Scheme, bytes, combining, fragment, passes_on, scheme, why, why_not,
};
use super::super::{NodeLimits, NodeScheme, node_scheme};
use super::{Choice, Decision, Table, name};
use crate::coll::nodes::MembersByNode;
use crate::coll::{Collective, ElemType, Op, Parts, PredefinedOp};
use onecopy_obs::seeds::{PACKED_MAX, WIRE_FLAT_MAX};
use onecopy_shm::coll::INLINE;
use onecopy_shm::layout::COLL_SLOT;

const NAMES: [&str; 11] = [
    "barrier",
    "bcast",
    "gather",
    "scatter",
    "allgather",
    "alltoall",
    "reduce",
    "allreduce",
    "reduce_scatter",
    "scan",
    "exscan",
];

/// The collective of that name to which each of `ranks` ranks contributes `len` bytes.
fn collective(title: &str, len: usize, ranks: usize) -> Collective {
    let (root, elem) = (0, ElemType::F64);
    let op = || Op::from(PredefinedOp::Sum);
    let parts = Parts::Equal(len);
    let dealt = || Parts::Equal(len / ranks.max(1));
    match title {
        "barrier" => Collective::Barrier,
        "bcast" => Collective::Bcast { root },
        "gather" => Collective::Gather { root, parts },
        "scatter" => Collective::Scatter { root, parts },
        "allgather" => Collective::Allgather { parts },
        "alltoall" => Collective::Alltoall {
            send: dealt(),
            recv: dealt(),
        },
        "reduce" => Collective::Reduce {
            root,
            elem,
            op: op(),
        },
        "allreduce" => Collective::Allreduce { elem, op: op() },
        "reduce_scatter" => Collective::ReduceScatter {
            parts: dealt(),
            elem,
            op: op(),
        },
        "scan" => Collective::Scan { elem, op: op() },
        _ => Collective::Exscan { elem, op: op() },
    }
}

/// What leaders do with a fragment.
fn between_leaders(
    what: &Collective,
    scheme: Scheme,
    len: usize,
    nodes: &MembersByNode,
) -> &'static str {
    if scheme == Scheme::Move && passes_on(what, len, nodes.count()) {
        return "; leaders pass it on: nobody sends it twice";
    }
    let len = len.min(fragment(ElemType::F64.size()));
    let for_all = match scheme {
        Scheme::All | Scheme::ShareOut => true,
        Scheme::Combine => false,
        _ => return "",
    };
    match combining(len, nodes.count(), for_all) {
        Combining::Flat => "; leaders send whole vectors: one wire step",
        Combining::Chain => "; leaders pass on a prefix: fewest bytes",
        Combining::Split => "; leaders combine shares, then exchange them: fewest bytes",
    }
}

fn decide(title: &str, len: usize, nodes: &MembersByNode, table: &Table) -> Decision {
    let what = collective(title, len, nodes.ranks());
    let scheme = bytes(&what, nodes.ranks(), len).and_then(|len| scheme(&what, len, nodes));
    let Some(scheme) = scheme else {
        return (("-", "-"), "messages", why_not(&what, nodes).to_owned());
    };
    let reason = format!(
        "{}{}",
        why(scheme),
        between_leaders(&what, scheme, len, nodes)
    );
    if nodes.largest() == 1 {
        return (("-", "-"), "leaders", reason);
    }
    // On each node it goes in fragments, a combination by its own algorithm.
    let piece = len.min(fragment(1));
    let limits = NodeLimits {
        slot: table.limits.slot,
        relay_min: usize::MAX,
    };
    let on_node = match node_scheme(&what, piece, nodes.largest(), &limits) {
        NodeScheme::Combine { .. } => NodeScheme::Exchange {
            pair: None,
            one_reader: false,
            halves: false,
        },
        scheme => scheme,
    };
    let [mapped, plain] = [table.limits.maps, false]
        .map(|mapped| name(on_node.placement(piece, mapped, &table.limits)));
    ((mapped, plain), "levels", reason)
}

/// The choices of all collectives. `table`: what holds on each node.
pub(super) fn choices(nodes: &MembersByNode, table: &Table) -> Vec<Choice> {
    let (ranks, others) = (nodes.ranks().max(1), nodes.count().saturating_sub(1).max(1));
    // Decisions change at these sizes only.
    let mut edges = vec![
        0,
        INLINE + 1,
        COLL_SLOT + 1,
        table.limits.slot + 1,
        table.temp_max + 1,
        PACKED_MAX + 1,
        PACKED_MAX / ranks + 1,
        (PACKED_MAX / nodes.largest().max(1) / ranks + 1) * ranks,
        WIRE_FLAT_MAX / others + 1,
        fragment(1) + 1,
    ];
    edges.sort_unstable();
    edges.dedup();
    let mut choices: Vec<Choice> = Vec::new();
    for title in NAMES {
        let edges = if title == "barrier" {
            &edges[..1]
        } else {
            &edges
        };
        for &from in edges {
            let (placement, algorithm, why) = decide(title, from, nodes, table);
            if let Some(last) = choices.last_mut()
                && last.collective == title
            {
                if (last.placement, last.algorithm, &last.why) == (placement, algorithm, &why) {
                    continue;
                }
                last.to = Some(from as u64 - 1);
            }
            choices.push(Choice {
                collective: title,
                from: from as u64,
                to: None,
                placement,
                algorithm,
                why,
            });
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_btl::cost::Costs;
    use onecopy_obs::Knobs;

    #[test]
    fn lines_cover_all_sizes_and_say_what_is_decided() {
        let nodes = MembersByNode::blocks(8, 2);
        let (knobs, costs) = (Knobs::default(), Costs::default());
        let table = Table::empty(&knobs, &costs, nodes.largest(), false);
        let choices = choices(&nodes, &table);
        for title in NAMES {
            let own: Vec<_> = choices.iter().filter(|l| l.collective == title).collect();
            assert_eq!(own.first().map(|line| line.from), Some(0), "{title}");
            assert_eq!(own.last().map(|line| line.to), Some(None), "{title}");
            let joined = |pair: &[&Choice]| pair[0].to == pair[1].from.checked_sub(1);
            assert!(own.windows(2).all(joined), "{title}");
            for len in [0, 8, 1000, 5000, 9000, 70_000, 200_000, 5 << 20] {
                // A barrier has no bytes.
                let len = if title == "barrier" { 0 } else { len / 64 * 64 };
                let explained = own
                    .iter()
                    .find(|line| line.from <= len && line.to.is_none_or(|to| len <= to));
                let (placement, algorithm, why) = decide(title, len as usize, &nodes, &table);
                let explained =
                    explained.map(|line| (line.placement, line.algorithm, line.why.clone()));
                assert_eq!(
                    explained,
                    Some((placement, algorithm, why)),
                    "{title} {len}"
                );
            }
        }
        let algorithm = |title| {
            choices
                .iter()
                .find(|l| l.collective == title)
                .map(|l| l.algorithm)
        };
        assert_eq!(algorithm("allreduce"), Some("levels"));
        assert_eq!(algorithm("gather"), Some("messages"));
    }
}
