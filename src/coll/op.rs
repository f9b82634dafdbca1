// SPDX-License-Identifier: MIT OR Apache-2.0
//! A collective under way at one rank: it waits for its line, publishes, does its part, waits until nobody needs its
//! buffers, and is over.

use super::contribution::{Contribution, Readers, Scratch, StepContext};
use super::exchange::{Exchange, Find};
use super::fold::Fold;
use super::messages::{MessageChain, MessageExchange};
use super::relay::Relay;
use super::state::{CommState, FLAT, Step};
use super::stream::Stream;
use super::swap::Swap;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::{RequestId, Status};
use crate::state::Tally;
use onecopy_shm::coll::kind;

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
enum OpState {
    /// Waits until the line is free.
    Begin,
    /// Does its part.
    Work,
    /// Waits until nobody needs this rank's buffers.
    Needed,
    Over,
}

/// A collective under way.
pub(crate) struct Operation {
    pub(crate) id: RequestId,
    pub(crate) seq: u32,
    at: OpState,
    pub(crate) has_read: bool,
    /// It is in [`Self::step`]; after that, a function of the program has panicked there.
    stepping: bool,
    pub(crate) body: Body,
    pub(crate) shared: Contribution,
    scratch: Scratch,
    /// What has come so far.
    tally: Tally,
}

