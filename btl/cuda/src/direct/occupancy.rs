// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a device copies now, or a kernel of the program occupies it.
//!
//! A copy between addresses of one device may need its processors, and nobody can take back one that has begun. So a
//! short one between addresses of ours goes before, and is seen to end within one call.
//!
//! # Safety
//! The memory is ours, allocated once in a context and never given back. It is used in that context alone, since in a
//! later one the program may have memory there. Nobody else knows it, and nobody reads what is in it. The place for the
//! driver's answer is ours.
#![allow(unsafe_code, reason = "memory of ours in a device")]

use super::helper;
use super::{PATIENCE, reason};
use crate::context::ContextId;
use crate::error::{Error, check};
use crate::lane::{Between, Event, Lane};
use crate::pipeline::lock;
use cuda_sys::Library;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of ours in each device: the copy goes from one half to the other.
const SCRATCH: usize = 512;

/// A copy that has not ended within this time is looked at again later. Chosen by magnitude: one takes about ten
/// microseconds where nothing else is to do, and no message of the caller moves meanwhile.
const WITHIN: Duration = Duration::from_micros(200);

/// A message waits no longer for others that the device copies. Chosen by magnitude: within a second a device copies
/// more than most have.
const OTHERS: Duration = Duration::from_secs(1);

/// What is known of a device, while it has this context.
pub(super) struct Device {
    context: ContextId,
    state: Mutex<State>,
    copies: Mutex<Copies>,
}

/// Copies of messages that a device has begun.
struct Copies {
    count: usize,
    /// When one began or ended last.
    changed: Instant,
}

/// A copy of a message that a device has begun, until it is dropped.
pub(super) struct Counted(Arc<Device>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count(|copies| copies.count -= 1);
    }
}

enum State {
    /// The memory is being allocated, since then.
    Preparing(Instant),
    Ready {
        scratch: u64,
        /// A copy that has not ended yet, and when it began.
        begun: Option<(Event, Instant)>,
    },
    Refused(Arc<str>),
}

/// What a device was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It copies.
    Free,
    /// That is not known yet.
    NotYet,
    /// Nor is this, while it copies other messages.
    Behind,
    /// It does not copy, as far as can be told.
    Not(Arc<str>),
}

static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

impl Device {
    /// The device of a context, which is made ready if it is the first time. An error: why it
    /// cannot be now.
    pub(super) fn of(driver: &'static Library, context: ContextId) -> Result<Arc<Self>, Arc<str>> {
        let mut devices = lock(&DEVICES);
        if let Some(device) = devices.iter().find(|device| device.context == context) {
            return Ok(Arc::clone(device));
        }
        // What was there before is gone with its context.
        devices.retain(|device| device.context.device != context.device);
        let device = Arc::new(Self {
            context,
            state: Mutex::new(State::Preparing(Instant::now())),
            copies: Mutex::new(Copies {
                count: 0,
                changed: Instant::now(),
            }),
        });
        let prepared = Arc::clone(&device);
        helper::ask(Box::new(move || prepared.prepare(driver)))?;
        devices.push(Arc::clone(&device));
        Ok(device)
    }

    fn count(&self, change: impl FnOnce(&mut Copies)) {
        let mut copies = lock(&self.copies);
        change(&mut copies);
        copies.changed = Instant::now();
    }

    /// It begins a copy of a message.
    pub(super) fn begins(self: &Arc<Self>) -> Counted {
        self.count(|copies| copies.count += 1);
        Counted(Arc::clone(self))
    }

    /// Whether it copies messages, as far as can be told.
    fn is_busy(&self) -> bool {
        let copies = lock(&self.copies);
        copies.count > 0 && copies.changed.elapsed() < OTHERS
    }

    /// Allocates its memory. That may wait for it.
    fn prepare(&self, driver: &'static Library) {
        *lock(&self.state) = match allocate(driver, self.context) {
            Ok(scratch) => State::Ready {
                scratch,
                begun: None,
            },
            Err(error) => State::Refused(reason(&error)),
        };
    }

    /// Asks it. `lane`: of the context that all of the process share on it.
    pub(super) fn find(&self, lane: &Arc<Lane>) -> Result<Found, Error> {
        let mut state = lock(&self.state);
        let (scratch, begun) = match &mut *state {
            State::Preparing(since) if since.elapsed() < PATIENCE => return Ok(Found::NotYet),
            State::Preparing(_) => {
                return Ok(Found::Not("cuMemAlloc waits for the device".into()));
            }
            State::Refused(why) => return Ok(Found::Not(Arc::clone(why))),
            State::Ready { scratch, begun } => (*scratch, begun),
        };
        if let Some((event, since)) = begun {
            if !event.is_done()? {
                if self.is_busy() {
                    *since = Instant::now();
                    return Ok(Found::Behind);
                }
                return Ok(match since.elapsed() < PATIENCE {
                    true => Found::NotYet,
                    false => Found::Not("the device is occupied, and copies nothing".into()),
                });
            }
            *begun = None;
        }
        let half = SCRATCH / 2;
        let places = (scratch + half as u64, scratch);
        // SAFETY: both halves are ours, for ever, and what is in them is of no interest.
        unsafe { lane.start_between(Between::Probe, places, half, None) }?;
        let event = lane.mark_between(Between::Probe)?;
        let since = Instant::now();
        loop {
            if event.is_done()? {
                return Ok(Found::Free);
            }
            if since.elapsed() >= WITHIN {
                break;
            }
            std::thread::yield_now();
        }
        *begun = Some((event, since));
        Ok(Found::NotYet)
    }
}

/// Memory of ours in a device.
fn allocate(driver: &'static Library, context: ContextId) -> Result<u64, Error> {
    let _entered = context.enter(driver)?;
    let mut address = 0;
    let bytes = SCRATCH;
    // SAFETY: the place for the answer is ours.
    let code = unsafe { (driver.cuMemAlloc)(&raw mut address, bytes) };
    check(driver, code, "cuMemAlloc", || {
        format!("{bytes} bytes of ours")
    })?;
    Ok(address)
}
