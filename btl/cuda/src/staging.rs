// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host memory through which bytes go to and from devices: pools of chunks that devices can reach, one for each device.
//!
//! The memory is ours, and registered with the driver when it is first used. To let the driver allocate it could wait
//! for kernels of the program, and so could giving it back; so it is never given back. It grows by regions, up to a
//! bound ([`set_bound`]). A device that is stuck keeps the chunks of its own pool alone.
//!
//! A copy *takes* a chunk, and gives it back when the device is done: that depends on the device alone. A message that
//! is staged *reserves* chunks and keeps them until its peer has sent or taken their bytes. So reservations leave some
//! chunks to copies, and those for one direction leave as many to the other.
//!
//! # Safety
//! A region is mapped once and never unmapped. A chunk is a part of it, with one owner at any time. It goes back to the
//! pool with the events behind its copies, and comes out again only when these are complete.
#![allow(unsafe_code, reason = "memory that a device reads and writes")]

use crate::context::lasting;
use crate::error::{Error, check};
use crate::lane::{Direction, Event};
use cuda_sys::{CU_MEMHOSTREGISTER_PORTABLE, Library};
use onecopy_shm::copy::{copy_from_raw, copy_to_raw};
use onecopy_shm::sync::{AtomicUsize, Ordering};
use std::mem;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a chunk. Chosen by magnitude: a copy of so much takes some twenty microseconds, several times what it takes
/// to start it.
pub const CHUNK: usize = 512 << 10;
/// Chunks of a region, the step in which a pool grows. Chosen by magnitude: 2 MiB, what one message may use each way,
/// so that one call of the driver registers enough for it.
const CHUNKS: usize = 4;
/// Chunks that are not reserved: copies of calls take them, and those of messages that found none to reserve. Two is
/// the least with which the device copies one while the processor copies the other.
const KEPT: usize = 2;
/// The least bound: a region, of which each direction can reserve one chunk.
pub const LEAST: usize = CHUNKS * CHUNK;

const LOST_REMEDY: &str = "keep the context, and the device, until messages of its memory are complete; start the job anew";
/// What helps where the host has no memory to stage in.
pub(crate) const NO_MEMORY_REMEDY: &str =
    "free memory of the host, or permit more (ulimit -v), or lower ONECOPY_DEVICE_STAGING";

/// Chunks of a pool at most, beside those that are lost.
static MOST: AtomicUsize = AtomicUsize::new(8 * LEAST / CHUNK);

/// Sets how many bytes each device's pool may have, [`LEAST`] at least. Memory that copies have failed with is lost.
/// For that a pool may grow to twice as much.
pub fn set_bound(bytes: usize) {
    MOST.store(bytes.max(LEAST) / CHUNK, Ordering::Relaxed);
}

/// A chunk. If it is dropped, no device uses it.
#[derive(Debug)]
pub(crate) struct Chunk {
    at: NonNull<u8>,
    device: i32,
    reserved: Option<Direction>,
}

// SAFETY: a part of a region that lives for ever, with one owner.
unsafe impl Send for Chunk {}

#[derive(Default)]
struct Pool {
    device: i32,
    free: Vec<Place>,
    /// Chunks that the device still uses, with what says for how long.
    busy: Vec<(Place, Vec<Event>)>,
    /// Chunks that were made, and those of them that are lost.
    made: usize,
    lost: usize,
    /// Reserved chunks by direction.
    reserved: [usize; 2],
    /// The driver has refused a region more, once there were some: these must do.
    is_full: bool,
}

/// Where a chunk is.
struct Place(NonNull<u8>);

// SAFETY: as for chunks.
unsafe impl Send for Place {}

static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<Pool>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of a device.
fn pool(pools: &mut Vec<Pool>, device: i32) -> &mut Pool {
    let index = match pools.iter().position(|pool| pool.device == device) {
        Some(index) => index,
        None => {
            pools.push(Pool {
                device,
                ..Pool::default()
            });
            pools.len() - 1
        }
    };
    &mut pools[index]
}

impl Pool {
    /// Whether a region more is within the bound.
    fn may_grow(&self, most: usize) -> bool {
        !self.is_full && self.made + CHUNKS <= most + self.lost.min(most)
    }

    /// Whether one more chunk may be reserved in a direction, of those that there are: a region more may be refused.
    fn may_reserve(&self, direction: Direction) -> bool {
        let share = (self.made - self.lost).saturating_sub(KEPT) / 2;
        self.reserved[direction as usize] < share
    }
}

/// Looks which chunks the device is done with. The driver is asked while nothing is locked.
fn sweep(device: i32) {
    let busy = mem::take(&mut pool(&mut lock(), device).busy);
    let mut still = Vec::with_capacity(busy.len());
    let (mut free, mut lost) = (Vec::new(), 0);
    for (place, mut events) in busy {
        let mut unknown = false;
        events.retain(|event| {
            event.is_done().map_or_else(
                |_| {
                    unknown = true;
                    false
                },
                |done| !done,
            )
        });
        match (unknown, events.is_empty()) {
            // Nobody knows when a device stops to use it.
            (true, _) => lost += 1,
            (false, true) => free.push(place),
            (false, false) => still.push((place, events)),
        }
    }
    let mut pools = lock();
    let pool = pool(&mut pools, device);
    pool.free.append(&mut free);
    pool.busy.append(&mut still);
    pool.lost += lost;
}

