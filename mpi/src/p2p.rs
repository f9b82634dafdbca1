// SPDX-License-Identifier: MIT OR Apache-2.0
//! Point-to-point communication.
//!
//! The blocking send and receive of a predefined datatype go straight to the runtime's shortest way. All else makes a
//! plan first. Bytes that lie together go as they are, long runs go as a list of them, and what is scattered in short
//! runs is packed.

pub(crate) mod partner;
pub(crate) mod plan;
mod probe;

pub(crate) use partner::Envelope;
pub(crate) use plan::{Buffer, Data, Outgoing, begin_receive, begin_send, check_count, target_of};
pub(crate) use probe::*;

use crate::comm::{self, CommObject};
use crate::failure::{Failure, Outcome};
use crate::ffi::{Addr, Comm, Datatype, Out, Request, Status};
use crate::request::{self, Activity, Object};
use crate::{buffer, memory};
use onecopy::Source;
use onecopy::raw::{Attempt, Mode, Plan, SendOptions};
use std::sync::Arc;

#[inline(always)]
pub(crate) fn send(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
) -> Outcome<()> {
    if let Some(lent) = comm::lent(comm)
        && let Some(bytes) = Data::new(buf, count, datatype).usual_bytes()
    {
        send_bytes(buf, bytes, Envelope::new(dest, tag, lent))
    } else {
        send_checked(buf, count, datatype, dest, tag, comm)
    }
}

/// A send that is unusual, or a device's, or on a communicator that another thread may free. It is out of line, so that
/// the usual one keeps nothing across calls.
#[inline(never)]
fn send_checked(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, tag, comm);
    match data.dense_bytes() {
        Some(bytes) => send_bytes(buf, bytes, to),
        None => send_planned(data, to, Mode::Standard),
    }
}

/// Sends bytes that lie together.
#[inline(always)]
fn send_bytes(buf: Addr, bytes: usize, to: Envelope<'_>) -> Outcome<()> {
    let Some(rank) = to.destination()? else {
        return Ok(());
    };
    let link = to.comm.link()?;
    memory::with_bytes(buf, bytes, |bytes| link.send(bytes, rank, to.tag))?;
    Ok(())
}

#[cold]
fn send_planned(data: Data, to: Envelope<'_>, options: impl Into<SendOptions>) -> Outcome<()> {
    match begin_send(data, to, options)? {
        Some(pending) => finish(Object::active(to.comm, Activity::Message(pending))).map(drop),
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
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, tag, comm);
    send_planned(data, to, Mode::Synchronous)
}

pub(crate) fn bsend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, tag, comm);
    buffer::send(data, to)
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
    if let Some(lent) = comm::lent(comm)
        && let Some(bytes) = Data::new(buf, count, datatype).usual_bytes()
    {
        recv_bytes(buf, bytes, Envelope::new(source, tag, lent), status)
    } else {
        recv_checked(buf, count, datatype, source, tag, comm, status)
    }
}

/// As [`send_checked`].
#[inline(never)]
fn recv_checked(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: Comm,
    status: Out<Status>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let from = Envelope::new(source, tag, comm);
    match data.dense_bytes() {
        Some(bytes) => recv_bytes(buf, bytes, from, status),
        None => recv_planned(data, from, status),
    }
}

