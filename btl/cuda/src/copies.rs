// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between host memory and buffers that may lie in devices, in pieces of a chunk, several at once.
//!
//! A buffer is a list of runs, each at its address: that of a device, or of the host. What lies in the host is copied
//! by the kernel, which refuses what is nobody's memory; by the processor where the driver knows it.
//!
//! # Safety
//! The callers answer for the program's memory, as the functions here say. Chunks are ours.
#![allow(unsafe_code, reason = "memory of the program")]

use crate::context::primary;
use crate::error::Error;
use crate::host::{copy_known, copy_part};
use crate::lane::{Direction, Event, Lane};
use crate::memory::{self, Allocation, Kind};
use crate::presence::driver;
use crate::staging::{self, CHUNK, Chunk};
use cuda_sys::Library;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Tells the runs (address and bytes) of a range of a buffer's bytes, in their order.
pub type Runs<'a> = dyn FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) + 'a;

/// Chunks under way at once: while one is copied by the processor, the device copies others. Chosen by magnitude: of
/// staging chunks that is a region, 2 MiB. Two would do if both took the same time; two more bridge a delay of either.
const DEPTH: usize = 4;

/// Copies a buffer to `out`. `idle` is called while there is nothing to do here.
///
/// # Safety
/// The runs are memory of the program that it lets us read until this returns.
///
/// # Errors
///
/// What the driver refused. Nothing is known of `out` then.
pub unsafe fn to_host(
    runs: &mut Runs<'_>,
    out: &mut [u8],
    idle: &mut dyn FnMut(),
) -> Result<(), Error> {
    let driver = in_process()?;
    let total = out.len() as u64;
    let mut coming: VecDeque<(UnderWay, Range<u64>)> = VecDeque::with_capacity(DEPTH);
    let mut next = 0;
    let mut failed = None;
    while next < total || !coming.is_empty() {
        let mut moved = false;
        if next < total && failed.is_none() && coming.len() < DEPTH {
            let range = next..total.min(next + CHUNK as u64);
            // SAFETY: by the contract of this function.
            match unsafe { begin_to_host(driver, runs, range.clone(), &mut failed) } {
                Ok(Some(begun)) => {
                    coming.push_back((begun, range.clone()));
                    next = range.end;
                    moved = true;
                }
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        if let Some((first, _)) = coming.front() {
            if let Some(done) = first.outcome()
                && let Some((first, range)) = coming.pop_front()
            {
                if let Some(chunk) = first.end(&done) {
                    let Range { start, end } = range;
                    chunk.read(0, &mut out[start as usize..end as usize]);
                    moved = true;
                }
                failed = failed.or(done.err());
            }
        } else if let Some(error) = failed {
            return Err(error);
        }
        if !moved {
            idle();
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Bytes on their way to a buffer. It is a state only; the bytes and the buffer come with each call.
#[derive(Debug, Default)]
pub struct ToDevice {
    next: u64,
    /// Kept until their events are complete. The pool would ask for these later, perhaps in a context that has ended.
    leaving: VecDeque<UnderWay>,
    failed: Option<Error>,
}

impl ToDevice {
    /// Nothing is begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves what can be moved. `true`: all is there.
    ///
    /// # Safety
    /// The runs are memory of the program that it lets us write until this has given `true` or an error. They and the
    /// bytes are the same at each call.
    ///
    /// # Errors
    ///
    /// What the driver refused. Nothing is known of the buffer then, but no copy is under way any more.
    pub unsafe fn advance(&mut self, runs: &mut Runs<'_>, bytes: &[u8]) -> Result<bool, Error> {
        let driver = in_process()?;
        let total = bytes.len() as u64;
        self.look();
        while self.next < total && self.failed.is_none() {
            let range = self.next..total.min(self.next + CHUNK as u64);
            // SAFETY: by the contract of this function.
            match unsafe { self.begin(driver, runs, range.clone(), bytes) } {
                Ok(true) => self.next = range.end,
                Ok(false) => return Ok(false),
                Err(error) => self.failed = Some(error),
            }
        }
        self.look();
        if !self.leaving.is_empty() {
            return Ok(false);
        }
        self.failed.clone().map_or(Ok(true), Err)
    }

    /// Looks which copies are done.
    fn look(&mut self) {
        while let Some(done) = UnderWay::end_first(&mut self.leaving) {
            self.failed = self.failed.take().or(done.err());
        }
    }

    /// Starts the copies of one chunk. `false`: none is free.
    ///
    /// # Safety
    /// As [`Self::advance`].
    unsafe fn begin(
        &mut self,
        driver: &'static Library,
        runs: &mut Runs<'_>,
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<bool, Error> {
        let located = locate(driver, runs, range.clone())?;
        let Some(mut chunk) = located.chunk(driver)? else {
            return Ok(false);
        };
        let bytes = &bytes[range.start as usize..range.end as usize];
        chunk.write(0, bytes);
        // SAFETY: by the contract of this function.
        let (begun, failed) = unsafe { start_all(chunk, &located, Direction::ToDevice) };
        self.leaving.push_back(begun);
        failed.map_or(Ok(true), Err)
    }
}

/// A run, and where it is.
struct Part {
    address: u64,
    len: usize,
    /// None: it is the host's, as far as is known.
    lane: Option<Arc<Lane>>,
    /// The driver knows it as the host's. The kernel may refuse memory that a driver has mapped, so the processor
    /// copies.
    is_pinned: bool,
}

/// Where the runs of a range are.
pub(crate) struct Located {
    list: Vec<Part>,
    /// The lane of the first run in a device, or one by which a chunk is found.
    pub(crate) lane: Arc<Lane>,
}

pub(crate) fn in_process() -> Result<&'static Library, Error> {
    let reason = "the driver is not loaded in this process";
    let remedy = "call cuInit, or a function of the CUDA runtime, before messages of device memory";
    driver().ok_or_else(|| Error::ours("a copy", "device memory".into(), reason, remedy))
}

/// Whether all copies before these events are over. An error is told once none is under way any more.
pub(crate) fn are_done(events: &[Event]) -> Result<bool, Error> {
    let mut failed = None;
    for event in events {
        match event.is_done() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    failed.map_or(Ok(true), Err)
}

/// Copies between a chunk and a device that were begun. If it is dropped, its chunk is free once the device is done.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// Taken at the end.
    chunk: Option<Chunk>,
    /// The marks behind the copies, one for each lane.
    events: Vec<Event>,
    /// A lane has given no mark: nobody knows when the chunk is free.
    unknown: bool,
}

impl UnderWay {
    /// What became of the copies; none: the device is not done.
    pub(crate) fn outcome(&self) -> Option<Result<(), Error>> {
        match are_done(&self.events) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }

    /// They are over, with this outcome. Gives the chunk, unless a device may still use it.
    pub(crate) fn end(mut self, outcome: &Result<(), Error>) -> Option<Chunk> {
        let chunk = self.chunk.take()?;
        if self.unknown || outcome.is_err() {
            staging::lose(chunk);
            return None;
        }
        Some(chunk)
    }

    /// Takes the first of a queue, if it is over: its chunk is free then. Gives what became of it.
    pub(crate) fn end_first(queue: &mut VecDeque<Self>) -> Option<Result<(), Error>> {
        let outcome = queue.front()?.outcome()?;
        drop(queue.pop_front()?.end(&outcome));
        Some(outcome)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let events = std::mem::take(&mut self.events);
        match self.chunk.take() {
            Some(chunk) if self.unknown => staging::lose(chunk),
            Some(chunk) => staging::give_back(chunk, events),
            None => {}
        }
    }
}

/// Looks where the runs of a range are.
pub(crate) fn locate(
    driver: &'static Library,
    runs: &mut Runs<'_>,
    range: Range<u64>,
) -> Result<Located, Error> {
    let mut list = Vec::new();
    let mut failed = None;
    let mut last: Option<(Allocation, Option<Arc<Lane>>)> = None;
    let mut pinned = None;
    // What ends where the range begins: a buffer that is longer than its allocation goes nowhere from there.
    if range.start > 0 {
        runs(range.start - 1..range.start, &mut |address, len| {
            let _ = place(driver, address, len, &mut last);
        });
    }
    runs(range, &mut |address, len| {
        if failed.is_some() || len == 0 {
            return;
        }
        // A run may lie in several allocations that are mapped side by side.
        let mut done = 0;
        while done < len && failed.is_none() {
            let address = address + done as u64;
            match place(driver, address, len - done, &mut last) {
                Ok((lane, len)) => {
                    let known = last.as_ref().filter(|_| lane.is_none());
                    let is_pinned = known.is_some();
                    pinned = known.map(|(allocation, _)| *allocation).or(pinned);
                    list.push(Part {
                        address,
                        len,
                        lane,
                        is_pinned,
                    });
                    done += len;
                }
                Err(error) => failed = Some(error),
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let lane = match (list.iter().find_map(|part| part.lane.clone()), pinned) {
        (Some(lane), _) => lane,
        (None, Some(allocation)) => lane_of(driver, &allocation)?,
        (None, None) => Lane::of(driver, primary(driver, 0)?, 0)?,
    };
    Ok(Located { list, lane })
}

fn lane_of(driver: &'static Library, allocation: &Allocation) -> Result<Arc<Lane>, Error> {
    Lane::of(driver, allocation.context(driver)?, allocation.device)
}

impl Located {
    /// A chunk for a copy that begins now. `None`: none is free.
    pub(crate) fn chunk(&self, driver: &'static Library) -> Result<Option<Chunk>, Error> {
        let _entered = self.lane.enter()?;
        staging::take(driver, self.lane.device())
    }
}

/// The lane of the first bytes of a run, and how many these are; no lane: they are the host's. `last`: where the bytes
/// before them were, in the same call of the program.
fn place(
    driver: &'static Library,
    address: u64,
    len: usize,
    last: &mut Option<(Allocation, Option<Arc<Lane>>)>,
) -> Result<(Option<Arc<Lane>>, usize), Error> {
    let before = last.take();
    let follows = |(allocation, lane): &(Allocation, Option<Arc<Lane>>)| {
        lane.is_some() && allocation.ends_at(address)
    };
    let behind = before.as_ref().is_some_and(follows);
    let known = before.filter(|(allocation, _)| allocation.has(address));
    let found = match known {
        Some(known) => known,
        None => match memory::of(address)? {
            // Behind memory of a device lies other such memory, or the program's buffer is longer than what it has.
            None if behind => {
                let about = format!("{len} bytes at {address:#x}");
                return Err(Error::ours(
                    "a copy",
                    about,
                    "an allocation ends before them",
                    "pass a count and a datatype that stay within the allocation",
                ));
            }
            None => return Ok((None, len)),
            Some(allocation) if allocation.kind == Kind::Pinned => (allocation, None),
            Some(allocation) => {
                let lane = lane_of(driver, &allocation)?;
                (allocation, Some(lane))
            }
        },
    };
    let first = match found.1 {
        Some(_) => usize::try_from(found.0.rest(address)).map_or(len, |rest| rest.min(len)),
        None => len,
    };
    let lane = found.1.clone();
    *last = Some(found);
    Ok((lane, first))
}

/// Starts the copies of one chunk to the host. `None`: none is free. What has failed is noted, too.
///
/// # Safety
/// As [`to_host`].
unsafe fn begin_to_host(
    driver: &'static Library,
    runs: &mut Runs<'_>,
    range: Range<u64>,
    failed: &mut Option<Error>,
) -> Result<Option<UnderWay>, Error> {
    let located = locate(driver, runs, range.clone())?;
    let Some(chunk) = located.chunk(driver)? else {
        return Ok(None);
    };
    // SAFETY: by the contract of this function.
    let (begun, refused) = unsafe { start_all(chunk, &located, Direction::ToHost) };
    *failed = refused;
    Ok(Some(begun))
}

/// Copies all parts between the program's memory and a chunk, or starts that. Gives why a part was not begun, too.
///
/// # Safety
/// The parts are memory of the program that may be read, or written, until the events are complete. The chunk stays
/// alone as long.
pub(crate) unsafe fn start_all(
    chunk: Chunk,
    located: &Located,
    direction: Direction,
) -> (UnderWay, Option<Error>) {
    let mut lanes: Vec<Arc<Lane>> = Vec::new();
    let mut offset = 0;
    let mut failed = None;
    for part in &located.list {
        let host = chunk.at(offset);
        offset += part.len;
        match &part.lane {
            Some(lane) => {
                // SAFETY: by the contract of this function.
                let started = unsafe { lane.start(direction, host, part.address, part.len) };
                if let Err(error) = started {
                    if error.is_stale() {
                        lane.give_up();
                    }
                    failed = Some(error);
                    break;
                }
                if !lanes.iter().any(|known| Arc::ptr_eq(known, lane)) {
                    lanes.push(Arc::clone(lane));
                }
            }
            None if part.is_pinned => {
                // SAFETY: as many bytes of a chunk of ours, and of the program's memory by this contract.
                unsafe { copy_known(direction, host, part.address, part.len) };
            }
            None => {
                // SAFETY: as above.
                let copied = unsafe { copy_part(direction, host, part.address, part.len) };
                if let Err(error) = copied {
                    failed = Some(error);
                    break;
                }
            }
        }
    }
    let events = mark(&lanes, direction, &mut failed);
    let begun = UnderWay {
        unknown: events.len() < lanes.len(),
        chunk: Some(chunk),
        events,
    };
    (begun, failed)
}

/// Marks the place behind all copies so far. A lane that refuses has failed, and with it what was begun there.
fn mark(lanes: &[Arc<Lane>], direction: Direction, failed: &mut Option<Error>) -> Vec<Event> {
    let mut events = Vec::with_capacity(lanes.len());
    for lane in lanes {
        match lane.mark(direction) {
            Ok(event) => events.push(event),
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    events
}
