// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message from device to device by one copy, without memory of the host between them.
//!
//! The buffer of a send may be offered ([`Offering`]), to a receive of the same process or of another one. What another
//! one is told the driver is asked for before the send begins, and only if it goes to one of the node. The buffer
//! of a receive that lies in a device, too, fetches the bytes itself ([`Fetch`]). As with the pieces of a message, the
//! mover of messages calls no driver, and a thread with time calls [`Fetch::advance`].
//!
//! # Safety
//! The program's memory is written from the first `advance` on until the fetch is settled. The caller that makes one
//! answers for that memory as long. What is read is a buffer of this process, which is kept until the copy is over, or
//! a mapping, which stays open as long.
#![allow(unsafe_code, reason = "memory of the program")]

mod export;
mod handle;
mod helper;
mod identity;
mod mappings;
mod occupancy;
pub(crate) mod offer;
mod opening;
mod process;

pub use mappings::{close_all, forget};
pub use offer::{BYTES, Offering, Shown};

use crate::context::{Context, ContextId, primary};
use crate::copies::in_process;
use crate::error::Error;
use crate::lane::{Between, Event, Lane};
use crate::memory::{self, Allocation, Kind};
use crate::pipeline::{Activity, Settled, lock, try_lock};
use cuda_sys::Library;
use mappings::{Look, Mapping};
use occupancy::{Counted, Device, Found};
use offer::Reading;
use onecopy_shm::sync::{AtomicUsize, Ordering};
use opening::Key;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A message waits no longer for what may wait for a device. Chosen by magnitude: opening takes milliseconds, the first
/// time tens of them. A kernel that waits for the message lets it take this long once, then it is staged.
const PATIENCE: Duration = Duration::from_millis(50);

/// Mappings at most. None until that is set, as the user is to permit copies within a device.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Sets how many allocations of peers may be open; zero: nothing goes from device to device. Each may hold memory of a
/// device that its owner has freed.
pub fn set_bound(most: usize) {
    MOST.store(most, Ordering::Relaxed);
}

fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}

/// Whether messages may go from device to device at all.
fn is_on() -> bool {
    most() > 0
}

fn reason(error: &Error) -> Arc<str> {
    error.to_string().into()
}

/// Who offers.
#[derive(Clone, Copy, Debug)]
pub enum By<'p> {
    /// A buffer of this process.
    Own,
    /// Another process, which is this one's peer of that number. A descriptor of it, if there is one.
    Peer(u32, Option<BorrowedFd<'p>>),
}

/// How a fetch ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All is there.
    All,
    /// Nothing was copied, for this reason.
    Declined(Arc<str>),
    /// The copy has failed.
    Failed(Error),
}

/// Where the bytes of a fetch are.
enum Origin {
    Own { reading: Reading, address: u64 },
    Peer { peer: u32, shown: Box<Shown> },
}

/// What keeps the bytes in place until a copy is over.
enum Keep {
    Reading(#[expect(dead_code, reason = "kept, not used")] Reading),
    Mapping(Arc<Mapping>),
}

enum Step {
    /// Nothing was looked at.
    Begin(Origin),
    /// It waits until the bytes are in reach, and the device is free.
    Wait(Waiting),
    /// A device copies.
    Copy(Copying),
}

/// What has begun in a lane: a copy, or only that memory is given back.
struct Copying {
    lane: Arc<Lane>,
    /// Behind it. None: there was none to be had, or it cannot be asked.
    event: Option<Event>,
    keep: Keep,
    /// Since when the driver is asked once more to take memory of a pool back.
    refused: Option<Instant>,
    /// None: no copy has begun.
    #[expect(dead_code, reason = "kept, not used")]
    counted: Option<Counted>,
    /// What it means for the fetch when it is over.
    end: End,
}

impl Copying {
    /// Whether it is over, and what was open for it given back. An error: its context is over. While nobody knows, it
    /// is not.
    fn look(&mut self) -> Settled {
        match self.look_in_lane()? {
            Ok(()) => self.look_at_mapping(),
            error => Some(error),
        }
    }

    /// Whether memory of a pool is given back. What the driver has refused behind the copy it is asked for again, as
    /// its owner may free the memory when the message is over.
    fn look_at_mapping(&mut self) -> Settled {
        let Keep::Mapping(mapping) = &self.keep else {
            return Some(Ok(()));
        };
        if !mapping.is_lent() {
            return Some(Ok(()));
        }
        let since = *self.refused.get_or_insert_with(Instant::now);
        match mapping.give_back(&self.lane) {
            Ok(()) => {
                self.event = self.lane.mark_between(Between::Message).ok();
                None
            }
            Err(error) if error.ends_context() => Some(Err(error)),
            Err(_) if since.elapsed() < PATIENCE => None,
            // The helper asks by a call that may wait for the device, and so for this message.
            Err(_) => Some(Ok(())),
        }
    }

