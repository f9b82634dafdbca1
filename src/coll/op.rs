// SPDX-License-Identifier: MIT OR Apache-2.0
//! A collective under way at one rank. The rank waits until its line is free, publishes its contribution, does its
//! part, and waits until no peer needs its buffers.

use super::context::{MessageContext, MessageParts, Messenger, StepContext, StepParts};
use super::contribution::{Contribution, GIVEN, Readers, Scratch, Served};
use super::exchange::Exchange;
use super::fold::Fold;
use super::messages::{MessageChain, MessageExchange};
use super::pieces::Pieces;
use super::relay::Relay;
use super::select::FLAT;
use super::state::{CommState, Step};
use super::stream::Stream;
use super::swap::Swap;
use super::tally::Tally;
use super::tree::TreeFold;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::{RequestId, Status};
use onecopy_shm::coll::kind;
use std::time::Instant;

pub(crate) enum Body {
    Barrier,
    Exchange(Exchange),
    Relay(Box<Relay>),
    Swap(Swap),
    Fold(Fold),
    TreeFold(TreeFold),
    Pieces(Box<Pieces>),
    Stream(Stream),
    MessageExchange(Box<MessageExchange>),
    MessageChain(Box<MessageChain>),
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
    state: OpState,
    pub(crate) has_read: bool,
    /// It is in [`Self::step`]; after that, a function of the program has panicked there.
    stepping: bool,
    pub(crate) body: Body,
    pub(crate) shared: Contribution,
    scratch: Scratch,
    /// What has arrived so far.
    tally: Tally,
}

/// The body of an [`Operation`] and what it works with, borrowed apart.
struct OperationParts<'o> {
    body: &'o mut Body,
    scratch: &'o mut Scratch,
    cx: MessageContext<'o>,
}

impl Operation {
    /// A collective that is to begin. `begun` says that this rank's contribution is published already,
    /// `blocking` that the program waits.
    pub(crate) fn new(id: RequestId, seq: u32, body: Body, begun: bool, blocking: bool) -> Self {
        Self {
            id,
            seq,
            state: if begun { OpState::Work } else { OpState::Begin },
            has_read: false,
            stepping: false,
            body,
            shared: Contribution {
                readers: Readers::Nobody,
                served: [None, None],
                temp: None,
                blocking,
                alone: false,
                shares: false,
                way: None,
                timed: None,
            },
            scratch: Scratch::default(),
            tally: Tally::default(),
        }
    }

