// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests: sends and receives that go on while the program does something else.
//!
//! A buffer cannot be freed or touched while a request owns it. Either the request takes the buffer and gives it back
//! ([`Request`], [`Persistent`]). Or the buffer is borrowed for a [`Scope`] that ends only when its requests have.

mod collective;

use crate::coll::Worker;
use crate::coll::group::Membership;
use crate::comm::{Comm, local_status};
use crate::engine::{Engine, SendMode};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::matching::{Envelope, Source, Tag};
use crate::request::{RequestId, Status, UserBuf};
use crate::state::UnexpectedMessage;
use bytemuck::{AnyBitPattern, NoUninit};
use onecopy_shm::loan::{self, Buffer, BufferMut, Owned};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A send or receive that owns its buffer until it is complete.
///
/// Dropping it waits for its end, except that a receive that no message has matched is cancelled.
///
/// ```
/// onecopy::local(2, |rt| {
///     let world = rt.world();
///     let peer = 1 - world.rank();
///     let receive = world.irecv(vec![0u32; 1000], peer, 5).unwrap();
///     let send = world.isend(vec![world.rank() as u32; 1000], peer, 5).unwrap();
///     let (numbers, status) = receive.wait().unwrap();
///     assert_eq!((numbers[999], status.source), (peer as u32, peer));
///     send.wait().unwrap();
/// });
/// ```
#[must_use = "a request that is dropped is waited for"]
pub struct Request<B> {
    owned: Option<Owned<Handle, B>>,
    id: RequestId,
    result: Option<Result<Status>>,
    /// The members of the communicator, to name the source.
    membership: Option<Arc<Membership>>,
}

impl<B> Request<B> {
    fn handle(&self) -> Option<&Handle> {
        self.owned.as_ref().map(Owned::engine)
    }

    /// Whether it is complete. Never waits.
    pub fn test(&mut self) -> bool {
        if self.result.is_none()
            && let Some(handle) = self.handle().cloned()
        {
            self.result = handle.look(|worker| worker.engine.take_result(self.id));
        }
        self.result.is_some()
    }

    /// Waits for completion; gives the buffer back and says what was received. After an error the buffer is gone: see
    /// [`Self::wait_both`].
    pub fn wait(self) -> Result<(B, Status)> {
        let (result, buffer) = self.wait_both();
        result.map(|status| (buffer, status))
    }

    /// Waits for completion; gives the buffer back in any case.
    pub fn wait_both(mut self) -> (Result<Status>, B) {
        self.complete();
        let result = self.result.take().unwrap_or(Err(Error::Cancelled));
        let result = result.map(|status| local_status(self.membership.as_deref(), status));
        match self.owned.take() {
            Some(owned) => (result, owned.take()),
            None => {
                unreachable!("a request has its buffer until it is waited for, which consumes it")
            }
        }
    }

    fn complete(&mut self) {
        if self.result.is_none()
            && let Some(handle) = self.handle()
        {
            self.result = Some(handle.wait_for(self.id));
        }
    }

    /// Cancels a receive that no message has matched, and says whether that was so. Then the request completes with
    /// [`Error::Cancelled`]. Sends cannot be cancelled.
    pub fn cancel(&mut self) -> bool {
        self.result.is_none()
            && self
                .handle()
                .cloned()
                .is_some_and(|handle| handle.gate.enter().engine.cancel(self.id))
    }
}

impl<B> Drop for Request<B> {
    fn drop(&mut self) {
        if self.owned.is_some() && self.handle().is_none_or(|handle| handle.gate.is_ours()) {
            self.cancel();
            self.complete();
        }
    }
}

/// Waits for all; gives the buffers back, or the first error. After an error all buffers are dropped, also those of
/// requests that succeeded: to keep them, wait for each with [`Request::wait_both`].
pub fn wait_all<B>(requests: impl IntoIterator<Item = Request<B>>) -> Result<Vec<(B, Status)>> {
    // All are waited for, also behind an error.
    let done: Vec<_> = requests.into_iter().map(Request::wait).collect();
    done.into_iter().collect()
}

