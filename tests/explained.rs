// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `onecopy info protocols` says of a message is what a transfer does, by its counters. Random are layers, costs
//! and knobs, memory and pieces, how often a buffer is sent and whether it changes. Sizes are so, too, or lie at
//! thresholds and beside them.

#[path = "harness/memory.rs"]
mod memory;

use memory::Memory as Buffer;
use onecopy::select::explain::{Layers, Memory, Message, Protocol, Table, Why, between_nodes};
use onecopy::wireup::local;
use onecopy::{Comm, Costs, CounterSnapshot, Knobs, LayerId, Options, Runtime};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Mutex;

/// The layers of the pair, as `info` has them.
fn layers(rt: &Runtime, peer: usize) -> Layers {
    let mut layers = Layers::default();
    for state in rt.layers(peer).expect("layers") {
        layers[state.layer] = state.refusal;
    }
    layers
}

/// What a counter has moved by.
type Moved = BTreeMap<&'static str, u64>;

/// What one message changed at its sender and at its receiver, and what was predicted before.
struct MessageTrace {
    predicted: Vec<Protocol>,
    sender: Moved,
    receiver: Moved,
}

fn moved(rt: &Runtime, before: &CounterSnapshot) -> Moved {
    let now = rt.counters();
    let moved = now.since(before);
    moved.map(|(counter, by)| (counter.name, by)).collect()
}

/// How a message is received.
#[derive(Debug, Clone, Copy)]
enum Receive {
    /// By a request that waits for it.
    Posted,
    /// By a call that waits for it.
    Blocking,
    /// By a call after it has come.
    Late,
}

/// The size of a message.
#[derive(Debug, Clone, Copy)]
enum Size {
    Bytes(usize),
    /// Where one of the pair's protocols ends and the next begins: at one of its thresholds, or a byte beside it.
    Beside(usize, i64),
}

/// No message is longer.
const LONGEST: u64 = 3 << 20;

impl Size {
    fn bytes(self, table: &Table<'_>, memory: Memory) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Beside(which, by) => {
                let t = table.thresholds();
                let ranges = table.ranges(memory).into_iter().map(|range| range.from);
                let own = [
                    t.slots_max as u64 + 1,
                    t.rewritten_max + 1,
                    t.rewritten_heap_max + 1,
                    t.announce_min,
                ];
                let mut begins: Vec<u64> = ranges.chain(own).collect();
                begins.retain(|&begin| begin <= LONGEST);
                let begin = begins[which % begins.len()];
                begin.saturating_add_signed(by) as usize
            }
        }
    }
}

/// A pair of ranks, and what one sends to the other.
#[derive(Debug)]
struct Case {
    knobs: Knobs,
    costs: Costs,
    nodes: u32,
    size: Size,
    message: Message,
    receive: Receive,
    /// So many messages: from the second on the pair has seen transfers.
    times: usize,
}

/// The bytes of a buffer that is in three pieces.
fn thirds(bytes: &[u8]) -> [&[u8]; 3] {
    let (first, rest) = bytes.split_at(bytes.len() / 3);
    let (second, third) = rest.split_at(rest.len() / 2);
    [first, second, third]
}

fn thirds_mut(bytes: &mut [u8]) -> [&mut [u8]; 3] {
    let (first, rest) = bytes.split_at_mut(bytes.len() / 3);
    let (second, third) = rest.split_at_mut(rest.len() / 2);
    [first, second, third]
}

fn send(world: &Comm, bytes: &[u8], in_pieces: bool) {
    if !in_pieces {
        return world.send(bytes, 1, 7).expect("send");
    }
    let pieces = thirds(bytes).map(IoSlice::new);
    world.send_iov(&pieces, 1, 7).expect("send");
}

fn receive(world: &Comm, bytes: &mut [u8], in_pieces: bool) {
    let status = if in_pieces {
        let mut pieces = thirds_mut(bytes).map(IoSliceMut::new);
        world.recv_iov(&mut pieces, 0, 7)
    } else {
        world.recv(bytes, 0, 7)
    };
    status.expect("a message");
}

/// What the byte of the message is that goes as this one.
fn byte_of(case: &Case, round: usize) -> u8 {
    if case.message.rewritten {
        round as u8 + 1
    } else {
        1
    }
}

fn as_sender(case: &Case, rt: &Runtime) -> Vec<Moved> {
    let world = rt.world();
    let mut len = [0_u64];
    world.recv(&mut len, 1, 1).expect("the length");
    let len = len[0] as usize;
    let mut bytes = Buffer::new(rt, len, case.message.memory.from_heap);
    let one = |round| {
        bytes.fill(byte_of(case, round));
        world.recv(&mut [0u8; 0], 1, 1).expect("the word");
        let before = rt.counters();
        send(&world, &bytes[..len], case.message.from_pieces);
        let moved = moved(rt, &before);
        // A barrier would be messages that the receiver counts, too.
        world.recv(&mut [0u8; 0], 1, 2).expect("the word");
        moved
    };
    (0..case.times).map(one).collect()
}

