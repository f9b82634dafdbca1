// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks whose ordinary allocations are served by the malloc front: peers read them in place.
//!
//! The ranks are this very test program, run with one test only: [`as_rank`].

#[path = "support/built.rs"]
mod built;
#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "../../tests/harness/say.rs"]
mod say;

use onecopy::{Options, Runtime};
use onecopy_launch::{Bind, Job, Output};
use say::say;
use std::sync::{Arc, Mutex};

const BYTES: usize = 3 << 20;

fn pattern(rank: usize, round: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 31 + rank * 7 + round * 13) as u8;
    (0..BYTES).map(byte).collect()
}

/// What a rank does. Not a test of its own: without a role it does nothing.
#[test]
fn as_rank() {
    if std::env::var_os("TEST_ROLE").is_none() {
        return;
    }
    // Before there is a runtime: this is to be part of the segment later.
    let early = pattern(9, 9);
    let runtime = Runtime::init_with(Options::from_env().expect("options")).expect("init");
    let world = runtime.world();
    let (rank, peer) = (runtime.rank(), 1 - runtime.rank());
    for round in 0..20 {
        let out = pattern(rank, round);
        let mut got = vec![0_u8; BYTES];
        if rank == 0 {
            world.send(&out, peer, 1).expect("send");
            world.recv(&mut got, peer, 1).expect("recv");
        } else {
            world.recv(&mut got, peer, 1).expect("recv");
            world.send(&out, peer, 1).expect("send");
        }
        assert!(got == pattern(peer, round), "round {round}");
    }
    let mut got = vec![0_u8; BYTES];
    world
        .sendrecv(&early, peer, 2, &mut got, peer, 2)
        .expect("sendrecv");
    assert!(got == early);
    // What the runtime itself allocates comes from the same place, without overlap.
    let mut own = runtime.alloc(BYTES).expect("alloc");
    assert!(own.iter().all(|&byte| byte == 0));
    own.fill(rank as u8);
    world
        .sendrecv(&own, peer, 3, &mut got, peer, 3)
        .expect("sendrecv");
    assert!(got.iter().all(|&byte| usize::from(byte) == peer));
    drop(own);
    assert!(got.iter().all(|&byte| usize::from(byte) == peer));
    let counters = runtime.counters();
    let loaded = counters.iter().find(|(info, _)| info.name == "map_bytes");
    say(&format!("map_bytes {}", loaded.expect("a counter").1));
    runtime.finalize().expect("finalize");
}

/// Runs two ranks; returns how many bytes each loaded from the other's memory.
fn run(env: &[(&str, &str)]) -> Vec<u64> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&lines);
    limit::usual_signals();
    let mut job = Job::new(std::env::current_exe().expect("own path"), 2)
        .args(["--exact", "as_rank", "--nocapture", "-q"])
        .bind(Bind::None)
        .quiet(true)
        .env("TEST_ROLE", "rank")
        .env("ONECOPY_LAYERS", "cico,heap")
        // What a sender copies itself is not counted as read in place.
        .env("ONECOPY_COOP", "off")
        .timeout(limit::limit())
        .output(Output::Lines(Box::new(move |_, _, line| {
            let line = String::from_utf8_lossy(line).into_owned();
            collected.lock().expect("lines").push(line);
        })));
    for (name, value) in env {
        job = job.env(name, value);
    }
    let outcome = job.run().expect("start");
    let lines = lines.lock().expect("lines");
    assert_eq!(outcome.code, 0, "{outcome:?}: {}", lines.concat());
    let figures = lines
        .iter()
        .filter_map(|line| line.trim().strip_prefix("map_bytes "));
    figures
        .map(|text| text.parse().expect("a number"))
        .collect()
}

#[test]
fn ordinary_buffers_are_read_in_place() {
    let library = built::library();
    let library = library.to_str().expect("a path in UTF-8");
    let sent = 22 * BYTES as u64;
    let figures = run(&[("LD_PRELOAD", library)]);
    assert!(
        figures.len() == 2 && figures.iter().sum::<u64>() > sent,
        "{figures:?}"
    );
    // Without the front only what came from alloc is, and with a heap of another size the front is not used.
    let figures = run(&[]);
    assert!(
        figures.iter().sum::<u64>() <= 2 * BYTES as u64,
        "{figures:?}"
    );
    let figures = run(&[("LD_PRELOAD", library), ("ONECOPY_LAYERS", "cico")]);
    assert_eq!(figures, [0, 0]);
}