impl Operation {
    /// A collective that is to begin. `begun` says that this rank's contribution is published already, `waits` that the
    /// program waits.
    pub(crate) fn new(id: RequestId, seq: u32, body: Body, begun: bool, waits: bool) -> Self {
        Self {
            id,
            seq,
            at: if begun { OpState::Work } else { OpState::Begin },
            has_read: false,
            stepping: false,
            body,
            shared: Contribution {
                readers: Readers::Nobody,
                served: [None, None],
                temp: None,
                waits,
                shares: false,
            },
            scratch: Scratch::default(),
            tally: Tally::default(),
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
    fn turn(&mut self, engine: &mut Engine, state: &CommState) -> Result<()> {
        if let Body::Exchange(exchange) = &mut self.body
            && exchange.turned
        {
            let exchange = std::mem::replace(exchange, Exchange::new(Find::All));
            let mut messages = MessageExchange::new(exchange, state, self.seq);
            let begun = messages.begin(engine);
            self.body = Body::MessageExchange(messages);
            begun?;
        }
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.at == OpState::Over
    }

    /// Moves on as far as possible. If a function of the program panics, what it was called for is left half done: the
    /// next step is an error.
    pub(crate) fn step(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<Step> {
        if std::mem::replace(&mut self.stepping, true) {
            return Err(Error::Collective {
                reason: "a function of the program panicked in it".into(),
            });
        }
        std::mem::swap(&mut self.tally, &mut engine.core.tally);
        let step = self.go_on(engine, state);
        std::mem::swap(&mut self.tally, &mut engine.core.tally);
        self.stepping = false;
        step
    }

    fn go_on(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<Step> {
        let mut result = Step::Idle;
        if self.at == OpState::Begin {
            if state.has_channel() && !state.has_room(self.seq) {
                return Ok(result);
            }
            self.begin(engine, state)?;
            self.turn(engine, state)?;
            (self.at, result) = (OpState::Work, Step::Moved);
        }
        if self.at == OpState::Work {
            let seq = self.seq;
            let mut cx = StepContext {
                engine,
                state,
                seq,
                shared: &mut self.shared,
            };
            match match &mut self.body {
                Body::Barrier => barrier(cx.engine, cx.state, seq),
                Body::Exchange(body) => body.step(&mut cx),
                Body::Relay(body) => body.step(&mut cx),
                Body::Swap(body) => body.step(&mut cx),
                Body::Fold(body) => body.step(&mut cx, &mut self.scratch),
                Body::Stream(body) => body.step(&mut cx, &mut self.scratch),
                Body::MessageExchange(body) => body.step(cx.engine, cx.state),
                Body::MessageChain(body) => body.step(cx.engine, cx.state),
            }? {
                Step::Idle => return Ok(result),
                Step::Moved => {
                    self.turn(engine, state)?;
                    return Ok(Step::Moved);
                }
                Step::Done => {}
            }
            self.scratch.give_back();
            engine.core.tally.count(&mut engine.core.counters);
            self.has_read = true;
            (self.at, result) = (OpState::Needed, Step::Moved);
        }
        if self.at == OpState::Needed {
            let mut readers = self.shared.readers.others(state.size(), state.me);
            if !readers.all(|place| state.has_read(place, self.seq)) {
                return Ok(result);
            }
            if let Body::Fold(fold) = &mut self.body {
                fold.finish(engine)?;
            }
            self.shared.temp = None;
            (self.at, result) = (OpState::Over, Step::Moved);
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
    pub(crate) fn awaits(&self, state: &CommState, place: usize) -> bool {
        let seq = self.seq;
        self.at == OpState::Work
            && match &self.body {
                Body::Barrier => barrier_awaits(state, seq, place),
                Body::Exchange(body) => body.awaits(state, seq, place),
                Body::Relay(body) => body.awaits(state, seq, place),
                Body::Swap(body) => body.awaits(state, seq, place),
                Body::Fold(body) => body.awaits(state, seq, place),
                Body::Stream(body) => body.awaits(state, seq, place),
                // Messages of a rank that is gone end by themselves.
                Body::MessageExchange(_) | Body::MessageChain(_) => false,
            }
    }

    fn begin(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<()> {
        let seq = self.seq;
        let cx = &mut StepContext {
            engine,
            state,
            seq,
            shared: &mut self.shared,
        };
        match &mut self.body {
            Body::Barrier => {
                let StepContext { engine, state, .. } = cx;
                if state.children().next().is_none() {
                    state.publish(&engine.peers, seq, kind::NOTHING, &[]);
                }
                Ok(())
            }
            Body::Exchange(body) => body.begin(cx),
            Body::Relay(body) => {
                body.begin(cx);
                Ok(())
            }
            Body::Swap(body) => {
                body.begin(cx);
                Ok(())
            }
            Body::Fold(body) => body.begin(cx),
            Body::Stream(body) => body.begin(cx),
            Body::MessageExchange(body) => body.begin(cx.engine),
            Body::MessageChain(_) => Ok(()),
        }
    }

    /// Gives back what the collective holds; it will not go on.
    pub(crate) fn abandon(&mut self, engine: &mut Engine) {
        match &mut self.body {
            Body::MessageExchange(body) => body.abandon(engine),
            Body::MessageChain(body) => body.abandon(engine),
            // What they hold is in the contribution and the scratch memory.
            Body::Barrier
            | Body::Exchange(_)
            | Body::Relay(_)
            | Body::Swap(_)
            | Body::Fold(_)
            | Body::Stream(_) => {}
        }
        self.shared.temp = None;
        self.scratch.give_back();
        self.at = OpState::Over;
    }
}

fn barrier(engine: &Engine, state: &mut CommState, seq: u32) -> Result<Step> {
    if state.size() <= FLAT {
        let missing = (0..state.size()).any(|place| barrier_awaits(state, seq, place));
        return Ok(if missing { Step::Idle } else { Step::Done });
    }
    if state.awaited_in_tree(seq).next().is_some() {
        return Ok(Step::Idle);
    }
    if state.own().look(seq) == 0 {
        state.publish(&engine.peers, seq, kind::NOTHING, &[]);
        if state.awaited_in_tree(seq).next().is_some() {
            return Ok(Step::Idle);
        }
    }
    Ok(Step::Done)
}

fn barrier_awaits(state: &CommState, seq: u32, place: usize) -> bool {
    if state.size() <= FLAT {
        state.lacks(place, seq, 1)
    } else {
        state.awaited_in_tree(seq).any(|awaited| awaited == place)
    }
}
