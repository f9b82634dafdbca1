// SPDX-License-Identifier: MIT OR Apache-2.0
//! What copies of one context go by: a stream for each direction, two for copies between devices, and events.
//!
//! # Safety
//! Streams and events are made here, in a context that is the thread's one, and given back once. A copy names memory
//! for which its caller answers until the event behind it is complete.
#![allow(unsafe_code, reason = "calls of the driver")]

use crate::context::{Context, ContextId, Entered};
use crate::error::{Error, check, needed};
use cuda_sys::*;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The streams of a context. They end with it, and are not given back before.
#[derive(Debug)]
pub(crate) struct Lane {
    driver: &'static Library,
    context: Context,
    /// The ordinal of its device.
    device: i32,
    /// The context's number: its handle may be another one's later. None: the driver is older than CUDA 12.
    id: Option<u64>,
    streams: [Stream; 2],
    /// For copies between devices. They are made with the first one.
    between: [OnceLock<Stream>; 2],
    /// Events that nobody uses.
    events: Mutex<Vec<RawEvent>>,
}

#[derive(Debug)]
struct Stream(CUstream);
#[derive(Debug)]
struct RawEvent(CUevent);

// SAFETY: the driver takes a stream's handle from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver itself locks a stream.
unsafe impl Sync for Stream {}
// SAFETY: the driver takes an event's handle from any thread.
unsafe impl Send for RawEvent {}

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToHost,
    ToDevice,
}

/// A copy that needs no memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// Of a message.
    Message,
    /// A short one of ours, to see whether the device copies. Copies of messages do not hold it up.
    Probe,
}

/// A mark behind copies.
#[derive(Debug)]
pub(crate) struct Event {
    raw: RawEvent,
    lane: Arc<Lane>,
}

static LANES: Mutex<Vec<Arc<Lane>>> = Mutex::new(Vec::new());

impl Lane {
    /// The lane of a context, which is one of this device.
    pub(crate) fn of(
        driver: &'static Library,
        context: Context,
        device: i32,
    ) -> Result<Arc<Self>, Error> {
        let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
        let id = context.number(driver).ok();
        let here = |lane: &&Arc<Self>| lane.context == context;
        match lanes.iter().find(here) {
            Some(lane) if lane.id == id => return Ok(Arc::clone(lane)),
            // What it was is gone.
            Some(_) => lanes.retain(|lane| !here(&lane)),
            None => {}
        }
        let _entered = context.enter(driver)?;
        let to_host = Stream::new(driver)?;
        let streams = [to_host, Stream::new(driver)?];
        let lane = Arc::new(Self {
            driver,
            context,
            device,
            id,
            streams,
            between: [const { OnceLock::new() }; 2],
            events: Mutex::default(),
        });
        lanes.push(Arc::clone(&lane));
        Ok(lane)
    }

