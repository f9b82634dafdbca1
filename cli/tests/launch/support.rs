// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command and looks at processes.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::limit::{Limited, start};

/// What a run left.
#[derive(Debug)]
pub(crate) struct RunOutput {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The command `onecopy run` with `args`.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command.arg("run").args(args);
    for name in ["ONECOPY_JOB_FD", "ONECOPY_JOB_RANK", "ONECOPY_JOB_SIZE"] {
        command.env_remove(name);
    }
    // No test writes to the home of the one who runs it.
    command.env("ONECOPY_TUNE_FILE", "none");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs `onecopy run` with `args` to its end.
pub(crate) fn run(args: &[&str]) -> RunOutput {
    finish(start(&mut command(args)))
}

/// Runs `onecopy run -n ranks sh -c script`.
pub(crate) fn script(ranks: &str, script: &str) -> RunOutput {
    run(&["-n", ranks, "sh", "-c", script])
}

/// Runs with `input` on standard input.
pub(crate) fn run_with_input(args: &[&str], input: Vec<u8>) -> RunOutput {
    let mut child = start(command(args).stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("stdin");
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let ran = finish(child);
    // A program that does not read its input to the end may end early: not an error of the launcher.
    let _ = writer.join().expect("writer");
    ran
}

/// Waits for the end of `child`.
pub(crate) fn finish(child: Limited) -> RunOutput {
    let output = child.finish();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    RunOutput {
        code: output.status.code(),
        signal: output.status.signal(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// A duration for `sleep` that no other process on the machine uses, by which it is found.
pub(crate) fn marker() -> String {
    static COUNT: Mutex<u32> = Mutex::new(0);
    let mut count = COUNT.lock().expect("lock");
    *count += 1;
    format!("3600.{}0{count}1", std::process::id())
}

/// Number of `sleep` processes with this marker.
pub(crate) fn marked(marker: &str) -> usize {
    let wanted = format!("sleep\0{marker}\0").into_bytes();
    std::fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .filter(|entry| {
            std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted)
        })
        .count()
}

/// Children of a process.
pub(crate) fn children_of(pid: u32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Sends a signal to a process that this test started.
pub(crate) fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("kill");
}
