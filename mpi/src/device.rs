// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of the program that lie in a device's memory, or that a device shares with the host.
//!
//! Nothing below this front touches such a buffer. A short send goes through a packed copy in the host, which is made
//! in the call. The call waits for that copy alone, and moves messages meanwhile. A longer send, and each receive, is
//! *staged*: the engine asks for pieces, and threads that poll let the device copy them ([`Outgoing`], [`Incoming`]).
//! Where both buffers of a long message are in devices, the receive fetches all of it by one copy, if it can.
//!
//! # Safety
//! The standard's contract, as in `memory.rs`. The driver looks at each address itself.
#![allow(unsafe_code, reason = "buffers of the program")]

use crate::c;
use crate::datatype::layout::Layout;
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::Addr;
use crate::phase;
use onecopy::raw::{Activity, Offer, OfferedBy, Staged, Taken};
use onecopy_cuda::copies::{ToDevice, to_host};
use onecopy_cuda::direct::{self, By, End, Fetch, Offering};
use onecopy_cuda::pipeline::{self, Settled, Sink, Source};
use onecopy_cuda::{memory, staging};
use onecopy_shm::copy::{Kernel, copy_slices};
use std::ops::Range;
use std::sync::{Arc, Once};

/// Longer sends are staged, or fetched by the receive. A message of one piece has no copy that could overlap with
/// sending.
const LONG: u64 = staging::CHUNK as u64;

/// Whether a byte must not be touched as memory of the host alone is. Where nothing has loaded the driver of a device,
/// this is two loads.
#[inline(always)]
pub(crate) fn holds(at: Addr) -> bool {
    onecopy_cuda::is_possible() && is_known(at.number())
}

/// Whether no buffer is a device's, as far as can be told without a call. `false` says nothing.
#[inline(always)]
pub(crate) fn is_ruled_out() -> bool {
    onecopy_cuda::is_ruled_out()
}

/// Whether that is so of any byte of a layout.
#[inline]
pub(crate) fn holds_any(layout: &Layout, base: Addr) -> bool {
    onecopy_cuda::is_possible() && has_known(layout, base)
}

/// An address of which the driver cannot tell anything counts too: to touch it could end the process.
#[cold]
fn is_known(address: usize) -> bool {
    !matches!(memory::of(address as u64), Ok(None))
}

/// Memory that the processor must not touch shares no range of so many bytes with other memory. Drivers map theirs by
/// such ranges, at multiples of them. So of many runs in the host one is asked for in each.
const GRANULE: usize = 2 << 20;

#[cold]
fn has_known(layout: &Layout, base: Addr) -> bool {
    let mut plain = usize::MAX;
    let mut found = false;
    layout.walk(0, 0..layout.size(), &mut |offset, _| {
        let at = base.offset(offset).number();
        if at / GRANULE != plain {
            found = is_known(at);
            plain = at / GRANULE;
        }
        !found
    });
    found
}

/// Moves messages while a device copies.
fn idle() {
    match phase::engine() {
        Ok(link) => link.look(|_| ()),
        Err(_) => std::thread::yield_now(),
    }
}

#[cold]
fn failed(error: &onecopy_cuda::Error) -> Box<Failure> {
    fail(c::ERR_OTHER, format!("device memory: {error}"))
}

/// The runs of a layout at an address, from `start` of the packed form on.
fn runs_of(
    layout: &Layout,
    base: Addr,
    start: u64,
) -> impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) {
    move |range, each| {
        let range = start + range.start..start + range.end;
        layout.walk(0, range, &mut |offset, len| {
            each(base.offset(offset).number() as u64, len as usize);
            true
        });
    }
}

/// Gathers bytes of the packed form, and waits for that.
#[cold]
pub(crate) fn gather(
    layout: &Layout,
    base: Addr,
    range: Range<u64>,
    out: &mut [u8],
) -> Outcome<()> {
    let mut runs = runs_of(layout, base, range.start);
    // SAFETY: the layout names bytes of the program's buffer, which it lets us read during this call.
    unsafe { to_host(&mut runs, out, &mut idle) }.map_err(|error| failed(&error))
}

/// The runs of a whole layout, for as long as they are asked for.
fn all_runs(
    layout: Layout,
    base: Addr,
) -> impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) + Send + 'static {
    move |range, each| runs_of(&layout, base, 0)(range, each)
}

fn activity(found: pipeline::Activity) -> Activity {
    match found {
        pipeline::Activity::Moved => Activity::Moved,
        pipeline::Activity::Waits => Activity::Waits,
        pipeline::Activity::Rests => Activity::Rests,
    }
}

