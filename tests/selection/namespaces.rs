// SPDX-License-Identifier: MIT OR Apache-2.0
//! Causes that lie in how a rank was started: namespaces of its own, little room for shared memory.

use crate::processes::{limit, say};
use crate::traffic::{TrafficRun, ranks};
use std::process::Command;

/// Whether this machine lets us start programs so. What is skipped is printed.
fn possible(wrapper: &[&str]) -> bool {
    let mut command = Command::new(wrapper[0]);
    let tried = limit::try_output(command.args(&wrapper[1..]).arg("true"));
    let possible = tried.as_ref().is_ok_and(|ran| ran.status.success());
    if !possible {
        say(&format!(
            "skipped: {wrapper:?} is not possible here: {tried:?}"
        ));
    }
    possible
}

fn wrapped(count: usize, role: &str, wrapper: &[&str]) -> Option<TrafficRun> {
    possible(wrapper).then(|| TrafficRun::of(ranks(count, role).wrapped(wrapper).run(), count))
}

#[test]
fn ranks_in_pid_namespaces_of_their_own() {
    let wrapper = ["unshare", "--pid", "--fork", "--mount-proc"];
    if let Some(seen) = wrapped(3, "none between", &wrapper) {
        seen.lacks("cma", "pid namespace");
        seen.uses("heap");
        assert_eq!(seen.demotions(), 0, "never proven, so never given up");
    }
}

#[test]
fn ranks_in_user_namespaces_of_their_own() {
    let wrapper = ["unshare", "--user", "--map-root-user"];
    if let Some(seen) = wrapped(2, "none between", &wrapper) {
        seen.lacks("cma", "process_vm_readv");
        seen.uses("heap");
    }
}

#[test]
fn ranks_in_user_and_pid_namespaces() {
    let wrapper = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    if let Some(seen) = wrapped(2, "none between", &wrapper) {
        seen.lacks("cma", "pid namespace");
        seen.uses("heap");
    }
}

#[test]
fn a_small_dev_shm_does_not_matter() {
    let mount = "mount -t tmpfs -o size=64m none /dev/shm && exec \"$@\"";
    let wrapper = ["unshare", "--mount", "sh", "-c", mount, "sh"];
    for layers in ["cico", "heap", "all"] {
        if !possible(&wrapper) {
            return;
        }
        let ran = ranks(2, "none large")
            .env("ONECOPY_LAYERS", layers)
            .wrapped(&wrapper)
            .run();
        let seen = TrafficRun::of(ran, 2);
        assert_eq!(seen.demotions(), 0);
    }
}
