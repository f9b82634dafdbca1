// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a rank waits: polls, then yields the processor, then sleeps until its doorbell is rung.

use crate::coll::Worker;
use crate::endpoint::{Doorbell, SleepOutcome};
use crate::request::{Activity, Stages};
use onecopy_obs::tracepoints;
use onecopy_shm::gate::{Gate, Pass, Threads};
use onecopy_shm::sync::spin_hint;
use std::time::{Duration, Instant};

/// What a rank that waits looks at besides its worker.
#[derive(Clone, Copy)]
pub(crate) struct Signals<'s> {
    /// Rung when something has come.
    pub(crate) doorbell: &'s Doorbell,
    /// What devices copy, which ring no doorbell.
    pub(crate) stages: &'s Stages,
}

/// Waits until `done` gives something. Between polls the worker is free for other threads.
pub(crate) fn until<R>(
    gate: &Gate<Worker>,
    signals: Signals<'_>,
    mut done: impl FnMut(&mut Worker) -> Option<R>,
) -> R {
    let mut worker = gate.enter();
    if gate.threads() == Threads::Single {
        loop {
            match watch(gate, signals, worker, &mut done) {
                Watched::Until(result, _) => return result,
                Watched::HandedOn(kept) => worker = kept,
            }
        }
    }
    loop {
        while worker.engine.waits.is_watched() {
            if let Some(result) = done(&mut worker) {
                return result;
            }
            if worker.engine.waits.take_awake() {
                // What it waits for is no event that the thread that watches would see.
                worker = yield_processor(gate, worker);
                continue;
            }
            let rest = worker.engine.waits.rest();
            let policy = worker.engine.waits.shared_policy();
            drop(worker);
            rest.wait(policy.rest());
            worker = gate.enter();
            worker.engine.waits.end_rest();
        }
        worker.engine.waits.begin_watch();
        let on_panic = Watching(gate);
        let watched = watch(gate, signals, worker, &mut done);
        std::mem::forget(on_panic);
        match watched {
            Watched::Until(result, mut worker) => {
                worker.engine.waits.end_watch();
                return result;
            }
            Watched::HandedOn(kept) => worker = kept,
        }
    }
}

/// How a thread's watch has ended.
enum Watched<'g, R> {
    /// With what it waits for. The worker still counts it as the one that watches.
    Until(R, Pass<'g, Worker>),
    /// Another thread may watch.
    HandedOn(Pass<'g, Worker>),
}

/// Hands the watch on when the thread that watches panics, in an operator of the program for example: the others
/// would wait for ever. When it is dropped the thread has given the worker back.
struct Watching<'g>(&'g Gate<Worker>);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.enter().engine.waits.end_watch();
    }
}

/// Makes progress, then looks. A caller that looks in vain too often yields its processor, as one that waits does.
#[inline]
pub(crate) fn look_once<R>(
    gate: &Gate<Worker>,
    stages: &Stages,
    look: impl FnOnce(&mut Worker) -> R,
) -> R {
    if stages.any() {
        stages.advance();
    }
    let mut worker = gate.enter();
    let moved = worker.progress_once();
    let result = look(&mut worker);
    let makes_room = worker.engine.waits.asked(moved);
    drop(worker);
    if makes_room {
        std::thread::yield_now();
    } else if gate.is_wanted() {
        gate.stand_back();
    }
    result
}

/// Polls until `done` gives something: spins, then yields the processor, then sleeps. Gives the worker with it.
fn watch<'g, R>(
    gate: &'g Gate<Worker>,
    Signals { doorbell, stages }: Signals<'_>,
    mut worker: Pass<'g, Worker>,
    done: &mut impl FnMut(&mut Worker) -> Option<R>,
) -> Watched<'g, R> {
    let shared = gate.threads() == Threads::Multiple;
    let own = worker.engine.waits.policy;
    let mut policy = own;
    let mut idle = 0usize;
    loop {
        if let Some(result) = done(&mut worker) {
            return Watched::Until(result, worker);
        }
        let mut moved = worker.progress(true);
        // A device rings no doorbell when it is done.
        let mut works = false;
        if stages.any() {
            let activity;
            (worker, activity) = advance(gate, stages, worker);
            if shared && worker.engine.waits.is_watched() {
                return Watched::HandedOn(worker);
            }
            if shared {
                worker.engine.waits.begin_watch();
            }
            moved |= activity == Activity::Moved;
            works = activity != Activity::Rests;
        }
        if shared {
            worker.engine.notify();
            policy = worker.engine.waits.shared_policy();
            worker = gate.give_way(worker);
        }
        if moved {
            idle = 0;
            continue;
        }
        if let Some(result) = done(&mut worker) {
            return Watched::Until(result, worker);
        }
        idle += 1;
        if idle <= policy.spin {
            if idle.is_multiple_of(1024) {
                look(&mut worker, policy.period);
            }
            spin_hint();
            continue;
        }
        look(&mut worker, policy.period);
        worker.engine.retire_idle();
        let sleeps = policy.sleep
            && idle > policy.spin + policy.yields
            && !works
            && !worker.engine.waits.take_awake();
        if !sleeps {
            worker = yield_processor(gate, worker);
            continue;
        }
        worker = sleep_if_idle(gate, doorbell, worker, policy.period);
    }
}

