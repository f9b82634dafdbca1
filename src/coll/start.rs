// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a collective: from the call of a program to an operation under way.

use super::communicator::Communicator;
use super::context::StepMemory;
use super::contribution::{CallBuffers, Readers};
use super::exchange::Exchange;
use super::fold::{Fold, FoldPlan};
use super::messages::{MessageChain, MessageExchange, Recipients, Reduction};
use super::op::{Body, Operation};
use super::pieces::Pieces;
use super::plan::{Takes, Task};
use super::relay::Relay;
use super::schedule::{Schedule, Scheduler};
use super::select::{Algorithm, NodeScheme, node_scheme};
use super::state::CommState;
use super::stream::Stream;
use super::swap::Swap;
use super::tree::TreeFold;
use super::{ByteRange, Collective};
use crate::engine::Engine;
use crate::error::Result;
use crate::request::{Request, RequestId, RequestState, UserBuf};
use std::sync::Arc;

/// How a program calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// It waits, and this rank's contribution is published already.
    Begun,
    /// It waits.
    Waits,
    /// It goes on.
    GoesOn,
}

impl Schedule {
    /// The body for a communicator that has a channel.
    fn by_channel(self, scheme: NodeScheme, state: &CommState) -> Body {
        match self {
            Self::Barrier => Body::Barrier,
            Self::Exchange(plan) => match (scheme, &plan.takes, plan.recv) {
                (NodeScheme::Relay, &Takes::From(root, _), Some(recv)) => Body::Relay(Box::new(
                    Relay::new(plan, root, recv, state.size(), state.me),
                )),
                _ => Body::Exchange(Exchange::new(plan, state.size(), state.me)),
            },
            Self::Swap(plan) => Body::Swap(Swap::new(plan)),
            Self::Fold(plan, to) => combining(plan, &to, scheme, state),
        }
    }

    /// The body for a communicator without a channel: messages.
    fn by_messages(self, engine: &mut Engine, state: &CommState, seq: u32) -> Body {
        match self {
            Self::Barrier => {
                let loans = &mut engine.core.loans;
                Body::MessageExchange(Box::new(MessageExchange::barrier(state, seq, loans)))
            }
            Self::Exchange(plan) => {
                Body::MessageExchange(Box::new(MessageExchange::new(plan, state, seq)))
            }
            Self::Swap(plan) => {
                Body::MessageExchange(Box::new(MessageExchange::swap(plan, state, seq)))
            }
            Self::Fold(plan, to) => {
                let FoldPlan {
                    op,
                    elem,
                    send,
                    recv,
                    ..
                } = plan;
                let reduction = Reduction {
                    op,
                    elem,
                    send,
                    recv,
                    to,
                };
                Body::MessageChain(Box::new(MessageChain::new(reduction, state, seq)))
            }
        }
    }
}

/// The body of a reduction for a communicator that has a channel.
fn combining(plan: FoldPlan, to: &Recipients, scheme: NodeScheme, state: &CommState) -> Body {
    if let NodeScheme::Combine {
        in_pieces: true, ..
    } = scheme
    {
        let given = combined_by(1 - state.me, &plan, to);
        let taken = combined_by(state.me, &plan, to);
        return Body::Pieces(Box::new(Pieces::new(plan, scheme, given, taken)));
    }
    match (plan.algorithm, plan.recv) {
        (Algorithm::Tree, _) => Body::TreeFold(TreeFold::new(plan)),
        (Algorithm::Stream, Some(recv)) => {
            let exclusive = matches!(to, Recipients::Prefix { exclusive: true });
            Body::Stream(Stream::new(plan, recv, exclusive))
        }
        _ => Body::Fold(Fold::new(plan)),
    }
}

/// What of the vectors a member combines, in a reduction that may go in pieces.
fn combined_by(place: usize, plan: &FoldPlan, to: &Recipients) -> ByteRange {
    let all = ByteRange::first(plan.send.len);
    match to {
        Recipients::Everyone => all,
        Recipients::Root(root) if *root == place => all,
        Recipients::Parts(parts) => parts.of(place),
        Recipients::Root(_) | Recipients::Prefix { .. } => ByteRange::default(),
    }
}

