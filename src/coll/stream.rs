// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prefix reductions of long vectors. Each rank takes the prefix of the one before it, piece by piece, adds its own
//! vector and hands on the result.
//!
//! After `Scan` the receive buffer holds what the next rank needs. After `Exscan` that is the receive buffer combined
//! with the send buffer. So the next rank reads these buffers, and the line says how many pieces are ready. Only where
//! the result of an `Exscan` replaces its vector is the prefix handed on in halves of the slot. Each rank chooses by
//! its own buffers; its line says which it is.

use super::context::{MemoryParts, StepContext, StepParts};
use super::contribution::{GIVEN, RESULT, Readers, Scratch, Served, describe};
use super::fold::fragment::{Operands, combine_all};
use super::fold::{FoldPlan, mismatch};
use super::lines;
use super::member_buffer::{CopyTarget, MemberBuffer, part};
use super::reader;
use super::state::{CommState, Step};
use super::{ByteRange, ElemType, Op};
use crate::error::Result;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{CheckedLine, Content, INLINE, View, kind};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::{Loan, LoanRange, LoanTable};

/// Bytes of one of the two pieces that a slot holds: one is read while the next one is written.
const HALF: usize = COLL_SLOT / 2;
/// Bytes of a piece that the next rank reads in a buffer. It stays in the first cache while it is combined, and the
/// next rank begins soon. Chosen by magnitude, as the pieces of two ranks were by a measurement (`pieces.rs`).
const FRAGMENT: usize = 16 << 10;
/// Vectors of a piece for which there is room. Two are for an operator of the program, and two for what is fetched of
/// the rank before.
const ROOMS: usize = 4;

/// What a prefix reduction does. It stays as it is while the reduction is under way.
struct StreamPlan {
    op: Op,
    elem: ElemType,
    /// Whether the result is without this rank's own vector.
    exclusive: bool,
    send: LoanRange,
    recv: Loan,
    /// Whether the vector lies where the result goes.
    in_place: bool,
}

#[derive(Clone, Copy)]
enum StreamState {
    /// Waits for the line of the rank before, if there is one.
    Line,
    /// Pieces come and go on.
    Flows(Flow),
}

/// A prefix reduction under way.
pub(crate) struct Stream {
    plan: StreamPlan,
    state: StreamState,
    /// Bytes that are done.
    passed: usize,
    /// Parts of the piece under way that were copied because they cannot be read in place.
    copied: usize,
}

/// The piece under way.
#[derive(Clone, Copy)]
struct CurrentPiece {
    range: ByteRange,
    /// Which half of a slot it is in, and by which phase it is there.
    half: usize,
    phase: u32,
}

/// Room for a piece that is combined apart from the buffers.
struct PrefixRoom<'r> {
    prefix: &'r mut [u8],
    /// The prefix with this rank's own vector.
    with: &'r mut [u8],
    /// For partial results.
    work: &'r mut [u8],
}

/// How pieces come to a rank and go on from it.
#[derive(Clone, Copy)]
struct Flow {
    /// The line of the rank before; none: this is the first one.
    before: Option<CheckedLine>,
    /// Whether they come in the slot of the rank before.
    slots_in: bool,
    /// Whether they go on in this rank's slot.
    slots_out: bool,
    /// Bytes of a piece in a slot, and in a buffer.
    small: usize,
    big: usize,
}

impl Flow {
    /// Bytes of the vector that are there in `phase` of the rank before.
    fn there(&self, phase: u32) -> usize {
        let unit = if self.slots_in { self.small } else { self.big };
        (phase as usize).saturating_mul(unit)
    }
}

impl StreamPlan {
    /// Whether this rank's vector is gone when the next one needs it.
    fn in_slots(&self) -> bool {
        self.exclusive && self.in_place
    }

    /// How its pieces flow, by the line of the rank before, if there is one.
    fn flow(&self, state: &CommState, before: Option<CheckedLine>) -> Flow {
        let size = self.elem.size();
        let small = HALF / size * size;
        Flow {
            before,
            slots_in: before.is_some_and(|line| matches!(line.content, Content::Slot(_))),
            slots_out: self.in_slots() && state.me + 1 < state.size(),
            small,
            big: FRAGMENT / small * small,
        }
    }

