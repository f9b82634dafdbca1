// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank does of each fragment, as collectives of its node group and of the leaders.

use super::super::fold::fragment::{Operands, combine_all};
use super::super::select::levels::{Combining, combining, commutes};
use super::super::select::share;
use super::super::{ByteRange, Collective, ElemType, Op, Parts};
use super::fragments::Fragment;
use super::pack::{blocks, copy, of_group, packed, reorder};
use super::position::{Leaders, Neighbours, Position};
use crate::engine::Engine;
use crate::error::Result;
use crate::memory::pool::MemoryKind;
use onecopy_shm::coll::View;
use onecopy_shm::loan::{Loan, LoanRange};

/// What is combined.
pub(super) struct Vector {
    pub(super) elem: ElemType,
    pub(super) op: Op,
    pub(super) piece: LoanRange,
}

/// What a collective is made of: one for each scheme. See [`super::super::select::levels::Scheme`].
pub(super) enum Work {
    Meet,
    Move,
    /// As [`Self::Move`], from node to node.
    PassOn,
    Combine(Vector),
    All(Vector),
    Collect(Parts),
    ShareOut(Vector, Parts),
    /// Bytes of a part.
    Transpose(usize),
}

/// A collective to be started, and its buffers.
pub(super) struct StepCall {
    pub(super) what: Collective,
    pub(super) send: Option<LoanRange>,
    pub(super) recv: Option<LoanRange>,
    /// The two leaders that take part, if they are not those of all nodes.
    pub(super) pair: Option<Leaders>,
}

impl StepCall {
    fn new(what: Collective, send: Option<LoanRange>, recv: Option<LoanRange>) -> Self {
        Self {
            what,
            send,
            recv,
            pair: None,
        }
    }

    /// A message from one node to another, at one of its ends.
    fn message(place: &Position, from: usize, to: usize, load: &Load) -> Self {
        let root = load.fragment.root.unwrap_or(0);
        Self {
            pair: Some(place.pair(from, to, root)),
            ..Self::new(Collective::Bcast { root: 0 }, None, load.target())
        }
    }
}

/// A fragment with the buffers that it is moved between.
pub(super) struct Load {
    pub(super) fragment: Fragment,
    /// The buffers of the call.
    pub(super) send: Option<Loan>,
    pub(super) recv: Option<Loan>,
    /// Temporary ones.
    pub(super) rooms: Vec<Loan>,
}

impl Load {
    fn room(&self, index: usize, len: usize) -> Option<LoanRange> {
        let loan = self.rooms.get(index);
        loan.map(|&loan| LoanRange::first(loan, len))
    }

    /// Where the fragment goes.
    fn target(&self) -> Option<LoanRange> {
        let Fragment { to, len, .. } = self.fragment;
        self.recv.map(|recv| recv.range(to, len))
    }

    /// What this rank gives, which without a send buffer stands in the receive buffer at `offset`.
    fn given(&self, offset: usize, len: usize) -> Option<LoanRange> {
        match self.send {
            Some(loan) => Some(LoanRange::first(loan, len)),
            None => self.recv.map(|recv| recv.range(offset, len)),
        }
    }
}

fn same(a: LoanRange, b: LoanRange) -> bool {
    (a.loan, a.offset) == (b.loan, b.offset)
}

impl Work {
    /// Whether its fragments go up.
    pub(super) fn goes_up(&self) -> bool {
        !matches!(self, Self::Move | Self::PassOn)
    }

    /// Whether its fragments come down.
    pub(super) fn comes_down(&self) -> bool {
        !matches!(self, Self::Combine(_))
    }

    /// Whether what came by the first step of the leaders is what goes down.
    pub(super) fn is_there_at_once(&self) -> bool {
        matches!(self, Self::Move | Self::PassOn)
    }

    fn vector(&self) -> Option<&Vector> {
        match self {
            Self::Combine(vector) | Self::All(vector) | Self::ShareOut(vector, _) => Some(vector),
            _ => None,
        }
    }

    /// How leaders combine a fragment.
    fn combining(&self, place: &Position, len: usize) -> Combining {
        let for_all = !matches!(self, Self::Combine(_));
        combining(len, place.nodes.count(), for_all)
    }

    /// Whether the root's node stands last on the wire: the prefix then ends where it is needed.
    pub(super) fn root_is_last(&self, place: &Position, len: usize) -> bool {
        let chain = self.combining(place, len) == Combining::Chain;
        matches!(self, Self::Combine(vector) if chain && commutes(&vector.op))
    }