    /// Takes up a short collective: this rank's contribution is published, for `in_place_readers` to read in place, and
    /// perhaps all of the others' are taken.
    pub(crate) fn resume(&mut self, state: &CommState, in_place_readers: Option<Readers>) {
        if let Some(readers) = in_place_readers {
            let given = match &self.body {
                Body::Exchange(exchange) => exchange.plan.offer,
                Body::Fold(fold) => Some(fold.plan.given()),
                Body::Pieces(pieces) => Some(pieces.given()),
                // These give nothing in place without a request.
                Body::Barrier
                | Body::Relay(_)
                | Body::Swap(_)
                | Body::TreeFold(_)
                | Body::Stream(_)
                | Body::MessageExchange(_)
                | Body::MessageChain(_) => None,
            };
            self.shared.readers = readers;
            self.shared.served[GIVEN] = given.map(Served::Loan);
        }
        if state.done == self.seq {
            (self.state, self.has_read) = (OpState::Needed, true);
            return;
        }
        match &mut self.body {
            Body::Exchange(exchange) => {
                exchange.skip_own();
                if exchange.plan.published {
                    // The root of a gather: it gives nothing, and so has published nothing. Members whose parts are
                    // not short, as it thought, write them once they know where its buffer is.
                    self.state = OpState::Begin;
                }
            }
            Body::Pieces(pieces) => pieces.resume(),
            _ => {}
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == OpState::Over
    }

    /// Begins it, if its line is free. Says whether it has begun.
    pub(crate) fn begin_if_free(
        &mut self,
        engine: &mut Engine,
        state: &mut CommState,
    ) -> Result<bool> {
        if self.state == OpState::Begin {
            let next = self.try_begin(engine, state)?;
            self.state = next.unwrap_or(OpState::Begin);
        }
        Ok(self.state != OpState::Begin)
    }

    /// Moves on as far as possible. If a function of the program panics, what it was called for is left half done: the
    /// next step is an error.
    pub(crate) fn step(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<Step> {
        if std::mem::replace(&mut self.stepping, true) {
            return Err(Error::Collective {
                reason: "a function of the program panicked in it".into(),
            });
        }
        let step = self.advance(engine, state);
        self.stepping = false;
        step
    }

    /// Passes through as many states as it can.
    fn advance(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<Step> {
        let mut result = Step::Idle;
        while self.state != OpState::Over {
            let next = match self.state {
                OpState::Begin => self.try_begin(engine, state)?,
                OpState::Work => match self.work(engine, state)? {
                    Step::Done => Some(OpState::Needed),
                    Step::Moved => return Ok(Step::Moved),
                    Step::Idle => None,
                },
                OpState::Needed => self.try_end(engine, state)?,
                OpState::Over => None,
            };
            let Some(next) = next else { break };
            (self.state, result) = (next, Step::Moved);
        }
        Ok(result)
    }

    /// Publishes what this rank contributes, once the line is free.
    fn try_begin(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<Option<OpState>> {
        if state.has_channel() && !state.has_room(self.seq) {
            return Ok(None);
        }
        if let Some(timed) = &mut self.shared.timed {
            timed.begun = Some(Instant::now());
        }
        self.begin(engine, state)?;
        Ok(Some(OpState::Work))
    }

    /// Does some of this rank's part.
    fn work(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<Step> {
        let OperationParts {
            body,
            scratch,
            mut cx,
        } = self.parts(engine, state);
        let step = match body {
            Body::Barrier => barrier(cx.over_channel()),
            Body::Exchange(body) => body.step(&mut cx),
            Body::Relay(body) => body.step(&mut cx),
            Body::Swap(body) => body.step(cx.over_channel()),
            Body::Fold(body) => body.step(cx.over_channel(), scratch),
            Body::TreeFold(body) => body.step(cx.over_channel()),
            Body::Pieces(body) => body.step(cx.over_channel(), scratch),
            Body::Stream(body) => body.step(cx.over_channel(), scratch),
            Body::MessageExchange(body) => {
                let MessageParts {
                    mut messenger,
                    state,
                    ..
                } = cx.by_messages();
                body.step(&mut messenger, state)
            }
            Body::MessageChain(body) => {
                let MessageParts {
                    mut messenger,
                    state,
                    ..
                } = cx.by_messages();
                body.step(&mut messenger, state)
            }
        }?;
        match step {
            Step::Idle | Step::Moved => {}
            Step::Done => {
                self.scratch.give_back();
                self.tally.count(&mut engine.core.counters);
                self.has_read = true;
            }
        }
        Ok(step)
    }

    /// Ends it, once nobody needs this rank's buffers.
    fn try_end(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<Option<OpState>> {
        let mut readers = self.shared.readers.others(state.size(), state.me);
        if !readers.all(|place| state.has_read(place, self.seq)) {
            return Ok(None);
        }
        let sent = match &mut self.body {
            Body::Fold(fold) => fold.finish(&mut engine.core.loans).map(|()| true)?,
            Body::Pieces(pieces) => pieces.finish(&mut engine.core.loans).map(|()| true)?,
            Body::Exchange(exchange) => {
                exchange.is_sent(&mut Messenger::of(engine), state, self.seq)?
            }
            _ => true,
        };
        if !sent {
            return Ok(None);
        }
        self.shared.temp = None;
        if let Some(timed) = self.shared.timed {
            state.observed.learn(timed);
        }
        let status = Status {
            source: state.me,
            tag: 0,
            bytes: 0,
        };
        engine.core.requests.complete(self.id, Ok(status));
        Ok(Some(OpState::Over))
    }

    fn parts<'o>(
        &'o mut self,
        engine: &'o mut Engine,
        state: &'o mut CommState,
    ) -> OperationParts<'o> {
        let (shared, tally) = (&mut self.shared, &mut self.tally);
        OperationParts {
            body: &mut self.body,
            scratch: &mut self.scratch,
            cx: MessageContext::new(engine, state, self.seq, shared, tally),
        }
    }

    /// Whether it can only go on when `place` has written more than it has by now.
    pub(crate) fn awaits(&self, state: &CommState, place: usize) -> bool {
        let seq = self.seq;
        self.state == OpState::Work
            && match &self.body {
                Body::Barrier => barrier_awaits(state, seq, place),
                Body::Exchange(body) => body.awaits(state, seq, place),
                Body::Relay(body) => body.awaits(state, seq, place),
                Body::Swap(body) => body.awaits(state, seq, place),
                Body::Fold(body) => body.awaits(state, seq, place),
                Body::TreeFold(body) => body.awaits(state, seq, place),
                Body::Pieces(body) => body.awaits(state, seq, place),
                Body::Stream(body) => body.awaits(state, seq, place),
                // Messages of a rank that is gone end by themselves.
                Body::MessageExchange(_) | Body::MessageChain(_) => false,
            }
    }

    fn begin(&mut self, engine: &mut Engine, state: &mut CommState) -> Result<()> {
        let OperationParts { body, mut cx, .. } = self.parts(engine, state);
        match body {
            Body::Barrier => {
                let StepParts { state, seq, .. } = cx.over_channel().parts();
                if state.children().next().is_none() {
                    state.publish(seq, kind::NOTHING, &[]);
                }
                Ok(())
            }
            Body::Exchange(body) => body.begin(&mut cx),
            Body::Relay(body) => {
                body.begin(cx.over_channel());
                Ok(())
            }
            Body::Swap(body) => {
                body.begin(cx.over_channel());
                Ok(())
            }
            Body::Fold(body) => body.begin(cx.over_channel()),
            Body::TreeFold(body) => body.begin(cx.over_channel()),
            Body::Pieces(body) => body.begin(cx.over_channel()),
            Body::Stream(body) => body.begin(cx.over_channel()),
            Body::MessageExchange(body) => body.begin(&mut cx.by_messages().messenger),
            Body::MessageChain(_) => Ok(()),
        }
    }

    /// Gives back what the collective holds; it will not go on.
    pub(crate) fn abandon(&mut self, engine: &mut Engine) {
        let messenger = &mut Messenger::of(engine);
        match &mut self.body {
            Body::MessageExchange(body) => body.abandon(messenger),
            Body::MessageChain(body) => body.abandon(messenger),
            Body::Exchange(body) => body.abandon(messenger),
            Body::Relay(body) => body.abandon(messenger),
            // What they hold is in the contribution and the scratch memory.
            Body::Barrier
            | Body::Swap(_)
            | Body::Fold(_)
            | Body::TreeFold(_)
            | Body::Pieces(_)
            | Body::Stream(_) => {}
        }
        self.shared.temp = None;
        self.scratch.give_back();
        self.state = OpState::Over;
    }
}

fn barrier(cx: &mut StepContext<'_>) -> Result<Step> {
    let (state, seq) = (&*cx.state, cx.seq);
    if state.size() <= FLAT {
        let missing = (0..state.size()).any(|place| barrier_awaits(state, seq, place));
        return Ok(if missing { Step::Idle } else { Step::Done });
    }
    if state.awaited_in_tree(seq).next().is_some() {
        return Ok(Step::Idle);
    }
    if state.own().phase(seq) == 0 {
        state.publish(seq, kind::NOTHING, &[]);
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
