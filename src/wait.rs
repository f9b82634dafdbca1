// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a rank waits: polls, then yields the processor, then sleeps until its bell is rung.

mod watch;

pub(crate) use watch::Waits;

use crate::engine::Engine;
use crate::wireup::Card;
use onecopy_obs::{Knobs, WaitSleep};
use onecopy_shm::doorbell::Woken;
use onecopy_shm::gate::{Gate, Pass, Threads};
use onecopy_shm::segment::OwnSegment;
use onecopy_shm::sync::spin_hint;
use std::time::{Duration, Instant};

/// How long a rank polls before it yields, and yields before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Patience {
    /// Polls before the first yield.
    pub(crate) spin: usize,
    /// Yields before the first sleep.
    pub(crate) yields: usize,
    /// Whether a wait may sleep at all.
    pub(crate) sleep: bool,
    /// How often peers' lives are looked at, and the longest sleep.
    pub(crate) period: Duration,
    /// Whether more ranks than processors were found.
    pub(crate) crowded: bool,
    /// How many processors this rank has for itself.
    pub(crate) share: f64,
}

/// Patience of those who wait where there are more of them than processors: all there is to do is to make room.
const CROWDED: (usize, usize) = (16, 4);
/// Yields of a thread before it sleeps, where threads that wait are more than processors: a turn of all of them costs less than to be woken.
const THREAD_YIELDS: usize = 200;

impl Patience {
    pub(crate) fn new(knobs: &Knobs, cards: &[Card], me: usize) -> Self {
        let (supply, demand) = processors(cards, me);
        let crowded = demand > supply + 0.01;
        // A yield costs little when nobody else wants the processor, and is all there is to do when a peer does.
        let (spin, yields) = if crowded { CROWDED } else { (1000, 4000) };
        Self {
            spin: knobs.wait_spin.unwrap_or(spin),
            yields: knobs.wait_yield.unwrap_or(yields),
            sleep: knobs.wait_sleep != WaitSleep::Off,
            period: knobs.liveness_period,
            crowded,
            share: supply / demand,
        }
    }

    /// The patience of one of so many threads of this rank that wait.
    fn among(mut self, threads: u32) -> Self {
        if f64::from(threads) > self.share + 0.01 {
            self.spin = self.spin.min(CROWDED.0);
            self.yields = self.yields.min(THREAD_YIELDS);
        }
        self
    }
}

/// How many processors this rank may use, as far as is known, no more than its control group's quota; and how many ranks want them. A rank that
/// may run on several processors counts with its share on each.
fn processors(cards: &[Card], me: usize) -> (f64, f64) {
    let Some(mine) = cards.get(me).filter(|card| !card.affinity.is_empty()) else {
        return (f64::INFINITY, 1.0);
    };
    let mut demand = 0.0;
    for card in cards {
        if card.affinity.is_empty() {
            continue;
        }
        let common = card
            .affinity
            .iter()
            .filter(|cpu| mine.affinity.contains(cpu))
            .count();
        demand += common as f64 / card.affinity.len() as f64;
    }
    let mut supply = mine.affinity.len() as f64;
    if mine.quota_cpus > 0.0 {
        supply = supply.min(f64::from(mine.quota_cpus));
    }
    (supply, demand)
}

/// Waits until `done` gives something. Between polls the engine is free for other threads.
pub(crate) fn until<R>(
    gate: &Gate<Engine>,
    segment: &OwnSegment,
    mut done: impl FnMut(&mut Engine) -> Option<R>,
) -> R {
    let mut engine = gate.enter();
    if gate.threads() == Threads::Single {
        return watch(gate, segment, engine, done).0;
    }
    while engine.core.waits.is_watched() {
        if let Some(result) = done(&mut engine) {
            return result;
        }
        let (news, known) = engine.core.waits.rest();
        let patience = engine.core.patience.among(engine.core.waits.threads());
        drop(engine);
        news.wait(known, patience.rest());
        engine = gate.enter();
        engine.core.waits.end_rest();
    }
    engine.core.waits.begin_watch();
    let on_panic = Watching(gate);
    let (result, mut engine) = watch(gate, segment, engine, done);
    std::mem::forget(on_panic);
    engine.core.waits.end_watch();
    result
}

/// Hands the watch on when the thread that watches panics, in an operator of the program for example: the others
/// would wait for ever. When it is dropped the thread has given the engine back.
struct Watching<'g>(&'g Gate<Engine>);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.enter().core.waits.end_watch();
    }
}

/// Moves what can move, and looks. Who asks again and again in vain makes room as one who waits.
#[inline]
pub(crate) fn look_once<R>(gate: &Gate<Engine>, look: impl FnOnce(&mut Engine) -> R) -> R {
    let mut engine = gate.enter();
    let moved = engine.progress(false);
    let result = look(&mut engine);
    let makes_room = engine.asked(moved);
    drop(engine);
    if makes_room {
        std::thread::yield_now();
    } else if gate.is_wanted() {
        gate.stand_back();
    }
    result
}

