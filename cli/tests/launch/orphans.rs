// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing is left, however a job ends.

use std::os::unix::process::CommandExt;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::limit::{self, Limited, wait_until};

use super::support::{children_of, command, finish, marked, marker, script, signal};

/// A rank with a child in its group, and a daemon: forked twice, in a session of its own.
fn daemons(mark: &str) -> String {
    format!("sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' >/dev/null 2>&1 &)")
}

#[test]
fn daemons_do_not_outlive_the_job() {
    for end in ["exit 0", "exit 3", "kill -9 $$"] {
        let mark = marker();
        let text = format!("{}; sleep 0.1; {end}", daemons(&mark));
        script("2", &text);
        assert_eq!(marked(&mark), 0, "{end}");
    }
}

/// Starts two ranks with all kinds of children, and waits until they run.
fn start(mark: &str, own_group: bool) -> Limited {
    let mut command = command(&[
        "-n",
        "2",
        "sh",
        "-c",
        &format!("{}; sleep {mark}", daemons(mark)),
    ]);
    if own_group {
        command.process_group(0);
    }
    let child = limit::start(&mut command);
    assert!(wait_until(|| marked(mark) == 8), "{} run", marked(mark));
    child
}

fn all_gone(mark: &str) -> bool {
    wait_until(|| marked(mark) == 0)
}

#[test]
fn killing_what_the_user_sees_leaves_nothing() {
    let mark = marker();
    let child = start(&mark, false);
    signal(child.id().cast_signed(), Signal::SIGKILL);
    assert_eq!(finish(child).signal, Some(9));
    assert!(all_gone(&mark));
}

#[test]
fn killing_the_launcher_behind_it_leaves_nothing() {
    let mark = marker();
    let child = start(&mark, false);
    let [launcher] = children_of(child.id())[..] else {
        panic!("one child expected")
    };
    signal(launcher, Signal::SIGKILL);
    let ran = finish(child);
    assert_eq!(ran.code, Some(137), "{ran:?}");
    assert!(ran.err.contains("killed by SIGKILL"), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}

#[test]
fn killing_the_terminals_process_group_leaves_nothing() {
    let mark = marker();
    let child = start(&mark, true);
    let group = Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::killpg(group, Signal::SIGKILL).expect("killpg");
    assert_eq!(finish(child).signal, Some(9));
    assert!(all_gone(&mark));
}

#[test]
fn a_terminated_job_leaves_nothing() {
    let mark = marker();
    let child = start(&mark, false);
    signal(child.id().cast_signed(), Signal::SIGTERM);
    let ran = finish(child);
    assert_eq!(ran.code, Some(143), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}
