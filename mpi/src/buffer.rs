// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffered sends.
//!
//! A buffered message is copied to memory of the library. The program's buffer is only counted, so that running out of
//! it is the error that the standard wants.

use crate::comm;
use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Comm, Out, OutInts, Request};
use crate::p2p::{Data, Envelope};
use crate::request::{self, Activity, Object, Pending};
use crate::store::{self, AttachedBuffer, Store, drain, reap};
use crate::{c, phase};
use onecopy::raw::Attempt;
use std::sync::{Arc, Mutex};

static PROCESS: Mutex<Option<AttachedBuffer>> = Mutex::new(None);

pub(crate) fn send(data: Data, to: Envelope<'_>) -> Outcome<()> {
    let packed = data.pack()?;
    let Some(rank) = to.destination()? else {
        return Ok(());
    };
    reap();
    let (store, room) = {
        let own = phase::lock(&to.comm.buffer);
        let process = phase::lock(&PROCESS);
        let attached = own
            .as_ref()
            .or(process.as_ref())
            .ok_or_else(|| fail(c::ERR_BUFFER, "no buffer is attached"))?;
        let automatic = attached.address.number() == c::BUFFER_AUTOMATIC;
        let room = (!automatic).then_some(attached.size as u64);
        (Arc::clone(&attached.store), room)
    };
    let needed = packed.len() as u64 + c::BSEND_OVERHEAD as u64;
    if let Some(room) = room {
        let used = store.used();
        if used + needed > room {
            return Err(fail(
                c::ERR_BUFFER,
                format!(
                    "a message needs {needed} bytes of the attached buffer; {used} of {room} are in use"
                ),
            ));
        }
    }
    let link = to.comm.link()?;
    let Attempt::Later(plan) = link.send_at_once(&packed, rank, to.tag) else {
        return Ok(());
    };
    let pending = Pending::send_packed(link, packed, rank, to.tag, plan)?;
    store::add(&store, pending, needed);
    Ok(())
}

fn attach(slot: &Mutex<Option<AttachedBuffer>>, address: Addr, size: i64) -> Outcome<()> {
    let mut slot = phase::lock(slot);
    if slot.is_some() {
        return Err(fail(c::ERR_BUFFER, "a buffer is attached already"));
    }
    if size < 0 {
        return Err(fail(c::ERR_ARG, format!("a buffer of {size} bytes")));
    }
    if size > 0 && address.pointer().is_null() {
        return Err(fail(c::ERR_BUFFER, "the buffer to attach is null"));
    }
    let store = store::open();
    *slot = Some(AttachedBuffer {
        address,
        size,
        store,
    });
    Ok(())
}

fn detach(slot: &Mutex<Option<AttachedBuffer>>, address: Addr, size: OutInts) -> Outcome<()> {
    // A call that cannot say what was attached leaves it so.
    if address.pointer().is_null() || size.is_null() {
        return Err(fail(c::ERR_ARG, "the pointer to a result is null"));
    }
    let attached = phase::lock(slot)
        .take()
        .ok_or_else(|| fail(c::ERR_BUFFER, "no buffer is attached"))?;
    drain(&attached.store)?;
    store::give_up(&attached.store);
    address.store_pointer(attached.address)?;
    size.set(attached.size)
}

fn store_of(slot: &Mutex<Option<AttachedBuffer>>) -> Option<Arc<Store>> {
    phase::lock(slot)
        .as_ref()
        .map(|attached| Arc::clone(&attached.store))
}

fn flush(slot: &Mutex<Option<AttachedBuffer>>) -> Outcome<()> {
    match store_of(slot) {
        Some(store) => drain(&store),
        None => Err(fail(c::ERR_BUFFER, "no buffer is attached")),
    }
}

fn iflush(slot: &Mutex<Option<AttachedBuffer>>, request: Out<Request>) -> Outcome<()> {
    let store = store_of(slot).ok_or_else(|| fail(c::ERR_BUFFER, "no buffer is attached"))?;
    let world = comm::world().ok_or_else(phase::not_active)?;
    request::reserve(request)?.keep(Object::active(world, Activity::Flush(store)));
    Ok(())
}

pub(crate) fn buffer_attach(buffer: Addr, size: i64) -> Outcome<()> {
    attach(&PROCESS, buffer, size)
}

pub(crate) fn buffer_detach(address: Addr, size: OutInts) -> Outcome<()> {
    detach(&PROCESS, address, size)
}

pub(crate) fn buffer_flush() -> Outcome<()> {
    flush(&PROCESS)
}

pub(crate) fn buffer_iflush(request: Out<Request>) -> Outcome<()> {
    iflush(&PROCESS, request)
}

pub(crate) fn comm_attach_buffer(comm: Comm, buffer: Addr, size: i64) -> Outcome<()> {
    attach(&comm::get(comm)?.buffer, buffer, size)
}

pub(crate) fn comm_detach_buffer(comm: Comm, address: Addr, size: OutInts) -> Outcome<()> {
    detach(&comm::get(comm)?.buffer, address, size)
}

pub(crate) fn comm_flush_buffer(comm: Comm) -> Outcome<()> {
    flush(&comm::get(comm)?.buffer)
}

pub(crate) fn comm_iflush_buffer(comm: Comm, request: Out<Request>) -> Outcome<()> {
    iflush(&comm::get(comm)?.buffer, request)
}
