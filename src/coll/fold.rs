// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reductions. Each rank combines what all contributed to its range of the vector, in the order of the ranks. Where it
//! can, it writes the result into the buffers that need it.

mod attach;
pub(super) mod fragment;
mod range;
mod spread;

use super::contribution::{Contribution, GIVEN, LoanRange, Readers, Scratch, StepContext, behind};
use super::exchange::{GivenPiece, give};
use super::lines::{self, Lines};
use super::member_buffer::REMEDY;
use super::push::{Promises, WRITTEN, reaches_all};
use super::select::{Algorithm, NodeScheme, share};
use super::state::{CommState, STEP_MAX, Step};
use super::{ElemType, Op};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::pool::MemoryKind;
use crate::peer::Peer;
use fragment::{Operands, combine_all};
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{Content, INLINE, View};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::Loan;
use std::iter;

/// A share of the result is combined, and stands in the buffer of its rank: [`WRITTEN`]; it stands in those of all
/// others, too.
const EVERYWHERE: u32 = WRITTEN + 1;

/// Where a member's contribution is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// It is this rank's own.
    Own,
    Inline,
    Slot,
    Buffer(RemoteRange),
    /// In a buffer that the kernel module attaches.
    Attached(RemoteRange),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoldState {
    /// Waits for the contributions to its range.
    Contributions,
    Range,
    /// Takes the others' ranges of the result.
    Spread,
    /// At a root that has helpers: waits for their ranges.
    Helped,
    /// In a tree: waits for the result.
    Result,
}

/// Members whose ranges of the result are not here yet.
#[derive(Default)]
struct Remaining {
    members: Vec<usize>,
    /// Bytes that this rank has taken of the first one's range.
    taken: usize,
}

/// A reduction under way.
pub(crate) struct Fold {
    pub(crate) op: Op,
    pub(crate) elem: ElemType,
    pub(crate) algorithm: Algorithm,
    pub(crate) send: LoanRange,
    /// Where the result goes, and the place of the range's first byte there.
    pub(crate) recv: Option<(Loan, usize)>,
    /// The range of the vector that this rank combines; empty: none.
    pub(crate) range: (usize, usize),
    /// Members below this place contribute to the range.
    pub(crate) upto: usize,
    /// Whether the vector lies where the result goes.
    pub(crate) in_place: bool,
    pub(crate) readers: Readers,
    /// Whether the range, which lies in the receive buffer, comes to its front at the end.
    pub(crate) to_front: bool,
    /// Who gets the result, if it is only one.
    pub(crate) root: Option<usize>,
    /// Whether all combine a range for the root.
    helps: bool,
    /// Members into whose buffers this rank writes its range of the result.
    targets: Vec<(usize, RemoteRange)>,
    state: FoldState,
    locations: Vec<Location>,
    /// Bytes of the range that are combined.
    folded: usize,
    /// What cannot be read in place, of the fragment under way: members done, and bytes of the next one.
    fetched: usize,
    remaining: Remaining,
    lines: Lines,
    /// What this rank's own line promises.
    promises: Promises,
}

impl Fold {
    pub(crate) fn new(op: Op, elem: ElemType, algorithm: Algorithm, send: LoanRange) -> Self {
        Self {
            op,
            elem,
            algorithm,
            send,
            recv: None,
            range: (0, 0),
            upto: 0,
            in_place: false,
            readers: Readers::Everyone,
            to_front: false,
            root: None,
            helps: false,
            targets: Vec::new(),
            state: FoldState::Contributions,
            locations: Vec::new(),
            folded: 0,
            fetched: 0,
            remaining: Remaining::default(),
            lines: Lines::default(),
            promises: Promises::default(),
        }
    }

    pub(crate) fn begin(&mut self, cx: &mut StepContext<'_>) -> Result<()> {
        let (engine, state, _, shared) = cx.parts();
        if self.algorithm == Algorithm::Tree && state.children().next().is_some() {
            // Combined with the children's first.
            return Ok(());
        }
        let split = self.algorithm == Algorithm::Split;
        let result = self.recv.map(|(loan, offset)| LoanRange {
            loan,
            offset,
            len: self.send.len,
        });
        let result = result.filter(|_| split || self.has_helpers());
        self.promises = Promises {
            open: result.is_some_and(|piece| engine.range_of(&piece).heap.is_some()),
            writes: self.has_helpers() && shared.blocking && reaches_all(engine, state),
            answers: shared.blocking && state.tuning.asks,
        };
        if self.has_helpers() {
            // The member that combines a range of it reads everyone's contribution.
            self.readers = Readers::Everyone;
        }
        shared.shares = split;
        let scheme = NodeScheme::Combine {
            algorithm: self.algorithm,
            in_pieces: false,
        };
        let given = GivenPiece {
            unread: 0..0,
            piece: self.send,
            is_replaced: self.is_replaced(),
            readers: self.readers,
            result,
            flags: self.promises.flags(),
        };
        give(cx, scheme, given)
    }

