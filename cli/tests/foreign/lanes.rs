// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that are processes, on two nodes of a bed that has a device for RDMA. Their messages go by a lane, and one is
//! killed.

use nix::sys::signal::Signal;
use onecopy::Runtime;

use crate::nodes::Start;
use crate::processes::say;

/// Talks until a lane has taken over, then waits for a rank that will be killed.
pub(crate) fn as_rank(runtime: &Runtime) {
    let world = runtime.world();
    let (rank, peer) = (runtime.rank(), 1 - runtime.rank());
    // Both look at the same two numbers, so both go on.
    loop {
        let (here, mut there) = ([runtime.counters().lane_connects], [0u64]);
        world
            .sendrecv(&here, peer, 1, &mut there, peer, 1)
            .expect("a word");
        if here[0] > 0 && there[0] > 0 {
            break;
        }
    }
    let before = runtime.counters().verbs_bytes;
    let (out, mut got) = (vec![rank as u8; 300_000], vec![9u8; 300_000]);
    world
        .sendrecv(&out, peer, 2, &mut got, peer, 2)
        .expect("an exchange");
    assert!(got.iter().all(|&byte| byte == peer as u8));
    let bytes = runtime.counters().verbs_bytes - before;
    assert!(bytes >= 300_000, "{bytes} bytes by the lane");
    say(&format!("by a lane: {rank}"));
    let error = world.recv(&mut got, peer, 3).expect_err("nothing comes");
    say(&format!("told: {rank}: {error}"));
}

#[test]
fn a_rank_that_is_killed_ends_the_waits_of_its_peer() {
    if std::env::var_os("BED").is_none() {
        return say("skipped: `cargo xtask vm verbs` runs this in a bed");
    }
    let mut ranks = Start {
        body: "lanes",
        names: &["a", "b"],
        env: &[
            ("ONECOPY_NODE_TIMEOUT", "60"),
            ("ONECOPY_VERBS_TIMEOUT", "20"),
        ],
        wrapper: &|_: &str| Vec::new(),
    }
    .go();
    for (rank, one) in ranks.iter().enumerate() {
        one.expect(&format!("by a lane: {rank}"));
    }
    ranks.remove(1).signal(Signal::SIGKILL);
    ranks[0].expect("told: 0: rank 1 is dead");
}
