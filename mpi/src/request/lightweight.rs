// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives of contiguous bytes on the communicator of all ranks, which most programs post by the million. The handle
//! is the number by which the runtime keeps the receive, and there is nothing else.

use super::activity::set_status;
use super::{Activity, Object, Pending, bad_request};
use crate::comm::CommObject;
use crate::failure::{Failure, Outcome};
use crate::ffi::{Addr, Out, Request, Status};
use crate::phase::engine;
use crate::{c, comm, memory, phase, store};
use onecopy::raw::{NUMBER_BITS, Poll, ReceiveOutcome};
use onecopy::{Source, Tag};
use std::sync::Arc;

/// The kind of such handles: no table has it.
const KIND: usize = 9;

/// The number of a receive, if the handle is one of such a receive.
#[inline(always)]
pub(super) fn name_of(handle: Request) -> Option<u32> {
    (handle.0 >> NUMBER_BITS == KIND).then_some(handle.0 as u32 & ((1 << NUMBER_BITS) - 1))
}

/// Starts a receive from a rank of the communicator of all ranks. `None`: it has to be an object, and nothing was
/// started.
#[inline(always)]
pub(crate) fn receive(
    buf: Addr,
    bytes: usize,
    source: Source,
    tag: Tag,
    comm: &Arc<CommObject>,
) -> Outcome<Option<Request>> {
    if !comm::world().is_some_and(|world| Arc::ptr_eq(world, comm)) {
        return Ok(None);
    }
    let mut starting = comm.link()?.start_lightweight();
    if let Source::Rank(rank) = source {
        let soon = |bytes: &mut [u8]| starting.at_once(bytes, rank, tag);
        if let Some(number) = memory::with_bytes_mut(buf, bytes, soon) {
            return Ok(Some(Request(KIND << NUMBER_BITS | number as usize)));
        }
    }
    let number = starting.receive(memory::received(buf, bytes), source, tag)?;
    Ok(number.map(|number| Request(KIND << NUMBER_BITS | number as usize)))
}

/// What a complete receive tells: its status with the error, and why it failed.
#[inline]
fn outcome(result: Result<onecopy::Status, Box<onecopy::Error>>) -> (Status, Option<Box<Failure>>) {
    let result = result.map_err(|error| *error);
    let world = comm::world();
    let mut status = Status::empty();
    let failure = set_status(world.map(|world| &**world), true, result, &mut status);
    match (failure, world) {
        (None, _) => (status, None),
        (Some(failure), world) => {
            status.error = failure.code;
            match world {
                Some(world) => (status, Some(failure.on(world))),
                None => (status, Some(failure)),
            }
        }
    }
}

/// Whether the receive is complete; `None`: there is none.
pub(super) fn is_over(number: u32, poll: &mut Poll<'_>) -> Option<bool> {
    poll.look_at_lightweight(number)
        .map(|result| result.is_some())
}

/// Lets `f` look at a receive.
pub(super) fn look<R>(number: u32, f: impl FnOnce(Option<bool>) -> R) -> Outcome<R> {
    Ok(engine()?.peek(|poll| f(is_over(number, poll))))
}

/// Whether it is over, with an error.
pub(super) fn has_failed(number: u32) -> bool {
    engine().is_ok_and(|link| {
        link.peek(|poll| matches!(poll.look_at_lightweight(number), Some(Some(Err(_)))))
    })
}

/// The status of a complete receive, which stays.
pub(super) fn status_of(number: u32) -> Status {
    let found = engine().ok().and_then(|link| {
        link.peek(|poll| {
            let found = poll.look_at_lightweight(number)??;
            Some(outcome(found.map_err(|error| Box::new(error.clone()))))
        })
    });
    found.map_or_else(Status::empty, |(status, _)| status)
}

/// Ends a complete receive.
pub(super) fn finish(handle: Request, number: u32) -> Outcome<(Status, Outcome<()>)> {
    match engine()?.peek(|poll| poll.take_lightweight(number)) {
        ReceiveOutcome::Over(result) => {
            let (status, failure) = outcome(result);
            Ok((status, failure.map_or(Ok(()), Err)))
        }
        ReceiveOutcome::Unknown | ReceiveOutcome::Active => Err(bad_request(handle)),
    }
}

/// Takes it back, if no message has matched it.
pub(super) fn cancel(handle: Request, number: u32) -> Outcome<()> {
    engine()?.peek(|poll| {
        is_over(number, poll).ok_or_else(|| bad_request(handle))?;
        poll.cancel_lightweight(number);
        Ok(())
    })
}

