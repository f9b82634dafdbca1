// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks as real processes: this very test program, run with one test only, `as_rank`, which finds in its environment
//! what it is to do.
#![allow(dead_code, reason = "each test program uses a part")]

#[path = "limit.rs"]
pub(crate) mod limit;
#[path = "say.rs"]
mod say;

pub(crate) use say::say;

use std::sync::{Arc, Mutex};

use onecopy_launch::{Bind, Job, JobOutcome, Output};

const BODY: &str = "TEST_BODY";

/// What this process is to do as a rank; nothing if it is not one.
pub(crate) fn body() -> Option<String> {
    std::env::var(BODY).ok()
}

/// What a job left.
#[derive(Debug)]
pub(crate) struct JobRun {
    pub(crate) outcome: JobOutcome,
    pub(crate) lines: Vec<String>,
}

impl JobRun {
    /// Fails with everything that the ranks wrote if one of them failed.
    #[track_caller]
    pub(crate) fn expect_success(self) -> Self {
        assert_eq!(
            self.outcome.code,
            0,
            "{:?}\n{}",
            self.outcome,
            self.lines.join("\n")
        );
        self
    }

    /// What follows `mark` in the lines that contain it.
    pub(crate) fn reports(&self, mark: &str) -> Vec<String> {
        let found = self.lines.iter().filter_map(|line| line.split_once(mark));
        found.map(|(_, rest)| rest.to_owned()).collect()
    }
}

/// A job of ranks of this program.
#[derive(Debug)]
pub(crate) struct Ranks {
    count: usize,
    env: Vec<(String, String)>,
    wrapper: Vec<String>,
}

impl Ranks {
    pub(crate) fn new(count: usize, body: &str) -> Self {
        Self {
            count,
            env: vec![(BODY.to_owned(), body.to_owned())],
            wrapper: Vec::new(),
        }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts each rank by this command.
    pub(crate) fn wrapped(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Each rank is on a node of its own, all of which are this machine. They meet by the launcher's table, as under
    /// the launcher of another library.
    pub(crate) fn on_nodes(self) -> Self {
        let apart = "unset ONECOPY_JOB_FD ONECOPY_JOB_RANK ONECOPY_JOB_SIZE; \
                     ONECOPY_NODE=node$PMI_RANK exec \"$@\"";
        // This machine has other work. Nothing is measured into the home of the one who runs the tests.
        self.env("ONECOPY_NODE_TIMEOUT", "60")
            .env("ONECOPY_TUNE_FILE", "none")
            .wrapped(&["sh", "-c", apart, "sh"])
    }

    pub(crate) fn run(self) -> JobRun {
        let own = std::env::current_exe().expect("own path");
        let mut line: Vec<_> = self.wrapper.into_iter().map(Into::into).collect();
        line.push(own.into_os_string());
        let rest = ["--exact", "as_rank", "--nocapture", "-q"];
        line.extend(rest.map(Into::into));
        let mut line = line.into_iter();
        let program = line.next().expect("a program");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&lines);
        let mut job = Job::new(program, self.count)
            .args(line)
            .bind(Bind::None)
            .quiet(true)
            .env("RUST_BACKTRACE", "0")
            .timeout(limit::limit())
            .output(Output::Lines(Box::new(move |rank, _, line| {
                let line = String::from_utf8_lossy(line);
                let line = format!("[{rank}] {}", line.trim_end());
                collected.lock().expect("lines").push(line);
            })));
        for (name, value) in self.env {
            job = job.env(name, value);
        }
        limit::usual_signals();
        let outcome = job.run().expect("start the job");
        let lines = std::mem::take(&mut *lines.lock().expect("lines"));
        JobRun { outcome, lines }
    }
}

/// Tells of each panic at once, past what a test program holds back of a test's output. A rank that panics may leave
/// others that wait for it: then nothing of that output is ever written.
fn tell_of_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            say(&info.to_string());
            usual(info);
        }));
    });
}

/// Ends this process if `f` hangs: a rank that is a thread cannot be killed.
pub(crate) fn limited<R>(what: &str, f: impl FnOnce() -> R) -> R {
    tell_of_panics();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let what = what.to_owned();
    std::thread::spawn(move || {
        let waited = waiting.recv_timeout(limit::limit());
        if waited == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            say(&format!("{what}: hangs"));
            std::process::abort();
        }
    });
    let result = f();
    drop(done);
    result
}