    /// Whether what has begun in the lane is over.
    fn look_in_lane(&mut self) -> Settled {
        let _entered = match self.lane.enter() {
            Ok(entered) => entered,
            Err(error) => return error.ends_context().then_some(Err(error)),
        };
        if let Some(event) = &self.event {
            match event.is_done() {
                Ok(done) => return done.then_some(Ok(())),
                Err(error) if error.ends_context() => return Some(Err(error)),
                Err(_) => self.event = None,
            }
        }
        match self.lane.is_idle(Between::Message) {
            Ok(true) => Some(Ok(())),
            Err(error) if error.ends_context() => Some(Err(error)),
            // Copies of later messages keep the stream at work, but hold no event up that is recorded before them.
            Ok(false) | Err(_) => {
                self.event = self.lane.mark_between(Between::Message).ok();
                None
            }
        }
    }

    /// It has failed, and its context with it. In that one the mapping cannot be closed.
    fn lost(self, error: Error) -> Stepped {
        if let Keep::Mapping(mapping) = self.keep {
            std::mem::forget(mapping);
        }
        Stepped::Ends(match self.end {
            End::Declined(why) => End::Declined(why),
            _ => End::Failed(error),
        })
    }
}

struct Waiting {
    keep: Keep,
    /// Where the bytes begin: an address, or a place in the mapping.
    from: u64,
    lane: Arc<Lane>,
    /// The context that copies. What is in reach is so in this one alone.
    own: ContextId,
    /// That of the bytes' device, if it is another one's of this process.
    context: Option<Context>,
    device: Arc<Device>,
    since: Instant,
}

struct Job {
    len: u64,
    step: Step,
}

/// What those who receive see.
enum Shared {
    Idle,
    /// Accepted; nobody has begun.
    Accepted(Box<Job>),
    /// Somebody advances it. `closed`: nothing is to begin any more.
    Working {
        closed: bool,
    },
    Over(End),
}

/// The buffer of a receive, as it fetches a message by itself.
pub struct Fetch {
    /// Where the buffer begins, and its bytes; none: it is in several runs.
    room: Option<(u64, u64)>,
    shared: Mutex<Shared>,
    /// What is being done. The thread that advances it has the lock.
    job: Mutex<Option<Box<Job>>>,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a fetch to {:x?}", self.room)
    }
}

/// How a step of a job has left it.
enum Stepped {
    Goes(Step),
    /// It goes on at once.
    On(Step),
    Ends(End),
}

impl Fetch {
    /// A fetch to a buffer of so many bytes at an address, if it is in one run.
    ///
    /// # Safety
    /// That is memory of the program which it lets us write until [`Self::settled`] says that it is its own again.
    #[must_use]
    pub unsafe fn new(room: Option<(u64, u64)>) -> Self {
        Self {
            room,
            shared: Mutex::new(Shared::Idle),
            job: Mutex::default(),
        }
    }

    /// Accepts an offer, of which the first `len` bytes are wanted. `false`: it is none for this buffer.
    pub fn accept(&self, by: By<'_>, offer: &[u8], len: u64) -> bool {
        let fits = self.room.is_some_and(|(_, room)| len <= room);
        if !fits || len == 0 || !is_on() {
            return false;
        }
        let origin = match by {
            By::Own => {
                Reading::of(offer, len).map(|(reading, address)| Origin::Own { reading, address })
            }
            By::Peer(peer, process) => Shown::decode(offer, len).map(|shown| {
                if shown.handle.fd().is_some() {
                    process::know(peer, process);
                }
                let shown = Box::new(shown);
                Origin::Peer { peer, shown }
            }),
        };
        let Some(origin) = origin else { return false };
        let mut shared = lock(&self.shared);
        if !matches!(*shared, Shared::Idle) {
            return false;
        }
        let step = Step::Begin(origin);
        *shared = Shared::Accepted(Box::new(Job { len, step }));
        true
    }

