// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks with two devices each: long messages in stripes, and a device that goes amid one.

use super::between_nodes::pattern;
use super::devices::{device_with_rails, fabric_of_rails, has_rails, is_real};
use super::processes::{limit, limited, say};
use super::{SIZES, job_with, of_mode, until_taken_over};
use onecopy::Runtime;
use onecopy::wireup::local::world_of_nodes;
use onecopy_verbs::model::Fabric;
use std::process::Command;

/// Bytes of a message that rails share.
const STRIPED: usize = 64 << 20;

/// A job of two nodes with two rails each; in a bed, where that has them.
fn job_by_rails(
    what: &'static str,
    more: &[(&'static str, &'static str)],
    body: fn(&Runtime, &Fabric),
) {
    if is_real() != has_rails() {
        return;
    }
    // The wire's silence: guests are translated, and one may be busy with the other's bytes.
    let knobs = of_mode("rc", &[more, &[("ONECOPY_TCP_TIMEOUT", "150")]].concat());
    limited(what, || {
        let fabric = fabric_of_rails();
        let world = world_of_nodes(2, 2).expect("a world");
        job_with(
            world,
            &|node| device_with_rails(&fabric, node),
            &knobs,
            |rt| {
                body(&rt, &fabric);
                rt.finalize().expect("finalize");
            },
        );
    });
}

/// Talks with the other rank until both use so many rails, and stripes of messages come by all of them.
fn until_rails(rt: &Runtime, count: usize) {
    let (world, peer) = (rt.world(), 1 - rt.rank());
    let mut both = false;
    while !both {
        let before = rt.counters().lane_striped;
        exchange(rt, 1 << 20, 3);
        let uses = rt.rails(peer).expect("a rank").len() == count;
        let is_striped = rt.counters().lane_striped > before;
        let here = [u8::from(uses && is_striped == (count > 1))];
        let mut there = [0u8];
        world
            .sendrecv(&here, peer, 7, &mut there, peer, 7)
            .expect("a word");
        both = here[0] + there[0] == 2;
    }
}

/// Sends the other rank so many bytes, and takes as many.
fn exchange(rt: &Runtime, len: usize, round: usize) {
    let (world, me, peer) = (rt.world(), rt.rank(), 1 - rt.rank());
    let (out, mut got) = (pattern(len, round + me), vec![0; len]);
    world
        .sendrecv(&out, peer, 5, &mut got, peer, 5)
        .expect("exchange");
    assert!(got == pattern(len, round + peer), "{len} bytes");
}

/// A rail goes down, or comes up: for both nodes in a bed, else for the first.
fn set_rail(fabric: &Fabric, rail: usize, up: bool) {
    if !is_real() {
        return fabric.set_link(["m0", "r0"][rail], up);
    }
    let mut command = Command::new("ip");
    let state = if up { "up" } else { "down" };
    command.args(["link", "set", &format!("v{rail}"), state]);
    assert!(limit::output(&mut command).status.success());
}

/// The rail with this place among those of a pair.
fn rail_at(rt: &Runtime, place: usize) -> usize {
    let rails = rt.rails(1 - rt.rank()).expect("a rank");
    usize::from(rails[place].starts_with(if is_real() { "rxe1" } else { "r" }))
}

/// Receives a message of which a part has come when this rail goes down.
fn receive_while_a_rail_goes(rt: &Runtime, fabric: &Fabric, rail: usize, round: usize) {
    let world = rt.world();
    let before = rt.counters().verbs_bytes;
    let mut request = world.irecv(vec![0; STRIPED], 1, 8).expect("a receive");
    let mut bytes = 0;
    while bytes < STRIPED as u64 / 4 {
        assert!(!request.test(), "it is under way");
        bytes = rt.counters().verbs_bytes - before;
    }
    set_rail(fabric, rail, false);
    assert!(!request.test(), "it is under way");
    say(&format!("rail {rail} goes down after {bytes} bytes"));
    let (got, status) = request.wait().expect("all of it");
    assert_eq!(status.bytes, STRIPED);
    assert!(got == pattern(STRIPED, round), "round {round}");
}

#[test]
fn long_messages_are_striped_over_two_rails() {
    job_by_rails("two rails", &[], |rt, _| {
        until_taken_over(rt, 1 - rt.rank(), 1);
        until_rails(rt, 2);
        let before = rt.counters();
        for round in 0..3 {
            for len in SIZES {
                exchange(rt, len, round);
            }
        }
        let after = rt.counters();
        let long = 3 * (SIZES[8] + SIZES[7]) as u64;
        let striped = after.lane_striped - before.lane_striped;
        assert!(
            striped > long / 8 && striped < long,
            "{striped} of {long} bytes"
        );
        assert_eq!((after.lane_demotions, after.lane_rails_lost), (0, 0));
        say(&format!("{striped} of {long} bytes by the second rail"));
    });
}

#[test]
fn one_rail_of_two_is_used_alone_where_that_is_wanted() {
    job_by_rails("one rail", &[("ONECOPY_VERBS_RAILS", "1")], |rt, _| {
        until_taken_over(rt, 1 - rt.rank(), 1);
        exchange(rt, 3 << 20, 1);
        assert_eq!(rt.rails(1 - rt.rank()).expect("a rank").len(), 1);
        assert_eq!(rt.counters().lane_striped, 0);
    });
}

/// The rail that carries stripes alone goes down amid a message, and comes back: no message notices it, and no lane.
#[test]
fn a_rail_that_goes_amid_a_message_is_used_again_when_it_is_back() {
    // How long other memory is kept is no matter of rails.
    let age = [("ONECOPY_BUFFERS_AGE", "3600s")];
    job_by_rails("a rail of stripes", &age, |rt, fabric| {
        until_taken_over(rt, 1 - rt.rank(), 1);
        for round in 0..2 {
            until_rails(rt, 2);
            let rail = rail_at(rt, 1);
            if rt.rank() == 0 {
                receive_while_a_rail_goes(rt, fabric, rail, round);
            } else {
                rt.world()
                    .send(&pattern(STRIPED, round), 0, 8)
                    .expect("send");
            }
            until_rails(rt, 1);
            if rt.rank() == 0 {
                set_rail(fabric, rail, true);
            }
        }
        until_rails(rt, 2);
        let counters = rt.counters();
        assert_eq!((counters.lane_demotions, counters.lane_connects), (0, 1));
        assert_eq!(counters.lane_rails_lost, 2);
        say(&format!(
            "{} stripes were asked for again",
            counters.lane_stripes_again
        ));
    });
}

/// The rail that carries the stream goes down amid a message. The lane is made anew by the other one, and uses both
/// again when the first is back.
#[test]
fn the_rail_of_the_stream_goes_amid_a_message() {
    job_by_rails("the rail of the stream", &[], |rt, fabric| {
        until_taken_over(rt, 1 - rt.rank(), 1);
        until_rails(rt, 2);
        let rail = rail_at(rt, 0);
        if rt.rank() == 0 {
            receive_while_a_rail_goes(rt, fabric, rail, 3);
        } else {
            rt.world().send(&pattern(STRIPED, 3), 0, 8).expect("send");
        }
        until_taken_over(rt, 1 - rt.rank(), 2);
        assert_eq!(rail_at(rt, 0), 1 - rail, "by the other rail");
        until_rails(rt, 1);
        if rt.rank() == 0 {
            set_rail(fabric, rail, true);
        }
        until_rails(rt, 2);
    });
}
