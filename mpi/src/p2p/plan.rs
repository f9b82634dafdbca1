// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the bytes of a buffer travel.

use super::{destination, origin};
use crate::comm::CommObject;
use crate::datatype::layout::Layout;
use crate::datatype::{self, TypeObject};
use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Datatype};
use crate::request::{Pending, Unpack};
use crate::{c, memory};
use onecopy::raw::{Mode, Operation};
use onecopy::{Source, Span, Tag};
use std::sync::Arc;

/// From this length of an average run on, runs go as they are; shorter ones cost more in a list than in a copy.
const LONG_RUN: u64 = 1024;
/// More runs than this are packed.
const MANY_RUNS: u64 = 8192;

/// A count as a number of instances.
#[inline]
pub(crate) fn check_count(count: i64) -> Outcome<u64> {
    u64::try_from(count).map_err(|_| fail(c::ERR_COUNT, format!("count {count} is below zero")))
}

/// The bytes of a buffer.
enum Bytes {
    /// Together.
    One([Span; 1]),
    /// In runs.
    Runs(Vec<Span>),
    /// Scattered.
    Scattered(Layout, u64),
}

fn bytes_of(
    buf: Addr,
    count: u64,
    object: &TypeObject,
    span: fn(Addr, usize) -> Span,
) -> Outcome<Bytes> {
    let size = object
        .size()
        .checked_mul(count)
        .ok_or_else(|| fail(c::ERR_COUNT, "more bytes than can be addressed"))?;
    if size == 0 {
        return Ok(Bytes::One([span(buf, 0)]));
    }
    if let Some(offset) = object.shape.dense(count) {
        let at = buf.offset(offset);
        if at.pointer().is_null() {
            return Err(fail(c::ERR_BUFFER, "the buffer is null"));
        }
        return Ok(Bytes::One([span(at, size as usize)]));
    }
    let layout = object.shape.layout_of(count);
    let runs = layout.runs();
    if runs <= MANY_RUNS && size / runs >= LONG_RUN {
        let mut spans = Vec::with_capacity(runs as usize);
        layout.walk(0, 0..size, &mut |offset, len| {
            spans.push(span(buf.offset(offset), len as usize));
            true
        });
        return Ok(Bytes::Runs(spans));
    }
    Ok(Bytes::Scattered(layout, size))
}

/// Starts a send; `None` if it goes nowhere.
pub(crate) fn begin_send(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: &CommObject,
    mode: Mode,
) -> Outcome<Option<Pending>> {
    let count = check_count(count)?;
    let object = datatype::committed(datatype)?;
    let Some(rank) = destination(comm, dest, tag)? else {
        return Ok(None);
    };
    send_on(comm.link()?, rank, tag, mode, (buf, count, object)).map(Some)
}

/// A buffer: its address, and so many instances of a datatype.
pub(crate) type Buffer<'t> = (Addr, u64, &'t TypeObject);

/// Starts a send to a rank of the job.
pub(crate) fn send_on(
    link: &onecopy::Comm,
    rank: usize,
    tag: i32,
    mode: Mode,
    (buf, count, object): Buffer<'_>,
) -> Outcome<Pending> {
    let (packed, operation) = match bytes_of(buf, count, object, memory::sent)? {
        Bytes::One(span) => (Vec::new(), link.begin_send(&span, rank, tag, mode)?),
        Bytes::Runs(spans) => (Vec::new(), link.begin_send(&spans, rank, tag, mode)?),
        Bytes::Scattered(layout, size) => {
            let mut packed = vec![0; size as usize];
            memory::gather(&layout, buf, 0..size, &mut packed);
            let span = memory::sent(memory::address_of(&mut packed), packed.len());
            let operation = link.begin_send(&[span], rank, tag, mode)?;
            (packed, operation)
        }
    };
    Ok(Pending {
        operation,
        packed,
        unpack: None,
        receives: false,
    })
}

/// Starts a receive from a rank of the job.
pub(crate) fn receive_on(
    link: &onecopy::Comm,
    source: Source,
    tag: Tag,
    buffer: Buffer<'_>,
) -> Outcome<Pending> {
    target_of(buffer)?.receive(|spans| link.begin_receive(spans, source, tag))
}

/// The packed form of a buffer.
pub(crate) fn pack(buf: Addr, count: i64, datatype: Datatype) -> Outcome<Vec<u8>> {
    let count = check_count(count)?;
    let object = datatype::committed(datatype)?;
    let layout = object.shape.layout_of(count);
    let mut packed = vec![0; layout.size() as usize];
    memory::gather(&layout, buf, 0..layout.size(), &mut packed);
    Ok(packed)
}

/// Starts a send of a copy of the buffer.
pub(crate) fn begin_send_of_copy(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    dest: i32,
    tag: i32,
    comm: &Arc<CommObject>,
) -> Outcome<Option<Pending>> {
    let mut packed = pack(buf, count, datatype)?;
    let Some(rank) = destination(comm, dest, tag)? else {
        return Ok(None);
    };
    let span = memory::sent(memory::address_of(&mut packed), packed.len());
    let operation = comm
        .link()?
        .begin_send(&[span], rank, tag, Mode::Standard)?;
    Ok(Some(Pending {
        operation,
        packed,
        unpack: None,
        receives: false,
    }))
}

/// Where a receive puts its bytes.
pub(super) struct Target {
    /// Without the copy's own.
    bytes: Bytes,
    /// Where the bytes of what is scattered begin.
    base: Addr,
}

impl Target {
    /// Starts the receive.
    pub(super) fn receive(
        self,
        begin: impl FnOnce(&[Span]) -> onecopy::Result<Operation>,
    ) -> Outcome<Pending> {
        let (operation, packed, unpack) = match self.bytes {
            Bytes::One(span) => (begin(&span)?, Vec::new(), None),
            Bytes::Runs(spans) => (begin(&spans)?, Vec::new(), None),
            Bytes::Scattered(layout, size) => {
                let mut packed = vec![0; size as usize];
                let span = memory::received(memory::address_of(&mut packed), packed.len());
                let base = self.base;
                (
                    begin(&[span])?,
                    packed,
                    Some(Box::new(Unpack { layout, base })),
                )
            }
        };
        Ok(Pending {
            operation,
            packed,
            unpack,
            receives: true,
        })
    }
}

pub(super) fn target(buf: Addr, count: i64, datatype: Datatype) -> Outcome<Target> {
    let count = check_count(count)?;
    target_of((buf, count, datatype::committed(datatype)?))
}

fn target_of((buf, count, object): Buffer<'_>) -> Outcome<Target> {
    Ok(Target {
        bytes: bytes_of(buf, count, object, memory::received)?,
        base: buf,
    })
}

/// Starts a receive; `None` if it comes from nowhere.
pub(crate) fn begin_receive(
    buf: Addr,
    count: i64,
    datatype: Datatype,
    source: i32,
    tag: i32,
    comm: &CommObject,
) -> Outcome<Option<Pending>> {
    let from = origin(comm, source, tag)?;
    let count = check_count(count)?;
    let object = datatype::committed(datatype)?;
    match from {
        Some((source, tag)) => {
            receive_on(comm.link()?, source, tag, (buf, count, object)).map(Some)
        }
        None => Ok(None),
    }
}
