// SPDX-License-Identifier: MIT OR Apache-2.0
//! A collective under way at one rank: it waits for its line, publishes, does its part, waits until nobody needs its buffers, and is over.

use super::exchange::{Exchange, Find};
use super::fold::Fold;
use super::messages::{MessageChain, MessageExchange};
use super::relay::Relay;
use super::select::{Stands, stands};
use super::state::{State, Step};
use super::stream::Stream;
use super::swap::Swap;
use crate::engine::Engine;
use crate::error::Result;
use crate::memory::pool::PoolBuf;
use crate::request::{RequestId, Status};
use onecopy_btl::RemoteRange;
use onecopy_shm::coll::kind;
use onecopy_shm::loan::Loan;
use std::ops::Range;

/// A range of a lent buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) loan: Loan,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// Bytes of one entry of a table of parts.
pub(crate) const ENTRY: usize = 16;
/// The buffer that a rank gives in a collective.
pub(crate) const GIVEN: usize = 0;
/// The buffer in which a rank leaves its part of a result.
pub(crate) const RESULT: usize = 1;

/// Who reads this rank's memory in a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    Nobody,
    Only(usize),
    Everyone,
}

impl Readers {
    /// Whether `place` is one of them.
    pub(crate) fn include(self, place: usize) -> bool {
        match self {
            Self::Nobody => false,
            Self::Only(only) => only == place,
            Self::Everyone => true,
        }
    }

    /// The others of them, beginning behind `me`: no two ranks begin with the same.
    pub(crate) fn others(self, size: usize, me: usize) -> impl Iterator<Item = usize> {
        behind(size, me).filter(move |&place| self.include(place))
    }
}

/// All other members, beginning behind `me`.
pub(crate) fn behind(size: usize, me: usize) -> impl Iterator<Item = usize> {
    (1..size).map(move |step| (me + step) % size)
}

/// Memory that peers may read during a collective, or call for.
pub(crate) enum Served {
    Loan(Piece),
    /// The temporary buffer of the collective.
    Stage,
}

pub(crate) enum Body {
    Barrier,
    Exchange(Exchange),
    Relay(Relay),
    Swap(Swap),
    Fold(Fold),
    Stream(Stream),
    MessageExchange(MessageExchange),
    MessageChain(MessageChain),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Waits until the line is free.
    Begin,
    /// Does its part.
    Work,
    /// Waits until nobody needs this rank's buffers.
    Needed,
    Over,
}

/// A collective under way.
pub(crate) struct Op {
    pub(crate) id: RequestId,
    pub(crate) seq: u32,
    at: At,
    pub(crate) has_read: bool,
    pub(crate) body: Body,
    pub(crate) shared: Shared,
}

/// What all collectives have, besides their own.
pub(crate) struct Shared {
    /// Who reads this rank's buffers.
    pub(crate) readers: Readers,
    pub(crate) served: [Option<Served>; 2],
    pub(crate) stage: Option<PoolBuf>,
    /// Whether the program waits in the call.
    pub(crate) waits: bool,
    /// Whether this rank leaves a share of the result for others to read.
    pub(crate) shares: bool,
}

impl Op {
    /// A collective that is to begin. `begun` says that this rank's contribution is published already, `waits` that the program waits.
    pub(crate) fn new(id: RequestId, seq: u32, body: Body, begun: bool, waits: bool) -> Self {
        Self {
            id,
            seq,
            at: if begun { At::Work } else { At::Begin },
            has_read: false,
            body,
            shared: Shared {
                readers: Readers::Nobody,
                served: [None, None],
                stage: None,
                waits,
                shares: false,
            },
        }
    }

    /// Takes up a collective of which only the publication was done.
    pub(crate) fn resume(&mut self, size: usize, me: usize) {
        if let Body::Exchange(exchange) = &mut self.body {
            exchange.order(size, me);
            exchange.own = None;
        }
    }

