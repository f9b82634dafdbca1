// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and their completion.

mod activity;
mod complete;
mod named;

pub(crate) use activity::{Activity, Pending, Recipe, Unpack};
pub(crate) use complete::*;
pub(crate) use named::receive;

use crate::comm::CommObject;
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Out, Request, Status};
use crate::handle::{Place, Table};
use crate::{c, job};
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

/// The communicator of a request. That of all ranks is there for as long as any request, so nothing is counted for it.
pub(crate) enum Owner {
    Nobody,
    World,
    Of(Arc<CommObject>),
}

impl Owner {
    fn new(comm: &Arc<CommObject>) -> Self {
        match job::world() {
            Some(world) if Arc::ptr_eq(world, comm) => Self::World,
            _ => Self::Of(Arc::clone(comm)),
        }
    }

    pub(crate) fn get(&self) -> Option<&CommObject> {
        match self {
            Self::Nobody => None,
            Self::World => job::world().map(|world| &**world),
            Self::Of(comm) => Some(comm),
        }
    }
}

/// A request of the program.
pub(crate) struct Object {
    pub(crate) comm: Owner,
    pub(crate) activity: Activity,
    pub(crate) status: Status,
    /// Why it failed, once it is complete.
    pub(crate) failure: Option<Box<Failure>>,
    /// What to start, again and again.
    pub(crate) recipe: Option<Recipe>,
}

static REQUESTS: Table<Object> = Table::new(6);

thread_local! {
    /// Places in the table that this thread used last: most requests are made and completed by one thread.
    static PLACES: RefCell<Places> = const { RefCell::new(Places(Vec::new())) };
}

/// Free places, which go back to all threads with their own.
struct Places(Vec<Place>);

impl Drop for Places {
    fn drop(&mut self) {
        REQUESTS.give_back(self.0.drain(..));
    }
}

/// More free places than this are not kept by a thread.
const PLACES_MAX: usize = 256;

/// Takes a request out of the table.
fn remove(handle: Request) -> Option<Object> {
    let (place, object) = REQUESTS.take(handle.0)?;
    // At the end of the thread there is no list of its own any more.
    let mut place = Some(place);
    let kept = PLACES.try_with(|places| {
        let list = &mut places.borrow_mut().0;
        if list.len() >= PLACES_MAX {
            REQUESTS.give_back(list.drain(..));
        }
        list.extend(place.take());
    });
    if kept.is_err() {
        REQUESTS.give_back(place);
    }
    Some(object)
}

/// The request of every send that was over at once: it has nothing to tell, so one is enough. No table gives this number.
pub(crate) const SENT: Request = Request(15 << 27);

/// Requests that were freed before they were complete.
static ORPHANS: Mutex<Vec<Object>> = Mutex::new(Vec::new());

impl Object {
    /// A request that is under way.
    pub(crate) fn active(comm: &Arc<CommObject>, activity: Activity) -> Self {
        Self {
            comm: Owner::new(comm),
            activity,
            status: Status::empty(),
            failure: None,
            recipe: None,
        }
    }

    /// A request that is complete.
    pub(crate) fn complete(status: Status) -> Self {
        Self {
            comm: Owner::Nobody,
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
    let place = PLACES.try_with(|places| places.borrow_mut().0.pop());
    REQUESTS
        .insert_at(place.ok().flatten(), object)
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
        let mut object = match named::name_of(handle) {
            Some(name) => named::adopt(handle, name)?,
            None => remove(handle).ok_or_else(|| bad_request(handle))?,
        };
        if !advance(&mut object) {
            abandon(object);
        }
    }
    request.set(c::REQUEST_NULL)
}
