// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `onecopy info collectives` says of a collective is what its members do, by their counters. Random are ranks,
//! layers, costs and knobs, the collective, and the memory. Sizes are so, too, or lie where decisions change.

#[path = "harness/memory.rs"]
mod memory;

use memory::Memory;
use onecopy::coll::nodes::MembersByNode;
use onecopy::coll::select::explain::{Choice, Table};
use onecopy::coll::{Collective, ElemType, Op, Parts, PredefinedOp};
use onecopy::machine::Machine;
use onecopy::wireup::local;
use onecopy::{Costs, Knobs, Options, Runtime};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Bytes of an element.
const ELEM: usize = 8;
/// Ranks of a job at most.
const MOST_RANKS: usize = 4;
/// Bytes that a member contributes at most.
const MOST: usize = 600 << 10;

/// A collective, and the bytes of its buffers.
struct Call {
    collective: Collective,
    send: Option<usize>,
    recv: Option<usize>,
    /// Bytes by which the table has it.
    contribution: usize,
}

/// The names in a table.
fn titles(table: &Table) -> Vec<&'static str> {
    let mut titles: Vec<_> = table.choices.iter().map(|row| row.collective).collect();
    titles.dedup();
    titles
}

/// Whether so many ranks are more than this machine's processors.
fn is_oversubscribed(ranks: usize) -> bool {
    ranks > Machine::here().polling_ranks
}

/// The collective of that name on `ranks` ranks, of about `len` bytes a rank.
fn call(title: &str, len: usize, ranks: usize, root: usize) -> Call {
    let elem = ElemType::F64;
    let op = Op::from(PredefinedOp::Sum);
    let part = len / ranks / ELEM * ELEM;
    let len = len / ELEM * ELEM;
    let parts = || Parts::Equal(len);
    let of = |collective, send, recv, contribution| Call {
        collective,
        send,
        recv,
        contribution,
    };
    match title {
        "bcast" => of(Collective::Bcast { root }, None, Some(len), len),
        "gather" => {
            let parts = parts();
            let gather = Collective::Gather { root, parts };
            of(gather, Some(len), Some(len * ranks), len)
        }
        "allgather" => {
            let allgather = Collective::Allgather { parts: parts() };
            of(allgather, Some(len), Some(len * ranks), len)
        }
        "barrier" => of(Collective::Barrier, None, None, 0),
        "scatter" => {
            let parts = parts();
            let scatter = Collective::Scatter { root, parts };
            of(scatter, Some(len * ranks), Some(len), len)
        }
        "scatter, alltoall" | "alltoall" => {
            let parts = || Parts::Equal(part);
            let (send, recv) = (parts(), parts());
            let all = Some(part * ranks);
            // The only reader is offered its part alone.
            let contribution = if ranks == 2 { part } else { part * ranks };
            of(Collective::Alltoall { send, recv }, all, all, contribution)
        }
        "reduce" => of(
            Collective::Reduce { root, elem, op },
            Some(len),
            Some(len),
            len,
        ),
        "allreduce" => of(
            Collective::Allreduce { elem, op },
            Some(len),
            Some(len),
            len,
        ),
        "reduce_scatter" => {
            let parts = Parts::Equal(part);
            let all = part * ranks;
            let what = Collective::ReduceScatter { parts, elem, op };
            of(what, Some(all), Some(part), all)
        }
        "scan" => of(Collective::Scan { elem, op }, Some(len), Some(len), len),
        "exscan" => of(Collective::Exscan { elem, op }, Some(len), Some(len), len),
        other => panic!("no collective is known as {other}"),
    }
}

#[derive(Debug)]
struct Case {
    knobs: Knobs,
    costs: Costs,
    ranks: usize,
    /// The node of each rank.
    nodes: Vec<u32>,
    title: &'static str,
    len: usize,
    root: usize,
    /// Whether the buffers of each rank are memory from `alloc`.
    in_heap: [bool; MOST_RANKS],
}

impl Case {
    /// Whether all ranks have memory of one kind, from `alloc` or not; none: they differ.
    fn in_heap(&self) -> Option<bool> {
        let [first, others @ ..] = &self.in_heap[..self.ranks] else {
            return None;
        };
        others.iter().all(|other| other == first).then_some(*first)
    }
}

/// What counters of all ranks together moved by.
type Moved = BTreeMap<&'static str, u64>;

