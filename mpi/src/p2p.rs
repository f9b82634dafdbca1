// SPDX-License-Identifier: MIT OR Apache-2.0
//! Point-to-point communication.
//!
//! The blocking send and receive of a predefined datatype go straight to the runtime's shortest way. All else makes a
//! plan first. Bytes that lie together go as they are, long runs go as a list of them, and what is scattered in short
//! runs is packed.

pub(crate) mod partner;
pub(crate) mod plan;
mod probe;

pub(crate) use plan::{Buffer, Outgoing, begin_receive, begin_send, check_count, target_of};
pub(crate) use probe::*;

use crate::comm::{self, CommObject};
use crate::datatype::in_a_buffer;
use crate::datatype::predefined::dense_size;
use crate::failure::{Failure, Outcome};
use crate::ffi::{Addr, Comm, Datatype, Out, Request, Status};
use crate::request::{self, Activity, Object};
use crate::{buffer, memory};
use onecopy::Source;
use onecopy::raw::Mode;
use partner::{destination, origin};
use std::sync::Arc;

/// Bytes of a buffer of a predefined datatype, if its arguments are in order.
#[inline(always)]
fn dense_bytes(buf: Addr, count: i64, datatype: Datatype) -> Option<usize> {
    let size = dense_size(datatype.0)?;
    if count < 0 || (buf.is_nowhere() && count > 0) {
        return None;
    }
    in_a_buffer((count as usize).checked_mul(size))
}

#[inline(always)]
pub(crate) fn send(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let Some(bytes) = dense_bytes(buf, count, datatype) else {
        return send_planned(buf, count, datatype, dest, tag, comm, Mode::Standard);
    };
    let Some(rank) = destination(comm, dest, tag)? else {
        return Ok(());
    };
    let link = comm.link()?;
    memory::with_bytes(buf, bytes, |bytes| link.send(bytes, rank, tag))?;
    Ok(())
}

#[cold]
fn send_planned(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: &Arc<CommObject>,
    mode: Mode,
) -> Outcome<()> {
    match begin_send(buf, count, datatype, dest, tag, comm, mode)? {
        Some(pending) => finish(Object::active(comm, Activity::Message(pending))).map(drop),
        None => Ok(()),
    }
}

/// Waits for a request that the program does not see.
fn finish(mut object: Object) -> Outcome<Status> {
    request::wait_object(&mut object);
    match object.failure.take() {
        Some(failure) => Err(failure),
        None => Ok(object.status),
    }
}

pub(crate) fn rsend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
) -> Outcome<()> {
    send(buf, count, datatype, dest, tag, comm)
}

pub(crate) fn ssend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    send_planned(buf, count, datatype, dest, tag, comm, Mode::Synchronous)
}

pub(crate) fn bsend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
) -> Outcome<()> {
    let comm = comm::get(comm)?;
    buffer::send(buf, count, datatype, dest, tag, &comm)
}

#[inline(always)]
pub(crate) fn recv(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: Comm,
    status: Out<Status>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let Some(bytes) = dense_bytes(buf, count, datatype) else {
        return recv_planned(buf, count, datatype, source, tag, comm, status);
    };
    let Some((from, tag)) = origin(comm, source, tag)? else {
        status.put(&Status::of_nobody());
        return Ok(());
    };
    let link = comm.link()?;
    let received = memory::with_bytes_mut(buf, bytes, |bytes| link.recv(bytes, from, tag));
    match received {
        Ok(found) => {
            if !status.is_null() {
                let source = comm.rank_of(found.source);
                status.put(&Status::new(source, found.tag, found.bytes as u64));
            }
            Ok(())
        }
        Err(error) => Err(failed(error, comm, status)),
    }
}

/// The failure of a receive; one that was too long has a status all the same.
#[cold]
fn failed(error: onecopy::Error, comm: &CommObject, status: Out<Status>) -> Box<Failure> {
    if let onecopy::Error::Truncated {
        rank, tag, buffer, ..
    } = &error
    {
        status.put(&Status::new(comm.rank_of(*rank), *tag, *buffer));
    }
    error.into()
}

#[cold]
fn recv_planned(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: &Arc<CommObject>,
    status: Out<Status>,
) -> Outcome<()> {
    let found = match begin_receive(buf, count, datatype, source, tag, comm)? {
        Some(pending) => {
            let mut object = Object::active(comm, Activity::Message(pending));
            request::wait_object(&mut object);
            status.put(&object.status);
            return object.failure.take().map_or(Ok(()), Err);
        }
        None => Status::of_nobody(),
    };
    status.put(&found);
    Ok(())
}

fn isend_mode(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
    mode: Mode,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    request.check()?;
    if mode == Mode::Standard
        && let Some(bytes) = dense_bytes(buf, count, datatype)
        && let Some(rank) = destination(comm, dest, tag)?
    {
        let link = comm.link()?;
        if memory::with_bytes(buf, bytes, |bytes| link.send_at_once(bytes, rank, tag)) {
            return request.set(request::SENT);
        }
    }
    let home = request::reserve(request)?;
    match begin_send(buf, count, datatype, dest, tag, comm, mode)? {
        Some(pending) => home.keep(Object::active(comm, Activity::Message(pending))),
        None => home.complete(),
    }
    Ok(())
}

macro_rules! started {
    ($($name:ident $mode:ident;)*) => {$(
        pub(crate) fn $name(
            buf: Addr, count: i64, datatype: Datatype, dest: i32, tag: i32, comm: Comm, request: Out<Request>,
        ) -> Outcome<()> {
            isend_mode(buf, count, datatype, dest, tag, comm, Mode::$mode, request)
        }
    )*};
}

