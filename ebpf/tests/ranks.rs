// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the pages of living ranks say from outside is what the ranks did, to the byte.

#[path = "support/looks.rs"]
mod looks;
#[path = "../../tests/harness/processes.rs"]
mod processes;

use looks::{rank_of, rank_of_peer, stay, watch};
use onecopy::{Comm, HeapBuf, Runtime};
use onecopy_trace::observed::{Mechanism, Observed};
use processes::{Ranks, body};
use std::collections::BTreeMap;

const SHORT: (u64, usize) = (100, 8);
const LONG: (u64, usize) = (5, 1 << 20);
/// What only rank 0 sends beside.
const ODD: usize = 12_345;

#[test]
fn as_rank() {
    let Some(layer) = body() else { return };
    let rt = Runtime::init().expect("init");
    let world = rt.world();
    let mut heap: HeapBuf = rt.alloc(LONG.1).expect("memory");
    let mut plain = vec![1_u8; LONG.1];
    match layer.as_str() {
        "put" => {
            let long = if world.rank() == 0 {
                &mut plain[..]
            } else {
                &mut heap[..]
            };
            exchange(&world, LONG.0, long, 0);
        }
        "both" if world.rank() == 0 => {
            // Until it was in time to write a part: the receiver begins at the same moment.
            loop {
                world.send(&plain, 1, 7).expect("send");
                let more = rt.counters().get("put_bytes") == Some(0);
                world.send(&[u8::from(more)], 1, 7).expect("send");
                if !more {
                    break;
                }
            }
        }
        "both" => {
            let mut more = [1_u8];
            while more == [1] {
                world.recv(&mut heap[..], 0, 7).expect("recv");
                world.recv(&mut more, 0, 7).expect("recv");
            }
        }
        layer => {
            let long = if layer == "heap" {
                &mut heap[..]
            } else {
                &mut plain[..]
            };
            for first in [0, 1] {
                exchange(&world, SHORT.0, &mut [0; SHORT.1], first);
                exchange(&world, LONG.0, long, first);
            }
            exchange(&world, 1, &mut long[..ODD], 0);
        }
    }
    stay();
    drop(world);
    rt.finalize().expect("finalize");
}

/// `first` sends so many messages to the other.
fn exchange(world: &Comm, times: u64, buf: &mut [u8], first: usize) {
    for _ in 0..times {
        if world.rank() == first {
            world.send(buf, 1 - first, 7).expect("send");
        } else {
            world.recv(buf, first, 7).expect("recv");
        }
    }
}

/// Messages and bytes, by the receiver's rank and how they came.
type Matrix = BTreeMap<(u32, Mechanism), (u64, u64)>;

fn matrix(observed: &Observed, job: &str) -> Matrix {
    let mut matrix = Matrix::new();
    for (key, counts) in &observed.pairs {
        if let Some(sink) = rank_of(observed, job, key.caller) {
            let Some(source) = rank_of_peer(observed, job, key.peer) else {
                return Matrix::new();
            };
            assert_eq!(source, 1 - sink);
            matrix.insert((sink, key.mechanism), (counts.calls, counts.bytes));
        }
    }
    matrix
}

fn expected(short: Mechanism, long: Mechanism) -> Matrix {
    let mut matrix = Matrix::new();
    let mut add = |rank, mechanism, messages: u64, len: usize| {
        let entry: &mut (u64, u64) = matrix.entry((rank, mechanism)).or_default();
        entry.0 += messages;
        entry.1 += messages * len as u64;
    };
    for rank in [0, 1] {
        add(rank, short, SHORT.0, SHORT.1);
        add(rank, long, LONG.0, LONG.1);
    }
    add(1, Mechanism::Cico, 1, ODD);
    matrix
}

/// Two ranks whose long messages may go by `layers` only.
fn ranks(body: &str, layers: &str) -> Ranks {
    Ranks::new(2, body)
        .env("ONECOPY_LAYERS", layers)
        .env("ONECOPY_EAGER_MAX", "64K")
        .env("ONECOPY_HEAP_MIN", "64K")
        // A pair compares no ways then.
        .env("ONECOPY_CMA_MIN", "64K")
}

fn check(layer: &str, layers: &str, long: Mechanism) {
    let expected = expected(Mechanism::Cico, long);
    let is_expected = |seen: &Matrix| *seen == expected;
    let (seen, after, job) = watch(ranks(layer, layers), layer, matrix, is_expected);
    assert_eq!(seen, expected, "{layer}");
    // And what has ended keeps its figures.
    let tasks = after.tasks.values();
    let ended = tasks.filter(|task| task.ended && task.job.as_ref() == Some(&job));
    assert_eq!(ended.count(), 2, "{layer}");
    let sum = |matrix: &Matrix| matrix.values().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(sum(&matrix(&after, &job)) >= sum(&expected));
}

#[test]
fn the_matrix_is_the_traffic_by_cico() {
    check("cico", "cico", Mechanism::Cico);
}

#[test]
fn the_matrix_is_the_traffic_by_cma() {
    check("cma", "cma,cico", Mechanism::Cma);
}

#[test]
fn the_matrix_is_the_traffic_by_heap() {
    check("heap", "heap,cico", Mechanism::Heap);
}

/// The matrix, and the bytes that rank 0 has counted as written to the other.
fn written(observed: &Observed, job: &str) -> (Matrix, u64) {
    let mut counters = observed.counters.iter();
    let sender = counters.find(|(pid, _)| rank_of(observed, job, **pid) == Some(0));
    let mut all = sender.into_iter().flat_map(|(_, counters)| counters);
    let put = all.find(|(name, _)| *name == "put_bytes");
    (matrix(observed, job), put.map_or(0, |(_, bytes)| *bytes))
}

const PUT: u64 = LONG.0 * LONG.1 as u64;

#[test]
fn what_a_sender_writes_is_in_the_row_of_the_receiver() {
    let expected = Matrix::from([((1, Mechanism::Heap), (LONG.0, PUT))]);
    let is_expected = |seen: &(Matrix, u64)| *seen == (expected.clone(), PUT);
    // The receiver has no way to read, so the sender writes into its heap.
    let (seen, ..) = watch(ranks("put", "heap,cico"), "put", written, is_expected);
    assert_eq!(seen, (expected.clone(), PUT));
}

#[test]
fn of_a_message_that_both_copy_each_part_counts_as_it_came() {
    let is_expected = |(matrix, put): &(Matrix, u64)| {
        let count = |mechanism| matrix.get(&(1, mechanism)).copied().unwrap_or_default();
        let (heap, cma, cico) = (
            count(Mechanism::Heap),
            count(Mechanism::Cma),
            count(Mechanism::Cico),
        );
        // As many messages as words behind them, which have a byte each.
        let all = (cico.0, cico.0 * LONG.1 as u64);
        *put > 0 && heap.1 == *put && (heap.0 + cma.0, heap.1 + cma.1) == all && cico.0 == cico.1
    };
    let ranks = ranks("both", "heap,cma,cico").env("ONECOPY_COOP_MIN", "64K");
    let (seen, ..) = watch(ranks, "both", written, is_expected);
    assert!(is_expected(&seen), "{seen:?}");
}