/// Waits until at least one request is complete and gives the places of all that are. Empty for no requests.
pub fn wait_some<B>(requests: &mut [Request<B>]) -> Vec<usize> {
    if requests.is_empty() {
        return Vec::new();
    }
    loop {
        let done = test_some(requests);
        if !done.is_empty() {
            return done;
        }
        let ids: Vec<RequestId> = requests.iter().map(|request| request.id).collect();
        if let Some(handle) = requests.first().and_then(Request::handle).cloned() {
            handle.wait(|worker| {
                ids.iter()
                    .any(|&id| worker.engine.is_done(id))
                    .then_some(())
            });
        }
    }
}

/// Waits until a request is complete and gives its place. `None` for no requests. A complete request keeps its place in
/// the slice. Until the caller takes it out and waits for it, the next call gives the same place again.
pub fn wait_any<B>(requests: &mut [Request<B>]) -> Option<usize> {
    wait_some(requests).first().copied()
}

/// The places of all requests that are complete. Never waits.
pub fn test_some<B>(requests: &mut [Request<B>]) -> Vec<usize> {
    requests
        .iter_mut()
        .enumerate()
        .filter_map(|(place, request)| request.test().then_some(place))
        .collect()
}

/// The place of a request that is complete. Never waits. As for [`wait_any`], it is the same one until it is taken out.
pub fn test_any<B>(requests: &mut [Request<B>]) -> Option<usize> {
    requests.iter_mut().position(Request::test)
}

/// Whether all requests are complete. Never waits.
pub fn test_all<B>(requests: &mut [Request<B>]) -> bool {
    // Each is tested, also behind one that is not complete.
    test_some(requests).len() == requests.len()
}

impl Engine {
    #[inline]
    pub(crate) fn is_done(&self, id: RequestId) -> bool {
        self.core
            .requests
            .get(id)
            .is_none_or(|request| request.state == crate::request::RequestState::Done)
    }
}

impl Comm {
    fn own_send<B: Buffer>(&self, buffer: B, dest: usize, tag: i32, mode: SendMode) -> Started<B> {
        let owned = Owned::new(self.handle.clone(), buffer);
        let started = self.start_send(UserBuf::One(owned.loan()), dest, tag, mode);
        self.own(owned, started)
    }

    fn own_receive<B: BufferMut>(&self, buffer: B, source: Source, tag: Tag) -> Started<B> {
        let owned = Owned::new_mut(self.handle.clone(), buffer);
        let started = self.start_receive(UserBuf::One(owned.loan()), source, tag);
        self.own(owned, started)
    }

    fn own<B>(&self, owned: Owned<Handle, B>, started: Result<RequestId>) -> Started<B> {
        match started {
            Ok(id) => Ok(Request {
                owned: Some(owned),
                id,
                result: None,
                membership: self.membership.clone(),
            }),
            Err(error) => Err((error, owned.take())),
        }
    }

    /// Starts a send. The tag is 0 to `i32::MAX`; a lower one is [`Error::BadTag`].
    pub fn isend<B: Buffer>(&self, buffer: B, dest: usize, tag: i32) -> Result<Request<B>> {
        let started = self.own_send(buffer, dest, tag, SendMode::Standard);
        started.map_err(|(error, _)| error)
    }

    /// Starts a send that is complete when the receiver has matched it.
    pub fn issend<B: Buffer>(&self, buffer: B, dest: usize, tag: i32) -> Result<Request<B>> {
        let started = self.own_send(buffer, dest, tag, SendMode::Synchronous);
        started.map_err(|(error, _)| error)
    }

