// SPDX-License-Identifier: MIT OR Apache-2.0
//! How jobs end, and what they end with.

use std::io::{BufRead, BufReader};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;
use onecopy::wireup::Death;
use onecopy_launch::{Bind, Cause, Job, Output, Stream};

use crate::limit::{self, Limited};

use super::support::{command, finish, marked, marker, run, script, signal};

#[test]
fn programs_that_know_nothing_of_onecopy_run() {
    let ran = run(&["-n", "3", "echo", "-n", "--", "hello"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.out.matches("-- hello").count(), 3, "{ran:?}");
    assert_eq!(ran.err, "");
}

#[test]
fn the_environment_names_rank_and_size() {
    let ran = run(&[
        "-n",
        "2",
        "--env",
        "COLOUR=red=1",
        "--",
        "sh",
        "-c",
        "echo $ONECOPY_JOB_RANK/$ONECOPY_JOB_SIZE $COLOUR ${ONECOPY_JOB_GUARD-none}",
    ]);
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/2 red=1 none", "1/2 red=1 none"]);
}

#[test]
fn the_code_is_that_of_the_rank_that_failed() {
    for code in [1, 7, 255] {
        let ran = script("3", &format!("test $ONECOPY_JOB_RANK != 1 || exit {code}"));
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.contains("rank 1 (pid "), "{ran:?}");
        assert!(ran.err.contains(&format!("code {code}")), "{ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
}

#[test]
fn a_signal_is_named_and_ends_all() {
    let mark = marker();
    let ran = script(
        "3",
        &format!("test $ONECOPY_JOB_RANK = 2 && kill -SEGV $$; sleep {mark}"),
    );
    assert_eq!(ran.code, Some(139), "{ran:?}");
    assert!(ran.err.contains("rank 2 (pid "), "{ran:?}");
    assert!(ran.err.contains("signal 11 (SIGSEGV)"), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}

#[test]
fn who_ignores_the_request_to_end_is_killed() {
    let mark = marker();
    let text =
        format!("trap '' TERM; test $ONECOPY_JOB_RANK != 0 || exit 4; sleep {mark}; sleep {mark}");
    let ran = script("3", &text);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}

/// It ignores the request to end, and is in its child's process group.
#[test]
fn who_has_left_its_process_group_is_killed() {
    let mark = marker();
    let text = "$SIG{TERM} = 'IGNORE'; my $child = fork // die; \
        unless ($child) { setpgrp(0, 0); exec @ARGV } \
        setpgrp($child, $child); setpgrp(0, $child); sleep 1 while 1";
    let args = ["-n", "2", "--timeout", "1", "perl", "-e", text, "sleep"];
    let ran = run(&[&args[..], &[&mark]].concat());
    assert_eq!(ran.code, Some(124), "{ran:?}");
    assert!(!ran.err.contains("left behind"), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}

#[test]
fn survivors_go_on_if_asked_to() {
    let text = "test $ONECOPY_JOB_RANK != 0 || exit 9; \
        while [ -e /proc/$OTHER/nothing ]; do :; done; sleep 0.3; echo survived";
    let ran = run(&["-n", "3", "--keep-going", "sh", "-c", text]);
    assert_eq!(ran.code, Some(9), "{ran:?}");
    assert_eq!(ran.out, "survived\nsurvived\n");
    assert!(ran.err.contains("rank 0 (pid "), "{ran:?}");
}

#[test]
fn a_timeout_ends_the_job() {
    let mark = marker();
    let ran = run(&["-n", "2", "--timeout", "0.2", "sleep", &mark]);
    assert_eq!(ran.code, Some(124), "{ran:?}");
    assert!(ran.err.contains("timeout"), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}

#[test]
fn a_program_that_cannot_be_started_is_told() {
    let ran = run(&["-n", "2", "/nonexistent/program", "x"]);
    assert_eq!(ran.code, Some(127), "{ran:?}");
    assert!(ran.err.contains("/nonexistent/program"), "{ran:?}");
    let ran = run(&["-n", "2", "/etc/passwd"]);
    assert_eq!(ran.code, Some(126), "{ran:?}");
    assert!(ran.err.contains("executable"), "{ran:?}");
}

#[test]
fn ranks_are_bound_as_asked() {
    let cpus = onecopy::wireup::own_processors();
    let list: Vec<String> = cpus.iter().rev().take(2).map(u16::to_string).collect();
    let text = "echo $ONECOPY_JOB_RANK $(sed -n 's/Cpus_allowed_list:\t//p' /proc/self/status)";
    let seen = |bind: &str| {
        let ran = run(&["-n", "2", "--bind", bind, "sh", "-c", text]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let mut lines: Vec<String> = ran.out.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let cpu = |rank: usize| list[rank % list.len()].clone();
    let expected = [format!("0 {}", cpu(0)), format!("1 {}", cpu(1))];
    assert_eq!(seen(&list.join(",")), expected);
    let core = |rank: usize| format!("{rank} {}", cpus[rank % cpus.len()]);
    assert_eq!(seen("core"), [core(0), core(1)]);
    let free = seen("none");
    assert_eq!(free[0][1..], free[1][1..]);
}

#[test]
fn a_bad_binding_or_number_is_refused_before_anything_starts() {
    for bind in ["x", "0,", "3-1", "9999"] {
        let ran = run(&["-n", "2", "--bind", bind, "echo", "started"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert_eq!(ran.out, "");
    }
    let ran = run(&["-n", "2", "--bind", "1023", "echo", "started"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err.contains("processor 1023 is not available"),
        "{ran:?}"
    );
    for bad in ["0", "-1", "many"] {
        assert_eq!(run(&["-n", bad, "echo"]).code, Some(2));
    }
    assert_eq!(run(&["-n", "2", "--timeout", "-1", "echo"]).code, Some(2));
    assert_eq!(run(&["-n", "2", "--env", "novalue", "echo"]).code, Some(2));
    assert_eq!(run(&["-n", "2"]).code, Some(2));
}

#[test]
fn too_few_descriptors_are_told_before_anything_starts() {
    let text = format!(
        "ulimit -n 100; exec {} run -n 64 echo started",
        env!("CARGO_BIN_EXE_onecopy")
    );
    let mut command = std::process::Command::new("sh");
    command.env("ONECOPY_TUNE_FILE", "none");
    let output = limit::output(command.args(["-c", &text]));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("hard limit is 100"), "{err}");
    assert_eq!(output.stdout, b"");
}

/// Starts ranks that say `ready`, and waits for that.
fn start_ready(ranks: &str, text: &str) -> Limited {
    let mut child = limit::start(&mut command(&["-n", ranks, "sh", "-c", text]));
    let count: usize = ranks.parse().expect("number");
    // One byte at a time, so that nothing is taken that belongs to the test.
    let mut reader = BufReader::with_capacity(1, child.stdout.as_mut().expect("stdout"));
    for _ in 0..count {
        let mut line = String::new();
        reader.read_line(&mut line).expect("read");
        assert_eq!(line, "ready\n");
    }
    drop(reader);
    child
}

#[test]
fn signals_reach_all_ranks() {
    for (name, number) in [("USR1", Signal::SIGUSR1), ("TERM", Signal::SIGTERM)] {
        let text = format!(
            "trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.01; done"
        );
        let child = start_ready("3", &text);
        signal(child.id().cast_signed(), number);
        let ran = finish(child);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(
            ran.out.matches(&format!("got {name}")).count(),
            3,
            "{ran:?}"
        );
    }
    let child = start_ready("2", "echo ready; while :; do sleep 0.01; done");
    signal(child.id().cast_signed(), Signal::SIGINT);
    let ran = finish(child);
    assert_eq!(ran.code, Some(130), "{ran:?}");
}

#[test]
fn the_second_interrupt_kills() {
    let mark = marker();
    let text = format!("trap 'echo ready' INT; echo ready; sleep {mark} & while :; do wait; done");
    let mut child = start_ready("1", &text);
    signal(child.id().cast_signed(), Signal::SIGINT);
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("stdout");
    BufReader::with_capacity(1, stdout)
        .read_line(&mut line)
        .expect("read");
    assert_eq!(line, "ready\n");
    // Of another process: two of one, at once, are one request.
    let mut other = std::process::Command::new("sh");
    other.args(["-c", &format!("kill -INT {}", child.id())]);
    assert!(limit::output(&mut other).status.success());
    let ran = finish(child);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.err.contains("second SIGINT"), "{ran:?}");
    assert_eq!(marked(&mark), 0);
}

/// What the kernel says of a process.
fn field(pid: i32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

/// Those that end a program may signal it and its group.
#[test]
fn two_signals_at_once_leave_ranks_their_time() {
    let text =
        "trap 'sleep 0.5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let child = start_ready("1", text);
    let pid = child.id().cast_signed();
    signal(pid, Signal::SIGTERM);
    // One that is still pending is not queued a second time: the launcher is to have taken it.
    let is_pending = || {
        let mask = u64::from_str_radix(&field(pid, "ShdPnd:"), 16).expect("a mask");
        mask & 1 << (Signal::SIGTERM as i32 - 1) != 0
    };
    while is_pending() {
        std::thread::yield_now();
    }
    signal(pid, Signal::SIGTERM);
    let ran = finish(child);
    assert!(ran.out.contains("saved"), "{ran:?}");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn ranks_that_are_stopped_end_by_the_first_signal() {
    let mark = std::env::temp_dir().join(format!("onecopy-stopped-{}", std::process::id()));
    let text = format!(
        "echo $$ >{0}.$ONECOPY_JOB_RANK; echo ready; kill -STOP $$; sleep 1000",
        mark.display()
    );
    let child = start_ready("2", &text);
    for rank in 0..2 {
        let path = mark.with_extension(rank.to_string());
        let is_stopped = || {
            let pid = std::fs::read_to_string(&path).ok()?.trim().parse().ok()?;
            Some(field(pid, "State:").starts_with('T'))
        };
        while is_stopped() != Some(true) {
            std::thread::yield_now();
        }
        std::fs::remove_file(&path).expect("remove");
    }
    signal(child.id().cast_signed(), Signal::SIGTERM);
    let ran = finish(child);
    assert_eq!(ran.code, Some(143), "{ran:?}");
    assert!(!ran.err.contains("second"), "{ran:?}");
}

#[test]
fn output_that_cannot_be_written_fails_the_job() {
    for (target, script, other) in [
        (
            ">/dev/full",
            "echo hi",
            "standard output cannot be written: No space left on device",
        ),
        (
            ">/dev/full",
            "echo hi; sleep 0.3",
            "standard output cannot be written",
        ),
        (
            ">/dev/full",
            "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done",
            "cannot be written",
        ),
        ("2>/dev/full", "echo hi >&2", ""),
    ] {
        let launcher = command(&[]).get_program().to_owned();
        let mut shell = std::process::Command::new("sh");
        let line = format!("exec \"$1\" run -n 2 -- sh -c \"$2\" {target}");
        shell.args(["-c", &line, "sh"]).arg(launcher).arg(script);
        let output = limit::output(&mut shell);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{target} {script}: {text}");
        assert!(text.contains(other), "{target} {script}: {text}");
    }
}

/// What is ignored stays so through `exec`.
#[test]
fn a_parent_that_ignores_the_ends_of_children_changes_nothing() {
    for (script, code) in [("true", 0), ("exit 7", 7)] {
        let launcher = command(&[]).get_program().to_owned();
        let mut shell = std::process::Command::new("perl");
        shell
            .args(["-e", "$SIG{CHLD} = 'IGNORE'; exec @ARGV"])
            .arg(launcher)
            .args(["run", "-n", "2", "--", "sh", "-c", script]);
        let output = limit::output(&mut shell);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{script}: {text}");
    }
}

#[test]
fn a_job_can_be_run_from_a_program() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::new(Mutex::new(Vec::new()));
    let (sink, pids) = (Arc::clone(&lines), Arc::clone(&started));
    let mark = marker();
    limit::usual_signals();
    let outcome = Job::new("sh", 2)
        .timeout(limit::limit())
        .arg("-c")
        .arg(format!(
            "sleep {mark} & echo out; echo err >&2; exit $ONECOPY_JOB_RANK"
        ))
        .bind(Bind::None)
        .keep_going(true)
        .quiet(true)
        .grace(Duration::from_millis(100))
        .on_start(move |rank, pid| pids.lock().expect("lock").push((rank, pid)))
        .output(Output::Lines(Box::new(move |rank, stream, line| {
            let entry = (rank, stream == Stream::Stderr, line.to_vec());
            sink.lock().expect("lock").push(entry);
        })))
        .run()
        .expect("run");
    assert_eq!(outcome.code, 1);
    assert_eq!(outcome.ranks, [Death::Code(0), Death::Code(1)]);
    let death = Death::Code(1);
    assert_eq!(outcome.cause, Cause::Rank { rank: 1, death });
    assert_eq!(outcome.messages.len(), 1, "{:?}", outcome.messages);
    let mut lines = lines.lock().expect("lock").clone();
    lines.sort();
    let line = |rank, error, text: &str| (rank, error, text.as_bytes().to_vec());
    let expected = [
        line(0, false, "out\n"),
        line(0, true, "err\n"),
        line(1, false, "out\n"),
        line(1, true, "err\n"),
    ];
    assert_eq!(lines, expected);
    assert_eq!(started.lock().expect("lock").len(), 2);
    // What is in a rank's process group does not outlive the job, exclusive or not.
    assert_eq!(marked(&mark), 0);
}

#[test]
fn jobs_of_one_program_do_not_disturb_each_other() {
    std::thread::scope(|scope| {
        for code in 1..5 {
            scope.spawn(move || {
                let text = format!("test $ONECOPY_JOB_RANK = 0 && exit {code}; sleep 60");
                limit::usual_signals();
                let job = Job::new("sh", 3).timeout(limit::limit());
                let outcome = job.args(["-c", &text]).quiet(true).run();
                assert_eq!(outcome.expect("run").code, code);
            });
        }
    });
}
