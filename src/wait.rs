// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a rank waits: polls, then yields the processor, then sleeps until its bell is rung.

use crate::engine::Engine;
use crate::wireup::Card;
use onecopy_obs::{Knobs, WaitSleep};
use onecopy_shm::doorbell::Woken;
use onecopy_shm::gate::{Gate, Threads};
use onecopy_shm::segment::OwnSegment;
use onecopy_shm::sync::spin_hint;
use std::time::{Duration, Instant};

/// How long a rank polls before it yields, and yields before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

impl Patience {
    pub(crate) fn new(knobs: &Knobs, cards: &[Card], me: usize) -> Self {
        let crowded = is_crowded(cards, me);
        // A yield costs little when nobody else wants the processor, and is all there is to do when a peer does.
        let (spin, yields) = if crowded { (16, 4) } else { (1000, 4000) };
        Self {
            spin: knobs.wait_spin.unwrap_or(spin),
            yields: knobs.wait_yield.unwrap_or(yields),
            sleep: knobs.wait_sleep != WaitSleep::Off,
            period: knobs.liveness_period,
            crowded,
        }
    }
}

/// Whether the ranks that may run on this rank's processors are more than these processors, or its control group's quota is less
/// than its share of them. A rank that may run on several processors counts with its share on each.
pub(crate) fn is_crowded(cards: &[Card], me: usize) -> bool {
    let Some(mine) = cards.get(me) else {
        return false;
    };
    if mine.affinity.is_empty() {
        return false;
    }
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
    demand > supply + 0.01
}

/// Waits until `done` gives something. Between polls the engine is free for other threads.
pub(crate) fn until<R>(
    gate: &Gate<Engine>,
    segment: &OwnSegment,
    mut done: impl FnMut(&mut Engine) -> Option<R>,
) -> R {
    let mut engine = gate.enter();
    let patience = engine.core.patience;
    let shared = gate.threads() == Threads::Multiple;
    let mut idle = 0usize;
    let mut looked: Option<Instant> = None;
    let mut slept = false;
    loop {
        if let Some(result) = done(&mut engine) {
            return result;
        }
        if engine.progress(true) {
            idle = 0;
            continue;
        }
        if let Some(result) = done(&mut engine) {
            return result;
        }
        idle += 1;
        if idle <= patience.spin {
            if idle.is_multiple_of(1024) {
                look(&mut engine, &mut looked, patience.period);
            }
            if shared && idle.is_multiple_of(16) {
                drop(engine);
                spin_hint();
                engine = gate.enter();
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
            drop(engine);
            // Several threads share one bell: a thread that misses its ring looks again soon.
            let bound = if shared {
                patience.period.min(Duration::from_millis(1))
            } else {
                patience.period
            };
            let woken = segment.bell().sleep(bound);
            if woken == Woken::Refused {
                std::thread::sleep(Duration::from_micros(50));
            }
            engine = gate.enter();
            engine.wake_up();
            if woken == Woken::TimedOut && !shared {
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

    fn card(affinity: &[u16]) -> Card {
        Card {
            affinity: affinity.to_vec(),
            quota_cpus: 0.0,
            ..Card::of_this_process()
        }
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
}
