// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ends tests that hang, and the signals that tests start with.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::limit::{self, wait_until};

use super::support::{children_of, command, finish, marked, marker, signal};

/// One that ignores what it can, and leaves descendants that nobody would find by their parent, with other groups and
/// sessions.
#[test]
fn the_limit_ends_a_command_and_all_below_it() {
    let mark = marker();
    let text = format!(
        "trap '' INT TERM HUP; setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep {mark}"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &text]).stdout(Stdio::piped());
    let limit = Duration::from_secs(2);
    let mut started = limit::start_for(&mut command, limit).expect("sh");
    // A test that reads from what hangs goes on when the limit is over.
    let mut printed = String::new();
    let mut stdout = started.stdout.take().expect("piped");
    std::io::Read::read_to_string(&mut stdout, &mut printed).expect("read");
    let hangs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| started.finish()));
    let text = hangs.expect_err("it hung");
    let text = text.downcast_ref::<String>().expect("a text");
    assert!(text.contains("hangs"), "{text}");
    assert_eq!(marked(&mark), 0);
    // So does a test that fails in between.
    let mark = marker();
    let text = format!("setsid sleep {mark} & sleep {mark}");
    let started = limit::start(Command::new("sh").args(["-c", &text]));
    assert!(wait_until(|| marked(&mark) == 2));
    drop(started);
    assert_eq!(marked(&mark), 0);
}

/// The tests themselves may be started in the background of a shell, where the interrupt is ignored: it is not in what
/// they start.
#[test]
fn tests_begin_with_the_signals_of_a_terminal() {
    const ROLE: &str = "TEST_IN_BACKGROUND";
    if std::env::var_os(ROLE).is_none() {
        let text = "trap '' INT HUP QUIT TERM USR1 USR2; exec \"$0\" --exact limits::tests_begin_with_the_signals_of_a_terminal --nocapture";
        let mut command = Command::new("sh");
        command
            .args(["-c", text])
            .arg(std::env::current_exe().expect("own path"));
        let ran = limit::output(command.env(ROLE, "1"));
        let text = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && text.contains("1 passed"), "{ran:?}");
        return;
    }
    let show = limit::output(Command::new("grep").args(["SigIgn", "/proc/self/status"]));
    let text = String::from_utf8_lossy(&show.stdout).into_owned();
    let mask = text.split_whitespace().last().expect("a mask");
    let mask = u64::from_str_radix(mask, 16).expect("a mask");
    for signal in [
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGTERM,
    ] {
        assert_eq!(mask & 1 << (signal as i32 - 1), 0, "{signal} is ignored");
    }
}

/// As with `nohup`, or in the background of a script.
#[test]
fn signals_that_were_ignored_stay_ignored() {
    let mark = marker();
    let plain = command(&["-n", "2", "sh", "-c", &format!("echo ready; sleep {mark}")]);
    let mut shell = Command::new("sh");
    let text = "trap '' INT HUP QUIT; exec \"$0\" \"$@\"";
    shell
        .args(["-c", text])
        .arg(plain.get_program())
        .args(plain.get_args());
    shell
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = limit::start(&mut shell);
    assert!(wait_until(|| marked(&mark) == 2));
    let pid = child.id().cast_signed();
    let below = children_of(child.id());
    for number in [
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGINT,
    ] {
        signal(pid, number);
        below.iter().for_each(|&launcher| signal(launcher, number));
    }
    // What comes last is taken last, so the others were of no effect.
    signal(pid, Signal::SIGTERM);
    let ran = finish(child);
    assert_eq!(ran.code, Some(143), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}