started! {
    isend Standard;
    irsend Standard;
    issend Synchronous;
}

pub(crate) fn ibsend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let home = request::reserve(request)?;
    bsend(buf, count, datatype, dest, tag, comm)?;
    home.complete();
    Ok(())
}

pub(crate) fn irecv(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    request.check()?;
    if let Some(bytes) = dense_bytes(buf, count, datatype)
        && let Some((from, tag)) = origin(comm, source, tag)?
        && let Some(started) = request::receive(buf, bytes, from, tag, comm)?
    {
        return request.set(started);
    }
    let home = request::reserve(request)?;
    home.keep(receive_object(buf, count, datatype, source, tag, comm)?);
    Ok(())
}

/// A receive as a request.
pub(crate) fn receive_object(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: &Arc<CommObject>,
) -> Outcome<Object> {
    if let Some(bytes) = dense_bytes(buf, count, datatype)
        && let Some((Source::Rank(rank), tag)) = origin(comm, source, tag)?
    {
        let link = comm.link()?;
        let soon = |bytes: &mut [u8]| link.receive_at_once(bytes, rank, tag);
        if let Some(found) = memory::with_bytes_mut(buf, bytes, soon) {
            let status = Status::new(comm.rank_of(found.source), found.tag, found.bytes as u64);
            return Ok(Object::complete(status));
        }
    }
    Ok(
        match begin_receive(buf, count, datatype, source, tag, comm)? {
            Some(pending) => Object::active(comm, Activity::Message(pending)),
            None => Object::complete(Status::of_nobody()),
        },
    )
}

/// A send as a request.
pub(crate) fn send_object(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: &Arc<CommObject>,
    mode: Mode,
) -> Outcome<Object> {
    Ok(
        match begin_send(buf, count, datatype, dest, tag, comm, mode)? {
            Some(pending) => Object::active(comm, Activity::Message(pending)),
            None => Object::complete(Status::empty()),
        },
    )
}

pub(crate) fn sendrecv(
    sendbuf: Addr,
    sendcount: i64,
    sendtype: Datatype,
    dest: i32,
    sendtag: i32,
    recvbuf: Addr,
    recvcount: i64,
    recvtype: Datatype,
    source: i32,
    recvtag: i32,
    handle: Comm,
    status: Out<Status>,
) -> Outcome<()> {
    let comm = &comm::get(handle)?;
    check_send(sendbuf, sendcount, sendtype, dest, sendtag, comm)?;
    // The receive is posted first: two ranks that send to one another must not both wait to be received.
    let mut receive = receive_object(recvbuf, recvcount, recvtype, source, recvtag, comm)?;
    let sent = send(sendbuf, sendcount, sendtype, dest, sendtag, handle);
    if sent.is_err() {
        request::take_back(&mut receive);
    }
    request::wait_object(&mut receive);
    status.put(&receive.status);
    sent?;
    receive.failure.take().map_or(Ok(()), Err)
}

pub(crate) fn sendrecv_replace(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    sendtag: i32,
    source: i32,
    recvtag: i32,
    comm: Comm,
    status: Out<Status>,
) -> Outcome<()> {
    let mut object = replace_object(buf, count, datatype, dest, sendtag, source, recvtag, comm)?;
    request::wait_object(&mut object);
    status.put(&object.status);
    object.failure.take().map_or(Ok(()), Err)
}

/// Looks at the arguments of a send that comes after something else.
#[inline]
fn check_send(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: &CommObject,
) -> Outcome<()> {
    if dense_bytes(buf, count, datatype).is_none() {
        plan::check((buf, count, datatype))?;
    }
    destination(comm, dest, tag).map(drop)
}

fn replace_object(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    sendtag: i32,
    source: i32,
    recvtag: i32,
    comm: Comm,
) -> Outcome<Object> {
    let comm = &comm::get(comm)?;
    // The copy is taken before anything can arrive.
    let object: &CommObject = comm;
    let to = (dest, sendtag, object);
    let send = plan::prepare_send((buf, count, datatype), to, plan::copied)?;
    let receive = begin_receive(buf, count, datatype, source, recvtag, comm)?;
    both(comm, send, receive)
}

/// A send that is started now, beside a receive that was. If it cannot be, the receive is taken back.
fn both(
    comm: &Arc<CommObject>,
    send: Option<plan::Send<'_>>,
    receive: Option<request::Pending>,
) -> Outcome<Object> {
    let from_nobody = receive.is_none();
    let send = send.map(|send| send.start(Mode::Standard)).transpose()?;
    let mut object = Object::active(comm, Activity::Both(Box::new([send, receive])));
    if from_nobody {
        object.status = Status::of_nobody();
    }
    Ok(object)
}

pub(crate) fn isendrecv(
    sendbuf: Addr,
    sendcount: i64,
    sendtype: Datatype,
    dest: i32,
    sendtag: i32,
    recvbuf: Addr,
    recvcount: i64,
    recvtype: Datatype,
    source: i32,
    recvtag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let home = request::reserve(request)?;
    let object: &CommObject = comm;
    let to = (dest, sendtag, object);
    let send = plan::prepare_send((sendbuf, sendcount, sendtype), to, Outgoing::of)?;
    let receive = begin_receive(recvbuf, recvcount, recvtype, source, recvtag, comm)?;
    home.keep(both(comm, send, receive)?);
    Ok(())
}

pub(crate) fn isendrecv_replace(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    sendtag: i32,
    source: i32,
    recvtag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let home = request::reserve(request)?;
    let object = replace_object(buf, count, datatype, dest, sendtag, source, recvtag, comm)?;
    home.keep(object);
    Ok(())
}
