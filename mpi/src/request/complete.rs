// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting and testing.

use super::activity::{Activity, code_of};
use super::{Object, REQUESTS, SENT, bad_request, lightweight, remove};
use crate::failure::{Outcome, fail};
use crate::ffi::{In, Out, Request, Status};
use crate::phase::engine;
use crate::{c, store};
use onecopy::raw::Poll;

/// Moves everything once and looks whether the request is complete.
pub(crate) fn advance(object: &mut Object) -> bool {
    if object.is_over() {
        return true;
    }
    let Ok(link) = engine() else {
        return true;
    };
    link.look(|poll| object.poll(poll))
}

pub(crate) fn take_back(object: &mut Object) -> bool {
    engine().is_ok_and(|link| link.peek(|poll| object.cancel(poll)))
}

/// Waits until the request is complete.
pub(crate) fn wait_object(object: &mut Object) {
    if object.is_over() {
        return;
    }
    if let Ok(link) = engine() {
        link.wait_until(|poll| object.poll(poll).then_some(()));
    }
}

/// Whether the handle stands for a request that can be waited for.
fn is_active(handle: Request) -> Outcome<bool> {
    if handle == c::REQUEST_NULL {
        return Ok(false);
    }
    if handle == SENT {
        return Ok(true);
    }
    if let Some(name) = lightweight::name_of(handle) {
        return lightweight::look(name, |over| over.is_some())?
            .then_some(true)
            .ok_or_else(|| bad_request(handle));
    }
    REQUESTS
        .with_mut(handle.0, |object| {
            !matches!(object.activity, Activity::Inactive)
        })
        .ok_or_else(|| bad_request(handle))
}

/// Looks whether an active request is complete.
fn poll_handle(handle: Request, poll: &mut Poll<'_>) -> bool {
    if let Some(name) = lightweight::name_of(handle) {
        return lightweight::is_over(name, poll).unwrap_or(true);
    }
    handle == SENT
        || REQUESTS
            .with_mut(handle.0, |object| object.poll(poll))
            .unwrap_or(true)
}

fn has_failed(handle: Request) -> bool {
    if let Some(name) = lightweight::name_of(handle) {
        return lightweight::has_failed(name);
    }
    handle != SENT
        && REQUESTS
            .with_mut(handle.0, |object| object.failure.is_some())
            .unwrap_or(false)
}

fn is_over(handle: Request) -> bool {
    if let Some(name) = lightweight::name_of(handle) {
        return lightweight::look(name, |over| over.unwrap_or(true)).unwrap_or(true);
    }
    handle == SENT
        || REQUESTS
            .with_mut(handle.0, |object| object.is_over())
            .unwrap_or(true)
}

/// What a completed request leaves: its status with the error, its failure; the handle is null, or the persistent
/// request inactive.
fn finish(
    handle: Request,
    place: impl FnOnce(Request) -> Outcome<()>,
) -> Outcome<(Status, Outcome<()>)> {
    if handle == SENT {
        place(c::REQUEST_NULL)?;
        return Ok((Status::empty(), Ok(())));
    }
    if let Some(name) = lightweight::name_of(handle) {
        let found = lightweight::finish(handle, name)?;
        place(c::REQUEST_NULL)?;
        return Ok(found);
    }
    let taken = REQUESTS
        .with_mut(handle.0, |object| {
            let mut status = object.status;
            status.error = code_of(object);
            let result = match object.failure.take() {
                Some(failure) => Err(match object.comm.get() {
                    Some(comm) => failure.on(comm),
                    None => failure,
                }),
                None => Ok(()),
            };
            let persistent = object.recipe.is_some();
            if persistent {
                object.activity = Activity::Inactive;
                object.status = Status::empty();
            }
            (status, result, persistent)
        })
        .ok_or_else(|| bad_request(handle))?;
    let (status, result, persistent) = taken;
    if !persistent {
        remove(handle);
        place(c::REQUEST_NULL)?;
    }
    Ok((status, result))
}

/// Completes the request at a place.
fn finish_one(
    handle: Request,
    requests: Out<Request>,
    place: usize,
    status: Out<Status>,
) -> Outcome<()> {
    let (found, result) = finish(handle, |null| requests.set_at(place, null))?;
    status.put(&found);
    result
}

