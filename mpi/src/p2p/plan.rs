// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the bytes of a buffer travel.

use super::partner::Envelope;
use crate::datatype::layout::Layout;
use crate::datatype::predefined::dense_size;
use crate::datatype::{self, TypeObject, in_a_buffer};
use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Datatype};
use crate::request::{Pending, Unpack};
use crate::{c, device, memory};
use onecopy::raw::{MessageBuf, Operation, SendOptions};
use onecopy::{Source, Span, Tag};
use std::sync::Arc;

/// From this length of an average run on, runs go as they are; shorter ones cost more in a list than in a copy. Chosen
/// by magnitude: a piece in a list costs some tens of nanoseconds on each side, as a copy of so much does.
const LONG_RUN: u64 = 1024;
/// More runs than this are packed. Chosen by magnitude: at 24 bytes each the receiver gets a list of 192 KiB at most.
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
    /// Some of them are a device's.
    Device(Layout, u64),
}

fn bytes_of(
    buf: Addr,
    count: u64,
    object: &TypeObject,
    span: fn(Addr, usize) -> Span,
) -> Outcome<Bytes> {
    let size = object.bytes(count)?;
    if size == 0 {
        return Ok(Bytes::One([span(buf, 0)]));
    }
    if buf.is_in_place() {
        return Err(datatype::nowhere(buf));
    }
    if let Some(offset) = object.shape.dense(count) {
        let at = buf.offset(offset);
        if at.is_nowhere() {
            return Err(datatype::nowhere(at));
        }
        if !device::holds(at) {
            return Ok(Bytes::One([span(at, size as usize)]));
        }
    }
    let layout = object.shape.layout_of(count)?;
    let runs = layout.runs();
    if device::holds_any(&layout, buf) {
        return Ok(Bytes::Device(layout, size));
    }
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

/// The data of a message, as the program gives it: a buffer of so many instances of a datatype.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    pub(crate) buf: Addr,
    pub(crate) count: i64,
    pub(crate) datatype: Datatype,
}

impl Data {
    #[inline(always)]
    pub(crate) fn new(buf: Addr, count: i64, datatype: Datatype) -> Self {
        Self {
            buf,
            count,
            datatype,
        }
    }

    /// Bytes of a buffer of a predefined datatype, if its arguments are in order and the processor may touch them.
    #[inline(always)]
    pub(super) fn dense_bytes(&self) -> Option<usize> {
        if self.buf.is_nowhere() && self.count > 0 || device::holds(self.buf) {
            return None;
        }
        self.dense_size()
    }

    /// The same of a buffer of which a few loads tell that it is somewhere, and not a device's.
    #[inline(always)]
    pub(super) fn usual_bytes(&self) -> Option<usize> {
        if self.buf.is_nowhere() || !device::is_ruled_out() {
            return None;
        }
        self.dense_size()
    }

    #[inline(always)]
    fn dense_size(&self) -> Option<usize> {
        let size = dense_size(self.datatype.0)?;
        if self.count < 0 {
            return None;
        }
        in_a_buffer((self.count as usize).checked_mul(size))
    }

    /// The buffer, if count and datatype are in order.
    pub(super) fn buffer<'t>(&self) -> Outcome<Buffer<'t>> {
        let count = check_count(self.count)?;
        Ok((self.buf, count, datatype::committed(self.datatype)?))
    }

    /// Looks at count and datatype.
    pub(crate) fn check_type(&self) -> Outcome<()> {
        self.buffer().map(drop)
    }

    /// Looks whether the buffer can be sent.
    pub(super) fn check(&self) -> Outcome<()> {
        let (buf, count, object) = self.buffer()?;
        bytes_of(buf, count, object, memory::sent).map(drop)
    }

    /// The packed form of the buffer.
    pub(crate) fn pack(&self) -> Outcome<Vec<u8>> {
        let (buf, count, object) = self.buffer()?;
        object.bytes_at(buf, count)?;
        packed((buf, count, object))
    }
}

fn packed((buf, count, object): Buffer<'_>) -> Outcome<Vec<u8>> {
    let layout = object.shape.layout_of(count)?;
    let mut packed = memory::zeroed(layout.size() as usize)?;
    memory::gather(&layout, buf, 0..layout.size(), &mut packed)?;
    Ok(packed)
}

/// A buffer: its address, and so many instances of a datatype.
pub(crate) type Buffer<'t> = (Addr, u64, &'t TypeObject);

/// The bytes of a send, in the form in which they travel. Nothing is started yet, and nothing of the buffer can be
/// wrong any more.
pub(crate) enum Outgoing {
    /// The program's memory.
    One([Span; 1]),
    /// The same, in runs.
    Runs(Vec<Span>),
    /// A copy.
    Packed(Vec<u8>),
    /// Memory that a device copies piece by piece.
    Staged(Arc<device::Outgoing>),
}

