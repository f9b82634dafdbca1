// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that the processor cannot touch, as a device's memory: their bytes are *staged*, in pieces of host memory.
//!
//! The engine asks such a buffer for bytes or for room, and gets what is there now. It waits for nothing, and calls
//! no driver: a call may wait for a lock of the driver's that another thread of the program holds.
//! [`Staged::advance`] moves bytes between the pieces and the device. A thread that polls calls it between two rounds
//! of progress, outside of the gate ([`Stages::advance`]).

use onecopy_shm::loan::LoanError;
use onecopy_shm::sync::{AtomicBool, AtomicUsize, Ordering};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// What a staged buffer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Bytes have come, or room: the engine should look.
    Moved,
    /// A device has work, and rings no doorbell when that is done.
    Waits,
    /// Nothing, until the engine asks for something.
    Rests,
}

/// A buffer whose bytes are staged: that of one send, or of one receive. A send's bytes are asked for in their order,
/// unless a receiver asks again for what it has lost.
///
/// All but [`Self::advance`] are called by the engine, so they are short and call no driver.
pub trait Staged: Send + Sync + fmt::Debug {
    /// Bytes of the buffer.
    fn bytes(&self) -> u64;

    /// How many bytes of a send are here, from the beginning of `range` on. What is before it is not asked for again,
    /// as a rule; what is in it is wanted next.
    ///
    /// # Errors
    ///
    /// Why the bytes cannot be had.
    fn ready(&self, range: Range<u64>) -> Result<usize, Arc<str>>;

    /// Shows bytes that are [`ready`](Self::ready) to `to`, piece by piece, each with its offset among them. `false`:
    /// they are not here.
    fn show(&self, offset: u64, len: usize, to: &mut dyn FnMut(usize, &[u8])) -> bool;

    /// How many bytes of a receive have room, from the beginning of `range` on: that is kept for them. If there is none
    /// yet, room is wanted for as much of the range as can be had.
    ///
    /// # Errors
    ///
    /// Why there will be none.
    fn room(&self, range: Range<u64>) -> Result<u64, Arc<str>>;

    /// Lets `from` write bytes of a receive, piece by piece, each with its offset among them. They need no room that
    /// was asked for before, but should have. `false`: the buffer takes nothing more, since it has failed.
    fn take(&self, offset: u64, len: usize, from: &mut dyn FnMut(usize, &mut [u8])) -> bool;

    /// Moves bytes between the pieces and the buffer. It may call a driver, and is called outside of the engine.
    fn advance(&self) -> Activity;
}

/// A staged buffer of a request.
pub(crate) struct StagedBuf {
    buffer: Arc<dyn Staged>,
    stages: Arc<Stages>,
    listed: AtomicBool,
}

impl fmt::Debug for StagedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(f)
    }
}

impl StagedBuf {
    pub(crate) fn new(buffer: Arc<dyn Staged>, stages: &Arc<Stages>) -> Self {
        Self {
            buffer,
            stages: Arc::clone(stages),
            listed: AtomicBool::new(false),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// From the first time on that the engine asks for something, the buffer is advanced.
    fn list(&self) {
        if !self.listed.swap(true, Ordering::Relaxed) {
            self.stages.add(&self.buffer);
        }
    }

    /// As [`Staged::ready`].
    pub(crate) fn ready(&self, range: Range<u64>) -> Result<usize, Arc<str>> {
        self.list();
        self.buffer.ready(range)
    }

    /// As [`Staged::room`].
    pub(crate) fn room(&self, range: Range<u64>) -> Result<u64, Arc<str>> {
        self.list();
        self.buffer.room(range)
    }

    /// As [`Staged::show`].
    pub(crate) fn show(
        &self,
        offset: u64,
        len: usize,
        mut to: impl FnMut(usize, &[u8]),
    ) -> Result<(), LoanError> {
        match self.buffer.show(offset, len, &mut to) {
            true => Ok(()),
            false => Err(LoanError::Ended),
        }
    }

    /// As [`Staged::take`].
    pub(crate) fn take(
        &self,
        offset: u64,
        len: usize,
        mut from: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), LoanError> {
        self.list();
        match self.buffer.take(offset, len, &mut from) {
            true => Ok(()),
            false => Err(LoanError::Ended),
        }
    }
}

/// The staged buffers of a rank whose bytes are under way.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// How many there are, for a look without the lock.
    count: AtomicUsize,
    list: Mutex<Vec<Weak<dyn Staged>>>,
    /// One thread at a time advances them.
    turn: Mutex<()>,
}

impl Stages {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Staged>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Advances one more, as long as its owner keeps it.
    pub(crate) fn add(&self, buffer: &Arc<dyn Staged>) {
        let mut list = self.lock();
        list.push(Arc::downgrade(buffer));
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// Advances all of them. The caller has not entered the gate.
    #[cold]
    pub(crate) fn advance(&self) -> Activity {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            // Another thread does it. It may take a while, so this one does not sleep meanwhile.
            Err(TryLockError::WouldBlock) => return Activity::Waits,
        };
        let all: Vec<Arc<dyn Staged>> = {
            let mut list = self.lock();
            list.retain(|buffer| buffer.strong_count() > 0);
            self.count.store(list.len(), Ordering::Relaxed);
            list.iter().filter_map(Weak::upgrade).collect()
        };
        let mut most = Activity::Rests;
        for buffer in all {
            most = match (most, buffer.advance()) {
                (Activity::Moved, _) | (_, Activity::Moved) => Activity::Moved,
                (Activity::Waits, _) | (_, Activity::Waits) => Activity::Waits,
                _ => Activity::Rests,
            };
        }
        most
    }
}
