// SPDX-License-Identifier: MIT OR Apache-2.0
//! An exchange in which what is sent is replaced by what is received. Where all members map one another's buffers, each
//! pair swaps its two parts piece by piece, one half each. Otherwise parts go in rounds through temporary buffers, or
//! slots, that hold a piece for each member.

use super::Parts;
use super::context::StepContext;
use super::contribution::{GIVEN, LoanRange, Readers, Served, behind, describe, range_of_temp};
use super::lines::Lines;
use super::member_buffer::{self, CopyTarget, MemberBuffer};
use super::push::{PIECE, Promises, WRITTEN, WriteSource, half, opened, put_to_all, reaches_all};
use super::reader;
use super::state::{CommState, Step};
use crate::error::{Error, Result};
use crate::peer::Peer;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{INLINE, kind};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::Loan;

/// Bytes of a temporary buffer, for all pieces of a round: no temporary memory grows with the payload. Chosen by
/// magnitude: as many bytes as sixteen slots have, which stay in a second cache.
const TEMP: usize = 64 << 10;
/// How many times as long as in a slot pieces must be to go by a temporary buffer. Less does not pay for the buffer,
/// and where one member has none, all use slots. Chosen by magnitude: then three of four hand-offs are saved.
const WORTH: usize = 4;

/// How it is done; all decide by the same lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    /// Nothing is known yet.
    Unknown,
    /// Each pair swaps in its buffers.
    Buffers,
    /// By rounds with pieces of so many bytes in temporary buffers.
    Stages(usize),
    /// The same in slots.
    Slots(usize),
}

/// An exchange in place under way.
pub(crate) struct Swap {
    pub(crate) recv: Loan,
    pub(crate) parts: Parts,
    medium: Medium,
    round: usize,
    filled: bool,
    pending: Vec<usize>,
    done: usize,
    lines: Lines,
    /// What this rank's own line says: whether pairs may swap in its buffers, and the bytes of its temporary one.
    own: (bool, u64),
}

impl Swap {
    pub(crate) fn new(recv: Loan, parts: Parts) -> Self {
        Self {
            recv,
            parts,
            medium: Medium::Unknown,
            round: 0,
            filled: false,
            pending: Vec::new(),
            done: 0,
            lines: Lines::default(),
            own: (false, 0),
        }
    }

    /// Says where this rank's buffers are.
    pub(crate) fn begin(&mut self, cx: &mut StepContext<'_>) {
        let (memory, state, seq, shared) = cx.parts();
        let (range, size) = (memory.range_of(&LoanRange::whole(self.recv)), state.size());
        // Parts of different lengths lie at offsets that others do not know, so they cannot write there.
        let equal = matches!(self.parts, Parts::Equal(_));
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
        let long = (0..size).any(|place| self.parts.of(place).1 > COLL_SLOT / size);
        if long && !in_buffers {
            shared.temp = memory.pool().try_take_collective(TEMP);
        }
        if let Some(temp) = &shared.temp {
            describe(&range_of_temp(temp), &mut line[..24]);
            shared.served[GIVEN] = Some(Served::Temp);
        }
        self.own = (
            in_buffers,
            shared.temp.as_ref().map_or(0, |s| s.len() as u64),
        );
        let flags = promises.flags();
        state.publish(seq, kind::BUFFER | flags, &line);
    }

    /// How it is done; none as long as not all have come.
    fn decide(&mut self, state: &CommState, seq: u32) -> Result<Option<Medium>> {
        let size = state.size();
        let both = kind::OPEN | kind::WRITES;
        let (mut all, mut least) = self.own;
        for place in behind(size, state.me) {
            let Some(line) = self.lines.get_or_read(state, place, seq)? else {
                return Ok(None);
            };
            all &= line.has(both);
            // An end without a temporary buffer describes none.
            least = least.min(line.given.len);
        }
        if all {
            return Ok(Some(Medium::Buffers));
        }
        let unit = |bytes: usize| bytes / size / 16 * 16;
        let in_temp = unit(least.min(TEMP as u64) as usize);
        Ok(Some(if in_temp >= WORTH * unit(COLL_SLOT) && in_temp > 0 {
            Medium::Stages(in_temp)
        } else {
            Medium::Slots(unit(COLL_SLOT))
        }))
    }

    pub(crate) fn step(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        if self.medium == Medium::Unknown {
            let Some(medium) = self.decide(cx.state, cx.seq)? else {
                return Ok(Step::Idle);
            };
            self.medium = medium;
            match self.medium {
                Medium::Buffers => {
                    let (size, me) = (cx.state.size(), cx.state.me);
                    self.pending = behind(size, me).collect();
                }
                Medium::Stages(_) => cx.shared.readers = Readers::Everyone,
                _ => cx.state.need_slots(cx.memory.home())?,
            }
        }
        match self.medium {
            Medium::Buffers => self.in_buffers(cx),
            Medium::Stages(unit) | Medium::Slots(unit) => self.in_rounds(cx, unit),
            Medium::Unknown => Ok(Step::Idle),
        }
    }

