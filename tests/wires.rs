// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks on several nodes, which reach each other over the loopback: how they connect, sleep, fill the room between
//! them, leave and die. What they say is compared in `conformance.rs` and `collectives.rs`.

#[path = "harness/between_nodes.rs"]
mod between_nodes;
#[path = "harness/processes.rs"]
mod processes;
#[path = "harness/refuse.rs"]
mod refuse;

use between_nodes::{
    FLOOD_CREDIT, die_while_waited_for, flood, knobs, pattern, send_before_leaving,
    sleep_until_woken,
};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use onecopy::wireup::local::{Local, world_of_nodes};
use onecopy::{Error, Knobs, Options, Runtime, Threads, local_of_nodes};
use processes::{Ranks, body, limited, say};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

fn start(wireup: Local, knobs: &Knobs, threads: Threads) -> Runtime {
    let options = Options {
        knobs: knobs.clone(),
        threads,
        wireup: Some(Box::new(wireup)),
        ..Options::default()
    };
    Runtime::init_with(options).expect("join")
}

/// Each rank talks to all others at once, so that most pairs call each other.
#[test]
fn all_connect_with_all_at_once() {
    for round in 0..8 {
        limited(&format!("round {round}"), || {
            local_of_nodes(6, 6, &Knobs::default(), |rt| {
                let world = rt.world();
                let (me, size) = (world.rank(), world.size());
                let mut got = vec![[0u8; 2]; size];
                let mine = [me as u8, 7];
                world
                    .scope(|scope| {
                        for (peer, place) in got.iter_mut().enumerate() {
                            if peer != me {
                                scope.irecv(place, peer, 3)?;
                                scope.isend(&mine, peer, 3)?;
                            }
                        }
                        scope.wait_all()
                    })
                    .expect("all with all");
                for (peer, got) in got.iter().enumerate() {
                    assert!(peer == me || *got == [peer as u8, 7], "{got:?} from {peer}");
                }
                let connects = rt.counters().wire_connects as usize;
                assert_eq!(connects, size - 1, "one connection with each");
                rt.finalize().expect("finalize");
            });
        });
    }
}

/// A rank connects with none that it does not talk with.
#[test]
fn there_is_no_connection_before_the_first_message() {
    limited("two of three talk", || {
        local_of_nodes(3, 3, &Knobs::default(), |rt| {
            let world = rt.world();
            let mut got = [0u8; 8];
            match world.rank() {
                0 => world.send(&[1u8; 8], 1, 0).expect("send"),
                1 => {
                    world.recv(&mut got, 0, 0).expect("recv");
                }
                _ => {}
            }
            let connects = rt.counters().wire_connects;
            assert!(connects <= u64::from(world.rank() < 2), "{connects}");
            rt.finalize().expect("finalize");
        });
    });
}

/// What a rank has sent arrives though it leaves at once and its peer is slow. It leaves by an ordered end of the job,
/// or as a rank that drops its runtime.
#[test]
fn what_was_sent_arrives_though_its_sender_leaves() {
    const MANY: usize = 20_000;
    for together in [true, false] {
        for buffer in ["0", "16K"] {
            limited(&format!("together {together}, buffers {buffer}"), || {
                let knobs = knobs(&[
                    ("ONECOPY_TCP_BUFFER", buffer),
                    ("ONECOPY_EAGER_CREDIT", "16M"),
                ]);
                local_of_nodes(2, 2, &knobs, |rt| {
                    send_before_leaving(&rt, MANY);
                    if together {
                        rt.finalize().expect("finalize");
                    }
                });
            });
        }
    }
}

#[test]
fn large_messages_arrive_before_their_sender_leaves() {
    const LEN: usize = 64 << 20;
    limited("64 MiB each way", || {
        local_of_nodes(2, 2, &Knobs::default(), |rt| {
            let world = rt.world();
            let (me, peer) = (world.rank(), 1 - world.rank());
            let (out, mut got) = (pattern(LEN, me), vec![0; LEN]);
            world
                .sendrecv(&out, peer, 0, &mut got, peer, 0)
                .expect("exchange");
            assert!(got == pattern(LEN, peer));
            drop(world);
            rt.finalize().expect("finalize");
        });
    });
}

