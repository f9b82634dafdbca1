// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a request does.

use super::{Object, Pending};
use crate::comm::CommObject;
use crate::failure::{Failure, Outcome};
use crate::ffi::Status;
use crate::{c, comm};
use onecopy::raw::Poll;
use onecopy::{Error, Source, Tag};
use std::sync::Arc;

/// What a request does.
pub(crate) enum Activity {
    /// A persistent request that is not started.
    Inactive,
    Done,
    /// A send or a receive.
    Message(Pending),
    /// A send and a receive: the second one's status is the request's.
    Both(Box<[Option<Pending>; 2]>),
    /// Messages of a neighbourhood collective.
    Many(Vec<Pending>),
    /// A collective of the runtime.
    Collective(Box<crate::coll::Running>),
    /// The identity of a communicator.
    Identity {
        pending: Box<Pending>,
        new: Arc<CommObject>,
    },
    /// All buffered sends that were under way.
    Flush(Arc<crate::store::Store>),
}

/// What a persistent request starts.
pub(crate) type Recipe = Arc<dyn Fn() -> Outcome<Object> + Send + Sync>;

/// Sets the status of a receive or send that is over, and returns why it failed.
#[inline]
pub(super) fn set_status(
    comm: Option<&CommObject>,
    receives: bool,
    result: Result<onecopy::Status, Error>,
    status: &mut Status,
) -> Option<Box<Failure>> {
    let rank_of = |rank| comm.map_or(0, |comm| comm.rank_of(rank));
    match result {
        Ok(found) => {
            if receives {
                *status = Status::new(rank_of(found.source), found.tag, found.bytes as u64);
            }
            None
        }
        Err(Error::Cancelled) => {
            status.set_cancelled(true);
            None
        }
        Err(error) => {
            if let Error::Truncated {
                rank, tag, buffer, ..
            } = &error
            {
                *status = Status::new(rank_of(*rank), *tag, *buffer);
            }
            Some(error.into())
        }
    }
}

/// The status and failure of a receive or send that is over.
fn settle(object: &mut Object, receives: bool, result: Result<onecopy::Status, Error>) {
    let comm = object.comm.get().map(|comm| &**comm);
    let failure = set_status(comm, receives, result, &mut object.status);
    if failure.is_some() {
        object.failure = failure;
    }
}

/// Takes the result of one of two messages, if it is there now, and whether that received.
fn take_of(
    pending: &mut Option<Pending>,
    poll: &mut Poll<'_>,
) -> Option<(bool, Result<onecopy::Status, Error>)> {
    let active = pending.as_mut()?;
    let receives = active.receives();
    let result = active.take(poll)?;
    *pending = None;
    Some((receives, result))
}

/// Takes what is over of many messages. Gives the first error of these.
fn take_all(messages: &mut Vec<Pending>, poll: &mut Poll<'_>) -> Option<Error> {
    let mut failed = None;
    messages.retain_mut(|pending| match pending.take(poll) {
        None => true,
        Some(result) => {
            failed = failed.take().or(result.err());
            false
        }
    });
    failed
}

/// A new communicator learns its identity, which has come as four bytes.
fn identify(new: &CommObject, packed: &[u8]) {
    let mut four = [0; 4];
    four.copy_from_slice(packed);
    if let Some(world) = comm::world()
        && let Ok(link) = world.link()
    {
        new.connect(link, u32::from_ne_bytes(four));
    }
}

impl Object {
    /// Whether it is complete, or was never started.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.activity, Activity::Done | Activity::Inactive)
    }

    /// Looks whether it is complete now.
    pub(crate) fn poll(&mut self, poll: &mut Poll<'_>) -> bool {
        match &mut self.activity {
            Activity::Inactive | Activity::Done => return true,
            Activity::Message(pending) => {
                let Some(result) = pending.take(poll) else {
                    return false;
                };
                let receives = pending.receives();
                settle(self, receives, result);
            }
            Activity::Both(both) => {
                let results = both.each_mut().map(|pending| take_of(pending, poll));
                let over = both.iter().all(Option::is_none);
                for (receives, result) in results.into_iter().flatten() {
                    settle(self, receives, result);
                }
                if !over {
                    return false;
                }
            }
            Activity::Many(messages) => {
                let failed = take_all(messages, poll);
                let over = messages.is_empty();
                if let Some(error) = failed {
                    self.failure.get_or_insert_with(|| error.into());
                }
                if !over {
                    return false;
                }
            }
            Activity::Collective(running) => {
                let Some(result) = running.take(poll) else {
                    return false;
                };
                if let Err(error) = result {
                    self.failure = Some(error.into());
                }
            }
            Activity::Identity { pending, new } => {
                let Some(result) = pending.take(poll) else {
                    return false;
                };
                if result.is_ok() {
                    identify(new, pending.packed());
                }
                settle(self, false, result);
            }
            Activity::Flush(store) => {
                if !store.poll(poll) {
                    return false;
                }
            }
        }
        self.activity = Activity::Done;
        true
    }

    /// Takes back a receive that no message has matched.
    pub(crate) fn cancel(&mut self, poll: &mut Poll<'_>) -> bool {
        match &self.activity {
            Activity::Message(pending) => pending.cancel(poll),
            _ => false,
        }
    }
}

/// Receives the identity of a duplicate from the first member.
pub(super) fn identity(
    parent: &Arc<CommObject>,
    new: Arc<CommObject>,
    tag: i32,
) -> Outcome<Activity> {
    let from = Source::Rank(parent.job_rank(0)?);
    let own = &parent.links()?.own;
    let pending = Pending::receive_packed(vec![0; 4], None, |buf| {
        own.begin_receive(buf, from, Tag::Is(tag))
    })?;
    Ok(Activity::Identity {
        pending: Box::new(pending),
        new,
    })
}

/// The class to put into a status.
pub(super) fn code_of(object: &Object) -> i32 {
    object
        .failure
        .as_ref()
        .map_or(c::SUCCESS, |failure| failure.code)
}
