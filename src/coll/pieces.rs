// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reductions of two ranks, each of which gives more than a slot has room for. A rank gives bytes that the other one
//! cannot map [piece by piece](transfer). The other rank combines each piece while the next one is written. Each rank
//! combines all that it needs itself. As many bytes cross as if each combined a half for both, and nobody waits for a
//! result. Where calls of the kernel are cheaper, the other rank reads by one what it needs at once.
//!
//! Each rank chooses by its own vector; its line says which it is. Only where neither gives pieces do both go on as in
//! [`Fold`]. One that takes pieces while its own vector is mapped combines all as well. The other one reads that vector
//! in place. It says how far it has come before the result may replace it.

pub(crate) mod kept;
pub(super) mod transfer;

use super::ByteRange;
use super::context::{MemoryParts, StepContext, StepMemory, StepParts};
use super::contribution::Scratch;
use super::exchange::unmapped_placement;
use super::fold::fragment::{Operands, combine_all};
use super::fold::{Fold, FoldPlan, mismatch};
use super::member_buffer::CopyTarget;
use super::reader;
use super::select::{NodeScheme, Placement};
use super::state::{CommState, STEP_MAX, Step};
use crate::error::Result;
use crate::select::observed::Rival;
use kept::PIECE;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{CheckedLine, Content, View};
use onecopy_shm::loan::{Loan, LoanRange, LoanTable};
use transfer::{PieceLocation, PieceTransfer};

/// How far it is known how the reduction is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The other rank's line is not there yet.
    Unknown,
    /// Neither gives pieces.
    Whole,
    /// One of the two does, or both.
    Pieces,
}

/// A reduction of two ranks under way.
pub(crate) struct Pieces {
    fold: Fold,
    scheme: NodeScheme,
    way: Way,
    transfer: PieceTransfer,
    /// What of the vectors this rank combines.
    taken: ByteRange,
    /// What of its own the other one combines.
    given: ByteRange,
}

/// The other rank's bytes of a piece, where this one can read them.
#[derive(Clone, Copy)]
enum PieceBytes<'b> {
    Mapped(RemoteRange),
    Here(&'b [u8]),
}

impl Pieces {
    /// `given` and `taken`: what of the vectors the other rank combines, and what this one does.
    pub(crate) fn new(
        plan: FoldPlan,
        scheme: NodeScheme,
        given: ByteRange,
        taken: ByteRange,
    ) -> Self {
        let elem = plan.elem.size();
        Self {
            transfer: PieceTransfer::new(plan.send.part(given.offset, given.len), taken.len, elem),
            fold: Fold::new(plan),
            scheme,
            way: Way::Unknown,
            taken,
            given,
        }
    }

    /// What of its vector this rank gives, if not in pieces.
    pub(super) fn given(&self) -> LoanRange {
        self.fold.plan.given()
    }

    /// Takes up a short reduction: what this rank gives is published.
    pub(super) fn resume(&mut self) {
        if self.transfer.is_read() {
            // The other rank gives nothing.
            self.way = Way::Whole;
        }
    }

    /// Whether what this rank gives goes in pieces. `way`: see [`unmapped_placement`].
    fn goes_in_pieces(
        &self,
        memory: &StepMemory<'_>,
        state: &CommState,
        way: Option<Rival>,
    ) -> bool {
        let (other, given) = (1 - state.me, self.given.len);
        let in_pieces = || {
            let placement = unmapped_placement(self.scheme, memory, state, other, given, way);
            placement == Some(Placement::Pieces)
        };
        self.given.len > 0
            && self.transfer.most() <= PIECE
            && memory.range_of(&self.fold.plan.send).heap.is_none()
            && in_pieces()
    }

    pub(crate) fn begin(&mut self, cx: &mut StepContext<'_>) -> Result<()> {
        let StepParts {
            memory,
            state,
            shared,
            ..
        } = cx.parts();
        if self.goes_in_pieces(memory, state, shared.way) {
            let begun = self.transfer.begin_kept(cx)? || self.transfer.begin(cx)?;
            if begun {
                self.way = Way::Pieces;
                return Ok(());
            }
        }
        // The other rank may give nothing.
        self.resume();
        self.fold.begin(cx)
    }

    pub(crate) fn step(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<Step> {
        if self.way == Way::Unknown {
            match self.read_line(cx)? {
                None => return Ok(Step::Idle),
                Some(line) if line.content == Content::Pieces => self.way = Way::Pieces,
                Some(_) => self.way = Way::Whole,
            }
        }
        if self.way == Way::Whole {
            return self.fold.step(cx, scratch);
        }
        self.transfer
            .check_roots(&mut self.fold.lines, cx.state, cx.seq)?;
        let mut moved = 0;
        while moved < STEP_MAX {
            let n = self.transfer.write(cx)? + self.take(cx, scratch)?;
            moved += n;
            if self.transfer.is_read() && self.transfer.is_written() {
                return Ok(Step::Done);
            }
            // A piece that is there and was not taken is asked of its owner.
            let asked = n == 0 && self.can_take(cx.state, cx.seq);
            let ready = |state: &CommState, seq| {
                self.transfer.can_write(state, seq) || self.can_take(state, seq)
            };
            if asked || n == 0 && !PieceTransfer::poll(cx, ready) {
                break;
            }
        }
        Ok(if moved > 0 { Step::Moved } else { Step::Idle })
    }

    /// The other rank's line, if it has come.
    fn read_line(&mut self, cx: &mut StepContext<'_>) -> Result<Option<CheckedLine>> {
        if let Some(line) = self.transfer.line() {
            return Ok(Some(*line));
        }
        let StepParts { state, seq, .. } = cx.parts();
        let line = self.fold.lines.get_or_read(state, 1 - state.me, seq)?;
        line.into_iter()
            .for_each(|line| self.transfer.note(state, line));
        Ok(line)
    }

    /// See [`super::op::Operation::awaits`].
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        match self.way {
            Way::Unknown => state.lacks(place, seq, 1),
            Way::Whole => self.fold.awaits(state, seq, place),
            Way::Pieces => {
                let transfer = &self.transfer;
                !transfer.is_written() && !transfer.has_room(state, seq)
                    || !transfer.is_read()
                        && (self.is_held(state, seq) || !transfer.is_there(state, seq))
            }
        }
    }

