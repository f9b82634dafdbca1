// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of a rank that wait together: one polls for all, and no wake-up is lost.
//!
//! The state and the news are production code, behind the gate; the engine and the loop of `wait::until` are written
//! down here in short. No sleep is bounded: a thread that nobody tells waits for ever, and loom reports a deadlock.

use super::model;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use onecopy_shm::gate::{Gate, Guarded, Pass, Threads};
use onecopy_shm::sync::{AtomicU32, Ordering};
use onecopy_shm::watch::{EventCount, RestPolicy, Watch};
use std::time::Duration;

/// A rest that sleeps at once.
const SLEEP: RestPolicy = RestPolicy {
    spin: 0,
    yields: 0,
    sleep: Some(Duration::MAX),
};

#[test]
fn no_wake_up_is_lost() {
    model(3, || {
        let events = Arc::new(EventCount::default());
        let teller = thread::spawn({
            let events = Arc::clone(&events);
            move || {
                events.notify();
                events.notify();
            }
        });
        events.wait(0, SLEEP);
        assert!(events.is_new(0));
        if !events.is_new(1) {
            events.wait(1, SLEEP);
        }
        teller.join().expect("no panic");
    });
}

/// Two threads rest on the same news: both are woken.
#[test]
fn all_who_rest_are_told() {
    model(2, || {
        let events = Arc::new(EventCount::default());
        let other = thread::spawn({
            let events = Arc::clone(&events);
            move || events.wait(0, SLEEP)
        });
        let teller = thread::spawn({
            let events = Arc::clone(&events);
            move || events.notify()
        });
        events.wait(0, SLEEP);
        other.join().expect("no panic");
        teller.join().expect("no panic");
    });
}

/// An engine: how much has come, and the threads that wait for it.
struct Engine {
    watch: Watch,
    arrived: u32,
    /// What a thread of this rank has started, and a poll completes.
    started: u32,
    /// Threads that poll or sleep on the doorbell.
    pollers: u32,
    job: Arc<Outside>,
}

impl Guarded for Engine {
    fn leave(&mut self) {
        if self.watch.has_listeners() {
            self.watch.notify(self.arrived, || self.job.doorbell.ring());
        }
    }
}

/// A doorbell whose steps a lock orders: `doorbell` models the real one. loom does not know that a swap reads the
/// latest store of all, where two threads that no third one orders have stored. It would lose a ring that no machine
/// loses.
#[derive(Default)]
struct Doorbell {
    armed: Mutex<bool>,
    rung: Condvar,
}

impl Doorbell {
    fn arm(&self, armed: bool) {
        *self.armed.lock().expect("lock") = armed;
    }

    fn ring(&self) {
        if std::mem::take(&mut *self.armed.lock().expect("lock")) {
            self.rung.notify_all();
        }
    }

    fn sleep(&self) {
        let mut armed = self.armed.lock().expect("lock");
        while *armed {
            armed = self.rung.wait(armed).expect("wait");
        }
    }
}

/// What peers reach.
struct Outside {
    doorbell: Doorbell,
    /// What was sent to the rank, and not taken yet.
    sent: AtomicU32,
}

impl Outside {
    fn send(&self) {
        self.sent.fetch_add(1, Ordering::AcqRel);
        self.doorbell.ring();
    }
}

struct Job {
    gate: Gate<Engine>,
    outside: Arc<Outside>,
}

impl Job {
    fn new() -> Arc<Self> {
        let outside = Arc::new(Outside {
            doorbell: Doorbell::default(),
            sent: AtomicU32::new(0),
        });
        let engine = Engine {
            watch: Watch::default(),
            arrived: 0,
            started: 0,
            pollers: 0,
            job: Arc::clone(&outside),
        };
        Arc::new(Self {
            gate: Gate::new(Threads::Multiple, engine),
            outside,
        })
    }

