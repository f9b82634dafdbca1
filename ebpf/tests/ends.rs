// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing stays in the kernel when the tracer ends, however it ends.

#![allow(
    clippy::print_stdout,
    reason = "what is skipped is told, and tests talk to what they start"
)]

#[path = "../../tests/harness/limit.rs"]
mod limit;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use aya::programs::loaded_programs;
use onecopy_trace::bpf::{Collector, Options};

const ROLE: &str = "TEST_ROLE";

#[test]
fn observes_if_it_is_told_to() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    match Collector::start(&Options::default()) {
        Ok(_collector) => {
            println!("role: ready");
            std::io::stdout().flush().expect("a pipe");
            std::thread::sleep(limit::limit());
        }
        Err(error) => println!("role: skipped: {error}"),
    }
}

/// The programs that a process holds.
fn held(pid: u32) -> BTreeSet<u32> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("its descriptors");
    let mut found = BTreeSet::new();
    for entry in folder.flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        found.extend(id.and_then(|id| id.trim().parse::<u32>().ok()));
    }
    found
}

fn loaded() -> BTreeSet<u32> {
    loaded_programs().flatten().map(|info| info.id()).collect()
}

#[test]
fn a_killed_tracer_leaves_nothing_behind() {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", "observes_if_it_is_told_to", "--nocapture"]);
    command.env(ROLE, "1").stdout(Stdio::piped());
    let mut tracer = limit::start(&mut command);
    let output = BufReader::new(tracer.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map(|line| line.expect("a line"));
    let answer = lines.find_map(|line| Some(line.split_once("role: ")?.1.to_owned()));
    let answer = answer.expect("an answer");
    if answer != "ready" {
        println!("{answer}");
        return;
    }
    let held = held(tracer.id());
    assert!(held.len() >= 8, "{held:?}");
    assert!(held.is_subset(&loaded()), "{held:?}");
    tracer.kill().expect("kill");
    tracer.wait().expect("wait");
    let gone = limit::wait_until(|| loaded().is_disjoint(&held));
    assert!(gone, "{held:?} among {:?}", loaded());
}
