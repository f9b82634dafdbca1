// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prefix reductions of long vectors: each rank takes the prefix of the one before it, piece by piece, adds its own
//! vector and hands on the result.
//!
//! The prefix with a rank's own vector is what `Scan` leaves in its receive buffer; `Exscan` leaves there what that and
//! the send buffer make up. So the next rank reads these buffers, and its line says how many pieces are ready. Only
//! where the vector of an `Exscan` is replaced by the result is the prefix handed on in halves of the slot. Each rank
//! chooses by its own buffers; its line says which it is.

use super::fold::mismatch;
use super::fold::segment::{Operands, combine_all};
use super::lines::Lines;
use super::reader;
use super::shared::{GIVEN, Piece, RESULT, Readers, Served, Shared, describe};
use super::source::{Source, Target, part};
use super::state::{State, Step};
use super::{ElemType, Op};
use crate::engine::Engine;
use crate::error::Result;
use crate::memory::pool::{Place, PoolBuf};
use onecopy_btl::RemoteRange;
use onecopy_shm::coll::{Content, INLINE, Said, View, kind};
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::Loan;

const HALF: usize = COLL_SLOT / 2;
/// Bytes of a piece that the next rank reads in a buffer.
const SEGMENT: usize = 16 << 10;
/// Vectors of a piece for which there is room: two for an operator of the program, and two for what is fetched of the
/// rank before.
const ROOMS: usize = 4;

/// A prefix reduction under way.
pub(crate) struct Stream {
    pub(crate) op: Op,
    pub(crate) elem: ElemType,
    pub(crate) exclusive: bool,
    pub(crate) send: Piece,
    pub(crate) recv: (Loan, usize),
    /// Whether the vector lies where the result goes.
    pub(crate) in_place: bool,
    /// Bytes that are done.
    pub(crate) passed: usize,
    pub(crate) temp: Option<PoolBuf>,
    /// Parts of the piece under way that were copied because they cannot be read in place.
    pub(crate) copied: usize,
    pub(crate) lines: Lines,
}

/// The piece under way.
#[derive(Clone, Copy)]
struct Now {
    begin: usize,
    len: usize,
    /// Which half of a slot it is in, and by which phase it is there.
    half: usize,
    phase: u32,
}

impl Stream {
    pub(crate) fn begin(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        shared: &mut Shared,
    ) -> Result<()> {
        if self.in_slots() {
            return state.need_slots(&engine.core.home);
        }
        let (loan, at) = self.recv;
        let result = Piece {
            loan,
            at,
            len: self.send.len,
        };
        // The first rank has nothing to add to its own vector.
        let result = if state.me == 0 { self.send } else { result };
        shared.served = [Some(Served::Loan(self.send)), Some(Served::Loan(result))];
        if state.me + 1 < state.size() {
            shared.readers = Readers::Only(state.me + 1);
        }
        Ok(())
    }

    /// Whether this rank's vector is gone when the next one needs it.
    fn in_slots(&self) -> bool {
        self.exclusive && self.in_place
    }

