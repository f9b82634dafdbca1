// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of one side of a collective.

use crate::datatype::layout::Layout;
use crate::datatype::{self, TypeObject};
use crate::failure::{Outcome, fail};
use crate::ffi::Addr;
use crate::{c, device, memory};
use onecopy::Span;
use onecopy::coll::{ByteRange, Parts};
use onecopy_shm::copy::{Kernel, copy_slices};
use std::ops::Range;
use std::sync::Arc;

/// What the runtime does with the bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// In place.
    Both,
}

impl Access {
    /// That of a buffer for results, in which what is given may stand, too.
    pub(super) fn of_result(in_place: bool) -> Self {
        if in_place { Self::Both } else { Self::Write }
    }

    fn reads(self) -> bool {
        self != Self::Write
    }

    fn writes(self) -> bool {
        self != Self::Read
    }
}

/// Bytes of the program, or a copy of ours with the places where results go.
pub(crate) struct UserBuffer {
    /// The program's bytes; none: the copy.
    direct: Option<(Addr, usize)>,
    /// What only few need.
    rest: Option<Box<CopyParts>>,
}

#[derive(Default)]
struct CopyParts {
    /// Bytes of the copy, which is made by [`UserBuffer::fill`].
    len: usize,
    copy: Vec<u8>,
    /// What the program gives: parts of its buffer, in any order.
    sources: Vec<Part>,
    deliveries: Vec<Part>,
    /// Bytes that the runtime overwrites and the program finds unchanged: where they are, and what they were.
    keeps: Range<usize>,
    kept: Option<Vec<u8>>,
    /// Deliveries that are done.
    delivered: usize,
    /// What a device copies of the next one.
    copying: Option<Copying>,
}

/// A part of a copy on its way to a device.
struct Copying {
    buffer: Arc<device::Incoming>,
    given: usize,
    /// Its packed form; empty: as it stands in the copy.
    packed: Vec<u8>,
}

/// A part of a copy, and of the program's buffer.
#[derive(Clone)]
struct Part {
    layout: Layout,
    base: Addr,
    /// Where it begins in the copy.
    start: usize,
    /// The copy has the gaps of the program's buffer, too, and begins so many bytes from its base.
    gaps: Option<i64>,
    /// Whether any of the program's bytes is a device's.
    in_device: bool,
}

impl Part {
    fn new(layout: Layout, base: Addr, start: usize, gaps: Option<i64>) -> Self {
        let in_device = device::holds_any(&layout, base);
        Self {
            layout,
            base,
            start,
            gaps,
            in_device,
        }
    }

    /// Reads the program's bytes.
    fn read(&self, copy: &mut [u8]) -> Outcome<()> {
        let (layout, base, size) = (&self.layout, self.base, self.layout.size());
        let Some(first) = self.gaps else {
            let out = &mut copy[self.start..self.start + size as usize];
            return memory::gather(layout, base, 0..size, out);
        };
        if self.in_device {
            let mut packed = memory::zeroed(size as usize)?;
            memory::gather(layout, base, 0..size, &mut packed)?;
            spread(layout, first, &packed, copy);
            return Ok(());
        }
        layout.walk(0, 0..size, &mut |offset, len| {
            let start = (offset - first) as usize;
            memory::with_bytes(base.offset(offset), len as usize, |bytes| {
                copy_slices(Kernel::Memcpy, &mut copy[start..start + bytes.len()], bytes);
            });
            true
        });
        Ok(())
    }

    /// Copies what can be copied now; `true`: all is there. Threads that poll let the device work.
    fn deliver(&self, copy: &[u8], copying: &mut Option<Copying>) -> Result<bool, onecopy::Error> {
        if !self.in_device {
            self.copy_in_host(copy);
            return Ok(true);
        }
        let layout = &self.layout;
        let Copying {
            buffer,
            given,
            packed,
        } = copying.get_or_insert_with(|| Copying {
            buffer: device::Incoming::for_results(layout.clone(), self.base),
            given: 0,
            packed: self
                .gaps
                .map(|first| collect(layout, first, copy))
                .unwrap_or_default(),
        });
        let bytes = match self.gaps {
            None => &copy[self.start..self.start + layout.size() as usize],
            Some(_) => packed,
        };
        let done = buffer.give(bytes, given)?;
        if done {
            *copying = None;
        }
        Ok(done)
    }

    fn copy_in_host(&self, copy: &[u8]) {
        let size = self.layout.size();
        match self.gaps {
            None => {
                let bytes = &copy[self.start..self.start + size as usize];
                memory::scatter_in_host(&self.layout, self.base, 0, bytes);
            }
            Some(first) => {
                self.layout.walk(0, 0..size, &mut |offset, len| {
                    let start = (offset - first) as usize;
                    let bytes = &copy[start..start + len as usize];
                    memory::copy_in(self.base.offset(offset), bytes);
                    true
                });
            }
        }
    }
}

