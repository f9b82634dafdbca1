// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reductions of two ranks, each of which gives more than a slot has room for. A rank gives bytes that the other one
//! cannot map piece by piece through a *bounce buffer*, memory that both map. The other rank combines each piece while
//! the next one is written. Each rank combines all that it needs itself. As many bytes cross as if each combined a half
//! for both, and nobody waits for a result. Where calls of the kernel are cheaper, the other rank reads by one what it
//! needs at once.
//!
//! Each rank chooses by its own vector; its line says which it is. Only where neither gives pieces do both go on as in
//! [`Fold`]. One that takes pieces while its own vector is mapped combines all as well. The other one reads that vector
//! in place. It says how far it has come before the result may replace it.

use super::context::{MemoryParts, StepContext, StepMemory};
use super::contribution::{
    GIVEN, LoanRange, Scratch, Served, describe, describe_message, range_of_temp,
};
use super::exchange::unmapped_placement;
use super::fold::fragment::{Operands, combine_all};
use super::fold::{Fold, FoldPlan, mismatch};
use super::lines;
use super::member_buffer::{CopyTarget, MemberBuffer, part};
use super::reader;
use super::select::{NodeScheme, Placement, TEMP_LIMIT};
use super::state::{CommState, STEP_MAX, Step};
use crate::error::Result;
use crate::select::observed::Rival;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{CheckedLine, Content, INLINE, View, kind};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::loan::{Loan, LoanTable};

/// Bytes of a piece, and between two pieces in a bounce buffer. Long enough that its hand-off costs little beside it;
/// short enough that the other rank begins soon (docs/performance.md, "Collectives").
const PIECE: usize = 16 << 10;
/// Bytes of a bounce buffer. Where lines return that the other rank read just now, each costs a hand-off. So a short
/// vector does not begin where the one before did.
const BOUNCE: usize = TEMP_LIMIT;
/// Looks at the other rank's line between two rounds of progress. They take about as long as a piece, and a round costs
/// half as much. With a round between two looks 64 KiB took 15.9 instead of 11.2 us (A, 11-29; docs/performance.md,
/// "Collectives"). The number is chosen by magnitude.
const POLLS: usize = 128;

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
    /// What of its vector this rank gives: the first byte, and how many.
    given: (usize, usize),
    /// What of the vectors it combines.
    taken: (usize, usize),
    way: Way,
    /// Whether it gives pieces; how many bytes it has written so far, and how many it has combined.
    gives: bool,
    written: usize,
    combined: usize,
}

/// Where the other rank's bytes are.
#[derive(Clone, Copy)]
enum Source {
    /// In a bounce buffer of so many pieces.
    Bounce(RemoteRange, usize),
    /// In its buffer.
    Buffer(RemoteRange),
}

impl Pieces {
    /// `given` and `taken`: the ranges of the vector, as begin and end, that the other rank combines, and that this one
    /// does.
    pub(crate) fn new(
        plan: FoldPlan,
        scheme: NodeScheme,
        given: (usize, usize),
        taken: (usize, usize),
    ) -> Self {
        let range = |(begin, end): (usize, usize)| (begin, end.saturating_sub(begin));
        Self {
            fold: Fold::new(plan),
            scheme,
            given: range(given),
            taken: range(taken),
            way: Way::Unknown,
            gives: false,
            written: 0,
            combined: 0,
        }
    }

    /// Bytes of a piece: whole elements.
    fn unit(&self) -> usize {
        self.fold.plan.whole_elements(PIECE)
    }

    /// What of its vector this rank gives, if not in pieces.
    pub(super) fn given(&self) -> LoanRange {
        self.fold.plan.given()
    }

