// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random collectives against a sequential oracle. They cover every operator, kind of element and size class, random
//! roots and groups, in place, waited for and not, several under way. They run on ranks that are threads and on ranks
//! that are processes.
//!
//! `TEST_SOAK=SECONDS` runs on with new seeds for so long, `TEST_SEED=SEED` begins with another.

#[path = "collectives/cases.rs"]
mod cases;
#[path = "harness/memory.rs"]
mod memory;
#[path = "harness/module.rs"]
mod module;
#[path = "collectives/oracle.rs"]
mod oracle;
#[path = "harness/processes.rs"]
mod processes;
#[path = "collectives/unlike.rs"]
mod unlike;

use cases::{Case, Random};
use memory::Memory;
use onecopy::coll::{ByteRange, Collective, ElemType, Group, Op, Parts, PredefinedOp};
use onecopy::wireup::local;
use onecopy::{Comm, Knobs, Options, Runtime, Scope, Threads, local_of_nodes, local_with};
use processes::{Ranks, limited, say};
use std::sync::Mutex;
use std::time::{Duration, Instant};

struct Prepared {
    case: Case,
    send: Option<Memory>,
    recv: Option<Memory>,
}

fn prepare(
    rt: &Runtime,
    random: &mut Random,
    comm: &Comm,
    largest: usize,
    own: &mut Random,
) -> Prepared {
    let mut case = Case::next(random, comm.size(), comm.rank(), largest);
    let mut memory = |bytes: Option<Vec<u8>>| {
        let bytes = bytes?;
        let mut memory = Memory::new(rt, bytes.len(), own.flip());
        memory.copy_from_slice(&bytes);
        Some(memory)
    };
    let (send, recv) = (memory(case.send.take()), memory(case.recv.take()));
    Prepared { case, send, recv }
}

fn check(prepared: &Prepared, comm: &Comm, what: &str) {
    let Some(expected) = &prepared.case.expected else {
        return;
    };
    let got = prepared.recv.as_deref().expect("a receive buffer");
    let got = &got[..expected.len().min(got.len())];
    let (got, expected) = (
        oracle::unsigned_zeroes(&prepared.case.what, got),
        oracle::unsigned_zeroes(&prepared.case.what, expected),
    );
    if got != expected {
        let index = got.iter().zip(&expected).position(|(g, e)| g != e);
        panic!(
            "{what}: rank {} of {}: {:?}: {} bytes differ from {} first at {index:?}",
            comm.rank(),
            comm.size(),
            prepared.case.what,
            got.len(),
            expected.len()
        );
    }
}

/// Runs `count` random collectives of all ranks, with communicators that come and go.
fn program(rt: &Runtime, seed: u64, count: usize, largest: usize) {
    let world = rt.world();
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    // What is this rank's own business: where its buffers lie.
    let mut own = Random(seed ^ (rt.rank() as u64 + 1) << 32 | 1);
    let mut comms = vec![world.clone(), world.with_context(7)];
    for round in 0..count {
        let what = format!("seed {seed} round {round}");
        if random.below(8) == 0 {
            let made = match random.below(4) {
                0 => Some(world.dup().expect("dup")),
                1 => {
                    let colors = 1 + random.below(3);
                    let color = (rt.rank() + round) % (colors + 1);
                    let key = if random.flip() {
                        -(rt.rank() as i64)
                    } else {
                        0
                    };
                    world
                        .split((color < colors).then_some(color as u32), key)
                        .expect("split")
                }
                kind => {
                    let mut members: Vec<usize> =
                        (0..rt.size()).filter(|_| random.flip()).collect();
                    if random.flip() {
                        members.reverse();
                    }
                    let group = Group::of(&members);
                    if kind == 2 {
                        world.create(&group).expect("create")
                    } else if members.contains(&rt.rank()) {
                        Some(
                            world
                                .create_from_group(&group, round as u32)
                                .expect("create from group"),
                        )
                    } else {
                        None
                    }
                }
            };
            // A communicator that others have and this rank has not keeps its place in the list.
            if let Some(made) = made {
                let mut inner = Random(seed ^ round as u64 | 1);
                for _ in 0..3 {
                    one(rt, &mut inner, &made, largest, &mut own, &what);
                }
                meet(&made, &world);
            }
            continue;
        }
        let comm = comms[usize::from(random.below(6) == 0)].clone();
        match random.below(3) {
            0 | 1 => one(rt, &mut random, &comm, largest, &mut own, &what),
            _ => several(rt, &mut random, &comms, largest, &mut own, &what),
        }
    }
    comms.clear();
}