impl Outgoing {
    /// Looks at the buffer, and copies it if it is scattered.
    pub(crate) fn of((buf, count, object): Buffer<'_>) -> Outcome<Self> {
        Ok(match bytes_of(buf, count, object, memory::sent)? {
            Bytes::One(span) => Self::One(span),
            Bytes::Runs(spans) => Self::Runs(spans),
            Bytes::Device(layout, size) if device::is_long(size) => {
                Self::Staged(Arc::new(device::Outgoing::new(layout, buf)))
            }
            Bytes::Scattered(layout, size) | Bytes::Device(layout, size) => {
                let mut packed = memory::zeroed(size as usize)?;
                memory::gather(&layout, buf, 0..size, &mut packed)?;
                Self::Packed(packed)
            }
        })
    }

    /// Starts the send, to a rank of the job.
    pub(crate) fn start(
        self,
        link: &onecopy::Comm,
        rank: usize,
        tag: i32,
        options: impl Into<SendOptions>,
    ) -> Outcome<Pending> {
        Ok(match self {
            Self::One(span) => Pending::send(link, &span, rank, tag, options),
            Self::Runs(spans) => Pending::send(link, &spans, rank, tag, options),
            Self::Packed(packed) => Pending::send_packed(link, packed, rank, tag, options),
            Self::Staged(buffer) => {
                if rank != link.rank() && link.shares_node(rank) {
                    buffer.show();
                }
                Pending::send_staged(link, buffer, rank, tag, options)
            }
        }?)
    }
}

/// A send whose arguments are in order.
pub(crate) struct Send<'c> {
    link: &'c onecopy::Comm,
    rank: usize,
    tag: i32,
    bytes: Outgoing,
}

impl Send<'_> {
    /// Starts it.
    pub(crate) fn start(self, options: impl Into<SendOptions>) -> Outcome<Pending> {
        self.bytes.start(self.link, self.rank, self.tag, options)
    }
}

/// Checks the arguments of a send; `None` if it goes nowhere. `bytes` makes of the buffer what is sent.
pub(super) fn prepare_send<'c>(
    data: Data,
    to: Envelope<'c>,
    bytes: impl FnOnce(Buffer<'_>) -> Outcome<Outgoing>,
) -> Outcome<Option<Send<'c>>> {
    let buffer = data.buffer()?;
    let Some(rank) = to.destination()? else {
        return Ok(None);
    };
    Ok(Some(Send {
        link: to.comm.link()?,
        rank,
        tag: to.tag,
        bytes: bytes(buffer)?,
    }))
}

/// Starts a send; `None` if it goes nowhere.
pub(crate) fn begin_send(
    data: Data,
    to: Envelope<'_>,
    options: impl Into<SendOptions>,
) -> Outcome<Option<Pending>> {
    prepare_send(data, to, Outgoing::of)?
        .map(|send| send.start(options))
        .transpose()
}

/// What is sent of a buffer that is overwritten meanwhile: a copy.
pub(super) fn copied((buf, count, object): Buffer<'_>) -> Outcome<Outgoing> {
    // A buffer that is not there is found out before.
    bytes_of(buf, count, object, memory::sent)?;
    packed((buf, count, object)).map(Outgoing::Packed)
}

/// Where a receive puts its bytes.
pub(crate) struct Target {
    /// Without the copy's own.
    bytes: Bytes,
    /// Where the bytes of what is scattered begin.
    base: Addr,
}

impl Target {
    /// Starts the receive.
    pub(crate) fn receive(
        self,
        begin: impl FnOnce(MessageBuf<'_>) -> onecopy::Result<Operation>,
    ) -> Outcome<Pending> {
        Ok(match self.bytes {
            Bytes::One(span) => Pending::receive(&span, begin),
            Bytes::Runs(spans) => Pending::receive(&spans, begin),
            Bytes::Device(layout, _) => {
                Pending::receive_staged(device::Incoming::new(layout, self.base), begin)
            }
            Bytes::Scattered(layout, size) => {
                let base = self.base;
                let packed = memory::zeroed(size as usize)?;
                let unpack = Some(Unpack::new(layout, base));
                Pending::receive_packed(packed, unpack, begin)
            }
        }?)
    }

    /// Starts the receive, from a rank of the job.
    pub(crate) fn receive_from(
        self,
        link: &onecopy::Comm,
        source: Source,
        tag: Tag,
    ) -> Outcome<Pending> {
        self.receive(|buf| link.begin_receive(buf, source, tag))
    }
}

/// Where a buffer's bytes are.
pub(crate) fn target_of((buf, count, object): Buffer<'_>) -> Outcome<Target> {
    Ok(Target {
        bytes: bytes_of(buf, count, object, memory::received)?,
        base: buf,
    })
}

/// Starts a receive; `None` if it comes from nowhere.
pub(crate) fn begin_receive(data: Data, from: Envelope<'_>) -> Outcome<Option<Pending>> {
    let origin = from.origin()?;
    let buffer = data.buffer()?;
    match origin {
        Some((source, tag)) => target_of(buffer)?
            .receive_from(from.comm.link()?, source, tag)
            .map(Some),
        None => Ok(None),
    }
}
