// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing and unpacking, in the machine's own form and in `external32`.

mod external;

use crate::comm;
use crate::datatype::layout::Layout;
use crate::datatype::{self, TypeObject};
use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Comm, Datatype, Out, OutInts, Text};
use crate::p2p::check_count;
use crate::{c, device, memory};

/// The range of `size` bytes that is free from `position` on.
fn room(position: i64, needed: u64, size: i64) -> Outcome<u64> {
    let begin = u64::try_from(position)
        .map_err(|_| fail(c::ERR_ARG, format!("position {position} is below zero")))?;
    let end = begin
        .checked_add(needed)
        .filter(|&end| i128::from(end) <= i128::from(size));
    match end {
        Some(_) => Ok(begin),
        None => Err(fail(
            c::ERR_ARG,
            format!("{needed} bytes do not fit from {position} on into {size} bytes"),
        )),
    }
}

/// The packed bytes are somewhere.
fn present(packed: Addr, bytes: u64) -> Outcome<()> {
    if bytes > 0 && packed.is_nowhere() {
        return Err(datatype::nowhere(packed));
    }
    Ok(())
}

/// Refuses memory of a device, which the other representation has no way to.
fn in_the_host(packed: Addr, buf: Addr, count: u64, object: &TypeObject) -> Outcome<()> {
    let layout = object.shape.layout_of(count)?;
    // Of nothing no byte is touched, wherever it is.
    let any = layout.size() > 0;
    if any && (device::holds(packed) || device::holds_any(&layout, buf)) {
        let reason = "external32 of device memory is not supported: copy it to the host first";
        return Err(fail(c::ERR_UNSUPPORTED_OPERATION, reason));
    }
    Ok(())
}

/// Bytes of so many instances in `external32`.
fn external_bytes(object: &TypeObject, count: u64) -> Outcome<u64> {
    datatype::addressable(external::size(object).checked_mul(count))
}

pub(crate) fn pack(
    inbuf: Addr,
    count: i64,
    datatype: Datatype,
    outbuf: Addr,
    size: i64,
    position: OutInts,
    comm: Comm,
) -> Outcome<()> {
    comm::get(comm)?;
    let object = datatype::committed(datatype)?;
    let count = check_count(count)?;
    let bytes = object.bytes_at(inbuf, count)?;
    let layout = object.shape.layout_of(count)?;
    let begin = room(position.get()?, bytes, size)?;
    present(outbuf, bytes)?;
    let at = outbuf.offset(begin as i64);
    if bytes > 0 && device::holds(at) {
        let mut packed = memory::zeroed(bytes as usize)?;
        memory::gather(&layout, inbuf, 0..bytes, &mut packed)?;
        memory::scatter(&Layout::run(0, bytes), at, &packed)?;
    } else {
        memory::with_bytes_mut(at, bytes as usize, |out| {
            memory::gather(&layout, inbuf, 0..bytes, out)
        })?;
    }
    position.set((begin + bytes) as i64)
}

pub(crate) fn unpack(
    inbuf: Addr,
    size: i64,
    position: OutInts,
    outbuf: Addr,
    count: i64,
    datatype: Datatype,
    comm: Comm,
) -> Outcome<()> {
    comm::get(comm)?;
    let object = datatype::committed(datatype)?;
    let count = check_count(count)?;
    let bytes = object.bytes_at(outbuf, count)?;
    let layout = object.shape.layout_of(count)?;
    let begin = room(position.get()?, bytes, size)?;
    present(inbuf, bytes)?;
    let at = inbuf.offset(begin as i64);
    if bytes > 0 && device::holds(at) {
        let mut packed = memory::zeroed(bytes as usize)?;
        memory::gather(&Layout::run(0, bytes), at, 0..bytes, &mut packed)?;
        memory::scatter(&layout, outbuf, &packed)?;
    } else {
        memory::with_bytes(at, bytes as usize, |bytes| {
            memory::scatter(&layout, outbuf, bytes)
        })?;
    }
    position.set((begin + bytes) as i64)
}

pub(crate) fn pack_size(count: i64, datatype: Datatype, comm: Comm, size: OutInts) -> Outcome<()> {
    comm::get(comm)?;
    size.set(datatype::get(datatype)?.bytes(check_count(count)?)? as i64)
}

fn check_representation(name: Text) -> Outcome<()> {
    let name = name.get()?;
    if name == b"external32" {
        return Ok(());
    }
    let name = String::from_utf8_lossy(&name);
    Err(fail(
        c::ERR_ARG,
        format!("{name:?} is no data representation; external32 is"),
    ))
}

pub(crate) fn pack_external_size(
    representation: Text,
    count: i64,
    datatype: Datatype,
    size: Out<i64>,
) -> Outcome<()> {
    check_representation(representation)?;
    let object = datatype::get(datatype)?;
    size.set(external_bytes(object, check_count(count)?)? as i64)
}

pub(crate) fn pack_external(
    representation: Text,
    inbuf: Addr,
    count: i64,
    datatype: Datatype,
    outbuf: Addr,
    size: i64,
    position: Out<i64>,
) -> Outcome<()> {
    check_representation(representation)?;
    let object = datatype::committed(datatype)?;
    let count = check_count(count)?;
    let bytes = external_bytes(object, count)?;
    object.bytes_at(inbuf, count)?;
    let begin = room(position.get()?, bytes, size)?;
    present(outbuf, bytes)?;
    in_the_host(outbuf, inbuf, count, object)?;
    memory::with_bytes_mut(outbuf.offset(begin as i64), bytes as usize, |out| {
        external::pack(object, count, inbuf, out);
    });
    position.set((begin + bytes) as i64)
}

pub(crate) fn unpack_external(
    representation: Text,
    inbuf: Addr,
    size: i64,
    position: Out<i64>,
    outbuf: Addr,
    count: i64,
    datatype: Datatype,
) -> Outcome<()> {
    check_representation(representation)?;
    let object = datatype::committed(datatype)?;
    let count = check_count(count)?;
    let bytes = external_bytes(object, count)?;
    object.bytes_at(outbuf, count)?;
    let begin = room(position.get()?, bytes, size)?;
    present(inbuf, bytes)?;
    in_the_host(inbuf, outbuf, count, object)?;
    memory::with_bytes(inbuf.offset(begin as i64), bytes as usize, |bytes| {
        external::unpack(object, count, outbuf, bytes);
    });
    position.set((begin + bytes) as i64)
}
