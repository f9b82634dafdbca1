// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `onecopy info protocols` says of a message is what a transfer does, by its counters: for random sizes, memory,
//! layers and knobs.

use onecopy::CounterSnapshot;
use onecopy::select::explain::{Layers, Memory, Protocol, Table, between_nodes};
use onecopy::{Costs, HeapBuf, Knobs, LayerId, Runtime, local_of_nodes};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

/// Memory of either kind.
enum Bytes {
    Heap(HeapBuf),
    Plain(Vec<u8>),
}

impl Bytes {
    fn new(rt: &Runtime, len: usize, in_heap: bool) -> Self {
        if in_heap {
            Self::Heap(rt.alloc(len.max(1)).expect("memory"))
        } else {
            Self::Plain(vec![0; len])
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Plain(bytes) => bytes,
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Plain(bytes) => bytes,
        }
    }
}

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

/// What one message changed at its sender and at its receiver, and what was said of it before.
struct Seen {
    said: Protocol,
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

/// Sends one message between two ranks that have seen none. The ranks are on so many nodes.
fn send_one(knobs: &Knobs, nodes: u32, len: usize, memory: Memory, receive: Receive) -> Seen {
    let costs = Costs::seeds(&Knobs::default());
    let sent = Mutex::new(None);
    let received = Mutex::new(None);
    local_of_nodes(2, nodes, knobs, |rt| {
        let world = rt.world();
        if rt.rank() == 0 {
            let mut bytes = Bytes::new(&rt, len, memory.from_heap);
            bytes.fill(7);
            world.recv(&mut [0u8; 0], 1, 1).expect("the word");
            let before = rt.counters();
            world.send(&bytes[..len], 1, 7).expect("send");
            *sent.lock().expect("lock") = Some(moved(&rt, &before));
        } else {
            let mut bytes = Bytes::new(&rt, len, memory.to_heap);
            let found = layers(&rt, 0);
            if nodes > 1 {
                // What `info` says without a job, but for what it finds of this host's devices.
                let mut without_job = between_nodes();
                without_job[LayerId::LANE] = found[LayerId::LANE].clone();
                assert_eq!(found, without_job);
            }
            let said = Table::new(knobs, &costs, found).choose(len as u64, memory);
            let before = rt.counters();
            let word = || world.send(&[0u8; 0], 0, 1).expect("the word");
            match receive {
                Receive::Posted => world.scope(|scope| {
                    let posted = scope.irecv(&mut bytes[..len], 0, 7).expect("receive");
                    word();
                    scope.wait(posted).expect("a message");
                }),
                Receive::Blocking => {
                    word();
                    world.recv(&mut bytes[..len], 0, 7).expect("a message");
                }
                Receive::Late => {
                    word();
                    world.probe(0, 7).expect("a message");
                    world.recv(&mut bytes[..len], 0, 7).expect("a message");
                }
            }
            assert!(bytes[..len].iter().all(|&byte| byte == 7));
            *received.lock().expect("lock") = Some((said, moved(&rt, &before)));
        }
        world.barrier().expect("barrier");
    });
    let sender = sent.into_inner().expect("lock").expect("a sender");
    let (said, receiver) = received.into_inner().expect("lock").expect("a receiver");
    Seen {
        said,
        sender,
        receiver,
    }
}

fn check(seen: &Seen, len: usize) -> Result<(), TestCaseError> {
    let Seen {
        said,
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
    let good = match said {
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
        good,
        "{said} was said; sends {eager:?}, bytes by way {ways:?}, pipeline {} and {}, shared chunks {} and {}",
        s["pipeline_bytes"],
        r["pipeline_bytes"],
        s["coop_chunks_sender"],
        r["coop_chunks_receiver"]
    );
    Ok(())
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![0..200usize, 200..20_000usize, 20_000..2_000_000usize]
}

/// A knob, or its absence.
fn knob(
    name: &'static str,
    values: &'static [&'static str],
) -> impl Strategy<Value = Option<(&'static str, &'static str)>> {
    prop::option::of(prop::sample::select(values).prop_map(move |value| (name, value)))
}

/// A knob, and values that it may have.
type Values = (&'static str, &'static [&'static str]);

/// Some of the knobs.
fn some_of(knobs: &'static [Values]) -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let each: Vec<_> = knobs
        .iter()
        .map(|(name, values)| knob(name, values))
        .collect();
    each.prop_map(|all| all.into_iter().flatten().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_is_done(
        len in sizes(),
        from_heap in any::<bool>(),
        to_heap in any::<bool>(),
        receive in prop::sample::select(&[Receive::Posted, Receive::Blocking, Receive::Late]),
        layers in knob("ONECOPY_LAYERS", &["cico", "cico,heap", "cico,cma", "cico,heap,cma"]),
        mins in some_of(&[
            ("ONECOPY_CMA_MIN", &["0", "32K", "1M"]),
            ("ONECOPY_HEAP_MIN", &["0", "4K", "128K"]),
            ("ONECOPY_COOP", &["off", "on"]),
            ("ONECOPY_COOP_MIN", &["0", "64K"]),
            ("ONECOPY_COOP_CHUNK", &["4K", "64K"]),
        ]),
        eager in some_of(&[
            ("ONECOPY_EAGER_MAX", &["0", "1K", "16K", "256K"]),
            ("ONECOPY_EAGER_SLOTS_MAX", &["200", "1500"]),
            ("ONECOPY_EAGER_CREDIT", &["1M", "16M"]),
            ("ONECOPY_REWRITTEN_MAX", &["0", "64K"]),
            ("ONECOPY_RING_SLOTS", &["128", "1024"]),
        ]),
        chunks in some_of(&[
            ("ONECOPY_CHUNK_SIZE", &["4K", "64K"]),
            ("ONECOPY_PIPELINE_CHUNK", &["4K", "64K"]),
            ("ONECOPY_PIPELINE_DEPTH", &["2", "8"]),
            ("ONECOPY_POOL_PER_PEER", &["512K", "4M"]),
        ]),
    ) {
        let pairs = layers.into_iter().chain(mins).chain(eager).chain(chunks);
        let knobs = Knobs::from_iter(pairs).expect("knobs").0;
        let memory = Memory { from_heap, to_heap };
        check(&send_one(&knobs, 1, len, memory, receive), len)?;
    }

    /// Between nodes as well: in the ring's records, in chunks, or by the pipeline, and in no other way.
    #[test]
    fn what_is_said_between_nodes_is_done(
        len in sizes(),
        from_heap in any::<bool>(),
        to_heap in any::<bool>(),
        receive in prop::sample::select(&[Receive::Posted, Receive::Blocking, Receive::Late]),
        eager in knob("ONECOPY_EAGER_MAX", &["0", "1K", "16K", "256K"]),
        credit in knob("ONECOPY_EAGER_CREDIT", &["1M", "16M"]),
        slots in knob("ONECOPY_EAGER_SLOTS_MAX", &["200", "1500"]),
        piece in knob("ONECOPY_TCP_PIECE", &["1K", "1M"]),
    ) {
        let pairs = [eager, credit, slots, piece].into_iter().flatten();
        let knobs = Knobs::from_iter(pairs).expect("knobs").0;
        let memory = Memory { from_heap, to_heap };
        let seen = send_one(&knobs, 2, len, memory, receive);
        check(&seen, len)?;
        let wire = seen.receiver["tcp_bytes"];
        let in_chunks = matches!(seen.said, Protocol::Chunks | Protocol::Pipeline);
        prop_assert_eq!(wire, if in_chunks { len as u64 } else { 0 });
    }
}