/// What was predicted of each message, and what its arrival changed.
fn as_receiver(case: &Case, rt: &Runtime) -> (usize, Vec<(Vec<Protocol>, Moved)>) {
    let world = rt.world();
    let found = layers(rt, 0);
    if case.nodes > 1 {
        // What `info` says without a job, but for what it finds of this host's devices.
        let mut without_job = between_nodes();
        without_job[LayerId::LANE] = found[LayerId::LANE].clone();
        assert_eq!(found, without_job);
    }
    let table = Table::new(&case.knobs, &case.costs, found);
    let Message { memory, .. } = case.message;
    let len = case.size.bytes(&table, memory);
    world.send(&[len as u64], 0, 1).expect("the length");
    let mut bytes = Buffer::new(rt, len, memory.to_heap);
    let one = |round| {
        let predicted = explained(&table, case, len as u64, round);
        let before = rt.counters();
        let word = || world.send(&[0u8; 0], 0, 1).expect("the word");
        let (buffer, in_pieces) = (&mut bytes[..len], case.message.to_pieces);
        match case.receive {
            Receive::Posted => world.scope(|scope| {
                let posted = if in_pieces {
                    scope.irecv_iov(thirds_mut(buffer).into(), 0, 7)
                } else {
                    scope.irecv(buffer, 0, 7)
                };
                let posted = posted.expect("receive");
                word();
                scope.wait(posted).expect("a message");
            }),
            Receive::Blocking => {
                word();
                receive(&world, buffer, in_pieces);
            }
            Receive::Late => {
                word();
                world.probe(0, 7).expect("a message");
                receive(&world, buffer, in_pieces);
            }
        }
        let byte = byte_of(case, round);
        assert!(bytes[..len].iter().all(|&found| found == byte));
        let moved = moved(rt, &before);
        world.send(&[0u8; 0], 0, 2).expect("the word");
        (predicted, moved)
    };
    (len, (0..case.times).map(one).collect())
}

/// The ways that the message of this round may go. There is one, but where a pair goes by the times that it has seen.
fn explained(table: &Table<'_>, case: &Case, len: u64, round: usize) -> Vec<Protocol> {
    let message = Message {
        rewritten: case.message.rewritten && round > 0,
        ..case.message
    };
    let chosen = table.choose_of(len, message);
    let mut protocols = vec![chosen];
    let announced = !matches!(
        chosen,
        Protocol::Inline | Protocol::Slots | Protocol::Chunks
    );
    if round > 0 && announced {
        // Of a buffer in pieces nobody copies together.
        let alone = |protocol| match protocol {
            Protocol::Cooperative(layer) if message.to_pieces => Protocol::Single(layer),
            other => other,
        };
        // Nor does the sender write to it.
        let memory = Memory {
            to_heap: message.memory.to_heap && !message.to_pieces,
            ..message.memory
        };
        let losers = table.losers(len, memory).into_iter();
        let learned = losers.filter(|loser| loser.why == Why::Learned);
        protocols.extend(learned.map(|loser| alone(loser.protocol)));
    }
    protocols
}

/// Sends messages between two ranks that have seen none.
fn run(case: &Case) -> (usize, Vec<MessageTrace>) {
    // Between some addresses a receiver keeps from the kernel where strings are slow: no table knows of addresses.
    onecopy_shm::copy::assume_slow_strings(false);
    let sent = Mutex::new(None);
    let received = Mutex::new(None);
    std::thread::scope(|scope| {
        for wireup in local::world_of_nodes(2, case.nodes).expect("a job of threads") {
            scope.spawn(|| {
                let options = Options {
                    knobs: case.knobs.clone(),
                    costs: case.costs,
                    wireup: Some(Box::new(wireup)),
                    ..Options::default()
                };
                let rt = Runtime::init_with(options).expect("join");
                if rt.rank() == 0 {
                    *sent.lock().expect("lock") = Some(as_sender(case, &rt));
                } else {
                    *received.lock().expect("lock") = Some(as_receiver(case, &rt));
                }
            });
        }
    });
    let sent = sent.into_inner().expect("lock").expect("a sender");
    let (len, received) = received.into_inner().expect("lock").expect("a receiver");
    let both = sent.into_iter().zip(received);
    let seen = both.map(|(sender, (predicted, receiver))| MessageTrace {
        predicted,
        sender,
        receiver,
    });
    (len, seen.collect())
}