/// Waits until `done` says so, moving everything meanwhile.
fn wait_until<R>(mut done: impl FnMut(&mut Poll<'_>) -> Option<R>) -> Outcome<R> {
    Ok(engine()?.wait_until(|poll| done(poll)))
}

pub(crate) fn wait(request: Out<Request>, status: Out<Status>) -> Outcome<()> {
    let handle = request.get()?;
    if let Some(name) = lightweight::name_of(handle) {
        let (found, failure) = lightweight::wait(handle, name)?;
        request.set(c::REQUEST_NULL)?;
        status.put(&found);
        return failure.map_or(Ok(()), Err);
    }
    if !is_active(handle)? {
        status.put_empty();
        return Ok(());
    }
    if !is_over(handle) {
        store::reap();
        wait_until(|poll| poll_handle(handle, poll).then_some(()))?;
    }
    finish_one(handle, request, 0, status)
}

pub(crate) fn test(request: Out<Request>, flag: Out<i32>, status: Out<Status>) -> Outcome<()> {
    let handle = request.get()?;
    if !is_active(handle)? {
        status.put_empty();
        return flag.set(1);
    }
    if !progress_one(handle)? {
        return flag.set(0);
    }
    flag.set(1)?;
    finish_one(handle, request, 0, status)
}

fn progress_one(handle: Request) -> Outcome<bool> {
    if is_over(handle) {
        return Ok(true);
    }
    store::reap();
    Ok(engine()?.look(|poll| poll_handle(handle, poll)))
}

fn length(count: i32) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| fail(c::ERR_COUNT, format!("{count} requests")))
}

/// The active requests of an array, with their places.
fn actives(handles: &[Request]) -> Outcome<Vec<(usize, Request)>> {
    let mut active = Vec::with_capacity(handles.len());
    for (place, &handle) in handles.iter().enumerate() {
        if is_active(handle)? {
            active.push((place, handle));
        }
    }
    Ok(active)
}

/// Completes the requests at `places`; statuses go to `statuses[index(position)]`. An error of one is an error of the
/// call.
fn finish_many(
    places: &[(usize, Request)],
    requests: Out<Request>,
    statuses: Out<Status>,
    compact: bool,
) -> Outcome<()> {
    // Errors of single requests are reported only when there is one.
    let wants_statuses = !statuses.is_null();
    let failed = wants_statuses && places.iter().any(|&(_, handle)| has_failed(handle));
    let mut first = Ok(());
    for (position, &(place, handle)) in places.iter().enumerate() {
        let (status, result) = finish(handle, |null| requests.set_at(place, null))?;
        let target = statuses.element(if compact { position } else { place });
        if failed {
            target.set_unless_null(status);
        } else {
            target.put(&status);
        }
        first = first.and(result);
    }
    first.map_err(|mut failure| {
        if wants_statuses {
            failure.code = c::ERR_IN_STATUS;
        }
        failure
    })
}

fn put_empty(handles: &[Request], active: &[(usize, Request)], statuses: Out<Status>) {
    if statuses.is_null() {
        return;
    }
    let mut next = active.iter().map(|(place, _)| *place).peekable();
    for place in 0..handles.len() {
        if next.peek() == Some(&place) {
            next.next();
        } else {
            statuses.element(place).put_empty();
        }
    }
}

pub(crate) fn waitall(count: i32, requests: Out<Request>, statuses: Out<Status>) -> Outcome<()> {
    let length = length(count)?;
    if lightweight::wait_all(length, requests, statuses)?.is_some() {
        return Ok(());
    }
    let handles = requests.list(length)?;
    let active = actives(&handles)?;
    let mut next = 0;
    while next < active.len() && is_over(active[next].1) {
        next += 1;
    }
    if next < active.len() {
        store::reap();
        wait_until(|poll| {
            while next < active.len() && poll_handle(active[next].1, poll) {
                next += 1;
            }
            (next == active.len()).then_some(())
        })?;
    }
    put_empty(&handles, &active, statuses);
    finish_many(&active, requests, statuses, false)
}