fn reason(error: &onecopy_cuda::Error) -> Arc<str> {
    error.to_string().into()
}

/// Whether a send of so many bytes is staged.
pub(crate) fn is_long(size: u64) -> bool {
    size > LONG
}

/// Where a layout is at an address, if it is one run: the run, and its bytes.
fn one_run(layout: &Layout, base: Addr) -> Option<(u64, u64)> {
    let mut run = None;
    if layout.runs() == 1 {
        layout.walk(0, 0..layout.size(), &mut |offset, len| {
            run = Some((base.offset(offset).number() as u64, len));
            false
        });
    }
    run
}

/// Says once why memory of a device is not shown to other ranks.
#[cold]
fn hidden(why: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::info!("a message between devices is not offered as such: {why}");
    });
}

/// The buffer of a send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    source: Source,
    /// None: it lies in several places, or not in one that can be offered.
    offering: Option<Offering>,
}

impl Outgoing {
    pub(crate) fn new(layout: Layout, base: Addr) -> Self {
        let len = layout.size();
        let offering = one_run(&layout, base).and_then(|(at, len)| Offering::of(at, len));
        // SAFETY: the layout names bytes of the program's buffer, which it leaves alone until the operation is over.
        let source = unsafe { Source::new(all_runs(layout, base), len) };
        Self { source, offering }
    }

    /// Lets the driver show the buffer to other ranks of the node. A send to this rank, or to another node, does not
    /// need that. The engine calls no driver, so it is done before the send begins.
    pub(crate) fn show(&self) {
        if let Some(offering) = &self.offering {
            offering.show();
        }
    }

    /// Whether the program's buffer is its own again. Nothing is brought any more.
    pub(crate) fn end(&self) -> Settled {
        self.source.close();
        match &self.offering {
            Some(offering) if !offering.close() => None,
            _ => self.source.settled(),
        }
    }
}

impl Staged for Outgoing {
    fn bytes(&self) -> u64 {
        self.source.len()
    }

    fn offer(&self, own: bool) -> Option<Box<[u8]>> {
        let offering = self.offering.as_ref()?;
        Some(match own {
            true => Box::new(offering.own()),
            false => match offering.shown() {
                Ok(shown) => Box::new(*shown),
                Err(why) => {
                    hidden(&why);
                    return None;
                }
            },
        })
    }

    fn ready(&self, range: Range<u64>) -> Result<usize, Arc<str>> {
        self.source.ready(range).map_err(|error| reason(&error))
    }

    fn show(&self, offset: u64, len: usize, to: &mut dyn FnMut(usize, &[u8])) -> bool {
        self.source.show(offset, len, to)
    }

    fn room(&self, _: Range<u64>) -> Result<u64, Arc<str>> {
        Ok(0)
    }

    fn take(&self, _: u64, _: usize, _: &mut dyn FnMut(usize, &mut [u8])) -> bool {
        false
    }

    fn advance(&self) -> Activity {
        activity(self.source.advance())
    }
}

/// The buffer of a receive.
#[derive(Debug)]
pub(crate) struct Incoming {
    sink: Sink,
    fetch: Fetch,
}

impl Incoming {
    pub(crate) fn new(layout: Layout, base: Addr) -> Self {
        let (len, run) = (layout.size(), one_run(&layout, base));
        // SAFETY: the layout names bytes of the program's buffer, which it leaves alone until the operation is over.
        let sink = unsafe { Sink::new(all_runs(layout, base), len) };
        // SAFETY: as above.
        let fetch = unsafe { Fetch::new(run) };
        Self { sink, fetch }
    }

    /// One for results of the library's own, which are [`give`](Self::give)n.
    pub(crate) fn for_results(layout: Layout, base: Addr) -> Arc<Self> {
        let buffer = Arc::new(Self::new(layout, base));
        if let Ok(link) = phase::engine() {
            link.stage(Arc::clone(&buffer) as _);
        }
        buffer
    }

    /// Gives as much as there is room for of all bytes, of which so many were given. `true`: all is there. No device is
    /// asked here.
    pub(crate) fn give(&self, bytes: &[u8], given: &mut usize) -> Result<bool, onecopy::Error> {
        if let Some(Err(error)) = self.end() {
            return Err(onecopy::Error::Device(reason(&error)));
        }
        while *given < bytes.len() {
            let start = *given as u64;
            let Ok(room @ 1..) = self.sink.room(start..bytes.len() as u64) else {
                return Ok(false);
            };
            let rest = &bytes[*given..][..room as usize];
            self.sink.take(start, rest.len(), &mut |at, out| {
                copy_slices(Kernel::Memcpy, out, &rest[at..at + out.len()]);
            });
            *given += rest.len();
        }
        Ok(matches!(self.end(), Some(Ok(()))))
    }