/// Receives bytes that lie together.
#[inline(always)]
fn recv_bytes(buf: Addr, bytes: usize, from: Envelope<'_>, status: Out<Status>) -> Outcome<()> {
    let Some((source, tag)) = from.origin()? else {
        status.put(&Status::of_nobody());
        return Ok(());
    };
    let comm = from.comm;
    let link = comm.link()?;
    let received = memory::with_bytes_mut(buf, bytes, |bytes| link.recv(bytes, source, tag));
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
fn recv_planned(data: Data, from: Envelope<'_>, status: Out<Status>) -> Outcome<()> {
    let found = match begin_receive(data, from)? {
        Some(pending) => {
            let mut object = Object::active(from.comm, Activity::Message(pending));
            request::wait_object(&mut object);
            status.put(&object.status);
            return object.failure.take().map_or(Ok(()), Err);
        }
        None => Status::of_nobody(),
    };
    status.put(&found);
    Ok(())
}

/// Sends by `attempt` what lies together, if it goes anywhere.
#[inline(always)]
fn send_dense(
    data: Data,
    to: Envelope<'_>,
    attempt: impl FnOnce(&onecopy::Comm, &[u8], usize, i32) -> Attempt,
) -> Outcome<Attempt> {
    let Some(bytes) = data.dense_bytes() else {
        return Ok(Attempt::Later(Plan::default()));
    };
    let Some(rank) = to.destination()? else {
        return Ok(Attempt::Later(Plan::default()));
    };
    let link = to.comm.link()?;
    let send = |bytes: &[u8]| attempt(link, bytes, rank, to.tag);
    Ok(memory::with_bytes(data.buf, bytes, send))
}

/// Sends what lies together as was decided for it.
fn send_as_planned(data: Data, to: Envelope<'_>, plan: Plan) -> Outcome<()> {
    let (Some(bytes), Some(rank)) = (data.dense_bytes(), to.destination()?) else {
        return send_planned(data, to, plan);
    };
    let link = to.comm.link()?;
    memory::with_bytes(data.buf, bytes, |bytes| {
        link.send_as_planned(bytes, rank, to.tag, plan)
    })?;
    Ok(())
}

#[inline(always)]
pub(crate) fn isend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let data = Data::new(buf, count, datatype);
    if let Some(lent) = comm::lent(comm)
        && let Some(bytes) = data.usual_bytes()
    {
        isend_bytes(data, bytes, Envelope::new(dest, tag, lent), request)
    } else {
        isend_checked(buf, count, datatype, dest, tag, comm, request)
    }
}

/// As [`send_checked`].
#[inline(never)]
fn isend_checked(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, tag, comm);
    match data.dense_bytes() {
        Some(bytes) => isend_bytes(data, bytes, to, request),
        None => isend_planned(data, to, Mode::Standard.into(), request),
    }
}

/// Sends at once what can be, of bytes that lie together.
#[inline(always)]
fn isend_bytes(data: Data, bytes: usize, to: Envelope<'_>, request: Out<Request>) -> Outcome<()> {
    request.check()?;
    let mut options = SendOptions::from(Mode::Standard);
    if let Some(rank) = to.destination()? {
        let link = to.comm.link()?;
        let send = |bytes: &[u8]| link.send_at_once(bytes, rank, to.tag);
        match memory::with_bytes(data.buf, bytes, send) {
            Attempt::Sent => return request.set(request::SENT),
            Attempt::Later(plan) => options.plan = plan,
        }
    }
    isend_planned(data, to, options, request)
}

pub(crate) fn irsend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    isend_checked(buf, count, datatype, dest, tag, comm, request)
}

pub(crate) fn issend(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, tag, comm);
    isend_planned(data, to, Mode::Synchronous.into(), request)
}

