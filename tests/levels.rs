// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communicators whose members are on several nodes: ranks that die in the middle of a collective, communicators that
//! come and go, and threads. That results are right, `collectives.rs` compares with an oracle.

#[path = "levels/mortal.rs"]
mod mortal;
#[path = "harness/processes.rs"]
mod processes;

use mortal::{Life, mortals};
use onecopy::coll::{Collective, ElemType, Group, Op, Parts, PredefinedOp};
use onecopy::wireup::local;
use onecopy::{Comm, Error, Knobs, Options, Runtime, Threads, local_on};
use processes::limited;
use std::sync::Mutex;

/// Bytes of each rank's contribution: as one block, and in several fragments.
const SIZES: [usize; 3] = [16, 40_000, 300_000];

/// What ranks do together, and the bytes that each gives and takes.
fn kinds(len: usize, size: usize, root: usize) -> Vec<(Collective, usize, usize)> {
    let (elem, all) = (ElemType::F64, len * size);
    let op = || Op::from(PredefinedOp::Sum);
    let own = || Op::user(|left, right| right.copy_from_slice(left));
    let parts = || Parts::Equal(len);
    let (send, recv) = (parts(), parts());
    vec![
        (Collective::Barrier, 0, 0),
        (Collective::Bcast { root }, 0, len),
        (Collective::Allgather { parts: parts() }, len, all),
        (Collective::Alltoall { send, recv }, all, all),
        (
            Collective::Reduce {
                root,
                elem,
                op: op(),
            },
            len,
            len,
        ),
        (Collective::Allreduce { elem, op: own() }, len, len),
        (Collective::Allreduce { elem, op: op() }, 0, len),
        (
            Collective::ReduceScatter {
                parts: parts(),
                elem,
                op: op(),
            },
            all,
            len,
        ),
        (
            Collective::Gather {
                root,
                parts: parts(),
            },
            len,
            all,
        ),
        (Collective::Scan { elem, op: op() }, len, len),
    ]
}

/// Collectives of all kinds and sizes, and an end in which all meet.
fn program(size: usize) -> impl Iterator<Item = (Collective, usize, usize)> {
    let all = SIZES.into_iter().enumerate();
    all.flat_map(move |(number, len)| kinds(len, size, (number + 1) % size))
}

fn buffer(len: usize) -> Option<Vec<u8>> {
    (len > 0).then(|| vec![1u8; len])
}

/// Runs the program with requests that are tested again and again. Gives how often, if it was not stopped before, when
/// `may_go_on` said so. What is under way then is left as it is.
fn tested(comm: &Comm, mut may_go_on: impl FnMut(usize) -> bool) -> Option<usize> {
    let mut tests = 0;
    for (what, send, recv) in program(comm.size()) {
        let started = comm.start(&what, buffer(send), buffer(recv));
        let mut request = started.expect("start");
        loop {
            if !may_go_on(tests) {
                std::mem::forget(request);
                return None;
            }
            tests += 1;
            if request.test() {
                break;
            }
            std::thread::yield_now();
        }
        request.wait().expect("a collective");
    }
    Some(tests)
}

/// Runs the program, and goes on to meet the others, until there is an error.
fn until_error(comm: &Comm) -> Error {
    for (what, send, recv) in program(comm.size()) {
        let (send, mut recv) = (buffer(send), buffer(recv));
        if let Err(error) = comm.run(&what, send.as_deref(), recv.as_deref_mut()) {
            return error;
        }
    }
    loop {
        if let Err(error) = comm.barrier() {
            return error;
        }
    }
}

fn survive(rt: &Runtime, victim: usize, what: &str) {
    let world = rt.world();
    let error = until_error(&world);
    let named = match error {
        Error::PeerDied { rank, .. } => rank == victim,
        Error::Collective { .. } => true,
        _ => false,
    };
    assert!(named, "{what}: rank {}: {error}", rt.rank());
    assert!(world.barrier().is_err(), "{what}: and so do all later ones");
    let left: Vec<usize> = (0..rt.size()).filter(|&rank| rank != victim).collect();
    let me = left.iter().position(|&rank| rank == rt.rank());
    let (me, size) = (me.expect("alive"), left.len());
    let (next, before) = (left[(me + 1) % size], left[(me + size - 1) % size]);
    let mut got = [0];
    world
        .sendrecv(&[rt.rank()], next, 1, &mut got, before, 1)
        .expect("a message between survivors");
    assert_eq!(got, [before], "{what}");
}

fn options(wireup: impl onecopy::wireup::Wireup + 'static, threads: Threads) -> Options {
    Options {
        knobs: Knobs::default(),
        threads,
        wireup: Some(Box::new(wireup)),
        ..Options::default()
    }
}

