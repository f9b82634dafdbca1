// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks on several nodes whose messages go by lanes: what they say, and how a lane takes over. Also what becomes of
//! messages when it fails, when there is none, and when a rank leaves or dies.
//!
//! On a model of devices. In a bed of `cargo xtask vm verbs` on its device, but for what only the model does.

#[path = "harness/between_nodes.rs"]
mod between_nodes;
#[path = "harness/devices.rs"]
mod devices;
#[path = "harness/processes.rs"]
mod processes;
#[path = "lanes/rails.rs"]
mod rails;

use between_nodes::{
    FLOOD_CREDIT, die_while_waited_for, exchange_with_all, flood, knobs, pattern,
    send_before_leaving, sleep_until_woken,
};
use devices::{device, fabric, is_real};
use onecopy::select::explain::{Layers, Memory, Protocol, Table};
use onecopy::wireup::Wireup;
use onecopy::wireup::local::{Local, world_of_nodes};
use onecopy::{Costs, CounterSnapshot, Knobs, LayerId, Options, Runtime, Threads};
use onecopy_btl::lanes::Open;
use onecopy_shm::sync::{AtomicBool, Ordering};
use onecopy_verbs::model::{Fabric, Impairment, usual_limits};
use onecopy_verbs::{Limits, Status};
use processes::{limit, limited, say};
use std::process::Command;
use std::time::{Duration, Instant};

fn start(wireup: Local, open: Open, knobs: &Knobs) -> Runtime {
    let options = Options {
        knobs: trusting(knobs.clone()),
        threads: Threads::Single,
        wireup: Some(Box::new(wireup.with_lanes(open))),
        ..Options::default()
    };
    Runtime::init_with(options).expect("join")
}

/// Knobs by which the device of a bed reads, too. Its network loses nothing.
fn trusting(knobs: Knobs) -> Knobs {
    let read_min = is_real().then(|| knobs.read_min());
    Knobs {
        verbs_read_min: knobs.verbs_read_min.or(read_min),
        ..knobs
    }
}

/// A job of threads on these devices.
fn job(fabric: &Fabric, ranks: usize, nodes: u32, knobs: &Knobs, body: impl Fn(Runtime) + Sync) {
    let world = world_of_nodes(ranks, nodes).expect("a world");
    let open = |node| device(fabric, node);
    job_with(world, &open, knobs, body);
}

/// As [`job`], on devices that are opened so.
fn job_with(
    world: Vec<Local>,
    open: &(impl Fn(u32) -> Open + Sync),
    knobs: &Knobs,
    body: impl Fn(Runtime) + Sync,
) {
    std::thread::scope(|scope| {
        for wireup in world {
            let body = &body;
            scope.spawn(move || {
                let open = open(wireup.node(wireup.rank()));
                body(start(wireup, open, knobs));
            });
        }
    });
}

/// Talks with another rank until lanes of this one have taken over so often.
fn until_taken_over(rt: &Runtime, peer: usize, often: u64) {
    until_taken_over_by(rt, peer, often, often);
}

/// As [`until_taken_over`], where the other rank's lanes have taken over `there` times.
fn until_taken_over_by(rt: &Runtime, peer: usize, often: u64, often_there: u64) {
    let world = rt.world();
    let mut there = [0u64];
    loop {
        let here = rt.counters().lane_connects;
        world
            .sendrecv(&[here], peer, 77, &mut there, peer, 77)
            .expect("a word");
        if here >= often && there[0] >= often_there {
            return;
        }
    }
}