/// Messages between neighbours of a communicator find their way by its ranks.
fn meet(comm: &Comm, world: &Comm) {
    let (me, size) = (comm.rank(), comm.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    let mut got = [0usize; 1];
    let status = comm
        .sendrecv(&[world.rank()], next, 3, &mut got, before, 3)
        .expect("sendrecv");
    assert_eq!((status.source, got[0]), (before, comm.world_rank(before)));
}

fn one(
    rt: &Runtime,
    random: &mut Random,
    comm: &Comm,
    largest: usize,
    own: &mut Random,
    what: &str,
) {
    let mut p = prepare(rt, random, comm, largest, own);
    let Prepared { case, send, recv } = &mut p;
    comm.run(&case.what, send.as_deref(), recv.as_deref_mut())
        .unwrap_or_else(|error| panic!("{what}: {:?}: {error}", case.what));
    check(&p, comm, what);
}

/// Two to twelve at a time, more than a channel has lines, on two communicators.
fn several(
    rt: &Runtime,
    random: &mut Random,
    comms: &[Comm],
    largest: usize,
    own: &mut Random,
    what: &str,
) {
    let (counts, largest) = ([1 + random.below(10), 1 + random.below(2)], largest / 4);
    let mut prepared = [0, 1].map(|index| {
        (0..counts[index])
            .map(|_| prepare(rt, random, &comms[index], largest, own))
            .collect::<Vec<_>>()
    });
    let fail = |error| panic!("{what}: {error}");
    let [outer_ones, inner_ones] = &mut prepared;
    comms[0].scope(|outer| {
        start(outer, outer_ones).unwrap_or_else(fail);
        comms[1].scope(|inner| {
            start(inner, inner_ones).unwrap_or_else(fail);
            inner.wait_all().map(drop).unwrap_or_else(fail);
        });
        outer.wait_all().map(drop).unwrap_or_else(fail);
    });
    for (prepared, comm) in prepared.iter().zip(comms) {
        prepared.iter().for_each(|p| check(p, comm, what));
    }
}

fn start<'env>(scope: &Scope<'_, 'env>, list: &'env mut [Prepared]) -> onecopy::Result<()> {
    for Prepared { case, send, recv } in list {
        let send = send.as_deref();
        scope.collective(&case.what, send, recv.as_deref_mut())?;
    }
    Ok(())
}

fn soak() -> Option<Duration> {
    let seconds = std::env::var("TEST_SOAK").ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn knobs(settings: &[(&str, &str)]) -> Knobs {
    Knobs::from_iter(settings.iter().copied()).expect("knobs").0
}

/// Settings under which the same must come out. They are all layers, the kernel's copies only, chunks only, no channel,
/// and hardly any temporary memory. They are also broadcasts that receivers take from each other, and owners that are
/// asked to copy.
fn settings() -> [Vec<(&'static str, &'static str)>; 7] {
    [
        vec![],
        vec![("ONECOPY_LAYERS", "cma,cico")],
        vec![("ONECOPY_LAYERS", "cico")],
        vec![("ONECOPY_COLL_POOL", "0")],
        vec![("ONECOPY_COLL_POOL", "3M")],
        vec![
            ("ONECOPY_LAYERS", "cma,cico"),
            ("ONECOPY_COLL_RELAY_MIN", "8K"),
        ],
        vec![("ONECOPY_LAYERS", "cma,cico"), ("ONECOPY_COLL_ASK", "on")],
    ]
}

#[test]
fn collectives_of_threads_agree_with_the_oracle() {
    let begin = Instant::now();
    let mut seed = std::env::var("TEST_SEED").map_or(1, |t| t.parse().expect("a seed"));
    loop {
        for ranks in 1..=17 {
            for (index, setting) in settings().iter().enumerate() {
                // All settings on few ranks; one after the other on many.
                if ranks > 5 && !(ranks + index + seed as usize).is_multiple_of(6) {
                    continue;
                }
                let knobs = knobs(setting);
                let count = if ranks > 5 { 12 } else { 25 };
                let largest = 600_000 / (ranks + 2);
                limited(&format!("{ranks} ranks {setting:?} seed {seed}"), || {
                    local_with(ranks, &knobs, |rt| {
                        program(&rt, seed, count, largest);
                        rt.finalize().expect("finalize");
                    });
                });
            }
        }
        seed += 1;
        if soak().is_none_or(|soak| begin.elapsed() > soak) {
            return;
        }
    }
}

/// Ranks dealt to nodes in blocks, in turn, unevenly, and each alone.
const NODES: [&[u32]; 11] = [
    &[0, 1],
    &[0, 0, 1],
    &[0, 1, 0],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 1, 2, 0, 1],
    &[0, 0, 0, 1, 2],
    &[0, 1, 2, 3, 4, 5],
    &[0, 0, 1, 1, 2, 2, 3, 3],
    &[3, 1, 3, 0, 1, 0, 3, 2],
    &[0, 0, 0, 0, 0, 0, 0, 1],
];

