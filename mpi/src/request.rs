// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and their completion.

mod activity;
mod complete;
mod lightweight;
mod pending;

pub(crate) use activity::{Activity, Recipe};
pub(crate) use complete::*;
pub(crate) use lightweight::receive;
pub(crate) use pending::{Pending, Unpack};

use crate::comm::CommObject;
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Out, Request, Status};
use crate::handle::{Table, VacantSlot};
use crate::{c, comm, phase};
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
        match comm::world() {
            Some(world) if Arc::ptr_eq(world, comm) => Self::World,
            _ => Self::Of(Arc::clone(comm)),
        }
    }

    pub(crate) fn get(&self) -> Option<&Arc<CommObject>> {
        match self {
            Self::Nobody => None,
            Self::World => comm::world(),
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
    /// Vacant slots in the table that this thread used last: most requests are made and completed by one thread.
    static PLACES: RefCell<VacantSlots> = const { RefCell::new(VacantSlots(Vec::new())) };
}

/// Free places, which go back to all threads with their own.
struct VacantSlots(Vec<VacantSlot>);

impl Drop for VacantSlots {
    fn drop(&mut self) {
        REQUESTS.give_back(self.0.drain(..));
    }
}

/// More free places than this are not kept by a thread. Chosen by magnitude: a window of 64 requests, some times over.
/// The table's lock is taken once for all that go back.
const PLACES_MAX: usize = 256;

/// Takes a request out of the table.
fn remove(handle: Request) -> Option<Object> {
    let (place, object) = REQUESTS.take(handle.0)?;
    give_back(place);
    Some(object)
}

/// Keeps a free place for this thread's next request.
fn give_back(place: VacantSlot) {
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
}

/// The request of every send that was over at once: it has nothing to report, so one is enough. No table gives this
/// number.
pub(crate) const SENT: Request = Request(15 << 27);

/// Requests that were freed before they were complete.
static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans {
    list: Vec::new(),
    looked_at: 0,
});

/// Looked through each time that they have doubled: once for each new one would take the square of their number.
struct Orphans {
    list: Vec<Object>,
    /// How many were left when they were looked through.
    looked_at: usize,
}

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

/// The home of a request that is still to be started: nothing is started before it has one.
#[must_use = "a home is for a request"]
pub(crate) struct Reserved {
    place: Option<VacantSlot>,
    handle: Out<Request>,
}

/// Finds a home for a request, whose handle goes to `handle`.
#[inline]
pub(crate) fn reserve(handle: Out<Request>) -> Outcome<Reserved> {
    handle.check()?;
    let place = PLACES.try_with(|places| places.borrow_mut().0.pop());
    let place = match place.ok().flatten() {
        Some(place) => place,
        None => REQUESTS.reserve().ok_or_else(phase::too_many)?,
    };
    Ok(Reserved {
        place: Some(place),
        handle,
    })
}

impl Reserved {
    /// Gives the request its home and the program its handle.
    #[inline]
    pub(crate) fn keep(mut self, object: Object) {
        let kept = self
            .place
            .take()
            .and_then(|place| REQUESTS.insert_at(place, object));
        self.handle
            .set_unless_null(kept.map_or(c::REQUEST_NULL, Request));
    }

    /// The request is over without an object.
    pub(crate) fn complete(self) {
        self.handle.set_unless_null(SENT);
    }
}

impl Drop for Reserved {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            give_back(place);
        }
    }
}

/// A duplicate whose identity is still to come.
pub(crate) fn identity(
    parent: &Arc<CommObject>,
    new: Arc<CommObject>,
    tag: i32,
) -> Outcome<Object> {
    let activity = activity::identity(parent, new, tag)?;
    Ok(Object::active(parent, activity))
}

/// Gives up a request that goes on: its buffers stay lent until it is complete.
fn abandon(object: Object) {
    let mut looked_at = {
        let mut orphans = phase::lock(&ORPHANS);
        orphans.list.push(object);
        if orphans.list.len() <= 2 * orphans.looked_at {
            return;
        }
        std::mem::take(&mut orphans.list)
    };
    // A driver may keep this thread for long, and must not keep those of other requests.
    looked_at.retain_mut(|orphan| !advance(orphan));
    let mut orphans = phase::lock(&ORPHANS);
    orphans.list.append(&mut looked_at);
    orphans.looked_at = orphans.list.len();
}

/// Waits for all requests that were given up.
pub(crate) fn settle_orphans() {
    let orphans = std::mem::take(&mut phase::lock(&ORPHANS).list);
    for mut orphan in orphans {
        // A receive that nobody waits for may never be matched.
        if !advance(&mut orphan) && !take_back(&mut orphan) {
            wait_object(&mut orphan);
        }
    }
    pending::withdraw_abandoned();
}

pub(crate) fn request_free(request: Out<Request>) -> Outcome<()> {
    let handle = request.get()?;
    if handle != SENT {
        let mut object = match lightweight::name_of(handle) {
            Some(name) => lightweight::adopt(handle, name)?,
            None => remove(handle).ok_or_else(|| bad_request(handle))?,
        };
        if !advance(&mut object) {
            abandon(object);
        }
    }
    request.set(c::REQUEST_NULL)
}
