// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages whose buffers are [`Span`]s: for fronts in other languages, whose rules say how long a buffer stays in
//! place.
//!
//! An [`Operation`] is one send, receive or collective. It has no destructor: its caller polls it until it is
//! complete, which ends its loans, or withdraws it.

mod lightweight;

pub use lightweight::{NUMBER_BITS, ReceiveOutcome, Starting};

use crate::coll::{CallBuffers, Collective, Worker};
use crate::comm::{Comm, Entered};
use crate::engine::Engine;
pub use crate::engine::SendMode as Mode;
use crate::error::{Error, Result};
use crate::matching::{MatchBits, Source, Tag};
use crate::nonblocking::Matched;
use crate::proto::direct::{AtOnce, Look, ReceiveProgress, SendProgress};
pub use crate::request::{Activity, OFFER_MAX, Offer, OfferedBy, Staged, Taken};
use crate::request::{RequestId, SendPlan, StagedBuf, Status, UserBuf};
use onecopy_shm::loan::{Loan, Span};
use std::sync::Arc;

/// An operation under way.
#[derive(Debug)]
#[must_use = "an operation that is neither polled nor withdrawn keeps its loans"]
pub struct Operation {
    id: RequestId,
    lent: LentBuffers,
}

/// What an operation has on loan.
#[derive(Debug)]
enum LentBuffers {
    Message(UserBuf),
    Collective(Box<CallBuffers>),
}

/// The buffer of a message.
#[derive(Debug)]
pub enum MessageBuf<'s> {
    /// Memory of the host: bytes of these, one after the other.
    Spans(&'s [Span]),
    /// What the processor cannot touch. Nobody else asks or advances it.
    Staged(Arc<dyn Staged>),
}

impl<'s> From<&'s [Span]> for MessageBuf<'s> {
    fn from(spans: &'s [Span]) -> Self {
        Self::Spans(spans)
    }
}

impl<'s, const N: usize> From<&'s [Span; N]> for MessageBuf<'s> {
    fn from(spans: &'s [Span; N]) -> Self {
        Self::Spans(spans)
    }
}

/// The worker, between two rounds of progress.
pub struct Poll<'e>(&'e mut Worker);

impl Poll<'_> {
    /// The result of `operation`, if it is complete. It must not be asked for again then. A sender is named by its rank
    /// in the job.
    pub fn take(&mut self, operation: &Operation) -> Option<Result<Status>> {
        let result = self.0.engine.take_result(operation.id)?;
        self.0.engine.end(&operation.lent);
        Some(result)
    }

    /// Whether `operation` is complete.
    #[inline]
    #[must_use]
    pub fn is_done(&self, operation: &Operation) -> bool {
        self.0.engine.is_done(operation.id)
    }

    /// A thread that waits looks again without sleeping. Its bytes move outside of the runtime, and ring no doorbell.
    #[inline]
    pub fn stay_awake(&mut self) {
        self.0.engine.waits.stay_awake();
    }

    /// Takes back a receive that no message has matched, and says whether that was possible. It completes with
    /// [`Error::Cancelled`].
    pub fn cancel(&mut self, operation: &Operation) -> bool {
        self.0.engine.cancel(operation.id)
    }

    /// Gives up a send: its memory is the program's again. A receiver that was promised it gets an error, or bytes that
    /// were written later.
    pub fn withdraw(&mut self, operation: Operation) {
        self.0.engine.abandon(operation.id);
        self.0.engine.end(&operation.lent);
    }
}

impl Engine {
    fn lend(&mut self, buf: MessageBuf<'_>) -> UserBuf {
        match buf {
            MessageBuf::Staged(buffer) => {
                UserBuf::Staged(Arc::new(StagedBuf::new(buffer, &self.core.stages)))
            }
            MessageBuf::Spans([span]) => UserBuf::One(self.core.loans.lend_span(*span)),
            MessageBuf::Spans(spans) => {
                let loans: Vec<Loan> = spans
                    .iter()
                    .map(|&span| self.core.loans.lend_span(span))
                    .collect();
                UserBuf::Many(loans.into())
            }
        }
    }

