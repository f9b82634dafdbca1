// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread of a rank watches for all that wait: which one, and how the others are notified.
//!
//! Threads that wait would only take the engine from one another. So one of them, the *watcher*, polls and sleeps on
//! the rank's doorbell. The others rest without the engine, on an event count that stays in the process. A thread that
//! has the engine and finds that something arrived notifies them, at the latest when it gives the engine back. A thread
//! that wakes looks whether that was what it waits for, and becomes the watcher if there is none. A watcher that has
//! what it waited for notifies the others, too.

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, between_seq_cst, spin_hint, yield_now};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The threads of a rank that wait; behind the gate, with the engine.
#[derive(Debug, Default)]
pub struct Watch {
    /// Whether there is a watcher.
    watched: bool,
    /// Whether it sleeps on the doorbell.
    asleep: bool,
    /// Threads that rest.
    resting: u32,
    /// Arrivals of which the others were notified.
    notified: u32,
    events: Arc<EventCount>,
}

/// How long a thread that rests polls before it yields, and yields before it sleeps.
#[derive(Debug, Clone, Copy)]
pub struct RestPolicy {
    /// Polls before the first yield.
    pub spin: usize,
    /// Yields before the sleep.
    pub yields: usize,
    /// The longest sleep; none: it does not sleep.
    pub sleep: Option<Duration>,
}

/// What a thread rests on.
#[derive(Debug)]
pub struct Rest {
    events: Arc<EventCount>,
    /// The events that the thread has seen.
    known: u32,
}

impl Rest {
    /// Returns at the next event, or after the longest sleep.
    pub fn wait(&self, policy: RestPolicy) {
        self.events.wait(self.known, policy);
    }
}

impl Watch {
    /// Whether there is a watcher.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// The calling thread is the watcher from now on.
    pub fn begin_watch(&mut self) {
        self.watched = true;
    }

    /// The watcher leaves: another one is needed.
    pub fn end_watch(&mut self) {
        self.watched = false;
        if self.resting > 0 {
            self.events.notify();
        }
    }

    /// The watcher goes to sleep on the doorbell, or has come back. A thread that finds it asleep rings.
    pub fn set_asleep(&mut self, asleep: bool) {
        self.asleep = asleep;
    }

    /// The calling thread is going to rest. `ring` wakes the watcher: it has gone to sleep without what this thread has
    /// started since.
    pub fn rest(&mut self, ring: impl FnOnce()) -> Rest {
        self.resting += 1;
        self.wake_watcher(ring);
        Rest {
            events: Arc::clone(&self.events),
            known: self.events.count.load(Ordering::SeqCst),
        }
    }

    /// The calling thread has rested.
    pub fn end_rest(&mut self) {
        self.resting -= 1;
    }

    /// Threads that wait.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.resting + u32::from(self.watched)
    }

    /// Whether anybody waits to be notified of arrivals.
    #[inline]
    #[must_use]
    pub fn has_listeners(&self) -> bool {
        self.resting > 0 || self.asleep
    }

    /// Notifies the threads that wait, if more has arrived than they were notified of.
    #[inline]
    pub fn notify(&mut self, arrived: u32, ring: impl FnOnce()) {
        if self.notified != arrived {
            self.notified = arrived;
            self.wake_watcher(ring);
            if self.resting > 0 {
                self.events.notify();
            }
        }
    }

    /// Wakes the thread that polls for all, if it sleeps: it has something to do.
    pub fn wake_watcher(&mut self, ring: impl FnOnce()) {
        if std::mem::take(&mut self.asleep) {
            ring();
        }
    }
}

/// A count of events, and the threads that sleep until it changes.
#[derive(Debug)]
pub struct EventCount {
    count: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Default for EventCount {
    fn default() -> Self {
        Self {
            count: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }
}

impl EventCount {
    /// Counts an event and wakes the sleepers.
    #[cold]
    pub fn notify(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        between_seq_cst();
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // With the lock, so that none is between its look and its sleep.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Whether there was an event since `known`.
    #[must_use]
    pub fn is_new(&self, known: u32) -> bool {
        self.count.load(Ordering::SeqCst) != known
    }

    /// Returns at the next event, or after the longest sleep.
    pub fn wait(&self, known: u32, rest: RestPolicy) {
        for _ in 0..rest.spin {
            if self.is_new(known) {
                return;
            }
            spin_hint();
        }
        for _ in 0..rest.yields {
            if self.is_new(known) {
                return;
            }
            yield_now();
        }
        if let Some(longest) = rest.sleep {
            self.sleep(known, longest);
        }
    }

    fn sleep(&self, known: u32, longest: Duration) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        between_seq_cst();
        #[cfg(not(loom))]
        drop(
            self.changed
                .wait_timeout_while(guard, longest, |()| !self.is_new(known)),
        );
        // A model has no time: a sleep that nobody ends is one that is lost.
        #[cfg(loom)]
        {
            let _ = longest;
            let mut guard = guard;
            while !self.is_new(known) {
                guard = self
                    .changed
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn rest(spin: usize, yields: usize) -> RestPolicy {
        RestPolicy {
            spin,
            yields,
            sleep: Some(Duration::from_secs(3600)),
        }
    }

    /// Each thread notifies only after the other did, and the longest sleep is longer than the test: a lost wake-up
    /// stops both.
    #[test]
    fn no_wake_up_is_lost() {
        for rest in [rest(0, 0), rest(10, 2), rest(1000, 1000)] {
            let pair = Arc::new((EventCount::default(), EventCount::default()));
            let (over, ended) = mpsc::channel();
            let play = |first: bool| {
                let (pair, over) = (Arc::clone(&pair), over.clone());
                std::thread::spawn(move || {
                    let (own, other) = if first {
                        (&pair.0, &pair.1)
                    } else {
                        (&pair.1, &pair.0)
                    };
                    for round in 0..2000 {
                        if first {
                            own.notify();
                        }
                        while !other.is_new(round) {
                            other.wait(round, rest);
                        }
                        if !first {
                            own.notify();
                        }
                    }
                    over.send(()).expect("somebody listens");
                })
            };
            let _players = [play(true), play(false)];
            for _ in 0..2 {
                let end = ended.recv_timeout(Duration::from_secs(60));
                assert!(end.is_ok(), "a wake-up was lost");
            }
        }
    }
}