/// On several nodes: all layers, no channel, and hardly any temporary memory.
const BETWEEN: [&[(&str, &str)]; 4] = [
    &[],
    &[("ONECOPY_COLL_POOL", "0")],
    &[("ONECOPY_LAYERS", "cico,tcp")],
    &[("ONECOPY_COLL_POOL", "3M")],
];

/// Communicators whose members share memory have a channel, the others have two levels or send messages; all at a time
/// in one job.
#[test]
fn collectives_on_several_nodes_agree_with_the_oracle() {
    let begin = Instant::now();
    let mut seed = std::env::var("TEST_SEED").map_or(1, |t| t.parse().expect("a seed"));
    loop {
        for (index, nodes) in NODES.into_iter().enumerate() {
            for (turn, setting) in BETWEEN.into_iter().enumerate() {
                if turn > 0 && !(index + turn + seed as usize).is_multiple_of(3) {
                    continue;
                }
                let (ranks, knobs) = (nodes.len(), knobs(setting));
                limited(&format!("{nodes:?} {setting:?} seed {seed}"), || {
                    onecopy::local_on(nodes, &knobs, |rt| {
                        program(&rt, seed, 20, 1_500_000 / (ranks + 2));
                        // Without a channel only communicators whose members are each alone on their nodes do.
                        assert!(rt.counters().coll_two_level > 0 || turn == 1, "{nodes:?}");
                        rt.finalize().expect("finalize");
                    });
                });
            }
        }
        seed += 1;
        if soak().is_none_or(|soak| begin.elapsed() > soak) {
            return;
        }
    }
}

/// Every collective on parts of `len` bytes; gives the most temporary memory that the rank had.
fn temporary(rt: &Runtime, len: usize) -> u64 {
    let world = rt.world();
    let (size, elem, root) = (world.size(), ElemType::F64, 1);
    let (part, listed) = (|| Parts::Equal(len), || Parts::packed(&vec![len; size], 1));
    let sum = || Op::from(PredefinedOp::Sum);
    let own = || Op::user(|left, right| right.copy_from_slice(left));
    let kinds = [
        (Collective::Bcast { root }, 0, len),
        (
            Collective::Gather {
                root,
                parts: part(),
            },
            len,
            len * size,
        ),
        (
            Collective::Scatter {
                root,
                parts: listed(),
            },
            len * size,
            len,
        ),
        (Collective::Allgather { parts: part() }, len, len * size),
        (
            Collective::Alltoall {
                send: listed(),
                recv: part(),
            },
            len * size,
            len * size,
        ),
        (
            Collective::Alltoall {
                send: part(),
                recv: part(),
            },
            0,
            len * size,
        ),
        (
            Collective::Reduce {
                root,
                elem,
                op: own(),
            },
            len,
            len,
        ),
        (Collective::Allreduce { elem, op: sum() }, len, len),
        (Collective::Allreduce { elem, op: own() }, 0, len),
        (
            Collective::ReduceScatter {
                parts: part(),
                elem,
                op: sum(),
            },
            len * size,
            len,
        ),
        (Collective::Scan { elem, op: sum() }, len, len),
        (Collective::Exscan { elem, op: own() }, len, len),
    ];
    for (what, send, recv) in kinds {
        let (send, mut recv) = (vec![1u8; send], vec![0u8; recv]);
        let send = (!send.is_empty()).then_some(&send[..]);
        world
            .run(&what, send, Some(&mut recv))
            .unwrap_or_else(|error| panic!("{what:?}: {error}"));
    }
    rt.counters().buffers_peak_bytes
}

