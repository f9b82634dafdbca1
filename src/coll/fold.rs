// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reductions: each rank combines, in the order of the ranks, what all contributed to its range of the vector, and
//! writes the result wherever it is needed, if it can.

mod attach;
pub(super) mod segment;
mod spread;

use super::exchange::{Given, give};
use super::lines::{self, Lines};
use super::push::{WRITTEN, place_of, reaches_all};
use super::reader;
use super::select::{Algorithm, share};
use super::shared::{GIVEN, Piece, Readers, Shared, behind};
use super::source::{Source, Target};
use super::state::{STEP_MAX, State, Step};
use super::{ElemType, Op};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::pool::{Place, PoolBuf};
use crate::peer::Peer;
use attach::count;
use onecopy_btl::RemoteRange;
use onecopy_shm::coll::{Content, INLINE, View, kind};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::Loan;
use segment::{Operands, combine_all};

/// Bytes of a segment when two vectors are combined, and when more are: then the result goes through the cache several
/// times.
const SEGMENT_TWO: usize = 128 << 10;
const SEGMENT_MANY: usize = 16 << 10;
/// Bytes of a segment that is written to several places: it stays in the first cache between.
const SEGMENT_WRITTEN: usize = 16 << 10;
/// Bytes for what cannot be read in place.
const FETCH_MAX: usize = 256 << 10;

/// From this length on all combine a range of a reduction for its root: below, one more hand-off costs more than the
/// halves save.
const HELPED_MIN: usize = 128 << 10;

/// A share of the result is combined, and stands in the buffer of its rank: [`WRITTEN`]; it stands in those of all
/// others, too.
const EVERYWHERE: u32 = WRITTEN + 1;

/// Where a member's contribution is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
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

/// A reduction under way.
pub(crate) struct Fold {
    pub(crate) op: Op,
    pub(crate) elem: ElemType,
    pub(crate) algorithm: Algorithm,
    pub(crate) send: Piece,
    /// Where the result goes, and the place of the range's first byte there.
    pub(crate) recv: Option<(Loan, usize)>,
    /// The range of the vector that this rank combines; empty: none.
    pub(crate) range: (usize, usize),
    /// Members below this place contribute to the range.
    pub(crate) upto: usize,
    /// Whether the vector lies where the result goes.
    pub(crate) in_place: bool,
    pub(crate) readers: Readers,
    /// At the end: bytes of the receive buffer that come to its front.
    pub(crate) to_front: Option<(usize, usize)>,
    /// Who gets the result, if it is only one.
    pub(crate) root: Option<usize>,
    /// Whether all combine a range for the root.
    helps: bool,
    /// Members into whose buffers this rank writes its range of the result.
    targets: Vec<(usize, RemoteRange)>,
    at: FoldState,
    from: Vec<From>,
    /// Bytes of the range that are combined.
    folded: usize,
    /// What cannot be read in place, of the segment under way: members done, and bytes of the next one.
    fetched: usize,
    temp: Option<PoolBuf>,
    pending: Vec<usize>,
    got: usize,
    lines: Lines,
    /// The flags of this rank's own line.
    flags: u8,
}

