// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and their completion.

mod activity;
mod complete;

pub(crate) use activity::{Activity, Pending, Recipe, Unpack};
pub(crate) use complete::*;

use crate::comm::CommObject;
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Out, Request, Status};
use crate::handle::Table;
use crate::{c, job};
use std::sync::{Arc, Mutex};

/// A request of the program.
pub(crate) struct Object {
    pub(crate) comm: Option<Arc<CommObject>>,
    pub(crate) activity: Activity,
    pub(crate) status: Status,
    /// Why it failed, once it is complete.
    pub(crate) failure: Option<Box<Failure>>,
    /// What to start, again and again.
    pub(crate) recipe: Option<Recipe>,
}

static REQUESTS: Table<Object> = Table::new(6);

/// The request of every send that was over at once: it has nothing to tell, so one is enough. No table gives this number.
pub(crate) const SENT: Request = Request(15 << 27);

/// Requests that were freed before they were complete.
static ORPHANS: Mutex<Vec<Object>> = Mutex::new(Vec::new());

impl Object {
    /// A request that is under way.
    pub(crate) fn active(comm: &Arc<CommObject>, activity: Activity) -> Self {
        Self {
            comm: Some(Arc::clone(comm)),
            activity,
            status: Status::empty(),
            failure: None,
            recipe: None,
        }
    }

    /// A request that is complete.
    pub(crate) fn complete(status: Status) -> Self {
        Self {
            comm: None,
            activity: Activity::Done,
            status,
            failure: None,
            recipe: None,
        }
    }

    /// A persistent request that was not started.
    pub(crate) fn persistent(comm: &Arc<CommObject>, recipe: Recipe) -> Self {
        Self {
            activity: Activity::Inactive,
            recipe: Some(recipe),
            ..Self::active(comm, Activity::Done)
        }
    }
}

#[cold]
fn bad_request(handle: Request) -> Box<Failure> {
    fail(c::ERR_REQUEST, format!("{:#x} is no request", handle.0))
}

/// A handle for a request.
#[inline]
pub(crate) fn keep(object: Object) -> Outcome<Request> {
    REQUESTS
        .insert(object)
        .map(Request)
        .ok_or_else(job::too_many)
}

/// The request of a duplicate whose identity is still to come.
pub(crate) fn identity(
    parent: &Arc<CommObject>,
    new: Arc<CommObject>,
    tag: i32,
) -> Outcome<Request> {
    keep(Object::active(
        parent,
        activity::identity(parent, new, tag)?,
    ))
}

/// Gives up a request that goes on: its buffers stay lent until it is complete.
fn abandon(object: Object) {
    let mut orphans = job::lock(&ORPHANS);
    orphans.retain_mut(|orphan| !advance(orphan));
    orphans.push(object);
}

/// Waits for all requests that were given up.
pub(crate) fn settle_orphans() {
    let orphans = std::mem::take(&mut *job::lock(&ORPHANS));
    for mut orphan in orphans {
        // A receive that nobody waits for may never be matched.
        if !advance(&mut orphan) && !take_back(&mut orphan) {
            wait_object(&mut orphan);
        }
    }
}

pub(crate) fn request_free(request: Out<Request>) -> Outcome<()> {
    let handle = request.get()?;
    if handle != SENT {
        let mut object = REQUESTS
            .remove(handle.0)
            .ok_or_else(|| bad_request(handle))?;
        if !advance(&mut object) {
            abandon(object);
        }
    }
    request.set(c::REQUEST_NULL)
}
