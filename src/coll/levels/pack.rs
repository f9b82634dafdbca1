// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of several members as one block: where each stands, and how they come there.

use super::super::{ByteRange, Parts};
use super::position::Position;
use crate::engine::Engine;
use crate::error::Result;
use onecopy_shm::loan::LoanRange;

/// Sums of lengths: where each begins, one behind the other.
pub(super) fn packed(lengths: impl Iterator<Item = usize>) -> Vec<ByteRange> {
    lengths
        .scan(0, |end, len| {
            let offset = *end;
            *end += len;
            Some(ByteRange { offset, len })
        })
        .collect()
}

/// For each node the bytes of its members' parts, one node behind the other.
pub(super) fn blocks(parts: &Parts, place: &Position) -> Vec<ByteRange> {
    let share = |node| {
        let members = place.nodes.members_of(node).iter();
        members.map(|&member| parts.of(member).len).sum()
    };
    packed((0..place.nodes.count()).map(share))
}

/// The parts of the members of a node, one behind the other.
pub(super) fn of_group(parts: &Parts, place: &Position, node: usize) -> Vec<ByteRange> {
    let members = place.nodes.members_of(node).iter();
    packed(members.map(|&member| parts.of(member).len))
}

/// Copies between buffers of this rank.
pub(super) fn copy(engine: &mut Engine, from: LoanRange, to: LoanRange, len: usize) -> Result<()> {
    let loans = &mut engine.core.loans;
    Ok(loans.copy(from.part(0, len), to.loan, to.offset)?)
}

/// At a leader: copies parts of `bytes` bytes, one for each pair of a member of its node and a member of all. They go
/// from the order of members to that of nodes; `back`: the other way.
pub(super) fn reorder(
    engine: &mut Engine,
    place: &Position,
    from: Option<LoanRange>,
    to: Option<LoanRange>,
    bytes: usize,
    back: bool,
) -> Result<()> {
    let (ranks, group) = (place.nodes.ranks(), place.group().len());
    let (Some(from), Some(to)) = (from, to) else {
        return Ok(());
    };
    let mut offset = 0;
    for node in 0..place.nodes.count() {
        let others = place.nodes.members_of(node);
        // What leaves is sorted by the sender first, and so is what comes.
        let pairs = if back {
            let pair = |&other: &usize| (0..group).map(move |member| (member, other));
            others.iter().flat_map(pair).collect::<Vec<_>>()
        } else {
            let pair = |member| others.iter().map(move |&other| (member, other));
            (0..group).flat_map(pair).collect()
        };
        for (member, other) in pairs {
            let by_member = (member * ranks + other) * bytes;
            let (out, into) = if back {
                (offset, by_member)
            } else {
                (by_member, offset)
            };
            copy(engine, from.part(out, bytes), to.part(into, bytes), bytes)?;
            offset += bytes;
        }
    }
    Ok(())
}
