// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communicators: tagged messages between ranks.

mod agree;
mod collective;
mod group;
mod ready;

pub use collective::CollRequest;
pub(crate) use collective::{Entered, describe};

use crate::coll::Worker;
use crate::coll::failed::Failed;
use crate::coll::group::{Membership, SUB_CONTEXTS, SUB_SHIFT};
use crate::engine::{Engine, SendMode};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::matching::{MatchBits, OWN_CONTEXTS, Pattern, Source, Tag};
use crate::peer::Incoming;
use crate::proto::direct::{AtOnce, Look, ReceiveProgress, SendProgress};
use crate::request::{RequestId, SendPlan, Status, UserBuf};
use bytemuck::{AnyBitPattern, NoUninit};
use onecopy_shm::loan::{self, Loan};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In the tags of a meeting, so that they are none of a collective.
const MEETING: i32 = 1 << 28;
/// Polls of one ring, or of one line, between two rounds of progress: a round costs about as much as so many polls.
/// Chosen by magnitude.
const POLLS: usize = 64;
/// Polls at most before a request waits, which may yield or sleep, however patient the rank is. They take tens of
/// microseconds, beside which the request costs little. Chosen by magnitude.
const SPIN_MAX: usize = 2000;

/// Ranks of a job, and a context that keeps their messages apart from those of other communicators. Cheap to clone.
///
/// Ranks are counted within the communicator, also in a [`Status`]. Errors name ranks of the whole job.
///
/// # Errors
///
/// These may end any call that communicates, and any request:
///
/// - [`Error::PeerDied`], [`Error::PeerLeft`], [`Error::Protocol`] and [`Error::Unreachable`]: a rank that the call
///   needs cannot take part. A collective fails then on all members, and so does every later one of its communicator.
/// - [`Error::Aborted`], [`Error::Finalized`], [`Error::Forked`]: nothing can communicate any more.
/// - [`Error::Segment`] and [`Error::Wireup`]: the way to a peer could not be set up, as a rule for want of memory or
///   descriptors.
///
/// A call starts nothing if its arguments are wrong: [`Error::NoSuchRank`], [`Error::BadTag`], and
/// [`Error::Collective`] for sizes that do not fit. A receive may also end with [`Error::Truncated`], [`Error::Uneven`]
/// or [`Error::Cancelled`].
#[derive(Clone)]
pub struct Comm {
    pub(crate) handle: Handle,
    pub(crate) context: u32,
    /// The members; none: all ranks.
    pub(crate) membership: Option<Arc<Membership>>,
    /// Where the worker keeps its collectives; none: it is looked up.
    pub(crate) index: Option<usize>,
}

impl Source {
    pub(crate) fn rank(self) -> Option<usize> {
        match self {
            Self::Any => None,
            Self::Rank(rank) => Some(rank),
        }
    }
}

impl Tag {
    pub(crate) fn tag(self) -> Option<i32> {
        match self {
            Self::Any => None,
            Self::Is(tag) => Some(tag),
        }
    }
}

impl Status {
    /// Elements of type `T` received.
    #[must_use]
    pub fn count<T>(&self) -> usize {
        self.bytes / size_of::<T>().max(1)
    }
}

impl Comm {
    /// The communicator of all ranks.
    pub(crate) fn all(handle: Handle) -> Self {
        Self {
            handle,
            context: 0,
            membership: None,
            index: Some(0),
        }
    }

    /// The rank in the whole job of a rank of this communicator; `usize::MAX` if there is no such rank.
    #[inline]
    #[must_use]
    pub fn world_rank(&self, rank: usize) -> usize {
        match &self.membership {
            None => rank,
            Some(membership) => membership
                .members
                .get(rank)
                .map_or(usize::MAX, |&rank| rank as usize),
        }
    }

    /// What a message of this communicator with this tag is matched by.
    #[inline(always)]
    pub(crate) fn match_bits(&self, tag: i32) -> MatchBits {
        MatchBits {
            context: self.context,
            tag,
        }
    }

    #[inline]
    fn in_world(&self, source: Source) -> Source {
        match (source, &self.membership) {
            (Source::Rank(rank), Some(_)) => Source::Rank(self.world_rank(rank)),
            (source, _) => source,
        }
    }

