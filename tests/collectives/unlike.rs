// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs whose members call a collective with unlike lengths: an error of theirs, and no hang.

use crate::processes::limited;
use onecopy::coll::PredefinedOp;
use onecopy::{Comm, Error, Knobs, Result, Runtime, local_with};

const LONG: usize = 128 << 10;

/// Two ranks do `body`, each with its own number of elements. Both then meet, so that neither leaves. One of the two at
/// least hears of it: a rank that needs nothing of the other is through before that.
fn unlike(
    what: &str,
    lengths: [usize; 2],
    body: impl Fn(&Runtime, &Comm, usize) -> Result<()> + Sync,
) {
    for (first, second) in [(0, 1), (1, 0)] {
        let lengths = [lengths[first], lengths[second]];
        limited(&format!("{what} of {lengths:?}"), || {
            local_with(2, &Knobs::default(), |rt| {
                let comm = rt.world().dup().expect("dup");
                let called = body(&rt, &comm, lengths[rt.rank()]);
                let met = comm.barrier();
                let error = called.and(met).expect_err("lengths are not alike");
                // The other rank hears that the communicator was given up.
                use Error::{Collective, PeerLeft, Truncated};
                let names_it = matches!(
                    error,
                    Collective { .. } | PeerLeft { .. } | Truncated { .. }
                );
                assert!(names_it, "{what} of {lengths:?}: {error}");
                // What is no collective of that communicator goes on.
                rt.world().barrier().expect("the world has not failed");
            });
        });
    }
}

/// Short beside short, beside a slot, and beside what is read in place or by halves.
fn all(what: &str, body: impl Fn(&Runtime, &Comm, usize) -> Result<()> + Sync) {
    for lengths in [[1, 2], [1, 64], [1, LONG], [64, LONG], [LONG, 2 * LONG]] {
        unlike(what, lengths, &body);
    }
}

#[test]
fn reductions_of_unlike_vectors_are_errors() {
    let sum = PredefinedOp::Sum;
    all("allreduce", |_, comm, len| {
        comm.allreduce(&vec![1u64; len], &mut vec![0; len], sum)
    });
    all("reduce", |_, comm, len| {
        comm.reduce(&vec![1u64; len], &mut vec![0; len], sum, 0)
    });
    all("scan", |_, comm, len| {
        comm.scan(&vec![1u64; len], &mut vec![0; len], sum)
    });
    all("exscan", |_, comm, len| {
        comm.exscan(&vec![1u64; len], &mut vec![0; len], sum)
    });
    all("reduce_scatter_block", |_, comm, len| {
        comm.reduce_scatter_block(&vec![1u64; 2 * len], &mut vec![0; len], sum)
    });
}

#[test]
fn moves_of_unlike_lengths_are_errors() {
    all("bcast", |_, comm, len| comm.bcast(&mut vec![1u64; len], 0));
    all("gather", |_, comm, len| {
        comm.gather(&vec![1u64; len], &mut vec![0; 2 * len], 0)
    });
    all("scatter", |_, comm, len| {
        comm.scatter(&vec![1u64; 2 * len], &mut vec![0; len], 0)
    });
    all("allgather", |_, comm, len| {
        comm.allgather(&vec![1u64; len], &mut vec![0; 2 * len])
    });
    all("alltoall", |_, comm, len| {
        comm.alltoall(&vec![1u64; 2 * len], &mut vec![0; 2 * len])
    });
}

/// A member that is through without giving what another one waits for: the line alone does not tell.
#[test]
fn a_member_that_ends_early_keeps_nobody_waiting() {
    for lengths in [[64, LONG], [LONG, 2 * LONG]] {
        unlike("alltoall in place", lengths, |_, comm, len| {
            comm.alltoall_in_place(&mut vec![1u64; 2 * len])
        });
    }
    // The root of a long broadcast writes half of it where members say, and one without a buffer says nothing.
    limited("bcast to nothing", || {
        local_with(2, &Knobs::default(), |rt| {
            let comm = rt.world().dup().expect("dup");
            let called = if rt.rank() == 0 {
                let mut mapped = rt.alloc(8 * LONG).expect("alloc");
                comm.bcast(&mut mapped[..], 0)
            } else {
                comm.bcast::<u8>(&mut [], 0)
            };
            let met = comm.barrier();
            called.and(met).expect_err("lengths are not alike");
        });
    });
}

