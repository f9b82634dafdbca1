// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives by messages, for communicators that have no channel: slower, and always possible. And the messages of
//! exchanges ([`super::exchange`]).

mod poison;

pub(crate) use poison::{Poison, poisoned};

use super::context::Messenger;
use super::contribution::{Readers, behind};
use super::exchange::ExchangePlan;
use super::member_buffer::unequal;
use super::plan::{Find, Takes};
use super::select::NodeScheme;
use super::state::{CommState, Step};
use super::swap::SwapPlan;
use super::{ByteRange, ElemType, Op, Parts};
use crate::error::{Error, Result};
use crate::matching::MatchBits;
use crate::request::{RequestId, Status};
use onecopy_shm::coll::precede;
use onecopy_shm::loan::{Loan, LoanRange, LoanTable};
use onecopy_shm::sync::{Ordering, fence};
use poison::{poison_bits, poison_of};
use std::sync::Arc;

/// Bytes of a piece that is combined or exchanged at a time. Long enough that its message costs little
/// beside it, and short enough to be in the cache when it is combined. Chosen by magnitude.
const PIECE: usize = 32 << 10;

/// Messages under way, and the loans that they work on.
#[derive(Default)]
pub(super) struct MessagesInFlight {
    requests: Vec<Message>,
    loans: Vec<Loan>,
}

/// A message under way.
struct Message {
    id: RequestId,
    /// Bytes that have to come; none: it goes to a member.
    expected: Option<usize>,
}

impl Message {
    /// The error of a message that is over, if there is one.
    fn failure(&self, result: Result<Status>) -> Option<Error> {
        match (result, self.expected) {
            (Err(error), _) => Some(error),
            (Ok(Status { source, bytes, .. }), Some(expected)) if bytes != expected => {
                Some(unequal(source, bytes as u64, expected))
            }
            _ => None,
        }
    }
}

/// Who messages go to, and by what they are told apart.
#[derive(Clone)]
pub(super) struct Route {
    members: Arc<[u32]>,
    me: usize,
    context: u32,
    tag: i32,
    /// By what a member's word is told that it has given the communicator up.
    poison: MatchBits,
}

impl Route {
    pub(super) fn new(state: &CommState, seq: u32) -> Self {
        Self {
            members: Arc::clone(&state.members),
            me: state.me,
            context: state.context,
            // Two tags each.
            tag: state.tags.of(seq),
            poison: poison_bits(state),
        }
    }

    /// By what one of the two messages is told apart that a collective sends to a member.
    fn match_bits(&self, which: i32) -> MatchBits {
        MatchBits {
            context: self.context,
            tag: self.tag + which,
        }
    }

    /// What came from a member is good if the member has not given the communicator up, and with it its buffers, before
    /// it was read. `state` is that of the communicator.
    fn is_good(
        &self,
        messenger: &mut Messenger<'_>,
        state: &CommState,
        place: usize,
    ) -> Result<()> {
        if place == self.me {
            return Ok(());
        }
        if state.has_channel() {
            return state.failure_of(place).map_or(Ok(()), Err);
        }
        // SYNC(coll.poison): acquire after the reads of the member's memory
        fence(Ordering::Acquire);
        let rank = self.members[place];
        let unexpected = messenger.unexpected_after(rank);
        poison_of(unexpected, self.poison, Some(rank)).map_or(Ok(()), Err)
    }
}

impl MessagesInFlight {
    pub(super) fn send(
        &mut self,
        messenger: &mut Messenger<'_>,
        route: &Route,
        place: usize,
        tag: i32,
        loan: Loan,
    ) -> Result<()> {
        let id = messenger.send(route.members[place], route.match_bits(tag), loan)?;
        self.requests.push(Message { id, expected: None });
        Ok(())
    }

    pub(super) fn receive(
        &mut self,
        messenger: &mut Messenger<'_>,
        route: &Route,
        place: usize,
        tag: i32,
        loan: Loan,
    ) -> Result<RequestId> {
        let id = messenger.receive(route.members[place], route.match_bits(tag), loan)?;
        let expected = Some(loan.len());
        self.requests.push(Message { id, expected });
        Ok(id)
    }

    /// Takes a receive back, for which no message comes.
    pub(super) fn withdraw(&mut self, messenger: &mut Messenger<'_>, id: RequestId) {
        self.requests.retain(|message| message.id != id);
        messenger.give_up(id);
    }