    /// Starts a receive. The tag is 0 to `i32::MAX`, or [`Tag::Any`].
    pub fn irecv<B: BufferMut>(
        &self,
        buffer: B,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Request<B>> {
        let started = self.own_receive(buffer, source.into(), tag.into());
        started.map_err(|(error, _)| error)
    }

    /// Prepares a send that can be started again and again.
    pub fn send_init<B: Buffer>(&self, buffer: B, dest: usize, tag: i32) -> Persistent<B> {
        let start =
            move |comm: &Comm, buffer: B| comm.own_send(buffer, dest, tag, SendMode::Standard);
        Persistent {
            comm: self.clone(),
            start: Box::new(start),
            state: Prepared::Ready(buffer),
        }
    }

    /// Prepares a receive that can be started again and again.
    pub fn recv_init<B: BufferMut>(
        &self,
        buffer: B,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Persistent<B> {
        let (source, tag) = (source.into(), tag.into());
        let start = move |comm: &Comm, buffer: B| comm.own_receive(buffer, source, tag);
        Persistent {
            comm: self.clone(),
            start: Box::new(start),
            state: Prepared::Ready(buffer),
        }
    }

    /// Takes a message out of the queue, if one has come: nobody else can receive it then.
    pub fn improbe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Matched>> {
        let pattern = self.pattern(source.into(), tag.into())?;
        let found = self
            .handle
            .look(|worker| worker.engine.awaited(&pattern, Engine::match_probe))?;
        Ok(found.map(|found| self.matched(found)))
    }

    /// Waits for a message and takes it out of the queue.
    pub fn mprobe(&self, source: impl Into<Source>, tag: impl Into<Tag>) -> Result<Matched> {
        let pattern = self.pattern(source.into(), tag.into())?;
        let found = self.handle.wait(|worker| {
            worker
                .engine
                .awaited(&pattern, Engine::match_probe)
                .transpose()
        })?;
        Ok(self.matched(found))
    }

    fn matched(&self, found: ProbedMessage) -> Matched {
        Matched {
            comm: self.clone(),
            status: self.local(found.status),
            envelope: found.envelope,
            message: Some(found.message),
        }
    }

    /// Runs `body` with a scope in which borrowed buffers can be sent and received without blocking. Returns when all
    /// of its requests are complete. The errors of requests that `body` has not waited for are dropped: end it with
    /// [`Scope::wait_all`] to hear of them.
    ///
    /// ```
    /// onecopy::local(2, |rt| {
    ///     let world = rt.world();
    ///     let peer = 1 - world.rank();
    ///     let (mine, mut theirs) = ([world.rank() as u64; 100], [9u64; 100]);
    ///     world
    ///         .scope(|scope| {
    ///             scope.irecv(&mut theirs, peer, 0)?;
    ///             scope.isend(&mine, peer, 0)?;
    ///             scope.wait_all()
    ///         })
    ///         .unwrap();
    ///     assert_eq!(theirs, [peer as u64; 100]);
    /// });
    /// ```
    pub fn scope<'env, R>(
        &'env self,
        body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> R,
    ) -> R {
        let pending = Rc::new(RefCell::new(Vec::new()));
        let unsettled = Rc::clone(&pending);
        let settle = || {
            if !self.handle.gate.is_ours() {
                return;
            }
            for id in unsettled.take() {
                if std::thread::panicking() {
                    self.handle.gate.enter().engine.cancel(id);
                }
                let _ = self.finish(id);
            }
        };
        loan::scope(&self.handle, settle, |lender| {
            body(&Scope {
                comm: self,
                lender,
                pending,
            })
        })
    }
}

/// A region of code during which borrowed buffers can be sent and received. See [`Comm::scope`]. Errors are those of
/// [`Comm`]: of arguments at the start of a request, all others where it is waited for.
pub struct Scope<'scope, 'env: 'scope> {
    pub(crate) comm: &'env Comm,
    pub(crate) lender: &'scope loan::Scope<'scope, 'env, Handle>,
    pending: Rc<RefCell<Vec<RequestId>>>,
}

/// A request of a [`Scope`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopedRequest(RequestId);

