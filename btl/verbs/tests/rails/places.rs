// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of lanes by several rails where a rank has as many as it may have, and what a failure says of a rail.

use super::{connect, open, settings, until};
use onecopy_verbs::Rails;
use onecopy_verbs::adapter::{Lanes, Settings};
use onecopy_verbs::model::{Fabric, usual_limits};
use std::time::{Duration, Instant};

/// Rank 0 of host a, with room for so many lanes, and others on hosts of their own. All have two rails.
fn with_places(places: usize, others: usize) -> (Fabric, Rails<Fabric>, Vec<Rails<Fabric>>) {
    let fabric = Fabric::new(&[]);
    let hosts = ["a", "b", "c", "d"];
    for host in &hosts[..=others] {
        for network in 0..2 {
            fabric.add_in(&format!("{host}{network}"), usual_limits(), network, 25_000);
        }
    }
    let few = Settings {
        lanes_max: places,
        ..settings()
    };
    let a = open(&fabric, "a", 2, &few);
    let others = hosts[1..=others].iter();
    let others = others.map(|host| open(&fabric, host, 2, &settings()));
    let others = others.collect();
    (fabric, a, others)
}

/// Waits until two connected ranks use two rails, after a word each way by each lane's stream.
fn until_both(a: &mut Rails<Fabric>, to_b: u64, b: &mut Rails<Fabric>, to_a: u64) {
    until("two rails", || {
        for (lanes, lane) in [(&mut *a, to_b), (&mut *b, to_a)] {
            lanes.poll();
            let unread = lanes.unread(lane);
            lanes.read(lane, &mut vec![0; unread]);
            lanes.write(lane, b".");
            lanes.push(lane);
        }
        a.rails(to_b).len() == 2 && b.rails(to_a).len() == 2
    });
}

/// A lane that gave its place to another one has not failed: the next stream goes by the same rail.
#[test]
fn a_rail_whose_lane_gave_its_place_is_not_to_blame() {
    let (_fabric, mut a, mut others) = with_places(1, 2);
    let (to_b, to_a) = connect(&mut a, &mut others[0], 1);
    until_both(&mut a, to_b, &mut others[0], to_a);
    let begin = Instant::now();
    a.age(begin);
    a.age(begin + Duration::from_secs(2));
    let (to_c, _) = a.make(2).expect("the place of the silent one");
    a.poll();
    assert!(a.has_failed(to_b));
    assert_eq!(a.figures().displaced, 2, "by each rail");
    a.close(to_b);
    a.close(to_c);
    let (_, offer) = a.make(1).expect("a lane");
    let rails = offer.rails();
    assert_eq!(rails.len(), 2);
    assert!(rails.iter().all(|rail| !rail.doubtful), "{rails:?}");
}

/// A peer dies, and rails are doubted for it alone.
#[test]
fn the_death_of_a_peer_keeps_no_stream_to_others_from_a_rail() {
    let (fabric, mut a, mut others) = with_places(8, 2);
    let (to_b, to_a) = connect(&mut a, &mut others[0], 1);
    until_both(&mut a, to_b, &mut others[0], to_a);
    fabric.kill("b0");
    fabric.kill("b1");
    assert_eq!(a.write(to_b, b"word"), 4);
    a.push(to_b);
    fabric.advance(Duration::from_secs(2));
    a.poll();
    assert!(a.has_failed(to_b));
    a.close(to_b);
    let mut doubts = |rank| {
        let (_, offer) = a.make(rank).expect("a lane");
        let rails = offer.rails();
        rails.iter().filter(|rail| rail.doubtful).count()
    };
    assert_eq!((doubts(1), doubts(2)), (1, 0));
}

/// Of two lanes one carries words, by its stream alone: the other one gives its places, by each rail. Neither does
/// while its peer may read.
#[test]
fn a_lane_in_use_keeps_its_places_by_all_rails() {
    let (_fabric, mut a, mut others) = with_places(2, 3);
    let mut lanes = Vec::new();
    for (index, other) in others[..2].iter_mut().enumerate() {
        let (there, here) = connect(&mut a, other, index as u32 + 1);
        until_both(&mut a, there, other, here);
        lanes.push(there);
    }
    let begin = Instant::now();
    a.age(begin);
    a.age(begin + Duration::from_secs(2));
    let message = vec![7; 5000];
    let shown = [0, 1].map(|index| a.show(lanes[index], &message).expect("shown"));
    a.make(3).expect_err("both peers may be reading");
    drop(shown);
    assert_eq!(a.write(lanes[0], b"word"), 4);
    a.push(lanes[0]);
    a.age(begin + Duration::from_secs(4));
    a.make(3).expect("the places of the silent one");
    a.poll();
    assert!(a.has_failed(lanes[1]));
    assert_eq!(a.figures().displaced, 2);
    assert_eq!((a.failure(lanes[0]), a.rails(lanes[0]).len()), (None, 2));
}

/// A rank with two places has three peers, one of which has one rail of the two. So the rails have different lanes.
/// Those that are made again when a port comes back take no place of others.
#[test]
fn connections_that_are_made_again_take_no_places() {
    let (fabric, mut a, mut others) = with_places(2, 3);
    let mut lanes = Vec::new();
    for (index, other) in others[..2].iter_mut().enumerate() {
        let (there, here) = connect(&mut a, other, index as u32 + 1);
        until_both(&mut a, there, other, here);
        lanes.push((there, here));
    }
    // The second connection of the first lane is lost, and a lane by the second rail alone takes its place.
    fabric.set_link("b1", false);
    others[0].hear_device();
    until("lost", || {
        a.poll();
        others[0].poll();
        a.rails(lanes[0].0).len() == 1
    });
    let mut only = open(&fabric, "d", 2, &settings());
    fabric.set_link("d0", false);
    only.hear_device();
    lanes.push(connect(&mut a, &mut only, 3));
    others[2] = only;
    fabric.set_link("b1", true);
    others[0].hear_device();
    let begin = Instant::now();
    for seconds in 1..20 {
        let now = begin + Duration::from_secs(seconds);
        a.age(now);
        for other in &mut others {
            other.age(now);
            for _ in 0..5 {
                a.poll();
                other.poll();
            }
        }
    }
    assert_eq!(a.figures().displaced, 0);
    for ((there, here), other) in lanes.iter().zip(&others) {
        assert_eq!((a.failure(*there), other.failure(*here)), (None, None));
    }
    assert_eq!(a.rails(lanes[1].0).len(), 2);
}
