// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs jobs of this program and looks at what they leave.

use nix::sys::signal::kill;
use nix::unistd::Pid;
use onecopy::wireup::Death;
use onecopy_launch::{Job, Output, Stream};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Variable with a rank's role.
pub(crate) const ROLE: &str = "TEST_ROLE";
/// How this program is started as a rank.
const AS_RANK: [&str; 6] = [
    "--exact",
    "as_rank",
    "--nocapture",
    "-q",
    "--test-threads",
    "1",
];
/// Ranks of all jobs here.
pub(crate) const RANKS: usize = 4;

/// How a job ended.
#[derive(Debug)]
pub(crate) struct CrashRun {
    /// How each rank ended.
    pub(crate) ranks: Vec<Death>,
    /// What each rank said.
    pub(crate) lines: Vec<Vec<String>>,
    /// What each rank complained of.
    pub(crate) complaints: Vec<Vec<String>>,
}

impl CrashRun {
    /// The words behind `word` in the lines of `rank`.
    pub(crate) fn reports(&self, rank: usize, word: &str) -> Vec<Vec<String>> {
        let lines = self.lines[rank].iter().filter_map(|line| {
            let mut words = line.split_ascii_whitespace().map(str::to_owned);
            (words.next()? == word).then(|| words.collect())
        });
        lines.collect()
    }

    /// The number that is word `index` behind `word` in the first such line of `rank`.
    pub(crate) fn number(&self, rank: usize, word: &str, index: usize) -> Option<u64> {
        self.reports(rank, word).first()?.get(index)?.parse().ok()
    }

    /// Everything that was written, for a failure's message.
    pub(crate) fn story(&self) -> String {
        format!("{self:#?}")
    }
}

/// One job at a time: what they leave is counted.
static ONE: Mutex<()> = Mutex::new(());

/// No other job runs as long as the caller has this.
pub(crate) fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn names(dir: &str) -> BTreeSet<std::ffi::OsString> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

/// Runs four ranks in `role` that go on when one of them dies, and checks that nothing is left of them.
pub(crate) fn run(role: &str, env: &[(&str, String)]) -> CrashRun {
    let _one = one();
    let temporary = std::env::temp_dir().join(format!("crash-{}", std::process::id()));
    std::fs::create_dir_all(&temporary).expect("a directory of our own");
    let shm = names("/dev/shm");
    let descriptors = names("/proc/self/fd").len();
    let (pids, heard) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(Mutex::new(Vec::new())),
    );
    let mut job = Job::new(std::env::current_exe().expect("own path"), RANKS)
        .args(AS_RANK)
        .env(ROLE, role)
        .env("TMPDIR", &temporary)
        .env("RUST_BACKTRACE", "0")
        .keep_going(true)
        .quiet(true)
        .timeout(crate::limit::limit())
        .output(Output::Lines(Box::new({
            let heard = Arc::clone(&heard);
            move |rank, stream, line: &[u8]| {
                let line = String::from_utf8_lossy(line).trim_end().to_owned();
                heard.lock().expect("lock").push((rank, stream, line));
            }
        })))
        .on_start({
            let pids = Arc::clone(&pids);
            move |_, pid| pids.lock().expect("lock").push(pid)
        });
    for (name, value) in env {
        job = job.env(name, value);
    }
    crate::limit::usual_signals();
    let outcome = job.run().expect("a job");
    let mut ran = CrashRun {
        ranks: outcome.ranks,
        lines: vec![Vec::new(); RANKS],
        complaints: vec![Vec::new(); RANKS],
    };
    for (rank, stream, line) in heard.lock().expect("lock").drain(..) {
        match stream {
            Stream::Stdout => ran.lines[rank].push(line),
            Stream::Stderr => ran.complaints[rank].push(line),
        }
    }
    assert!(
        !ran.ranks.contains(&Death::Signal(15)),
        "hangs: {env:?} {}",
        ran.story()
    );
    for &pid in pids.lock().expect("lock").iter() {
        assert!(
            kill(Pid::from_raw(pid), None).is_err(),
            "process {pid} is left of {env:?}"
        );
    }
    assert_eq!(names("/dev/shm"), shm, "left in /dev/shm by {env:?}");
    let files = names(temporary.to_str().expect("path"));
    assert!(files.is_empty(), "left in TMPDIR by {env:?}: {files:?}");
    std::fs::remove_dir(&temporary).expect("remove an empty directory");
    assert_eq!(
        names("/proc/self/fd").len(),
        descriptors,
        "descriptors are left of {env:?}"
    );
    ran
}

/// This program again, in another role, as a child of a rank: what it says is the rank's word.
pub(crate) fn another(role: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().expect("own path"));
    command.args(AS_RANK).env(ROLE, role);
    command
}

/// Says something to the test.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // One write: the process may be killed at any moment.
    let _ = out.write_all(format!("\n{text}\n").as_bytes());
    let _ = out.flush();
}

/// Microseconds since some moment that all processes agree on.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// The middle and the worst of delays.
pub(crate) fn spread(delays: &mut [u64]) -> String {
    delays.sort_unstable();
    let middle = delays.get(delays.len() / 2).unwrap_or(&0);
    let worst = delays.last().unwrap_or(&0);
    format!("p50 {middle} us, max {worst} us")
}

/// This process dies here.
pub(crate) fn die() -> ! {
    loop {
        let _ = kill(Pid::this(), nix::sys::signal::Signal::SIGKILL);
    }
}

/// A small generator of numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit.max(1)
    }
}