    /// Bytes of the temporary buffers that a fragment needs on this rank.
    pub(super) fn rooms(&self, place: &Position, fragment: &Fragment) -> Vec<usize> {
        let (leads, len) = (place.leads(fragment.root), fragment.len);
        let count = place.nodes.count();
        let crossing = match self.combining(place, len) {
            Combining::Flat => len * count,
            Combining::Split => {
                let elem = self.vector().map_or(ElemType::U8, |vector| vector.elem);
                // The first share is the largest.
                shares(elem, len, count)[0].len * count
            }
            Combining::Chain => 0,
        };
        match self {
            Self::Meet | Self::Move | Self::PassOn => Vec::new(),
            Self::Collect(_) => vec![len],
            _ if !leads => Vec::new(),
            Self::All(_) => vec![0, crossing],
            Self::Combine(_) if fragment.root == Some(place.me) => vec![0, crossing],
            // What leaves at once by the wire needs no room here.
            Self::Combine(_) => vec![if place.is_alone() { 0 } else { len }],
            Self::ShareOut(..) => vec![len, crossing],
            Self::Transpose(_) => vec![len * place.group().len(); 3],
        }
    }

    /// Where a leader has what its node has come to, or where the result goes.
    fn result(&self, place: &Position, load: &Load) -> Option<LoanRange> {
        match self {
            Self::Combine(_) if load.fragment.root != Some(place.me) => {
                load.room(0, load.fragment.len)
            }
            Self::ShareOut(..) => load.room(0, load.fragment.len),
            _ => load.target(),
        }
    }

    /// This rank's own part of a vector.
    fn own(vector: &Vector, fragment: &Fragment) -> LoanRange {
        vector.piece.part(fragment.from, fragment.len)
    }

    /// The way up: what the node group does first. A member that is alone does the same to its own.
    pub(super) fn up(&self, place: &Position, load: &Load) -> StepCall {
        let Fragment { root, len, .. } = load.fragment;
        let (leads, leader) = (place.leads(root), place.leader_within(root));
        match self {
            Self::Combine(vector) | Self::All(vector) | Self::ShareOut(vector, _) => {
                let own = Self::own(vector, &load.fragment);
                let to = self.result(place, load).filter(|_| leads);
                let send = to.is_none_or(|to| !same(own, to)).then_some(own);
                let what = Collective::Reduce {
                    root: leader,
                    elem: vector.elem,
                    op: vector.op.clone(),
                };
                StepCall::new(what, send, to)
            }
            Self::Collect(parts) => {
                let own = parts.of(place.me);
                let what = Collective::Gather {
                    root: leader,
                    parts: Parts::Listed(of_group(parts, place, place.node()).into()),
                };
                let block = blocks(parts, place)[place.node()];
                let room = load.room(0, len).filter(|_| leads);
                let to = room.map(|room| room.part(block.offset, block.len));
                StepCall::new(what, load.given(own.offset, own.len), to)
            }
            Self::Transpose(_) => {
                let what = Collective::Gather {
                    root: leader,
                    parts: Parts::Equal(len),
                };
                let all = load.room(0, len * place.group().len()).filter(|_| leads);
                StepCall::new(what, load.given(0, len), all)
            }
            Self::Meet | Self::Move | Self::PassOn => {
                StepCall::new(Collective::Barrier, None, None)
            }
        }
    }

    /// What one that is alone has to do instead of the way up.
    pub(super) fn up_alone(
        &self,
        engine: &mut Engine,
        place: &Position,
        load: &Load,
    ) -> Result<()> {
        if let Self::Collect(_) | Self::Transpose(_) = self
            && let StepCall {
                send: Some(from),
                recv: Some(to),
                ..
            } = self.up(place, load)
        {
            copy(engine, from, to, from.len)?;
        }
        Ok(())
    }