    /// Swaps this rank's half of what it has with each of the others.
    fn in_buffers(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let StepContext {
            memory,
            state,
            seq,
            tally,
            ..
        } = cx;
        let (seq, me) = (*seq, state.me);
        let mut room = [0u8; PIECE];
        while let Some(&place) = self.pending.first() {
            let (offset, len) = self.parts.of(place);
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
                let mine = WriteSource::Loan(self.recv, offset + skip);
                put_to_all(memory, state, &[(place, there)], (0, n), mine)?;
                let write = |out: &mut [u8]| copy_slices(Kernel::Memcpy, out, theirs);
                memory.loans().write(self.recv, offset + skip, n, write)?;
                self.done += n;
            }
            self.done = 0;
            self.pending.remove(0);
            // One half was read, and the other one is written here by `place` before this is over.
            let rank = state.members[place];
            tally.add(rank, LayerId::MAP, len);
        }
        if !self.filled {
            self.filled = true;
            state.advance(seq, WRITTEN);
        }
        // The others have swapped their halves.
        let all = (0..state.size()).all(|place| !state.lacks(place, seq, self.phase()));
        Ok(if all { Step::Done } else { Step::Idle })
    }

    /// See [`super::op::Operation::awaits`].
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        match self.medium {
            Medium::Stages(unit) | Medium::Slots(unit) if !self.filled => {
                !self.is_free(state, seq, place, unit)
            }
            Medium::Stages(_) | Medium::Slots(_) if !self.pending.contains(&place) => false,
            _ => state.lacks(place, seq, self.phase()),
        }
    }

    /// Whether `place` has read what the last round left for it.
    fn is_free(&self, state: &CommState, seq: u32, place: usize, unit: usize) -> bool {
        let Some(last) = self.round.checked_sub(1) else {
            return true;
        };
        self.piece(place, last, unit).1 == 0
            || state.channel_ends[place].ack(seq) >= last as u32 + 2
            || onecopy_shm::coll::line::reached(state.channel_ends[place].done(), seq)
    }

    /// The piece of the part for `place` that is exchanged in `round`. Both ends of a pair have parts of the same
    /// length.
    fn piece(&self, place: usize, round: usize, unit: usize) -> (usize, usize) {
        let (offset, len) = self.parts.of(place);
        let skip = len.min(round * unit);
        (offset + skip, (len - skip).min(unit))
    }

    fn in_rounds(&mut self, cx: &mut StepContext<'_>, unit: usize) -> Result<Step> {
        let mut result = Step::Idle;
        loop {
            if !self.filled {
                match self.fill_round(cx, unit)? {
                    Step::Moved => {}
                    Step::Idle => return Ok(result),
                    Step::Done => return Ok(Step::Done),
                }
            }
            if self.take_round(cx, unit)? {
                result = Step::Moved;
            }
            if !self.pending.is_empty() {
                return Ok(result);
            }
            cx.state.own().set_ack(cx.seq, self.phase());
            cx.state.wake();
            self.round += 1;
            self.filled = false;
            result = Step::Moved;
        }
    }

    /// The phase by which what this rank needs next of another is there: its line, its halves, its piece of the round.
    fn phase(&self) -> u32 {
        match self.medium {
            Medium::Unknown => 1,
            Medium::Buffers => WRITTEN,
            Medium::Stages(_) | Medium::Slots(_) => self.round as u32 + 2,
        }
    }

    /// Lays out this rank's pieces of the round. Idle: pieces of the last one are not read yet; done: there are none.
    fn fill_round(&mut self, cx: &mut StepContext<'_>, unit: usize) -> Result<Step> {
        let (state, seq, round) = (&*cx.state, cx.seq, self.round);
        let (me, size) = (state.me, state.size());
        let others = || (0..size).filter(move |&place| place != me);
        let active: Vec<usize> = others()
            .filter(|&place| self.piece(place, round, unit).1 > 0)
            .collect();
        if active.is_empty() {
            return Ok(Step::Done);
        }
        // What the last round left was read by all for whom it was.
        if !others().all(|place| self.is_free(state, seq, place, unit)) {
            return Ok(Step::Idle);
        }
        for &place in &active {
            let (offset, len) = self.piece(place, round, unit);
            let to = place * unit;
            let own = state.own();
            let loans = cx.memory.loans();
            loans.read(self.recv, offset, len, |bytes| {
                match (&mut cx.shared.temp, self.medium) {
                    (Some(temp), Medium::Stages(_)) => {
                        copy_slices(Kernel::Memcpy, &mut temp[to..to + len], bytes);
                    }
                    _ => own.write_slot(seq, to, bytes),
                }
            })?;
        }
        state.advance(seq, self.phase());
        self.pending = active;
        self.filled = true;
        Ok(Step::Moved)
    }

    /// Takes the pieces of the round that have come. Whether there were any.
    fn take_round(&mut self, cx: &mut StepContext<'_>, unit: usize) -> Result<bool> {
        let before = self.pending.len();
        let mut index = 0;
        while let Some(&place) = self.pending.get(index) {
            let arrived = !cx.state.lacks(place, cx.seq, self.phase());
            if arrived && self.take_piece(cx, place, unit)? {
                self.pending.swap_remove(index);
            } else {
                index += 1;
            }
        }
        Ok(self.pending.len() < before)
    }

    /// Takes the piece of `place`. `false`: not all of it is there.
    fn take_piece(&mut self, cx: &mut StepContext<'_>, place: usize, unit: usize) -> Result<bool> {
        let (offset, len) = self.piece(place, self.round, unit);
        let (from, seq) = (cx.state.me * unit, cx.seq);
        if let Medium::Stages(_) = self.medium {
            let Some(line) = self.lines.get_or_read(cx.state, place, seq)? else {
                return Ok(false);
            };
            let source = MemberBuffer::of(&line, seq, place, GIVEN);
            let target = CopyTarget::Loan(self.recv, offset);
            let received = reader::fetch(cx, &source, (from as u64, len), target)?;
            return Ok(received >= len);
        }
        let view = cx.state.channel_ends[place].in_slot(seq, from, len);
        let view = view.ok_or_else(|| member_buffer::mismatch(cx.state, place, 0, len))?;
        cx.memory.loans().write(self.recv, offset, len, |out| {
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