    pub(crate) fn finish(&mut self, loans: &mut LoanTable) -> Result<()> {
        self.fold.finish(loans)
    }

    fn can_take(&self, state: &CommState, seq: u32) -> bool {
        let takes = self.fold.plan.recv.is_some() && !self.transfer.is_read();
        takes && !self.is_held(state, seq) && self.transfer.is_there(state, seq)
    }

    /// Whether the next piece of the result has to wait: it replaces one of this rank's vector that is needed still.
    fn is_held(&self, state: &CommState, seq: u32) -> bool {
        if !self.fold.plan.in_place {
            return false;
        }
        let transfer = &self.transfer;
        // What the result replaces, among what this rank gives.
        let begin = self.fold.result_at(self.taken.offset + transfer.read());
        let given = self.given;
        let needed = (begin + transfer.taken_unit())
            .saturating_sub(given.offset)
            .min(given.len);
        if begin >= given.end() {
            return false;
        }
        if transfer.gives() {
            return transfer.written() < needed;
        }
        let read = state.channel_ends[1 - state.me].ack(seq) as usize;
        read < needed.div_ceil(transfer.most())
    }

    /// Where the next of the other rank's bytes are, by its line.
    fn read_at(&self, state: &CommState, seq: u32, line: &CheckedLine) -> Result<PieceLocation> {
        if line.content != Content::Buffer {
            return self.transfer.read_at(state, seq, line);
        }
        let all = self.fold.plan.taken();
        if line.given.len != all.len as u64 {
            return Err(mismatch(state, 1 - state.me, line.given.len, all.len));
        }
        let from = self.taken.offset - all.offset + self.transfer.read();
        self.transfer.there(state, seq, line, from)
    }

    /// Combines the next piece, if it is there. Gives its bytes.
    fn take(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<usize> {
        let (state, seq, other) = (&*cx.state, cx.seq, 1 - cx.state.me);
        let Some(recv) = self.fold.plan.recv.filter(|_| self.can_take(state, seq)) else {
            return Ok(0);
        };
        let Some(line) = self.read_line(cx)? else {
            return Ok(0);
        };
        // Its first piece need not be there.
        if !self.can_take(cx.state, seq) {
            return Ok(0);
        }
        let (n, unit) = (self.transfer.next_bytes(), self.transfer.most());
        let location = self.read_at(cx.state, seq, &line)?;
        let _ = scratch.renew(cx.memory.pool(), 3 * unit)?;
        let (copy, work) = scratch.bytes().split_at_mut(unit);
        let copy = &mut copy[..n];
        let mapped =
            |range: &RemoteRange| reader::view(cx.memory.peers(), cx.state, other, range).is_some();
        let is_mapped = match &location {
            PieceLocation::Here(_) => true,
            PieceLocation::There(range) => mapped(range),
        };
        if let (PieceLocation::There(range), false) = (&location, is_mapped) {
            let target = CopyTarget::Bytes(copy);
            if self.transfer.fetch(cx, &line, range, target)? < n {
                return Ok(0);
            }
        }
        let StepParts {
            memory,
            state,
            shared,
            ..
        } = cx.parts();
        let piece = match location {
            PieceLocation::There(range) if is_mapped => PieceBytes::Mapped(range),
            PieceLocation::There(_) => PieceBytes::Here(copy),
            PieceLocation::Here(at) => {
                PieceBytes::Here(&self.transfer.here(&state.bounce, shared)[at..at + n])
            }
        };
        self.combine(memory, state, piece, n, recv, work)?;
        self.transfer.has_read(state, seq, n)?;
        if is_mapped {
            cx.tally.add(cx.state.members[other], LayerId::MAP, n);
        }
        Ok(n)
    }

    /// Combines `n` bytes of the other rank's with this rank's.
    fn combine(
        &self,
        memory: &mut StepMemory<'_>,
        state: &CommState,
        piece: PieceBytes<'_>,
        n: usize,
        recv: Loan,
        work: &mut [u8],
    ) -> Result<()> {
        let fold = &self.fold;
        let (me, other) = (state.me, 1 - state.me);
        let place = self.taken.offset + self.transfer.read();
        let MemoryParts { loans, peers, .. } = memory.parts();
        let mut views = [None; 2];
        views[other] = match piece {
            PieceBytes::Here(bytes) => Some(View::of(bytes)),
            PieceBytes::Mapped(range) => reader::view(peers, state, other, &range),
        };
        let operands = Operands {
            op: &fold.plan.op,
            elem: fold.plan.elem,
            own: Some(me),
            alias: fold.plan.in_place,
        };
        let to = LoanRange {
            loan: recv,
            offset: fold.result_at(place),
            len: n,
        };
        let from = fold.plan.send.part(place, n);
        loans.write_viewing(to, from, |out, own| {
            combine_all(&operands, out, &views, Some(own), work);
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
