// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a test may take, and what ends it: every process that a test starts goes through here, and `cargo xtask
//! tidy` sees to it.
//!
//! What is started so carries a mark in its environment, which all that it starts inherits. When the time is over,
//! everything with that mark is killed, however far below it stands, and even if another process adopted it. So pipes
//! are closed, and a test that reads from them goes on, and fails.
//!
//! # Safety
//! Only dispositions of signals are changed, to the default, which runs no code, or back to what they were.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(unsafe_code, reason = "dispositions of signals")]

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::Pid;
use onecopy_shm::sync::{AtomicBool, AtomicU32, Ordering};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// Beyond this something hangs, also where other work has most of the processors. It is three minutes, or `TEST_SLOWER`
/// times as long on a machine that is so many times slower.
pub(crate) fn limit() -> Duration {
    let slower = std::env::var("TEST_SLOWER").ok();
    let slower = slower.map_or(1, |text| text.parse().expect("TEST_SLOWER"));
    Duration::from_secs(180) * slower
}

/// Whether `done` becomes true within the limit.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() > limit() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Signals are as a terminal's foreground job has them, whatever the tests were started by. What is ignored would be so
/// in all that is started.
pub(crate) fn usual_signals() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let usual = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        for signal in [
            Signal::SIGHUP,
            Signal::SIGINT,
            Signal::SIGQUIT,
            Signal::SIGTERM,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
            Signal::SIGCHLD,
            Signal::SIGTSTP,
            Signal::SIGXFSZ,
        ] {
            // SAFETY: the default action runs no code of ours.
            let before = unsafe { sigaction(signal, &usual) }.expect("sigaction");
            if !matches!(before.handler(), SigHandler::SigDfl | SigHandler::SigIgn) {
                // SAFETY: what was there a moment ago.
                unsafe { sigaction(signal, &before) }.expect("sigaction");
            }
        }
    });
}

/// A process that a test started, and all below it: killed when the limit is over, or when this is dropped.
#[derive(Debug)]
pub(crate) struct Limited {
    what: String,
    child: Option<Child>,
    mark: String,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    over: Arc<AtomicBool>,
    _done: Sender<()>,
}

impl Deref for Limited {
    type Target = Child;
    fn deref(&self) -> &Child {
        self.child.as_ref().expect("a child until it is finished")
    }
}

impl DerefMut for Limited {
    fn deref_mut(&mut self) -> &mut Child {
        self.child.as_mut().expect("a child until it is finished")
    }
}

/// Starts a command.
#[track_caller]
pub(crate) fn start(command: &mut Command) -> Limited {
    match start_for(command, limit()) {
        Ok(started) => started,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

/// Starts a command that may take this long.
pub(crate) fn start_for(command: &mut Command, limit: Duration) -> std::io::Result<Limited> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    usual_signals();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{number}", std::process::id());
    command.env(MARK, &mark);
    let what = format!("{command:?}");
    let child = command.spawn()?;
    let over = Arc::new(AtomicBool::new(false));
    let (done, waiting) = channel::<()>();
    let (seen, marked) = (Arc::clone(&over), mark.clone());
    std::thread::spawn(move || {
        if waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            seen.store(true, Ordering::Release);
            kill_marked(&marked);
        }
    });
    Ok(Limited {
        what,
        child: Some(child),
        mark,
        watch: Some(Watch { over, _done: done }),
    })
}

/// Runs a command to its end, with nothing to read, and returns what it wrote.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> Output {
    match try_output(command) {
        Ok(output) => output,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

/// As [`output`], for a command that this machine may lack.
#[track_caller]
pub(crate) fn try_output(command: &mut Command) -> std::io::Result<Output> {
    output_within(command, limit())
}

/// As [`output`], for a command that may take this long.
#[track_caller]
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> std::io::Result<Output> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(start_for(command, limit)?.finish())
}

impl Limited {
    /// Waits for the end, and returns what was written to pipes that nobody has taken.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Output {
        let child = self.child.take().expect("finished once");
        let output = child.wait_with_output().expect("wait");
        let watch = self.watch.take().expect("finished once");
        if watch.over.load(Ordering::Acquire) {
            let (out, err) = (&output.stdout, &output.stderr);
            let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
            panic!("{} hangs\n{out}\n{err}", self.what);
        }
        output
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        kill_marked(&self.mark);
        // Fails only for one that was waited for.
        let _ = child.wait();
    }
}

/// In the environment of all that a test starts.
const MARK: &str = "TEST_STARTED_BY";

/// Kills what carries a mark, until nothing does.
fn kill_marked(mark: &str) {
    let own = Pid::this();
    let wanted = format!("{MARK}={mark}").into_bytes();
    let start = Instant::now();
    loop {
        let mut found = false;
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let name = entry.file_name();
            let Some(Ok(pid)) = name.to_str().map(str::parse::<i32>) else {
                continue;
            };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let mut variables = environment.split(|&byte| byte == 0);
            if pid != own.as_raw() && variables.any(|variable| variable == wanted) {
                found = true;
                // It may have ended meanwhile.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        if !found || start.elapsed() > Duration::from_secs(20) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