/// Makes an object of it, for one that goes on without a handle.
pub(super) fn adopt(handle: Request, number: u32) -> Outcome<Object> {
    let world = comm::world().ok_or_else(phase::not_active)?;
    let pending = engine()?
        .peek(|poll| poll.adopt(number).map(Pending::adopted))
        .ok_or_else(|| bad_request(handle))?;
    Ok(Object::active(world, Activity::Message(pending)))
}

/// Waits for a receive and ends it.
#[inline]
pub(super) fn wait(handle: Request, number: u32) -> Outcome<(Status, Option<Box<Failure>>)> {
    store::reap();
    let taken = engine()?.wait_until(|poll| match poll.take_lightweight(number) {
        ReceiveOutcome::Active => None,
        ReceiveOutcome::Unknown => Some(None),
        ReceiveOutcome::Over(result) => Some(Some(result)),
    });
    taken.map(outcome).ok_or_else(|| bad_request(handle))
}

/// Whether a handle is one of what [`wait_all`] waits for.
#[inline(always)]
fn is_lightweight(handle: Request) -> bool {
    name_of(handle).is_some() || handle == super::SENT || handle == c::REQUEST_NULL
}

/// An array of such receives and of sends that were over at once, under [`wait_all`].
struct WaitArray {
    requests: Out<Request>,
    statuses: Out<Status>,
    /// The first failure.
    first: Option<Box<Failure>>,
}

impl WaitArray {
    /// Whether the caller asks for statuses.
    #[inline(always)]
    fn wants_statuses(&self) -> bool {
        !self.statuses.is_null()
    }

    /// Ends the request at `place`, those before which are ended. `false`: it is not complete.
    #[inline(always)]
    fn end(&mut self, poll: &mut Poll<'_>, place: usize) -> Outcome<bool> {
        let handle = self.requests.at(place)?;
        // The caller does not ask what a receive without a fault got.
        let is_ended_unseen = !self.wants_statuses()
            && match name_of(handle) {
                Some(number) => poll.forget_lightweight(number),
                None => handle == super::SENT,
            };
        if is_ended_unseen {
            self.requests.set_at(place, c::REQUEST_NULL)?;
            return Ok(true);
        }
        let (status, failure) = match name_of(handle) {
            None => (Status::empty(), None),
            Some(number) => match poll.take_lightweight(number) {
                ReceiveOutcome::Active => return Ok(false),
                ReceiveOutcome::Unknown => return Err(bad_request(handle)),
                ReceiveOutcome::Over(result) => outcome(result),
            },
        };
        self.report(place, handle, &status, failure);
        if handle != c::REQUEST_NULL {
            self.requests.set_at(place, c::REQUEST_NULL)?;
        }
        Ok(true)
    }

    #[inline(always)]
    fn report(
        &mut self,
        place: usize,
        handle: Request,
        status: &Status,
        failure: Option<Box<Failure>>,
    ) {
        if failure.is_some() && self.first.is_none() && self.wants_statuses() {
            // Errors of single requests are reported only when there is one.
            for before in 0..place {
                self.statuses.element(before).set_error(c::SUCCESS);
            }
        }
        self.first = self.first.take().or(failure);
        let element = self.statuses.element(place);
        if self.first.is_some() || handle == c::REQUEST_NULL {
            element.set_unless_null(*status);
        } else {
            element.put(status);
        }
    }
}

/// Waits for all of an array, if all are such receives or sends that were over at once. `None`: there are others, and
/// nothing was done.
///
/// One pass under one hold of the engine: each is ended as soon as it is complete.
pub(super) fn wait_all(
    count: usize,
    requests: Out<Request>,
    statuses: Out<Status>,
) -> Outcome<Option<()>> {
    for place in 0..count {
        if !is_lightweight(requests.at(place)?) {
            return Ok(None);
        }
    }
    store::reap();
    let mut waiting = WaitArray {
        requests,
        statuses,
        first: None,
    };
    let mut ended = 0;
    let all = engine()?.wait_until(|poll| {
        while ended < count {
            match waiting.end(poll, ended) {
                Ok(true) => ended += 1,
                Ok(false) => return None,
                Err(failure) => return Some(Err(failure)),
            }
        }
        Some(Ok(()))
    });
    all?;
    match waiting.first {
        None => Ok(Some(())),
        Some(mut failure) => {
            if !statuses.is_null() {
                failure.code = c::ERR_IN_STATUS;
            }
            Err(failure)
        }
    }
}