    /// How it has ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        match &*lock(&self.shared) {
            Shared::Over(end) => Some(end.clone()),
            _ => None,
        }
    }

    /// Begins nothing more. What has begun goes on.
    pub fn close(&self) {
        let mut shared = lock(&self.shared);
        match &mut *shared {
            Shared::Working { closed } => *closed = true,
            Shared::Accepted(_) => {
                *shared = Shared::Over(End::Declined("the receive is over".into()))
            }
            Shared::Idle | Shared::Over(_) => {}
        }
    }

    /// Whether no device writes the program's memory.
    #[must_use]
    pub fn settled(&self) -> Settled {
        match &*lock(&self.shared) {
            Shared::Accepted(_) | Shared::Working { .. } => None,
            Shared::Over(End::Failed(error)) => Some(Err(error.clone())),
            Shared::Idle | Shared::Over(End::All | End::Declined(_)) => Some(Ok(())),
        }
    }

    /// Goes on with what was accepted.
    pub fn advance(&self) -> Activity {
        let Some(mut place) = try_lock(&self.job) else {
            return Activity::Waits;
        };
        if place.is_none() {
            let mut shared = lock(&self.shared);
            if !matches!(*shared, Shared::Accepted(_)) {
                return Activity::Rests;
            }
            let working = Shared::Working { closed: false };
            if let Shared::Accepted(job) = std::mem::replace(&mut *shared, working) {
                *place = Some(job);
            }
        }
        let Some(mut job) = place.take() else {
            return Activity::Rests;
        };
        let end = loop {
            let step = match self.step(job.step, job.len) {
                Ok(Stepped::On(step)) => step,
                Ok(Stepped::Goes(step)) => {
                    job.step = step;
                    *place = Some(job);
                    return Activity::Waits;
                }
                Ok(Stepped::Ends(end)) => break end,
                // Nothing has begun.
                Err(error) => break End::Declined(reason(&error)),
            };
            job.step = step;
        };
        *lock(&self.shared) = Shared::Over(end);
        Activity::Moved
    }

    fn is_closed(&self) -> bool {
        matches!(*lock(&self.shared), Shared::Working { closed: true })
    }

    fn step(&self, step: Step, len: u64) -> Result<Stepped, Error> {
        let declined = |why: &str| Ok(Stepped::Ends(End::Declined(why.into())));
        match step {
            Step::Begin(_) if self.is_closed() => declined("the receive is over"),
            Step::Wait(waiting) if self.is_closed() => {
                Ok(waiting.give_up("the receive is over".into()))
            }
            Step::Begin(origin) => Ok(match self.begin(origin, len)? {
                Ok(waiting) => Stepped::On(Step::Wait(waiting)),
                Err(why) => Stepped::Ends(End::Declined(why)),
            }),
            Step::Wait(waiting) => self.wait(waiting, len),
            Step::Copy(mut copying) => Ok(match copying.look() {
                None => Stepped::Goes(Step::Copy(copying)),
                Some(Ok(())) => Stepped::Ends(copying.end),
                Some(Err(error)) => copying.lost(error),
            }),
        }
    }

    /// Looks where both buffers are, and asks for the mapping. The inner error: why that cannot be.
    fn begin(&self, origin: Origin, len: u64) -> Result<Result<Waiting, Arc<str>>, Error> {
        let driver = in_process()?;
        let to = match self
            .room
            .map(|(address, _)| in_device(driver, address, len))
        {
            Some(found) => found?,
            None => None,
        };
        let Some(to) = to else {
            return Ok(Err(
                "the buffer of the receive is not in one allocation of a device".into(),
            ));
        };
        let own = ContextId::of(driver, to.device)?;
        let lane = Lane::of(driver, primary(driver, to.device)?, to.device)?;
        let device = match Device::of(driver, own) {
            Ok(device) => device,
            Err(why) => return Ok(Err(why)),
        };
        let (from, keep, context) = match origin {
            Origin::Own { reading, address } => {
                let Some(from) = in_device(driver, address, len)? else {
                    return Ok(Err(
                        "the buffer of the send is not in one allocation of a device".into(),
                    ));
                };
                let both = from.is_of_a_context() && to.is_of_a_context();
                let is_other = from.device != to.device;
                if is_other && !(both && identity::reaches(driver, to.device, from.device)) {
                    return Ok(Err(out_of_reach(to.device, from.device)));
                }
                let context = is_other.then(|| primary(driver, from.device)).transpose()?;
                (address, Keep::Reading(reading), context)
            }
            Origin::Peer { peer, shown } => {
                let Some(device) = identity::find(driver, &shown.device) else {
                    return Ok(Err(format!(
                        "the device of rank {peer} is not visible to this process"
                    )
                    .into()));
                };
                if !identity::reaches(driver, to.device, device) {
                    return Ok(Err(out_of_reach(to.device, device)));
                }
                match mappings::get(driver, Key::of(peer, own, device, &shown)) {
                    Ok(mapping) => (shown.offset, Keep::Mapping(mapping), None),
                    Err(why) => return Ok(Err(why)),
                }
            }
        };
        Ok(Ok(Waiting {
            keep,
            from,
            lane,
            own,
            context,
            device,
            since: Instant::now(),
        }))
    }

    /// Begins the copy, if all is ready.
    fn wait(&self, mut waiting: Waiting, len: u64) -> Result<Stepped, Error> {
        let base = match waiting.look() {
            Ok(Ready::At(base)) => base,
            Ok(Ready::NotYet) => return Ok(Stepped::Goes(Step::Wait(waiting))),
            Ok(Ready::Never(why)) => return Ok(waiting.give_up(why)),
            Err(error) => return Ok(waiting.give_up(reason(&error))),
        };
        let Some((to, _)) = self.room else {
            return Ok(waiting.give_up("the buffer of the receive is in several runs".into()));
        };
        let (places, lane) = ((to, base + waiting.from), &waiting.lane);
        // SAFETY: the maker of this fetch answers for its buffer until it is settled, which it is not while it works.
        // What is read is kept: `begin` and the opener have looked that so many bytes are there.
        let started =
            unsafe { lane.start_between(Between::Message, places, len as usize, waiting.context) };
        if let Err(error) = started {
            if error.is_stale() {
                lane.give_up();
            }
            return Ok(waiting.give_up(reason(&error)));
        }
        let counted = waiting.device.begins();
        // From here on the device may touch both buffers, whatever the driver refuses.
        Ok(Stepped::On(waiting.behind(Some(counted), End::All)))
    }
}

