// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives that only move bytes: each rank says where its bytes are, and takes what is for it from the others.

use super::Parts;
use super::op::range_of_stage;
use super::op::{ENTRY, GIVEN, Piece, Readers, Served, Shared, describe, described, kind, payload};
use super::reader::{self, Source, Target};
use super::state::{State, Step};
use crate::engine::Engine;
use crate::error::{Error, Result};
use onecopy_shm::coll::{INLINE, View};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::Loan;

/// Bytes that a step moves at most, so that a call that does not want to wait comes back soon.
const STEP_MAX: usize = 2 << 20;
/// Bytes read at a time.
const READ_MAX: usize = 512 << 10;

/// What a rank takes from the others.
#[derive(Debug, Clone)]
pub(crate) enum Takes {
    Nothing,
    /// From one member, to the front of the receive buffer.
    From(usize, usize),
    /// From everyone, by parts of the receive buffer.
    Each(Parts),
}

impl Takes {
    /// What is taken from `place`: where it goes, and how many bytes.
    pub(crate) fn of(&self, place: usize) -> (usize, usize) {
        match self {
            Self::From(root, len) if *root == place => (0, *len),
            Self::Nothing | Self::From(..) => (0, 0),
            Self::Each(parts) => parts.of(place),
        }
    }
}

/// Where a rank's part is in what another one gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Find {
    /// All of it.
    All,
    /// Parts of the same length, by place.
    Index,
}

/// An exchange under way.
pub(crate) struct Exchange {
    pub(crate) offer: Option<Piece>,
    /// What of the offer is for whom, if the readers cannot know.
    pub(crate) table: Option<Parts>,
    pub(crate) readers: Readers,
    pub(crate) recv: Option<Loan>,
    pub(crate) takes: Takes,
    pub(crate) find: Find,
    /// What this rank takes from itself: from the offer, to the receive buffer, bytes.
    pub(crate) own: Option<(usize, usize, usize)>,
    pending: Vec<usize>,
    /// Bytes that have come of the part under way.
    got: usize,
}

impl Exchange {
    pub(crate) fn new(find: Find) -> Self {
        Self {
            offer: None,
            table: None,
            readers: Readers::Nobody,
            recv: None,
            takes: Takes::Nothing,
            find,
            own: None,
            pending: Vec::new(),
            got: 0,
        }
    }

    /// Members to take something from, beginning behind this one: no two ranks begin with the same.
    pub(crate) fn order(&mut self, size: usize, me: usize) {
        let takes = &self.takes;
        self.pending = (1..size)
            .map(|step| (me + step) % size)
            .filter(|&place| takes.of(place).1 > 0)
            .collect();
    }

    pub(crate) fn copy_own(&self, engine: &mut Engine) -> Result<()> {
        if let (Some((from, to, len)), Some(offer), Some(recv)) = (self.own, self.offer, self.recv)
        {
            let from = offer.at + from;
            engine.core.loans.copy(offer.loan, from, recv, to, len)?;
        }
        Ok(())
    }

    pub(crate) fn begin(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        shared: &mut Shared,
    ) -> Result<()> {
        self.order(state.size(), state.me);
        match (self.offer, &self.table) {
            (Some(offer), None) if self.readers != Readers::Nobody => {
                give(engine, state, seq, shared, offer, self.readers, None)?;
            }
            (Some(offer), Some(parts)) if self.readers != Readers::Nobody => {
                let parts = parts.clone();
                self.give_parts(engine, state, seq, shared, offer, &parts)?;
            }
            _ => {}
        }
        // After the others were served.
        self.copy_own(engine)
    }