    /// The first step of the leaders.
    pub(super) fn across(
        &self,
        engine: &mut Engine,
        place: &Position,
        load: &Load,
    ) -> Result<StepCall> {
        let Fragment { root, len, .. } = load.fragment;
        let node = place.node();
        let root_node = root.map_or(0, |root| place.nodes.node_of(root));
        Ok(match self {
            Self::Meet => StepCall::new(Collective::Barrier, None, None),
            Self::Move => StepCall::new(Collective::Bcast { root: root_node }, None, load.target()),
            Self::PassOn => match place.neighbours(root.unwrap_or(0)) {
                Neighbours {
                    before: Some(before),
                    ..
                } => StepCall::message(place, before, node, load),
                Neighbours { before: None, next } => {
                    StepCall::message(place, node, next.unwrap_or(node), load)
                }
            },
            Self::Collect(parts) => {
                let parts = Parts::Listed(blocks(parts, place).into());
                StepCall::new(Collective::Allgather { parts }, None, load.room(0, len))
            }
            Self::Transpose(bytes) => Self::transpose(engine, place, load, *bytes)?,
            Self::Combine(vector) | Self::All(vector) | Self::ShareOut(vector, _) => {
                self.combine_across(place, load, vector)
            }
        })
    }

    /// How leaders exchange parts of `bytes` for all ranks of their nodes, brought into their order first.
    fn transpose(
        engine: &mut Engine,
        place: &Position,
        load: &Load,
        bytes: usize,
    ) -> Result<StepCall> {
        let (len, count) = (load.fragment.len, place.nodes.count());
        let group = place.group().len();
        let all = len * group;
        let (from, to) = (load.room(0, all), load.room(1, all));
        reorder(engine, place, from, to, bytes, false)?;
        let between = |other: usize| group * place.nodes.members_of(other).len() * bytes;
        let parts = Parts::Listed(packed((0..count).map(between)).into());
        let (send, recv) = (parts.clone(), parts);
        let what = Collective::Alltoall { send, recv };
        Ok(StepCall::new(what, load.room(1, all), load.room(2, all)))
    }

    /// How leaders combine what their nodes have come to.
    fn combine_across(&self, place: &Position, load: &Load, vector: &Vector) -> StepCall {
        let Fragment { root, len, .. } = load.fragment;
        let (node, count) = (place.node(), place.nodes.count());
        let root_node = root.map_or(0, |root| place.nodes.node_of(root));
        let result = self.result(place, load);
        let own = Self::own(vector, &load.fragment);
        let given = if place.is_alone() { Some(own) } else { result };
        let has_root = matches!(self, Self::Combine(_));
        let gets = !has_root || root == Some(place.me);
        match self.combining(place, len) {
            Combining::Flat if has_root => {
                let what = Collective::Gather {
                    root: root_node,
                    parts: Parts::Equal(len),
                };
                StepCall::new(what, given, load.room(1, len * count).filter(|_| gets))
            }
            Combining::Flat => {
                let parts = Parts::Equal(len);
                let room = load.room(1, len * count);
                StepCall::new(Collective::Allgather { parts }, given, room)
            }
            Combining::Split => {
                let shares = shares(vector.elem, len, count);
                let bytes = shares[node].len;
                let what = Collective::Alltoall {
                    send: Parts::Listed(shares.into()),
                    recv: Parts::Listed(packed((0..count).map(|_| bytes)).into()),
                };
                StepCall::new(what, given, load.room(1, bytes * count))
            }
            Combining::Chain => {
                let last = self.root_is_last(place, len);
                let what = Collective::Reduce {
                    root: if last { count - 1 } else { root_node },
                    elem: vector.elem,
                    op: vector.op.clone(),
                };
                let to = result.filter(|_| gets);
                let moves = given.zip(to).is_none_or(|(from, to)| !same(from, to));
                StepCall::new(what, given.filter(|_| moves), to)
            }
        }
    }

    /// What a leader does with what came by the first step. It may ask for a second one.
    pub(super) fn turn(
        &self,
        engine: &mut Engine,
        place: &Position,
        load: &Load,
    ) -> Result<Option<StepCall>> {
        let Fragment { root, len, .. } = load.fragment;
        let count = place.nodes.count();
        if let Self::Transpose(bytes) = self {
            let all = len * place.group().len();
            let (from, to) = (load.room(2, all), load.room(0, all));
            reorder(engine, place, from, to, *bytes, true)?;
        }
        if let Self::PassOn = self {
            let Neighbours { before, next } = place.neighbours(root.unwrap_or(0));
            let next = next.filter(|_| before.is_some());
            return Ok(next.map(|next| StepCall::message(place, place.node(), next, load)));
        }
        let Some(vector) = self.vector() else {
            return Ok(None);
        };
        let Some(result) = self.result(place, load) else {
            return Ok(None);
        };
        let gets = !matches!(self, Self::Combine(_)) || root == Some(place.me);
        match self.combining(place, len) {
            Combining::Flat if gets => {
                combine(engine, vector, load.room(1, len * count), result, count)?;
                Ok(None)
            }
            Combining::Split => {
                let shares = shares(vector.elem, len, count);
                let own = shares[place.node()];
                let room = load.room(1, own.len * count);
                let to = result.part(own.offset, own.len);
                combine(engine, vector, room, to, count)?;
                let parts = Parts::Listed(shares.into());
                let what = Collective::Allgather { parts };
                Ok(Some(StepCall::new(what, None, Some(result))))
            }
            Combining::Flat | Combining::Chain => Ok(None),
        }
    }