    /// Takes up a short reduction: what this rank gives is published.
    pub(super) fn resume(&mut self) {
        if self.taken.1 == 0 {
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
        let given = (1 - state.me, self.given.1);
        memory.range_of(&self.fold.plan.send).heap.is_none()
            && unmapped_placement(self.scheme, memory, state, given, way) == Some(Placement::Pieces)
    }

    pub(crate) fn begin(&mut self, cx: &mut StepContext<'_>) -> Result<()> {
        let (memory, state, _, shared) = cx.parts();
        if self.given.1 > 0 && self.goes_in_pieces(memory, state, shared.way) {
            shared.temp = memory.pool().try_take_collective(BOUNCE);
        }
        let Some(bounce) = &shared.temp else {
            if self.taken.1 == 0 {
                // The other rank gives nothing.
                self.way = Way::Whole;
            }
            return self.fold.begin(cx);
        };
        let mut line = [0u8; INLINE];
        describe(&range_of_temp(bounce), &mut line[..24]);
        describe_message(self.given.1, &mut line[24..]);
        shared.served[GIVEN] = Some(Served::Temp);
        shared.readers = self.fold.plan.readers;
        (self.gives, self.way) = (true, Way::Pieces);
        self.copy_piece(cx)?;
        let (memory, state, seq, _) = cx.parts();
        state.publish_in(seq, 2, kind::PIECES, &line);
        memory.counters().coll_in_pieces += 1;
        Ok(())
    }

    pub(crate) fn step(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<Step> {
        if self.way == Way::Unknown {
            let (_, state, seq, _) = cx.parts();
            match self.fold.lines.get_or_read(state, 1 - state.me, seq)? {
                None => return Ok(Step::Idle),
                Some(line) if line.content == Content::Pieces => self.way = Way::Pieces,
                Some(_) => self.way = Way::Whole,
            }
        }
        if self.way == Way::Whole {
            return self.fold.step(cx, scratch);
        }
        let mut moved = 0;
        while moved < STEP_MAX {
            let n = self.write(cx)? + self.take(cx, scratch)?;
            moved += n;
            if self.is_written() && self.combined == self.taken.1 {
                return Ok(Step::Done);
            }
            // A piece that is there and was not taken is asked of its owner.
            let asked = n == 0 && self.can_take(cx.state, cx.seq);
            if asked || n == 0 && !self.poll(cx) {
                break;
            }
        }
        Ok(if moved > 0 { Step::Moved } else { Step::Idle })
    }

    /// Polls for what the next piece needs, if the program waits. Says whether it has come.
    fn poll(&self, cx: &StepContext<'_>) -> bool {
        let (state, seq) = (&*cx.state, cx.seq);
        if !cx.shared.blocking {
            return false;
        }
        // Where ranks take turns, the other one may be waiting for this processor.
        let polls = cx.memory.spin().clamp(1, POLLS);
        (0..polls).any(|_| {
            onecopy_shm::sync::spin_hint();
            self.can_write(state, seq) || self.can_take(state, seq)
        })
    }

    /// See [`super::op::Operation::awaits`].
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        match self.way {
            Way::Unknown => state.lacks(place, seq, 1),
            Way::Whole => self.fold.awaits(state, seq, place),
            Way::Pieces => {
                let takes = self.combined < self.taken.1;
                !self.is_written() && !self.has_room(state, seq)
                    || takes && (self.is_held(state, seq) || !self.is_there(state, seq))
            }
        }
    }

    pub(crate) fn finish(&mut self, loans: &mut LoanTable) -> Result<()> {
        self.fold.finish(loans)
    }

    fn is_written(&self) -> bool {
        !self.gives || self.written == self.given.1
    }

    /// Whether the bounce buffer has room for the next piece.
    fn has_room(&self, state: &CommState, seq: u32) -> bool {
        let index = self.written / self.unit();
        index < BOUNCE / PIECE + state.channel_ends[1 - state.me].ack(seq) as usize
    }

    fn can_write(&self, state: &CommState, seq: u32) -> bool {
        !self.is_written() && self.has_room(state, seq)
    }

    fn can_take(&self, state: &CommState, seq: u32) -> bool {
        let takes = self.fold.plan.recv.is_some() && self.combined < self.taken.1;
        takes && !self.is_held(state, seq) && self.is_there(state, seq)
    }

    /// Where in a bounce buffer of so many pieces a piece of a vector of `len` bytes stands. Both ranks know.
    fn at(&self, index: usize, len: usize, pieces: usize, seq: u32) -> usize {
        let first = (seq as usize).wrapping_mul(len.div_ceil(self.unit()));
        first.wrapping_add(index) % pieces * PIECE
    }

    /// Writes the next piece into the bounce buffer, if there is room. Gives its bytes.
    fn write(&mut self, cx: &mut StepContext<'_>) -> Result<usize> {
        if !self.can_write(cx.state, cx.seq) {
            return Ok(0);
        }
        let n = self.copy_piece(cx)?;
        let (state, seq) = (&*cx.state, cx.seq);
        let pieces = self.written.div_ceil(self.unit());
        state.advance(seq, phase_of(pieces));
        Ok(n)
    }

    fn copy_piece(&mut self, cx: &mut StepContext<'_>) -> Result<usize> {
        let (memory, _, seq, shared) = cx.parts();
        let Some(bounce) = &mut shared.temp else {
            return Ok(0);
        };
        let (begin, len) = self.given;
        let unit = self.unit();
        let n = unit.min(len - self.written);
        let at = self.at(self.written / unit, len, BOUNCE / PIECE, seq);
        let LoanRange { loan, offset, .. } = self.fold.plan.send;
        memory
            .loans()
            .read(loan, offset + begin + self.written, n, |bytes| {
                copy_slices(Kernel::Memcpy, &mut bounce[at..at + n], bytes);
            })?;
        self.written += n;
        Ok(n)
    }

    /// Whether the other rank has the next piece.
    fn is_there(&self, state: &CommState, seq: u32) -> bool {
        let (other, index) = (1 - state.me, self.combined / self.unit());
        match self.fold.lines.cached(other) {
            Some(line) if line.content == Content::Pieces => {
                !state.lacks(other, seq, phase_of(index + 1))
            }
            _ => !state.lacks(other, seq, 1),
        }
    }

    /// Whether the next piece of the result has to wait: it replaces one of this rank's vector that is needed still.
    fn is_held(&self, state: &CommState, seq: u32) -> bool {
        let needed = (self.combined + self.unit()).min(self.given.1);
        if !self.fold.plan.in_place {
            return false;
        }
        if self.gives {
            return self.written < needed;
        }
        let read = state.channel_ends[1 - state.me].ack(seq) as usize;
        read < needed.div_ceil(self.unit())
    }

    /// Where the other rank's bytes are, by its line.
    fn source(&self, state: &CommState, line: &CheckedLine) -> Result<Source> {
        let given = lines::range(line.given);
        let (there, expected, source) = match line.content {
            Content::Pieces => {
                let pieces = given.len as usize / PIECE;
                (line.result.len, self.taken.1, Source::Bounce(given, pieces))
            }
            Content::Buffer => {
                let (_, expected) = self.fold.plan.taken();
                (given.len, expected, Source::Buffer(given))
            }
            Content::Inline(len) | Content::Slot(len) => {
                return Err(mismatch(state, 1 - state.me, len as u64, self.taken.1));
            }
            Content::Nothing | Content::Message => {
                return Err(mismatch(state, 1 - state.me, 0, self.taken.1));
            }
        };
        let has_pieces = !matches!(source, Source::Bounce(_, 0));
        if there == expected as u64 && has_pieces {
            Ok(source)
        } else {
            Err(mismatch(state, 1 - state.me, there, expected))
        }
    }

    /// Combines the next piece, if it is there. Gives its bytes.
    fn take(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<usize> {
        let (state, seq) = (&*cx.state, cx.seq);
        let other = 1 - state.me;
        let (Some(recv), Some(line)) = (
            self.fold.plan.recv,
            self.fold.lines.get_or_read(state, other, seq)?,
        ) else {
            return Ok(0);
        };
        if !self.can_take(state, seq) {
            return Ok(0);
        }
        let unit = self.unit();
        let (index, n) = (self.combined / unit, unit.min(self.taken.1 - self.combined));
        let (range, from) = match self.source(state, &line)? {
            Source::Bounce(bounce, pieces) => (bounce, self.at(index, self.taken.1, pieces, seq)),
            Source::Buffer(buffer) => {
                let first = self.fold.plan.taken().0;
                (buffer, self.taken.0 - first + self.combined)
            }
        };
        let source = MemberBuffer {
            seq,
            place: other,
            buffer: GIVEN,
            range,
            answers: line.has(kind::ANSWERS),
        };
        let piece = part(state, &source, from as u64, n)?;
        let mapped = reader::view(cx.memory.peers(), state, other, &piece).is_some();
        let _ = scratch.renew(cx.memory.pool(), 3 * unit)?;
        let (copy, work) = scratch.bytes().split_at_mut(unit);
        let copy = &mut copy[..n];
        if !mapped && reader::fetch(cx, &source, (from as u64, n), CopyTarget::Bytes(copy))? < n {
            return Ok(0);
        }
        self.combine(cx, (&piece, copy), recv, work)?;
        let state = &*cx.state;
        state.failure_of(other).map_or(Ok(()), Err)?;
        state.own().set_ack(seq, index as u32 + 1);
        state.wake();
        if mapped {
            cx.tally.add(cx.state.members[other], LayerId::MAP, n);
        }
        self.combined += n;
        Ok(n)
    }

    /// Combines a piece of the other rank's, mapped or copied, with this rank's.
    fn combine(
        &self,
        cx: &mut StepContext<'_>,
        (piece, copy): (&RemoteRange, &[u8]),
        recv: Loan,
        work: &mut [u8],
    ) -> Result<()> {
        let (fold, state) = (&self.fold, &*cx.state);
        let (me, other, n) = (state.me, 1 - state.me, copy.len());
        let place = self.taken.0 + self.combined;
        let out = fold.result_at(place);
        let MemoryParts { loans, peers, .. } = cx.memory.parts();
        let view = reader::view(peers, state, other, piece).unwrap_or(View::of(copy));
        let mut views = [None; 2];
        views[other] = Some(view);
        let operands = Operands {
            op: &fold.plan.op,
            elem: fold.plan.elem,
            own: Some(me),
            alias: fold.plan.in_place,
        };
        let from = (fold.plan.send.loan, fold.plan.send.offset + place, n);
        loans.write_viewing((recv, out, n), from, |out, own| {
            combine_all(&operands, out, &views, Some(own), work);
        })?;
        Ok(())
    }
}

/// The phase of a line whose owner has written so many pieces.
fn phase_of(pieces: usize) -> u32 {
    u32::try_from(pieces + 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
