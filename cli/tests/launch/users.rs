// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that have become another user, whom the launcher may not signal.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::limit::{self, wait_until};
use crate::say::say;

use super::support::{finish, marked, marker, signal};

/// An ordinary user whose programs may become another one, as those of a launcher that `sudo` serves.
const LAUNCHER: [&str; 6] = [
    "setpriv",
    "--reuid=64218",
    "--regid=64218",
    "--clear-groups",
    "--inh-caps=-all,+setuid",
    "--ambient-caps=-all,+setuid",
];

fn onecopy(args: &[&str]) -> Command {
    let mut command = Command::new(LAUNCHER[0]);
    command.args(&LAUNCHER[1..]);
    command.arg(env!("CARGO_BIN_EXE_onecopy")).args(args);
    command.env("ONECOPY_TUNE_FILE", "none");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

#[test]
fn who_cannot_be_signalled_is_named_with_the_reason_and_a_remedy() {
    let tried = limit::try_output(&mut onecopy(&["--version"]));
    if !tried.as_ref().is_ok_and(|ran| ran.status.success()) {
        say(&format!(
            "skipped: no other user can run onecopy here: {tried:?}"
        ));
        return;
    }
    let mark = marker();
    let rank = ["setpriv", "--reuid=65534", "sleep", &mark];
    let mut job = limit::start(&mut onecopy(&[&["run", "-n", "1"], &rank[..]].concat()));
    let mut lines = BufReader::new(job.stderr.take().expect("piped")).lines();
    assert!(wait_until(|| marked(&mark) == 1), "the rank runs");
    let guardian = job.id().cast_signed();
    signal(guardian, Signal::SIGTERM);
    let mut next = || lines.next().expect("a line").expect("read");
    let told = next();
    let why = "kill: EPERM, it runs as user 65534 and this launcher as user 64218";
    assert!(
        told.contains("rank 0 (pid ") && told.contains(why),
        "{told}"
    );
    let (_, remedy) = told.rsplit_once("(kill -KILL ").expect("a remedy");
    let pid: i32 = remedy.trim_end_matches(')').parse().expect("a number");
    // The second request kills, which is refused as well. The user is told who is waited for.
    signal(guardian, Signal::SIGHUP);
    let killing = next();
    assert!(killing.contains("killing all ranks"), "{killing}");
    let waiting = next();
    let expected = format!("waiting for: rank 0 (pid {pid}): {why}");
    assert!(waiting.contains(&expected), "{waiting}");
    signal(pid, Signal::SIGKILL);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(rest, [""; 0]);
    assert_eq!(finish(job).code, Some(129));
    assert_eq!(marked(&mark), 0);
}