    fn end(&mut self, lent: &LentBuffers) {
        match lent {
            LentBuffers::Message(UserBuf::One(loan)) => self.core.loans.take_back(*loan),
            LentBuffers::Message(UserBuf::Staged(_)) => {}
            LentBuffers::Message(UserBuf::Many(loans)) => {
                for &loan in loans.iter() {
                    self.core.loans.take_back(loan);
                }
            }
            LentBuffers::Collective(buffers) => {
                for loan in [buffers.send, buffers.recv].into_iter().flatten() {
                    self.core.loans.take_back(loan);
                }
            }
        }
    }

    fn begin(
        &mut self,
        buf: MessageBuf<'_>,
        start: impl FnOnce(&mut Self, UserBuf) -> Result<RequestId>,
    ) -> Result<Operation> {
        let buf = self.lend(buf);
        let started = start(self, buf.clone());
        self.begun(started, LentBuffers::Message(buf))
    }

    fn begun(&mut self, started: Result<RequestId>, lent: LentBuffers) -> Result<Operation> {
        match started {
            Ok(id) => Ok(Operation { id, lent }),
            Err(error) => {
                self.end(&lent);
                Err(error)
            }
        }
    }
}

/// How a message will go, as far as that is decided; by default nothing is. It is for one send, of the same bytes to
/// the same rank.
#[derive(Debug, Default)]
pub struct Plan(Option<SendPlan>);

impl Plan {
    /// Whether it says anything.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.0.is_some()
    }
}

/// How a send is to go.
#[derive(Debug)]
pub struct SendOptions {
    /// When it is complete.
    pub mode: Mode,
    /// What [`Comm::send_at_once`] left of it, or the default. Of a synchronous send it is not used: that one needs
    /// room for more.
    pub plan: Plan,
}

impl From<Mode> for SendOptions {
    fn from(mode: Mode) -> Self {
        let plan = Plan::default();
        Self { mode, plan }
    }
}

impl From<Plan> for SendOptions {
    /// A standard send that goes so.
    fn from(plan: Plan) -> Self {
        let mode = Mode::Standard;
        Self { mode, plan }
    }
}

/// What became of a send at once.
#[derive(Debug)]
#[must_use = "what was not sent is to be sent"]
pub enum Attempt {
    /// All of it is sent.
    Sent,
    /// Nothing is: [`Comm::begin_send`] goes on with the plan.
    Later(Plan),
}

impl Attempt {
    /// Whether all of it is sent.
    #[inline]
    #[must_use]
    pub fn is_sent(&self) -> bool {
        matches!(self, Self::Sent)
    }
}

/// The ring is full, as a rule. What has come meanwhile is taken, so that the peer can go on as well, which may be in
/// the same place.
#[cold]
fn send_after_progress(
    worker: &mut Worker,
    rank: u32,
    bits: MatchBits,
    bytes: &[u8],
    decided: Option<SendPlan>,
) -> SendProgress {
    // To a rank that is not connected yet, or to this one itself, nothing ever goes at once.
    if worker.engine.peers[rank as usize].is_none() {
        return SendProgress::Later(None);
    }
    worker.progress(false);
    let engine = &mut worker.engine;
    engine.send_now(rank, bits, bytes, AtOnce::Whole, lasting(decided))
}

/// What was decided, unless for want of credit, which may be over soon.
fn lasting(decided: Option<SendPlan>) -> Option<SendPlan> {
    decided.filter(|decided| !matches!(decided, SendPlan::Stalled))
}

impl Comm {
    /// Sends `bytes` if that can be done at once. If not, what has come is taken, which may make room, and it is tried
    /// again.
    #[inline(always)]
    pub fn send_at_once(&self, bytes: &[u8], dest: usize, tag: i32) -> Attempt {
        self.attempt(bytes, dest, tag, true)
    }

    /// The same, but nothing that has come is taken: its receive is to be posted first.
    #[inline]
    pub fn send_if_room(&self, bytes: &[u8], dest: usize, tag: i32) -> Attempt {
        self.attempt(bytes, dest, tag, false)
    }

    /// Sends `bytes` as was decided for them by [`Self::send_if_room`]. Returns when the buffer may be used again.
    ///
    /// # Errors
    ///
    /// As of [`Comm::send`].
    pub fn send_as_planned(&self, bytes: &[u8], dest: usize, tag: i32, plan: Plan) -> Result<()> {
        self.send_mode(bytes, dest, tag, Mode::Standard, plan.0)
    }