impl Fold {
    pub(crate) fn new(op: Op, elem: ElemType, algorithm: Algorithm, send: Piece) -> Self {
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
            to_front: None,
            root: None,
            helps: false,
            targets: Vec::new(),
            at: FoldState::Contributions,
            from: Vec::new(),
            folded: 0,
            fetched: 0,
            temp: None,
            pending: Vec::new(),
            got: 0,
            lines: Lines::default(),
            flags: 0,
        }
    }

    pub(crate) fn begin(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        shared: &mut Shared,
    ) -> Result<()> {
        if self.algorithm == Algorithm::Tree && state.children().next().is_some() {
            // Combined with the children's first.
            return Ok(());
        }
        let split = self.algorithm == Algorithm::Split;
        let result = self.recv.map(|(loan, at)| Piece {
            loan,
            at,
            len: self.send.len,
        });
        let result = result.filter(|_| split || self.has_helpers());
        let mut flags = 0;
        if result.is_some_and(|piece| engine.range_of(&piece).heap.is_some()) {
            flags |= kind::OPEN;
        }
        if self.has_helpers() && shared.waits && reaches_all(engine, state) {
            flags |= kind::WRITES;
        }
        if shared.waits && state.tuning.asks {
            flags |= kind::ANSWERS;
        }
        if self.has_helpers() {
            // Whoever combines a range of it reads everyone's contribution.
            self.readers = Readers::Everyone;
        }
        shared.shares = split;
        self.flags = flags;
        let given = Given {
            unread: 0..0,
            piece: self.send,
            readers: self.readers,
            result,
            flags,
        };
        give(engine, state, seq, shared, given)
    }

    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        shared: &mut Shared,
    ) -> Result<Step> {
        if self.algorithm == Algorithm::Tree {
            return self.step_tree(engine, state, seq);
        }
        let mut result = Step::Idle;
        if self.at == FoldState::Contributions {
            if !self.share_out(engine, state, seq, shared)? {
                return Ok(Step::Idle);
            }
            if self.range.0 == self.range.1 || self.upto == 0 {
                if self.algorithm != Algorithm::Split && !self.helps {
                    return Ok(Step::Done);
                }
            } else {
                if !self.find(engine, state, seq)? {
                    return Ok(Step::Idle);
                }
                self.find_targets(engine, state, seq, shared)?;
            }
            (self.at, result) = (FoldState::Range, Step::Moved);
        }
        if self.at == FoldState::Range {
            let mut bytes = 0;
            while self.folded < self.range.1 - self.range.0 && self.upto > 0 {
                let n = self.segment(engine, state, seq, shared)?;
                if n == 0 {
                    return Ok(if bytes > 0 { Step::Moved } else { result });
                }
                bytes += n;
                if bytes >= STEP_MAX {
                    return Ok(Step::Moved);
                }
            }
            self.temp = None;
            if self.algorithm != Algorithm::Split && !self.helps {
                return Ok(Step::Done);
            }
            let everywhere = self.algorithm == Algorithm::Split && !self.targets.is_empty();
            let phase = if everywhere { EVERYWHERE } else { WRITTEN };
            state.advance(&engine.peers, seq, phase);
            if self.helps && self.root != Some(state.me) {
                return Ok(Step::Done);
            }
            self.pending = behind(state.size(), state.me)
                .filter(|&place| {
                    let (begin, end) = share(self.send.len, self.elem, state.size(), place);
                    begin < end
                })
                .collect();
            // The result of a split reduction stands in the stage; a root's holds what it gave.
            if self.algorithm == Algorithm::Split
                && let (Some(stage), Some((loan, at))) = (&shared.stage, self.recv)
            {
                let (begin, end) = self.range;
                let loans = &mut engine.core.loans;
                loans.write(loan, at + begin, end - begin, |out| {
                    out.copy_from_slice(&stage[begin..end]);
                })?;
            }
            self.at = if self.helps {
                FoldState::Helped
            } else {
                FoldState::Spread
            };
            result = Step::Moved;
        }
        if self.at == FoldState::Helped {
            self.pending
                .retain(|&place| state.ends[place].look(seq) < WRITTEN);
            return Ok(if self.pending.is_empty() {
                Step::Done
            } else {
                result
            });
        }
        match self.spread(engine, state, seq, shared)? {
            Step::Idle => Ok(result),
            other => Ok(other),
        }
    }

    /// Finds out where all contributions are, once they are there.
    fn find(&mut self, engine: &Engine, state: &mut State, seq: u32) -> Result<bool> {
        while self.from.len() < self.upto {
            let place = self.from.len();
            if place == state.me {
                self.from.push(if self.send.len <= INLINE {
                    From::Inline
                } else if self.send.len <= COLL_SLOT {
                    From::Slot
                } else {
                    From::Own
                });
                continue;
            }
            let Some(said) = self.lines.of(state, place, seq)? else {
                return Ok(false);
            };
            // No longer than line or slot: the bytes are taken by this rank's length, which is the same.
            let (from, len) = match said.content {
                Content::Inline(len) => (From::Inline, len as u64),
                Content::Slot(len) => (From::Slot, len as u64),
                Content::Nothing => (From::Inline, 0),
                Content::Buffer => {
                    let range = lines::range(said.given);
                    (reach(engine, state, place, range), range.len)
                }
            };
            if len != self.send.len as u64 {
                return Err(mismatch(state, place, len, self.send.len));
            }
            self.from.push(from);
        }
        Ok(true)
    }

    /// Combines the next segment of the range. Gives its bytes; 0: something has to come first.
    fn segment(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
        shared: &mut Shared,
    ) -> Result<usize> {
        let all = self.range.1 - self.range.0;
        let left = all - self.folded;
        // The result goes where this rank's contribution stands.
        let alias = self.from.contains(&From::Own)
            && match shared.stage {
                Some(_) => self.algorithm == Algorithm::Split,
                None => self.in_place,
            };
        // What has to be copied before it can be combined. What may turn out not to have been there is, where it cannot
        // be combined again.
        let absent: Vec<usize> = (0..self.upto)
            .filter(|&place| match &self.from[place] {
                From::Buffer(range) => {
                    let first = range.part(0, range.len.min(1));
                    reader::view(&engine.peers, state, place, &first).is_none()
                }
                From::Attached(_) => alias,
                _ => false,
            })
            .collect();
        let size = self.elem.size();
        let find_targets = match (absent.len(), self.upto) {
            (0, _) if !self.targets.is_empty() => SEGMENT_WRITTEN,
            (0, 0..=2) => SEGMENT_TWO,
            (0, _) => SEGMENT_MANY,
            (count, _) => (FETCH_MAX / count).clamp(4 << 10, SEGMENT_TWO),
        };
        let unit = (find_targets / size * size).max(size);
        let len = unit.min(left);
        let begin = self.range.0 + place_of(seq, all, self.folded, len);
        let user = matches!(self.op, Op::User(_));
        let extra = if user || self.upto > 2 || !absent.is_empty() {
            2
        } else {
            0
        };
        // A helper has no place of its own for the result.
        let apart = usize::from(self.helps && self.recv.is_none());
        let needed = (absent.len() + extra + apart) * len;
        if self.temp.as_ref().map_or(0, |temp| temp.len()) < needed {
            self.temp = Some(engine.core.buffers.take(needed, Place::Private)?);
            self.fetched = 0;
        }
        // Taken out, so that the engine is free meanwhile.
        let mut temp = self.temp.take();
        let room = temp.as_deref_mut().unwrap_or_default();
        let (copies, work) = room.split_at_mut((absent.len() * len).min(room.len()));
        let (helped, work) = work.split_at_mut(apart * len);
        while self.fetched < absent.len() {
            let place = absent[self.fetched];
            let (From::Buffer(range) | From::Attached(range)) = self.from[place] else {
                break;
            };
            let said = self.lines.of(state, place, seq)?;
            let source = Source {
                seq,
                place,
                buffer: GIVEN,
                range,
                answers: said.is_some_and(|said| said.has(kind::ANSWERS)),
            };
            let to = &mut copies[self.fetched * len..(self.fetched + 1) * len];
            let n = reader::fetch(engine, state, &source, begin as u64, len, Target::Bytes(to))?;
            if n < len {
                self.temp = temp;
                return Ok(0);
            }
            self.fetched += 1;
        }
        let in_place = if alias {
            Vec::new()
        } else if let Some(all) = self.attach(&engine.peers, state, (begin, len)) {
            all
        } else {
            self.temp = temp;
            return self.segment(engine, state, seq, shared);
        };
        let mut views: Vec<Option<View<'_>>> = Vec::with_capacity(self.upto);
        for place in 0..self.upto {
            let end = &state.ends[place];
            let lost = || mismatch(state, place, 0, len);
            views.push(match &self.from[place] {
                From::Own => None,
                From::Inline => Some(end.in_line(seq, begin, len).ok_or_else(lost)?),
                From::Slot => Some(end.in_slot(seq, begin, len).ok_or_else(lost)?),
                From::Buffer(range) | From::Attached(range) => {
                    let copied = absent.iter().position(|&other| other == place);
                    let attached = in_place.iter().find(|(other, _)| *other == place);
                    let view = if let Some(index) = copied {
                        Some(View::of(&copies[index * len..(index + 1) * len]))
                    } else if let Some((_, bytes)) = attached {
                        bytes.view()
                    } else {
                        let range = range.part(begin as u64, len as u64);
                        reader::view(&engine.peers, state, place, &range)
                    };
                    Some(view.ok_or_else(lost)?)
                }
            });
        }
        let operands = Operands {
            op: &self.op,
            elem: self.elem,
            own: views.iter().position(Option::is_none),
            alias,
        };
        let loans = &mut engine.core.loans;
        match (&mut shared.stage, self.recv) {
            (Some(stage), _) if self.algorithm == Algorithm::Split => {
                let out = &mut stage[begin..begin + len];
                combine_all(&operands, out, &views, None, work);
            }
            (Some(stage), Some((loan, at))) if operands.own.is_some() => {
                let own = View::of(&stage[begin..begin + len]);
                loans.write(loan, at + self.result_at(begin), len, |out| {
                    combine_all(&operands, out, &views, Some(own), work);
                })?;
            }
            (_, Some((loan, at))) => {
                let to = (loan, at + self.result_at(begin), len);
                let from = (self.send.loan, self.send.at + begin, len);
                loans.write_viewing(to, from, |out, own| {
                    combine_all(&operands, out, &views, Some(own), work);
                })?;
            }
            (_, None) if apart > 0 => {
                let own = engine
                    .core
                    .loans
                    .view(self.send.loan, self.send.at + begin, len)?;
                combine_all(&operands, helped, &views, Some(own), work);
            }
            (_, None) => {}
        }
        drop(views);
        let members: Vec<usize> = in_place.iter().map(|&(place, _)| place).collect();
        if !self.were_there(in_place) {
            self.temp = temp;
            return self.segment(engine, state, seq, shared);
        }
        count(engine, state, &members, len);
        self.put_out(engine, state, (begin, len), helped)?;
        // Who gave up has given its buffer to someone else meanwhile.
        for place in 0..self.upto {
            if matches!(self.from[place], From::Buffer(_) | From::Attached(_))
                && let Some(error) = state.failure_of(place)
            {
                return Err(error);
            }
        }
        self.temp = temp;
        self.fetched = 0;
        self.folded += len;
        Ok(len)
    }

    /// Where in the receive buffer byte `begin` of the vector goes.
    fn result_at(&self, begin: usize) -> usize {
        if self.algorithm == Algorithm::Split
            || self.helps
            || self.in_place && self.to_front.is_some()
        {
            begin
        } else {
            begin - self.range.0
        }
    }

    /// A short vector in a large group: up a tree, down by one line that all read.
    fn step_tree(&mut self, engine: &mut Engine, state: &mut State, seq: u32) -> Result<Step> {
        let mut result = Step::Idle;
        let len = self.send.len;
        if self.at == FoldState::Contributions {
            if state.own().look(seq) == 0 {
                if !state
                    .children()
                    .all(|place| state.ends[place].look(seq) > 0)
                {
                    return Ok(Step::Idle);
                }
                state.need_slots(&engine.core.home)?;
                let mut work = engine.core.buffers.take(3 * COLL_SLOT, Place::Private)?;
                let (out, work) = work.split_at_mut(COLL_SLOT);
                let out = &mut out[..len];
                let own = (self.send.loan, self.send.at, len);
                let Engine { core, peers, .. } = engine;
                let mut views = vec![Some(core.loans.view(own.0, own.1, len)?)];
                for place in state.children() {
                    views.push(Some(small(state, place, seq, len)?));
                }
                let operands = Operands {
                    op: &self.op,
                    elem: self.elem,
                    own: None,
                    alias: false,
                };
                combine_all(&operands, out, &views, None, work);
                if len <= INLINE {
                    state.publish(peers, seq, kind::INLINE, out);
                } else {
                    state.own().write_slot(seq, 0, out);
                    state.publish(peers, seq, kind::SLOT, &(len as u64).to_le_bytes());
                }
            }
            (self.at, result) = (FoldState::Result, Step::Moved);
        }
        let Some((loan, to)) = self.recv else {
            return Ok(Step::Done);
        };
        if state.ends[0].look(seq) == 0 {
            return Ok(result);
        }
        let view = small(state, 0, seq, len)?;
        engine.core.loans.write(loan, to, len, |out| {
            view.copy_to(out, Kernel::Memcpy);
        })?;
        Ok(Step::Done)
    }

    /// What is left to do once nobody needs this rank's buffers.
    pub(crate) fn finish(&mut self, engine: &mut Engine) -> Result<()> {
        if let (Some((at, len)), Some((loan, to))) = (self.to_front, self.recv) {
            engine.core.loans.copy(loan, to + at, loan, to, len)?;
        }
        Ok(())
    }
}

