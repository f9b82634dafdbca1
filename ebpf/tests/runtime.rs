// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probe points of the runtime are found in a file, and their events come with their arguments.
#![allow(
    clippy::print_stdout,
    reason = "a process that a test starts answers there"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use onecopy_trace::bpf::{Collector, Options, State, sites};
use onecopy_trace::observed::EventKind;
use probe::probe;

const ROLE: &str = "TEST_ROLE";

/// Two places of one probe point, and one that computes its argument. Counters of watchers are not used: where they lie
/// in a file is the linker's choice, and the kernel misses some places.
#[inline(never)]
fn events() -> u32 {
    let mut computed = 0;
    for number in 0..10_u64 {
        probe!(onecopy, sleep, number * 1000);
        probe!(onecopy, wake, {
            computed += 1;
            number & 1
        });
    }
    probe!(onecopy, sleep, std::hint::black_box(u64::MAX));
    probe!(
        onecopy,
        rendezvous_done,
        3_usize,
        3_usize,
        7_u64,
        std::hint::black_box(1_u64 << 40)
    );
    computed
}

#[test]
fn has_events_if_it_is_told_to() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    println!("role: ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let computed = events();
    println!("role: {computed}");
    std::io::stdout().flush().expect("a pipe");
}

#[test]
fn events_come_with_their_arguments() {
    let exe = std::env::current_exe().expect("own path");
    let found = sites(&exe).expect("a program");
    // Those of the runtime are in it as well.
    for name in ["rendezvous_done", "sleep", "wake"] {
        assert!(found.iter().any(|site| site.name == name), "{name}");
    }
    let options = Options {
        events: true,
        ..Options::default()
    };
    let mut collector = match Collector::start(&options) {
        Ok((collector, _)) => collector,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let probes = collector.watch_runtime(&exe);
    if let Some(refused) = probes.iter().find(|probe| probe.state != State::Attached) {
        println!("skipped: {refused:?}");
        return;
    }
    let mut command = Command::new(&exe);
    command.args(["--exact", "has_events_if_it_is_told_to", "--nocapture"]);
    command
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = limit::start(&mut command);
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map(|line| line.expect("a line"));
    let mut answer = || lines.find_map(|line| Some(line.split_once("role: ")?.1.to_owned()));
    assert_eq!(answer().as_deref(), Some("ready"));
    writeln!(child.stdin.as_mut().expect("a pipe"), "go").expect("it reads");
    assert_eq!(answer().as_deref(), Some("10"));
    let mut seen = Vec::new();
    for event in collector.events() {
        if event.pid == child.id()
            && let EventKind::Runtime { name, args } = event.what
        {
            seen.push((name, args));
        }
    }
    let mut expected = Vec::new();
    for number in 0..10 {
        expected.push(("sleep", vec![("timeout_us", number * 1000)]));
        expected.push(("wake", vec![("rung", number & 1)]));
    }
    expected.push(("sleep", vec![("timeout_us", -1)]));
    let done = [
        ("peer", 3),
        ("sender", 3),
        ("message", 7),
        ("bytes", 1 << 40),
    ];
    expected.push(("rendezvous_done", done.to_vec()));
    assert_eq!(seen, expected);
}