impl CopyParts {
    fn add(&mut self, part: Part, access: Access) {
        if access.reads() {
            self.sources.push(part.clone());
        }
        if access.writes() {
            self.deliveries.push(part);
        }
    }
}

/// The packed form of a copy with gaps, which begins `first` bytes from the layout's base.
fn collect(layout: &Layout, first: i64, copy: &[u8]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(layout.size() as usize);
    layout.walk(0, 0..layout.size(), &mut |offset, len| {
        let start = (offset - first) as usize;
        packed.extend_from_slice(&copy[start..start + len as usize]);
        true
    });
    packed
}

/// The opposite: from the packed form to a copy with gaps.
fn spread(layout: &Layout, first: i64, packed: &[u8], copy: &mut [u8]) {
    let mut done = 0;
    layout.walk(0, 0..layout.size(), &mut |offset, len| {
        let (start, len) = ((offset - first) as usize, len as usize);
        copy_slices(
            Kernel::Memcpy,
            &mut copy[start..start + len],
            &packed[done..done + len],
        );
        done += len;
        true
    });
}

/// So many instances of a datatype at a displacement in bytes.
pub(crate) type Block<'t> = (i64, u64, &'t TypeObject);

/// First byte and number of bytes of a block, if these lie together.
type DensePart = Option<(i64, u64)>;