impl<'env> Scope<'_, 'env> {
    pub(crate) fn keep(&self, id: RequestId) -> ScopedRequest {
        self.pending.borrow_mut().push(id);
        ScopedRequest(id)
    }

    /// Starts a send. The tag is 0 to `i32::MAX`; a lower one is [`Error::BadTag`].
    pub fn isend<T: NoUninit>(
        &self,
        buf: &'env [T],
        dest: usize,
        tag: i32,
    ) -> Result<ScopedRequest> {
        let loan = self.lender.lend(bytemuck::cast_slice(buf));
        let id = self
            .comm
            .start_send(UserBuf::One(loan), dest, tag, SendMode::Standard)?;
        Ok(self.keep(id))
    }

    /// Starts a send of several buffers as one message.
    pub fn isend_iov(&self, bufs: &[&'env [u8]], dest: usize, tag: i32) -> Result<ScopedRequest> {
        let loans: Vec<_> = bufs.iter().map(|buf| self.lender.lend(buf)).collect();
        let id =
            self.comm
                .start_send(UserBuf::Many(loans.into()), dest, tag, SendMode::Standard)?;
        Ok(self.keep(id))
    }

    /// Starts a receive. The tag is 0 to `i32::MAX`, or [`Tag::Any`].
    pub fn irecv<T: AnyBitPattern + NoUninit>(
        &self,
        buf: &'env mut [T],
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest> {
        let loan = self.lender.lend_mut(bytemuck::cast_slice_mut(buf));
        let id = self
            .comm
            .start_receive(UserBuf::One(loan), source.into(), tag.into())?;
        Ok(self.keep(id))
    }

    /// Starts a receive into several buffers.
    pub fn irecv_iov(
        &self,
        bufs: Vec<&'env mut [u8]>,
        source: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<ScopedRequest> {
        let loans: Vec<_> = bufs
            .into_iter()
            .map(|buf| self.lender.lend_mut(buf))
            .collect();
        let id = self
            .comm
            .start_receive(UserBuf::Many(loans.into()), source.into(), tag.into())?;
        Ok(self.keep(id))
    }

    fn forget(&self, id: RequestId) {
        self.pending.borrow_mut().retain(|&other| other != id);
    }

    /// Waits for one request.
    pub fn wait(&self, request: ScopedRequest) -> Result<Status> {
        let result = self.comm.finish(request.0);
        self.forget(request.0);
        result
    }

    /// The result of a request if it is complete. Never waits.
    pub fn test(&self, request: ScopedRequest) -> Option<Result<Status>> {
        let look = |worker: &mut Worker| worker.engine.take_result(request.0);
        let result = self.comm.handle.look(look);
        if result.is_some() {
            self.forget(request.0);
        }
        result.map(|result| result.map(|status| self.comm.local(status)))
    }

    /// Waits for all requests that were not waited for yet, and gives their results in the order of their start, or the
    /// first error.
    pub fn wait_all(&self) -> Result<Vec<Status>> {
        let mut results = Vec::with_capacity(self.pending.borrow().len());
        // Each stays among the pending until it is complete, so that a panic leaves none behind.
        while let Some(&id) = self.pending.borrow().get(results.len()) {
            results.push(self.comm.finish(id));
        }
        self.pending.borrow_mut().clear();
        results.into_iter().collect()
    }

    /// Waits until one of the requests that were not waited for yet is complete. `None` if there is none.
    pub fn wait_any(&self) -> Option<(ScopedRequest, Result<Status>)> {
        let ids = self.pending.borrow().clone();
        if ids.is_empty() {
            return None;
        }
        let done = |worker: &mut Worker| ids.iter().copied().find(|&id| worker.engine.is_done(id));
        let done = self.comm.handle.wait_or_abort(done);
        Some((ScopedRequest(done), self.wait(ScopedRequest(done))))
    }

    /// Cancels a receive that no message has matched, and says whether that was so.
    pub fn cancel(&self, request: ScopedRequest) -> bool {
        self.comm.handle.gate.enter().engine.cancel(request.0)
    }
}

/// A request, or why there is none and the buffer that it was to own.
type Started<B> = std::result::Result<Request<B>, (Error, B)>;

type Start<B> = Box<dyn Fn(&Comm, B) -> Started<B> + Send>;

enum Prepared<B> {
    Ready(B),
    Active(Request<B>),
    Lost,
}

/// A send or receive that is started again and again with the same buffer.
pub struct Persistent<B> {
    comm: Comm,
    start: Start<B>,
    state: Prepared<B>,
}

impl<B> Persistent<B> {
    /// Starts it. A request that is still active is waited for first. After an error it is not active, and can be
    /// started again.
    pub fn start(&mut self) -> Result<()> {
        self.wait()?;
        match std::mem::replace(&mut self.state, Prepared::Lost) {
            Prepared::Ready(buffer) => {
                let (state, result) = match (self.start)(&self.comm, buffer) {
                    Ok(request) => (Prepared::Active(request), Ok(())),
                    Err((error, buffer)) => (Prepared::Ready(buffer), Err(error)),
                };
                self.state = state;
                result
            }
            other => {
                self.state = other;
                Err(Error::Cancelled)
            }
        }
    }

    /// Waits until it is complete; the status if it was active.
    pub fn wait(&mut self) -> Result<Option<Status>> {
        match std::mem::replace(&mut self.state, Prepared::Lost) {
            Prepared::Active(request) => {
                let (result, buffer) = request.wait_both();
                self.state = Prepared::Ready(buffer);
                result.map(Some)
            }
            other => {
                self.state = other;
                Ok(None)
            }
        }
    }

    /// Whether it is not active or complete. Never waits.
    pub fn test(&mut self) -> bool {
        match &mut self.state {
            Prepared::Active(request) => request.test(),
            _ => true,
        }
    }

    /// The buffer, while no request is active.
    pub fn buffer(&mut self) -> Option<&mut B> {
        match &mut self.state {
            Prepared::Ready(buffer) => Some(buffer),
            _ => None,
        }
    }
}

/// A message that was taken out of the queue by [`Comm::mprobe`] and is still to be received.
pub struct Matched {
    pub(crate) comm: Comm,
    pub(crate) status: Status,
    pub(crate) envelope: Envelope,
    pub(crate) message: Option<UnexpectedMessage>,
}

impl Matched {
    /// What the message is.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives it.
    pub fn recv<T: AnyBitPattern + NoUninit>(mut self, buf: &mut [T]) -> Result<Status> {
        self.receive(bytemuck::cast_slice_mut(buf))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<Status> {
        let Some(message) = self.message.take() else {
            return Err(Error::Cancelled);
        };
        loan::lend_mut(&self.comm.handle, bytes, |loan| {
            let id = self.comm.handle.gate.enter().engine.receive_matched(
                self.envelope,
                message,
                UserBuf::One(loan),
            );
            self.comm.finish(id)
        })
    }
}

impl Drop for Matched {
    fn drop(&mut self) {
        if self.message.is_some() && self.comm.handle.gate.is_ours() {
            // The sender may wait: the message is received into nothing.
            let _ = self.receive(&mut []);
        }
    }
}

/// A message that was taken out of the queue.
struct ProbedMessage {
    status: Status,
    envelope: Envelope,
    message: UnexpectedMessage,
}

impl Engine {
    fn match_probe(&mut self, pattern: &crate::matching::Pattern) -> Result<Option<ProbedMessage>> {
        let Some(status) = self.probe(pattern)? else {
            return Ok(None);
        };
        let Some(entry) = self.receives.unexpected.find(pattern) else {
            return Ok(None);
        };
        let message = self.receives.unexpected.get(entry);
        if matches!(message, UnexpectedMessage::Partial(_)) {
            // The rest is under way; it is whole soon.
            return Ok(None);
        }
        let envelope = self.receives.unexpected.envelope(entry);
        Ok(Some(ProbedMessage {
            status,
            envelope,
            message: self.receives.unexpected.take(entry),
        }))
    }

    pub(crate) fn receive_matched(
        &mut self,
        envelope: Envelope,
        message: UnexpectedMessage,
        buf: UserBuf,
    ) -> RequestId {
        let (context, tag) = (envelope.context, envelope.tag);
        let request = crate::request::Request {
            peer: envelope.source,
            ..crate::request::Request::receive(
                crate::request::RequestState::Receiving,
                context,
                tag,
                buf,
            )
        };
        let id = self.core.requests.insert(request);
        match self.lives.error_of(envelope.source) {
            Some(error) if !message.is_whole() => self.core.requests.complete(id, Err(error)),
            _ => self.accept(envelope, message, id),
        }
        id
    }
}