    /// A part of a buffer that messages may use until all are over.
    pub(super) fn part(&mut self, messenger: &mut Messenger<'_>, range: LoanRange) -> Result<Loan> {
        let part = messenger.loans().part(range)?;
        self.loans.push(part);
        Ok(part)
    }

    /// A copy of a part.
    fn copy(&mut self, messenger: &mut Messenger<'_>, range: LoanRange) -> Result<Loan> {
        let bytes = messenger.loans().read(range, <[u8]>::to_vec)?;
        let copy = messenger.loans().keep(bytes);
        self.loans.push(copy);
        Ok(copy)
    }

    /// Whether all messages are over. What they worked on is given back then.
    pub(super) fn is_over(&mut self, messenger: &mut Messenger<'_>) -> Result<bool> {
        let over = self.all_came(messenger)?;
        if over {
            self.release(messenger);
        }
        Ok(over)
    }

    /// Whether all messages are over. What they worked on is kept.
    fn all_came(&mut self, messenger: &mut Messenger<'_>) -> Result<bool> {
        let mut failure = None;
        self.requests
            .retain(|message| match messenger.take_result(message.id) {
                None => true,
                Some(result) => {
                    failure = failure.take().or(message.failure(result));
                    false
                }
            });
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(self.requests.is_empty())
    }

    /// Whether all messages are over, whatever has become of them.
    fn has_ended(&mut self, messenger: &mut Messenger<'_>) -> bool {
        self.requests
            .retain(|message| messenger.take_result(message.id).is_none());
        if self.requests.is_empty() {
            self.release(messenger);
        }
        self.requests.is_empty()
    }

    fn release(&mut self, messenger: &mut Messenger<'_>) {
        for loan in self.loans.drain(..) {
            messenger.loans().release(loan);
        }
    }

    pub(super) fn abandon(&mut self, messenger: &mut Messenger<'_>) {
        for Message { id, .. } in self.requests.drain(..) {
            messenger.give_up(id);
        }
        self.release(messenger);
    }
}

/// What an exchange by messages does.
enum ExchangeTask {
    Take(ExchangePlan),
    /// Replaces parts, in rounds of pieces; how many rounds have begun.
    Swap(SwapPlan, usize),
}

/// An exchange by messages: everyone posts all receives and all sends.
pub(crate) struct MessageExchange {
    task: ExchangeTask,
    route: Route,
    flight: MessagesInFlight,
}

impl MessageExchange {
    pub(crate) fn new(plan: ExchangePlan, state: &CommState, seq: u32) -> Self {
        Self::of(ExchangeTask::Take(plan), state, seq)
    }

    pub(crate) fn swap(plan: SwapPlan, state: &CommState, seq: u32) -> Self {
        Self::of(ExchangeTask::Swap(plan, 0), state, seq)
    }

    fn of(task: ExchangeTask, state: &CommState, seq: u32) -> Self {
        Self {
            task,
            route: Route::new(state, seq),
            flight: MessagesInFlight::default(),
        }
    }

    pub(crate) fn begin(&mut self, messenger: &mut Messenger<'_>) -> Result<()> {
        let Self {
            task,
            route,
            flight,
        } = self;
        let ExchangeTask::Take(plan) = task else {
            return self.next_round(messenger).map(drop);
        };
        let (size, me) = (route.members.len(), route.me);
        if let Some(recv) = plan.recv {
            for place in behind(size, me) {
                let ByteRange { offset, len } = plan.takes.of(place);
                if len > 0 {
                    let part = flight.part(messenger, recv.range(offset, len))?;
                    flight.receive(messenger, route, place, 0, part)?;
                }
            }
        }
        if let Some(offer) = plan.offer {
            for place in plan.readers.others(size, me) {
                let ByteRange { offset, len } = plan.given_part(place, size);
                if len > 0 {
                    let part = flight.part(messenger, offer.part(offset, len))?;
                    flight.send(messenger, route, place, 0, part)?;
                }
            }
        }
        plan.copy_own(messenger.loans())
    }