    /// A status as this communicator counts ranks.
    #[inline]
    pub(crate) fn local(&self, status: Status) -> Status {
        local_status(self.membership.as_deref(), status)
    }

    /// This rank's number.
    #[inline]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.membership
            .as_ref()
            .map_or(self.handle.rank, |membership| membership.me)
    }

    /// The number of this rank's node, the same at all ranks of the job. Ranks of one node share memory.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.handle
            .gate
            .enter()
            .engine
            .node(self.handle.rank as u32)
    }

    /// Whether a rank of this communicator is on this rank's node. `false`, too, if there is no such rank.
    #[must_use]
    pub fn shares_node(&self, rank: usize) -> bool {
        let rank = self.world_rank(rank);
        rank < self.handle.size && self.handle.gate.enter().engine.shares_node(rank as u32)
    }

    /// Ranks in the communicator.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.membership
            .as_ref()
            .map_or(self.handle.size, |membership| membership.members.len())
    }

    /// A communicator of the same ranks whose messages are kept apart: only a receive with the same `context` matches
    /// them. It costs nothing and needs no agreement; its collectives go by messages, those of a [`Self::dup`] do not.
    ///
    /// # Panics
    /// If `context` is 2³⁰ or more, or 2¹⁸ or more in a communicator that does not have all ranks.
    #[must_use]
    pub fn with_context(&self, context: u32) -> Self {
        let (base, limit) = if self.context & SUB_CONTEXTS == 0 {
            (0, SUB_CONTEXTS)
        } else {
            (self.context >> SUB_SHIFT << SUB_SHIFT, 1 << SUB_SHIFT)
        };
        assert!(
            context < limit,
            "contexts from {limit} on belong to the library"
        );
        let context = base | context;
        Self {
            handle: self.handle.clone(),
            context,
            membership: self.membership.clone(),
            index: self.index.filter(|_| context == self.context),
        }
    }

    /// Waits for a request on a borrowed buffer. If this unwinds, the process ends.
    pub(crate) fn finish(&self, id: RequestId) -> Result<Status> {
        self.finish_when(|worker| worker.engine.take_result(id))
    }

    /// The same, where `done` may end the request otherwise.
    fn finish_when(
        &self,
        done: impl FnMut(&mut Worker) -> Option<Result<Status>>,
    ) -> Result<Status> {
        let result = self.handle.wait_or_abort(done);
        result.map(|status| self.local(status))
    }

    /// Sends `buf` to `dest`. Returns when the buffer may be used again: short messages are on their way then, long
    /// ones received. The tag is 0 to `i32::MAX`; a lower one is [`Error::BadTag`].
    #[inline(never)]
    pub fn send<T: NoUninit>(&self, buf: &[T], dest: usize, tag: i32) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(buf);
        let sent = if tag >= 0
            && let Ok(peer) = u32::try_from(self.world_rank(dest))
        {
            self.handle.gate.enter().engine.send_now(
                peer,
                self.match_bits(tag),
                bytes,
                AtOnce::Parts,
                None,
            )
        } else {
            SendProgress::Later(None)
        };
        match sent {
            SendProgress::All => Ok(()),
            SendProgress::Part(sent) => self.send_rest(bytes, dest, tag, sent),
            SendProgress::Later(plan) => self.send_mode(bytes, dest, tag, SendMode::Standard, plan),
        }
    }

    #[cold]
    pub(crate) fn send_rest(&self, bytes: &[u8], dest: usize, tag: i32, sent: u64) -> Result<()> {
        loan::lend(&self.handle, bytes, |loan| {
            let buf = UserBuf::One(loan);
            let id = self.handle.gate.enter().engine.send_rest(
                self.world_rank(dest) as u32,
                self.context,
                tag,
                buf,
                sent,
            );
            self.finish(id).map(drop)
        })
    }

    /// Sends `buf` to `dest` and returns when the receiver has matched it.
    pub fn ssend<T: NoUninit>(&self, buf: &[T], dest: usize, tag: i32) -> Result<()> {
        let bytes = bytemuck::cast_slice(buf);
        self.send_mode(bytes, dest, tag, SendMode::Synchronous, None)
    }

    /// Sends `buf` to `dest`, whose receive the program knows to be posted. As [`Self::send`]: the knowledge is not
    /// needed here.
    pub fn rsend<T: NoUninit>(&self, buf: &[T], dest: usize, tag: i32) -> Result<()> {
        self.send(buf, dest, tag)
    }

    #[cold]
    pub(crate) fn send_mode(
        &self,
        bytes: &[u8],
        dest: usize,
        tag: i32,
        mode: SendMode,
        plan: Option<SendPlan>,
    ) -> Result<()> {
        loan::lend(&self.handle, bytes, |loan| {
            let id = self.start_planned(UserBuf::One(loan), dest, tag, mode, plan)?;
            self.await_answer(id, dest);
            self.finish(id).map(drop)
        })
    }

    /// Polls the receiver's ring alone for a while: the shortest way for an answer that is about to come. A round of
    /// progress takes longer than a line from the other processor.
    fn await_answer(&self, id: RequestId, dest: usize) {
        if self.handle.stages.any() {
            return;
        }
        let Ok(dest) = u32::try_from(self.world_rank(dest)) else {
            return;
        };
        self.handle.with_worker_or_abort(|worker| {
            if worker.is_to_look_around() {
                worker.look_around();
            }
            let polls = match worker.engine.core.single_threaded {
                true => worker.engine.waits.policy.spin.min(SPIN_MAX),
                false => 0,
            };
            let mut poll = 0;
            while poll < polls && worker.engine.may_await_answer(id, dest) {
                poll += POLLS;
                if worker.engine.poll_ring(dest, polls.min(POLLS)) {
                    worker.engine.take_answer(dest, id);
                } else {
                    worker.progress(true);
                }
            }
        });
    }

    pub(crate) fn start_send(
        &self,
        buf: UserBuf,
        dest: usize,
        tag: i32,
        mode: SendMode,
    ) -> Result<RequestId> {
        self.start_planned(buf, dest, tag, mode, None)
    }

    /// As [`Self::start_send`]; `plan` as for [`Engine::send_planned`].
    pub(crate) fn start_planned(
        &self,
        buf: UserBuf,
        dest: usize,
        tag: i32,
        mode: SendMode,
        plan: Option<SendPlan>,
    ) -> Result<RequestId> {
        self.check_place(dest)?;
        let dest = self.world_rank(dest);
        let mut worker = self.handle.gate.enter();
        worker
            .engine
            .send_planned(dest, self.match_bits(tag), buf, mode, plan)
    }

    pub(crate) fn start_receive(
        &self,
        buf: UserBuf,
        source: Source,
        tag: Tag,
    ) -> Result<RequestId> {
        if let Source::Rank(rank) = source {
            self.check_place(rank)?;
        }
        let source = self.in_world(source).rank();
        self.handle
            .gate
            .enter()
            .engine
            .receive(source, self.context, tag.tag(), buf)
    }

    fn check_place(&self, rank: usize) -> Result<()> {
        let size = self.size();
        if rank < size {
            Ok(())
        } else {
            Err(Error::NoSuchRank { rank, size })
        }
    }

    /// Receives a message from `source` with `tag` into `buf`. A message that is longer than `buf` is an error; as much
    /// as fits is received.
    #[inline]
    pub fn recv<T: AnyBitPattern + NoUninit>(
        &self,
        buf: &mut [T],
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Status> {
        let (source, tag) = (source.into(), tag.into());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(buf);
        let status = match self.receive_soon(bytes, source, tag) {
            ReceiveProgress::All(status) => self.local(status),
            ReceiveProgress::Part(begun) => self.receive_rest(bytes, begun)?,
            ReceiveProgress::Nothing => self.receive_slow(bytes, source, tag)?,
        };
        whole::<T>(status)
    }

    /// Polls the source's ring alone for a while: the shortest way for a message that is about to come.
    #[inline]
    fn receive_soon(&self, bytes: &mut [u8], source: Source, tag: Tag) -> ReceiveProgress {
        let Source::Rank(source) = self.in_world(source) else {
            return ReceiveProgress::Nothing;
        };
        let Ok(source) = u32::try_from(source) else {
            return ReceiveProgress::Nothing;
        };
        let mut worker = self.handle.gate.enter();
        if worker.is_to_look_around() {
            worker.look_around();
        }
        let most = if worker.engine.core.single_threaded {
            worker.engine.waits.policy.spin.min(SPIN_MAX)
        } else {
            1
        };
        let (mut polls, mut polled) = (0, 0);
        loop {
            let look = Look {
                at_once: AtOnce::Parts,
                polls,
            };
            let engine = &mut worker.engine;
            let received = engine.receive_now(source, self.context, tag.tag(), bytes, look);
            if !matches!(received, ReceiveProgress::Nothing)
                || !engine.may_receive_now(source)
                || polled >= most
            {
                return received;
            }
            // A look, and polls; after polls in vain a round of progress, and a look.
            if polls == 0 {
                polls = most.min(POLLS);
            } else {
                polled += POLLS;
                polls = 0;
                worker.progress(true);
            }
        }
    }

    #[cold]
    fn receive_rest(&self, bytes: &mut [u8], begun: Incoming) -> Result<Status> {
        loan::lend_mut(&self.handle, bytes, |loan| {
            let id = self
                .handle
                .gate
                .enter()
                .engine
                .receive_rest(begun, UserBuf::One(loan));
            self.finish(id)
        })
    }

    #[cold]
    fn receive_slow(&self, bytes: &mut [u8], source: Source, tag: Tag) -> Result<Status> {
        loan::lend_mut(&self.handle, bytes, |loan| {
            let id = self.start_receive(UserBuf::One(loan), source, tag)?;
            self.finish(id)
        })
    }

    /// Sends one buffer and receives another at the same time.
    pub fn sendrecv<S: NoUninit, R: AnyBitPattern + NoUninit>(
        &self,
        send: &[S],
        dest: usize,
        send_tag: i32,
        recv: &mut [R],
        source: impl Into<Source>,
        recv_tag: impl Into<Tag>,
    ) -> Result<Status> {
        let (source, tag) = (source.into(), recv_tag.into());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(recv);
        let status = loan::lend_mut(&self.handle, bytes, |loan| {
            let receive = self.start_receive(UserBuf::One(loan), source, tag)?;
            let sent = self.send(send, dest, send_tag);
            if sent.is_err() {
                self.handle.gate.enter().engine.cancel(receive);
            }
            let received = self.finish(receive);
            sent.and(received)
        })?;
        whole::<R>(status)
    }

    /// Sends the bytes of several buffers as one message, by a single copy where the layer allows one.
    pub fn send_iov(&self, bufs: &[IoSlice<'_>], dest: usize, tag: i32) -> Result<()> {
        loan::scope(
            &self.handle,
            || (),
            |scope| {
                let loans: Vec<Loan> = bufs.iter().map(|buf| scope.lend(buf)).collect();
                let id =
                    self.start_send(UserBuf::Many(loans.into()), dest, tag, SendMode::Standard)?;
                self.finish(id).map(drop)
            },
        )
    }

    /// Receives one message into several buffers, filled in their order.
    pub fn recv_iov(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Status> {
        let (source, tag) = (source.into(), tag.into());
        loan::scope(
            &self.handle,
            || (),
            |scope| {
                let loans: Vec<Loan> = bufs.iter_mut().map(|buf| scope.lend_mut(buf)).collect();
                let id = self.start_receive(UserBuf::Many(loans.into()), source, tag)?;
                self.finish(id)
            },
        )
    }

    /// What the next message that `source` and `tag` match is, if one has come. It stays to be received.
    pub fn iprobe(&self, source: impl Into<Source>, tag: impl Into<Tag>) -> Result<Option<Status>> {
        let pattern = self.pattern(source.into(), tag.into())?;
        let found = self
            .handle
            .look(|worker| worker.engine.awaited(&pattern, Engine::probe))?;
        Ok(found.map(|status| self.local(status)))
    }

    /// Waits for a message that `source` and `tag` match and says what it is. It stays to be received.
    pub fn probe(&self, source: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status> {
        let pattern = self.pattern(source.into(), tag.into())?;
        let found = self
            .handle
            .wait(|worker| worker.engine.awaited(&pattern, Engine::probe).transpose())?;
        Ok(self.local(found))
    }

    pub(crate) fn pattern(&self, source: Source, tag: Tag) -> Result<Pattern> {
        let source = match source.rank() {
            None => None,
            Some(rank) if rank < self.size() => Some(self.world_rank(rank) as u32),
            Some(rank) => {
                return Err(Error::NoSuchRank {
                    rank,
                    size: self.size(),
                });
            }
        };
        match tag.tag() {
            Some(tag) if tag < 0 => Err(Error::BadTag { tag }),
            tag => Ok(Pattern {
                context: self.context,
                source,
                tag,
            }),
        }
    }

    /// Returns when all ranks have called it, by messages. If a rank has died, the others meet all the same and get the
    /// error that names it. They then wait no longer than [`REGROUP`] for one another. A rank that does not come may
    /// itself wait for one of them, and learns of the loss when that one leaves.
    pub(crate) fn meet(&self) -> Result<()> {
        let own = Self {
            context: self.context | OWN_CONTEXTS,
            ..self.clone()
        };
        let (rank, size) = (self.rank(), self.size());
        // A rank that finds another one dead goes on, and tells all later partners: they would wait for it otherwise.
        let mut failure: Option<Error> = None;
        let mut distance = 1;
        while distance < size {
            let to = (rank + distance) % size;
            let from = (rank + size - distance) % size;
            // An empty message tells of no failure.
            let (report, mut heard) = ([Failed::encode(failure.as_ref())], [0u64]);
            let report = &report[..usize::from(failure.is_some())];
            // The receive is posted first: two ranks that send to one another must not both wait to be received.
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut heard);
            let (sent, received) = loan::lend_mut(&self.handle, bytes, |loan| {
                let tag = MEETING | distance as i32;
                let receive = own.start_receive(UserBuf::One(loan), from.into(), tag.into());
                let sent = own.send(report, to, tag);
                (sent, receive.and_then(|id| own.finish_unless_gone(id)))
            });
            if matches!(received, Err(Error::Cancelled)) {
                let gone = self.handle.gate.enter().engine.lives.first_error();
                failure = failure.or(gone);
                break;
            }
            let decoded = Failed::decode(heard[0]);
            if let Err(Error::PeerDied { rank, death }) = &decoded {
                // The partner has seen it; this rank may not have looked yet.
                let mut worker = self.handle.gate.enter();
                worker.check_liveness();
                worker.engine.believe_dead(*rank, *death);
            }
            for result in [sent, received.map(drop), decoded] {
                match (result, &failure) {
                    (Ok(()), _) => {}
                    (Err(error), None) => failure = Some(error),
                    // The first one stands, unless it is less than a death.
                    (Err(error), Some(Error::PeerLeft { .. })) => failure = Some(error),
                    (Err(_), Some(_)) => {}
                }
            }
            distance *= 2;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Waits for a receive of [`Self::meet`]; some time after any rank of the job has gone the receive is cancelled.
    fn finish_unless_gone(&self, id: RequestId) -> Result<Status> {
        let mut known: Option<Instant> = None;
        self.finish_when(|worker| {
            let result = worker.engine.take_result(id);
            if result.is_some() || worker.engine.lives.first_error().is_none() {
                return result;
            }
            let since = *known.get_or_insert_with(Instant::now);
            if since.elapsed() < REGROUP || !worker.engine.cancel(id) {
                return None;
            }
            worker.engine.take_result(id)
        })
    }
}

/// How long ranks that are done wait for others in a job that has lost a rank. A rank that learns of the loss by an
/// error of its own comes sooner. Chosen by magnitude: short for a person that waits, and far
/// longer than a death takes to be noticed. That is ten times `ONECOPY_LIVENESS_PERIOD` at most, 0.1 s by default.
pub(crate) const REGROUP: Duration = Duration::from_secs(2);

/// A status of the engine as a communicator with these members counts ranks.
#[inline]
pub(crate) fn local_status(membership: Option<&Membership>, status: Status) -> Status {
    match membership {
        None => status,
        Some(membership) => Status {
            source: membership.of(status.source),
            ..status
        },
    }
}

fn whole<T>(status: Status) -> Result<Status> {
    let element = size_of::<T>().max(1);
    if status.bytes.is_multiple_of(element) {
        Ok(status)
    } else {
        Err(Error::Uneven {
            bytes: status.bytes as u64,
            element,
        })
    }
}