    /// Rests until so much has come, or there is no watcher: `wait::until`, its first half.
    fn rest(&self, wanted: u32) -> Result<(), Pass<'_, Engine>> {
        let mut engine = self.gate.enter();
        while engine.watch.is_watched() {
            if engine.arrived >= wanted {
                return Ok(());
            }
            let rest = engine.watch.rest(|| self.outside.doorbell.ring());
            drop(engine);
            rest.wait(SLEEP);
            engine = self.gate.enter();
            engine.watch.end_rest();
        }
        Err(engine)
    }

    /// Waits until so much has come.
    fn until(&self, wanted: u32) {
        let Err(mut engine) = self.rest(wanted) else {
            return;
        };
        engine.watch.begin_watch();
        engine.pollers += 1;
        assert_eq!(engine.pollers, 1, "one polls for all");
        loop {
            let Engine { started, .. } = &mut *engine;
            let moved = std::mem::take(started) + self.outside.sent.swap(0, Ordering::AcqRel);
            engine.arrived += moved;
            if engine.arrived >= wanted {
                break;
            }
            self.outside.doorbell.arm(true);
            if self.outside.sent.load(Ordering::Acquire) == 0 {
                engine.watch.set_asleep(true);
                drop(engine);
                self.outside.doorbell.sleep();
                engine = self.gate.enter();
                engine.watch.set_asleep(false);
            }
            self.outside.doorbell.arm(false);
        }
        engine.pollers -= 1;
        engine.watch.end_watch();
    }

    /// Completes something as a thread does that does not wait: the engine is entered, and given back.
    fn complete(&self) {
        self.gate.enter().arrived += 1;
    }
}

fn spawn(job: &Arc<Job>, run: impl FnOnce(&Job) + 'static) -> thread::JoinHandle<()> {
    let job = Arc::clone(job);
    thread::spawn(move || run(&job))
}

fn all_return(preemptions: usize, wanted: [u32; 2]) {
    model(preemptions, move || {
        let job = Job::new();
        let waiter = spawn(&job, move |job| job.until(wanted[1]));
        let sender = spawn(&job, move |job| {
            (0..wanted[0].max(wanted[1])).for_each(|_| job.outside.send())
        });
        job.until(wanted[0]);
        waiter.join().expect("no panic");
        sender.join().expect("no panic");
    });
}

/// Two wait for the same: the watcher gets it and tells the other.
#[test]
fn the_watcher_tells_who_rests() {
    all_return(2, [1, 1]);
}

/// The watcher leaves with what it waited for; the other one watches on.
#[test]
fn a_watcher_that_leaves_is_replaced() {
    all_return(2, [1, 2]);
}

/// A thread that does not wait completes what the watcher, asleep perhaps, waits for.
#[test]
fn who_gives_the_engine_back_tells_the_watcher() {
    model(3, || {
        let job = Job::new();
        let watcher = spawn(&job, |job| job.until(1));
        job.complete();
        watcher.join().expect("no panic");
    });
}

/// A thread completes what one waits for that rests, and the watcher stays.
#[test]
fn who_gives_the_engine_back_tells_who_rests() {
    model(3, || {
        let job = Job::new();
        job.gate.enter().watch.begin_watch();
        let waiter = spawn(&job, |job| job.until(1));
        job.complete();
        waiter.join().expect("no panic");
    });
}

/// The watcher sleeps while a thread starts what only a poll completes, and then rests.
#[test]
fn who_begins_to_rest_wakes_the_watcher() {
    model(3, || {
        let job = Job::new();
        let watcher = spawn(&job, |job| job.until(1));
        job.gate.enter().started += 1;
        job.until(1);
        watcher.join().expect("no panic");
    });
}

/// The watcher panics with the engine in its hand: it gives the engine back, and the guard hands the watch on.
#[test]
fn a_watcher_that_panics_is_replaced() {
    model(2, || {
        let job = Job::new();
        let waiter = spawn(&job, |job| job.until(1));
        let sender = spawn(&job, |job| job.outside.send());
        if let Err(mut engine) = job.rest(1) {
            engine.watch.begin_watch();
            engine.pollers += 1;
            assert_eq!(engine.pollers, 1, "one polls for all");
            engine.pollers -= 1;
            drop(engine);
            job.gate.enter().watch.end_watch();
        }
        waiter.join().expect("no panic");
        sender.join().expect("no panic");
    });
}
