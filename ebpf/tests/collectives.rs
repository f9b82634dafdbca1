// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes through the channels of collectives is in the rows of those to whom it comes, to the byte.

#[path = "support/looks.rs"]
mod looks;
#[path = "../../tests/harness/processes.rs"]
mod processes;

use looks::{rank_of, rank_of_peer, stay, watch};
use onecopy::coll::PredefinedOp::Sum;
use onecopy::{Comm, Runtime};
use onecopy_trace::observed::{Mechanism, Observed};
use processes::{Ranks, body};
use std::collections::{BTreeMap, BTreeSet};

const RANKS: usize = 4;
/// Bytes that a rank gives, or gives to each.
const SIZES: [usize; 4] = [8, 4096, 64 << 10, 1 << 20];
/// What fits into a slot of a channel.
const SLOT: usize = onecopy_shm::layout::COLL_SLOT;

#[test]
fn as_rank() {
    let Some(body) = body() else { return };
    let rt = Runtime::init().expect("init");
    let world = rt.world();
    let longest = RANKS * SIZES[SIZES.len() - 1];
    let (mut send, mut recv) = (vec![0_u8; longest], vec![0_u8; longest]);
    let (mut from, mut to) = (
        rt.alloc(longest).expect("memory"),
        rt.alloc(longest).expect("memory"),
    );
    let (send, recv) = match body.as_str() {
        "heap" => (&mut from[..], &mut to[..]),
        _ => (&mut send[..], &mut recv[..]),
    };
    for len in SIZES {
        all(&world, len, send, recv).expect("collectives");
    }
    stay();
    drop(world);
    rt.finalize().expect("finalize");
}

/// One of each kind.
fn all(world: &Comm, len: usize, send: &mut [u8], recv: &mut [u8]) -> onecopy::Result<()> {
    let every = RANKS * len;
    world.bcast(&mut recv[..len], 0)?;
    world.barrier()?;
    world.allreduce(&send[..len], &mut recv[..len], Sum)?;
    world.allgather(&send[..len], &mut recv[..every])?;
    world.alltoall(&send[..every], &mut recv[..every])?;
    world.alltoall_in_place(&mut recv[..every])?;
    world.scan(&send[..len], &mut recv[..len], Sum)?;
    world.gather(&send[..len], &mut recv[..every], 0)?;
    world.scatter(&send[..every], &mut recv[..len], 0)?;
    world.reduce(&send[..len], &mut recv[..len], Sum, 0)
}

/// Bytes that come from one rank to another in [`all`] of these sizes. `mapped`: all map the buffers.
fn bytes(source: usize, sink: usize, len: usize, mapped: bool) -> usize {
    let short = len <= SLOT;
    let if_so = |so: bool, bytes: usize| if so { bytes } else { 0 };
    let bcast = if_so(source == 0, len);
    // A share of the vector of the other, and the share of the result that it has combined.
    let allreduce = if short { len } else { 2 * len / RANKS };
    let to_each = 3 * len;
    // Of all before, or the prefix that the one before hands on.
    let scan = if_so(
        if short {
            source < sink
        } else {
            source + 1 == sink
        },
        len,
    );
    let gather = if_so(sink == 0, len);
    let scatter = if_so(source == 0, len);
    let helped = mapped && len >= 128 << 10;
    let reduce = match (helped, sink) {
        (false, 0) => len,
        (false, _) => 0,
        (true, 0) => 2 * len / RANKS,
        (true, _) => len / RANKS,
    };
    bcast + allreduce + to_each + scan + gather + scatter + reduce
}

/// Bytes by source and sink, and how they came.
type Seen = (BTreeMap<(usize, usize), u64>, BTreeSet<Mechanism>);

fn seen(observed: &Observed, job: &str) -> Seen {
    let mut seen = Seen::default();
    for (key, counts) in &observed.pairs {
        if let Some(sink) = rank_of(observed, job, key.caller) {
            let Some(source) = rank_of_peer(observed, job, key.peer) else {
                return Seen::default();
            };
            let bytes = seen.0.entry((source as usize, sink as usize)).or_default();
            *bytes += counts.bytes;
            seen.1.insert(key.mechanism);
        }
    }
    seen
}

fn check(body: &str, layers: &str, mechanisms: &[Mechanism]) {
    let mut expected = Seen::default();
    for source in 0..RANKS {
        for sink in (0..RANKS).filter(|&sink| sink != source) {
            let expected_bytes = |len: &usize| bytes(source, sink, *len, body == "heap") as u64;
            let all = SIZES.iter().map(expected_bytes).sum();
            expected.0.insert((source, sink), all);
        }
    }
    expected.1.extend(mechanisms);
    let ranks = Ranks::new(RANKS, body)
        .env("ONECOPY_LAYERS", layers)
        // Each takes all of a broadcast from its root, and nobody is asked to copy what can be read.
        .env("ONECOPY_COLL_RELAY_MIN", "1T")
        .env("ONECOPY_COLL_ASK", "off");
    let (found, ..) = watch(ranks, body, seen, |found| *found == expected);
    assert_eq!(found, expected, "{body}");
}

#[test]
fn rows_are_what_came_through_channels_alone() {
    check("cico", "cico", &[Mechanism::Cico]);
}

#[test]
fn rows_are_what_was_read_by_the_kernel() {
    check("cma", "cma,cico", &[Mechanism::Cma, Mechanism::Cico]);
}

#[test]
fn rows_are_what_was_read_and_written_in_mapped_buffers() {
    check("heap", "heap,cico", &[Mechanism::Heap, Mechanism::Cico]);
}
