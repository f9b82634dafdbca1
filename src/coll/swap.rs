// SPDX-License-Identifier: MIT OR Apache-2.0
//! An exchange in which what is sent is replaced by what is received. Where all members map one another's buffers, each
//! pair swaps its two parts piece by piece, one half each. Otherwise parts go in rounds through temporary buffers, or
//! slots, that hold a piece for each member.

use super::context::{StepContext, StepParts};
use super::contribution::{GIVEN, Readers, Served, behind, describe, range_of_temp};
use super::lines::Lines;
use super::member_buffer::{self, CopyTarget, MemberBuffer};
use super::push::{
    PIECE, Promises, WRITTEN, WriteSource, WriteTarget, half, opened, put_to_all, reaches_all,
};
use super::reader;
use super::state::{CommState, Step};
use super::{ByteRange, Parts};
use crate::error::{Error, Result};
use crate::peer::Peer;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{INLINE, kind};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::{Loan, LoanRange};

/// Bytes of a temporary buffer, for all pieces of a round: no temporary memory grows with the payload. Chosen by
/// magnitude: as many bytes as sixteen slots have, which stay in a second cache.
const TEMP: usize = 64 << 10;
/// How many times as long as in a slot pieces must be to go by a temporary buffer. Less does not pay for the buffer,
/// and where one member has none, all use slots. Chosen by magnitude: then three of four hand-offs are saved.
const WORTH: usize = 4;

/// What an exchange in place does. It stays as it is while the exchange is under way.
pub(crate) struct SwapPlan {
    /// What is sent, and then received.
    pub(crate) recv: Loan,
    pub(crate) parts: Parts,
}

/// How parts go in rounds of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rounds {
    /// Whether the pieces of a round stand in temporary buffers; otherwise they stand in slots.
    in_temp: bool,
    /// Bytes of a piece.
    unit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwapState {
    /// Waits for the others' lines, by which all decide alike how it is done.
    Lines,
    /// Swaps with each pending member, in the buffers.
    Buffers,
    /// Waits until the others have swapped their halves.
    Halves,
    /// Waits until the pieces of the last round are read, and lays out those of the next one.
    Fill(Rounds),
    /// Takes the pieces of the round that pending members lay out.
    Take(Rounds),
}

/// What this rank's own line says.
#[derive(Debug, Clone, Copy, Default)]
struct OwnLine {
    /// Whether pairs may swap in this rank's buffers.
    in_buffers: bool,
    /// Bytes of its temporary buffer.
    temp: u64,
}

/// An exchange in place under way.
pub(crate) struct Swap {
    plan: SwapPlan,
    state: SwapState,
    round: usize,
    /// Members of whom something is to come: their buffer, or their piece of the round.
    pending: Vec<usize>,
    /// Bytes that are swapped with the first of them, in the buffers.
    done: usize,
    lines: Lines,
    own: OwnLine,
}

impl SwapPlan {
    /// The piece of the part for `place` that is exchanged in `round`. Both ends of a pair have parts of the same
    /// length.
    fn piece(&self, place: usize, round: usize, unit: usize) -> ByteRange {
        let ByteRange { offset, len } = self.parts.of(place);
        let skip = len.min(round * unit);
        ByteRange {
            offset: offset + skip,
            len: (len - skip).min(unit),
        }
    }
}

/// The phase by which a member's pieces of a round are there.
fn phase_of(round: usize) -> u32 {
    round as u32 + 2
}

impl Swap {
    pub(crate) fn new(plan: SwapPlan) -> Self {
        Self {
            plan,
            state: SwapState::Lines,
            round: 0,
            pending: Vec::new(),
            done: 0,
            lines: Lines::default(),
            own: OwnLine::default(),
        }
    }

    /// Says where this rank's buffers are.
    pub(crate) fn begin(&mut self, cx: &mut StepContext<'_>) {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        let SwapPlan { recv, parts } = &self.plan;
        let (range, size) = (memory.range_of(&LoanRange::whole(*recv)), state.size());
        // Parts of different lengths lie at offsets that others do not know, so they cannot write there.
        let equal = matches!(parts, Parts::Equal(_));
        let promises = Promises {
            open: equal && range.heap.is_some(),
            writes: equal && shared.blocking && reaches_all(memory.peers(), state),
            answers: false,
        };
        let mut line = [0u8; INLINE];
        if promises.open {
            describe(&range, &mut line[24..]);
        }
        let in_buffers = promises.open && promises.writes;
        let long = (0..size).any(|place| parts.of(place).len > COLL_SLOT / size);
        if long && !in_buffers {
            shared.temp = memory.pool().try_take_collective(TEMP);
        }
        if let Some(temp) = &shared.temp {
            describe(&range_of_temp(temp), &mut line[..24]);
            shared.served[GIVEN] = Some(Served::Temp);
        }
        self.own = OwnLine {
            in_buffers,
            temp: shared.temp.as_ref().map_or(0, |s| s.len() as u64),
        };
        let flags = promises.flags();
        state.publish(seq, kind::BUFFER | flags, &line);
    }