    /// Makes a new one next time: the context is gone, or another one has its handle.
    pub(crate) fn give_up(self: &Arc<Self>) {
        let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| !Arc::ptr_eq(lane, self));
    }

    /// Makes its context the thread's one, if that is still the one in which its streams and events were made. They are
    /// gone with it, and no call may name them in the next one.
    pub(crate) fn enter(&self) -> Result<Entered, Error> {
        let entered = self.context.enter(self.driver)?;
        if let Some(own) = self.context_id() {
            own.expect(self.driver, self.context)?;
        }
        Ok(entered)
    }

    /// The ordinal of its device.
    pub(crate) fn device(&self) -> i32 {
        self.device
    }

    /// The number of its context. None: the driver does not tell it.
    pub(crate) fn context_id(&self) -> Option<ContextId> {
        let device = self.device;
        self.id.map(|number| ContextId { device, number })
    }

    fn stream(&self, direction: Direction) -> CUstream {
        self.streams[direction as usize].0
    }

    /// Starts a copy of `len` bytes between a chunk at `host` and memory of the device.
    ///
    /// # Safety
    /// The bytes at `host` are there until an event that is recorded behind the copy is complete. Nobody writes them
    /// until then, nor reads them if they come from the device. The program leaves the device's bytes to us as long.
    pub(crate) unsafe fn start(
        &self,
        direction: Direction,
        host: *mut u8,
        device: u64,
        len: usize,
    ) -> Result<(), Error> {
        let driver = self.driver;
        let _entered = self.enter()?;
        let stream = self.stream(direction);
        let (code, call) = match direction {
            Direction::ToHost => {
                // SAFETY: by the contract of this function.
                let code = unsafe { (driver.cuMemcpyDtoHAsync)(host.cast(), device, len, stream) };
                (code, "cuMemcpyDtoHAsync")
            }
            Direction::ToDevice => {
                let host = host.cast_const().cast();
                // SAFETY: by the contract of this function.
                let code = unsafe { (driver.cuMemcpyHtoDAsync)(device, host, len, stream) };
                (code, "cuMemcpyHtoDAsync")
            }
        };
        check(driver, code, call, || format!("{len} bytes at {device:#x}"))
    }

    /// A stream of copies between devices.
    fn between(&self, which: Between) -> Result<CUstream, Error> {
        let place = &self.between[which as usize];
        if let Some(stream) = place.get() {
            return Ok(stream.0);
        }
        let _entered = self.enter()?;
        let made = Stream::new(self.driver)?;
        // One that another thread has made meanwhile stays; this one then ends with the context.
        Ok(place.get_or_init(|| made).0)
    }

    /// Starts a copy of `len` bytes to memory of the device, from its own or a mapping of another one's. `context`:
    /// that of the memory's device, if it is another device's and of this process.
    ///
    /// # Safety
    /// The bytes at `from` are there, and nobody reads or writes those at `to`, until an event that is recorded behind
    /// the copy is complete.
    pub(crate) unsafe fn start_between(
        &self,
        which: Between,
        (to, from): (u64, u64),
        len: usize,
        context: Option<Context>,
    ) -> Result<(), Error> {
        let driver = self.driver;
        let stream = self.between(which)?;
        let _entered = self.enter()?;
        let (code, call) = match context {
            None => {
                // SAFETY: by the contract of this function.
                let code = unsafe { (driver.cuMemcpyDtoDAsync)(to, from, len, stream) };
                (code, "cuMemcpyDtoDAsync")
            }
            Some(other) => {
                // SAFETY: by the contract of this function.
                let code = unsafe {
                    (driver.cuMemcpyPeerAsync)(to, self.context.0, from, other.0, len, stream)
                };
                (code, "cuMemcpyPeerAsync")
            }
        };
        check(driver, code, call, || {
            format!("{len} bytes from {from:#x} to {to:#x}")
        })
    }

    /// Gives memory of another process's pool back, behind all copies of messages so far. It waits for nothing.
    ///
    /// # Safety
    /// An imported allocation that nobody else uses, and that is given back once.
    pub(crate) unsafe fn free_between(&self, address: u64) -> Result<(), Error> {
        let driver = self.driver;
        let call = "cuMemFreeAsync";
        let free = needed(driver.cuMemFreeAsync, call)?;
        let stream = self.between(Between::Message)?;
        let _entered = self.enter()?;
        // SAFETY: by the contract of this function; a stream of the context that was just entered.
        let code = unsafe { free(address, stream) };
        check(driver, code, call, || {
            format!("the imported allocation at {address:#x}")
        })
    }

    /// Marks the place behind all such copies so far.
    pub(crate) fn mark_between(self: &Arc<Self>, which: Between) -> Result<Event, Error> {
        let stream = self.between(which)?;
        self.mark_in(stream)
    }

    /// Whether all such copies so far are done.
    pub(crate) fn is_idle(&self, which: Between) -> Result<bool, Error> {
        let driver = self.driver;
        let stream = self.between(which)?;
        let _entered = self.enter()?;
        // SAFETY: a stream of the context that was just entered.
        let code = unsafe { (driver.cuStreamQuery)(stream) };
        if code == CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        check(driver, code, "cuStreamQuery", || "a stream of ours".into())?;
        Ok(true)
    }

    /// Marks the place behind all copies in a direction so far.
    pub(crate) fn mark(self: &Arc<Self>, direction: Direction) -> Result<Event, Error> {
        self.mark_in(self.stream(direction))
    }

    fn mark_in(self: &Arc<Self>, stream: CUstream) -> Result<Event, Error> {
        let driver = self.driver;
        let _entered = self.enter()?;
        let kept = self
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let raw = match kept {
            Some(raw) => raw,
            None => RawEvent::new(driver)?,
        };
        let event = Event {
            raw,
            lane: Arc::clone(self),
        };
        // SAFETY: an event and a stream of this context.
        let code = unsafe { (driver.cuEventRecord)(event.raw.0, stream) };
        check(driver, code, "cuEventRecord", || "a stream of ours".into())?;
        Ok(event)
    }
}

impl Stream {
    /// One that waits for no other stream, and none for it.
    fn new(driver: &Library) -> Result<Self, Error> {
        let mut stream = null_mut();
        // SAFETY: the place for the answer is ours; the caller has entered a context.
        let code = unsafe { (driver.cuStreamCreate)(&raw mut stream, CU_STREAM_NON_BLOCKING) };
        check(driver, code, "cuStreamCreate", || "a stream of ours".into())?;
        Ok(Self(stream))
    }
}

impl RawEvent {
    fn new(driver: &Library) -> Result<Self, Error> {
        let mut event = null_mut();
        // SAFETY: the place for the answer is ours; the caller has entered a context.
        let code = unsafe { (driver.cuEventCreate)(&raw mut event, CU_EVENT_DISABLE_TIMING) };
        check(driver, code, "cuEventCreate", || "an event of ours".into())?;
        Ok(Self(event))
    }
}

impl Event {
    /// Whether all before it is done.
    pub(crate) fn is_done(&self) -> Result<bool, Error> {
        let driver = self.lane.driver;
        let _entered = self.lane.enter()?;
        // SAFETY: an event of ours that was recorded.
        let code = unsafe { (driver.cuEventQuery)(self.raw.0) };
        if code == CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        check(driver, code, "cuEventQuery", || {
            "a copy of device memory".into()
        })?;
        Ok(true)
    }
}

impl Drop for Event {
    /// It is recorded again by the next one: what was before it is of no interest then.
    fn drop(&mut self) {
        let raw = RawEvent(std::mem::replace(&mut self.raw.0, null_mut()));
        let mut events = self
            .lane
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        events.push(raw);
    }
}
