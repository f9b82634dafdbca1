// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes, and receives of messages that a probe has matched.

use super::partner::origin;
use super::plan::{Data, target_of};
use crate::comm::{self, CommObject};
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Addr, Comm, Datatype, Message, Out, Request, Status};
use crate::handle::{Table, VacantSlot};
use crate::request::{self, Activity, Object};
use crate::{c, phase};
use std::sync::{Arc, Mutex};

/// A message that a probe has taken out of the queue.
struct Matched {
    comm: Arc<CommObject>,
    message: Mutex<Option<onecopy::Matched>>,
}

static MESSAGES: Table<Matched> = Table::new(7);

fn translated(comm: &CommObject, found: onecopy::Status) -> Status {
    Status::new(comm.rank_of(found.source), found.tag, found.bytes as u64)
}

pub(crate) fn probe(source: i32, tag: i32, comm: Comm, status: Out<Status>) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let found = match origin(comm, source, tag)? {
        Some((source, tag)) => translated(comm, comm.link()?.probe(source, tag)?),
        None => Status::of_nobody(),
    };
    status.put(&found);
    Ok(())
}

pub(crate) fn iprobe(
    source: i32,
    tag: i32,
    comm: Comm,
    flag: Out<i32>,
    status: Out<Status>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let found = match origin(comm, source, tag)? {
        Some((source, tag)) => comm
            .link()?
            .iprobe(source, tag)?
            .map(|found| translated(comm, found)),
        None => Some(Status::of_nobody()),
    };
    if let Some(found) = &found {
        status.put(found);
    }
    flag.set(i32::from(found.is_some()))
}

/// A handle for a message that is still to be matched: what is taken out of the queue without one would be lost.
struct Reserved(Option<VacantSlot>);

fn reserve(message: Out<Message>) -> Outcome<Reserved> {
    message.check()?;
    let place = MESSAGES.reserve().ok_or_else(phase::too_many)?;
    Ok(Reserved(Some(place)))
}

impl Reserved {
    fn keep(
        mut self,
        comm: &Arc<CommObject>,
        matched: onecopy::Matched,
        status: Out<Status>,
    ) -> Message {
        status.put(&translated(comm, matched.status()));
        let entry = Matched {
            comm: Arc::clone(comm),
            message: Mutex::new(Some(matched)),
        };
        let place = self.0.take();
        place
            .and_then(|place| MESSAGES.insert_at(place, entry))
            .map_or(c::MESSAGE_NULL, Message)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        MESSAGES.give_back(self.0.take());
    }
}

pub(crate) fn mprobe(
    source: i32,
    tag: i32,
    comm: Comm,
    message: Out<Message>,
    status: Out<Status>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let Some((source, tag)) = origin(comm, source, tag)? else {
        status.put(&Status::of_nobody());
        return message.set(c::MESSAGE_NO_PROC);
    };
    let home = reserve(message)?;
    let matched = comm.link()?.mprobe(source, tag)?;
    message.set(home.keep(comm, matched, status))
}

pub(crate) fn improbe(
    source: i32,
    tag: i32,
    comm: Comm,
    flag: Out<i32>,
    message: Out<Message>,
    status: Out<Status>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let Some((source, tag)) = origin(comm, source, tag)? else {
        status.put(&Status::of_nobody());
        message.set(c::MESSAGE_NO_PROC)?;
        return flag.set(1);
    };
    flag.check()?;
    let home = reserve(message)?;
    match comm.link()?.improbe(source, tag)? {
        Some(matched) => {
            message.set(home.keep(comm, matched, status))?;
            flag.set(1)
        }
        None => {
            message.set(c::MESSAGE_NULL)?;
            flag.set(0)
        }
    }
}

fn bad_message(handle: Message) -> Box<Failure> {
    fail(
        c::ERR_REQUEST,
        format!("{:#x} is no matched message", handle.0),
    )
}

/// An error of a receive of this message, which concerns its communicator.
#[cold]
fn about(handle: Message, failure: Box<Failure>) -> Box<Failure> {
    match MESSAGES.get(handle.0) {
        Some(entry) => failure.on(&entry.comm),
        None => failure,
    }
}

/// Starts the receive of a matched message, whose handle is null then.
fn receive(buf: Addr, count: i64, datatype: Datatype, message: Out<Message>) -> Outcome<Object> {
    let handle = message.get()?;
    let data = Data::new(buf, count, datatype);
    let target = data
        .buffer()
        .and_then(target_of)
        .map_err(|failure| about(handle, failure))?;
    if handle == c::MESSAGE_NO_PROC {
        message.set(c::MESSAGE_NULL)?;
        return Ok(Object::complete(Status::of_nobody()));
    }
    let entry = MESSAGES
        .remove(handle.0)
        .ok_or_else(|| bad_message(handle))?;
    message.set(c::MESSAGE_NULL)?;
    let matched = phase::lock(&entry.message)
        .take()
        .ok_or_else(|| bad_message(handle))?;
    let pending = target
        .receive(|buf| matched.begin_receive(buf))
        .map_err(|failure| failure.on(&entry.comm))?;
    Ok(Object::active(&entry.comm, Activity::Message(pending)))
}

pub(crate) fn mrecv(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    message: Out<Message>,
    status: Out<Status>,
) -> Outcome<()> {
    let mut object = receive(buf, count, datatype, message)?;
    request::wait_object(&mut object);
    status.put(&object.status);
    let Some(failure) = object.failure.take() else {
        return Ok(());
    };
    Err(match object.comm.get() {
        Some(comm) => failure.on(comm),
        None => failure,
    })
}

pub(crate) fn imrecv(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    message: Out<Message>,
    request: Out<Request>,
) -> Outcome<()> {
    let home = request::reserve(request).or_else(|failure| Err(about(message.get()?, failure)))?;
    home.keep(receive(buf, count, datatype, message)?);
    Ok(())
}
