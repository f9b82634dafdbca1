// SPDX-License-Identifier: MIT OR Apache-2.0
//! A communicator with its collectives under way: how they move, and how they end when a member is lost.

use super::contribution::{Readers, Served, behind};
use super::failed::Failed;
use super::member_buffer;
use super::messages::{Poison, poisoned};
use super::op::Operation;
use super::spares::Spares;
use super::state::{CommState, Step};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::peer::Gone;
use onecopy_shm::layout::COLL_STAGES;
use onecopy_shm::loan::LoanTable;
use std::collections::VecDeque;

/// A communicator's state, and its collectives under way in the order in which they began. The two are borrowed apart.
pub(crate) struct Communicator {
    pub(crate) state: CommState,
    pub(crate) ops: VecDeque<Operation>,
    /// Who reads this rank's contribution to the short collective under way where the program has it. None: it stands
    /// in the channel, or there is none.
    pub(super) in_place_readers: Option<Readers>,
    /// What members get by messages when it has failed.
    pub(super) poison: Poison,
}

impl Communicator {
    pub(crate) fn new(state: CommState) -> Self {
        Self {
            state,
            ops: VecDeque::new(),
            in_place_readers: None,
            poison: Poison::default(),
        }
    }

    /// Makes the channel ready, if there is one and it is not: connects to all members.
    #[inline]
    pub(crate) fn open(&mut self, engine: &mut Engine) -> Result<()> {
        match self.state.channel {
            Some(channel) if !self.state.has_channel() && self.state.failed.is_none() => {
                self.open_channel(engine, channel)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn open_channel(&mut self, engine: &mut Engine, channel: u32) -> Result<()> {
        let state = &mut self.state;
        let mut channel_ends = Vec::with_capacity(state.members.len());
        let mut strong = !engine.core.home.is_expedited();
        for (place, &rank) in state.members.iter().enumerate() {
            let end = if place == state.me {
                engine.core.home.channel(channel)
            } else {
                let (_, peer) = engine.peer(rank)?;
                strong |= peer.endpoint.is_strong();
                peer.endpoint.channel(channel)
            };
            channel_ends.push(end.ok_or_else(|| Error::Collective {
                reason: format!("channel {channel} does not exist"),
            })?);
        }
        let seq = channel_ends[state.me].done();
        state.seen = vec![seq; state.members.len()];
        (state.seq, state.done, state.room) = (seq, seq, seq);
        state.channel_ends = channel_ends;
        if state.size() == 2 {
            state.spares = Spares::opened(state.me);
        }
        state.strong = strong;
        Ok(())
    }

    /// Moves its collectives, and copies what members have asked for.
    pub(crate) fn step(&mut self, engine: &mut Engine) -> bool {
        if self.state.failed.is_some() {
            return self.end_ops(engine);
        }
        let served = self.state.has_channel() && self.serve(engine);
        self.step_ops(engine) || served
    }

    /// Begins all that can begin. What members send for it finds its receive then, and need not be kept.
    pub(super) fn begin_ops(&mut self, engine: &mut Engine) {
        let Self { state, ops, .. } = self;
        for op in ops.iter_mut() {
            match op.begin_if_free(engine, state) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail_by(engine, &error),
            }
        }
    }

    /// Moves its collectives. Each moves a finite number of times, whatever its members write.
    fn step_ops(&mut self, engine: &mut Engine) -> bool {
        let Self { state, ops, .. } = self;
        let mut moved = false;
        let mut failure = None;
        for op in ops.iter_mut() {
            match op.step(engine, state) {
                Ok(Step::Idle) => {}
                Ok(_) => moved = true,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if state.has_channel() {
            let read = ops.iter().take_while(|op| op.has_read).last();
            if let Some(done) = read.map(|op| op.seq).filter(|&seq| seq != state.done) {
                if state.size() == 2 {
                    let first = state.done.wrapping_add(1);
                    let count = done.wrapping_sub(state.done);
                    (0..count).for_each(|next| state.take_spare(first.wrapping_add(next)));
                }
                state.set_done(done);
                state.wake();
                moved = true;
            }
        }
        if let Some(error) = failure {
            self.fail_by(engine, &error);
            return true;
        }
        while ops.front().is_some_and(|op| op.is_over() && op.has_read) {
            ops.pop_front();
        }
        moved
    }

    /// Fails, and with it the member that has broken the protocol, if one has.
    #[cold]
    fn fail_by(&mut self, engine: &mut Engine, error: &Error) {
        if let Error::Protocol { rank, detail } = error
            && engine.lives.is_there(*rank)
        {
            // First the member, so that nobody waits for it.
            engine.fail_peer(*rank as u32, Gone::Protocol(detail.clone()));
        }
        self.fail(engine, error);
    }

    /// What a short collective has given in place goes back to the program. Fails, if members may still read it: they
    /// learn that.
    #[cold]
    pub(super) fn fail_if_still_read(&mut self, engine: &mut Engine, error: &Error) {
        let Self {
            state,
            in_place_readers,
            ..
        } = self;
        let Some(readers) = in_place_readers.take() else {
            return;
        };
        let seq = state.seq;
        let mut others = readers.others(state.size(), state.me);
        if !others.all(|place| state.has_read(place, seq)) {
            self.fail(engine, error);
        }
    }

    /// Ends its collectives, those under way and all later ones, and tells the members.
    #[cold]
    pub(crate) fn fail(&mut self, engine: &mut Engine, error: &Error) {
        let state = &mut self.state;
        if state.failed.is_none() {
            let word = Failed::encode(Some(error));
            let announced = if word == 0 { Failed::GIVEN_UP } else { word };
            if state.has_channel() {
                state.own().fail(announced);
                state.wake();
                await_end_of_writes(engine, state);
            } else if let Some(channel) = state.channel.take() {
                // Members that could open it wait for this rank's line. They may look here for as long as they like:
                // the channel serves nothing else on this rank any more.
                if let Some(end) = engine.core.home.channel(channel) {
                    end.fail(announced);
                }
                state.wake_unopened(&engine.peers);
            } else if engine.lives.fatal().is_none() {
                self.poison = Poison::tell(engine, state, word);
            }
            state.failed = Some(error.clone());
        }
        self.end_ops(engine);
    }

    /// Ends the collectives of a communicator that has failed, once all who may read this rank's buffers can see that.
    /// Says whether there were any.
    #[cold]
    fn end_ops(&mut self, engine: &mut Engine) -> bool {
        let Some(error) = &self.state.failed else {
            return false;
        };
        if self.ops.is_empty() || engine.lives.fatal().is_none() && !self.poison.is_seen(engine) {
            return false;
        }
        for mut op in self.ops.drain(..) {
            op.abandon(engine);
            engine.core.requests.complete(op.id, Err(error.clone()));
        }
        true
    }

    /// Whether something of it is under way.
    pub(super) fn is_busy(&mut self, engine: &mut Engine) -> bool {
        !self.ops.is_empty() || !self.poison.is_over(engine)
    }

    /// Looks whether it has failed at a member, or has lost one, while collectives are under way.
    pub(crate) fn check(&mut self, engine: &mut Engine) {
        if self.state.failed.is_some() || self.ops.is_empty() {
            return;
        }
        // A look that finds nothing moves nothing: a call that only asks would copy whole collectives.
        if self.loss(engine).is_none() {
            return;
        }
        // What can be completed with what the lost member left is completed. Members are served once: a
        // member that asks again and again must not keep this rank here.
        if self.state.has_channel() {
            self.serve(engine);
        }
        while self.step_ops(engine) {}
        if let Some(error) = self.loss(engine) {
            self.fail(engine, &error);
        }
    }

    /// Why the oldest collective under way can never end, if that is known.
    fn loss(&mut self, engine: &Engine) -> Option<Error> {
        let last = self.ops.back()?.seq;
        if !self.state.has_channel() {
            return self.loss_by_messages(engine);
        }
        // A member that left after it published `done`: it may lie about its part.
        let mut left = None;
        for place in 0..self.state.size() {
            let rank = self.state.members[place];
            if place == self.state.me {
                continue;
            }
            match engine.lives.gone(rank) {
                // All that it wrote has been taken up by now: what is missing of its part stays missing. A rank that
                // waits for a living member gets the error from that member.
                Some(Gone::Left) if self.state.has_read(place, last) => {
                    if self.awaits(place) {
                        return Some(Gone::Left.error(rank));
                    }
                    left = Some(rank);
                }
                Some(gone) => return Some(gone.error(rank)),
                None => {}
            }
            if let Some(error) = self.state.failure_of(place) {
                return Some(error);
            }
        }
        if let Some(error) = self.unlike() {
            return Some(error);
        }
        // Where nobody is left, nothing more comes, whatever it is.
        let state = &self.state;
        let mut others = behind(state.size(), state.me).map(|place| state.members[place]);
        let alone = others.all(|rank| engine.lives.is_gone(rank));
        left.filter(|_| alone).map(|rank| Gone::Left.error(rank))
    }

    /// A member is through with a collective of which this rank still awaits something from it. Both called it with
    /// other lengths, so that they disagree on what there is to give.
    fn unlike(&mut self) -> Option<Error> {
        let Self { state, ops, .. } = self;
        for place in behind(state.size(), state.me) {
            for op in ops.iter() {
                // `done` first: all that a member writes, it writes before.
                if state.has_read(place, op.seq) && op.awaits(state, place) {
                    return Some(member_buffer::unlike(state.members[place] as usize));
                }
            }
        }
        None
    }

    /// Why collectives that have no channel can never end, if that is known. Messages of a rank that has left end by
    /// themselves.
    pub(super) fn loss_by_messages(&self, engine: &Engine) -> Option<Error> {
        let state = &self.state;
        let lost = behind(state.size(), state.me).find_map(|place| {
            let rank = state.members[place];
            match engine.lives.gone(rank) {
                Some(Gone::Left) | None => None,
                Some(gone) => Some(gone.error(rank)),
            }
        });
        lost.or_else(|| poisoned(engine, state))
    }

    /// Whether a collective under way needs something of `place` that is not there.
    fn awaits(&self, place: usize) -> bool {
        self.state.copy_requests.asks(place)
            || self.ops.iter().any(|op| op.awaits(&self.state, place))
    }

    /// Copies what members have called for. Says whether there was something.
    fn serve(&mut self, engine: &mut Engine) -> bool {
        let Self { state, ops, .. } = self;
        let called = state.own().take_called();
        if called == 0 {
            return false;
        }
        let has_called = |place: usize| place != state.me && called & 1 << (place % 64) != 0;
        let mut served = false;
        for place in (0..state.size()).filter(|&place| has_called(place)) {
            for op in ops.iter() {
                for stage in 0..COLL_STAGES {
                    served |= answer(&engine.core.loans, state, op, place, stage);
                }
            }
        }
        if served {
            state.wake();
        }
        served
    }
}

/// Copies what `place` has asked of this rank for a stage of a collective. Says whether there was something.
fn answer(
    loans: &LoanTable,
    state: &CommState,
    op: &Operation,
    place: usize,
    stage: usize,
) -> bool {
    let end = &state.channel_ends[place];
    let request = end.copy_request(op.seq, stage);
    let Some(request) = request.filter(|request| request.owner as usize == state.me) else {
        return false;
    };
    let (offset, len) = (request.offset as usize, request.len as usize);
    let Some(to) = offset.checked_add(len) else {
        return false;
    };
    // A request for what this rank does not have is answered by nothing; the caller has broken the protocol and waits.
    match op.shared.served.get(request.buffer as usize) {
        Some(Some(Served::Loan(piece))) if to <= piece.len => {
            let answer = |bytes: &[u8]| end.answer(stage, &request, bytes);
            loans.read(piece.part(offset, len), answer).is_ok()
        }
        Some(Some(Served::Temp)) => {
            let temp = op.shared.temp.as_ref();
            let bytes = temp.and_then(|temp| temp.get(offset..to));
            bytes
                .inspect(|bytes| end.answer(stage, &request, bytes))
                .is_some()
        }
        Some(Some(Served::Kept)) => {
            let bytes = state.bounce.own().get(offset..to);
            bytes
                .inspect(|bytes| end.answer(stage, &request, bytes))
                .is_some()
        }
        _ => false,
    }
}

/// Waits until no member writes into this rank's buffers any more: they go back to the program. Members know of the
/// failure: one that writes comes to the end of its fragment, or it dies.
fn await_end_of_writes(engine: &mut Engine, state: &CommState) {
    for (place, end) in state.channel_ends.iter().enumerate() {
        if place != state.me {
            engine.spin_until_idle_or_dead(state.members[place], |_| end.is_writing());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::coll::{Collective, ElemType, Op};
    use crate::runtime::{Threads, local_of};
    use onecopy_obs::Knobs;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// An operator panics in a thread that only tests: the collective fails, on the other rank too, and what waits for
    /// something else goes on.
    #[test]
    fn an_operator_that_panics_fails_its_collective_alone() {
        local_of(2, &Knobs::default(), Threads::Multiple, |rt| {
            let world = rt.world();
            let own = world.dup().expect("dup");
            let panics = rt.rank() == 0;
            let op = Op::user(move |_, _| assert!(!panics, "on purpose"));
            let sum = Collective::Allreduce {
                elem: ElemType::U32,
                op,
            };
            let mut request = own
                .start(&sum, Some(vec![1u32; 4]), Some(vec![0u32; 4]))
                .expect("start");
            if panics {
                let tested = catch_unwind(AssertUnwindSafe(|| while !request.test() {}));
                assert!(tested.is_err(), "the operator panics");
            }
            // The next round of progress does not call it again.
            let other = 1 - rt.rank();
            let sent = [rt.rank() as u32];
            let mut got = [9u32];
            world.scope(|scope| {
                scope.isend(&sent, other, 0).expect("send");
                scope.irecv(&mut got, other, 0).expect("receive");
                scope.wait_all().expect("messages");
            });
            assert_eq!(got, [other as u32]);
            let ended = request.wait();
            assert!(ended.is_err() || !panics, "the collective has failed here");
            let next = own.barrier();
            assert!(next.is_err() || !panics, "and so has its communicator");
            world.barrier().expect("others go on");
            rt.finalize().expect("finalize");
        });
    }
}
