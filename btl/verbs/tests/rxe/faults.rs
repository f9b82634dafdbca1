// SPDX-License-Identifier: MIT OR Apache-2.0
//! What fails: peers, links, answers, networks, machines.

use std::time::{Duration, Instant};

use onecopy_verbs::port::choose;
use onecopy_verbs::{Done, Event, Status, Timing};

use crate::other::{Other, SLOT};
use crate::side::connected;
use crate::traffic::{finish, ping};
use crate::{LONG, bed, here, own, pattern, run, say, verbs, wait};

/// For networks that lose packets, and machines that have no time: two seconds, six retries.
pub(crate) fn patient() -> Timing {
    let timing = Timing::within(Duration::from_secs(2));
    assert_eq!(timing.retries(), 6);
    timing
}

/// The time within which an error must be reported, on a machine that is translated.
fn bound(timing: Timing) -> Duration {
    timing.silence() * 3 + Duration::from_secs(3)
}

pub(crate) fn peer_is_killed() {
    for timing in [Timing::default(), patient()] {
        let mut other = Other::start("sleep");
        let mut side = here(64, 1024);
        side.timing = timing;
        let pair = other.connect(&mut side);
        let pid = String::from_utf8(other.link.receive()).expect("a number");
        // It works until then.
        side.send(&pair, b"alive", 1).expect("room");
        assert_eq!(wait(&mut side, LONG).remove(0).outcome, Ok(()));
        run(&format!("at b kill -9 {pid}"));
        // The kernel takes a moment to end what the process had.
        other.end();
        silent(&mut side, &pair, timing);
        assert!(side.queue.retire(pair).is_empty());
    }
}

/// Posts to a peer that is gone: the first fails with the cause, the second with it.
fn silent(
    side: &mut crate::Side,
    pair: &onecopy_verbs::QueuePair<onecopy_verbs::Verbs>,
    timing: Timing,
) {
    let started = Instant::now();
    side.send(pair, b"anybody there?", 2).expect("room");
    side.send(pair, b"hello?", 3).expect("room");
    let mut completions = Vec::new();
    while completions.len() < 2 {
        for done in wait(side, bound(timing)) {
            assert_eq!(done.done, Done::Sent);
            assert!(done.slot.is_some(), "its slot comes back");
            completions.push((done.cookie, done.outcome));
        }
    }
    let after = started.elapsed();
    let silence = timing.silence();
    say(&format!(
        "told after {after:?}, {silence:?} of silence asked for, {} retries",
        timing.retries()
    ));
    assert_eq!(completions[0], (Some(2), Err(Status::PEER_SILENT)));
    assert_eq!(completions[1], (Some(3), Err(Status::FLUSHED)));
    assert!(after < bound(timing), "{after:?}");
}

/// The network interface of the own device.
fn interface() -> String {
    match bed().as_str() {
        "loop" => "lo".to_owned(),
        "spaces" => format!("v{}", std::env::var("BED_SELF").expect("BED_SELF")),
        _ => "eth0".to_owned(),
    }
}

