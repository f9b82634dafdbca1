// SPDX-License-Identifier: MIT OR Apache-2.0
//! Persistent point-to-point communication.

use crate::comm::{self, CommObject};
use crate::failure::Outcome;
use crate::ffi::{Addr, Comm, Datatype, Out, Request, Status};
use crate::request::{self, Object};
use crate::{buffer, datatype, p2p};
use onecopy::raw::Mode;
use std::sync::Arc;

/// Keeps a recipe, which holds the datatype: the program may free it before it starts the request.
fn prepare(
    comm: &Arc<CommObject>,
    recipe: impl Fn() -> Outcome<Object> + Send + Sync + 'static,
    request: Out<Request>,
) -> Outcome<()> {
    let home = request::reserve(request)?;
    home.keep(Object::persistent(comm, Arc::new(recipe)));
    Ok(())
}

/// What is known to be wrong is told at once, not when the request is started.
fn check_send(
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: &CommObject,
) -> Outcome<()> {
    p2p::check_count(count)?;
    datatype::committed(datatype)?;
    p2p::partner::destination(comm, dest, tag).map(drop)
}

macro_rules! prepared {
    ($($name:ident $mode:ident;)*) => {$(
        pub(crate) fn $name(
            buf: Addr, count: i64, datatype: Datatype, dest: i32, tag: i32, comm: Comm, request: Out<Request>,
        ) -> Outcome<()> {
            let comm = &comm::get(comm)?;
            check_send(count, datatype, dest, tag, comm)?;
            let (of, held) = (Arc::clone(comm), datatype::hold(datatype));
            let recipe = move || {
                let _ = &held;
                p2p::send_object(buf, count, datatype, dest, tag, &of, Mode::$mode)
            };
            prepare(comm, recipe, request)
        }
    )*};
}

prepared! {
    send_init Standard;
    rsend_init Standard;
    ssend_init Synchronous;
}

pub(crate) fn bsend_init(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    check_send(count, datatype, dest, tag, comm)?;
    let (of, held) = (Arc::clone(comm), datatype::hold(datatype));
    let recipe = move || {
        let _ = &held;
        buffer::send(buf, count, datatype, dest, tag, &of)?;
        Ok(Object::complete(Status::empty()))
    };
    prepare(comm, recipe, request)
}

pub(crate) fn recv_init(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: Comm,
    request: Out<Request>,
) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    p2p::check_count(count)?;
    datatype::committed(datatype)?;
    p2p::partner::origin(comm, source, tag)?;
    let (of, held) = (Arc::clone(comm), datatype::hold(datatype));
    let recipe = move || {
        let _ = &held;
        p2p::receive_object(buf, count, datatype, source, tag, &of)
    };
    prepare(comm, recipe, request)
}