/// A rank with room for one lane talks with two others by turns. The lane that is silent gives its place; of two that
/// are in use, neither does.
#[test]
fn the_lane_that_was_silent_longest_gives_its_place() {
    limited("one place", || {
        let fabric = fabric(3);
        let knobs = of_mode("rc", &[("ONECOPY_VERBS_LANES", "1")]);
        let turn = std::sync::Barrier::new(3);
        job(&fabric, 3, 3, &knobs, |rt| {
            let me = rt.world().rank();
            // Only rank 0 has two peers, so only it ever wants two lanes.
            for round in 0..3 {
                turn.wait();
                let peer = 1 + round % 2;
                let (often, there) = (1 + round as u64, 1 + round as u64 / 2);
                if me == 0 {
                    until_taken_over_by(&rt, peer, often, there);
                } else if me == peer {
                    until_taken_over_by(&rt, 0, there, often);
                }
                assert!(
                    is_real() || fabric.pairs() <= 4,
                    "{} connections",
                    fabric.pairs()
                );
            }
            if me == 0 {
                let counters = rt.counters();
                say(&format!(
                    "{} lanes gave their place",
                    counters.lane_evictions
                ));
                assert_eq!(counters.lane_evictions, 2);
                assert_eq!(counters.lane_connects, 3);
            }
            rt.finalize().expect("finalize");
        });
        // A connection that was being made when its rank left ends in its own time.
        while fabric.pairs() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// How a device reaches peers. No bed's device has extended connections.
fn modes() -> Vec<&'static str> {
    let all = ["rc", "ud", "xrc"];
    all[..if is_real() { 2 } else { 3 }].to_vec()
}

/// The knobs of a mode, and these.
fn of_mode(mode: &'static str, more: &[(&'static str, &'static str)]) -> Knobs {
    let set: Vec<_> = [("ONECOPY_VERBS_MODE", mode)]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    trusting(knobs(&set))
}

const SIZES: [usize; 9] = [0, 1, 8, 200, 300, 5000, 70_000, 600_000, 3 << 20];

#[test]
fn messages_of_all_sizes_come_by_lanes() {
    let by_lanes = modes().into_iter().map(|mode| ("all", mode));
    for (layers, mode) in by_lanes.chain([("^verbs", "auto")]) {
        limited(&format!("layers {layers}, {mode}"), || {
            let fabric = fabric(2);
            let knobs = of_mode(mode, &[("ONECOPY_LAYERS", layers)]);
            job(&fabric, 2, 2, &knobs, |rt| {
                let world = rt.world();
                let peer = 1 - world.rank();
                if layers == "all" {
                    until_taken_over(&rt, peer, 1);
                }
                let reached = rt.reach(peer).expect("reached").expect("another node");
                let carrier = reached.carrier;
                let states = rt.layers(peer).expect("connected");
                let lane = states.iter().find(|state| state.layer == LayerId::LANE);
                let refusal = lane.expect("a lane or why not").refusal.as_ref();
                if layers == "all" {
                    assert_eq!(
                        (carrier, refusal.map(ToString::to_string)),
                        (LayerId::LANE, None)
                    );
                } else {
                    assert_eq!(carrier, LayerId::WIRE);
                    let reason = &refusal.expect("a reason").reason;
                    assert!(reason.contains("ONECOPY_LAYERS"), "{reason}");
                }
                let mut found = Layers::default();
                for state in states {
                    found[state.layer] = state.refusal;
                }
                let costs = Costs::seeds(&knobs);
                let table = Table::new(&knobs, &costs, found);
                let predicted = |len: usize| table.choose(len as u64, Memory::default());
                let before = rt.counters();
                for round in 0..4 {
                    for len in SIZES {
                        let (out, mut got) = (pattern(len, round + world.rank()), vec![0; len]);
                        let reads = rt.counters().lane_reads;
                        world
                            .sendrecv(&out, peer, 0, &mut got, peer, 0)
                            .expect("exchange");
                        assert!(got == pattern(len, round + peer), "{len} bytes");
                        let reads = rt.counters().lane_reads - reads;
                        if predicted(len) == Protocol::Read {
                            assert_eq!(reads, 1, "{len} bytes");
                        } else if mode == "ud" || len < knobs.read_min() {
                            assert_eq!(reads, 0, "{len} bytes");
                        }
                    }
                }
                let after = rt.counters();
                let sum = 4 * SIZES.iter().sum::<usize>() as u64;
                if layers == "all" {
                    assert!(after.verbs_bytes - before.verbs_bytes >= sum);
                    assert_eq!(after.tcp_bytes, before.tcp_bytes, "nothing by the wire");
                    assert_eq!(after.lane_demotions, 0);
                    assert!(after.lane_pinned > 0);
                    let read = after.lane_reads > before.lane_reads;
                    assert_eq!(read, mode != "ud", "long ones are read");
                    assert_eq!(predicted(SIZES[8]) == Protocol::Read, mode != "ud");
                    assert_eq!(after.lane_foreign, 0);
                    say(&format!("{} bytes by lanes", after.verbs_bytes));
                } else {
                    assert_eq!((after.verbs_bytes, after.lane_connects), (0, 0));
                }
                drop(world);
                rt.finalize().expect("finalize");
            });
            assert_eq!((fabric.pairs(), fabric.registered()), (0, 0));
        });
    }
}

/// Messages of several ranks on each node, all with all, while lanes take over.
#[test]
fn the_order_of_messages_is_kept_while_lanes_take_over() {
    modes().into_iter().for_each(all_with_all);
}

fn all_with_all(mode: &'static str) {
    const ROUNDS: usize = 150;
    limited(&format!("all with all, {mode}"), || {
        let fabric = fabric(3);
        job(&fabric, 6, 3, &of_mode(mode, &[]), |rt| {
            let world = rt.world();
            let (me, size) = (world.rank(), world.size());
            for round in 0..ROUNDS {
                let len = [3, 100, 9000, 40_000][round % 4];
                exchange_with_all(&rt, len, round);
            }
            let of_other_nodes = (0..size).filter(|peer| peer % 3 != me % 3);
            of_other_nodes.for_each(|peer| until_taken_over(&rt, peer, 1));
            drop(world);
            rt.finalize().expect("finalize");
        });
    });
}

/// Each rank has one connection to each other node, however many ranks are there. A rank that leaves takes none of the
/// others' along.
#[test]
fn the_ranks_of_a_node_share_extended_connections() {
    if is_real() {
        return;
    }
    limited("extended connections", || {
        const RANKS: usize = 8;
        let fabric = fabric(2);
        let turn = std::sync::Barrier::new(RANKS);
        let most = std::sync::Mutex::new(0);
        job(&fabric, RANKS, 2, &of_mode("xrc", &[]), |rt| {
            let (me, world) = (rt.rank(), rt.world());
            for round in 0..20 {
                exchange_with_all(&rt, [3, 9000, 70_000][round % 3], round);
            }
            let of_other_node = (0..RANKS).filter(|peer| peer % 2 != me % 2);
            of_other_node.for_each(|peer| until_taken_over(&rt, peer, 1));
            turn.wait();
            let pairs = fabric.pairs();
            *most.lock().expect("a number") = pairs;
            turn.wait();
            // A connection has two ends. By a connection to each peer there would be twice as many.
            assert_eq!(pairs, 2 * RANKS);
            // Those of one node leave one after another. Those that are left talk on with the other node's.
            let (mine, theirs) = (pattern(9000, me), |peer| pattern(9000, peer));
            let mut got = vec![0; 9000];
            for gone in (0..RANKS).step_by(2) {
                for left in (gone..RANKS)
                    .step_by(2)
                    .filter(|_| me % 2 == 1 || me >= gone)
                {
                    let peers = match me % 2 {
                        0 if me == left => (1..RANKS).step_by(2),
                        1 => (left..left + 1).step_by(1),
                        _ => (0..0).step_by(1),
                    };
                    for peer in peers {
                        world
                            .sendrecv(&mine, peer, 8, &mut got, peer, 8)
                            .expect("exchange");
                        assert!(got == theirs(peer), "from {peer}");
                    }
                }
                assert_eq!(rt.counters().lane_demotions, 0, "rank {me}, {gone} leaves");
                if me == gone {
                    break;
                }
            }
            drop(world);
            rt.finalize().expect("finalize");
        });
        assert!(*most.lock().expect("a number") > 0);
        assert_eq!((fabric.pairs(), fabric.registered()), (0, 0));
    });
}

/// Has `fail` make operations fail, again and again, until told to stop.
fn sabotage(fabric: &Fabric, over: &AtomicBool, mut fail: impl FnMut(&Fabric)) {
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        fail(fabric);
    }
}

/// Exchanges numbered messages of two ranks while `fail` makes lanes fail, round by round.
fn under_sabotage(what: &str, knobs: &Knobs, demotions: u64, fail: impl Fn(&Fabric, u32) + Sync) {
    if is_real() {
        return;
    }
    limited(&format!("{what}, {}", knobs.verbs_mode), || {
        let fabric = fabric(2);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                sabotage(&fabric, &over, |fabric| {
                    round += 1;
                    fail(fabric, round);
                });
            });
            job(&fabric, 2, 2, knobs, |rt| {
                let world = rt.world();
                let peer = 1 - world.rank();
                let mut round = 0;
                let mut enough = [0u64];
                while enough[0] < demotions {
                    for len in [8usize, 1000, 30_000, 300_000, 2 << 20] {
                        let (out, mut got) = (pattern(len, round + world.rank()), vec![0; len]);
                        world
                            .sendrecv(&out, peer, 5, &mut got, peer, 5)
                            .expect("a failed lane fails no message");
                        assert!(
                            got == pattern(len, round + peer),
                            "round {round}, {len} bytes"
                        );
                    }
                    round += 1;
                    let mine = [rt.counters().lane_demotions];
                    let mut theirs = [0];
                    world
                        .sendrecv(&mine, peer, 6, &mut theirs, peer, 6)
                        .expect("a word");
                    enough[0] = mine[0].min(theirs[0]);
                }
                drop(world);
                rt.finalize().expect("finalize");
            });
            over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_failed_operation_fails_no_message() {
    for mode in ["rc", "xrc"] {
        let knobs = of_mode(mode, &[]);
        under_sabotage("operations fail", &knobs, 2, |fabric, round| {
            let status = [Status::GENERAL, Status::PEER_FAILED][round as usize % 2];
            (0..4000).for_each(|pair| fabric.fail_next(pair, status));
        });
    }
}

/// What was sent arrives, and its sender is told that it did not.
#[test]
fn a_lost_answer_brings_nothing_twice() {
    for mode in ["rc", "xrc"] {
        let knobs = of_mode(mode, &[]);
        under_sabotage("answers are lost", &knobs, 2, |fabric, _| {
            (0..4000).for_each(|pair| fabric.lose_answers(pair));
            fabric.advance(Duration::from_millis(400));
        });
    }
}

#[test]
fn a_link_that_goes_down_and_up_again_fails_no_message() {
    for mode in modes() {
        under_sabotage("the link", &of_mode(mode, &[]), 2, |fabric, round| {
            fabric.set_link("m0", round % 40 < 30);
        });
    }
}

/// Datagrams are lost, come twice and late; now and then for so long that the lane is given up.
#[test]
fn a_network_that_loses_datagrams_fails_no_message() {
    let knobs = of_mode("ud", &[("ONECOPY_VERBS_UD_TIMEOUT", "1")]);
    under_sabotage("the network", &knobs, 2, |fabric, round| {
        let loss = if round % 200 < 100 { 4 } else { 100 };
        let impairment = Impairment {
            loss,
            duplicate: 5,
            reorder: 5,
        };
        fabric.impair(impairment, u64::from(round));
    });
}

/// The device's link goes down and up again, and with it the network of the wire, which waits.
#[test]
fn a_link_of_a_device_that_goes_down_and_up_again_fails_no_message() {
    if !is_real() {
        return;
    }
    let link = |state: &str| {
        let mut command = Command::new("ip");
        command.args(["link", "set", "lo", state]);
        assert!(limit::output(&mut command).status.success());
    };
    // A machine with other work may be long about the way up.
    let knobs = knobs(&[("ONECOPY_TCP_TIMEOUT", "150")]);
    limited("the link of a device", || {
        let fabric = fabric(2);
        job(&fabric, 2, 2, &knobs, |rt| {
            let world = rt.world();
            let peer = 1 - world.rank();
            for often in [1, 2] {
                until_taken_over(&rt, peer, often);
                if world.rank() == 0 && often == 1 {
                    link("down");
                    std::thread::sleep(Duration::from_millis(300));
                    link("up");
                }
                for round in 0..20 {
                    let len = SIZES[round % 8];
                    let (out, mut got) = (pattern(len, round + world.rank()), vec![0; len]);
                    world
                        .sendrecv(&out, peer, 5, &mut got, peer, 5)
                        .expect("a failed lane fails no message");
                    assert!(got == pattern(len, round + peer), "round {round}");
                }
            }
            assert!(rt.counters().lane_demotions > 0);
            drop(world);
            rt.finalize().expect("finalize");
        });
    });
}

/// A lane is tried again when it has failed, and takes over again.
#[test]
fn a_lane_that_has_failed_is_tried_again() {
    if is_real() {
        return;
    }
    modes().into_iter().for_each(tried_again);
}

fn tried_again(mode: &'static str) {
    limited(&format!("again, {mode}"), || {
        let fabric = fabric(2);
        job(&fabric, 2, 2, &of_mode(mode, &[]), |rt| {
            let peer = 1 - rt.world().rank();
            until_taken_over(&rt, peer, 1);
            if rt.world().rank() == 0 {
                fabric.set_link("m0", false);
            }
            while rt.counters().lane_demotions == 0 {
                until_taken_over(&rt, peer, 1);
            }
            fabric.set_link("m0", true);
            until_taken_over(&rt, peer, 2);
            rt.finalize().expect("finalize");
        });
    });
}

/// There is no memory to pin, no device on one side, a port without a link: messages go by the wire.
#[test]
fn where_there_can_be_no_lane_the_wire_carries_all() {
    if is_real() {
        return;
    }
    type Case<'c> = (&'c str, &'c (dyn Fn(&Fabric) + Sync), &'c str);
    let cases: [Case<'_>; 4] = [
        ("no memory", &|fabric| fabric.limit_memory(4096), "auto"),
        (
            "memory of one",
            &|fabric| fabric.limit_memory(3 << 20),
            "auto",
        ),
        ("no link", &|fabric| fabric.set_link("m1", false), "auto"),
        ("no device", &|_| {}, "other"),
    ];
    for (what, prepare, name) in cases {
        limited(what, || {
            let fabric = fabric(2);
            prepare(&fabric);
            let world = world_of_nodes(2, 2).expect("a world");
            std::thread::scope(|scope| {
                for wireup in world {
                    let fabric = &fabric;
                    scope.spawn(move || {
                        let rank = wireup.rank();
                        let node = match name {
                            "other" if rank == 1 => 9,
                            _ => rank as u32,
                        };
                        let options = Options {
                            wireup: Some(Box::new(wireup.with_lanes(device(fabric, node)))),
                            ..Options::default()
                        };
                        let rt = Runtime::init_with(options).expect("join");
                        let world = rt.world();
                        let peer = 1 - rank;
                        let begun = Instant::now();
                        let mut more = [1u8];
                        let mut round = 0;
                        while more[0] == 1 {
                            let len = SIZES[round % 8];
                            let (out, mut got) = (pattern(len, round + rank), vec![0; len]);
                            world
                                .sendrecv(&out, peer, 0, &mut got, peer, 0)
                                .expect("exchange");
                            assert!(got == pattern(len, round + peer));
                            round += 1;
                            // Rank 0 says whether both go on.
                            if rank == 0 {
                                let short = begun.elapsed() < Duration::from_millis(300);
                                more = [u8::from(round < 20 || short)];
                                world.send(&more, 1, 1).expect("send");
                            } else {
                                world.recv(&mut more, 0, 1).expect("recv");
                            }
                        }
                        let counters = rt.counters();
                        if what != "memory of one" {
                            assert_eq!((counters.lane_connects, counters.verbs_bytes), (0, 0));
                        }
                        drop(world);
                        rt.finalize().expect("finalize");
                    });
                }
            });
        });
    }
}

/// Two ranks exchange messages of all sizes, and check them. Gives the counters before that, and after it.
fn exchange_sizes(rt: &Runtime) -> [CounterSnapshot; 2] {
    let world = rt.world();
    let peer = 1 - world.rank();
    let before = rt.counters();
    for len in SIZES {
        let (out, mut got) = (pattern(len, world.rank()), vec![0; len]);
        world
            .sendrecv(&out, peer, 0, &mut got, peer, 0)
            .expect("exchange");
        assert!(got == pattern(len, peer), "{len} bytes");
    }
    [before, rt.counters()]
}

/// A device that may say of a read that brought nothing that it has succeeded reads only where that is asked for.
#[test]
fn what_may_not_have_been_read_is_sent_like_other_bytes() {
    if is_real() {
        return;
    }
    for trusts in [false, true] {
        limited(&format!("trusts {trusts}"), || {
            let fabric = Fabric::new(&[]);
            let limits = Limits {
                sound_reads: false,
                ..usual_limits()
            };
            for name in ["m0", "m1"] {
                fabric.add(name, limits.clone());
            }
            let knobs = Knobs {
                verbs_read_min: trusts.then_some(64 << 10),
                ..Knobs::default()
            };
            let unsound = onecopy_btl::layers::verbs::unsound(&fabric, &knobs);
            assert_eq!(unsound.as_deref(), Some("m0"));
            job(&fabric, 2, 2, &knobs, |rt| {
                let world = rt.world();
                let peer = 1 - world.rank();
                until_taken_over(&rt, peer, 1);
                let [before, after] = exchange_sizes(&rt);
                assert_eq!(after.lane_reads > 0, trusts);
                assert_eq!(after.lane_demotions, 0);
                let sum = SIZES.iter().sum::<usize>() as u64;
                assert!(after.verbs_bytes - before.verbs_bytes >= sum);
                drop(world);
                rt.finalize().expect("finalize");
            });
        });
    }
}

/// The limit on locked memory is reached when a long message is to be registered: it goes through slots.
#[test]
fn what_cannot_be_registered_is_sent_like_other_bytes() {
    if is_real() {
        return;
    }
    limited("no more memory", || {
        let fabric = fabric(2);
        job(&fabric, 2, 2, &Knobs::default(), |rt| {
            let world = rt.world();
            let peer = 1 - world.rank();
            until_taken_over(&rt, peer, 1);
            fabric.limit_memory(1);
            world.barrier().expect("barrier");
            let [before, after] = exchange_sizes(&rt);
            assert_eq!((after.lane_reads, after.lane_demotions), (0, 0));
            let sum = SIZES.iter().sum::<usize>() as u64;
            assert!(after.verbs_bytes - before.verbs_bytes >= sum);
            drop(world);
            rt.finalize().expect("finalize");
        });
    });
}

/// What a rank has sent arrives though it leaves at once and its peer is slow.
#[test]
fn what_was_sent_arrives_though_its_sender_leaves() {
    const MANY: usize = 3000;
    let both = |mode| [(mode, true), (mode, false)];
    for (mode, together) in modes().into_iter().flat_map(both) {
        limited(&format!("together {together}, {mode}"), || {
            let fabric = fabric(2);
            let knobs = of_mode(mode, &[("ONECOPY_EAGER_CREDIT", "16M")]);
            job(&fabric, 2, 2, &knobs, |rt| {
                until_taken_over(&rt, 1 - rt.rank(), 1);
                send_before_leaving(&rt, MANY);
                if together {
                    rt.finalize().expect("finalize");
                }
            });
        });
    }
}

/// A rank that sleeps is woken by a lane.
#[test]
fn who_sleeps_is_woken() {
    let waits = [
        ("ONECOPY_WAIT_SPIN", "0"),
        ("ONECOPY_WAIT_YIELD", "0"),
        ("ONECOPY_LIVENESS_PERIOD", "40"),
    ];
    for mode in modes() {
        limited(&format!("asleep, {mode}"), || {
            let fabric = fabric(2);
            job(&fabric, 3, 2, &of_mode(mode, &waits), |rt| {
                if rt.rank() != 2 {
                    until_taken_over(&rt, 1 - rt.rank(), 1);
                }
                sleep_until_woken(&rt);
                rt.finalize().expect("finalize");
            });
        });
    }
}

/// A rank dies amid a message: its process ends without a word.
#[test]
fn who_waits_for_a_rank_that_dies_gets_an_error_that_names_it() {
    for mode in modes() {
        for len in [8usize, 100_000, 8 << 20] {
            limited(&format!("{len} bytes, {mode}"), || {
                let fabric = fabric(2);
                job(&fabric, 2, 2, &of_mode(mode, &[]), |rt| {
                    until_taken_over(&rt, 1 - rt.rank(), 1);
                    die_while_waited_for(rt, len);
                });
            });
        }
    }
}

/// Messages that nobody receives stop at the credit, and then go on.
#[test]
fn a_flood_stops_at_the_credit() {
    for mode in modes() {
        limited(&format!("a flood, {mode}"), || {
            let fabric = fabric(2);
            job(&fabric, 2, 2, &of_mode(mode, &[FLOOD_CREDIT]), |rt| {
                until_taken_over(&rt, 1 - rt.rank(), 1);
                flood(&rt);
                rt.finalize().expect("finalize");
            });
        });
    }
}

/// The mode follows from the memory that connections would take, and ranks that have little of it use datagrams.
#[test]
fn little_memory_means_datagrams() {
    limited("little memory", || {
        let fabric = fabric(4);
        job(
            &fabric,
            4,
            4,
            &knobs(&[("ONECOPY_VERBS_MEMORY", "1M")]),
            |rt| {
                let world = rt.world();
                let me = world.rank();
                let others = || (0..4).filter(move |&peer| peer != me);
                others().for_each(|peer| until_taken_over(&rt, peer, 1));
                for integer in 0..10u64 {
                    let (out, mut got) = ([integer], [[0u64]; 4]);
                    world
                        .scope(|scope| {
                            for (peer, got) in
                                got.iter_mut().enumerate().filter(|(peer, _)| *peer != me)
                            {
                                scope.irecv(got, peer, 4)?;
                            }
                            for peer in others() {
                                scope.isend(&out, peer, 4)?;
                            }
                            scope.wait_all()
                        })
                        .expect("integers");
                    assert!(others().all(|peer| got[peer] == [integer]));
                }
                let counters = rt.counters();
                assert!(counters.lane_pinned > 0 && counters.lane_pinned <= 1_000_000);
                assert_eq!(counters.lane_demotions, 0);
                assert!(is_real() || fabric.pairs() <= 4, "one pair each");
                drop(world);
                rt.finalize().expect("finalize");
            },
        );
    });
}