pub(crate) fn link_goes_down_and_up() {
    let (mut a, mut b) = (here(64, 1024), here(64, 1024));
    let (to_b, to_a) = connected(&mut a, &mut b);
    b.fill(4);
    a.send(&to_b, b"up", 1).expect("room");
    assert_eq!(wait(&mut a, LONG).remove(0).outcome, Ok(()));
    let interface = interface();
    run(&format!("ip link set {interface} down"));
    event(&a.device, Event::PortDown(1));
    assert!(!a.device.port(1).expect("port").active);
    let started = Instant::now();
    a.send(&to_b, b"down", 2).expect("room");
    let limit = bound(a.timing);
    let failed = wait(&mut a, limit).remove(0);
    let status = failed.outcome.expect_err("there is no link");
    say(&format!("link: after {:?}: {status}", started.elapsed()));
    // Newer kernels fail all pairs of a port that goes down: then there is no other cause than the event.
    assert!([Status::OWN_PAIR, Status::PEER_SILENT, Status::FLUSHED].contains(&status));
    let text = choose(&verbs(), Some(&own()))
        .expect_err("no port")
        .to_string();
    assert!(text.contains("no link"), "{text}");
    run(&format!("ip link set {interface} up"));
    event(&a.device, Event::PortUp(1));
    drop(a.queue.retire(to_b));
    drop(b.queue.retire(to_a));
    // The address may come a moment later.
    let end = Instant::now() + LONG;
    while let Err(error) = choose(&verbs(), Some(&own())) {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (mut a, mut b) = (here(64, 1024), here(64, 1024));
    let (to_b, _to_a) = connected(&mut a, &mut b);
    b.fill(4);
    a.send(&to_b, b"up again", 3).expect("room");
    assert_eq!(wait(&mut a, LONG).remove(0).outcome, Ok(()));
}

/// Waits for an event; others may come before.
fn event(device: &onecopy_verbs::Device<onecopy_verbs::Verbs>, wanted: Event) {
    let end = Instant::now() + LONG;
    loop {
        match device.next_event().expect("events") {
            Some(event) if event == wanted => return,
            Some(event) => say(&format!("link: {event:?}")),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
        assert!(Instant::now() < end, "no {wanted:?}");
    }
}

/// All that the peer sends is lost from now on.
struct Mute;

impl Mute {
    fn new() -> Self {
        run("at b tc qdisc add dev vb root netem loss 100%");
        Self
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        run("at b tc qdisc del dev vb root");
    }
}

/// All data arrives, and the sender must believe that it did not: a side that ends must say so by a message of its own.
pub(crate) fn peer_leaves_and_its_answer_is_lost() {
    assert_eq!(bed(), "spaces");
    let _ = std::fs::remove_file("/tmp/left");
    let mut other = Other::start("leave");
    let mut side = here(64, 1024);
    let pair = other.connect(&mut side);
    let mute = Mute::new();
    let started = Instant::now();
    side.send(&pair, b"goodbye", 1).expect("room");
    let end = Instant::now() + LONG;
    while std::fs::read("/tmp/left").map_or(true, |bytes| bytes != b"goodbye") {
        assert!(Instant::now() < end, "the message did not arrive");
        std::thread::sleep(Duration::from_millis(20));
    }
    let limit = bound(side.timing);
    let failed = wait(&mut side, limit).remove(0);
    assert_eq!(failed.outcome, Err(Status::PEER_SILENT));
    say(&format!(
        "leave: arrived, and failed after {:?}",
        started.elapsed()
    ));
    drop(mute);
}

pub(crate) fn bad_network() {
    assert_eq!(bed(), "spaces");
    for what in [
        "loss 2%",
        "loss 10%",
        "delay 2ms reorder 25%",
        "duplicate 10%",
        "corrupt 2%",
    ] {
        run(&format!("tc qdisc add dev va root netem {what}"));
        let started = Instant::now();
        let mut other = Other::start("echo");
        let mut side = here(256, SLOT);
        side.timing = patient();
        side.fill(200);
        let pair = other.connect(&mut side);
        for round in 0..60 {
            ping(&mut side, &pair, &pattern(round, 1024 + 100 * round));
        }
        finish(other, &mut side, pair);
        run("tc qdisc del dev va root");
        say(&format!(
            "netem: {what}: {:.1} s",
            started.elapsed().as_secs_f64()
        ));
    }
}

/// The other machine is switched off, and sends nothing before.
pub(crate) fn machine_dies() {
    assert_eq!(bed(), "pair");
    let mut other = Other::start("sleep");
    let mut side = here(64, 1024);
    let pair = other.connect(&mut side);
    other.link.receive();
    side.send(&pair, b"alive", 1).expect("room");
    assert_eq!(wait(&mut side, LONG).remove(0).outcome, Ok(()));
    // There is no answer to this.
    let _ = std::process::Command::new("timeout")
        .args(["5", "at", "b", "echo b >/proc/sysrq-trigger"])
        .status();
    let timing = side.timing;
    silent(&mut side, &pair, timing);
}