    /// Whether the result replaces bytes of this rank's vector that others read: they combine all of it themselves, at
    /// their own time. Such a vector fits into a slot.
    fn is_replaced(&self) -> bool {
        self.in_place
            && self.algorithm == Algorithm::Flat
            && self.readers != Readers::Nobody
            && self.recv.is_some()
            && self.range == (0, self.send.len)
    }

    pub(crate) fn step(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<Step> {
        if self.algorithm == Algorithm::Tree {
            return self.step_tree(cx);
        }
        let mut result = Step::Idle;
        loop {
            let before = self.state;
            let step = match before {
                FoldState::Contributions => self.await_contributions(cx)?,
                FoldState::Range => self.combine_range(cx, scratch)?,
                FoldState::Helped => self.await_helpers(cx),
                FoldState::Spread | FoldState::Result => self.spread(cx)?,
            };
            match step {
                Step::Idle => return Ok(result),
                // On to the next state.
                Step::Moved if self.state != before => result = Step::Moved,
                Step::Moved | Step::Done => return Ok(step),
            }
        }
    }

    /// Whether this rank combines anything.
    fn combines(&self) -> bool {
        self.range.0 < self.range.1 && self.upto > 0
    }

    /// Whether what this rank combines is a share of the result.
    fn shares_result(&self) -> bool {
        self.algorithm == Algorithm::Split || self.helps
    }

    /// Waits until it is known what this rank combines and where that is.
    fn await_contributions(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let (engine, state, seq, shared) = cx.parts();
        if !self.share_out(engine, state, seq, shared)? {
            return Ok(Step::Idle);
        }
        if !self.combines() {
            if !self.shares_result() {
                return Ok(Step::Done);
            }
        } else {
            if !self.find(engine, state, seq, shared)? {
                return Ok(Step::Idle);
            }
            self.find_targets(engine, state, seq, shared)?;
        }
        self.state = FoldState::Range;
        Ok(Step::Moved)
    }

    /// Combines fragments of the range, up to as many as one step may.
    fn combine_range(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<Step> {
        let mut bytes = 0;
        while self.folded < self.range.1 - self.range.0 && self.upto > 0 {
            let n = self.fragment(cx, scratch)?;
            bytes += n;
            match (n, bytes) {
                (0, 0) => return Ok(Step::Idle),
                (0, _) | (_, STEP_MAX..) => return Ok(Step::Moved),
                _ => {}
            }
        }
        scratch.give_back();
        if !self.shares_result() {
            return Ok(Step::Done);
        }
        self.hand_on(cx)
    }

    /// Says that this rank's share of the result is there, and turns to the others' shares.
    fn hand_on(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let (engine, state, seq, shared) = cx.parts();
        let everywhere = self.algorithm == Algorithm::Split && !self.targets.is_empty();
        let phase = if everywhere { EVERYWHERE } else { WRITTEN };
        state.advance(&engine.peers, seq, phase);
        if self.helps && self.root != Some(state.me) {
            return Ok(Step::Done);
        }
        self.remaining.members = behind(state.size(), state.me)
            .filter(|&place| {
                let (begin, end) = share(self.send.len, self.elem, state.size(), place);
                begin < end
            })
            .collect();
        // The result of a split reduction stands in the stage; a root's holds what it gave.
        if self.algorithm == Algorithm::Split
            && let (Some(temp), Some((loan, offset))) = (&shared.temp, self.recv)
        {
            let (begin, end) = self.range;
            let loans = &mut engine.core.loans;
            loans.write(loan, offset + begin, end - begin, |out| {
                copy_slices(Kernel::Memcpy, out, &temp[begin..end]);
            })?;
        }
        self.state = if self.helps {
            FoldState::Helped
        } else {
            FoldState::Spread
        };
        Ok(Step::Moved)
    }

    /// At a root: waits until its helpers have written their shares.
    fn await_helpers(&mut self, cx: &mut StepContext<'_>) -> Step {
        let (state, seq) = (&*cx.state, cx.seq);
        self.take_written(cx.tally, state, |place| state.lacks(place, seq, WRITTEN));
        if self.remaining.members.is_empty() {
            Step::Done
        } else {
            Step::Idle
        }
    }

    /// Finds out where all contributions are, once they are there.
    fn find(
        &mut self,
        engine: &Engine,
        state: &mut CommState,
        seq: u32,
        shared: &Contribution,
    ) -> Result<bool> {
        while self.locations.len() < self.upto {
            let place = self.locations.len();
            if place == state.me {
                self.locations.push(if shared.served[GIVEN].is_some() {
                    Location::Own
                } else if self.send.len <= INLINE {
                    Location::Inline
                } else {
                    Location::Slot
                });
                continue;
            }
            let Some(line) = self.lines.get_or_read(state, place, seq)? else {
                return Ok(false);
            };
            // No longer than line or slot: the bytes are taken by this rank's length, which is the same.
            let (location, len) = match line.content {
                Content::Inline(len) => (Location::Inline, len as u64),
                Content::Slot(len) => (Location::Slot, len as u64),
                Content::Nothing | Content::Message | Content::Pieces => (Location::Inline, 0),
                Content::Buffer => {
                    let range = lines::range(line.given);
                    (reach(engine, state, place, range), range.len)
                }
            };
            if len != self.send.len as u64 {
                return Err(mismatch(state, place, len, self.send.len));
            }
            self.locations.push(location);
        }
        Ok(true)
    }

    /// A short vector in a large group: up a tree, down by one line that all read.
    fn step_tree(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let mut result = Step::Idle;
        if self.state == FoldState::Contributions {
            if cx.state.own().phase(cx.seq) == 0 && !self.combine_children(cx)? {
                return Ok(Step::Idle);
            }
            (self.state, result) = (FoldState::Result, Step::Moved);
        }
        if self.take_tree_result(cx)? {
            result = Step::Done;
        }
        Ok(result)
    }

    /// Up the tree: publishes this rank's vector combined with its children's. `false`: not all of these are there.
    fn combine_children(&self, cx: &mut StepContext<'_>) -> Result<bool> {
        let StepContext {
            engine,
            state,
            seq,
            tally,
            ..
        } = cx;
        let (seq, len) = (*seq, self.send.len);
        if state.awaited_in_tree(seq).next().is_some() {
            return Ok(false);
        }
        state.need_slots(&engine.core.home)?;
        let Engine { core, peers, .. } = &mut **engine;
        let mut work = core.buffers.pool.take(3 * COLL_SLOT, MemoryKind::Private)?;
        let (out, work) = work.split_at_mut(COLL_SLOT);
        let out = &mut out[..len];
        let mut views = vec![Some(core.loans.view(
            self.send.loan,
            self.send.offset,
            len,
        )?)];
        for place in state.children() {
            views.push(Some(small(state, place, seq, len)?));
            tally.add(state.members[place], LayerId::CHUNKS, len);
        }
        let operands = Operands {
            op: &self.op,
            elem: self.elem,
            own: None,
            alias: false,
        };
        combine_all(&operands, out, &views, None, work);
        state.publish_short(peers, seq, out, || iter::once(0..len));
        Ok(true)
    }

    /// Down the tree: takes the result out of the line of the first member, if this rank needs it. `false`: it is not
    /// there yet.
    fn take_tree_result(&self, cx: &mut StepContext<'_>) -> Result<bool> {
        let Some((loan, to)) = self.recv else {
            return Ok(true);
        };
        let (state, len) = (&*cx.state, self.send.len);
        if state.awaited_in_tree(cx.seq).next().is_some() {
            return Ok(false);
        }
        let view = small(state, 0, cx.seq, len)?;
        cx.engine.core.loans.write(loan, to, len, |out| {
            view.copy_to(out, Kernel::Memcpy);
        })?;
        if state.me != 0 {
            cx.tally.add(state.members[0], LayerId::CHUNKS, len);
        }
        Ok(true)
    }

    /// What is left to do once nobody needs this rank's buffers.
    pub(crate) fn finish(&mut self, engine: &mut Engine) -> Result<()> {
        if let (true, Some((loan, to))) = (self.to_front, self.recv) {
            let (begin, end) = self.range;
            let len = end - begin;
            engine.core.loans.copy(loan, to + begin, loan, to, len)?;
        }
        Ok(())
    }
}

/// How the bytes of a member's buffer are combined: in place, if a layer maps them; asked once per collective.
fn reach(engine: &Engine, state: &CommState, place: usize, range: RemoteRange) -> Location {
    let peer = engine.peers[state.members[place] as usize].as_ref();
    let attaches = |peer: &Peer| {
        let first = range.part(0, range.len.min(1));
        peer.link.view(&first).is_none() && peer.link.attaches(&range, range.len)
    };
    match peer {
        Some(peer) if attaches(peer) => Location::Attached(range),
        _ => Location::Buffer(range),
    }
}

/// A short contribution of a member.
fn small(state: &CommState, place: usize, seq: u32, len: usize) -> Result<View<'_>> {
    let line = lines::read(state, place, seq)?;
    let there = match line.content {
        Content::Inline(there) | Content::Slot(there) => there as u64,
        Content::Nothing | Content::Buffer | Content::Message | Content::Pieces => line.given.len,
    };
    state.channel_ends[place]
        .bytes(seq, &line, 0, len)
        .filter(|_| there == len as u64)
        .ok_or_else(|| mismatch(state, place, there, len))
}

pub(super) fn mismatch(state: &CommState, place: usize, there: u64, len: usize) -> Error {
    Error::Collective {
        reason: format!(
            "rank {} gave a vector of {there} bytes where {len} were expected; {REMEDY}",
            state.members[place]
        ),
    }
}
