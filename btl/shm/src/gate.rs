// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock around an engine: nothing but a thread check when one thread uses it, a lock when several do.
//!
//! # Safety
//! The value is reached only through a [`Pass`]. In single-threaded mode a pass is given only to the thread that made
//! the gate, and not while another pass exists. The thread is compared by an address of its own, which no two living
//! threads share. The `held` flag is touched by that thread alone. In multi-threaded mode passes exclude one another by
//! a lock bit with acquire and release ordering.
#![allow(unsafe_code, reason = "a lock, and whose thread this is")]

#[cfg(not(loom))]
use crate::fork;
use crate::sync::{AtomicU32, Ordering, yield_now};
#[cfg(not(loom))]
use crossbeam_utils::Backoff;
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// The models under loom do not fork.
#[cfg(loom)]
mod fork {
    pub(super) fn watch() {}
    pub(super) fn generation() -> u32 {
        0
    }
}

/// How many threads may use a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The thread that made it.
    Single,
    /// Any, at the same time.
    Multiple,
}

/// What stands behind a gate that several threads use.
pub trait Guarded {
    /// Called before the gate is given back, where several threads may use it.
    fn leave(&mut self) {}
}

/// Exclusive access to a `T`.
#[derive(Debug)]
pub struct Gate<T> {
    threads: Threads,
    /// The process, as [`fork::generation`] numbers it.
    process: u32,
    owner: usize,
    held: AtomicU32,
    /// Threads that found it held and wait for it.
    wanted: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: see the module's safety case.
unsafe impl<T: Send> Sync for Gate<T> {}

/// The right to use the value behind a gate.
#[derive(Debug)]
pub struct Pass<'g, T: Guarded> {
    gate: &'g Gate<T>,
}

std::thread_local! {
    /// This thread holds a gate and runs a function of the program.
    static CALLED_OUT: Cell<bool> = const { Cell::new(false) };
}

/// What a program must not do with a gate. It cannot be refused with an error: a thread that enters gets the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misuse {
    /// A second thread, of a gate for a single one.
    SecondThread,
    /// A function of the program that is called inside of the gate came to it again.
    Reentered,
}

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SecondThread => {
                "a runtime made with Threads::Single was used by a second thread; use Threads::Multiple"
            }
            Self::Reentered => {
                "a function of a reduction has called the library again: it may compute, and abort the job, but not communicate"
            }
        })
    }
}

static ON_MISUSE: OnceLock<fn(Misuse)> = OnceLock::new();

/// Sets what is called before a panic for misuse, in the thread concerned. A library for programs that know no panics
/// says it in their words, and ends the job. The first one that is set stays.
pub fn on_misuse(tell: fn(Misuse)) {
    let _ = ON_MISUSE.set(tell);
}

#[cold]
fn misused(misuse: Misuse) -> ! {
    if let Some(tell) = ON_MISUSE.get() {
        tell(misuse);
    }
    panic!("{misuse}");
}

/// Runs a function of the program while this thread holds a gate. If it comes to a gate, it ends with a panic: it would
/// wait for itself.
pub fn calling_out<R>(f: impl FnOnce() -> R) -> R {
    struct CalledOutGuard(bool);
    impl Drop for CalledOutGuard {
        fn drop(&mut self) {
            CALLED_OUT.set(self.0);
        }
    }
    let _back = CalledOutGuard(CALLED_OUT.replace(true));
    f()
}

/// Spins of a thread that stands back, before it yields its processor. Under loom each is a branch. Chosen by
/// magnitude: with a pause each they take a microsecond or two, longer than a thread needs to enter.
const STAND_BACK: u32 = if cfg!(loom) { 1 } else { 64 };

/// A number that no two living threads share.
///
/// It is the address of the thread's control block, which the ABI keeps at `%fs:0` ("ELF Handling For Thread-Local
/// Storage", 3.4.6). To read it is one instruction. The address of a thread-local costs a call in a library that
/// programs load.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[inline(always)]
fn here() -> usize {
    let block: usize;
    // SAFETY: reads a word that the ABI keeps for every thread.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) block, options(nostack, preserves_flags, pure, readonly));
    }
    block
}