    /// Publishes an offer with a table that says what is for whom.
    fn give_parts(
        &self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        shared: &mut Shared,
        offer: Piece,
        parts: &Parts,
    ) -> Result<()> {
        let size = state.size();
        let head = size * ENTRY;
        let others = (0..size).filter(|&place| place != state.me);
        let total: usize = others.clone().map(|place| parts.of(place).1).sum();
        let packed = head + total <= COLL_SLOT;
        let mut table = vec![0u8; head];
        let mut next = head;
        for place in others {
            let (at, len) = parts.of(place);
            let begin = if packed { next } else { at };
            let entry = &mut table[place * ENTRY..(place + 1) * ENTRY];
            entry[..8].copy_from_slice(&(begin as u64).to_le_bytes());
            entry[8..].copy_from_slice(&(len as u64).to_le_bytes());
            if packed {
                let own = state.own();
                engine
                    .core
                    .loans
                    .read(offer.loan, offer.at + at, len, |bytes| {
                        own.write_slot(seq, next, bytes);
                    })?;
                next += len;
            }
        }
        state.own().write_slot(seq, 0, &table);
        if packed {
            state.publish(&engine.peers, seq, kind::SLOT | kind::TABLE, &[]);
            return Ok(());
        }
        expose(engine, state, seq, shared, offer, self.readers, kind::TABLE)
    }

    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
    ) -> Result<Step> {
        let mut moved = 0;
        let mut index = 0;
        while index < self.pending.len() && moved < STEP_MAX {
            let place = self.pending[index];
            if self.got > 0 && index > 0 {
                break;
            }
            if state.ends[place].look(seq) == 0 {
                index += 1;
                continue;
            }
            let (to, len) = self.takes.of(place);
            let n = self.take(engine, state, seq, place, to, len)?;
            moved += n;
            self.got += n;
            if self.got == len {
                self.pending.remove(index);
                self.got = 0;
            } else {
                // The part that is under way stands first.
                self.pending.swap(0, index);
                if n == 0 {
                    break;
                }
                index = 0;
            }
        }
        Ok(match (self.pending.is_empty(), moved) {
            (true, _) => Step::Done,
            (false, 0) => Step::Idle,
            (false, _) => Step::Moved,
        })
    }

    /// Takes bytes of the part that `place` has for this rank, all or the next of them.
    fn take(
        &self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        place: usize,
        to: usize,
        len: usize,
    ) -> Result<usize> {
        let Some(recv) = self.recv else {
            return Ok(len);
        };
        let me = state.me;
        let end = &state.ends[place];
        let info = end.info(seq);
        let line = payload(end.inline(seq));
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default()) as usize;
        // Where this rank's part is, how long it is, and how much there is in all.
        let (at, there, total) = if info.kind & kind::TABLE != 0 {
            let entry = end.slot(seq).part(me * ENTRY, ENTRY);
            let mut bytes = [0; ENTRY];
            entry.copy_to(&mut bytes, Kernel::Memcpy);
            (word(&bytes[..8]), word(&bytes[8..]), COLL_SLOT)
        } else {
            let total = match info.kind {
                kind::INLINE => usize::from(info.len),
                kind::SLOT => word(&line[..8]),
                _ => described(&line).len as usize,
            };
            match self.find {
                Find::All => (0, total, total),
                Find::Index => (me.saturating_mul(len), len, total),
            }
        };
        let mismatch = || Error::Collective {
            reason: format!(
                "rank {} gave {there} bytes where {len} were expected",
                state.members[place]
            ),
        };
        let direct = |view: View<'_>, engine: &mut Engine| -> Result<usize> {
            if at.checked_add(len).is_none_or(|end| end > view.len()) {
                return Err(mismatch());
            }
            engine.core.loans.write(recv, to, len, |out| {
                view.part(at, len).copy_to(out, Kernel::Memcpy);
            })?;
            Ok(len)
        };
        if there != len {
            return Err(mismatch());
        }
        match info.kind & kind::MASK {
            kind::INLINE => direct(end.inline(seq).part(0, total.min(INLINE)), engine),
            kind::SLOT => direct(end.slot(seq).part(0, total.min(COLL_SLOT)), engine),
            kind::BUFFER => {
                let source = Source {
                    seq,
                    place,
                    buffer: GIVEN,
                    range: described(&line),
                };
                let n = (len - self.got).min(READ_MAX);
                let target = Target::Loan(recv, to + self.got);
                reader::fetch(engine, state, &source, (at + self.got) as u64, n, target)
            }
            _ => Err(mismatch()),
        }
    }
}

/// Publishes `piece`, in the way that suits its size and place. A second buffer is described with it, if there is one.
pub(crate) fn give(
    engine: &mut Engine,
    state: &mut State,
    seq: u32,
    shared: &mut Shared,
    piece: Piece,
    readers: Readers,
    result: Option<Piece>,
) -> Result<()> {
    if piece.len <= INLINE {
        let Engine { core, peers, .. } = engine;
        core.loans.read(piece.loan, piece.at, piece.len, |bytes| {
            state.publish(peers, seq, kind::INLINE, bytes);
        })?;
        return Ok(());
    }
    if piece.len <= COLL_SLOT {
        let own = state.own();
        engine
            .core
            .loans
            .read(piece.loan, piece.at, piece.len, |bytes| {
                own.write_slot(seq, 0, bytes);
            })?;
        let len = (piece.len as u64).to_le_bytes();
        state.publish(&engine.peers, seq, kind::SLOT, &len);
        return Ok(());
    }
    if let Some(result) = result {
        shared.served[super::op::RESULT] = Some(Served::Loan(result));
    }
    expose(engine, state, seq, shared, piece, readers, 0)
}