    /// Whether what has come is where it belongs.
    pub(crate) fn end(&self) -> Settled {
        self.fetch.close();
        match self.fetch.settled()? {
            Ok(()) => self.sink.settled(),
            Err(error) => Some(Err(error)),
        }
    }
}

impl Staged for Incoming {
    fn bytes(&self) -> u64 {
        self.sink.len()
    }

    fn accept(&self, offer: &Offer<'_>, len: u64) -> bool {
        let by = match offer.by {
            OfferedBy::Own => By::Own,
            OfferedBy::Peer(rank, process) => By::Peer(rank, process),
        };
        self.fetch.accept(by, offer.bytes, len)
    }

    fn taken(&self) -> Taken {
        match self.fetch.end() {
            None => Taken::NotYet,
            Some(End::All) => Taken::All,
            Some(End::Declined(why)) => Taken::Declined(why),
            Some(End::Failed(error)) => Taken::Failed(reason(&error)),
        }
    }

    fn ready(&self, _: Range<u64>) -> Result<usize, Arc<str>> {
        Ok(0)
    }

    fn show(&self, _: u64, _: usize, _: &mut dyn FnMut(usize, &[u8])) -> bool {
        false
    }

    fn room(&self, range: Range<u64>) -> Result<u64, Arc<str>> {
        self.sink.room(range).map_err(|error| reason(&error))
    }

    fn take(&self, offset: u64, len: usize, from: &mut dyn FnMut(usize, &mut [u8])) -> bool {
        self.sink.take(offset, len, from)
    }

    fn advance(&self) -> Activity {
        match self.fetch.advance() {
            pipeline::Activity::Rests => activity(self.sink.advance()),
            found => activity(found),
        }
    }
}

/// A staged buffer, and how its message ends.
pub(crate) enum StagedMessage {
    Outgoing(Arc<Outgoing>),
    Incoming(Arc<Incoming>),
}

impl StagedMessage {
    /// Whether the program's buffer is its own again, once the message is over.
    pub(crate) fn end(&self) -> Option<Result<(), onecopy::Error>> {
        let settled = match self {
            Self::Outgoing(buffer) => buffer.end(),
            Self::Incoming(buffer) => buffer.end(),
        }?;
        Some(settled.map_err(|error| onecopy::Error::Device(reason(&error))))
    }
}

/// Sets how much memory messages of each device are staged in, and how many allocations of peers may be open.
pub(crate) fn set_bounds(staging: usize, mappings: usize) {
    staging::set_bound(staging);
    direct::set_bound(mappings);
}

/// Closes what peers have shown: the job is over.
pub(crate) fn end() {
    direct::close_all();
}

/// Closes what a rank has shown, if an error says that it is gone.
#[cold]
pub(crate) fn forget_if_gone(error: &onecopy::Error) {
    if let onecopy::Error::PeerDied { rank, .. }
    | onecopy::Error::PeerLeft { rank }
    | onecopy::Error::Protocol { rank, .. } = error
        && let Ok(rank) = u32::try_from(*rank)
    {
        direct::forget(rank);
    }
}

/// Bytes on their way from a packed copy to a buffer.
#[derive(Default)]
pub(crate) struct Scatter(ToDevice);

impl Scatter {
    /// Moves what can be moved; `true`: all is there. The layout, the address and the bytes are the same each time.
    pub(crate) fn advance(
        &mut self,
        layout: &Layout,
        base: Addr,
        bytes: &[u8],
    ) -> Result<bool, onecopy::Error> {
        let mut runs = runs_of(layout, base, 0);
        // SAFETY: the layout names bytes of the program's buffer, which it leaves alone until the operation is over.
        unsafe { self.0.advance(&mut runs, bytes) }
            .map_err(|error| onecopy::Error::Device(error.to_string().into()))
    }

    /// The same, and waits until all is there.
    pub(crate) fn finish(mut self, layout: &Layout, base: Addr, bytes: &[u8]) -> Outcome<()> {
        while !self.advance(layout, base, bytes)? {
            idle();
        }
        Ok(())
    }
}

/// Waits until `done` says so.
pub(crate) fn wait(mut done: impl FnMut() -> Result<bool, onecopy::Error>) -> Outcome<()> {
    while !done()? {
        idle();
    }
    Ok(())
}
