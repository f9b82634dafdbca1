// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs of sends and receives against an oracle: what arrives, and in which order.
//!
//! `cargo xtask soak programs` runs the same for as long as it is told to (`TEST_SOAK` seconds).

#[path = "harness/bytes.rs"]
mod bytes;
#[path = "harness/processes.rs"]
mod processes;

use bytes::{check, pattern};
use onecopy::wireup::local;
use onecopy::{ANY_SOURCE, ANY_TAG, Comm, Knobs, Options, Request, Runtime, Source, Tag, Threads};
use processes::{Ranks, limited, say};
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// A small generator: the same numbers on all ranks.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Message {
    from: usize,
    to: usize,
    tag: i32,
    len: usize,
    sync: bool,
    seed: usize,
}

/// The messages of a program, in the order in which each rank sends its own.
fn messages(random: &mut Random, ranks: usize, count: usize) -> Vec<Message> {
    (0..count)
        .map(|seed| {
            let len = match random.below(8) {
                0 => 0,
                1 | 2 => random.below(200),
                3 => random.below(2000),
                4 => random.below(20_000),
                5 => random.below(100_000),
                6 => random.below(400_000),
                _ => random.below(64),
            };
            Message {
                from: random.below(ranks),
                to: random.below(ranks),
                tag: random.below(3) as i32,
                len,
                sync: random.below(6) == 0,
                seed,
            }
        })
        .collect()
}

/// How a rank names what it receives. The same per program and rank, so that the oracle knows what may match.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wildcards {
    Exact,
    AnySource,
    AnyTag,
    Any,
}

/// Takes the message that this receive must have got out of those to come.
#[track_caller]
fn expected(left: &mut Vec<Message>, source: usize, tag: i32, wildcards: Wildcards) -> Message {
    let index = left.iter().position(|m| {
        m.from == source
            && (m.tag == tag || matches!(wildcards, Wildcards::AnyTag | Wildcards::Any))
    });
    left.remove(index.expect("a message that was sent"))
}