/// How the bytes of a member's buffer are combined: in place, if a layer maps them; asked once per collective.
fn reach(engine: &Engine, state: &State, place: usize, range: RemoteRange) -> From {
    let peer = engine.peers[state.members[place] as usize].as_ref();
    let attaches = |peer: &Peer| {
        let first = range.part(0, range.len.min(1));
        peer.link.view(&first).is_none() && peer.link.attaches(&range, range.len)
    };
    match peer {
        Some(peer) if attaches(peer) => From::Attached(range),
        _ => From::Buffer(range),
    }
}

/// A short contribution of a member.
fn small(state: &State, place: usize, seq: u32, len: usize) -> Result<View<'_>> {
    let said = lines::read(state, place, seq)?;
    let there = match said.content {
        Content::Inline(there) | Content::Slot(there) => there as u64,
        Content::Nothing | Content::Buffer => said.given.len,
    };
    state.ends[place]
        .bytes(seq, &said, 0, len)
        .filter(|_| there == len as u64)
        .ok_or_else(|| mismatch(state, place, there, len))
}

pub(super) fn mismatch(state: &State, place: usize, there: u64, len: usize) -> Error {
    Error::Collective {
        reason: format!(
            "rank {} gave a vector of {there} bytes where {len} were expected",
            state.members[place]
        ),
    }
}
