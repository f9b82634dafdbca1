// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock around an engine: nothing but a thread check when one thread uses it, a lock when several do.
//!
//! # Safety
//! The value is reached only through a [`Pass`]. In single-threaded mode a pass is given to the thread that made the gate only (compared by the
//! address of a thread-local, which no two living threads share), and not while another pass exists (the `held` flag, touched by
//! that thread alone). In multi-threaded mode passes exclude one another by a lock bit with acquire and release ordering.
#![allow(unsafe_code, reason = "a lock")]

use crate::sync::{AtomicU32, Ordering};
use crossbeam_utils::Backoff;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// How many threads may use a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The thread that made it.
    Single,
    /// Any, at the same time.
    Multiple,
}

/// Exclusive access to a `T`.
#[derive(Debug)]
pub struct Gate<T> {
    threads: Threads,
    owner: usize,
    held: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: see the module's safety case.
unsafe impl<T: Send> Sync for Gate<T> {}

/// The right to use the value behind a gate.
#[derive(Debug)]
pub struct Pass<'g, T> {
    gate: &'g Gate<T>,
}

thread_local! {
    static HERE: u8 = const { 0 };
}

#[inline(always)]
fn here() -> usize {
    HERE.with(|place| std::ptr::from_ref(place) as usize)
}

impl<T> Gate<T> {
    /// A gate before `value`.
    pub fn new(threads: Threads, value: T) -> Self {
        Self {
            threads,
            owner: here(),
            held: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// How many threads may use it.
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// Enters.
    ///
    /// # Panics
    /// In single-threaded mode: from another thread than the one that made the gate, or while a pass exists.
    #[inline(always)]
    pub fn enter(&self) -> Pass<'_, T> {
        if self.threads == Threads::Single {
            assert!(
                self.owner == here(),
                "a runtime made with Threads::Single was used by a second thread; use Threads::Multiple"
            );
            assert!(
                self.held.load(Ordering::Relaxed) == 0,
                "the engine was entered twice"
            );
            self.held.store(1, Ordering::Relaxed);
        } else {
            self.lock();
        }
        Pass { gate: self }
    }

    #[cold]
    fn lock(&self) {
        // Spins a little, then yields: whoever holds the gate may have lost its processor.
        let backoff = Backoff::new();
        while self
            .held
            .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            backoff.snooze();
        }
    }
}

impl<T> Drop for Pass<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.gate.held.store(0, Ordering::Release);
    }
}

impl<T> Deref for Pass<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a pass is exclusive.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for Pass<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a pass is exclusive.
        unsafe { &mut *self.gate.value.get() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
    #[should_panic(expected = "entered twice")]
    fn no_second_pass() {
        let gate = Gate::new(Threads::Single, ());
        let _first = gate.enter();
        let _second = gate.enter();
    }
}
