// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host memory through which bytes go to and from devices: a pool of chunks that devices can reach.
//!
//! The memory is ours, and registered with the driver when it is first used. To let the driver allocate it could wait
//! for kernels of the program, and so could giving it back; so it is never given back. Where the driver refuses to
//! register it, it is used as it is: then the driver copies once more.
//!
//! # Safety
//! A region is mapped once and never unmapped. A chunk is a part of it, with one owner at any time. It goes back to the
//! pool with the events behind its copies, and comes out again only when these are complete.
#![allow(unsafe_code, reason = "memory that a device reads and writes")]

use crate::context::lasting;
use crate::error::{Error, check};
use crate::lane::Event;
use cuda_sys::{CU_MEMHOSTREGISTER_PORTABLE, Library};
use onecopy_shm::copy::{copy_from_raw, copy_to_raw};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 512 << 10;
/// Chunks of a region.
const CHUNKS: usize = 8;
/// Regions at most: another one is made only when copies that failed have taken all chunks of those before.
const REGIONS: usize = 8;

/// A chunk.
#[derive(Debug)]
pub(crate) struct Chunk(NonNull<u8>);

// SAFETY: a part of a region that lives for ever, with one owner.
unsafe impl Send for Chunk {}

struct Pool {
    free: Vec<Chunk>,
    /// Chunks that devices still use, with what says for how long.
    busy: Vec<(Chunk, Vec<Event>)>,
    regions: usize,
    /// Chunks that have an owner.
    out: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: Vec::new(),
    busy: Vec::new(),
    regions: 0,
    out: 0,
});

impl Pool {
    /// Looks which chunks devices are done with.
    fn sweep(&mut self) {
        let mut still = Vec::with_capacity(self.busy.len());
        for (chunk, mut events) in self.busy.drain(..) {
            let mut lost = false;
            events.retain(|event| {
                event.is_done().map_or_else(
                    |_| {
                        lost = true;
                        false
                    },
                    |done| !done,
                )
            });
            match (lost, events.is_empty()) {
                // Nobody knows when a device stops to use it.
                (true, _) => {}
                (false, true) => self.free.push(chunk),
                (false, false) => still.push((chunk, events)),
            }
        }
        self.busy = still;
    }
}

/// A chunk, if one is free now. The thread is in a context.
pub(crate) fn take(driver: &'static Library) -> Result<Option<Chunk>, Error> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.free.is_empty() {
        pool.sweep();
    }
    if pool.free.is_empty() && pool.busy.is_empty() && pool.out == 0 {
        if pool.regions == REGIONS {
            let about = format!("{} bytes", REGIONS * CHUNKS * CHUNK);
            let reason = "copies that failed may still use all of it";
            return Err(Error::ours("the staging pool", about, reason));
        }
        let region = region(driver)?;
        pool.regions += 1;
        pool.free.extend(region);
    }
    let chunk = pool.free.pop();
    pool.out += usize::from(chunk.is_some());
    Ok(chunk)
}

/// Gives a chunk back: `events` are those behind its copies.
pub(crate) fn give_back(chunk: Chunk, events: Vec<Event>) {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.out -= 1;
    match events.is_empty() {
        true => pool.free.push(chunk),
        false => pool.busy.push((chunk, events)),
    }
}

/// Gives a chunk up: nobody knows whether a device still uses it.
pub(crate) fn lose(chunk: Chunk) {
    let Chunk(_) = chunk;
    POOL.lock().unwrap_or_else(PoisonError::into_inner).out -= 1;
}

/// New chunks.
fn region(driver: &'static Library) -> Result<Vec<Chunk>, Error> {
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
    let chunk = |index: usize| Chunk(unsafe { at.add(index * CHUNK) });
    Ok((0..CHUNKS).map(chunk).collect())
}

impl Chunk {
    /// The address of a byte.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= CHUNK);
        // SAFETY: inside of the chunk, or just behind it.
        unsafe { self.0.as_ptr().add(offset) }
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
}
