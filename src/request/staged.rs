// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that the processor cannot touch, as a device's memory: their bytes are *staged*, in pieces of host memory.
//!
//! The engine asks such a buffer for bytes or for room, and gets what is there now. It waits for nothing, and calls
//! no driver: a call may wait for a lock of the driver's that another thread of the program holds.
//! [`Staged::advance`] moves bytes between the pieces and the device. A thread that polls calls it between two rounds
//! of progress, outside of the gate ([`Stages::advance`]).

use onecopy_shm::loan::LoanError;
use onecopy_shm::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
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

/// Bytes of an offer at most.
pub const OFFER_MAX: usize = 128;

/// Where an offer comes from.
#[derive(Clone, Copy, Debug)]
pub enum OfferedBy<'o> {
    /// A buffer of this process.
    Own,
    /// That of another rank, which shares memory with this one. Nothing in its offer is to be believed. With it its
    /// process, as who connected the two says, if that is known.
    Peer(u32, Option<BorrowedFd<'o>>),
}

/// What is offered to a receive.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'o> {
    /// Who offers.
    pub by: OfferedBy<'o>,
    /// The bytes.
    pub bytes: &'o [u8],
}

/// How far a buffer is that takes all bytes of a receive itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is at work.
    NotYet,
    /// All bytes are where they belong.
    All,
    /// None are, nor will be: the bytes are to come another way. And why.
    Declined(Arc<str>),
    /// It has failed, and so has the receive.
    Failed(Arc<str>),
}

/// A buffer whose bytes are staged: that of one send, or of one receive. A send's bytes are asked for in their order,
/// unless a receiver asks again for what it has lost.
///
/// A send may make an *offer*: bytes that tell the buffer of its receive how to fetch all of it by itself. The engine
/// carries them and does not look inside.
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

    /// What a send offers, in [`OFFER_MAX`] bytes at most: to a receive of this process, or to one of another rank.
    fn offer(&self, _own: bool) -> Option<Box<[u8]>> {
        None
    }

    /// Begins to fetch the first `len` bytes of what is offered to a receive. `false`: that is no offer for it.
    fn accept(&self, _offer: &Offer<'_>, _len: u64) -> bool {
        false
    }

    /// How far a receive is that has accepted an offer.
    fn taken(&self) -> Taken {
        Taken::Declined("it has accepted nothing".into())
    }
}

/// A staged buffer of a request.
pub(crate) struct StagedBuf {
    buffer: Arc<dyn Staged>,
    stages: Arc<Stages>,
    listed: Arc<AtomicBool>,
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
            listed: Arc::default(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// The buffer has something to do since it was just asked for something: it is advanced until it rests.
    fn list(&self) {
        // SYNC(stages.asked): release what was asked for
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.stages.put(Listed {
                buffer: Arc::downgrade(&self.buffer),
                listed: Some(Arc::clone(&self.listed)),
            });
        }
    }

    /// As [`Staged::ready`].
    pub(crate) fn ready(&self, range: Range<u64>) -> Result<usize, Arc<str>> {
        let ready = self.buffer.ready(range);
        self.list();
        ready
    }

    /// As [`Staged::room`].
    pub(crate) fn room(&self, range: Range<u64>) -> Result<u64, Arc<str>> {
        let room = self.buffer.room(range);
        self.list();
        room
    }

    /// As [`Staged::offer`].
    pub(crate) fn offer(&self, own: bool) -> Option<Box<[u8]>> {
        let offer = self.buffer.offer(own)?;
        debug_assert!(offer.len() <= OFFER_MAX);
        Some(offer)
    }

    /// As [`Staged::accept`].
    pub(crate) fn accept(&self, offer: &Offer<'_>, len: u64) -> bool {
        let accepted = self.buffer.accept(offer, len);
        if accepted {
            self.list();
        }
        accepted
    }

    /// As [`Staged::taken`].
    pub(crate) fn taken(&self) -> Taken {
        self.buffer.taken()
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
        let taken = self.buffer.take(offset, len, &mut from);
        self.list();
        match taken {
            true => Ok(()),
            false => Err(LoanError::Ended),
        }
    }
}

/// A staged buffer that may have something to do.
#[derive(Debug)]
struct Listed {
    buffer: Weak<dyn Staged>,
    /// Whether it is listed, as the engine knows it; none: it stays as long as its owner keeps it.
    listed: Option<Arc<AtomicBool>>,
}

/// How a staged buffer has moved.
struct Advance {
    activity: Activity,
    /// Whether it stays listed.
    stays: bool,
}

impl Listed {
    /// Moves what can be moved.
    fn advance(&self, buffer: &dyn Staged) -> Advance {
        let activity = buffer.advance();
        let (Activity::Rests, Some(listed)) = (activity, &self.listed) else {
            return Advance {
                activity,
                stays: true,
            };
        };
        // SYNC(stages.asked): acquire what the engine has asked for meanwhile
        listed.swap(false, Ordering::AcqRel);
        // The engine may have asked just before, and found it listed.
        let activity = buffer.advance();
        // If the engine has listed it again, it is there twice: once is enough.
        let stays = activity != Activity::Rests && !listed.swap(true, Ordering::AcqRel);
        Advance { activity, stays }
    }
}