pub(crate) fn testall(
    count: i32,
    requests: Out<Request>,
    flag: Out<i32>,
    statuses: Out<Status>,
) -> Outcome<()> {
    let handles = requests.list(length(count)?)?;
    let active = actives(&handles)?;
    if !poll_all(&active)?.iter().all(|&over| over) {
        return flag.set(0);
    }
    flag.set(1)?;
    put_empty(&handles, &active, statuses);
    finish_many(&active, requests, statuses, false)
}

/// Moves everything once; which requests are complete.
fn poll_all(active: &[(usize, Request)]) -> Outcome<Vec<bool>> {
    if active.is_empty() {
        return Ok(Vec::new());
    }
    store::reap();
    Ok(engine()?.look(|poll| {
        active
            .iter()
            .map(|&(_, handle)| poll_handle(handle, poll))
            .collect()
    }))
}

fn none_active(index: Out<i32>, status: Out<Status>) -> Outcome<()> {
    status.put_empty();
    index.set(c::UNDEFINED)
}

pub(crate) fn waitany(
    count: i32,
    requests: Out<Request>,
    index: Out<i32>,
    status: Out<Status>,
) -> Outcome<()> {
    let active = actives(&requests.list(length(count)?)?)?;
    if active.is_empty() {
        return none_active(index, status);
    }
    store::reap();
    let (place, handle) = match active.iter().copied().find(|&(_, handle)| is_over(handle)) {
        Some(found) => found,
        None => wait_until(|poll| {
            active
                .iter()
                .copied()
                .find(|&(_, handle)| poll_handle(handle, poll))
        })?,
    };
    index.set(place as i32)?;
    finish_one(handle, requests, place, status)
}

pub(crate) fn testany(
    count: i32,
    requests: Out<Request>,
    index: Out<i32>,
    flag: Out<i32>,
    status: Out<Status>,
) -> Outcome<()> {
    match first_over(&requests.list(length(count)?)?, index, flag, status)? {
        None => Ok(()),
        Some((place, handle)) => finish_one(handle, requests, place, status),
    }
}

/// The first of these requests that is over, and its place among them. `index` and `flag` are set; `status` too, if no
/// request is active.
fn first_over(
    handles: &[Request],
    index: Out<i32>,
    flag: Out<i32>,
    status: Out<Status>,
) -> Outcome<Option<(usize, Request)>> {
    let active = actives(handles)?;
    if active.is_empty() {
        flag.set(1)?;
        none_active(index, status)?;
        return Ok(None);
    }
    let over = poll_all(&active)?;
    let first = over.iter().position(|&over| over);
    let first = first.map(|first| active[first]);
    flag.set(i32::from(first.is_some()))?;
    index.set(first.map_or(c::UNDEFINED, |(place, _)| place as i32))?;
    Ok(first)
}

fn finish_some(
    over: &[(usize, Request)],
    requests: Out<Request>,
    count: Out<i32>,
    indices: Out<i32>,
    statuses: Out<Status>,
) -> Outcome<()> {
    count.set(over.len() as i32)?;
    for (position, (place, _)) in over.iter().enumerate() {
        indices.set_at(position, *place as i32)?;
    }
    finish_many(over, requests, statuses, true)
}

pub(crate) fn waitsome(
    incount: i32,
    requests: Out<Request>,
    count: Out<i32>,
    indices: Out<i32>,
    statuses: Out<Status>,
) -> Outcome<()> {
    let active = actives(&requests.list(length(incount)?)?)?;
    if active.is_empty() {
        return count.set(c::UNDEFINED);
    }
    store::reap();
    let over = wait_until(|poll| {
        let over: Vec<(usize, Request)> = active
            .iter()
            .copied()
            .filter(|&(_, handle)| poll_handle(handle, poll))
            .collect();
        (!over.is_empty()).then_some(over)
    })?;
    finish_some(&over, requests, count, indices, statuses)
}

pub(crate) fn testsome(
    incount: i32,
    requests: Out<Request>,
    count: Out<i32>,
    indices: Out<i32>,
    statuses: Out<Status>,
) -> Outcome<()> {
    let active = actives(&requests.list(length(incount)?)?)?;
    if active.is_empty() {
        return count.set(c::UNDEFINED);
    }
    let over = poll_all(&active)?;
    let over: Vec<(usize, Request)> = active
        .into_iter()
        .zip(over)
        .filter_map(|(entry, over)| over.then_some(entry))
        .collect();
    finish_some(&over, requests, count, indices, statuses)
}