/// A number that no two living threads share: the address of a thread-local.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
#[inline(always)]
fn here() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|place| std::ptr::from_ref(place) as usize)
}

impl<T: Guarded> Gate<T> {
    /// A gate before `value`.
    pub fn new(threads: Threads, value: T) -> Self {
        fork::watch();
        Self {
            threads,
            process: fork::generation(),
            owner: here(),
            held: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Whether this process made it; otherwise it is a child of the one that did, and must not enter.
    #[inline(always)]
    pub fn is_ours(&self) -> bool {
        self.process == fork::generation()
    }

    /// How many threads may use it.
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// Enters.
    ///
    /// # Panics
    /// In a child of a fork. From [`calling_out`]. In single-threaded mode: from another thread than the one that made
    /// the gate, or while a pass exists.
    #[inline(always)]
    pub fn enter(&self) -> Pass<'_, T> {
        assert!(
            self.is_ours(),
            "a process that was forked from a rank is no rank: only the rank itself may use its runtime"
        );
        if self.threads == Threads::Single {
            if self.owner != here() {
                misused(Misuse::SecondThread);
            }
            if self.held.load(Ordering::Relaxed) != 0 {
                misused(Misuse::Reentered);
            }
            self.held.store(1, Ordering::Relaxed);
        } else {
            self.lock();
        }
        Pass { gate: self }
    }

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_slowly();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.held
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn lock_slowly(&self) {
        if CALLED_OUT.get() {
            misused(Misuse::Reentered);
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        // Spins a little, then yields: the thread that holds the gate may have lost its processor.
        #[cfg(not(loom))]
        let backoff = Backoff::new();
        while self.held.load(Ordering::Relaxed) != 0 || !self.try_lock() {
            #[cfg(not(loom))]
            backoff.snooze();
            #[cfg(loom)]
            yield_now();
        }
        self.wanted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a thread waits at the gate.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Lets a thread that waits at the gate go first. A thread that enters again and again without that would hardly
    /// ever let one in.
    #[inline]
    pub fn give_way<'g>(&'g self, pass: Pass<'g, T>) -> Pass<'g, T> {
        if !self.is_wanted() {
            return pass;
        }
        drop(pass);
        self.stand_back();
        self.enter()
    }

    /// Waits a little for those who wait at the gate.
    #[cold]
    pub fn stand_back(&self) {
        let before = self.wanted.load(Ordering::Relaxed);
        for _ in 0..STAND_BACK {
            // One who waited has come in. That is enough: this one need not let all of them go first.
            if self.wanted.load(Ordering::Relaxed) < before {
                return;
            }
            crate::sync::spin_hint();
        }
        yield_now();
    }
}

impl<T: Guarded> Drop for Pass<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.gate.threads == Threads::Multiple {
            self.leave();
        }
        self.gate.held.store(0, Ordering::Release);
    }
}

impl<T: Guarded> Deref for Pass<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a pass is exclusive.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T: Guarded> DerefMut for Pass<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a pass is exclusive.
        unsafe { &mut *self.gate.value.get() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl Guarded for u64 {}
    impl Guarded for () {}

    #[test]
    fn one_at_a_time() {
        let gate = Gate::new(Threads::Multiple, 0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        *gate.enter() += 1;
                    }
                });
            }
        });
        assert_eq!(*gate.enter(), 40_000);
    }

    #[test]
    fn a_stranger_is_refused() {
        let gate = Gate::new(Threads::Single, 0u64);
        *gate.enter() += 1;
        let caught = std::thread::scope(|s| {
            s.spawn(|| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(gate.enter())))
            })
            .join()
            .unwrap()
        });
        assert!(caught.is_err());
        assert_eq!(*gate.enter(), 1);
    }

    #[test]
    #[should_panic(expected = "not communicate")]
    fn no_second_pass() {
        let gate = Gate::new(Threads::Single, ());
        let _first = gate.enter();
        let _second = gate.enter();
    }
}
