// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree of ranks of a large group: who is below whom, and short vectors that are combined along it. A rank combines
//! its vector with those of its children and publishes the result. All read what the first rank has published.

use super::ByteRange;
use super::context::{StepContext, StepParts};
use super::exchange::give_short;
use super::fold::fragment::{Operands, combine_all};
use super::fold::{FoldPlan, mismatch};
use super::lines;
use super::select::FLAT;
use super::state::{CommState, Step};
use crate::error::Result;
use crate::memory::pool::MemoryKind;
use onecopy_btl::LayerId;
use onecopy_shm::coll::{Content, View};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::LoanRange;
use std::iter;

/// Children of an inner node of a tree: few enough that their lines come in little more than one hand-off. Chosen by
/// magnitude: a line that is one of many costs a tenth of a hand-off.
const ARITY: usize = 4;

impl CommState {
    /// The members whose contributions this rank combines with its own in a tree. A node stands for a run of places
    /// that begins with its own, so that the order of the places is kept. No tree: none.
    pub(crate) fn children(&self) -> impl Iterator<Item = usize> + use<> {
        let (mut begin, mut end) = (0, self.size());
        let mut runs = [(0, 0); ARITY];
        if end > FLAT {
            loop {
                // The node at `begin` stands for begin..end; the rest is dealt to its children in runs.
                let rest = end - begin - 1;
                let mut next = begin + 1;
                for (index, run) in runs.iter_mut().enumerate() {
                    let len = rest / ARITY + usize::from(index < rest % ARITY);
                    *run = (next, next + len);
                    next += len;
                }
                if begin == self.me {
                    break;
                }
                let Some(&(from, to)) = runs.iter().find(|run| (run.0..run.1).contains(&self.me))
                else {
                    runs = [(0, 0); ARITY];
                    break;
                };
                (begin, end) = (from, to);
            }
        }
        runs.into_iter()
            .filter(|run| run.0 < run.1)
            .map(|run| run.0)
    }

    /// The members on whom a collective along the tree waits, of those that have not spoken. They are the children
    /// until this rank has spoken, then the first member.
    pub(crate) fn awaited_in_tree(&self, seq: u32) -> impl Iterator<Item = usize> + use<'_> {
        let up = self.own().phase(seq) == 0;
        let children = up.then(|| self.children()).into_iter().flatten();
        let needed = children.chain((!up).then_some(0));
        needed.filter(move |&place| self.lacks(place, seq, 1))
    }
}

/// A reduction along the tree under way. How far it has come, this rank's line tells.
pub(crate) struct TreeFold(FoldPlan);

impl TreeFold {
    pub(crate) fn new(plan: FoldPlan) -> Self {
        Self(plan)
    }

    /// Publishes this rank's vector, unless that is combined with its children's first.
    pub(crate) fn begin(&self, cx: &mut StepContext<'_>) -> Result<()> {
        if cx.state.children().next().is_some() {
            return Ok(());
        }
        give_short(cx, self.0.send)
    }

    pub(crate) fn step(&self, cx: &mut StepContext<'_>) -> Result<Step> {
        let mut result = Step::Idle;
        if cx.state.own().phase(cx.seq) == 0 {
            if !self.combine_children(cx)? {
                return Ok(Step::Idle);
            }
            result = Step::Moved;
        }
        if self.take_result(cx)? {
            result = Step::Done;
        }
        Ok(result)
    }

    /// See [`super::op::Operation::awaits`].
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        // Without a buffer for the result it is over when this rank has spoken.
        let mut awaited = state.awaited_in_tree(seq);
        awaited.any(|awaited| awaited == place)
            && (self.0.recv.is_some() || state.own().phase(seq) == 0)
    }

    /// Up the tree: publishes this rank's vector combined with its children's. `false`: not all of these are there.
    fn combine_children(&self, cx: &mut StepContext<'_>) -> Result<bool> {
        let StepParts {
            memory,
            state,
            seq,
            tally,
            ..
        } = cx.parts();
        let len = self.0.send.len;
        if state.awaited_in_tree(seq).next().is_some() {
            return Ok(false);
        }
        state.need_slots(memory.home())?;
        let mut work = memory.pool().take(3 * COLL_SLOT, MemoryKind::Private)?;
        let (out, work) = work.split_at_mut(COLL_SLOT);
        let out = &mut out[..len];
        let mut views = vec![Some(memory.loans().view(self.0.send)?)];
        for place in state.children() {
            views.push(Some(small(state, place, seq, len)?));
            tally.add(state.members[place], LayerId::CHUNKS, len);
        }
        let operands = Operands {
            op: &self.0.op,
            elem: self.0.elem,
            own: None,
            alias: false,
        };
        combine_all(&operands, out, &views, None, work);
        state.publish_short(seq, out, || iter::once(0..len));
        Ok(true)
    }

    /// Down the tree: takes the result out of the line of the first member, if this rank needs it. `false`: it is not
    /// there yet.
    fn take_result(&self, cx: &mut StepContext<'_>) -> Result<bool> {
        let Some(recv) = self.0.recv else {
            return Ok(true);
        };
        let (state, len) = (&*cx.state, self.0.send.len);
        if state.awaited_in_tree(cx.seq).next().is_some() {
            return Ok(false);
        }
        let view = small(state, 0, cx.seq, len)?;
        cx.memory
            .loans()
            .write(LoanRange::first(recv, len), |out| {
                view.copy_to(out, Kernel::Memcpy);
            })?;
        if state.me != 0 {
            cx.tally.add(state.members[0], LayerId::CHUNKS, len);
        }
        Ok(true)
    }
}

/// A short contribution of a member.
fn small(state: &CommState, place: usize, seq: u32, len: usize) -> Result<View<'_>> {
    let line = lines::read(state, place, seq)?;
    let there = match line.content {
        Content::Inline(there) | Content::Slot(there) | Content::Spare(_, there) => there as u64,
        Content::Nothing | Content::Buffer | Content::Message | Content::Pieces => line.given.len,
    };
    state
        .in_channel(place, seq, &line, ByteRange::first(len))
        .filter(|_| there == len as u64)
        .ok_or_else(|| mismatch(state, place, there, len))
}