/// One phase: each rank sends its messages of the program and receives those for it.
fn run_program(world: &Comm, seed: u64, count: usize) {
    let mut random = Random(seed | 1);
    let all = messages(&mut random, world.size(), count);
    let me = world.rank();
    let mut own = Random((seed ^ (me as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1);
    let wildcards = [
        Wildcards::Exact,
        Wildcards::AnySource,
        Wildcards::AnyTag,
        Wildcards::Any,
    ][own.below(4)];
    let early = own.below(2) == 0;
    let mut left: Vec<_> = all.iter().copied().filter(|m| m.to == me).collect();
    let mut wanted = left.clone();
    own.shuffle(&mut wanted);
    let pattern_of = |m: &Message| -> (Source, Tag) {
        match wildcards {
            Wildcards::Exact => (m.from.into(), m.tag.into()),
            Wildcards::AnySource => (ANY_SOURCE, m.tag.into()),
            Wildcards::AnyTag => (m.from.into(), ANY_TAG),
            Wildcards::Any => (ANY_SOURCE, ANY_TAG),
        }
    };
    const MOST: usize = 400_000;
    let mut sends: Vec<Request<Vec<u8>>> = Vec::new();
    let mut receives: Vec<Request<Vec<u8>>> = Vec::new();
    let mut outgoing = all.iter().filter(|m| m.from == me);
    let mut incoming = wanted.iter();
    let mut next_send = |sends: &mut Vec<_>| {
        let Some(m) = outgoing.next() else {
            return false;
        };
        let bytes = pattern(m.len, m.seed);
        sends.push(if m.sync {
            world.issend(bytes, m.to, m.tag).expect("issend")
        } else {
            world.isend(bytes, m.to, m.tag).expect("isend")
        });
        true
    };
    if early {
        // Sends and receives are started in any order, and looked at between.
        let mut more = (true, true);
        while more.0 || more.1 {
            match own.below(5) {
                0 | 1 => more.0 = next_send(&mut sends),
                2 | 3 => match incoming.next() {
                    Some(m) => {
                        let (source, tag) = pattern_of(m);
                        receives.push(world.irecv(vec![0; MOST], source, tag).expect("irecv"));
                    }
                    None => more.1 = false,
                },
                _ => {
                    onecopy::test_some(&mut sends);
                }
            }
        }
        // Receives match in the order in which they were posted.
        for receive in receives {
            let (got, status) = receive.wait().expect("receive");
            let m = expected(&mut left, status.source, status.tag, wildcards);
            assert_eq!((status.bytes, status.tag), (m.len, m.tag), "{m:?}");
            check(&got[..m.len], m.seed, "posted early");
        }
    } else {
        while next_send(&mut sends) {}
        for m in incoming {
            let (source, tag) = pattern_of(m);
            let mut got = vec![0u8; MOST];
            let status = match own.below(3) {
                0 => world.recv(&mut got, source, tag).expect("recv"),
                1 => {
                    let seen = world.probe(source, tag).expect("probe");
                    let status = world
                        .recv(&mut got, seen.source, seen.tag)
                        .expect("recv of what was seen");
                    assert_eq!(status, seen);
                    status
                }
                _ => {
                    let matched = world.mprobe(source, tag).expect("mprobe");
                    matched.recv(&mut got).expect("recv of what was taken")
                }
            };
            let m = expected(&mut left, status.source, status.tag, wildcards);
            assert_eq!((status.bytes, status.tag), (m.len, m.tag), "{m:?}");
            check(&got[..m.len], m.seed, "received late");
        }
    }
    onecopy::wait_all(sends).expect("sends");
    assert!(left.is_empty(), "{left:?}");
    world.barrier().expect("barrier");
}

/// Settings under which everything has to wait for room more often than not.
const LITTLE: [(&str, &str); 6] = [
    ("ONECOPY_RING_SLOTS", "32"),
    ("ONECOPY_CHUNK_SIZE", "4K"),
    ("ONECOPY_POOL_PER_PEER", "8K"),
    ("ONECOPY_POOL_MAX", "32K"),
    ("ONECOPY_EAGER_CREDIT", "8K"),
    ("ONECOPY_CMA_MIN", "10K"),
];

fn knobs(little: bool) -> Knobs {
    let pairs = if little { &LITTLE[..] } else { &[] };
    Knobs::from_iter(pairs.iter().copied()).expect("knobs").0
}

fn on_threads(ranks: usize, little: bool, seed: u64, count: usize) {
    limited(&format!("seed {seed:#x} on {ranks} ranks"), || {
        onecopy::local_with(ranks, &knobs(little), |rt| {
            run_program(&rt.world(), seed, count);
        });
    });
}

/// Ranks with several threads, each of which runs a program of its own in its own context.
fn on_threads_of_threads(ranks: usize, threads: usize, little: bool, seed: u64, count: usize) {
    limited(&format!("seed {seed:#x}, {threads} threads each"), || {
        std::thread::scope(|scope| {
            for wireup in local::world(ranks).expect("a job of threads") {
                scope.spawn(move || {
                    let options = Options {
                        knobs: knobs(little),
                        threads: Threads::Multiple,
                        wireup: Some(Box::new(wireup)),
                        ..Options::default()
                    };
                    let rt = Runtime::init_with(options).expect("join");
                    std::thread::scope(|scope| {
                        for thread in 0..threads {
                            let world = rt.world().with_context(thread as u32 + 1);
                            let seed = seed.wrapping_add(thread as u64 * 7919);
                            scope.spawn(move || run_program(&world, seed, count));
                        }
                    });
                });
            }
        });
    });
}

/// What a rank does. Not a test of its own: outside of a job it does nothing.
#[test]
fn as_rank() {
    let Some(role) = processes::body() else {
        return;
    };
    let (seed, count) = role.split_once(' ').expect("seed and count");
    let (seed, count) = (seed.parse().expect("seed"), count.parse().expect("count"));
    let rt = Runtime::init_with(Options::from_env().expect("knobs")).expect("join");
    run_program(&rt.world(), seed, count);
    rt.finalize().expect("finalize");
}

fn on_processes(ranks: usize, little: bool, seed: u64, count: usize) {
    let mut job = Ranks::new(ranks, &format!("{seed} {count}"));
    for (name, value) in LITTLE.iter().filter(|_| little) {
        job = job.env(name, value);
    }
    job.run().expect_success();
}

fn few() -> ProptestConfig {
    ProptestConfig {
        cases: 12,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn programs_on_threads(ranks in 1usize..5, little: bool, seed: u64, count in 1usize..150) {
        on_threads(ranks, little, seed, count);
    }

    #[test]
    fn programs_on_processes(ranks in 2usize..5, little: bool, seed: u64, count in 1usize..150) {
        on_processes(ranks, little, seed, count);
    }

    #[test]
    fn programs_on_ranks_of_threads(threads in 4usize..9, little: bool, seed: u64, count in 1usize..60) {
        on_threads_of_threads(2, threads, little, seed, count);
    }
}

/// Goes on for `TEST_SOAK` seconds; a round of each without.
#[test]
fn soak() {
    let seconds = std::env::var("TEST_SOAK").ok();
    let seconds = seconds.map_or(0, |text| text.parse().expect("TEST_SOAK in seconds"));
    let started = Instant::now();
    let mut random = Random(u64::from(std::process::id()) << 20 | 1);
    let mut rounds = 0;
    loop {
        let (seed, little) = (random.below(1 << 30) as u64, random.below(2) == 0);
        let ranks = 2 + random.below(3);
        on_threads(ranks, little, seed, 300);
        on_processes(ranks, little, seed, 300);
        on_threads_of_threads(ranks, 2 + random.below(7), little, seed, 50);
        rounds += 1;
        if started.elapsed() > Duration::from_secs(seconds) {
            return say(&format!("{rounds} rounds"));
        }
    }
}