#[test]
fn temporary_memory_does_not_grow_with_the_payload() {
    for setting in settings() {
        for len in [256 << 10, 1 << 20, 8 << 20] {
            limited(&format!("{setting:?} {len}"), || {
                let knobs = knobs(&setting);
                // What two peers send for a collective that a rank has not begun waits within their credit.
                let held = 2 * knobs.eager_credit as u64;
                local_with(3, &knobs, |rt| {
                    let most = temporary(&rt, len);
                    let bound = (1 << 20) + held;
                    assert!(most <= bound, "{setting:?}: {most} bytes for {len}");
                    rt.finalize().expect("finalize");
                });
            });
        }
    }
}

/// A rank with nothing to wait for runs ahead, until the channel is full of what a slow rank has not read. It polls for
/// room then, and in the end a request waits in its place. A rank is slow for longer and for less than that takes.
#[test]
fn rooted_collectives_in_a_row_keep_their_bytes() {
    const ROWS: usize = 120;
    let pause = |round: usize| match round % 24 {
        0 => std::thread::sleep(Duration::from_millis(2)),
        8 | 16 => (0..200).for_each(|_| std::hint::spin_loop()),
        _ => {}
    };
    let content = |round: usize, rank: usize, len: usize| {
        let byte = move |index: usize| (round * 7 + rank * 31 + index) as u8;
        (0..len).map(byte).collect::<Vec<u8>>()
    };
    for (ranks, len) in [(2, 8), (2, 48), (3, 16), (3, 49), (4, 1000), (5, 0)] {
        limited(&format!("{ranks} ranks, {len} bytes"), || {
            local_with(ranks, &Knobs::default(), |rt| {
                let world = rt.world();
                let (me, root) = (rt.rank(), ranks - 1);
                let of_all = |round| {
                    let each = (0..ranks).map(|rank| content(round, rank, len));
                    each.collect::<Vec<_>>().concat()
                };
                let mut all = vec![0; len * ranks];
                let mut one = vec![0; len];
                for round in 0..ROWS {
                    let own = content(round, me, len);
                    if me == root {
                        pause(round);
                    }
                    world.gather(&own, &mut all, root).expect("gather");
                    assert!(me != root || all == of_all(round), "gather {round}");
                }
                for round in 0..ROWS {
                    if me == 0 {
                        pause(round);
                    }
                    let all = of_all(round);
                    world.scatter(&all, &mut one, root).expect("scatter");
                    assert_eq!(one, content(round, me, len), "scatter {round}");
                }
                for round in 0..ROWS {
                    if me == 0 {
                        pause(round);
                    }
                    let sent = content(round, root, len);
                    if me == root {
                        one.copy_from_slice(&sent);
                    }
                    world.bcast(&mut one, root).expect("bcast");
                    assert_eq!(one, sent, "bcast {round}");
                }
                rt.finalize().expect("finalize");
            });
        });
    }
}

#[test]
fn floating_point_results_are_the_same_from_run_to_run() {
    let run = |ranks: usize, count: usize| {
        let results = Mutex::new(vec![Vec::new(); ranks]);
        local_with(ranks, &Knobs::default(), |rt| {
            let world = rt.world();
            // Sums of these depend on their order.
            let own: Vec<f64> = (0..count)
                .map(|i| {
                    (1.0 + (rt.rank() * 31 + i) as f64).powi(((rt.rank() + i) % 40) as i32 - 20)
                })
                .collect();
            let mut sum = vec![0.0; count];
            world
                .allreduce(&own, &mut sum, PredefinedOp::Sum)
                .expect("allreduce");
            results.lock().expect("lock")[rt.rank()] = sum;
            rt.finalize().expect("finalize");
        });
        results.into_inner().expect("lock")
    };
    let bits = |sum: &[f64]| sum.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (ranks, count) in [(3, 5), (4, 20_000), (11, 100), (5, 3000)] {
        let first = run(ranks, count);
        for _ in 0..3 {
            for sum in run(ranks, count) {
                assert_eq!(
                    bits(&sum),
                    bits(&first[0]),
                    "{ranks} ranks, {count} numbers"
                );
            }
        }
    }
}