fn check(seen: &MessageTrace, len: usize) -> Result<(), TestCaseError> {
    let MessageTrace {
        predicted,
        sender: s,
        receiver: r,
    } = seen;
    let len = len as u64;
    let eager = [
        s["sends_inline"],
        s["sends_slots"],
        s["sends_chunk"],
        s["sends_rendezvous"],
    ];
    // Bytes by each way: loads from the heap, from attached memory, by the kernel, by the module, by the sender.
    let ways = [
        r["map_bytes"],
        r["attach_bytes"],
        r["get_bytes"],
        r["knem_bytes"],
        s["put_bytes"],
    ];
    let shared = len == 0 || r["coop_chunks_receiver"] + s["coop_chunks_sender"] > 0;
    let only = |these: &[usize]| {
        let mut moved = ways.iter().enumerate().filter(|(_, n)| **n > 0);
        moved.all(|(way, _)| these.contains(&way))
    };
    let both = |way: usize| ways[way] + ways[4] == len && only(&[way, 4]);
    let alone = |way: usize| ways[way] == len && only(&[way]) && r["coop_chunks_receiver"] == 0;
    let way = |layer: LayerId| match layer {
        LayerId::Heap => 0,
        LayerId::Xpmem => 1,
        LayerId::Cma => 2,
        LayerId::Knem => 3,
        _ => panic!("{layer} has no counter here"),
    };
    let is_match = |predicted: &Protocol| match predicted {
        Protocol::Inline => eager == [1, 0, 0, 0],
        Protocol::Slots => eager == [0, 1, 0, 0],
        Protocol::Chunks => eager == [0, 0, 1, 0],
        _ if eager != [0, 0, 0, 1] => false,
        Protocol::Pipeline => s["pipeline_bytes"].max(r["pipeline_bytes"]) == len && only(&[]),
        Protocol::Read => r["lane_reads"] == 1 && only(&[]),
        Protocol::Put => alone(4),
        Protocol::Single(layer) => alone(way(*layer)),
        Protocol::Cooperative(layer) => shared && both(way(*layer)),
    };
    prop_assert!(
        predicted.iter().any(is_match),
        "{predicted:?} was predicted of {len} bytes; sends {eager:?}, bytes by way {ways:?}, pipeline {} and {}, shared chunks {} and {}",
        s["pipeline_bytes"],
        r["pipeline_bytes"],
        s["coop_chunks_sender"],
        r["coop_chunks_receiver"]
    );
    Ok(())
}

fn sizes() -> impl Strategy<Value = Size> {
    prop_oneof![
        (0..200_usize).prop_map(Size::Bytes),
        (200..20_000_usize).prop_map(Size::Bytes),
        (20_000..2_000_000_usize).prop_map(Size::Bytes),
        (any::<usize>(), -1..=1_i64).prop_map(|(which, by)| Size::Beside(which, by)),
        (any::<usize>(), -1..=1_i64).prop_map(|(which, by)| Size::Beside(which, by)),
        (any::<usize>(), -1..=1_i64).prop_map(|(which, by)| Size::Beside(which, by)),
    ]
}

fn messages() -> impl Strategy<Value = Message> {
    let flag = any::<bool>;
    let few = || prop::bool::weighted(0.2);
    (flag(), flag(), few(), few(), flag()).prop_map(
        |(from_heap, to_heap, from_pieces, to_pieces, rewritten)| Message {
            memory: Memory { from_heap, to_heap },
            from_pieces,
            to_pieces,
            rewritten,
        },
    )
}

fn receives() -> impl Strategy<Value = Receive> {
    prop::sample::select(&[Receive::Posted, Receive::Blocking, Receive::Late][..])
}

/// The seeds, each figure of each curve multiplied by up to eight, or divided.
fn costs() -> impl Strategy<Value = Costs> {
    let curves = Costs::names().count();
    let factors = prop::collection::vec((-3.0..3.0_f64, -3.0..3.0_f64, -3.0..3.0_f64), curves);
    let random = factors.prop_map(|factors| {
        let mut costs = Costs::default();
        for (name, (setup, near, far)) in Costs::names().zip(factors) {
            let curve = costs.named(name).expect("its name");
            curve.setup_ns *= setup.exp2();
            curve.per_kib_ns *= near.exp2();
            curve.per_kib_far_ns *= far.exp2();
        }
        costs
    });
    prop_oneof![Just(Costs::default()), random.boxed(), random_seeds()]
}

/// The seeds of either kind of stores.
fn random_seeds() -> impl Strategy<Value = Costs> {
    prop::sample::select(&["owned", "string"][..]).prop_map(|kind| {
        let knobs = Knobs::from_iter([("ONECOPY_CHUNK_COPY", kind)]);
        Costs::seeds(&knobs.expect("a knob").0)
    })
}