/// A rank that sleeps is woken by a wire, by a peer of its node, and by one that connects for the first time.
#[test]
fn who_sleeps_is_woken() {
    let knobs = knobs(&[("ONECOPY_WAIT_SPIN", "0"), ("ONECOPY_WAIT_YIELD", "0")]);
    limited("asleep", || {
        // Ranks 0 and 2 are on one node.
        local_of_nodes(3, 2, &knobs, |rt| {
            sleep_until_woken(&rt);
            rt.finalize().expect("finalize");
        });
    });
}

/// Threads of two ranks talk at the same time, each pair of threads by its own tag.
#[test]
fn threads_talk_at_the_same_time() {
    limited("threads", || {
        let world = world_of_nodes(2, 2).expect("a world");
        std::thread::scope(|scope| {
            for wireup in world {
                scope.spawn(|| {
                    let rt = start(wireup, &Knobs::default(), Threads::Multiple);
                    let world = rt.world();
                    let (me, peer) = (world.rank(), 1 - world.rank());
                    std::thread::scope(|scope| {
                        for tag in 0..4 {
                            let world = world.clone();
                            scope.spawn(move || {
                                for (round, len) in [8, 3000, 200_000, 1 << 20, 0, 70_000]
                                    .into_iter()
                                    .cycle()
                                    .take(60)
                                    .enumerate()
                                {
                                    let seed = round * 16 + tag as usize;
                                    let mut got = vec![0; len];
                                    if me == 0 {
                                        world.send(&pattern(len, seed), peer, tag).expect("send");
                                        world.recv(&mut got, peer, tag).expect("recv");
                                    } else {
                                        world.recv(&mut got, peer, tag).expect("recv");
                                        world.send(&got, peer, tag).expect("send");
                                    }
                                    assert!(got == pattern(len, seed), "round {round}");
                                }
                            });
                        }
                    });
                    drop(world);
                    rt.finalize().expect("finalize");
                });
            }
        });
    });
}

/// A rank dies amid a message: its process ends without a word, and the wire-up says nothing of it.
#[test]
fn who_waits_for_a_rank_that_dies_gets_an_error_that_names_it() {
    for len in [8usize, 100_000, 32 << 20] {
        limited(&format!("{len} bytes"), || {
            let world = world_of_nodes(2, 2).expect("a world");
            std::thread::scope(|scope| {
                for wireup in world {
                    scope.spawn(move || {
                        die_while_waited_for(
                            start(wireup, &Knobs::default(), Threads::Single),
                            len,
                        );
                    });
                }
            });
        });
    }
}

/// A network that fails while the bytes of a message are read is not the peer's fault.
#[test]
fn a_network_that_fails_within_a_message_is_told_as_such() {
    const LEN: usize = 4 << 20;
    limited("a failing network", || {
        local_of_nodes(2, 2, &Knobs::default(), |rt| {
            let world = rt.world();
            let mut bytes = vec![0u8; LEN];
            if world.rank() == 0 {
                world.send(&bytes, 1, 0).expect("send");
                // The receiver gives this rank up in the middle.
                world.send(&bytes, 1, 1).expect_err("nobody reads it");
                return;
            }
            world.recv(&mut bytes, 0, 0).expect("recv");
            refuse::refuse(&[nix::libc::SYS_readv], Errno::EHOSTUNREACH as i32);
            let error = world.recv(&mut bytes, 0, 1).expect_err("it cannot be read");
            assert!(
                matches!(error, Error::Unreachable { rank: 0, .. }),
                "{error}"
            );
            let text = error.to_string();
            assert!(
                text.contains("is the network between the nodes up"),
                "{text}"
            );
        });
    });
}

/// Without a wire among the layers, ranks of several nodes cannot reach each other, and are told what to do.
#[test]
fn without_a_wire_the_error_says_so() {
    let knobs = knobs(&[("ONECOPY_LAYERS", "^tcp")]);
    limited("no wire", || {
        local_of_nodes(2, 2, &knobs, |rt| {
            let world = rt.world();
            let error = world
                .send(&[1u8], 1 - world.rank(), 0)
                .expect_err("no wire");
            let text = error.to_string();
            assert!(
                text.contains("ONECOPY_LAYERS") && text.contains("tcp"),
                "{text}"
            );
        });
    });
}

/// Messages that nobody receives stop at the credit, and then go on; others are received meanwhile.
#[test]
fn a_flood_stops_at_the_credit() {
    limited("a flood", || {
        local_of_nodes(2, 2, &knobs(&[FLOOD_CREDIT]), |rt| {
            flood(&rt);
            rt.finalize().expect("finalize");
        });
    });
}