    pub(crate) fn step(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let mut result = Step::Idle;
        loop {
            match self.state {
                SwapState::Lines => {
                    if !self.decide(cx)? {
                        return Ok(result);
                    }
                }
                SwapState::Buffers => self.in_buffers(cx)?,
                SwapState::Halves => {
                    let (state, seq) = (&*cx.state, cx.seq);
                    let all = (0..state.size()).all(|place| !state.lacks(place, seq, WRITTEN));
                    return Ok(if all { Step::Done } else { result });
                }
                SwapState::Fill(rounds) => match self.fill_round(cx, rounds)? {
                    Step::Moved => {}
                    Step::Idle => return Ok(result),
                    Step::Done => return Ok(Step::Done),
                },
                SwapState::Take(rounds) => {
                    if self.take_round(cx, rounds)? {
                        result = Step::Moved;
                    }
                    if !self.pending.is_empty() {
                        return Ok(result);
                    }
                    cx.state.own().set_ack(cx.seq, phase_of(self.round));
                    cx.state.wake();
                    self.round += 1;
                    self.state = SwapState::Fill(rounds);
                    result = Step::Moved;
                }
            }
        }
    }

    /// Decides how it is done. `false`: not all lines have come.
    fn decide(&mut self, cx: &mut StepContext<'_>) -> Result<bool> {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        let size = state.size();
        let both = kind::OPEN | kind::WRITES;
        let (mut all, mut least) = (self.own.in_buffers, self.own.temp);
        for place in behind(size, state.me) {
            let Some(line) = self.lines.get_or_read(state, place, seq)? else {
                return Ok(false);
            };
            all &= line.has(both);
            // An end without a temporary buffer describes none.
            least = least.min(line.given.len);
        }
        if all {
            self.pending = behind(size, state.me).collect();
            self.state = SwapState::Buffers;
            return Ok(true);
        }
        let unit = |bytes: usize| bytes / size / 16 * 16;
        let (in_slot, in_temp) = (unit(COLL_SLOT), unit(least.min(TEMP as u64) as usize));
        let rounds = if in_temp >= WORTH * in_slot && in_temp > 0 {
            shared.readers = Readers::Everyone;
            Rounds {
                in_temp: true,
                unit: in_temp,
            }
        } else {
            state.need_slots(memory.home())?;
            Rounds {
                in_temp: false,
                unit: in_slot,
            }
        };
        self.state = SwapState::Fill(rounds);
        Ok(true)
    }

    /// Swaps this rank's half of what it has with each of the others.
    fn in_buffers(&mut self, cx: &mut StepContext<'_>) -> Result<()> {
        let StepParts {
            memory,
            state,
            seq,
            tally,
            ..
        } = cx.parts();
        let me = state.me;
        let SwapPlan { recv, parts } = &self.plan;
        let mut room = [0u8; PIECE];
        while let Some(&place) = self.pending.first() {
            let ByteRange { offset, len } = parts.of(place);
            // The lower rank has the front.
            let front = half(len);
            let (begin, end) = if me < place { (0, front) } else { (front, len) };
            let line = self.lines.get_or_read(state, place, seq)?;
            let range = line
                .and_then(|line| opened(&line))
                .filter(|range| range.len >= (len * state.size()) as u64)
                .ok_or_else(|| Error::Collective {
                    reason: format!("rank {} has a shorter buffer", state.members[place]),
                })?;
            while self.done < end - begin {
                let n = PIECE.min(end - begin - self.done);
                let skip = begin + self.done;
                let there = range.part((me * len + skip) as u64, n as u64);
                let theirs = &mut room[..n];
                take(memory.peers(), state, place, &there, theirs)?;
                let mine = WriteSource::Loan(*recv, offset + skip);
                let target = WriteTarget {
                    place,
                    range: there,
                };
                put_to_all(memory, state, &[target], ByteRange::first(n), mine)?;
                let write = |out: &mut [u8]| copy_slices(Kernel::Memcpy, out, theirs);
                memory.loans().write(recv.range(offset + skip, n), write)?;
                self.done += n;
            }
            self.done = 0;
            self.pending.remove(0);
            // One half was read, and the other one is written here by `place` before this is over.
            let rank = state.members[place];
            tally.add(rank, LayerId::MAP, len);
        }
        state.advance(seq, WRITTEN);
        self.state = SwapState::Halves;
        Ok(())
    }