#[test]
fn bad_calls_are_refused() {
    local_with(2, &Knobs::default(), |rt| {
        let world = rt.world();
        let bad = |result: onecopy::Result<()>, word: &str| {
            let text = result.expect_err(word).to_string();
            assert!(text.contains(word), "{text}");
        };
        bad(world.bcast(&mut [1u8], 2), "no rank 2");
        bad(
            world.allreduce(&[1.0], &mut [], PredefinedOp::Sum),
            "receive buffer",
        );
        bad(
            world.allreduce(&[1.0], &mut [0.0], PredefinedOp::BitAnd),
            "no meaning",
        );
        bad(world.allgather(&[1u8], &mut [0u8; 3]), "evenly");
        let short = Parts::Listed([ByteRange { offset: 0, len: 1 }].into());
        bad(
            world.run(
                &Collective::Allgather { parts: short },
                Some(&[1]),
                Some(&mut [0; 4]),
            ),
            "1 parts",
        );
        // So long that a product with the number of ranks has no place in a word.
        let endless = || Parts::Equal(usize::MAX / 2 + 1);
        let all = Collective::Alltoall {
            send: endless(),
            recv: endless(),
        };
        bad(
            world.run(&all, Some(&[1; 4]), Some(&mut [0; 4])),
            "buffer end at byte",
        );
        let scattered = Collective::ReduceScatter {
            parts: endless(),
            elem: ElemType::U8,
            op: PredefinedOp::Sum.into(),
        };
        bad(
            world.run(&scattered, Some(&[1; 4]), Some(&mut [0; 4])),
            "buffer end at byte",
        );
        // None of them counts.
        let mut sum = [0];
        world
            .allreduce(&[1], &mut sum, PredefinedOp::Sum)
            .expect("allreduce");
        assert_eq!(sum, [2]);
        rt.finalize().expect("finalize");
    });
}

/// A root and the others, or one rank and another, disagree about the length of a part. No rank takes other bytes for
/// its own: someone finds out. That holds in a line, in a slot, in a buffer, in a temporary copy and in a message.
#[test]
fn parts_of_other_lengths_are_refused() {
    let lengths = [
        (8, 4),
        (4, 8),
        (96, 48),
        (1000, 3000),
        (40_000, 20_000),
        (200_000, 400_000),
        (400_000, 4),
    ];
    for ((ranks, nodes), (root_len, len)) in [(2, 1), (3, 1), (3, 2)]
        .into_iter()
        .flat_map(|job| lengths.map(|lengths| (job, lengths)))
    {
        for kind in ["bcast", "gather", "scatter", "allgather", "alltoall"] {
            // Between nodes these go in steps, of which there are as many as the parts are long.
            if kind.starts_with("all") && nodes > 1 {
                continue;
            }
            let what = format!("{kind} of {root_len} and {len}, {ranks} ranks, {nodes} nodes");
            let errors = Mutex::new(Vec::new());
            limited(&what, || {
                local_of_nodes(ranks, nodes, &Knobs::default(), |rt| {
                    let (world, me) = (rt.world(), rt.rank());
                    let part = if me == 0 { root_len } else { len };
                    let (one, all) = (vec![me as u8; part], vec![me as u8; part * ranks]);
                    let (mut to_one, mut to_all) = (one.clone(), all.clone());
                    let result = match kind {
                        "bcast" => world.bcast(&mut to_one, 0),
                        "gather" => world.gather(&one, &mut to_all, 0),
                        "scatter" => world.scatter(&all, &mut to_one, 0),
                        "allgather" => world.allgather(&one, &mut to_all),
                        _ => world.alltoall(&all, &mut to_all),
                    };
                    errors.lock().expect("errors").extend(result.err());
                    // Nobody leaves before all have come so far.
                    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
                    for tag in 0..ranks as i32 {
                        world
                            .sendrecv(&[0u8], next, tag, &mut [0u8], before, tag)
                            .expect("a message");
                    }
                    rt.finalize().expect("finalize");
                });
            });
            assert!(
                !errors.into_inner().expect("errors").is_empty(),
                "{what}: nobody finds out"
            );
        }
    }
}

/// Threads of one rank call the same collective of one communicator, each as often as those of the others. Which calls
/// meet does not matter: the other ranks give the same each time.
#[test]
fn threads_share_a_communicator() {
    const THREADS: usize = 3;
    limited("threads", || {
        std::thread::scope(|scope| {
            for wireup in local::world(3).expect("a job of threads") {
                scope.spawn(|| {
                    let options = Options {
                        threads: Threads::Multiple,
                        wireup: Some(Box::new(wireup)),
                        ..Options::default()
                    };
                    let rt = Runtime::init_with(options).expect("join");
                    let world = &rt.world();
                    std::thread::scope(|threads| {
                        for thread in 0..THREADS {
                            threads.spawn(move || {
                                for round in 0..3000 {
                                    let own = match world.rank() {
                                        0 => (thread * 3000 + round) as u64,
                                        _ => 1,
                                    };
                                    let mut sum = [0];
                                    world
                                        .allreduce(&[own], &mut sum, PredefinedOp::Sum)
                                        .unwrap_or_else(|error| panic!("{round}: {error}"));
                                    if world.rank() == 0 {
                                        assert_eq!(sum, [own + 2]);
                                    }
                                }
                            });
                        }
                    });
                    rt.finalize().expect("finalize");
                });
            }
        });
    });
}