/// What a rank does that is a process; see the tests for what each is for.
#[test]
fn as_rank() {
    let Some(body) = body() else { return };
    let runtime = Runtime::init().expect("join");
    match body.as_str() {
        "large" => large(&runtime),
        "caller" => without_descriptors(&runtime, 0),
        "called" => without_descriptors(&runtime, 1),
        "never" => {
            never_a_descriptor(&runtime);
            drop(runtime);
            return say("done");
        }
        other => panic!("no such body: {other}"),
    }
    runtime.finalize().expect("finalize");
    say("done");
}

#[track_caller]
fn all_are_done(ranks: Ranks) {
    let ran = ranks.on_nodes().run().expect_success();
    assert_eq!(ran.reports("done").len(), 2, "{ran:?}");
}

fn large(runtime: &Runtime) {
    const LEN: usize = 256 << 20;
    let world = runtime.world();
    // Words that tell their place.
    let mut words: Vec<u64> = vec![0; LEN / 8];
    let word = |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if world.rank() == 0 {
        words
            .iter_mut()
            .enumerate()
            .for_each(|(index, place)| *place = word(index));
        world.send(&words, 1, 0).expect("send");
    } else {
        let status = world.recv(&mut words, 0, 0).expect("recv");
        assert_eq!(status.bytes, LEN);
        let wrong = words
            .iter()
            .enumerate()
            .find(|&(index, &got)| got != word(index));
        assert_eq!(wrong, None);
    }
}

#[test]
fn one_message_of_256_mib_arrives() {
    all_are_done(Ranks::new(2, "large"));
}

/// Takes all descriptors from this process. Gives the limit that was there before.
fn take_descriptors() -> (u64, u64) {
    let before = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    let free = std::fs::File::open("/dev/null").expect("open").as_raw_fd() as u64;
    setrlimit(Resource::RLIMIT_NOFILE, free, before.1).expect("setrlimit");
    let error = std::fs::File::open("/dev/null").expect_err("no descriptor is left");
    assert_eq!(error.raw_os_error(), Some(Errno::EMFILE as i32));
    before
}

/// The first message goes from rank 0 to rank 1, while `short` of them has no descriptor for a connection. When it has,
/// the message arrives.
fn without_descriptors(runtime: &Runtime, short: usize) {
    let (world, rank) = (runtime.world(), runtime.rank());
    let before = (rank == short).then(take_descriptors);
    let mut got = vec![0u8; 100_000];
    let sent = pattern(got.len(), 3);
    world
        .scope(|scope| {
            let request = match rank {
                0 => scope.isend(&sent, 1, 0)?,
                _ => scope.irecv(&mut got, 0, 0)?,
            };
            let begun = Instant::now();
            while before.is_some() && begun.elapsed() < Duration::from_millis(400) {
                assert!(
                    scope.test(request).is_none(),
                    "there is no descriptor for it"
                );
            }
            if let Some((soft, hard)) = before {
                assert_eq!(runtime.counters().wire_connects, 0);
                setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("setrlimit");
            }
            scope.wait(request)
        })
        .expect("the message");
    assert!(rank == 0 || got == sent);
}

/// No descriptor is left when a connection is to be made, and when one is to be accepted.
#[test]
fn a_connection_waits_for_a_descriptor() {
    all_are_done(Ranks::new(2, "caller"));
    all_are_done(Ranks::new(2, "called"));
}

/// There never is one: the caller is told why, and what helps.
fn never_a_descriptor(runtime: &Runtime) {
    let world = runtime.world();
    if world.rank() == 0 {
        let (soft, hard) = take_descriptors();
        let error = world.ssend(&[1u8], 1, 0).expect_err("no descriptor");
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("setrlimit");
        let text = error.to_string();
        for part in ["EMFILE", "ulimit -n", "ONECOPY_TCP_CONNECT_TIMEOUT"] {
            assert!(text.contains(part), "{text}");
        }
    } else {
        let error = world.recv(&mut [0u8], 0, 0).expect_err("rank 0 leaves");
        assert!(matches!(error, Error::PeerLeft { rank: 0 }), "{error}");
    }
}

#[test]
fn who_never_has_a_descriptor_is_told_so() {
    all_are_done(Ranks::new(2, "never").env("ONECOPY_TCP_CONNECT_TIMEOUT", "1"));
}