/// Moves what is staged; the worker is free for other threads meanwhile, and so is the watch: a driver may keep this
/// thread for long. Nobody rings when a device is done, so as long as one works this thread does not sleep.
#[cold]
fn advance<'g>(
    gate: &'g Gate<Worker>,
    stages: &Stages,
    mut worker: Pass<'g, Worker>,
) -> (Pass<'g, Worker>, Activity) {
    if gate.threads() == Threads::Multiple {
        worker.engine.waits.end_watch();
    }
    drop(worker);
    let activity = stages.advance();
    (gate.enter(), activity)
}

/// Lets other threads and processes run, in this rank's worker, too.
#[inline]
fn yield_processor<'g>(gate: &'g Gate<Worker>, mut worker: Pass<'g, Worker>) -> Pass<'g, Worker> {
    worker.engine.core.counters.yields += 1;
    drop(worker);
    std::thread::yield_now();
    gate.enter()
}

/// Sleeps until the doorbell is rung, for `period` at most, if nothing has come since this rank last looked; otherwise
/// yields the processor. Looks at the peers if nobody rang.
fn sleep_if_idle<'g>(
    gate: &'g Gate<Worker>,
    doorbell: &Doorbell,
    mut worker: Pass<'g, Worker>,
    period: Duration,
) -> Pass<'g, Worker> {
    if !worker.prepare_sleep() {
        worker.engine.wake_up();
        return yield_processor(gate, worker);
    }
    worker.engine.core.counters.sleeps += 1;
    let shared = gate.threads() == Threads::Multiple;
    worker.engine.waits.set_asleep(shared);
    drop(worker);
    tracepoints::sleep(period.as_micros() as u64);
    let woken = doorbell.sleep(period);
    tracepoints::wake(woken == SleepOutcome::Rung);
    if woken == SleepOutcome::Refused {
        std::thread::sleep(Duration::from_micros(50));
    }
    let mut worker = gate.enter();
    worker.engine.waits.set_asleep(false);
    worker.engine.wake_up();
    if woken == SleepOutcome::TimedOut {
        // Nobody rang for a whole period.
        worker.check_liveness();
    }
    worker
}

/// Does what is due by the clock of a rank that waits.
fn look(worker: &mut Worker, period: Duration) {
    let now = Instant::now();
    worker.engine.age(now);
    worker.engine.lives.note_time(now, period);
    if worker.engine.lives.is_due() {
        worker.check_liveness();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::local_of;
    use onecopy_obs::Knobs;
    use onecopy_shm::sync::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Mutex, mpsc};

    /// The thread that watches panics while another one rests; then the message comes that the other one waits for.
    #[test]
    fn a_watcher_that_panics_hands_the_watch_on() {
        let (panicked, panic_seen) = mpsc::channel();
        let panic_seen = Mutex::new(panic_seen);
        local_of(2, &Knobs::default(), Threads::Multiple, |rt| {
            let world = rt.world();
            if rt.rank() == 1 {
                // Not before the other rank's watcher is gone.
                panic_seen.lock().expect("lock").recv().expect("the word");
                world.send(&[7u8], 0, 0).expect("send");
                rt.finalize().expect("finalize");
                return;
            }
            let handle = rt.handle();
            std::thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    until::<()>(&handle.gate, handle.signals(), |worker| {
                        assert!(worker.engine.waits.threads() < 2, "on purpose");
                        None
                    });
                });
                while !handle.gate.enter().engine.waits.is_watched() {
                    std::thread::yield_now();
                }
                let waiting = scope.spawn(|| {
                    let mut got = [0u8];
                    world.recv(&mut got, 1, 0).map(|_| got)
                });
                assert!(watcher.join().is_err(), "the watcher has panicked");
                panicked.send(()).expect("somebody listens");
                let got = waiting.join().expect("no panic").expect("a message");
                assert_eq!(got, [7]);
            });
            rt.finalize().expect("finalize");
        });
    }

    /// A thread whose work is no event, as a device's copies, beside the one that watches: it looks again at once.
    #[test]
    fn a_thread_that_stays_awake_does_not_rest() {
        const LOOKS: usize = 20;
        local_of(1, &Knobs::default(), Threads::Multiple, |rt| {
            let handle = rt.handle();
            let (over, waiting) = (AtomicBool::new(false), AtomicU32::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    until(&handle.gate, handle.signals(), |worker| {
                        waiting.fetch_max(worker.engine.waits.threads(), Ordering::Relaxed);
                        over.load(Ordering::Relaxed).then_some(())
                    });
                });
                while !handle.gate.enter().engine.waits.is_watched() {
                    std::thread::yield_now();
                }
                let mut looks = 0;
                until(&handle.gate, handle.signals(), |worker| {
                    looks += 1;
                    worker.engine.waits.stay_awake();
                    (looks == LOOKS).then_some(())
                });
                over.store(true, Ordering::Relaxed);
            });
            assert_eq!(waiting.into_inner(), 1, "only the one that watches waits");
            rt.finalize().expect("finalize");
        });
    }
}