/// A chunk for a copy that begins now, if one is free. The thread is in a context of the device.
pub(crate) fn take(driver: &'static Library, device: i32) -> Result<Option<Chunk>, Error> {
    get(driver, device, None)
}

/// A chunk for a message to keep, if one may be reserved and is free.
pub(crate) fn reserve(
    driver: &'static Library,
    device: i32,
    direction: Direction,
) -> Result<Option<Chunk>, Error> {
    get(driver, device, Some(direction))
}

fn get(
    driver: &'static Library,
    device: i32,
    reserved: Option<Direction>,
) -> Result<Option<Chunk>, Error> {
    let most = MOST.load(Ordering::Relaxed);
    let mut swept = false;
    loop {
        let mut pools = lock();
        let pool = pool(&mut pools, device);
        let permitted = reserved.is_none_or(|direction| pool.may_reserve(direction));
        if permitted && let Some(Place(at)) = pool.free.pop() {
            if let Some(direction) = reserved {
                pool.reserved[direction as usize] += 1;
            }
            return Ok(Some(Chunk {
                at,
                device,
                reserved,
            }));
        }
        if permitted && !swept {
            drop(pools);
            sweep(device);
            swept = true;
            continue;
        }
        if !pool.may_grow(most) {
            if pool.lost >= pool.made {
                let about = format!("{} bytes", pool.made * CHUNK);
                let reason = "copies that failed may still use all of it";
                return Err(Error::ours("the staging pool", about, reason, LOST_REMEDY));
            }
            return Ok(None);
        }
        pool.made += CHUNKS;
        drop(pools);
        let made = region(driver);
        let mut pools = lock();
        let pool = self::pool(&mut pools, device);
        match made {
            Ok(made) => pool.free.extend(made),
            Err(error) => {
                pool.made -= CHUNKS;
                // Copies wait for the chunks that there are, if devices use or messages keep some.
                if pool.made <= pool.lost {
                    return Err(error);
                }
                pool.is_full = true;
            }
        }
    }
}

/// Gives a chunk back: `events` are those behind its copies.
pub(crate) fn give_back(chunk: Chunk, events: Vec<Event>) {
    chunk.end(|pool, place| match events.is_empty() {
        true => pool.free.push(place),
        false => pool.busy.push((place, events)),
    });
}

/// Gives a chunk up: nobody knows whether a device still uses it.
pub(crate) fn lose(chunk: Chunk) {
    chunk.end(|pool, _| pool.lost += 1);
}

/// New chunks.
fn region(driver: &'static Library) -> Result<Vec<Place>, Error> {
    let len = CHUNKS * CHUNK;
    let _entered = lasting(driver)?.enter(driver)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    let Some(at) = NonNull::new(at).filter(|_| at != libc::MAP_FAILED) else {
        let reason = std::io::Error::last_os_error().to_string();
        return Err(Error::ours(
            "mmap",
            format!("{len} bytes to stage in"),
            &reason,
            NO_MEMORY_REMEDY,
        ));
    };
    // A child of a fork has no use for it, and a copy would move the parent's pages from under the device.
    // SAFETY: the memory that was just mapped.
    unsafe { libc::madvise(at.as_ptr(), len, libc::MADV_DONTFORK) };
    // SAFETY: as above; it is never unmapped once it is registered.
    let code = unsafe { (driver.cuMemHostRegister)(at.as_ptr(), len, CU_MEMHOSTREGISTER_PORTABLE) };
    // Copies to and from memory that is not registered would wait for the device.
    if let Err(error) = check(driver, code, "cuMemHostRegister", || {
        format!("{len} bytes to stage in")
    }) {
        // SAFETY: the memory that was just mapped, which nobody else knows.
        unsafe { libc::munmap(at.as_ptr(), len) };
        return Err(error);
    }
    let at = at.cast::<u8>();
    // SAFETY: each begins inside of the region.
    let place = |index: usize| Place(unsafe { at.add(index * CHUNK) });
    Ok((0..CHUNKS).map(place).collect())
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.put_back(|pool, place| pool.free.push(place));
    }
}

impl Chunk {
    fn put_back(&self, put: impl FnOnce(&mut Pool, Place)) {
        let mut pools = lock();
        let pool = pool(&mut pools, self.device);
        if let Some(direction) = self.reserved {
            pool.reserved[direction as usize] -= 1;
        }
        put(pool, Place(self.at));
    }

    fn end(self, put: impl FnOnce(&mut Pool, Place)) {
        self.put_back(put);
        mem::forget(self);
    }

    /// The address of a byte.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= CHUNK);
        // SAFETY: inside of the chunk, or just behind it.
        unsafe { self.at.as_ptr().add(offset) }
    }

    /// Copies bytes in.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= CHUNK);
        // SAFETY: inside of the chunk, which no device uses.
        unsafe { copy_to_raw(self.at(offset), bytes) };
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= CHUNK);
        // SAFETY: inside of the chunk, which no device writes.
        unsafe { copy_from_raw(self.at(offset), out) };
    }

    /// Its first bytes, which no device writes.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= CHUNK);
        // SAFETY: inside of the chunk; its memory was mapped as zeros. The owner shows it only while no device has it.
        unsafe { std::slice::from_raw_parts(self.at(0), len) }
    }

    /// The same, to be written.
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= CHUNK);
        // SAFETY: as above, by the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.at(0), len) }
    }
}