/// Leaders and others die after any number of steps of their collectives. Everyone else gets an error, on the node of
/// the dead and on others.
#[test]
fn a_death_between_any_two_steps_is_known_to_all() {
    for nodes in [&[0, 0, 1, 1][..], &[0, 1, 0, 1], &[0, 0, 0, 1, 2]] {
        for victim in 0..nodes.len() {
            let steps = Mutex::new(0);
            limited("nobody dies", || {
                local_on(nodes, &Knobs::default(), |rt| {
                    let taken = tested(&rt.world(), |_| true).expect("to the end");
                    if rt.rank() == victim {
                        *steps.lock().expect("lock") = taken;
                    }
                    rt.finalize().expect("finalize");
                });
            });
            let steps = steps.into_inner().expect("lock");
            for step in [
                0,
                1,
                2,
                3,
                5,
                8,
                13,
                steps / 5,
                steps / 3,
                steps / 2,
                steps * 2 / 3,
            ] {
                let what = format!("{nodes:?}: rank {victim} dies after {step} of {steps}");
                limited(&what, || {
                    std::thread::scope(|scope| {
                        for (rank, (wireup, life)) in mortals(nodes).into_iter().enumerate() {
                            let what = &what;
                            scope.spawn(move || {
                                let options = options(wireup, Threads::Single);
                                let rt = Runtime::init_with(options).expect("join");
                                if rank == victim {
                                    die(rt, &life, step);
                                } else {
                                    survive(&rt, victim, what);
                                    rt.finalize().expect("finalize");
                                }
                            });
                        }
                    });
                });
            }
        }
    }
}

/// Dies after `step` tests, or at the end. Nothing is taken back: the memory stays as it is.
fn die(rt: Runtime, life: &Life, step: usize) {
    let world = rt.world();
    let ended = tested(&world, |tests| tests < step);
    assert!(ended.is_none() || step > 0);
    life.end();
    std::mem::forget((rt, world));
}

/// Communicators across nodes are made and dropped: each has two levels, since channels and ids come back.
#[test]
fn communicators_come_and_go() {
    limited("communicators", || {
        local_on(&[0, 1, 0, 1, 0], &Knobs::default(), |rt| {
            let world = rt.world();
            let went = || rt.counters().coll_two_level;
            let all = Group::of(&[4, 1, 2, 3]);
            for round in 0..150u32 {
                let halves = world.split(Some(u32::from(rt.rank() > 2)), 0);
                let made = [
                    Some(world.dup().expect("dup")),
                    halves.expect("split"),
                    (rt.rank() > 0).then(|| world.create_from_group(&all, round).expect("create")),
                ];
                for comm in made.into_iter().flatten() {
                    let before = went();
                    let mut sum = [0u64];
                    comm.allreduce(&[1u64], &mut sum, PredefinedOp::Sum)
                        .expect("allreduce");
                    assert_eq!(sum, [comm.size() as u64]);
                    let spans = comm.group().ranks().any(|rank| rank % 2 != rt.rank() % 2);
                    assert_eq!(went() - before, u64::from(spans), "round {round}");
                }
            }
            rt.finalize().expect("finalize");
        });
    });
}

/// When channels run out, communicators do without levels.
#[test]
fn without_a_channel_everything_goes_by_messages() {
    limited("many communicators", || {
        local_on(&[0, 0, 1, 1], &Knobs::default(), |rt| {
            let world = rt.world();
            let mut kept = Vec::new();
            for _ in 0..80 {
                kept.push(world.dup().expect("dup"));
            }
            let before = rt.counters().coll_by_messages;
            for comm in &kept {
                let mut sum = [0u64];
                comm.allreduce(&[1u64], &mut sum, PredefinedOp::Sum)
                    .expect("allreduce");
                assert_eq!(sum, [4]);
            }
            assert!(rt.counters().coll_by_messages > before);
            rt.finalize().expect("finalize");
        });
    });
}

/// Threads of each rank work on communicators of their own, at a time.
#[test]
fn threads_have_collectives_under_way_at_a_time() {
    let nodes = [0u32, 0, 1, 1];
    limited("threads", || {
        std::thread::scope(|scope| {
            for wireup in local::world_on(nodes.into()).expect("a job") {
                scope.spawn(|| {
                    let options = options(wireup, Threads::Multiple);
                    let rt = Runtime::init_with(options).expect("join");
                    let world = rt.world();
                    let comms: Vec<Comm> = (0..3).map(|_| world.dup().expect("dup")).collect();
                    std::thread::scope(|threads| {
                        for (thread, comm) in comms.iter().enumerate() {
                            threads.spawn(move || many(comm, thread));
                        }
                    });
                    drop(comms);
                    rt.finalize().expect("finalize");
                });
            }
        });
    });
}

fn many(comm: &Comm, thread: usize) {
    for round in 0..30usize {
        let count = [1, 900, 40_000][(round + thread) % 3];
        let own = vec![(comm.rank() + thread) as u64; count];
        let mut sum = vec![0u64; count];
        comm.allreduce(&own, &mut sum, PredefinedOp::Sum)
            .expect("allreduce");
        let size = comm.size();
        let expected = (size * (size - 1) / 2 + size * thread) as u64;
        assert!(sum.iter().all(|&number| number == expected));
        let root = round % size;
        let mut word = vec![if comm.rank() == root { round } else { 0 }; count];
        comm.bcast(&mut word, root).expect("bcast");
        assert!(word.iter().all(|&number| number == round));
    }
}
