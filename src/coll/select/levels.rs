// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a collective goes between nodes, by what all members know: their nodes and the sizes.
//!
//! A step over the wire costs a latency, then its bytes; beside that a step on a node is nearly free. So what counts is
//! how many wire steps follow one another, and how many bytes the busiest node sends.

use super::super::nodes::MembersByNode;
use super::super::{Collective, Op, Parts};
use onecopy_obs::seeds;

/// The scheme by which a collective goes by two levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Members of each node meet, then the leaders, then the members again.
    Meet,
    /// A root's bytes across, and down on each node at the same time.
    Move,
    /// Combined on each node, then across at the root.
    Combine,
    /// Combined on each node, then across, then spread on each node.
    All,
    /// Collected on each node, exchanged as one block for each, and spread.
    Collect,
    /// Combined as a whole like [`Self::All`]; each member is given its part.
    ShareOut,
    /// Collected on each node, sorted by the nodes that they are for, exchanged, and given out.
    Transpose,
}

/// How leaders combine what their nodes have come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combining {
    /// Each member that needs the result gets all vectors: one wire step.
    Flat,
    /// A prefix goes from leader to leader, piece by piece: fewest bytes to one root.
    Chain,
    /// Each leader combines a share, then all exchange theirs: fewest bytes where all need the result.
    Split,
}

/// Whether operands may change places.
#[must_use]
pub fn commutes(op: &Op) -> bool {
    matches!(op, Op::Predefined(_))
}

/// Which bytes decide how a collective goes: all parts of an allgather, a rank's parts of an alltoall, else the payload
/// or the vector. None: the members do not know alike.
#[must_use]
pub fn bytes(collective: &Collective, ranks: usize, payload: usize) -> Option<usize> {
    let sum = |parts: &Parts| (0..ranks).map(|place| parts.of(place).len).sum();
    match collective {
        Collective::Barrier => Some(0),
        Collective::Allgather { parts } => Some(sum(parts)),
        Collective::Alltoall {
            send: Parts::Equal(part),
            recv: Parts::Equal(same),
        } if part == same => Some(part * ranks),
        Collective::Bcast { .. }
        | Collective::Reduce { .. }
        | Collective::Allreduce { .. }
        | Collective::ReduceScatter { .. } => Some(payload),
        _ => None,
    }
}

/// How a collective goes by two levels; none: it goes by messages from member to member. `len` as of [`bytes`].
#[must_use]
pub fn scheme(collective: &Collective, len: usize, nodes: &MembersByNode) -> Option<Scheme> {
    // Where every member is alone on its node, only combining gains by leaders.
    let grouped = nodes.largest() > 1;
    let packed = len <= seeds::PACKED_MAX;
    let ordered = |op: &Op| commutes(op) || nodes.in_runs();
    match collective {
        Collective::Barrier if grouped => Some(Scheme::Meet),
        Collective::Bcast { .. } if grouped => Some(Scheme::Move),
        Collective::Allgather { .. } if grouped && packed => Some(Scheme::Collect),
        Collective::Allgather { .. } if grouped => Some(Scheme::Move),
        Collective::Alltoall { .. } if grouped && nodes.largest() * len <= seeds::PACKED_MAX => {
            Some(Scheme::Transpose)
        }
        Collective::Reduce { op, .. } if ordered(op) => Some(Scheme::Combine),
        Collective::Allreduce { op, .. } if ordered(op) => Some(Scheme::All),
        Collective::ReduceScatter { op, .. } if ordered(op) && packed => Some(Scheme::ShareOut),
        Collective::ReduceScatter { op, .. } if ordered(op) && grouped => Some(Scheme::Combine),
        _ => None,
    }
}

/// How leaders of `nodes` nodes combine vectors of `len` bytes, for all of them or for one.
#[must_use]
pub fn combining(len: usize, nodes: usize, for_all: bool) -> Combining {
    let others = nodes.saturating_sub(1);
    if others <= 1 || len * others <= seeds::WIRE_FLAT_MAX {
        Combining::Flat
    } else if for_all {
        Combining::Split
    } else {
        Combining::Chain
    }
}

/// Whether a leader passes a broadcast of `len` bytes on to the next node, so that nobody sends it twice. Worth it
/// where the fragments keep several leaders busy at a time.
#[must_use]
pub fn passes_on(collective: &Collective, len: usize, nodes: usize) -> bool {
    nodes > 2 && len > fragment(1) && matches!(collective, Collective::Bcast { .. })
}

/// Bytes of a fragment of elements of `size` bytes.
#[must_use]
pub fn fragment(size: usize) -> usize {
    let size = size.max(1);
    (seeds::WIRE_FRAGMENT / size * size).max(size)
}

/// Why a collective goes by this scheme.
#[must_use]
pub fn why(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Meet => "two meetings in shared memory and one message to each other node",
        Scheme::Move => {
            "each byte crosses to each node once, in fragments that are spread while the next one crosses"
        }
        Scheme::Combine => {
            "each node sends one vector, in fragments that are combined while others cross"
        }
        Scheme::All => {
            "each node sends one vector, in fragments that are combined and spread while others cross"
        }
        Scheme::Collect => "short: one block for each pair of nodes, not of ranks",
        Scheme::ShareOut => "short: combined as a whole, which saves wire steps",
        Scheme::Transpose => "short: one block for each pair of nodes, not of ranks",
    }
}

/// Why a collective goes from member to member.
#[must_use]
pub fn why_not(collective: &Collective, nodes: &MembersByNode) -> &'static str {
    match collective {
        Collective::Gather { .. } | Collective::Scatter { .. } | Collective::Alltoall { .. } => {
            "each byte crosses the wire once in any case, and goes where it belongs without a copy"
        }
        Collective::Scan { .. } | Collective::Exscan { .. } => {
            "a prefix goes from rank to rank, piece by piece; over the wire only from node to node"
        }
        _ if nodes.largest() <= 1 => "every rank is alone on its node",
        _ => "the operator may not commute, and the ranks of a node do not stand side by side",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coll::{ElemType, PredefinedOp};

    #[test]
    fn operands_that_may_not_change_places_do_not() {
        let elem = ElemType::F64;
        let own = || Op::user(|left, right| right.copy_from_slice(left));
        let sum = || Op::from(PredefinedOp::Sum);
        let (runs, turns) = (MembersByNode::blocks(4, 2), MembersByNode::of([0, 1, 0, 1]));
        let scheme_of = |op, nodes| scheme(&Collective::Allreduce { elem, op }, 8, nodes);
        assert_eq!(scheme_of(own(), &runs), Some(Scheme::All));
        assert_eq!(scheme_of(own(), &turns), None);
        assert_eq!(scheme_of(sum(), &turns), Some(Scheme::All));
        let scan = Collective::Scan { elem, op: sum() };
        assert_eq!(bytes(&scan, 4, 8), None);
    }

    #[test]
    fn fragments_are_whole_elements() {
        for size in [1, 3, 12, 16, 2048] {
            assert_eq!(fragment(size) % size, 0);
            assert!(fragment(size) > 0);
        }
    }
}