    /// Bytes of a piece in a slot, and in a buffer.
    fn units(&self) -> (usize, usize) {
        let size = self.elem.size();
        let small = HALF / size * size;
        (small, SEGMENT / small * small)
    }

    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        shared: &Shared,
    ) -> Result<Step> {
        let (small, big) = self.units();
        let (me, last, total) = (state.me, state.size() - 1, self.send.len);
        let slots_out = self.in_slots() && me < last;
        let mut before = None;
        if let Some(place) = me.checked_sub(1) {
            before = self.lines.of(state, place, seq)?;
            if before.is_none() {
                return Ok(Step::Idle);
            }
        }
        let slots_in = before.is_some_and(|said| matches!(said.content, Content::Slot(_)));
        let unit = if slots_in || slots_out { small } else { big };
        let mut result = Step::Idle;
        while self.passed < total {
            let begin = self.passed;
            let len = if me == 0 && !slots_out {
                total
            } else {
                unit.min(total - begin)
            };
            let index = begin / small;
            let now = Now {
                begin,
                len,
                half: index % 2 * HALF,
                phase: index as u32 + 1,
            };
            let there = match me.checked_sub(1).map(|before| state.ends[before].look(seq)) {
                None => total,
                Some(phase) if slots_in => (phase as usize).saturating_mul(small),
                Some(phase) => (phase as usize).saturating_mul(big),
            };
            // The half was read by the next rank when it held the piece before the last.
            let free = !slots_out || now.phase <= 2 || state.ends[me + 1].ack(seq) >= now.phase - 2;
            if there.min(total) < begin + len || !free {
                return Ok(result);
            }
            if let Some(said) = &before {
                if !self.combine(engine, state, seq, now, said, slots_out)? {
                    return Ok(result);
                }
            } else {
                if !slots_out && me < last {
                    hand_on(engine, state, seq, shared, total.div_ceil(big));
                }
                self.first(engine, state, seq, now, slots_out)?;
            }
            self.passed += len;
            if slots_in {
                state.own().set_ack(seq, now.phase);
                state.wake(&engine.peers);
            }
            if slots_out {
                if now.phase == 1 {
                    state.publish(&engine.peers, seq, kind::SLOT, &[]);
                } else {
                    state.advance(&engine.peers, seq, now.phase);
                }
            } else if me < last {
                let ready = if self.passed == total {
                    total.div_ceil(big)
                } else {
                    self.passed / big
                };
                hand_on(engine, state, seq, shared, ready);
            }
            result = Step::Moved;
        }
        self.temp = None;
        Ok(Step::Done)
    }

    /// See [`super::op::Op::awaits`].
    pub(crate) fn awaits(&self, state: &State, seq: u32, place: usize) -> bool {
        let (me, last) = (state.me, state.size() - 1);
        let slots_out = self.in_slots() && me < last;
        let (small, big) = self.units();
        let pieces = |unit| u32::try_from(self.send.len.div_ceil(unit)).unwrap_or(u32::MAX);
        if place + 1 == me {
            let before = self.lines.known_of(place);
            let slots_in = before.is_some_and(|said| matches!(said.content, Content::Slot(_)));
            let all = pieces(if slots_in { small } else { big });
            return state.lacks(place, seq, all.max(1));
        }
        // The halves of the slot but for the last two are filled anew.
        let acked = || state.ends[place].ack(seq);
        place == me + 1 && slots_out && acked() < pieces(small).saturating_sub(2)
    }

    /// What the first rank does: its prefix is empty.
    fn first(
        &self,
        engine: &mut Engine,
        state: &State,
        seq: u32,
        now: Now,
        slots_out: bool,
    ) -> Result<()> {
        let loans = &mut engine.core.loans;
        let from = self.send.at + now.begin;
        if slots_out {
            let write = |bytes: &[u8]| state.own().write_slot(seq, now.half, bytes);
            loans.read(self.send.loan, from, now.len, write)?;
        } else if !self.exclusive && !self.in_place {
            let (loan, at) = self.recv;
            loans.copy(self.send.loan, from, loan, at + now.begin, now.len)?;
        }
        Ok(())
    }

    /// Combines a piece with what the rank before `said` that it has. `false`: something of that has to come first.
    fn combine(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        now: Now,
        said: &Said,
        slots_out: bool,
    ) -> Result<bool> {
        let Now { begin, len, .. } = now;
        let before = state.me - 1;
        let slots_in = matches!(said.content, Content::Slot(_));
        let source = |buffer: usize| Source::of(said, seq, before, buffer);
        let (given, result) = (source(GIVEN), source(RESULT));
        let lens = (given.range.len, result.range.len);
        if !slots_in && lens != (self.send.len as u64, self.send.len as u64) {
            return Err(mismatch(state, before, lens.0, self.send.len));
        }
        // What makes up the prefix with the vector of the rank before.
        let both = [result, given];
        let parts = match (slots_in, self.exclusive && before > 0) {
            (true, _) => &[],
            (false, true) => &both[..],
            (false, false) => &both[..1],
        };
        // In slots, whose pieces are small, also for the prefix, and the prefix with this rank's own.
        let rooms = if slots_out { ROOMS + 2 } else { ROOMS };
        if self
            .temp
            .as_ref()
            .is_none_or(|temp| temp.len() < rooms * len)
        {
            self.temp = Some(engine.core.buffers.take(rooms * len, Place::Private)?);
            self.copied = 0;
        }
        // Taken out, so that the engine is free meanwhile.
        let mut temp = self.temp.take();
        let room = temp.as_deref_mut().unwrap_or_default();
        let (work, room) = room.split_at_mut(2 * len);
        let (copies, room) = room.split_at_mut(parts.len() * len);
        let mut ranges: [Option<RemoteRange>; 2] = [None, None];
        for (index, source) in parts.iter().enumerate() {
            let wanted = part(state, source, begin as u64, len)?;
            if reader::view(&engine.peers, state, before, &wanted).is_some() {
                ranges[index] = Some(wanted);
                continue;
            }
            if index < self.copied {
                continue;
            }
            let copy = Target::Bytes(&mut copies[index * len..(index + 1) * len]);
            let n = reader::fetch(engine, state, source, begin as u64, len, copy)?;
            if n < len {
                self.temp = temp;
                return Ok(false);
            }
            self.copied = index + 1;
        }
        self.copied = 0;
        let mut views: Vec<Option<View<'_>>> = Vec::with_capacity(3);
        if slots_in {
            let view = state.ends[before].in_slot(seq, now.half, len);
            views.push(Some(view.ok_or_else(|| mismatch(state, before, 0, len))?));
        }
        for (index, range) in ranges.iter().take(parts.len()).enumerate() {
            let copied = || View::of(&copies[index * len..(index + 1) * len]);
            let mapped = range.and_then(|r| reader::view(&engine.peers, state, before, &r));
            views.push(Some(mapped.unwrap_or_else(copied)));
        }
        let mut operands = Operands {
            op: &self.op,
            elem: self.elem,
            own: None,
            alias: false,
        };
        let to = (self.recv.0, self.recv.1 + begin, len);
        let from = (self.send.loan, self.send.at + begin, len);
        let loans = &mut engine.core.loans;
        if slots_out {
            let (prefix, with) = room[..2 * len].split_at_mut(len);
            combine_all(&operands, prefix, &views, None, work);
            let own = loans.view(from.0, from.1, len)?;
            let pair = [Some(View::of(prefix)), Some(own)];
            combine_all(&operands, with, &pair, None, work);
            state.own().write_slot(seq, now.half, with);
            loans.write(to.0, to.1, len, |out| out.copy_from_slice(prefix))?;
        } else {
            if !self.exclusive {
                operands.own = Some(views.len());
                operands.alias = self.in_place;
                views.push(None);
            }
            loans.write_viewing(to, from, |out, own| {
                combine_all(&operands, out, &views, Some(own), work);
            })?;
        }
        drop(views);
        self.temp = temp;
        state.failure_of(before).map_or(Ok(true), Err)
    }
}

/// Says that so many pieces are ready in this rank's buffers.
fn hand_on(engine: &Engine, state: &State, seq: u32, shared: &Shared, pieces: usize) {
    let phase = u32::try_from(pieces).unwrap_or(u32::MAX);
    match state.own().look(seq) {
        0 if phase > 0 => {
            let mut line = [0u8; INLINE];
            for (served, out) in shared.served.iter().zip(line.chunks_exact_mut(24)) {
                if let Some(Served::Loan(piece)) = served {
                    describe(&engine.range_of(piece), out);
                }
            }
            state.publish_in(&engine.peers, seq, phase, kind::BUFFER, &line);
        }
        now if now < phase => state.advance(&engine.peers, seq, phase),
        _ => {}
    }
}