    /// Begins the next round of a swap; `false` if there is none.
    fn next_round(&mut self, messenger: &mut Messenger<'_>) -> Result<bool> {
        let Self {
            task,
            route,
            flight,
        } = self;
        let ExchangeTask::Swap(SwapPlan { recv, parts }, round) = task else {
            return Ok(false);
        };
        let unit = (PIECE / route.members.len()).max(64);
        let mut any = false;
        for place in (0..route.members.len()).filter(|&place| place != route.me) {
            let ByteRange { offset, len } = parts.of(place);
            let skip = len.min(*round * unit);
            let n = (len - skip).min(unit);
            if n > 0 {
                let range = recv.range(offset + skip, n);
                let copy = flight.copy(messenger, range)?;
                let part = flight.part(messenger, range)?;
                flight.receive(messenger, route, place, 0, part)?;
                flight.send(messenger, route, place, 0, copy)?;
                any = true;
            }
        }
        *round += 1;
        Ok(any)
    }

    pub(crate) fn step(
        &mut self,
        messenger: &mut Messenger<'_>,
        state: &CommState,
    ) -> Result<Step> {
        if !self.flight.is_over(messenger)? {
            return Ok(Step::Idle);
        }
        for place in 0..self.route.members.len() {
            let takes = match &self.task {
                ExchangeTask::Take(plan) => plan.takes.of(place).len > 0,
                ExchangeTask::Swap(..) => true,
            };
            if takes {
                self.route.is_good(messenger, state, place)?;
            }
        }
        Ok(if self.next_round(messenger)? {
            Step::Moved
        } else {
            Step::Done
        })
    }

    pub(crate) fn abandon(&mut self, messenger: &mut Messenger<'_>) {
        self.flight.abandon(messenger);
    }
}

/// Who gets the combined vector.
#[derive(Debug, Clone)]
pub(crate) enum Recipients {
    Root(usize),
    Everyone,
    /// Each its part.
    Parts(Parts),
    /// Nobody: each keeps the prefix, its own vector included or not.
    Prefix {
        exclusive: bool,
    },
}

/// What a reduction combines, and who gets the result.
pub(crate) struct Reduction {
    pub(crate) op: Op,
    pub(crate) elem: ElemType,
    pub(crate) send: LoanRange,
    pub(crate) recv: Option<Loan>,
    pub(crate) to: Recipients,
}

/// A reduction by messages. A prefix goes from rank to rank, piece by piece. From the last one it goes to the rank that
/// gets the result.
pub(crate) struct MessageChain {
    reduction: Reduction,
    route: Route,
    /// First byte of the piece under way, and where it ends.
    begin: usize,
    end: usize,
    before: Option<Loan>,
    flight: MessagesInFlight,
    /// Results on their way to this rank.
    results: MessagesInFlight,
    state: ChainState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChainState {
    Next,
    Before,
    Passing,
    Results,
}

/// Where bytes of a result go.
struct ResultTarget {
    /// Who gets them.
    readers: Readers,
    /// Where they begin in the receive buffer.
    offset: usize,
    /// Up to which byte of the vector that holds.
    end: usize,
}

impl MessageChain {
    pub(crate) fn new(reduction: Reduction, state: &CommState, seq: u32) -> Self {
        Self {
            reduction,
            route: Route::new(state, seq),
            begin: 0,
            end: 0,
            before: None,
            flight: MessagesInFlight::default(),
            results: MessagesInFlight::default(),
            state: ChainState::Next,
        }
    }

    /// Where bytes of the result go from `begin` on.
    fn target(&self, begin: usize) -> ResultTarget {
        let all_for = |readers| ResultTarget {
            readers,
            offset: begin,
            end: usize::MAX,
        };
        match &self.reduction.to {
            Recipients::Root(root) => all_for(Readers::Only(*root)),
            Recipients::Everyone => all_for(Readers::Everyone),
            Recipients::Prefix { .. } => all_for(Readers::Nobody),
            Recipients::Parts(parts) => (0..self.route.members.len())
                .find_map(|place| {
                    let part = parts.of(place);
                    (part.offset <= begin && begin < part.end()).then(|| ResultTarget {
                        readers: Readers::Only(place),
                        offset: begin - part.offset,
                        end: part.end(),
                    })
                })
                .unwrap_or(all_for(Readers::Nobody)),
        }
    }

