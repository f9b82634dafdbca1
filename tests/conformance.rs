// SPDX-License-Identifier: MIT OR Apache-2.0
//! One suite for every layer. Each body runs over each case: a layer that is forced, and where the buffers lie. The
//! ranks are threads, or they are processes.
//!
//! A case whose layer is not available here is skipped only if `tests/expected-skips/` says so. What is skipped is
//! printed with the reason that the layer gave.

#[path = "harness/bytes.rs"]
mod bytes;
#[path = "harness/devices.rs"]
mod devices;
#[path = "harness/memory.rs"]
mod memory;
#[path = "harness/processes.rs"]
mod processes;

#[path = "conformance/cases.rs"]
mod cases;
#[path = "conformance/requests.rs"]
mod requests;
#[path = "conformance/shapes.rs"]
mod shapes;
#[path = "conformance/sizes.rs"]
mod sizes;
#[path = "conformance/skips.rs"]
mod skips;
#[path = "conformance/matching.rs"]
mod tags;

use cases::{Body, CASES, Case, Rank};
use onecopy::local_of_nodes;
use onecopy::wireup::Wireup;
use onecopy::wireup::local::world_of_nodes;
use onecopy::{ANY_SOURCE, Knobs, Options, Runtime, local_with};
use processes::{Ranks, limited, say};
use std::sync::Mutex;

