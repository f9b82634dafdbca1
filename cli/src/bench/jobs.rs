// SPDX-License-Identifier: MIT OR Apache-2.0
//! The jobs of ranks that the benchmark drives, one for each mechanism and one for the limits.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onecopy_bench::protocol::{Answer, Line, Order, Outcome};
use onecopy_bench::rank::Inheritance;
use onecopy_bench::{BenchError, ENV, Mechanism, Missing};
use onecopy_launch as launch;
use onecopy_shm::limits::{Arena, Inherited};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A rank that has not answered for so long has hung. Chosen by magnitude: batches take milliseconds, and the first of
/// a job seconds under translation.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ranks that were asked to end get so long. Chosen by magnitude: to leave takes two seconds where a rank has died
/// (`REGROUP` in `src/comm.rs`).
const GRACE: Duration = Duration::from_secs(5);

/// A job of ranks that waits for orders.
#[derive(Debug)]
pub struct BenchJob {
    name: String,
    arena: Arena,
    lines: Vec<Line>,
    ranks: Option<Ranks>,
    /// What the first rank's runtime did not find.
    pub missing: Vec<Missing>,
}

#[derive(Debug)]
struct Ranks {
    thread: JoinHandle<String>,
    pids: Vec<i32>,
}

/// How the jobs of one run are laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Ranks of each job.
    pub ranks: usize,
    /// Processors, by rank.
    pub processors: Vec<usize>,
    /// Bytes of the pool through which buffers rotate.
    pub pool: usize,
}

impl Layout {
    /// Ranks on these processors: the first and the last rank on the first two, so that the pair that works has one
    /// each.
    #[must_use]
    pub fn new(ranks: usize, processors: &[usize], pool: usize) -> Self {
        let count = processors.len().max(1);
        let on = |rank: usize| {
            let index = if rank + 1 == ranks { 1 } else { rank };
            processors.get(index % count).copied().unwrap_or(0)
        };
        Self {
            ranks,
            processors: (0..ranks).map(on).collect(),
            pool,
        }
    }
}

impl BenchJob {
    /// Starts the ranks of one job and waits until they are ready.
    ///
    /// # Errors
    ///
    /// If a rank cannot be started, or says that its mechanism does not work here.
    pub fn start(mechanism: Option<Mechanism>, layout: &Layout) -> Result<Self, BenchError> {
        let name = mechanism.map_or("limits", Mechanism::name).to_owned();
        let arena = Arena::create(layout.pool)?;
        let pair = || UnixStream::pair().map_err(BenchError::io("socket pair"));
        let mut own = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..layout.ranks {
            let (a, b) = pair()?;
            a.set_read_timeout(Some(PATIENCE))
                .map_err(BenchError::io("socket pair"))?;
            own.push(Line::new(a));
            theirs.push(b);
        }
        let sockets = match mechanism {
            Some(Mechanism::Unix) => {
                let (a, b) = pair()?;
                vec![a, b]
            }
            _ => Vec::new(),
        };
        let inheritance = Inheritance {
            mechanism,
            arena: arena.fd().as_raw_fd(),
            lines: theirs.iter().map(AsRawFd::as_raw_fd).collect(),
            sockets: sockets.iter().map(AsRawFd::as_raw_fd).collect(),
            processors: layout.processors.clone(),
        };
        let text = serde_json::to_string(&inheritance)
            .map_err(|error| BenchError::Wrong(format!("inheritance as JSON: {error}")))?;
        let mut open = Vec::new();
        for fd in std::iter::once(arena.fd())
            .chain(theirs.iter().map(AsFd::as_fd))
            .chain(sockets.iter().map(AsFd::as_fd))
        {
            open.push(Inherited::new(fd).map_err(BenchError::io("descriptor of a rank"))?);
        }
        let layers = mechanism.and_then(Mechanism::layers);
        let ranks = start_ranks(layout.ranks, text, layers)?;
        drop(open);
        drop((theirs, sockets));
        let mut job = Self {
            name,
            arena,
            lines: own,
            ranks: Some(ranks),
            missing: Vec::new(),
        };
        for rank in 0..layout.ranks {
            if let Answer::Ready(missing) = job.answer(rank)?
                && rank == 0
            {
                job.missing = missing;
            }
        }
        Ok(job)
    }

