// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is of a job that is followed, and who is not.

#![allow(
    clippy::print_stdout,
    reason = "what is skipped is told, and tests talk to what they start"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "support/roles.rs"]
mod roles;

use std::process::{Command, Stdio};
use std::time::Duration;

use onecopy_shm::sync::{AtomicBool, AtomicU32, Ordering};
use onecopy_trace::bpf::Options;
use onecopy_trace::observed::{Mechanism, Peer};
use roles::{Actor, act, counts, observe};

#[test]
fn acts_if_it_is_told_to() {
    act();
}

#[test]
fn only_the_job_that_is_followed_is_counted() {
    let mut shell = Actor::start(&[]);
    let options = Options {
        follow: Some(shell.pid),
        ..Options::default()
    };
    let Some((mut collector, _)) = observe(&options) else {
        return;
    };
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    assert_eq!(a.tell(&format!("read {} {} 100 2", b.pid, b.memory)), "200");
    assert_eq!(
        shell.tell(&format!("read {} {} 100 4", b.pid, b.memory)),
        "400"
    );
    let observed = collector.observe();
    assert_eq!(observed.pairs.len(), 1, "{:?}", observed.pairs.keys());
    assert_eq!(
        counts(
            &observed,
            shell.pid,
            Peer::Process(b.pid),
            Mechanism::CmaRead
        )
        .calls,
        4
    );
}

#[test]
fn what_a_followed_process_starts_is_followed() {
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    let options = Options {
        follow: Some(a.pid),
        ..Options::default()
    };
    let Some((mut collector, _)) = observe(&options) else {
        return;
    };
    assert_eq!(
        a.tell(&format!("child {} {} 100 6", b.pid, b.memory)),
        "600"
    );
    let observed = collector.observe();
    let (key, counts) = observed.pairs.iter().next().expect("a pair");
    assert_ne!(key.caller, a.pid);
    assert_eq!((key.peer, counts.calls), (Peer::Process(b.pid), 6));
    assert!(observed.tasks[&key.caller].ended);
}

#[test]
fn what_has_ended_is_followed_no_longer() {
    let mut a = Actor::start(&[]);
    let options = Options {
        follow: Some(a.pid),
        ..Options::default()
    };
    let Some((mut collector, _)) = observe(&options) else {
        return;
    };
    assert_eq!(collector.followed(), [a.pid]);
    let own = a.memory;
    let line = format!("child {} {own} 100 6", a.pid);
    assert_eq!(a.tell(&line), "600");
    // The child has ended, and its figures are there with its name.
    assert_eq!(collector.followed(), [a.pid]);
    let observed = collector.observe();
    let (key, _) = observed.pairs.iter().next().expect("a pair");
    let child = &observed.tasks[&key.caller];
    assert!(
        child.ended && child.comm.starts_with("follow-"),
        "{child:?}"
    );
    a.end();
    assert!(collector.followed().is_empty());
}

/// It is looked at while it measures itself, and other threads of it may start something then.
#[test]
fn what_the_tracer_starts_is_not_followed() {
    let a = Actor::start(&[]);
    let options = Options {
        follow: Some(a.pid),
        ..Options::default()
    };
    let (is_over, started) = (AtomicBool::new(false), AtomicU32::new(0));
    let (collector, children) = std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let mut children = Vec::new();
            while !is_over.load(Ordering::Acquire) {
                let mut command = Command::new("cat");
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
                children.push(limit::start(&mut command));
                started.fetch_add(1, Ordering::Release);
                std::thread::sleep(Duration::from_millis(2));
            }
            children
        });
        assert!(limit::wait_until(|| started.load(Ordering::Acquire) > 0));
        let collector = observe(&options);
        is_over.store(true, Ordering::Release);
        (collector, starter.join().expect("it starts them"))
    });
    if let Some((collector, _)) = collector {
        assert_eq!(collector.followed(), [a.pid]);
    }
    for child in children {
        assert!(child.finish().status.success());
    }
}

#[test]
fn a_tracer_of_the_job_stays_in_it() {
    let own = std::process::id();
    let options = Options {
        follow: Some(own),
        ..Options::default()
    };
    let Some((mut collector, _)) = observe(&options) else {
        return;
    };
    assert!(collector.followed().contains(&own));
    let (mut a, b) = (Actor::start(&[]), Actor::start(&[]));
    assert_eq!(a.tell(&format!("read {} {} 100 2", b.pid, b.memory)), "200");
    let peer = Peer::Process(b.pid);
    let pair = counts(&collector.observe(), a.pid, peer, Mechanism::CmaRead);
    assert_eq!(pair.calls, 2);
}