    /// See [`super::op::Operation::awaits`].
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        match self.state {
            SwapState::Lines => state.lacks(place, seq, 1),
            SwapState::Buffers | SwapState::Halves => state.lacks(place, seq, WRITTEN),
            SwapState::Fill(rounds) => !self.is_free(state, seq, place, rounds),
            SwapState::Take(_) => {
                self.pending.contains(&place) && state.lacks(place, seq, phase_of(self.round))
            }
        }
    }

    /// Whether `place` has read what the last round left for it.
    fn is_free(&self, state: &CommState, seq: u32, place: usize, rounds: Rounds) -> bool {
        let Some(last) = self.round.checked_sub(1) else {
            return true;
        };
        self.plan.piece(place, last, rounds.unit).len == 0
            || state.channel_ends[place].ack(seq) >= phase_of(last)
            || onecopy_shm::coll::line::reached(state.channel_ends[place].done(), seq)
    }

    /// Lays out this rank's pieces of the round. Idle: pieces of the last one are not read yet; done: there are none.
    fn fill_round(&mut self, cx: &mut StepContext<'_>, rounds: Rounds) -> Result<Step> {
        let Rounds { in_temp, unit } = rounds;
        let (state, seq, round) = (&*cx.state, cx.seq, self.round);
        let (me, size) = (state.me, state.size());
        let others = || (0..size).filter(move |&place| place != me);
        let active: Vec<usize> = others()
            .filter(|&place| self.plan.piece(place, round, unit).len > 0)
            .collect();
        if active.is_empty() {
            return Ok(Step::Done);
        }
        // What the last round left was read by all for whom it was.
        if !others().all(|place| self.is_free(state, seq, place, rounds)) {
            return Ok(Step::Idle);
        }
        for &place in &active {
            let ByteRange { offset, len } = self.plan.piece(place, round, unit);
            let to = place * unit;
            let own = state.own();
            let loans = cx.memory.loans();
            loans.read(self.plan.recv.range(offset, len), |bytes| {
                match (&mut cx.shared.temp, in_temp) {
                    (Some(temp), true) => {
                        copy_slices(Kernel::Memcpy, &mut temp[to..to + len], bytes);
                    }
                    _ => own.write_slot(seq, to, bytes),
                }
            })?;
        }
        state.advance(seq, phase_of(round));
        self.pending = active;
        self.state = SwapState::Take(rounds);
        Ok(Step::Moved)
    }

    /// Takes the pieces of the round that have come. Whether there were any.
    fn take_round(&mut self, cx: &mut StepContext<'_>, rounds: Rounds) -> Result<bool> {
        let before = self.pending.len();
        let mut index = 0;
        while let Some(&place) = self.pending.get(index) {
            let arrived = !cx.state.lacks(place, cx.seq, phase_of(self.round));
            if arrived && self.take_piece(cx, place, rounds)? {
                self.pending.swap_remove(index);
            } else {
                index += 1;
            }
        }
        Ok(self.pending.len() < before)
    }

    /// Takes the piece of `place`. `false`: not all of it is there.
    fn take_piece(
        &mut self,
        cx: &mut StepContext<'_>,
        place: usize,
        Rounds { in_temp, unit }: Rounds,
    ) -> Result<bool> {
        let recv = self.plan.recv;
        let ByteRange { offset, len } = self.plan.piece(place, self.round, unit);
        let (from, seq) = (cx.state.me * unit, cx.seq);
        if in_temp {
            let Some(line) = self.lines.get_or_read(cx.state, place, seq)? else {
                return Ok(false);
            };
            let source = MemberBuffer::of(&line, seq, place, GIVEN);
            let target = CopyTarget::Loan(recv, offset);
            let wanted = ByteRange { offset: from, len };
            let received = reader::fetch(cx, &source, wanted, target)?;
            return Ok(received >= len);
        }
        let view = cx.state.channel_ends[place].in_slot(seq, from, len);
        let view = view.ok_or_else(|| member_buffer::mismatch(cx.state, place, 0, len))?;
        cx.memory.loans().write(recv.range(offset, len), |out| {
            view.copy_to(out, Kernel::Memcpy);
        })?;
        cx.tally.add(cx.state.members[place], LayerId::CHUNKS, len);
        Ok(true)
    }
}

/// Copies a range of a member's buffer, which is mapped.
fn take(
    peers: &[Option<Box<Peer>>],
    state: &CommState,
    place: usize,
    range: &RemoteRange,
    out: &mut [u8],
) -> Result<()> {
    let view = reader::view(peers, state, place, range).ok_or_else(|| Error::Collective {
        reason: format!("the buffer of rank {} is not mapped", state.members[place]),
    })?;
    view.copy_to(out, Kernel::Memcpy);
    state.failure_of(place).map_or(Ok(()), Err)
}