    pub(crate) fn step(
        &mut self,
        messenger: &mut Messenger<'_>,
        state: &CommState,
    ) -> Result<Step> {
        let (me, last) = (self.route.me, self.route.members.len() - 1);
        let mut result = Step::Idle;
        loop {
            match self.state {
                ChainState::Next => {
                    self.begin = self.end;
                    if self.begin >= self.reduction.send.len {
                        self.state = ChainState::Results;
                        continue;
                    }
                    let size = self.reduction.elem.size();
                    let unit = (PIECE / size * size).max(size);
                    let all = self.reduction.send.len;
                    let limit = self.target(self.begin).end;
                    self.end = (self.begin + unit).min(all).min(limit);
                    if me > 0 {
                        let before = messenger.loans().keep(vec![0; self.end - self.begin]);
                        self.flight.loans.push(before);
                        self.before = Some(before);
                        let route = self.route.clone();
                        self.flight.receive(messenger, &route, me - 1, 0, before)?;
                    }
                    self.state = ChainState::Before;
                }
                ChainState::Before => {
                    // The loan of what comes is needed until it is combined.
                    if !self.flight.all_came(messenger)? {
                        return Ok(result);
                    }
                    if let Some(before) = me.checked_sub(1) {
                        self.route.is_good(messenger, state, before)?;
                    }
                    self.pass_on(messenger, last)?;
                    (self.state, result) = (ChainState::Passing, Step::Moved);
                }
                ChainState::Passing => {
                    if !self.flight.is_over(messenger)? {
                        return Ok(result);
                    }
                    (self.state, result) = (ChainState::Next, Step::Moved);
                }
                ChainState::Results => {
                    if !self.results.is_over(messenger)? {
                        return Ok(result);
                    }
                    self.route.is_good(messenger, state, last)?;
                    return Ok(Step::Done);
                }
            }
        }
    }

    fn pass_on(&mut self, messenger: &mut Messenger<'_>, last: usize) -> Result<()> {
        let (me, len) = (self.route.me, self.end - self.begin);
        let route = self.route.clone();
        let own = self.reduction.send.part(self.begin, len);
        let with = self.flight.copy(messenger, own)?;
        if let Some(before) = self.before {
            let (op, elem) = (&self.reduction.op, self.reduction.elem);
            let (to, from) = (LoanRange::first(with, len), LoanRange::first(before, len));
            messenger
                .loans()
                .write_viewing(to, from, |with, before| match op {
                    Op::Predefined(op) => precede(*op, elem, with, before),
                    Op::User(function) => {
                        let mut left = vec![0; len];
                        before.copy_to(&mut left, onecopy_shm::copy::Kernel::Memcpy);
                        function(&left, with);
                    }
                })?;
        }
        if let (Recipients::Prefix { exclusive }, Some(recv)) =
            (&self.reduction.to, self.reduction.recv)
        {
            let from = if *exclusive { self.before } else { Some(with) };
            if let Some(from) = from {
                let from = LoanRange::first(from, len);
                messenger.loans().copy(from, recv, self.begin)?;
            }
        }
        if me < last {
            self.flight.send(messenger, &route, me + 1, 0, with)?;
        }
        let target = self.target(self.begin);
        if me == last {
            for place in (0..last).filter(|&place| target.readers.include(place)) {
                self.flight.send(messenger, &route, place, 1, with)?;
            }
        }
        if let Some(recv) = self.reduction.recv
            && target.readers.include(me)
        {
            if me == last {
                let from = LoanRange::first(with, len);
                messenger.loans().copy(from, recv, target.offset)?;
            } else {
                let part = self
                    .results
                    .part(messenger, recv.range(target.offset, len))?;
                self.results.receive(messenger, &route, last, 1, part)?;
            }
        }
        Ok(())
    }

    pub(crate) fn abandon(&mut self, messenger: &mut Messenger<'_>) {
        self.flight.abandon(messenger);
        self.results.abandon(messenger);
    }
}

impl MessageExchange {
    /// A barrier: an exchange with a root and back would take two collectives; here each sends a byte to all.
    pub(crate) fn barrier(state: &CommState, seq: u32, loans: &mut LoanTable) -> Self {
        let byte = loans.keep(vec![0]);
        let sink = loans.keep(vec![0; state.size()]);
        let plan = ExchangePlan {
            offer: Some(LoanRange::whole(byte)),
            readers: Readers::Everyone,
            recv: Some(sink),
            takes: Takes::Each(Parts::Equal(1)),
            ..ExchangePlan::new(NodeScheme::Meet, Find::All)
        };
        let mut this = Self::new(plan, state, seq);
        this.flight.loans = vec![byte, sink];
        this
    }
}

#[cfg(test)]
mod tests;