    /// An exchange that goes better by messages becomes one.
    fn turn(&mut self, engine: &mut Engine, state: &State) -> Result<()> {
        if let Body::Exchange(exchange) = &mut self.body
            && exchange.turned
        {
            let exchange = std::mem::replace(exchange, Exchange::new(Find::All));
            let mut messages = MessageExchange::new(exchange, self.seq);
            let begun = messages.begin(engine, state);
            self.body = Body::MessageExchange(messages);
            begun?;
        }
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// Moves on as far as possible.
    pub(crate) fn step(&mut self, engine: &mut Engine, state: &mut State) -> Result<Step> {
        let mut result = Step::Idle;
        if self.at == At::Begin {
            if state.has_channel() && !state.has_room(self.seq) {
                return Ok(result);
            }
            self.begin(engine, state)?;
            self.turn(engine, state)?;
            (self.at, result) = (At::Work, Step::Moved);
        }
        if self.at == At::Work {
            let (seq, shared) = (self.seq, &mut self.shared);
            match match &mut self.body {
                Body::Barrier => barrier(engine, state, seq),
                Body::Exchange(body) => body.step(engine, state, seq, shared),
                Body::Relay(body) => body.step(engine, state, seq, shared),
                Body::Swap(body) => body.step(engine, state, seq, shared),
                Body::Fold(body) => body.step(engine, state, seq, shared),
                Body::Stream(body) => body.step(engine, state, seq, shared),
                Body::MessageExchange(body) => body.step(engine),
                Body::MessageChain(body) => body.step(engine),
            }? {
                Step::Idle => return Ok(result),
                Step::Moved => {
                    self.turn(engine, state)?;
                    return Ok(Step::Moved);
                }
                Step::Done => {}
            }
            self.has_read = true;
            (self.at, result) = (At::Needed, Step::Moved);
        }
        if self.at == At::Needed {
            let mut readers = self.shared.readers.others(state.size(), state.me);
            if !readers.all(|place| state.has_read(place, self.seq)) {
                return Ok(result);
            }
            if let Body::Fold(fold) = &mut self.body {
                fold.finish(engine)?;
            }
            self.shared.stage = None;
            (self.at, result) = (At::Over, Step::Moved);
            let status = Status {
                source: state.me,
                tag: 0,
                bytes: 0,
            };
            engine.core.requests.complete(self.id, Ok(status));
        }
        Ok(result)
    }

    /// Whether it can only go on when `place` has written more than it has by now.
    pub(crate) fn awaits(&self, state: &State, place: usize) -> bool {
        let seq = self.seq;
        self.at == At::Work
            && match &self.body {
                Body::Barrier => barrier_awaits(state, seq, place),
                Body::Exchange(body) => body.awaits(state, seq, place),
                Body::Relay(body) => body.awaits(state, seq, place),
                Body::Swap(body) => body.awaits(state, seq, place),
                Body::Fold(body) => body.awaits(state, seq, place),
                Body::Stream(body) => body.awaits(state, seq, place),
                // Messages of who is gone end by themselves.
                Body::MessageExchange(_) | Body::MessageChain(_) => false,
            }
    }

    fn begin(&mut self, engine: &mut Engine, state: &mut State) -> Result<()> {
        let (seq, shared) = (self.seq, &mut self.shared);
        match &mut self.body {
            Body::Barrier => {
                if state.children().next().is_none() {
                    state.publish(&engine.peers, seq, kind::NOTHING, &[]);
                }
                Ok(())
            }
            Body::Exchange(body) => body.begin(engine, state, seq, shared),
            Body::Relay(body) => {
                body.begin(engine, state, seq, shared);
                Ok(())
            }
            Body::Swap(body) => body.begin(engine, state, seq, shared),
            Body::Fold(body) => body.begin(engine, state, seq, shared),
            Body::Stream(body) => body.begin(engine, state, shared),
            Body::MessageExchange(body) => body.begin(engine, state),
            Body::MessageChain(_) => Ok(()),
        }
    }

    /// Gives back what the collective holds; it will not go on.
    pub(crate) fn abandon(&mut self, engine: &mut Engine) {
        match &mut self.body {
            Body::MessageExchange(body) => body.abandon(engine),
            Body::MessageChain(body) => body.abandon(engine),
            _ => {}
        }
        self.shared.stage = None;
        self.at = At::Over;
    }
}

/// Groups up to this size do without a tree.
pub(crate) const FLAT: usize = 8;
/// Children of an inner node of a tree.
const ARITY: usize = 4;

impl State {
    /// The members whose contributions this rank combines with its own in a tree: a node stands for a run of places that begins with its
    /// own, so that the order of the places is kept. No tree: none.
    pub(crate) fn children(&self) -> impl Iterator<Item = usize> + use<> {
        let (mut begin, mut end) = (0, self.size());
        let mut runs = [(0, 0); ARITY];
        if end > FLAT {
            loop {
                // The node at `begin` stands for begin..end; the rest is dealt to its children in runs.
                let rest = end - begin - 1;
                let mut at = begin + 1;
                for (index, run) in runs.iter_mut().enumerate() {
                    let len = rest / ARITY + usize::from(index < rest % ARITY);
                    *run = (at, at + len);
                    at += len;
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
}

fn barrier(engine: &Engine, state: &mut State, seq: u32) -> Result<Step> {
    let come = |state: &State, place: usize| state.ends[place].look(seq) > 0;
    if state.size() <= FLAT {
        let all = (0..state.size()).all(|place| come(state, place));
        return Ok(if all { Step::Done } else { Step::Idle });
    }
    if state.own().look(seq) == 0 {
        if !state.children().all(|place| come(state, place)) {
            return Ok(Step::Idle);
        }
        state.publish(&engine.peers, seq, kind::NOTHING, &[]);
    }
    Ok(if come(state, 0) {
        Step::Done
    } else {
        Step::Idle
    })
}

fn barrier_awaits(state: &State, seq: u32, place: usize) -> bool {
    let needed = if state.size() <= FLAT {
        true
    } else if state.own().look(seq) == 0 {
        state.children().any(|child| child == place)
    } else {
        place == 0
    };
    needed && state.lacks(place, seq, 1)
}

/// Where a buffer is, for a line's payload.
pub(crate) fn describe(range: &RemoteRange, out: &mut [u8]) {
    let words = [
        range.address,
        range.heap.map_or(u64::MAX, |offset| offset.0),
        range.len,
    ];
    for (place, word) in out.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

impl Engine {
    /// Where a lent buffer is, for a peer.
    pub(crate) fn range_of(&self, piece: &Piece) -> RemoteRange {
        let address = piece.loan.address() + piece.at;
        RemoteRange {
            address: address as u64,
            heap: self.core.segment.heap_offset_of(address, piece.len),
            region: None,
            len: piece.len as u64,
        }
    }

    /// A temporary buffer that peers can map, with a copy of `piece` but for what is `unread`, if that is better than having them read the buffer itself.
    pub(crate) fn stage(&mut self, piece: &Piece, unread: Range<usize>) -> Result<Option<PoolBuf>> {
        let range = self.range_of(piece);
        let limit = self.colls.stage_max;
        if stands(piece.len, range.heap.is_some(), limit) != Stands::Copy {
            return Ok(None);
        }
        let Some(mut stage) = self.core.buffers.try_take_collective(piece.len) else {
            return Ok(None);
        };
        self.core
            .loans
            .read(piece.loan, piece.at, piece.len, |bytes| {
                for part in [0..unread.start, unread.end..bytes.len()] {
                    stage[part.clone()].copy_from_slice(&bytes[part]);
                }
            })?;
        Ok(Some(stage))
    }
}

/// Where a temporary buffer is, for a peer.
pub(crate) fn range_of_stage(stage: &PoolBuf) -> RemoteRange {
    RemoteRange {
        address: stage.as_ptr() as u64,
        heap: stage.offset(),
        region: None,
        len: stage.len() as u64,
    }
}