/// The row of the table for a contribution of so many bytes.
fn choice<'t>(table: &'t Table, title: &str, contribution: usize) -> &'t Choice {
    let len = contribution as u64;
    let mut choices = table.choices.iter().filter(|choice| {
        choice.collective == title && choice.from <= len && choice.to.is_none_or(|to| len <= to)
    });
    let choice = choices.next().expect("a row for each size");
    assert!(choices.next().is_none(), "one row for each size");
    choice
}

fn run(case: &Case) -> Moved {
    let total = Mutex::new(Moved::new());
    std::thread::scope(|scope| {
        let nodes = case.nodes.as_slice().into();
        for wireup in local::world_on(nodes).expect("a job of threads") {
            scope.spawn(|| {
                let options = Options {
                    knobs: case.knobs.clone(),
                    costs: case.costs,
                    wireup: Some(Box::new(wireup)),
                    ..Options::default()
                };
                let rt = Runtime::init_with(options).expect("join");
                let world = rt.world();
                let call = call(case.title, case.len, case.ranks, case.root);
                let memory = |len| Memory::new(&rt, len, case.in_heap[rt.rank()]);
                let (send, mut recv) = (call.send.map(memory), call.recv.map(memory));
                world.barrier().expect("all are connected");
                let before = rt.counters();
                world
                    .run(&call.collective, send.as_deref(), recv.as_deref_mut())
                    .expect("the collective");
                world.barrier().expect("all have done it");
                let now = rt.counters();
                let mut total = total.lock().expect("lock");
                for (counter, by) in now.since(&before) {
                    *total.entry(counter.name).or_default() += by;
                }
            });
        }
    });
    total.into_inner().expect("lock")
}

/// Where contributions stand, and that counters say so.
fn check(case: &Case, table: &Table) -> Result<(), TestCaseError> {
    let contribution = call(case.title, case.len, case.ranks, case.root).contribution;
    let moved = run(case);
    let Some(in_heap) = case.in_heap() else {
        // No row of the table is about that. It has ended well.
        return Ok(());
    };
    let (mapped, plain) = choice(table, case.title, contribution).placement;
    let placement = if in_heap { mapped } else { plain };
    let of = |names: &[&str]| names.iter().map(|name| moved[name]).sum::<u64>();
    let messages = of(&[
        "sends_inline",
        "sends_slots",
        "sends_chunk",
        "sends_rendezvous",
    ]);
    let (mapped, called) = (of(&["map_bytes"]), of(&["get_bytes"]));
    let (put, pieces) = (of(&["put_bytes"]), of(&["coll_in_pieces"]));
    // What is combined where it lies is no copy, and counts as none.
    let combines = matches!(
        case.title,
        "reduce" | "allreduce" | "reduce_scatter" | "scan" | "exscan"
    );
    let title = case.title;
    let seen = format!("{title}: {placement} of {contribution} bytes: {moved:?}");
    prop_assert_eq!(messages > 0, placement == "message", "{}", &seen);
    prop_assert_eq!(pieces > 0, placement == "pieces", "{}", &seen);
    match placement {
        "line" | "slot" => prop_assert_eq!(mapped + called + put, 0, "{}", &seen),
        "copy" => prop_assert!((mapped > 0 || combines) && called == 0, "{}", &seen),
        "buffer" if in_heap && case.knobs.layers.allows("heap") => {
            let is_taken = mapped + put > 0 || combines;
            prop_assert!(is_taken && called == 0, "{}", &seen);
        }
        "buffer" if case.knobs.layers.allows("cma") => prop_assert!(called > 0, "{}", &seen),
        _ => {}
    }
    Ok(())
}

/// A size anywhere, or at a place where decisions change, and beside it.
fn sizes() -> impl Strategy<Value = usize> {
    let edges = [
        0,
        48,
        4096,
        16 << 10,
        64 << 10,
        128 << 10,
        256 << 10,
        512 << 10,
    ];
    let beside = (prop::sample::select(edges.to_vec()), 0..5_usize)
        .prop_map(|(edge, more)| (edge + more * ELEM).saturating_sub(2 * ELEM));
    prop_oneof![3 => beside, 1 => 0..4096_usize, 1 => 0..MOST]
}

/// Memory of one kind for all ranks, or of any kind for each.
fn kinds_of_memory() -> impl Strategy<Value = [bool; MOST_RANKS]> {
    prop_oneof![
        2 => any::<bool>().prop_map(|all| [all; MOST_RANKS]),
        1 => any::<[bool; MOST_RANKS]>(),
    ]
}