    #[inline(always)]
    fn attempt(&self, bytes: &[u8], dest: usize, tag: i32, again: bool) -> Attempt {
        // What cannot go out as a whole is left alone: a part would bind the caller to wait.
        let left = Attempt::Later(Plan::default());
        if tag < 0 {
            return left;
        }
        let mut worker = self.handle.gate.enter();
        if bytes.len() > worker.engine.core.chunks.step as usize {
            return left;
        }
        let Ok(rank) = u32::try_from(self.world_rank(dest)) else {
            return left;
        };
        let (bits, engine) = (self.match_bits(tag), &mut worker.engine);
        let sent = match engine.send_now(rank, bits, bytes, AtOnce::Whole, None) {
            // Room would not help: the message has to be announced, and then it is the receiver's turn.
            sent @ SendProgress::Later(Some(SendPlan::Announced { .. })) => sent,
            SendProgress::Later(decided) if again => {
                send_after_progress(&mut worker, rank, bits, bytes, decided)
            }
            sent => sent,
        };
        drop(worker);
        match sent {
            SendProgress::All => Attempt::Sent,
            SendProgress::Later(decided) => Attempt::Later(Plan(lasting(decided))),
            // A send begins only with room for all of it, so a part is left only where a test lets a claim fail. The
            // rest goes out without waiting for the peer.
            SendProgress::Part(sent) => match self.send_rest(bytes, dest, tag, sent) {
                Ok(()) => Attempt::Sent,
                // The peer is gone. The next send says so.
                Err(_) => left,
            },
        }
    }

    /// Receives into `bytes` if the next message from `source` is there, matches and fits.
    #[inline]
    #[must_use]
    pub fn receive_at_once(&self, bytes: &mut [u8], source: usize, tag: Tag) -> Option<Status> {
        let source = u32::try_from(self.world_rank(source)).ok()?;
        let mut worker = self.handle.gate.enter();
        if worker.is_to_look_around() {
            worker.look_around();
        }
        if bytes.len() > worker.engine.core.chunks.step as usize {
            return None;
        }
        let status = self.receive_into(&mut worker.engine, bytes, source, tag)?;
        Some(self.local(status))
    }

    /// The sender is named by its rank in the job.
    #[inline(always)]
    fn receive_into(
        &self,
        engine: &mut Engine,
        bytes: &mut [u8],
        source: u32,
        tag: Tag,
    ) -> Option<Status> {
        // Earlier receives come first.
        if !engine.receives.posted.is_empty() && !engine.catch_up(source, bytes.len()) {
            return None;
        }
        let look = Look {
            at_once: AtOnce::Whole,
            polls: 0,
        };
        match engine.receive_now(source, self.context, tag.tag(), bytes, look) {
            ReceiveProgress::All(status) => Some(status),
            ReceiveProgress::Nothing | ReceiveProgress::Part(_) => None,
        }
    }

