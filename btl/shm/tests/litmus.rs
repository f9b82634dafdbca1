// SPDX-License-Identifier: MIT OR Apache-2.0
//! The asymmetric fence on the real machine. loom knows neither `membarrier` nor compiler fences, so the models run
//! with full fences instead. That the pair does what a pair of full fences does is seen here, by the store-buffering
//! test. Each of two threads stores to its own word and then loads the other's. Without fences both may load the old
//! value.
#![cfg(not(loom))]

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use onecopy_shm::sync::{AtomicU32, HeavyFence, Ordering, compiler_fence, light_fence};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Turns of the test with the pair of fences.
const TURNS: u32 = 20_000;
/// The longest that the pair is tried.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest that a weak outcome is looked for: both threads must run at the same time once, however busy the machine
/// is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stores that wait in the store buffer in front of the one that the test is about: it becomes visible after them.
const AHEAD: usize = 8;
/// Lines that these stores go to, in turn: more than a second-level cache holds, so that each store takes its time.
const COLD: usize = 1 << 17;

#[repr(align(128))]
#[derive(Default)]
struct Alone(AtomicU32);

/// One test at a time, for each needs two processors.
static PROCESSORS: Mutex<()> = Mutex::new(());

fn both_processors() -> MutexGuard<'static, ()> {
    PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the calling thread on the processor number `me` of those that it may use: two threads that share one never run
/// at once.
fn stay_on(me: usize) {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("own affinity");
    let mut mine = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    if let Some(cpu) = mine.nth(me) {
        let mut set = CpuSet::new();
        set.set(cpu).expect("a processor of the set");
        sched_setaffinity(Pid::from_raw(0), &set).expect("one of the own processors");
    }
}

/// Lets another address space run on the calling thread's processor. A processor keeps an address space while a thread
/// of the kernel runs. It does not see that this one has been registered meanwhile, until it has run another one
/// (docs/memory-model.md).
fn have_registration_seen() {
    let run = std::process::Command::new("true").status();
    assert!(run.expect("a program that ends at once").success());
}

/// How often both loads gave the old value, and in how many turns; stops at the first if `first`.
fn both_old(first: bool, light: impl Fn() + Sync, heavy: impl Fn() + Sync) -> (u32, u32) {
    let _alone = both_processors();
    let words = [Alone::default(), Alone::default()];
    // Each thread says to which turn it has come, so that they meet in the middle of each.
    let here = [Alone::default(), Alone::default()];
    let seen = [Alone::default(), Alone::default()];
    let over = Alone::default();
    let begun = Instant::now();
    let limit = if first { PATIENCE } else { LIMIT };
    let side = |me: usize, fence: &(dyn Fn() + Sync)| {
        stay_on(me);
        have_registration_seen();
        let cold: Vec<Alone> = std::iter::repeat_with(Alone::default).take(COLD).collect();
        let mut found = 0;
        for turn in 1.. {
            words[me].0.store(0, Ordering::Relaxed);
            meet(&here, me, 2 * turn - 1);
            if over.0.load(Ordering::Relaxed) != 0 {
                return (found, turn - 1);
            }
            // Not always at the same distance.
            for _ in 0..turn % (37 + 4 * me as u32) {
                std::hint::spin_loop();
            }
            let from = turn as usize * AHEAD % COLD;
            for line in &cold[from..from + AHEAD] {
                line.0.store(turn, Ordering::Relaxed);
            }
            words[me].0.store(1, Ordering::Relaxed);
            fence();
            let other = words[1 - me].0.load(Ordering::Relaxed);
            seen[me].0.store(other, Ordering::Relaxed);
            meet(&here, me, 2 * turn);
            found += u32::from(seen.iter().all(|seen| seen.0.load(Ordering::Relaxed) == 0));
            let enough = turn >= TURNS && !first || first && found > 0;
            if me == 0 && (enough || begun.elapsed() > limit) {
                over.0.store(1, Ordering::Relaxed);
            }
        }
        (found, 0)
    };
    std::thread::scope(|scope| {
        let heavy = scope.spawn(|| side(1, &heavy));
        let light = scope.spawn(|| side(0, &light));
        heavy.join().expect("no panic");
        light.join().expect("no panic")
    })
}

fn meet(here: &[Alone; 2], me: usize, turn: u32) {
    here[me].0.store(turn, Ordering::SeqCst);
    let mut polls = 0u32;
    while here[1 - me].0.load(Ordering::SeqCst) < turn {
        polls += 1;
        if polls.is_multiple_of(1 << 12) {
            // There may be one processor for both.
            std::thread::yield_now();
        }
    }
}

#[test]
fn the_pair_of_fences_orders_stores_before_loads() {
    let fence = HeavyFence::register();
    let strong = !fence.is_expedited();
    let (found, turns) = both_old(false, || light_fence(strong), || fence.issue());
    assert!(turns > 0);
    assert_eq!(
        found, 0,
        "both loads were before both stores, in {turns} turns"
    );
}

/// What is forbidden above does happen here without the fences: else the test above could not fail.
#[test]
fn without_the_pair_the_machine_shows_the_weak_outcome() {
    let none = || compiler_fence(Ordering::SeqCst);
    weak_outcome_is_seen("no fence", both_old(true, none, none));
}

/// Half of the pair is not enough: the light side alone is no fence.
#[test]
fn half_of_the_pair_is_seen_to_fail() {
    let fence = HeavyFence::register();
    if !fence.is_expedited() {
        return;
    }
    let full = || onecopy_shm::sync::fence(Ordering::SeqCst);
    let light = || light_fence(false);
    weak_outcome_is_seen("half of the pair", both_old(true, light, full));
}

/// x86-64 has store buffers, so two processors show it sooner or later. One processor never does; of others nothing is
/// assumed.
fn weak_outcome_is_seen(with: &str, (found, turns): (u32, u32)) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if cfg!(target_arch = "x86_64") && processors > 1 {
        assert!(
            found > 0,
            "{with}: no weak outcome in {turns} turns on {processors} processors"
        );
    } else if found == 0 {
        let _ = writeln!(
            std::io::stderr(),
            "litmus: {with}: no weak outcome in {turns} turns on {processors} processors"
        );
    }
}