#[test]
fn collectives_of_processes_agree_with_the_oracle() {
    for (ranks, largest, seed, setting) in [
        (2, 200_000, 100, 0),
        (3, 200_000, 101, 1),
        (4, 200_000, 102, 2),
        (2, 200_000, 103, 3),
        (7, 200_000, 104, 0),
        (3, 3_000_000, 105, 0),
        (4, 3_000_000, 106, 2),
        (3, 3_000_000, 107, 5),
        (5, 3_000_000, 108, 5),
        (2, 3_000_000, 109, 6),
        (4, 3_000_000, 110, 6),
    ] {
        let mut job = Ranks::new(ranks, &format!("{seed} {largest}"));
        for (name, value) in &settings()[setting] {
            job = job.env(name, value);
        }
        job.run().expect_success();
    }
}

/// Through the kernel module: what is read in place of attachments, and what is copied.
#[test]
fn collectives_over_the_module_agree_with_the_oracle() {
    // Attachments that come and go: buffers lie in more than one, or in none for a while.
    let few = [
        ("ONECOPY_ATTACH_WINDOW", "2M"),
        ("ONECOPY_ATTACH_BYTES", "4M"),
    ];
    for (index, variant) in module::variants(say).iter().enumerate() {
        for (ranks, more) in [(2, &[][..]), (3, &[]), (3, &few)] {
            let seed = 200 + 10 * index + ranks + more.len();
            let mut job = Ranks::new(ranks, &format!("{seed} 1000000"));
            for (name, value) in variant.knobs.iter().chain(more) {
                job = job.env(name, value);
            }
            let ran = job.run().expect_success();
            let moved: u64 = ran
                .reports("by the module: ")
                .iter()
                .map(|bytes| bytes.parse::<u64>().expect("bytes"))
                .sum();
            assert!(moved > 0, "{}", variant.name);
        }
    }
}

/// A rank begins a collective and then only receives messages that are there whenever it looks. The other one sends
/// them until its own part is complete, which takes steps of both.
#[test]
fn a_collective_moves_while_its_rank_only_talks() {
    for bytes in [9usize, 4 << 10, 1 << 20] {
        limited("a rank that talks", || {
            // Without a copy by one side alone, each piece takes a step of both.
            local_with(2, &knobs(&[("ONECOPY_LAYERS", "cico")]), |rt| {
                let world = rt.world();
                let (peer, send) = (1 - world.rank(), vec![1u8; bytes]);
                let mut sum = vec![0u8; bytes];
                world
                    .scope(|scope| {
                        let request = scope.iallreduce(&send, &mut sum, PredefinedOp::Sum)?;
                        let mut over = [0u8];
                        while over[0] == 0 {
                            if world.rank() == 0 {
                                world.recv(&mut over, peer, 1)?;
                                // It is slower than the sender, so it never waits.
                                (0..1000).for_each(|_| std::hint::spin_loop());
                            } else {
                                over[0] = u8::from(scope.test(request).is_some());
                                world.send(&over, peer, 1)?;
                            }
                        }
                        scope.wait_all().map(drop)
                    })
                    .expect("no collective fails");
                assert!(sum.iter().all(|&byte| byte == 2));
                rt.finalize().expect("finalize");
            });
        });
    }
}

/// What a rank does. Not a test of its own: outside of a job it does nothing.
#[test]
fn as_rank() {
    let Some(body) = processes::body() else {
        return;
    };
    let mut numbers = body.split(' ').map(|n| n.parse().expect("a number"));
    let mut number = || numbers.next().expect("seed and size");
    let (seed, largest) = (number(), number() as usize);
    let rt = Runtime::init_with(Options::from_env().expect("knobs")).expect("join");
    program(&rt, seed, 40, largest);
    let counters = rt.counters();
    let moved = counters.attach_bytes + counters.knem_bytes;
    say(&format!("by the module: {moved}"));
    rt.finalize().expect("finalize");
}