/// What is not sent at once, as a request. Long messages and synchronous ones come here, too.
#[inline(never)]
fn isend_planned(
    data: Data,
    to: Envelope<'_>,
    options: SendOptions,
    request: Out<Request>,
) -> Outcome<()> {
    let home = request::reserve(request)?;
    match begin_send(data, to, options)? {
        Some(pending) => home.keep(Object::active(to.comm, Activity::Message(pending))),
        None => home.complete(),
    }
    Ok(())
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

#[inline(always)]
pub(crate) fn irecv(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let data = Data::new(buf, count, datatype);
    if let Some(lent) = comm::lent(comm)
        && let Some(bytes) = data.usual_bytes()
    {
        irecv_bytes(data, bytes, Envelope::new(source, tag, lent), request)
    } else {
        irecv_checked(buf, count, datatype, source, tag, comm, request)
    }
}

/// As [`send_checked`].
#[inline(never)]
fn irecv_checked(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let from = Envelope::new(source, tag, comm);
    match data.dense_bytes() {
        Some(bytes) => irecv_bytes(data, bytes, from, request),
        None => irecv_planned(data, from, request),
    }
}

/// Receives into bytes that lie together.
#[inline(always)]
fn irecv_bytes(data: Data, bytes: usize, from: Envelope<'_>, request: Out<Request>) -> Outcome<()> {
    request.check()?;
    if let Some((source, tag)) = from.origin()?
        && let Some(started) = request::receive(data.buf, bytes, source, tag, from.comm)?
    {
        return request.set(started);
    }
    irecv_planned(data, from, request)
}

/// What is not received at once, nor by a lightweight request.
#[inline(never)]
fn irecv_planned(data: Data, from: Envelope<'_>, request: Out<Request>) -> Outcome<()> {
    let home = request::reserve(request)?;
    home.keep(receive_object(data, from)?);
    Ok(())
}

/// A receive as a request.
pub(crate) fn receive_object(data: Data, from: Envelope<'_>) -> Outcome<Object> {
    let comm = from.comm;
    if let Some(bytes) = data.dense_bytes()
        && let Some((Source::Rank(rank), tag)) = from.origin()?
    {
        let link = comm.link()?;
        let soon = |bytes: &mut [u8]| link.receive_at_once(bytes, rank, tag);
        if let Some(found) = memory::with_bytes_mut(data.buf, bytes, soon) {
            let status = Status::new(comm.rank_of(found.source), found.tag, found.bytes as u64);
            return Ok(Object::complete(status));
        }
    }
    Ok(match begin_receive(data, from)? {
        Some(pending) => Object::active(comm, Activity::Message(pending)),
        None => Object::complete(Status::of_nobody()),
    })
}

/// A send as a request.
pub(crate) fn send_object(data: Data, to: Envelope<'_>, mode: Mode) -> Outcome<Object> {
    Ok(match begin_send(data, to, mode)? {
        Some(pending) => Object::active(to.comm, Activity::Message(pending)),
        None => Object::complete(Status::empty()),
    })
}

#[expect(clippy::too_many_arguments, reason = "the signature of the standard")]
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
    let sent = Data::new(sendbuf, sendcount, sendtype);
    let received = Data::new(recvbuf, recvcount, recvtype);
    let to = Envelope::new(dest, sendtag, comm);
    let from = Envelope::new(source, recvtag, comm);
    check_send(sent, to)?;
    let mut plan = Plan::default();
    if received.dense_bytes().is_some() && from.origin()?.is_some() {
        // Were both to receive first, the later one would send only when it has read: neither would copy meanwhile.
        match send_dense(sent, to, onecopy::Comm::send_if_room)? {
            Attempt::Sent => {
                return recv(
                    recvbuf, recvcount, recvtype, source, recvtag, handle, status,
                );
            }
            Attempt::Later(decided) => plan = decided,
        }
    }
    // What has to wait is sent behind the receive: two ranks that send to one another must not both wait.
    let mut receive = receive_object(received, from)?;
    let sent = if plan.is_decided() {
        send_as_planned(sent, to, plan)
    } else {
        send(sendbuf, sendcount, sendtype, dest, sendtag, handle)
    };
    if sent.is_err() {
        request::take_back(&mut receive);
    }
    request::wait_object(&mut receive);
    status.put(&receive.status);
    sent?;
    receive.failure.take().map_or(Ok(()), Err)
}

#[expect(clippy::too_many_arguments, reason = "the signature of the standard")]
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
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, sendtag, comm);
    let from = Envelope::new(source, recvtag, comm);
    let mut object = replace_object(data, to, from)?;
    request::wait_object(&mut object);
    status.put(&object.status);
    object.failure.take().map_or(Ok(()), Err)
}

/// Looks at the arguments of a send that comes after something else.
#[inline]
fn check_send(data: Data, to: Envelope<'_>) -> Outcome<()> {
    if data.dense_bytes().is_none() {
        data.check()?;
    }
    to.destination().map(drop)
}

fn replace_object(data: Data, to: Envelope<'_>, from: Envelope<'_>) -> Outcome<Object> {
    // The copy is taken before anything can arrive.
    let send = plan::prepare_send(data, to, plan::copied)?;
    let receive = begin_receive(data, from)?;
    both(to.comm, send, receive)
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

#[expect(clippy::too_many_arguments, reason = "the signature of the standard")]
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
    let sent = Data::new(sendbuf, sendcount, sendtype);
    let received = Data::new(recvbuf, recvcount, recvtype);
    let to = Envelope::new(dest, sendtag, comm);
    let from = Envelope::new(source, recvtag, comm);
    let send = plan::prepare_send(sent, to, Outgoing::of)?;
    let receive = begin_receive(received, from)?;
    home.keep(both(comm, send, receive)?);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the signature of the standard")]
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
    let comm = &comm::get(comm)?;
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, sendtag, comm);
    let from = Envelope::new(source, recvtag, comm);
    home.keep(replace_object(data, to, from)?);
    Ok(())
}