/// Any set of the layers of a node.
fn layer_sets() -> impl Strategy<Value = String> {
    let all = ["cico", "heap", "xpmem", "cma", "knem"];
    let some = prop::sample::subsequence(all.to_vec(), 1..=all.len());
    some.prop_map(|names| names.join(","))
}

/// A size for a knob.
fn size_of(
    name: &'static str,
    most: usize,
) -> impl Strategy<Value = Option<(&'static str, String)>> {
    let sizes = prop_oneof![
        0..=most,
        Just(0),
        (0..=most.ilog2()).prop_map(|bit| 1 << bit)
    ];
    let set = sizes.prop_map(move |size| (name, size.to_string()));
    prop::option::weighted(0.3, set)
}

/// A choice for a knob.
fn one_of(
    name: &'static str,
    values: &'static [&'static str],
) -> impl Strategy<Value = Option<(&'static str, String)>> {
    let set = prop::sample::select(values).prop_map(move |value| (name, value.to_owned()));
    prop::option::weighted(0.3, set)
}

type Setting = (&'static str, String);

/// Settings that decide between protocols.
fn thresholds() -> impl Strategy<Value = Vec<Setting>> {
    const M: usize = 1 << 20;
    let all = [
        size_of("ONECOPY_CMA_MIN", M).boxed(),
        size_of("ONECOPY_HEAP_MIN", M).boxed(),
        size_of("ONECOPY_XPMEM_MIN", M).boxed(),
        size_of("ONECOPY_KNEM_MIN", M).boxed(),
        one_of("ONECOPY_COOP", &["off", "on"]).boxed(),
        size_of("ONECOPY_COOP_MIN", M).boxed(),
        one_of("ONECOPY_COOP_CHUNK", &["4K", "64K", "1M"]).boxed(),
        size_of("ONECOPY_EAGER_MAX", M / 4).boxed(),
        size_of("ONECOPY_EAGER_SLOTS_MAX", 4096).boxed(),
        one_of("ONECOPY_EAGER_CREDIT", &["1M", "16M"]).boxed(),
        size_of("ONECOPY_REWRITTEN_MAX", M).boxed(),
    ];
    all.to_vec()
        .prop_map(|all| all.into_iter().flatten().collect())
}

/// Settings of what carries messages.
fn carriers() -> impl Strategy<Value = Vec<Setting>> {
    let all = [
        one_of("ONECOPY_RING_SLOTS", &["128", "1024"]).boxed(),
        one_of("ONECOPY_CHUNK_COPY", &["owned", "string"]).boxed(),
        one_of("ONECOPY_CHUNK_SIZE", &["4K", "64K"]).boxed(),
        one_of("ONECOPY_PIPELINE_CHUNK", &["4K", "64K"]).boxed(),
        one_of("ONECOPY_POOL_PER_PEER", &["512K", "4M"]).boxed(),
    ];
    all.to_vec()
        .prop_map(|all| all.into_iter().flatten().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_is_done(
        size in sizes(),
        message in messages(),
        receive in receives(),
        times in 1..4_usize,
        costs in costs(),
        layers in prop::option::of(layer_sets()),
        thresholds in thresholds(),
        carriers in carriers(),
    ) {
        let layers = layers.map(|layers| ("ONECOPY_LAYERS", layers));
        let knobs = Knobs::from_iter(layers.into_iter().chain(thresholds).chain(carriers));
        let knobs = knobs.expect("knobs").0;
        let case = Case { knobs, costs, nodes: 1, size, message, receive, times };
        let (len, seen) = run(&case);
        for seen in &seen {
            check(seen, len)?;
        }
    }

    /// Between nodes as well: in the ring's records, in chunks, or by the pipeline, and in no other way.
    #[test]
    fn what_is_said_between_nodes_is_done(
        size in sizes(),
        message in messages(),
        receive in receives(),
        times in 1..4_usize,
        costs in costs(),
        eager in size_of("ONECOPY_EAGER_MAX", 256 << 10),
        credit in one_of("ONECOPY_EAGER_CREDIT", &["1M", "16M"]),
        slots in size_of("ONECOPY_EAGER_SLOTS_MAX", 4096),
        piece in one_of("ONECOPY_TCP_PIECE", &["1K", "1M"]),
    ) {
        let pairs = [eager, credit, slots, piece].into_iter().flatten();
        let knobs = Knobs::from_iter(pairs).expect("knobs").0;
        let case = Case { knobs, costs, nodes: 2, size, message, receive, times };
        let (len, seen) = run(&case);
        for seen in &seen {
            check(seen, len)?;
            let wire = seen.receiver["tcp_bytes"];
            let in_chunks = matches!(seen.predicted[0], Protocol::Chunks | Protocol::Pipeline);
            prop_assert_eq!(wire, if in_chunks { len as u64 } else { 0 });
        }
    }
}