/// Polls until `done` gives something; gives the engine with it.
fn watch<'g, R>(
    gate: &'g Gate<Engine>,
    segment: &OwnSegment,
    mut engine: Pass<'g, Engine>,
    mut done: impl FnMut(&mut Engine) -> Option<R>,
) -> (R, Pass<'g, Engine>) {
    let shared = gate.threads() == Threads::Multiple;
    let own = engine.core.patience;
    let mut patience = own;
    let mut idle = 0usize;
    let mut looked: Option<Instant> = None;
    let mut slept = false;
    loop {
        if let Some(result) = done(&mut engine) {
            return (result, engine);
        }
        let moved = engine.progress(true);
        if shared {
            engine.tell();
            patience = own.among(engine.core.waits.threads());
            engine = gate.give_way(engine);
        }
        if moved {
            idle = 0;
            continue;
        }
        if let Some(result) = done(&mut engine) {
            return (result, engine);
        }
        idle += 1;
        if idle <= patience.spin {
            if idle.is_multiple_of(1024) {
                look(&mut engine, &mut looked, patience.period);
            }
            spin_hint();
            continue;
        }
        look(&mut engine, &mut looked, patience.period);
        engine.retire_idle();
        let sleeps = patience.sleep && idle > patience.spin + patience.yields;
        if sleeps && !slept {
            // Whoever is dead already will not ring.
            slept = true;
            engine.check_liveness();
        }
        if sleeps && engine.prepare_sleep() {
            engine.core.counters.sleeps += 1;
            engine.core.waits.set_asleep(shared);
            drop(engine);
            let woken = segment.bell().sleep(patience.period);
            if woken == Woken::Refused {
                std::thread::sleep(Duration::from_micros(50));
            }
            engine = gate.enter();
            engine.core.waits.set_asleep(false);
            engine.wake_up();
            if woken == Woken::TimedOut {
                // Nobody rang for a whole period.
                engine.check_liveness();
                looked = Some(Instant::now());
            }
            continue;
        }
        if sleeps {
            engine.wake_up();
        }
        engine.core.counters.yields += 1;
        drop(engine);
        std::thread::yield_now();
        engine = gate.enter();
    }
}

fn look(engine: &mut Engine, looked: &mut Option<Instant>, period: Duration) {
    let now = Instant::now();
    engine.age(now);
    match looked {
        None => *looked = Some(now),
        Some(last) if now.duration_since(*last) >= period => {
            *last = now;
            engine.check_liveness();
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::local_of;
    use std::sync::{Mutex, mpsc};

    /// The thread that watches panics while another one rests; then the message comes that the other one waits for.
    #[test]
    fn a_watcher_that_panics_hands_the_watch_on() {
        let (panicked, told) = mpsc::channel();
        let told = Mutex::new(told);
        local_of(2, &Knobs::default(), Threads::Multiple, |rt| {
            let world = rt.world();
            if rt.rank() == 1 {
                // Not before the other rank's watcher is gone.
                told.lock().expect("lock").recv().expect("the word");
                world.send(&[7u8], 0, 0).expect("send");
                rt.finalize().expect("finalize");
                return;
            }
            let handle = rt.handle();
            std::thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    until::<()>(&handle.gate, &handle.segment, |engine| {
                        assert!(engine.core.waits.threads() < 2, "on purpose");
                        None
                    });
                });
                while !handle.gate.enter().core.waits.is_watched() {
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

    fn card(affinity: &[u16]) -> Card {
        Card {
            affinity: affinity.to_vec(),
            quota_cpus: 0.0,
            ..Card::of_this_process()
        }
    }

    fn is_crowded(cards: &[Card], me: usize) -> bool {
        Patience::new(&Knobs::default(), cards, me).crowded
    }

    #[test]
    fn ranks_are_counted_against_their_processors() {
        assert!(!is_crowded(&[card(&[0]), card(&[1])], 0));
        assert!(!is_crowded(&[card(&[0, 1]), card(&[0, 1])], 0));
        assert!(is_crowded(
            &[card(&[0, 1]), card(&[0, 1]), card(&[0, 1])],
            0
        ));
        let four = [card(&[0]), card(&[1]), card(&[0]), card(&[1])];
        assert!((0..4).all(|me| is_crowded(&four, me)));
        assert!(!is_crowded(&[card(&[0]), card(&[1]), card(&[1])], 0));
        assert!(is_crowded(&[card(&[0]), card(&[1]), card(&[1])], 2));
    }

    #[test]
    fn a_quota_counts_too() {
        let half = Card {
            quota_cpus: 0.5,
            ..card(&[0, 1])
        };
        assert!(is_crowded(std::slice::from_ref(&half), 0));
        let plenty = Card {
            quota_cpus: 2.0,
            ..card(&[0, 1])
        };
        assert!(!is_crowded(&[plenty.clone(), plenty], 0));
    }

    #[test]
    fn threads_are_impatient_where_they_are_more_than_the_processors() {
        let patience = |cards: &[Card]| Patience::new(&Knobs::default(), cards, 0);
        let own = patience(&[card(&[0]), card(&[1])]);
        assert_eq!(own.among(1), own);
        assert!(own.among(2).spin < own.spin);
        let four = patience(&[card(&[0, 1, 2, 3])]);
        assert_eq!(four.among(4), four);
        assert!(four.among(5).yields < four.yields);
        let unknown = patience(&[]);
        assert_eq!(unknown.among(64), unknown);
    }
}