/// The seeds, or calls of the kernel that are much cheaper, or dearer.
fn costs() -> impl Strategy<Value = Costs> {
    (-4.0..4.0_f64, any::<bool>()).prop_map(|(factor, as_they_are)| {
        let mut costs = Costs::default();
        let curve = costs
            .named("get")
            .expect("the curve of cross-memory attach");
        if !as_they_are {
            curve.setup_ns *= factor.exp2();
            curve.per_kib_ns *= factor.exp2();
            curve.per_kib_far_ns *= factor.exp2();
        }
        costs
    })
}

/// Ranks dealt to nodes in blocks, in turn, and unevenly.
const NODES: [&[u32]; 6] = [
    &[0, 1],
    &[0, 0, 1],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 0, 0, 1],
    &[0, 1, 2, 2],
];

/// Whether a collective goes on two levels or by messages from rank to rank, and that each rank counts it so.
fn check_between(case: &Case, table: &Table) -> Result<(), TestCaseError> {
    let contribution = call(case.title, case.len, case.ranks, case.root).contribution;
    // A barrier follows, and is counted with it.
    let algorithms = [(case.title, contribution), ("barrier", 0)]
        .map(|(title, len)| choice(table, title, len).algorithm);
    let moved = run(case);
    let of = |name: &str| algorithms.iter().filter(|&&other| other == name).count();
    let levels = ((of("levels") + of("leaders")) * case.ranks) as u64;
    let messages = (of("messages") * case.ranks) as u64;
    prop_assert_eq!(levels + messages, 2 * case.ranks as u64, "{:?}", algorithms);
    let seen = (moved["coll_two_level"], moved["coll_by_messages"]);
    prop_assert_eq!(
        seen,
        (levels, messages),
        "{:?} of {} bytes",
        algorithms,
        contribution
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_is_done(
        ranks in prop_oneof![Just(2), 2..=MOST_RANKS],
        which in any::<Index>(),
        len in sizes(),
        root in 0..2_usize,
        in_heap in kinds_of_memory(),
        costs in costs(),
        layers in prop::sample::select(&["cico", "cico,heap", "cico,cma", "cico,heap,cma"][..]),
        relay_min in prop::option::of(prop::sample::select(&["8K", "100K"][..])),
    ) {
        // A rank that is asked copies what would be read by the kernel, if it happens to wait.
        let knobs = [("ONECOPY_COLL_ASK", "off"), ("ONECOPY_LAYERS", layers)];
        let relay_min = relay_min.map(|min| ("ONECOPY_COLL_RELAY_MIN", min));
        let knobs = Knobs::from_iter(knobs.into_iter().chain(relay_min)).expect("knobs").0;
        let table = Table::new(&knobs, &costs, ranks, is_oversubscribed(ranks));
        let (title, nodes) = (*which.get(&titles(&table)), vec![0; ranks]);
        check(&Case { knobs, costs, ranks, nodes, title, len, root, in_heap }, &table)?;
    }

    /// Between nodes as well.
    #[test]
    fn what_is_said_between_nodes_is_done(
        nodes in prop::sample::select(&NODES[..]),
        which in any::<Index>(),
        len in sizes(),
        root in 0..2_usize,
        in_heap in kinds_of_memory(),
        pool in prop::option::of(prop::sample::select(&["0", "3M"][..])),
    ) {
        let pool = pool.map(|pool| ("ONECOPY_COLL_POOL", pool));
        let knobs = Knobs::from_iter(pool).expect("knobs").0;
        let (costs, ranks, nodes) = (Costs::default(), nodes.len(), nodes.to_vec());
        let members = MembersByNode::of(nodes.iter().copied());
        let table = Table::between(&knobs, &costs, &members, is_oversubscribed(ranks));
        let title = *which.get(&titles(&table));
        check_between(&Case { knobs, costs, ranks, nodes, title, len, root, in_heap }, &table)?;
    }
}

/// The root gives nothing. So it cannot know whether the others' parts stand in slots, as those in other memory would.
#[test]
fn a_root_opens_its_buffer_to_parts_that_do_not_stand_in_slots() {
    for ranks in 2..=MOST_RANKS {
        for len in [4104, 8192, 16 << 10] {
            let case = Case {
                knobs: Knobs::default(),
                costs: Costs::default(),
                ranks,
                nodes: vec![0; ranks],
                title: "gather",
                len,
                root: 0,
                in_heap: [true; MOST_RANKS],
            };
            let moved = run(&case);
            assert_eq!(
                moved["map_bytes"] + moved["put_bytes"],
                (len * (ranks - 1)) as u64
            );
        }
    }
}
