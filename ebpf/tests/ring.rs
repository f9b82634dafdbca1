// SPDX-License-Identifier: MIT OR Apache-2.0
//! No event is lost without being counted, and counts are exact whatever the ring loses.

#![allow(
    clippy::print_stdout,
    reason = "what is skipped is told, and tests talk to what they start"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "support/roles.rs"]
mod roles;

use std::sync::mpsc::channel;
use std::time::Duration;

use onecopy_trace::bpf::Options;
use onecopy_trace::observed::{Event, EventKind, Mechanism, PairKey, Peer};
use roles::{Actor, act, observe};

#[test]
fn acts_if_it_is_told_to() {
    act();
}

/// How many events are made: a million, or what `TEST_RING_EVENTS` says.
fn wanted() -> u64 {
    let text = std::env::var("TEST_RING_EVENTS").ok();
    text.map_or(1_000_000, |text| text.parse().expect("TEST_RING_EVENTS"))
}

/// Makes events while they are taken now and then, and checks that none is missing. Returns how many were dropped.
fn none_is_missing(ring_bytes: u32, made: u64, pause: Duration) -> Option<u64> {
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    let options = Options {
        events: true,
        ring_bytes,
        // Others on the node may copy, too, and theirs are dropped unseen.
        follow: Some(a.pid),
        ..Options::default()
    };
    let (mut collector, _) = observe(&options)?;
    let key = PairKey {
        caller: a.pid,
        peer: Peer::Process(b.pid),
        mechanism: Mechanism::CmaRead,
        writes: false,
    };
    let (caller, line) = (a.pid, format!("read {} {} 1 {made}", b.pid, b.memory));
    let (done, waiting) = channel();
    let worker = std::thread::spawn(move || {
        let answer = a.tell(&line);
        let _ = done.send(());
        (a, answer)
    });
    let (mut seen, mut last) = (0_u64, 0);
    let mut take = |events: Vec<Event>| {
        for event in events {
            assert_eq!(event.pid, caller);
            seen += 1;
            assert!(event.start_ns >= last, "in order");
            last = event.start_ns;
            let expected = matches!(
                event.what,
                EventKind::Copy {
                    mechanism: Mechanism::CmaRead,
                    peer: Peer::Process(pid),
                    asked: 1,
                    result: 1,
                    ..
                } if pid == b.pid
            );
            assert!(expected, "{event:?}");
        }
    };
    while waiting.recv_timeout(pause).is_err() {
        take(collector.events());
    }
    let (_a, answer) = worker.join().expect("no panic");
    assert_eq!(answer, made.to_string());
    take(collector.events());
    let observed = collector.observe();
    let dropped = observed.overhead.dropped;
    assert_eq!(seen + dropped, made);
    assert_eq!(observed.pairs[&key].calls, made);
    println!("{made} made, {seen} seen, {dropped} dropped");
    Some(dropped)
}

#[test]
fn a_million_events_arrive_or_are_counted_as_dropped() {
    none_is_missing(8 << 20, wanted(), Duration::from_micros(500));
}

#[test]
fn a_ring_that_is_too_small_says_what_it_lost() {
    let dropped = none_is_missing(4096, 20_000, Duration::from_millis(50));
    assert!(dropped.is_none_or(|dropped| dropped > 0));
}