/// A request that its collective completes.
pub(super) fn request(engine: &mut Engine, context: u32) -> RequestId {
    let nothing = UserBuf::Many(Arc::from([]));
    let request = Request::receive(RequestState::External, context, 0, nothing);
    engine.core.requests.insert(request)
}

impl Communicator {
    /// Whether a collective can start: the communicator has not failed, and all members live. `opened` says whether
    /// its channel could be made ready.
    pub(crate) fn admit(&mut self, engine: &mut Engine, opened: Result<()>) -> Result<()> {
        if let Some(error) = &self.state.failed {
            return Err(error.clone());
        }
        let lost = self
            .state
            .members
            .iter()
            .find_map(|&rank| engine.lives.error_of(rank));
        if let Some(error) = lost.or(opened.err()) {
            self.fail(engine, &error);
            return Err(error);
        }
        Ok(())
    }

    /// The maker of this rank's schedule for a collective.
    pub(super) fn scheduler<'c>(
        &self,
        collective: &'c Collective,
        buffers: CallBuffers,
    ) -> Scheduler<'c> {
        Scheduler {
            collective,
            slot: self.state.tuning.limits.slot,
            size: self.state.size(),
            me: self.state.me,
            buffers,
        }
    }

    /// Starts a collective of the program.
    pub(crate) fn start(
        &mut self,
        engine: &mut Engine,
        collective: &Collective,
        buffers: CallBuffers,
        call: Call,
        opened: Result<()>,
    ) -> Result<RequestId> {
        let id = self.start_step(engine, collective, buffers, call, opened)?;
        // One that is begun is counted.
        engine.core.counters.collectives += u64::from(call != Call::Begun);
        if !self.state.has_channel() {
            engine.core.counters.coll_by_messages += 1;
        }
        Ok(id)
    }

    /// Starts a collective, which may be a step of another one.
    pub(crate) fn start_step(
        &mut self,
        engine: &mut Engine,
        collective: &Collective,
        buffers: CallBuffers,
        call: Call,
        opened: Result<()>,
    ) -> Result<RequestId> {
        match (call, &self.state.failed) {
            (Call::Begun, Some(error)) => return Err(error.clone()),
            // It was admitted when it began. A member may have read all and left.
            (Call::Begun, None) => {}
            (Call::Waits | Call::GoesOn, _) => self.admit(engine, opened)?,
        }
        let scheduler = self.scheduler(collective, buffers);
        let plan = scheduler.plan()?;
        let len = scheduler.payload(&plan);
        let scheme = node_scheme(collective, len, self.state.size(), &self.state.limits());
        let given = plan.offer.filter(|offer| offer.readers != Readers::Nobody);
        let given = given.and_then(|offer| scheduler.range(&offer));
        let schedule = scheduler.schedule(&plan, scheme);
        let Self {
            state,
            ops,
            in_place_readers,
            ..
        } = self;
        let begun = call == Call::Begun;
        let seq = if begun {
            state.seq
        } else {
            state.seq.wrapping_add(1)
        };
        let body = if state.has_channel() {
            schedule.by_channel(scheme, state)
        } else {
            schedule.by_messages(engine, state, seq)
        };
        state.seq = seq;
        let id = request(engine, state.context);
        let mut op = Operation::new(id, seq, body, begun, call != Call::GoesOn);
        op.shared.alone = call == Call::Waits && ops.is_empty();
        let has_ways = matches!(op.body, Body::Exchange(_) | Body::Pieces(_));
        if call == Call::Waits && has_ways && state.size() == 2 && state.has_channel() {
            let limits = &state.tuning.limits;
            let (other, observed) = (state.members[1 - state.me], &mut state.observed);
            let shared = &mut op.shared;
            match given {
                // What the other rank maps it loads, whatever was seen.
                Some(given) if StepMemory::of(engine).range_of(&given).heap.is_some() => {}
                Some(given) => {
                    let part = match plan.task {
                        Task::Combine(part) => part.part_given,
                        _ => None,
                    };
                    let bytes = part.map_or(given.len, |part| part.len);
                    shared.timed = observed.choose(engine, other, collective, bytes, limits);
                    shared.way = shared.timed.map(|timed| timed.rival);
                }
                None => shared.way = observed.expected(collective, len, limits),
            }
        }
        if begun {
            op.resume(state, in_place_readers.take());
        }
        ops.push_back(op);
        Ok(id)
    }
}