/// The status of a request that is complete, which stays.
fn status_of(handle: Request) -> Status {
    if handle == SENT {
        return Status::empty();
    }
    if let Some(name) = lightweight::name_of(handle) {
        return lightweight::status_of(name);
    }
    REQUESTS
        .with_mut(handle.0, |object| object.status)
        .unwrap_or_else(Status::empty)
}

pub(crate) fn request_get_status(
    request: Request,
    flag: Out<i32>,
    status: Out<Status>,
) -> Outcome<()> {
    if !is_active(request)? {
        status.put_empty();
        return flag.set(1);
    }
    let over = progress_one(request)?;
    if over {
        status.put(&status_of(request));
    }
    flag.set(i32::from(over))
}

pub(crate) fn request_get_status_all(
    count: i32,
    requests: In<Request>,
    flag: Out<i32>,
    statuses: Out<Status>,
) -> Outcome<()> {
    let handles = requests.list(length(count)?)?;
    let active = actives(&handles)?;
    if !poll_all(&active)?.iter().all(|&over| over) {
        return flag.set(0);
    }
    put_empty(&handles, &active, statuses);
    for (place, handle) in active {
        statuses.element(place).put(&status_of(handle));
    }
    flag.set(1)
}

pub(crate) fn request_get_status_any(
    count: i32,
    requests: In<Request>,
    index: Out<i32>,
    flag: Out<i32>,
    status: Out<Status>,
) -> Outcome<()> {
    if let Some((_, handle)) = first_over(&requests.list(length(count)?)?, index, flag, status)? {
        status.put(&status_of(handle));
    }
    Ok(())
}

pub(crate) fn request_get_status_some(
    incount: i32,
    requests: In<Request>,
    count: Out<i32>,
    indices: Out<i32>,
    statuses: Out<Status>,
) -> Outcome<()> {
    let active = actives(&requests.list(length(incount)?)?)?;
    if active.is_empty() {
        return count.set(c::UNDEFINED);
    }
    let over = poll_all(&active)?;
    let mut position = 0;
    for ((place, handle), over) in active.into_iter().zip(over) {
        if over {
            indices.set_at(position, place as i32)?;
            statuses.element(position).put(&status_of(handle));
            position += 1;
        }
    }
    count.set(position as i32)
}

pub(crate) fn test_cancelled(status: In<Status>, flag: Out<i32>) -> Outcome<()> {
    flag.set(i32::from(status.get()?.is_cancelled()))
}

pub(crate) fn cancel(request: Out<Request>) -> Outcome<()> {
    let handle = request.get()?;
    if handle == SENT {
        return Ok(());
    }
    if let Some(name) = lightweight::name_of(handle) {
        return lightweight::cancel(handle, name);
    }
    REQUESTS
        .with_mut(handle.0, |object| {
            take_back(object);
        })
        .ok_or_else(|| bad_request(handle))
}

pub(crate) fn start(request: Out<Request>) -> Outcome<()> {
    start_handle(request.get()?)
}

fn start_handle(handle: Request) -> Outcome<()> {
    if lightweight::name_of(handle).is_some() {
        return Err(fail(c::ERR_REQUEST, "the request is not persistent"));
    }
    let recipe = REQUESTS
        .with_mut(handle.0, |object| {
            match (&object.recipe, &object.activity) {
                (Some(recipe), Activity::Inactive) => Ok(recipe.clone()),
                (Some(_), _) => Err(fail(c::ERR_REQUEST, "the request is active already")),
                (None, _) => Err(fail(c::ERR_REQUEST, "the request is not persistent")),
            }
        })
        .ok_or_else(|| bad_request(handle))??;
    let started = recipe()?;
    REQUESTS
        .with_mut(handle.0, |object| {
            object.activity = started.activity;
            object.status = started.status;
            object.failure = started.failure;
        })
        .ok_or_else(|| bad_request(handle))
}

pub(crate) fn startall(count: i32, requests: Out<Request>) -> Outcome<()> {
    for index in 0..length(count)? {
        start_handle(requests.at(index)?)?;
    }
    Ok(())
}
