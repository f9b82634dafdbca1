// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of device memory in pieces: while one piece is sent or received, a device copies others.
//!
//! A [`Source`] brings the bytes of a send to the host, a [`Sink`] takes those of a receive away. Each has two sides.
//! The mover of messages asks for bytes or room, and calls no driver. A thread with time calls `advance`, which does.
//!
//! Between the two stand *pieces* of host memory. A piece is a chunk that was reserved from the device's pool. Where
//! none can be reserved it is a short one of plain memory. Its copy passes through any chunk, which is taken for that
//! copy alone. So each message moves on by itself, whatever the others keep.

mod sink;
mod source;

pub use sink::Sink;
pub use source::Source;

use crate::copies::locate;
use crate::error::Error;
use crate::lane::{Direction, Lane};
use crate::staging::{self, Chunk};
use cuda_sys::Library;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Pieces of a message that are under way or wait at once: one is sent or filled, the others are copied meanwhile. As
/// many as copies of calls have, for the same reason: 2 MiB each way.
const DEPTH: usize = 4;
/// Bytes of a piece of plain memory. Chosen by magnitude: it is what each message may take beside the pools, and its
/// copy takes about as long as to start it.
const SPARE: usize = 64 << 10;

/// What a source or a sink does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// There are more bytes, or more room, than before.
    Moved,
    /// It waits for a device, or for a chunk.
    Waits,
    /// Nothing, until it is asked for something.
    Rests,
}

/// Whether a device is done with the program's memory.
pub type Settled = Option<Result<(), Error>>;

enum Memory {
    Chunk(Chunk),
    Plain(Vec<u8>),
}

/// Bytes of a message in the host.
struct Piece {
    memory: Memory,
    start: u64,
    len: usize,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Chunk(chunk) => chunk.bytes(self.len),
            Memory::Plain(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Chunk(chunk) => chunk.bytes_mut(self.len),
            Memory::Plain(bytes) => bytes,
        }
    }

    /// One of plain memory. `None`: there is none.
    fn plain(start: u64, len: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        Some(Self {
            memory: Memory::Plain(bytes),
            start,
            len,
        })
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The other side of a lock that only one thread needs at a time.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn no_memory(len: usize) -> Error {
    Error::ours(
        "a copy",
        format!("{len} bytes"),
        "there is no memory to stage them in",
        staging::NO_MEMORY_REMEDY,
    )
}

/// As [`crate::copies::Runs`], for as long as they are asked for.
type KeptRuns = dyn FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) + Send;

/// The program's buffer, as the driver sees it.
struct Buffer {
    runs: Box<KeptRuns>,
    /// The lane of its first byte.
    lane: Option<Arc<Lane>>,
}

impl Buffer {
    /// A chunk to keep for bytes from `start` on, if one can be had.
    fn reserve(
        &mut self,
        driver: &'static Library,
        start: u64,
        direction: Direction,
    ) -> Result<Option<Chunk>, Error> {
        let lane = match &self.lane {
            Some(lane) => lane,
            None => {
                let located = locate(driver, &mut *self.runs, start..start + 1)?;
                self.lane.insert(located.lane)
            }
        };
        let _entered = lane.enter()?;
        staging::reserve(driver, lane.device(), direction)
    }
}