    fn operands(&self, own: Option<usize>) -> Operands<'_> {
        Operands {
            op: &self.op,
            elem: self.elem,
            own,
            alias: own.is_some() && self.in_place,
        }
    }

    /// What the rank before left of a prefix, and its vector.
    fn sources(
        &self,
        cx: &StepContext<'_>,
        flow: &Flow,
        line: &CheckedLine,
    ) -> Result<[MemberBuffer; 2]> {
        let before = cx.state.me - 1;
        let sources = [RESULT, GIVEN].map(|buffer| MemberBuffer::of(line, cx.seq, before, buffer));
        let [result, given] = sources.map(|source| source.range.len);
        let len = self.send.len;
        if !flow.slots_in && (given, result) != (len as u64, len as u64) {
            return Err(mismatch(cx.state, before, given, len));
        }
        Ok(sources)
    }

    /// Combines `views` apart from the buffers.
    fn combine_apart(
        &self,
        loans: &mut LoanTable,
        now: CurrentPiece,
        views: &[Option<View<'_>>],
        room: PrefixRoom<'_>,
    ) -> Result<()> {
        let PrefixRoom { prefix, with, work } = room;
        let ByteRange { offset, len } = now.range;
        let operands = self.operands(None);
        combine_all(&operands, prefix, views, None, work);
        let own = loans.view(self.send.part(offset, len))?;
        let pair = [Some(View::of(prefix)), Some(own)];
        combine_all(&operands, with, &pair, None, work);
        Ok(())
    }

    /// Combines `views`, and this rank's own vector if the result has it, where the result goes.
    fn combine_in_place(
        &self,
        loans: &mut LoanTable,
        now: CurrentPiece,
        mut views: Vec<Option<View<'_>>>,
        work: &mut [u8],
    ) -> Result<()> {
        let own = (!self.exclusive).then_some(views.len());
        let operands = self.operands(own);
        if own.is_some() {
            views.push(None);
        }
        let ByteRange { offset, len } = now.range;
        let to = self.recv.range(offset, len);
        let from = self.send.part(offset, len);
        loans.write_viewing(to, from, |out, own| {
            combine_all(&operands, out, &views, Some(own), work);
        })?;
        Ok(())
    }
}

impl Stream {
    /// A prefix reduction whose result goes to `recv`.
    pub(crate) fn new(plan: FoldPlan, recv: Loan, exclusive: bool) -> Self {
        let FoldPlan {
            op,
            elem,
            send,
            in_place,
            ..
        } = plan;
        Self {
            plan: StreamPlan {
                op,
                elem,
                exclusive,
                send,
                recv,
                in_place,
            },
            state: StreamState::Line,
            passed: 0,
            copied: 0,
        }
    }

