// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looks at the pages of a job's ranks while they live.

use crate::processes::{Ranks, limit};
use onecopy_trace::observed::{Observed, Peer};
use onecopy_trace::own::Collector;
use std::path::Path;
use std::time::Instant;

/// Where the ranks find that they may end.
const END: &str = "TEST_END";

/// As a rank that has done its part: a look from outside must find its last message ended.
pub(crate) fn stay() {
    let end = std::env::var(END).expect("a path");
    assert!(limit::wait_until(|| Path::new(&end).exists()), "{end}");
}

/// The job whose ranks have `mark` in their environment.
fn job_of(observed: &Observed, mark: &str) -> Option<String> {
    let marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut parts = environment.windows(mark.len());
        parts.any(|part| part == mark.as_bytes())
    };
    let mut tasks = observed.tasks.iter();
    let (_, task) = tasks.find(|(pid, task)| task.rank.is_some() && marked(pid))?;
    task.job.clone()
}

/// The rank of a process of this job.
pub(crate) fn rank_of(observed: &Observed, job: &str, pid: u32) -> Option<u32> {
    let task = observed.tasks.get(&pid)?;
    task.rank.filter(|_| task.job.as_deref() == Some(job))
}

/// The rank of a peer. None: a look while the ranks still begin does not know its process yet. Such a look must not
/// fit, so that there is another one.
pub(crate) fn rank_of_peer(observed: &Observed, job: &str, peer: Peer) -> Option<u32> {
    let Peer::Process(pid) = peer else {
        return None;
    };
    rank_of(observed, job, pid)
}

/// Runs a job, and looks at it until the figures that `of` gives are expected, or its ranks have waited long. Looks
/// once more then, as ranks that wait receive nothing, and ends the job. Gives what that came to, and the last look,
/// at ranks that ended.
pub(crate) fn watch<F>(
    ranks: Ranks,
    name: &str,
    figure: impl Fn(&Observed, &str) -> F,
    is_expected: impl Fn(&F) -> bool,
) -> (F, Observed, String) {
    let end = std::env::temp_dir().join(format!("onecopy-trace-{}-{name}", std::process::id()));
    let mark = end.to_str().expect("a path").to_owned();
    let ranks = ranks.env(END, &mark);
    let running = std::thread::spawn(move || ranks.run());
    let mut collector = Collector::new();
    // The ranks wait longer.
    let (start, patience) = (Instant::now(), limit::limit() / 6);
    limit::wait_until(|| {
        let observed = collector.observe().expect("looks");
        let job = job_of(&observed, &mark);
        job.is_some_and(|job| is_expected(&figure(&observed, &job)))
            || running.is_finished()
            || start.elapsed() > patience
    });
    let observed = collector.observe().expect("looks");
    let job = job_of(&observed, &mark);
    let found = job.as_deref().map(|job| figure(&observed, job));
    std::fs::write(&end, "").expect("ends the job");
    running.join().expect("the job").expect_success();
    std::fs::remove_file(&end).expect("removes");
    let after = collector.observe().expect("looks");
    (found.expect("the ranks live"), after, job.expect("a job"))
}