/// The staged buffers of a rank whose bytes are under way.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// How many there are, for a look without the lock.
    count: AtomicUsize,
    list: Mutex<Vec<Listed>>,
    /// How many were listed so far; it wraps.
    added: AtomicU32,
    /// One thread at a time advances them.
    turn: Mutex<()>,
}

impl Stages {
    fn lock(&self) -> MutexGuard<'_, Vec<Listed>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// How many were listed so far: a thread that sleeps does not know of those since.
    #[inline(always)]
    pub(crate) fn added(&self) -> u32 {
        self.added.load(Ordering::Relaxed)
    }

    /// Advances one more, as long as its owner keeps it.
    pub(crate) fn add(&self, buffer: &Arc<dyn Staged>) {
        self.put(Listed {
            buffer: Arc::downgrade(buffer),
            listed: None,
        });
    }

    fn put(&self, listed: Listed) {
        let mut list = self.lock();
        list.push(listed);
        self.count.store(list.len(), Ordering::Relaxed);
        self.added.fetch_add(1, Ordering::Relaxed);
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
        // Others list more meanwhile, and no driver is called under the lock. What is given back goes behind these.
        let mut all = std::mem::take(&mut *self.lock());
        let mut most = Activity::Rests;
        all.retain(|listed| {
            let Some(buffer) = listed.buffer.upgrade() else {
                return false;
            };
            let Advance { activity, stays } = listed.advance(&*buffer);
            most = match (most, activity) {
                (Activity::Moved, _) | (_, Activity::Moved) => Activity::Moved,
                (Activity::Waits, _) | (_, Activity::Waits) => Activity::Waits,
                _ => Activity::Rests,
            };
            stays
        });
        let mut list = self.lock();
        list.append(&mut all);
        self.count.store(list.len(), Ordering::Relaxed);
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does a piece of work for each time that it is asked.
    #[derive(Debug, Default)]
    struct Asked {
        open: AtomicU32,
        served: AtomicU32,
    }

    impl Staged for Asked {
        fn bytes(&self) -> u64 {
            1
        }
        fn ready(&self, _: Range<u64>) -> Result<usize, Arc<str>> {
            self.open.fetch_add(1, Ordering::Relaxed);
            Ok(0)
        }
        fn show(&self, _: u64, _: usize, _: &mut dyn FnMut(usize, &[u8])) -> bool {
            false
        }
        fn room(&self, _: Range<u64>) -> Result<u64, Arc<str>> {
            Ok(0)
        }
        fn take(&self, _: u64, _: usize, _: &mut dyn FnMut(usize, &mut [u8])) -> bool {
            false
        }
        fn advance(&self) -> Activity {
            let found = self.open.swap(0, Ordering::Relaxed);
            self.served.fetch_add(found, Ordering::Relaxed);
            match found {
                0 => Activity::Rests,
                _ => Activity::Moved,
            }
        }
    }

    fn staged() -> (Arc<Stages>, Arc<Asked>, StagedBuf) {
        let (stages, asked) = (Arc::<Stages>::default(), Arc::<Asked>::default());
        let buffer = StagedBuf::new(Arc::clone(&asked) as _, &stages);
        (stages, asked, buffer)
    }

    #[test]
    fn a_buffer_is_looked_at_while_it_has_something_to_do() {
        let (stages, asked, buffer) = staged();
        assert!(!stages.any(), "nothing was asked");
        for turn in 1..=3 {
            buffer.ready(0..1).expect("no error");
            assert_eq!((stages.any(), stages.added()), (true, turn));
            assert_eq!(stages.advance(), Activity::Moved);
            assert!(stages.any(), "it may go on");
            assert_eq!(stages.advance(), Activity::Rests);
            assert!(!stages.any(), "it rests");
        }
        assert_eq!(asked.served.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_buffer_of_the_front_stays_as_long_as_it_is_kept() {
        let (stages, asked, _) = staged();
        let kept: Arc<dyn Staged> = asked;
        stages.add(&kept);
        assert_eq!(stages.advance(), Activity::Rests);
        assert!(stages.any());
        drop(kept);
        stages.advance();
        assert!(!stages.any());
    }

    /// The engine asks while another thread finds that the buffer rests.
    #[test]
    fn nothing_that_is_asked_is_missed() {
        const TIMES: u32 = 20_000;
        let (stages, asked, buffer) = staged();
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                for time in 1..=TIMES {
                    buffer.ready(0..1).expect("no error");
                    while asked.served.load(Ordering::Relaxed) < time {
                        let listed = stages.any();
                        let served = asked.served.load(Ordering::Relaxed);
                        assert!(listed || served == time, "it is listed until it is served");
                        std::thread::yield_now();
                    }
                }
            });
            while !asker.is_finished() {
                stages.advance();
            }
        });
    }
}