    pub(crate) fn begin(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let StepParts {
            memory,
            state,
            shared,
            ..
        } = cx.parts();
        let plan = &self.plan;
        if plan.in_slots() {
            return state.need_slots(memory.home());
        }
        let result = LoanRange::first(plan.recv, plan.send.len);
        // The first rank has nothing to add to its own vector.
        let result = if state.me == 0 { plan.send } else { result };
        shared.served = [Some(Served::Loan(plan.send)), Some(Served::Loan(result))];
        if state.me + 1 < state.size() {
            shared.readers = Readers::Only(state.me + 1);
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<Step> {
        let flow = match self.state {
            StreamState::Flows(flow) => flow,
            StreamState::Line => {
                let before = match cx.state.me.checked_sub(1) {
                    Some(before) if cx.state.lacks(before, cx.seq, 1) => return Ok(Step::Idle),
                    Some(before) => Some(lines::read(cx.state, before, cx.seq)?),
                    None => None,
                };
                let flow = self.plan.flow(cx.state, before);
                self.state = StreamState::Flows(flow);
                flow
            }
        };
        let mut result = Step::Idle;
        while self.passed < self.plan.send.len {
            let now = self.next_piece(&flow);
            if !self.is_there(cx.state, cx.seq, &flow, now)
                || !self.has_room(cx.state, cx.seq, &flow, now)
            {
                return Ok(result);
            }
            match &flow.before {
                Some(line) => {
                    if !self.combine(cx, scratch, &flow, line, now)? {
                        return Ok(result);
                    }
                }
                None => self.first(cx, &flow, now)?,
            }
            self.passed += now.range.len;
            self.pass_on(cx, &flow, now);
            result = Step::Moved;
        }
        Ok(Step::Done)
    }

    fn next_piece(&self, flow: &Flow) -> CurrentPiece {
        let left = self.plan.send.len - self.passed;
        let unit = match flow {
            // The first rank waits for nobody.
            Flow {
                before: None,
                slots_out: false,
                ..
            } => left,
            Flow {
                slots_in: false,
                slots_out: false,
                big,
                ..
            } => *big,
            Flow { small, .. } => *small,
        };
        let index = self.passed / flow.small;
        CurrentPiece {
            range: ByteRange {
                offset: self.passed,
                len: unit.min(left),
            },
            half: index % 2 * HALF,
            phase: index as u32 + 1,
        }
    }

    /// Whether the rank before has the piece.
    fn is_there(&self, state: &CommState, seq: u32, flow: &Flow, now: CurrentPiece) -> bool {
        let there = match state.me.checked_sub(1) {
            None => self.plan.send.len,
            Some(before) => flow.there(state.channel_ends[before].phase(seq)),
        };
        there.min(self.plan.send.len) >= now.range.end()
    }

    /// Whether there is room to hand the piece on. The next rank has read its half of the slot when it holds the piece
    /// before the last.
    fn has_room(&self, state: &CommState, seq: u32, flow: &Flow, now: CurrentPiece) -> bool {
        !flow.slots_out
            || now.phase <= 2
            || state.channel_ends[state.me + 1].ack(seq) >= now.phase - 2
    }

    /// Tells the rank before that the piece is read, and the next one that it is there.
    fn pass_on(&self, cx: &mut StepContext<'_>, flow: &Flow, now: CurrentPiece) {
        let (state, seq) = (&*cx.state, cx.seq);
        if flow.slots_in {
            state.own().set_ack(seq, now.phase);
            state.wake();
        }
        if flow.slots_out {
            if now.phase == 1 {
                state.publish(seq, kind::SLOT, &[]);
            } else {
                state.advance(seq, now.phase);
            }
        } else if state.me + 1 < state.size() {
            let ready = if self.passed == self.plan.send.len {
                self.passed.div_ceil(flow.big)
            } else {
                self.passed / flow.big
            };
            hand_on(cx, ready);
        }
    }

    /// See [`super::op::Operation::awaits`].
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        let (before, next) = (place + 1 == state.me, place == state.me + 1);
        let StreamState::Flows(flow) = self.state else {
            return before && state.lacks(place, seq, 1);
        };
        if self.passed >= self.plan.send.len {
            return false;
        }
        let now = self.next_piece(&flow);
        before && !self.is_there(state, seq, &flow, now)
            || next && !self.has_room(state, seq, &flow, now)
    }

    /// What the first rank does: its prefix is empty.
    fn first(&self, cx: &mut StepContext<'_>, flow: &Flow, now: CurrentPiece) -> Result<()> {
        if !flow.slots_out && cx.state.size() > 1 {
            hand_on(cx, self.plan.send.len.div_ceil(flow.big));
        }
        let StreamPlan {
            send,
            recv,
            exclusive,
            in_place,
            ..
        } = &self.plan;
        let loans = cx.memory.loans();
        let ByteRange { offset, len } = now.range;
        let from = send.part(offset, len);
        if flow.slots_out {
            let write = |bytes: &[u8]| cx.state.own().write_slot(cx.seq, now.half, bytes);
            loans.read(from, write)?;
        } else if !exclusive && !in_place {
            loans.copy(from, *recv, offset)?;
        }
        Ok(())
    }

    /// Combines a piece with what the rank before has by its `line`. `false`: something of that must come first.
    fn combine(
        &mut self,
        cx: &mut StepContext<'_>,
        scratch: &mut Scratch,
        flow: &Flow,
        line: &CheckedLine,
        now: CurrentPiece,
    ) -> Result<bool> {
        let ByteRange { offset, len } = now.range;
        let before = cx.state.me - 1;
        let both = self.plan.sources(cx, flow, line)?;
        // What makes up the prefix with the vector of the rank before.
        let parts = match (flow.slots_in, self.plan.exclusive && before > 0) {
            (true, _) => &[],
            (false, true) => &both[..],
            (false, false) => &both[..1],
        };
        // In slots, whose pieces are small, also for the prefix, and the prefix with this rank's own.
        let rooms = if flow.slots_out { ROOMS + 2 } else { ROOMS };
        if scratch.renew(cx.memory.pool(), rooms * len)? {
            self.copied = 0;
        }
        let (work, room) = scratch.bytes().split_at_mut(2 * len);
        let (copies, room) = room.split_at_mut(parts.len() * len);
        let Some(ranges) = self.fetch(cx, parts, now, copies)? else {
            return Ok(false);
        };
        let state = &*cx.state;
        let MemoryParts { loans, peers, .. } = cx.memory.parts();
        let rank = state.members[before];
        let mut views: Vec<Option<View<'_>>> = Vec::with_capacity(3);
        if flow.slots_in {
            let view = state.channel_ends[before].in_slot(cx.seq, now.half, len);
            views.push(Some(view.ok_or_else(|| mismatch(state, before, 0, len))?));
            cx.tally.add(rank, LayerId::CHUNKS, len);
        }
        for (index, range) in ranges.iter().take(parts.len()).enumerate() {
            let copied = || View::of(&copies[index * len..(index + 1) * len]);
            let mapped = range.and_then(|r| reader::view(peers, state, before, &r));
            // What is copied was counted as it came.
            let bytes = mapped.map_or(0, |_| len);
            cx.tally.add(rank, LayerId::MAP, bytes);
            views.push(Some(mapped.unwrap_or_else(copied)));
        }
        if flow.slots_out {
            let (prefix, with) = room[..2 * len].split_at_mut(len);
            let room = PrefixRoom {
                prefix: &mut *prefix,
                with: &mut *with,
                work,
            };
            self.plan.combine_apart(loans, now, &views, room)?;
            state.own().write_slot(cx.seq, now.half, with);
            loans.write(self.plan.recv.range(offset, len), |out| {
                copy_slices(Kernel::Memcpy, out, prefix)
            })?;
        } else {
            self.plan.combine_in_place(loans, now, views, work)?;
        }
        state.failure_of(before).map_or(Ok(true), Err)
    }

    /// Where the parts of a piece are mapped; what is not mapped is copied. None: not all of it is there.
    fn fetch(
        &mut self,
        cx: &mut StepContext<'_>,
        parts: &[MemberBuffer],
        now: CurrentPiece,
        copies: &mut [u8],
    ) -> Result<Option<[Option<RemoteRange>; 2]>> {
        let len = now.range.len;
        let mut ranges = [None; 2];
        for (index, source) in parts.iter().enumerate() {
            let wanted = part(cx.state, source, now.range)?;
            if reader::view(cx.memory.peers(), cx.state, source.place, &wanted).is_some() {
                ranges[index] = Some(wanted);
                continue;
            }
            if index < self.copied {
                continue;
            }
            let copy = CopyTarget::Bytes(&mut copies[index * len..][..len]);
            if reader::fetch(cx, source, now.range, copy)? < len {
                return Ok(None);
            }
            self.copied = index + 1;
        }
        self.copied = 0;
        Ok(Some(ranges))
    }
}

/// Says that so many pieces are ready in this rank's buffers.
fn hand_on(cx: &mut StepContext<'_>, pieces: usize) {
    let StepParts {
        memory,
        state,
        seq,
        shared,
        ..
    } = cx.parts();
    let phase = u32::try_from(pieces).unwrap_or(u32::MAX);
    match state.own().phase(seq) {
        0 if phase > 0 => {
            let mut line = [0u8; INLINE];
            for (served, out) in shared.served.iter().zip(line.chunks_exact_mut(24)) {
                if let Some(Served::Loan(piece)) = served {
                    describe(&memory.range_of(piece), out);
                }
            }
            state.publish_in(seq, phase, kind::BUFFER, &line);
        }
        now if now < phase => state.advance(seq, phase),
        _ => {}
    }
}