    /// The way down: what the node group does last.
    pub(super) fn down(&self, place: &Position, load: &Load) -> StepCall {
        let Fragment { root, len, .. } = load.fragment;
        let (leads, leader) = (place.leads(root), place.leader_within(root));
        match self {
            Self::Meet => StepCall::new(Collective::Barrier, None, None),
            Self::Collect(_) => {
                StepCall::new(Collective::Bcast { root: leader }, None, load.room(0, len))
            }
            Self::ShareOut(_, parts) => {
                let list = place.group().iter().map(|&member| parts.of(member));
                let what = Collective::Scatter {
                    root: leader,
                    parts: Parts::Listed(list.collect()),
                };
                let all = self.result(place, load).filter(|_| leads);
                let len = parts.of(place.me).len;
                let to = load.recv.map(|loan| LoanRange::first(loan, len));
                StepCall::new(what, all, to)
            }
            Self::Transpose(_) => {
                let what = Collective::Scatter {
                    root: leader,
                    parts: Parts::Equal(len),
                };
                let all = load.room(0, len * place.group().len()).filter(|_| leads);
                let to = load.recv.map(|loan| LoanRange::first(loan, len));
                StepCall::new(what, all, to)
            }
            Self::Move | Self::PassOn | Self::All(_) | Self::Combine(_) => {
                StepCall::new(Collective::Bcast { root: leader }, None, load.target())
            }
        }
    }

    /// What is left to do when a fragment has come down, or where it has nowhere to go.
    pub(super) fn finish(&self, engine: &mut Engine, place: &Position, load: &Load) -> Result<()> {
        match self {
            Self::Collect(parts) => {
                let (Some(room), Some(recv)) = (load.room(0, load.fragment.len), load.recv) else {
                    return Ok(());
                };
                for (node, block) in blocks(parts, place).into_iter().enumerate() {
                    let members = place.nodes.members_of(node);
                    for (&member, part) in members.iter().zip(of_group(parts, place, node)) {
                        let from = room.part(block.offset + part.offset, part.len);
                        let to = recv.range(parts.of(member).offset, part.len);
                        copy(engine, from, to, part.len)?;
                    }
                }
                Ok(())
            }
            Self::ShareOut(_, parts) if place.is_alone() => {
                let StepCall { send, recv, .. } = self.down(place, load);
                let ByteRange { offset, len } = parts.of(place.me);
                match (send, recv) {
                    (Some(from), Some(to)) => copy(engine, from.part(offset, len), to, len),
                    _ => Ok(()),
                }
            }
            Self::Transpose(_) if place.is_alone() => match self.down(place, load) {
                StepCall {
                    send: Some(from),
                    recv: Some(to),
                    ..
                } => copy(engine, from, to, to.len),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// The share of each node of a vector.
fn shares(elem: ElemType, len: usize, nodes: usize) -> Vec<ByteRange> {
    let share = |node| share(len, elem, nodes, node);
    (0..nodes).map(share).collect()
}

/// Combines `count` vectors that stand one behind the other in `room`.
fn combine(
    engine: &mut Engine,
    vector: &Vector,
    room: Option<LoanRange>,
    to: LoanRange,
    count: usize,
) -> Result<()> {
    let (Some(room), len) = (room, to.len) else {
        return Ok(());
    };
    if len == 0 {
        return Ok(());
    }
    let core = &mut engine.core;
    let mut work = match vector.op {
        Op::User(_) => Some(core.buffers.pool.take(2 * len, MemoryKind::Private)?),
        Op::Predefined(_) => None,
    };
    let operands = Operands {
        op: &vector.op,
        elem: vector.elem,
        own: None,
        alias: false,
    };
    core.loans.write_viewing(to, room, |out, all| {
        let views: Vec<Option<View<'_>>> =
            (0..count).map(|index| all.part(index * len, len)).collect();
        let work = work.as_deref_mut().unwrap_or_default();
        combine_all(&operands, out, &views, None, work);
    })?;
    Ok(())
}