/// What a fetch that waits may do.
enum Ready {
    /// The bytes are in reach, from this address on, and the device copies.
    At(u64),
    NotYet,
    Never(Arc<str>),
}

impl Waiting {
    fn look(&mut self) -> Result<Ready, Error> {
        // In another context the program has other memory where the mapping was, and the scratch memory.
        drop(self.own.enter(in_process()?)?);
        let base = match &self.keep {
            Keep::Reading(_) => 0,
            Keep::Mapping(mapping) => match mapping.look() {
                Look::At(base) => base,
                Look::Not(why) => return Ok(Ready::Never(why)),
                Look::NotYet => return Ok(Ready::NotYet),
            },
        };
        Ok(match self.device.find(&self.lane)? {
            Found::Free => Ready::At(base),
            Found::Not(why) => Ready::Never(why),
            Found::Behind => {
                self.since = Instant::now();
                Ready::NotYet
            }
            Found::NotYet if self.since.elapsed() < 2 * PATIENCE => Ready::NotYet,
            Found::NotYet => Ready::Never("the device is occupied again and again".into()),
        })
    }

    /// What was put into the lane is to be over before the fetch is. Memory of a pool is given back in the same queue.
    /// Its owner may free it once the message is over, and not while somebody has it open.
    fn behind(self, counted: Option<Counted>, end: End) -> Step {
        if let Keep::Mapping(mapping) = &self.keep {
            // What is refused here is asked for again behind the copy.
            let _ = mapping.give_back(&self.lane);
        }
        let event = self.lane.mark_between(Between::Message).ok();
        Step::Copy(Copying {
            lane: self.lane,
            event,
            keep: self.keep,
            refused: None,
            counted,
            end,
        })
    }

    /// Ends without a copy.
    fn give_up(self, why: Arc<str>) -> Stepped {
        let end = End::Declined(why);
        match &self.keep {
            Keep::Mapping(mapping) if mapping.is_lent() => Stepped::On(self.behind(None, end)),
            _ => Stepped::Ends(end),
        }
    }
}

fn out_of_reach(device: i32, other: i32) -> Arc<str> {
    format!("device {device} cannot use memory of device {other}").into()
}

/// The allocation of so many bytes, if it is one of a device, and of the context that all share or of none.
fn in_device(
    driver: &'static Library,
    address: u64,
    len: u64,
) -> Result<Option<Allocation>, Error> {
    let Some(found) = memory::of(address)? else {
        return Ok(None);
    };
    let is_whole = found.kind == Kind::Device && found.rest(address) >= len;
    Ok((is_whole && found.is_shared(driver)?).then_some(found))
}

/// How often the helper looks whether a copy is over whose fetch is gone. Chosen by magnitude: a long message takes as
/// long, and the helper's other tasks wait no longer for that.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Keeps what a device may read until the copy is over. The helper's thread does that.
fn outlive(mut copying: Copying) {
    match copying.look() {
        None => {
            std::thread::sleep(LOOK_AGAIN);
            helper::leave(Box::new(move || outlive(copying)));
        }
        Some(Ok(())) => {}
        Some(Err(error)) => drop(copying.lost(error)),
    }
}

impl Drop for Fetch {
    /// The thread may have entered the gate, where no driver is called.
    fn drop(&mut self) {
        let job = self
            .job
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(Job {
            step: Step::Copy(copying),
            ..
        }) = job.map(|job| *job)
        {
            helper::leave(Box::new(move || outlive(copying)));
        }
    }
}