    /// Name of what it carries.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives an order to all ranks and waits until all have done it: the first rank's figures, and the bytes of all.
    ///
    /// # Errors
    ///
    /// If a rank fails or ends. A refused limit is [`BenchError::Rank`] and leaves the job usable.
    pub fn order(&mut self, order: &Order) -> Result<Outcome, BenchError> {
        for line in &mut self.lines {
            line.say(order)?;
        }
        let mut all = Outcome::default();
        let mut failed = None;
        for rank in 0..self.lines.len() {
            match self.answer(rank) {
                Ok(Answer::Done(outcome)) => {
                    all.checked_bytes += outcome.checked_bytes;
                    all.pool_bytes += outcome.pool_bytes;
                    if rank == 0 {
                        (all.us, all.before_ns, all.after_ns) =
                            (outcome.us, outcome.before_ns, outcome.after_ns);
                    }
                }
                Ok(Answer::Ready(_) | Answer::Failed(_)) => {}
                Err(error) => {
                    // The others may wait for the rank that failed.
                    if failed.is_none() && !is_refusal(&error) {
                        self.arena.stop();
                    }
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(all), Err)
    }

    fn answer(&mut self, rank: usize) -> Result<Answer, BenchError> {
        let fail = |mechanism: &str, reason: String| BenchError::Rank {
            mechanism: mechanism.to_owned(),
            rank,
            reason,
        };
        match self.lines[rank].hear() {
            Ok(Some(Answer::Failed(reason))) => Err(fail(&self.name, reason)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                self.arena.stop();
                Err(fail(&self.name, "ended unexpectedly".to_owned()))
            }
            Err(error) => {
                self.arena.stop();
                Err(fail(&self.name, format!("no answer: {error}")))
            }
        }
    }

    /// Ends the job.
    ///
    /// # Errors
    ///
    /// If a rank does not end well.
    pub fn leave(mut self) -> Result<(), BenchError> {
        self.order(&Order::Leave)?;
        self.join();
        Ok(())
    }
}

impl BenchJob {
    /// Ends the lines, upon which the ranks end, and waits for them.
    fn join(&mut self) {
        self.lines.clear();
        let Some(Ranks { thread, pids }) = self.ranks.take() else {
            return;
        };
        let since = Instant::now();
        while !thread.is_finished() {
            thread::sleep(Duration::from_millis(1));
            if since.elapsed() > GRACE {
                for &pid in &pids {
                    // It may have ended; one that hangs has not, and its job waits for it.
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
        }
        // The job's error was reported before; a thread that panicked has nothing to add.
        let _ = thread.join();
    }
}

fn is_refusal(error: &BenchError) -> bool {
    matches!(error, BenchError::Rank { reason, .. } if reason.contains("refused"))
}

impl Drop for BenchJob {
    fn drop(&mut self) {
        self.arena.stop();
        self.join();
    }
}

/// Starts the ranks from a thread that stays until they have ended, because they end with it.
fn start_ranks(
    ranks: usize,
    inheritance: String,
    layers: Option<&str>,
) -> Result<Ranks, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::io("own program"))?;
    let (started, begun) = mpsc::channel();
    let mut job = launch::Job::new(program, ranks)
        .arg("__bench-rank")
        .env(ENV, inheritance)
        .bind(launch::Bind::None)
        .quiet(true)
        .on_start(move |_, pid| {
            // Nobody listens only if the benchmark has given up.
            let _ = started.send(pid);
        });
    if let Some(layers) = layers {
        job = job.env("ONECOPY_LAYERS", layers);
    }
    let thread = thread::Builder::new()
        .name("job".into())
        .spawn(move || match job.run() {
            Ok(outcome) => outcome.messages.join("; "),
            Err(error) => error.to_string(),
        })
        .map_err(BenchError::io("thread of a job"))?;
    let mut pids = Vec::new();
    for rank in 0..ranks {
        if let Ok(pid) = begun.recv() {
            pids.push(pid);
        } else {
            let reason = thread.join().unwrap_or_default();
            return Err(BenchError::Rank {
                mechanism: "start".into(),
                rank,
                reason,
            });
        }
    }
    Ok(Ranks { thread, pids })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_that_works_has_a_processor_each() {
        assert_eq!(Layout::new(2, &[0, 1], 0).processors, [0, 1]);
        assert_eq!(Layout::new(3, &[0, 1], 0).processors, [0, 1, 1]);
        assert_eq!(Layout::new(4, &[4, 6], 0).processors, [4, 6, 4, 6]);
        assert_eq!(Layout::new(2, &[3], 0).processors, [3, 3]);
    }
}