    /// Starts a send of the bytes of `buf`.
    pub fn begin_send<'s>(
        &self,
        buf: impl Into<MessageBuf<'s>>,
        dest: usize,
        tag: i32,
        options: impl Into<SendOptions>,
    ) -> Result<Operation> {
        let dest = self.world_rank(dest);
        let SendOptions { mode, plan } = options.into();
        let plan = plan.0.filter(|_| mode == Mode::Standard);
        let mut worker = self.handle.gate.enter();
        worker.engine.begin(buf.into(), |engine, buf| {
            engine.send_planned(dest, self.match_bits(tag), buf, mode, plan)
        })
    }

    /// Starts a receive into `buf`.
    pub fn begin_receive<'s>(
        &self,
        buf: impl Into<MessageBuf<'s>>,
        source: Source,
        tag: Tag,
    ) -> Result<Operation> {
        let source = source.rank().map(|rank| self.world_rank(rank));
        let mut worker = self.handle.gate.enter();
        worker.engine.begin(buf.into(), |engine, buf| {
            engine.receive(source, self.context, tag.tag(), buf)
        })
    }

    /// Starts a collective. What the buffers are depends on the collective.
    pub fn begin_collective(
        &self,
        collective: &Collective,
        send: Option<Span>,
        recv: Option<Span>,
    ) -> Result<Operation> {
        let Entered { mut worker, index } = self.enter_behind_others();
        let loans = &mut worker.engine.core.loans;
        let buffers = CallBuffers {
            send: send.map(|span| loans.lend_span(span)),
            recv: recv.map(|span| loans.lend_span(span)),
        };
        let started =
            worker.start_collective(index, collective, buffers, crate::coll::Call::GoesOn);
        worker
            .engine
            .begun(started, LentBuffers::Collective(Box::new(buffers)))
    }

    /// Threads that poll advance this buffer of the front's own from now on, as long as the front keeps it.
    pub fn stage(&self, buffer: Arc<dyn Staged>) {
        self.handle.stages.add(&buffer);
    }

    /// Lets `f` look at operations; nothing is moved.
    pub fn peek<R>(&self, f: impl FnOnce(&mut Poll<'_>) -> R) -> R {
        f(&mut Poll(&mut self.handle.gate.enter()))
    }

    /// Moves what can move, and lets `f` look at operations.
    pub fn look<R>(&self, f: impl FnOnce(&mut Poll<'_>) -> R) -> R {
        self.handle.look(|worker| f(&mut Poll(worker)))
    }

    /// Waits until `done` gives something; it is asked after each round of progress.
    pub fn wait_until<R>(&self, mut done: impl FnMut(&mut Poll<'_>) -> Option<R>) -> R {
        self.handle.wait_or_abort(|worker| done(&mut Poll(worker)))
    }
}

impl Matched {
    /// Starts to receive it into `buf`.
    pub fn begin_receive<'s>(mut self, buf: impl Into<MessageBuf<'s>>) -> Result<Operation> {
        let Some(message) = self.message.take() else {
            return Err(Error::Cancelled);
        };
        let envelope = self.envelope;
        let mut worker = self.comm.handle.gate.enter();
        worker.engine.begin(buf.into(), |engine, buf| {
            Ok(engine.receive_matched(envelope, message, buf))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::local_with;
    use onecopy_obs::{ChunkCopy, Knobs};
    use std::sync::Barrier;

    /// All chunks are out when a buffer that was rewritten is to go. It waits for one, and is not announced instead: a
    /// second look would find it as it was at the first.
    #[test]
    fn what_finds_no_room_goes_as_it_was_decided() {
        let settings = [
            ("ONECOPY_LAYERS", "cico,heap"),
            ("ONECOPY_REWRITTEN_MAX", "64K"),
        ];
        let knobs = Knobs {
            chunk_copy: ChunkCopy::String,
            ..Knobs::from_iter(settings).expect("knobs").0
        };
        let outside = Barrier::new(2);
        local_with(2, &knobs, |rt| {
            let world = rt.world();
            let mut heap = rt.alloc(12 << 10).expect("alloc");
            let (mut number, mut short) = (0, [0; 4096]);
            if rt.rank() == 0 {
                world.send(&heap[..], 1, 0).expect("send");
                let before = rt.counters();
                while world.send_at_once(&short, 1, 0).is_sent() {
                    number += 1;
                    short.fill(number);
                }
                heap.fill(number);
                let Attempt::Later(plan) = world.send_at_once(&heap[..], 1, 0) else {
                    panic!("there was room");
                };
                outside.wait();
                let sent = world.send_mode(&heap[..], 1, 0, Mode::Standard, plan.0);
                sent.expect("send");
                let after = rt.counters();
                let announced = after.sends_rendezvous - before.sends_rendezvous;
                let chunks = after.sends_chunk - before.sends_chunk;
                assert_eq!((announced, chunks), (0, u64::from(number) + 1));
            } else {
                world.recv(&mut heap[..], 0, 0).expect("receive");
                outside.wait();
                while world.recv(&mut heap[..], 0, 0).expect("receive").bytes == short.len() {
                    assert!(heap[..short.len()].iter().all(|&byte| byte == number));
                    number += 1;
                }
                assert!(heap.iter().all(|&byte| byte == number), "{number} short");
            }
            rt.finalize().expect("finalize");
        });
    }
}