fn bodies() -> Vec<&'static Body> {
    [
        sizes::BODIES,
        shapes::BODIES,
        tags::BODIES,
        requests::BODIES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Runs all bodies that are for so many ranks; the reason if the case's layer is not available.
fn run_bodies(rt: &Runtime, case: &'static Case) -> Option<String> {
    let rank = Rank::new(rt, case);
    if let Some(reason) = rank.lacks() {
        return Some(reason);
    }
    let mut counters = rt.counters();
    for body in bodies() {
        if body.ranks.contains(&rt.size()) {
            say(&format!(
                "{} on rank {} of {}: {}",
                case.name,
                rt.rank(),
                rt.size(),
                body.name
            ));
            (body.run)(&rank);
            counters = rt.counters();
            rank.world.barrier().expect("barrier");
        }
    }
    rank.check_counters(&counters);
    None
}

/// What a rank does. Not a test of its own: outside of a job it does nothing.
#[test]
fn as_rank() {
    let Some(name) = processes::body() else {
        return;
    };
    let case = cases::named(&name);
    let rt = Runtime::init_with(Options::from_env().expect("knobs")).expect("join");
    if let Some(reason) = run_bodies(&rt, case) {
        say(&format!("LACKS {reason}"));
    }
    rt.finalize().expect("finalize");
}

/// Numbers of ranks that some body is for; up to `TEST_RANKS_MAX`, for machines that are slow.
fn counts() -> Vec<usize> {
    let most = std::env::var("TEST_RANKS_MAX").ok();
    let most = most.map_or(usize::MAX, |text| text.parse().expect("TEST_RANKS_MAX"));
    let mut counts: Vec<_> = bodies().iter().flat_map(|b| b.ranks).copied().collect();
    counts.retain(|&count| count <= most);
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn as_threads(name: &str) {
    let case = cases::named(name);
    let (knobs, _, unknown) = Knobs::from_iter(case.knobs()).expect("knobs");
    assert!(unknown.is_empty(), "{unknown:?}");
    // Many ranks are left to the processes.
    for count in counts().into_iter().filter(|&count| count <= 3) {
        let lacks = Mutex::new(Vec::new());
        limited(name, || {
            local_with(count, &knobs, |rt| {
                if let Some(reason) = run_bodies(&rt, case) {
                    lacks.lock().expect("lacks").push(reason);
                }
            });
        });
        let lacks = lacks.into_inner().expect("lacks");
        if let Some(reason) = lacks.first() {
            return skips::expect(case, reason);
        }
    }
}

/// Ranks that share no memory, all of them or some, so that nothing above an endpoint can rely on it.
fn on_nodes(name: &str, more: &[(&'static str, &'static str)]) {
    let case = cases::named(name);
    // Whatever else the case forces, a wire leads to the other nodes.
    let set = case.knobs().into_iter().chain(more.iter().copied());
    let wire = [("ONECOPY_LAYERS", format!("{},tcp", case.layers()))];
    let set = set
        .map(|(knob, value)| (knob, value.to_owned()))
        .chain(wire);
    let (knobs, _, unknown) = Knobs::from_iter(set).expect("knobs");
    assert!(unknown.is_empty(), "{unknown:?}");
    for (ranks, nodes) in [(2, 2), (3, 3), (3, 2)] {
        limited(name, || {
            local_of_nodes(ranks, nodes, &knobs, |rt| {
                assert_eq!(run_bodies(&rt, case), None);
                rt.finalize().expect("finalize");
            });
        });
    }
}

/// As [`on_nodes`], by lanes, from when they have taken over.
fn by_lanes(name: &str, more: &[(&'static str, &'static str)]) {
    let case = cases::named(name);
    let set = case.knobs().into_iter().chain(more.iter().copied());
    let layers = [("ONECOPY_LAYERS", format!("{},verbs,tcp", case.layers()))];
    let set = set
        .map(|(knob, value)| (knob, value.to_owned()))
        .chain(layers);
    let (knobs, _, unknown) = Knobs::from_iter(set).expect("knobs");
    assert!(unknown.is_empty(), "{unknown:?}");
    let most = counts().into_iter().max().unwrap_or(0);
    for (ranks, nodes) in [(2, 2), (3, 3), (3, 2)] {
        if ranks > most {
            continue;
        }
        limited(name, || {
            let fabric = devices::fabric(nodes);
            let world = world_of_nodes(ranks, nodes).expect("a world");
            std::thread::scope(|scope| {
                for wireup in world {
                    let (fabric, knobs) = (&fabric, &knobs);
                    scope.spawn(move || {
                        let node = wireup.node(wireup.rank());
                        let lanes = devices::device(fabric, node);
                        let options = Options {
                            knobs: knobs.clone(),
                            wireup: Some(Box::new(wireup.with_lanes(lanes))),
                            ..Options::default()
                        };
                        let rt = Runtime::init_with(options).expect("join");
                        assert_eq!(run_bodies(&rt, case), None);
                        lanes_carry_all(&rt, nodes);
                        rt.finalize().expect("finalize");
                    });
                }
            });
        });
    }
}

/// Waits until lanes have taken over, whenever that is; from then on nothing goes by the wire.
fn lanes_carry_all(rt: &Runtime, nodes: u32) {
    let world = rt.world();
    while rt.counters().lane_connects < others_of(rt, nodes) {
        assert_eq!(world.iprobe(ANY_SOURCE, 7).expect("a look"), None);
        std::thread::yield_now();
    }
    world.barrier().expect("barrier");
    let before = rt.counters();
    let next = (world.rank() + 1) % world.size();
    let previous = (world.rank() + world.size() - 1) % world.size();
    let (sent, mut got) = (vec![7u8; 100_000], vec![0u8; 100_000]);
    world
        .scope(|scope| {
            scope.irecv(&mut got, previous, 7)?;
            scope.isend(&sent, next, 7)?;
            scope.wait_all()
        })
        .expect("a round");
    assert_eq!(got, sent);
    let after = rt.counters();
    assert_eq!(after.lane_connects, others_of(rt, nodes));
    assert_eq!(
        (after.lane_demotions, after.tcp_bytes),
        (0, before.tcp_bytes)
    );
}

/// How many ranks are on other nodes than this one: they are dealt out in turn.
fn others_of(rt: &Runtime, nodes: u32) -> u64 {
    let node = |rank: usize| rank % nodes as usize;
    let others = (0..rt.size()).filter(|&rank| node(rank) != node(rt.rank()));
    others.count() as u64
}

fn as_processes(name: &str) {
    let case = cases::named(name);
    for count in counts() {
        let mut ranks = Ranks::new(count, name);
        for (knob, value) in case.knobs() {
            ranks = ranks.env(knob, value);
        }
        let ran = ranks.run().expect_success();
        if let Some(reason) = ran.reports("LACKS ").first() {
            return skips::expect(case, reason);
        }
    }
}

macro_rules! suite {
    ($($test:ident: $case:literal;)+) => {
        mod threads {
            $(#[test] fn $test() { super::as_threads($case) })+
        }
        mod ranks {
            $(#[test] fn $test() { super::as_processes($case) })+
        }
        const NAMES: &[&str] = &[$($case),+];
    };
}

suite! {
    cico: "cico";
    cico_in_little_memory: "cico in little memory";
    heap: "heap";
    heap_by_the_receiver_alone: "heap, receiver alone";
    heap_to_plain: "heap to plain";
    plain_to_heap: "plain to heap";
    plain_to_heap_by_put_alone: "plain to heap, put alone";
    cma: "cma";
    cma_by_the_receiver_alone: "cma, receiver alone";
    cma_together_in_small_chunks: "cma, small chunks";
    heap_together_in_small_chunks: "heap, small chunks";
    xpmem_by_extension: "xpmem, extension";
    xpmem_by_extension_receiver_alone: "xpmem, extension, receiver alone";
    xpmem_by_extension_small_chunks: "xpmem, extension, small chunks";
    xpmem_by_extension_few_windows: "xpmem, extension, few windows";
    xpmem_by_extension_earned: "xpmem, extension, earned";
    knem_by_extension: "knem, extension";
    knem_by_extension_receiver_alone: "knem, extension, receiver alone";
    knem_by_extension_small_chunks: "knem, extension, small chunks";
    xpmem_by_plain: "xpmem, plain";
    xpmem_by_plain_receiver_alone: "xpmem, plain, receiver alone";
    xpmem_by_plain_small_chunks: "xpmem, plain, small chunks";
    xpmem_by_plain_few_windows: "xpmem, plain, few windows";
    xpmem_by_plain_earned: "xpmem, plain, earned";
    knem_by_plain: "knem, plain";
    knem_by_plain_receiver_alone: "knem, plain, receiver alone";
    knem_by_plain_small_chunks: "knem, plain, small chunks";
    all_plain: "all, plain";
    all_heap: "all, heap";
    all_without_cico: "heap and cma";
}

#[test]
fn on_nodes_of_their_own() {
    on_nodes("cico", &[]);
}

#[test]
fn on_nodes_of_their_own_in_little_memory() {
    on_nodes("cico in little memory", &[("ONECOPY_TCP_PIECE", "1K")]);
}

/// The kernel has little room, so that writes are taken in part, and chunks come in parts.
#[test]
fn on_nodes_of_their_own_with_little_room_between() {
    on_nodes("cico", &[("ONECOPY_TCP_BUFFER", "16K")]);
}

/// All sleep, and are woken by what comes from other nodes.
#[test]
fn on_nodes_of_their_own_asleep() {
    let waits = [("ONECOPY_WAIT_SPIN", "0"), ("ONECOPY_WAIT_YIELD", "0")];
    on_nodes("cico", &waits);
}

#[test]
fn by_lanes_between_nodes() {
    by_lanes("cico", &[]);
}

/// Little goes into a message, and few are under way.
#[test]
fn by_lanes_between_nodes_in_little_memory() {
    let little = [
        ("ONECOPY_VERBS_SLOT", "1K"),
        ("ONECOPY_VERBS_RECEIVES", "8"),
        ("ONECOPY_VERBS_RECEIVES_MAX", "16"),
        ("ONECOPY_VERBS_SENDS", "8"),
        ("ONECOPY_VERBS_WINDOW", "4"),
    ];
    by_lanes("cico in little memory", &little);
}

/// All sleep, and are woken by what a device tells.
#[test]
fn by_lanes_between_nodes_asleep() {
    let waits = [("ONECOPY_WAIT_SPIN", "0"), ("ONECOPY_WAIT_YIELD", "0")];
    by_lanes("cico", &waits);
}

/// By extended connections, which the ranks of a node share. No device of a bed has them.
#[test]
fn by_extended_connections_between_nodes() {
    if !devices::is_real() {
        by_lanes("cico", &[("ONECOPY_VERBS_MODE", "xrc")]);
    }
}

/// The same, where little goes into a message, few are under way, and all sleep.
#[test]
fn by_extended_connections_between_nodes_in_little_memory() {
    let little = [
        ("ONECOPY_VERBS_MODE", "xrc"),
        ("ONECOPY_VERBS_SLOT", "1K"),
        ("ONECOPY_VERBS_RECEIVES", "8"),
        ("ONECOPY_VERBS_RECEIVES_MAX", "32"),
        ("ONECOPY_VERBS_SENDS", "8"),
        ("ONECOPY_VERBS_WINDOW", "4"),
        ("ONECOPY_WAIT_SPIN", "0"),
        ("ONECOPY_WAIT_YIELD", "0"),
    ];
    if !devices::is_real() {
        by_lanes("cico in little memory", &little);
    }
}

/// By datagrams, whose order is the library's.
#[test]
fn by_datagrams_between_nodes() {
    by_lanes("cico", &[("ONECOPY_VERBS_MODE", "ud")]);
}

/// Some are lost, there is room for few, and all sleep.
#[test]
fn by_datagrams_between_nodes_that_are_lost() {
    let lossy = [
        ("ONECOPY_VERBS_MODE", "ud"),
        ("ONECOPY_VERBS_UD_DROP", "2"),
        ("ONECOPY_VERBS_UD_SEED", "5"),
        ("ONECOPY_VERBS_UD_RECEIVES", "16"),
        ("ONECOPY_VERBS_SENDS", "8"),
        ("ONECOPY_VERBS_WINDOW", "8"),
        ("ONECOPY_WAIT_SPIN", "0"),
        ("ONECOPY_WAIT_YIELD", "0"),
    ];
    by_lanes("cico in little memory", &lossy);
}

/// A message whose length does not fit into 32 bits, by a single copy and through chunks, as threads so that memory is
/// touched once.
#[test]
fn a_message_of_more_than_4_gib() {
    const LEN: usize = (4 << 30) + 4097;
    let available = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let available = available
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok())
        .expect("MemAvailable");
    if available < (LEN >> 10) * 3 / 2 {
        return say(&format!("skipped: {available} KiB of memory are available"));
    }
    let marks = [0, 1 << 20, (2 << 30) - 1, (4 << 30) - 1, 4 << 30, LEN - 1];
    let got = Mutex::new(vec![0u8; LEN]);
    // Through chunks only as much as fits into a short buffer, unless there is time: it is slow where processors are
    // busy.
    let short = if std::env::var_os("TEST_SOAK").is_some() {
        LEN
    } else {
        5 << 20
    };
    for (layers, value, room) in [("heap,cma", 3, LEN), ("cico", 5, short)] {
        let (knobs, ..) = Knobs::from_iter([("ONECOPY_LAYERS", layers)]).expect("knobs");
        limited(layers, || {
            local_with(2, &knobs, |rt| {
                let world = rt.world();
                if rt.rank() == 0 {
                    // Nothing but the marks takes memory.
                    let mut message = vec![0u8; LEN];
                    for mark in marks {
                        message[mark] = value;
                    }
                    world.send(&message, 1, 0).expect("send");
                } else {
                    let mut got = got.lock().expect("buffer");
                    match world.recv(&mut got[..room], 0, 0) {
                        Ok(status) => assert_eq!(status.bytes, LEN),
                        Err(onecopy::Error::Truncated { message, .. }) => {
                            assert_eq!((message, room < LEN), (LEN as u64, true));
                        }
                        Err(error) => panic!("{error}"),
                    }
                    let marks = marks.iter().filter(|&&mark| mark < room);
                    assert!(marks.clone().all(|&mark| got[mark] == value));
                    let parts = got[..room].chunks(1 << 20);
                    let other = parts.filter(|part| part.iter().any(|&byte| byte != 0));
                    assert!(other.count() <= marks.count());
                }
            });
        });
    }
}

#[test]
fn every_case_has_its_test() {
    let cases: Vec<_> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(cases, NAMES);
}