/// How each block lies, and the bytes of all.
fn dense_parts(blocks: &[Block<'_>]) -> Outcome<(Vec<DensePart>, u64)> {
    let mut dense = Vec::with_capacity(blocks.len());
    let mut total = 0u64;
    for &(displacement, count, object) in blocks {
        let len = object.bytes(count)?;
        total = datatype::addressable(total.checked_add(len))?;
        let place = |offset: i64| {
            displacement
                .checked_add(offset)
                .filter(|first| first.checked_add(len as i64).is_some())
        };
        dense.push(match object.shape.dense(count).map(place) {
            Some(None) => {
                let reason = "a displacement beyond what can be addressed";
                return Err(fail(c::ERR_COUNT, reason));
            }
            place => place.flatten().map(|first| (first, len)),
        });
    }
    Ok((dense, total))
}

impl UserBuffer {
    fn direct(buf: Addr, len: usize) -> Self {
        Self {
            direct: Some((buf, len)),
            rest: None,
        }
    }

    /// A plain side of one block at its base. What lies together, which is nearly everything, costs no allocation.
    #[inline]
    pub(crate) fn one(
        base: Addr,
        count: u64,
        object: &TypeObject,
        access: Access,
    ) -> Outcome<Self> {
        if let (Some(offset), Some(len)) = (object.shape.dense(count), object.bytes(count).ok())
            && (len == 0 || !base.is_nowhere() && !device::holds(base.offset(offset)))
        {
            let first = if len == 0 { 0 } else { offset };
            return Ok(Self::direct(base.offset(first), len as usize));
        }
        Ok(Self::of(base, &[(0, count, object)], access)?.0)
    }

    /// A plain side, for bytes that are described by `blocks`.
    pub(crate) fn of(base: Addr, blocks: &[Block<'_>], access: Access) -> Outcome<(Self, Parts)> {
        let (dense, total) = dense_parts(blocks)?;
        let named = || blocks.iter().all(|block| block.2.named().is_some());
        if total > 0 && (base.is_in_place() || base.is_nowhere() && named()) {
            return Err(datatype::nowhere(base));
        }
        let used = dense.iter().flatten().filter(|(_, len)| *len > 0);
        let in_host = used
            .clone()
            .all(|&(first, _)| !device::holds(base.offset(first)));
        if dense.iter().all(Option::is_some) && in_host {
            let parts: Vec<(i64, u64)> = dense.into_iter().flatten().collect();
            return Ok(Self::in_place(base, &parts));
        }
        Self::packed(base, blocks, total, access)
    }

    /// The program's own bytes: from the first part to the end of the last one.
    fn in_place(base: Addr, parts: &[(i64, u64)]) -> (Self, Parts) {
        let used = || parts.iter().filter(|(_, len)| *len > 0);
        let first = used().map(|(offset, _)| *offset).min().unwrap_or(0);
        let ends = used().map(|(offset, len)| offset + *len as i64);
        let end = ends.max().unwrap_or(first);
        let listed = parts.iter().map(|&(offset, len)| match len {
            0 => ByteRange::default(),
            _ => ByteRange {
                offset: (offset - first) as usize,
                len: len as usize,
            },
        });
        let user_buffer = Self::direct(base.offset(first), (end - first) as usize);
        (user_buffer, Parts::Listed(listed.collect()))
    }

    /// A copy of `total` bytes, in which the blocks stand one behind the other.
    fn packed(
        base: Addr,
        blocks: &[Block<'_>],
        total: u64,
        access: Access,
    ) -> Outcome<(Self, Parts)> {
        let mut rest = Box::new(CopyParts {
            len: total as usize,
            ..CopyParts::default()
        });
        let mut listed = Vec::with_capacity(blocks.len());
        let mut start = 0;
        for &(offset, count, object) in blocks {
            let layout = object.shape.layout_of(count)?;
            let len = layout.size() as usize;
            rest.add(Part::new(layout, base.offset(offset), start, None), access);
            listed.push(ByteRange { offset: start, len });
            start += len;
        }
        let user_buffer = Self {
            direct: None,
            rest: Some(rest),
        };
        Ok((user_buffer, Parts::Listed(listed.into())))
    }

    /// Bytes with the gaps between elements, for reductions whose operator knows the datatype.
    pub(crate) fn with_gaps(
        base: Addr,
        count: u64,
        object: &TypeObject,
        access: Access,
    ) -> Outcome<Self> {
        let shape = &object.shape;
        let len = count as usize * shape.extent() as usize;
        let dense = shape.dense(count) == Some(0) && shape.dense(2).is_some();
        if dense && (len == 0 || !device::holds(base)) {
            return Ok(Self::direct(base, len));
        }
        let mut rest = Box::new(CopyParts {
            len,
            ..CopyParts::default()
        });
        let layout = shape.layout_of(count)?;
        rest.add(Part::new(layout, base, 0, Some(shape.lb)), access);
        Ok(Self {
            direct: None,
            rest: Some(rest),
        })
    }

    /// Reads what the program gives. Nothing of its buffer was read before.
    pub(crate) fn fill(&mut self) -> Outcome<()> {
        let Some(rest) = &mut self.rest else {
            return Ok(());
        };
        if self.direct.is_none() {
            rest.copy = memory::zeroed(rest.len)?;
            for part in &rest.sources {
                part.read(&mut rest.copy)?;
            }
        }
        let keeps = rest.keeps.clone();
        if !keeps.is_empty() {
            let bytes = self.with_recv(|bytes| bytes[keeps].to_vec());
            self.rest.get_or_insert_default().kept = Some(bytes);
        }
        Ok(())
    }

    /// Remembers bytes that are to be there again when the results are.
    pub(super) fn keep(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.rest.get_or_insert_default().keeps = range;
        }
    }

    /// Puts results where they belong. `false`: a device still copies, and this is to be called again.
    pub(crate) fn deliver(&mut self) -> Result<bool, onecopy::Error> {
        let Some(rest) = &mut self.rest else {
            return Ok(true);
        };
        if let Some(kept) = rest.kept.take() {
            let keeps = rest.keeps.clone();
            self.with_recv(|bytes| copy_slices(Kernel::Memcpy, &mut bytes[keeps], &kept));
        }
        let Some(rest) = &mut self.rest else {
            return Ok(true);
        };
        while let Some(delivery) = rest.deliveries.get(rest.delivered) {
            if !delivery.deliver(&rest.copy, &mut rest.copying)? {
                return Ok(false);
            }
            rest.delivered += 1;
        }
        Ok(true)
    }

    /// The address of the datatype's base, `first` bytes before the bytes.
    pub(super) fn address(&mut self, first: i64) -> Addr {
        match self.direct {
            Some((buf, _)) => buf,
            None => {
                let copy = &mut self.rest.get_or_insert_default().copy;
                memory::address_of(copy).offset(-first)
            }
        }
    }

    /// To be lent for sending.
    pub(crate) fn sent(&self) -> Span {
        match self.direct {
            Some((buf, len)) => memory::sent(buf, len),
            None => {
                let copy = self.copied();
                memory::sent(memory::address_of_shared(copy), copy.len())
            }
        }
    }

    /// To be lent for receiving.
    pub(crate) fn received(&mut self) -> Span {
        match self.direct {
            Some((buf, len)) => memory::received(buf, len),
            None => {
                let copy = &mut self.rest.get_or_insert_default().copy;
                memory::received(memory::address_of(copy), copy.len())
            }
        }
    }

    fn copied(&self) -> &[u8] {
        self.rest.as_ref().map_or(&[], |rest| &rest.copy)
    }

    fn with_send<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match self.direct {
            Some((buf, len)) => memory::with_bytes(buf, len, f),
            None => f(self.copied()),
        }
    }

    fn with_recv<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        match self.direct {
            Some((buf, len)) => memory::with_bytes_mut(buf, len, f),
            None => f(&mut self.rest.get_or_insert_default().copy),
        }
    }
}

/// Shows both sides to `f`.
#[inline(always)]
pub(super) fn with<R>(
    send: Option<&UserBuffer>,
    recv: Option<&mut UserBuffer>,
    f: impl FnOnce(Option<&[u8]>, Option<&mut [u8]>) -> R,
) -> R {
    match (send, recv) {
        (None, None) => f(None, None),
        (Some(send), None) => send.with_send(|send| f(Some(send), None)),
        (None, Some(recv)) => recv.with_recv(|recv| f(None, Some(recv))),
        (Some(send), Some(recv)) => {
            send.with_send(|send| recv.with_recv(|recv| f(Some(send), Some(recv))))
        }
    }
}