/// Nobody reads by the kernel, so that one reader alone is sent messages on every machine.
fn without_calls() -> Knobs {
    Knobs::from_iter([("ONECOPY_LAYERS", "self,heap,cico")])
        .expect("layers")
        .0
}

/// Members that call different collectives, or name different roots: each call ends, and so does the next one. Where
/// neither needs the other, nobody has to hear of it.
#[test]
fn calls_of_different_collectives_end() {
    fn bcast(comm: &Comm, len: usize) -> Result<()> {
        comm.bcast(&mut vec![1u8; len], 0)
    }
    fn gather(comm: &Comm, len: usize, root: usize) -> Result<()> {
        comm.gather(&vec![1u8; len], &mut vec![0; 2 * len], root)
    }
    type Call = fn(&Comm) -> Result<()>;
    let barrier: Call = |comm| comm.barrier();
    let pairs: [(&str, Call, Call); 11] = [
        (
            "bcast of much and of nothing",
            |c| bcast(c, 4 << 20),
            |c| bcast(c, 0),
        ),
        (
            "bcast of little and of nothing",
            |c| bcast(c, 8 << 10),
            |c| bcast(c, 0),
        ),
        ("bcast of much, barrier", |c| bcast(c, 4 << 20), barrier),
        ("barrier, bcast of some", barrier, |c| bcast(c, 64 << 10)),
        (
            "allgather of 8 bytes, barrier",
            |c| c.allgather(&[1u64], &mut [0; 2]),
            barrier,
        ),
        (
            "two roots that take much",
            |c| gather(c, 4 << 20, 0),
            |c| gather(c, 4 << 20, 1),
        ),
        (
            "two roots that take some",
            |c| gather(c, 64 << 10, 0),
            |c| gather(c, 64 << 10, 1),
        ),
        (
            "two that give much",
            |c| gather(c, 4 << 20, 1),
            |c| gather(c, 4 << 20, 0),
        ),
        (
            "two that give some",
            |c| gather(c, 64 << 10, 1),
            |c| gather(c, 64 << 10, 0),
        ),
        (
            "gather of much and of nothing",
            |c| gather(c, 4 << 20, 1),
            |c| gather(c, 0, 1),
        ),
        (
            "gather, allgather",
            |c| gather(c, 64 << 10, 1),
            |c| c.allgather(&vec![1u8; 64 << 10], &mut vec![0; 128 << 10]),
        ),
    ];
    for ((what, first, second), knobs) in pairs
        .into_iter()
        .flat_map(|pair| [(pair, Knobs::default()), (pair, without_calls())])
    {
        limited(what, || {
            local_with(2, &knobs, |rt| {
                let comm = rt.world().dup().expect("dup");
                let call = if rt.rank() == 0 { first } else { second };
                let called = call(&comm);
                let met = comm.barrier();
                if let Err(error) = called.and(met) {
                    let named = matches!(error, Error::Collective { .. } | Error::PeerLeft { .. });
                    assert!(named, "{what}: {error}");
                }
                rt.world().barrier().expect("the world has not failed");
            });
        });
    }
}

/// What nobody takes keeps no sender waiting, however often.
#[test]
fn what_is_never_taken_keeps_nobody_waiting() {
    limited("bcasts to nothing", || {
        local_with(2, &without_calls(), |rt| {
            let comm = rt.world().dup().expect("dup");
            let len = if rt.rank() == 0 { 8 << 10 } else { 0 };
            let mut buffer = vec![1u8; len];
            for _ in 0..1000 {
                if comm.bcast(&mut buffer, 0).is_err() {
                    break;
                }
            }
            let _ = comm.barrier();
            let held = rt.counters().buffers_peak_bytes;
            let credit = Knobs::default().eager_credit as u64;
            assert!(held <= 2 * credit, "{held} bytes are held");
            rt.world().barrier().expect("the world has not failed");
        });
    });
}