/// Publishes where `piece` is, or a temporary copy of it, for peers to read; what a collective leaves in its result buffer is described with it.
fn expose(
    engine: &mut Engine,
    state: &mut State,
    seq: u32,
    shared: &mut Shared,
    piece: Piece,
    readers: Readers,
    flags: u8,
) -> Result<()> {
    let mut line = [0u8; INLINE];
    shared.stage = engine.stage(&piece)?;
    shared.readers = readers;
    match &shared.stage {
        Some(stage) => {
            // The result is left in the temporary buffer, too.
            let range = range_of_stage(stage);
            describe(&range, &mut line[..24]);
            describe(&range, &mut line[24..]);
            shared.served = [Some(Served::Stage), Some(Served::Stage)];
        }
        None => {
            describe(&engine.range_of(&piece), &mut line[..24]);
            shared.served[GIVEN] = Some(Served::Loan(piece));
            if let Some(Served::Loan(result)) = &shared.served[super::op::RESULT] {
                describe(&engine.range_of(result), &mut line[24..]);
            }
        }
    }
    state.publish(&engine.peers, seq, kind::BUFFER | flags, &line);
    Ok(())
}

/// An exchange in which what is sent is replaced by what is received: in rounds through the slots, which hold a piece for each member.
pub(crate) struct Swap {
    pub(crate) recv: Loan,
    pub(crate) parts: Parts,
    round: usize,
    filled: bool,
    pending: Vec<usize>,
}

impl Swap {
    pub(crate) fn new(recv: Loan, parts: Parts) -> Self {
        Self {
            recv,
            parts,
            round: 0,
            filled: false,
            pending: Vec::new(),
        }
    }

    /// The piece of the part for `place` that is exchanged in `round`. Both ends of a pair have parts of the same length.
    fn piece(&self, place: usize, round: usize, unit: usize) -> (usize, usize) {
        let (at, len) = self.parts.of(place);
        let skip = len.min(round * unit);
        (at + skip, (len - skip).min(unit))
    }

    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        shared: &mut Shared,
    ) -> Result<Step> {
        shared.readers = Readers::Nobody;
        let unit = COLL_SLOT / state.size() / 16 * 16;
        let me = state.me;
        let others = || (0..state.size()).filter(|&place| place != me);
        let mut result = Step::Idle;
        loop {
            let round = self.round;
            let phase = round as u32 + 1;
            if !self.filled {
                let active: Vec<usize> = others()
                    .filter(|&place| self.piece(place, round, unit).1 > 0)
                    .collect();
                if active.is_empty() {
                    return Ok(Step::Done);
                }
                // The slot's last contents were read by all for whom they were.
                let free = round == 0
                    || others().all(|place| {
                        self.piece(place, round - 1, unit).1 == 0
                            || state.ends[place].ack(seq) >= phase - 1
                            || onecopy_shm::coll::line::reached(state.ends[place].done(), seq)
                    });
                if !free {
                    return Ok(result);
                }
                for &place in &active {
                    let (at, len) = self.piece(place, round, unit);
                    engine.core.loans.read(self.recv, at, len, |bytes| {
                        state.own().write_slot(seq, place * unit, bytes);
                    })?;
                }
                if round == 0 {
                    state.publish(&engine.peers, seq, kind::SLOT, &[]);
                } else {
                    state.advance(&engine.peers, seq, phase);
                }
                self.pending = active;
                self.filled = true;
            }
            let mut left = Vec::new();
            for &place in &self.pending {
                let end = &state.ends[place];
                if end.look(seq) < phase {
                    left.push(place);
                    continue;
                }
                let (at, len) = self.piece(place, round, unit);
                let view = end.slot(seq).part(me * unit, len);
                engine.core.loans.write(self.recv, at, len, |out| {
                    view.copy_to(out, Kernel::Memcpy);
                })?;
                result = Step::Moved;
            }
            self.pending = left;
            if !self.pending.is_empty() {
                return Ok(result);
            }
            state.own().set_ack(seq, phase);
            state.wake(&engine.peers);
            self.round += 1;
            self.filled = false;
            result = Step::Moved;
        }
    }
}
