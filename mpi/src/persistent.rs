// SPDX-License-Identifier: MIT OR Apache-2.0
//! Persistent point-to-point communication.

use crate::comm::{self, CommObject};
use crate::failure::Outcome;
use crate::ffi::{Addr, Comm, Datatype, Out, Request, Status};
use crate::p2p::{self, Data, Envelope};
use crate::request::{self, Object};
use crate::{buffer, datatype};
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

/// What is known to be wrong is reported at once, not when the request is started.
fn check_send(data: Data, to: Envelope<'_>) -> Outcome<()> {
    data.check_type()?;
    to.destination().map(drop)
}

macro_rules! prepared {
    ($($name:ident $mode:ident;)*) => {$(
        pub(crate) fn $name(
            buf: Addr, count: i64, datatype: Datatype, dest: i32, tag: i32, comm: Comm, request: Out<Request>,
        ) -> Outcome<()> {
            let comm = &comm::get(comm)?;
            let data = Data::new(buf, count, datatype);
            check_send(data, Envelope::new(dest, tag, comm))?;
            let (kept, held) = (Arc::clone(comm), datatype::hold(datatype));
            let recipe = move || {
                let _ = &held;
                p2p::send_object(data, Envelope { rank: dest, tag, comm: &kept }, Mode::$mode)
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
    let data = Data::new(buf, count, datatype);
    let to = Envelope::new(dest, tag, comm);
    check_send(data, to)?;
    let (kept, held) = (Arc::clone(comm), datatype::hold(datatype));
    let recipe = move || {
        let _ = &held;
        let to = Envelope::new(dest, tag, &kept);
        buffer::send(data, to)?;
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
    let data = Data::new(buf, count, datatype);
    let from = Envelope::new(source, tag, comm);
    data.check_type()?;
    from.origin()?;
    let (kept, held) = (Arc::clone(comm), datatype::hold(datatype));
    let recipe = move || {
        let _ = &held;
        let from = Envelope::new(source, tag, &kept);
        p2p::receive_object(data, from)
    };
    prepare(comm, recipe, request)
}
