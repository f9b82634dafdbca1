// SPDX-License-Identifier: MIT OR Apache-2.0
//! One rank of the benchmark: follows orders, line by line.

use super::driver::{Driver, RuntimeDriver, UnixDriver};
use super::pattern::{self, Buffers, RankPart};
use super::protocol::{Answer, Line, Order, Outcome, Work};
use super::{BenchError, ENV, Mechanism, Pattern};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use onecopy::wireup::ENV_RANK;
use onecopy_shm::limits::{Arena, Batch, Flow, Limit, Pages, Pair, inherited};
use serde::{Deserialize, Serialize};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;

/// What a rank inherits, as the benchmark writes it into the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inheritance {
    /// What carries the messages; none for the job that measures the limits.
    pub mechanism: Option<Mechanism>,
    /// Descriptor of the arena for probes and limits.
    pub arena: RawFd,
    /// Descriptors of the lines to the benchmark, by rank.
    pub lines: Vec<RawFd>,
    /// Descriptors of the socket between first and last rank, for the mechanism that is one.
    pub sockets: Vec<RawFd>,
    /// Processors, by rank.
    pub processors: Vec<usize>,
}

/// The real-time priority that ranks are to have; `cargo xtask peers` sets it.
pub const ENV_PRIORITY: &str = "PEERS_PRIORITY";

/// Rounds of a probe. Chosen by magnitude: they take some tens of microseconds, a hundredth of a batch.
pub const PROBE_ROUNDS: u32 = 150;

/// Gives all threads of this process a real-time priority, in turn with others of the same.
fn take_priority(priority: &str) -> Result<(), BenchError> {
    let own = std::process::id().to_string();
    let done = std::process::Command::new("chrt")
        .args(["-a", "-r", "-p", priority, &own])
        .output()
        .map_err(BenchError::io("chrt"))?;
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    Err(BenchError::Wrong(format!("chrt: {}", text.trim())))
}

/// Runs this process as a rank of the benchmark until it is ordered to leave.
///
/// # Errors
///
/// If it was not started by the benchmark, or a rank fails.
pub fn main() -> Result<(), BenchError> {
    let rank: usize = std::env::var(ENV_RANK)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| BenchError::Usage("only 'onecopy bench' starts this command".into()))?;
    let text = std::env::var(ENV)
        .map_err(|_| BenchError::Usage("only 'onecopy bench' starts this command".into()))?;
    let inheritance: Inheritance = serde_json::from_str(&text)
        .map_err(|error| BenchError::Usage(format!("{ENV}: {error}")))?;
    let ranks = inheritance.lines.len();
    let part = RankPart { rank, ranks };
    let take = |fd| inherited(fd).map_err(BenchError::io("inherited descriptor"));
    let arena = Arena::open(take(inheritance.arena)?)?;
    let mut line = None;
    for (owner, &fd) in inheritance.lines.iter().enumerate() {
        let fd = take(fd)?;
        if owner == rank {
            line = Some(Line::new(UnixStream::from(fd)));
        }
    }
    let Some(mut line) = line else {
        return Err(BenchError::Usage(format!("rank {rank} of {ranks}")));
    };
    let mut socket = None;
    for (owner, &fd) in inheritance.sockets.iter().enumerate() {
        let fd = take(fd)?;
        if part.side() == Some(owner) {
            socket = Some(UnixStream::from(fd));
        }
    }
    if let Some(&processor) = inheritance.processors.get(rank) {
        pin(processor)?;
    }
    if let Ok(priority) = std::env::var(ENV_PRIORITY) {
        take_priority(&priority)?;
    }
    let pool = arena.pool();
    let pair = part.side().map(|side| Pair::new(arena, side));
    let result = match inheritance.mechanism {
        None => serve(&mut line, part, pair, pool, None::<UnixDriver>),
        Some(Mechanism::Unix) => {
            let driver = UnixDriver::new(socket);
            serve(&mut line, part, pair, pool, Some(driver))
        }
        Some(mechanism) => match RuntimeDriver::join(mechanism, part) {
            Ok(driver) => serve(&mut line, part, pair, pool, Some(driver)),
            Err(error) => Err(error),
        },
    };
    if let Err(error) = &result {
        // The benchmark may be gone; then no process reads this.
        let _ = line.say(&Answer::Failed(error.to_string()));
    }
    result
}

fn pin(processor: usize) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    set.set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|errno| BenchError::io(format!("pinning to processor {processor}"))(errno.into()))
}

fn serve<D: Driver>(
    line: &mut Line,
    part: RankPart,
    pair: Option<Pair>,
    pool: usize,
    mut driver: Option<D>,
) -> Result<(), BenchError> {
    if let Err(error) = obey(line, part, pair, pool, &mut driver) {
        // The peer may be gone or wait for us: say what happened and end, for an orderly way out would wait for it.
        let _ = line.say(&Answer::Failed(error.to_string()));
        std::process::exit(1);
    }
    if let Some(driver) = driver {
        driver.leave()?;
    }
    line.say(&Answer::Done(Outcome::default()))
}

fn obey<D: Driver>(
    line: &mut Line,
    part: RankPart,
    mut pair: Option<Pair>,
    pool: usize,
    driver: &mut Option<D>,
) -> Result<(), BenchError> {
    let missing = driver.as_ref().map(Driver::missing).unwrap_or_default();
    line.say(&Answer::Ready(missing))?;
    let mut buffers: Option<Buffers<D::Buffer>> = None;
    while let Some(order) = line.hear::<Order>()? {
        let outcome = match order {
            Order::Leave => return Ok(()),
            Order::Release => {
                buffers = None;
                if let Some(pair) = &mut pair {
                    pair.release();
                }
                Ok(Outcome::default())
            }
            Order::Probe(rounds) => probe(&mut pair, rounds).map(|before_ns| Outcome {
                before_ns,
                ..Outcome::default()
            }),
            Order::Batch(work) if work.limit.is_some() => limit(&mut pair, &work),
            Order::Batch(work) => with_waiters(driver, part, &mut buffers, pool, &work, |d, b| {
                let before_ns = probe(&mut pair, PROBE_ROUNDS)?;
                let us = pattern::timed(d, part, b, &work)?;
                let after_ns = probe(&mut pair, PROBE_ROUNDS)?;
                Ok(Outcome {
                    us,
                    before_ns,
                    after_ns,
                    checked_bytes: 0,
                    pool_bytes: d.pool_peak(false),
                })
            }),
            Order::Check(work) => with_waiters(driver, part, &mut buffers, pool, &work, |d, b| {
                // A check begins a point.
                d.pool_peak(true);
                Ok(Outcome {
                    checked_bytes: pattern::checked(d, part, b, &work)?,
                    pool_bytes: d.pool_peak(false),
                    ..Outcome::default()
                })
            }),
        };
        match outcome {
            Ok(outcome) => line.say(&Answer::Done(outcome))?,
            // A limit that the kernel refuses is a finding, met by both sides alike; anything else ends the rank.
            Err(error @ BenchError::Limit(_)) => line.say(&Answer::Failed(error.to_string()))?,
            Err(error) => return Err(error),
        }
    }
    // Nobody is left who could give orders, nor take an answer.
    std::process::exit(1);
}

/// Lets the two ends do something while the ranks between wait in a receive, which the first rank ends. In a collective
/// all take part.
fn with_waiters<D: Driver>(
    driver: &mut Option<D>,
    part: RankPart,
    buffers: &mut Option<Buffers<D::Buffer>>,
    pool: usize,
    work: &Work,
    body: impl FnOnce(&mut D, &mut Buffers<D::Buffer>) -> Result<Outcome, BenchError>,
) -> Result<Outcome, BenchError> {
    let Some(driver) = driver else {
        return Err(BenchError::Usage("this job carries no messages".into()));
    };
    let mut release = [0_u8; 1];
    let collective = work.pattern.is_collective();
    if part.side().is_none() && !collective {
        driver.recv(&mut release, 0)?;
        return Ok(Outcome::default());
    }
    let need = pattern::bytes_needed(work, pool, part.ranks);
    let kept = buffers.take().filter(|buffers| buffers.holds(need));
    let mut own = match kept {
        Some(own) => own,
        None => {
            let mut new = Buffers::new(driver, need)?;
            pattern::tour(driver, part, &mut new, work, need)?;
            new
        }
    };
    let outcome = body(driver, &mut own)?;
    *buffers = Some(own);
    if part.rank == 0 && !collective {
        for waiter in 1..part.ranks - 1 {
            driver.send(&release, waiter)?;
        }
    }
    Ok(outcome)
}

fn probe(pair: &mut Option<Pair>, rounds: u32) -> Result<f64, BenchError> {
    Ok(match pair {
        Some(pair) => pair.probe(rounds)?,
        None => 0.0,
    })
}

fn limit(pair: &mut Option<Pair>, work: &Work) -> Result<Outcome, BenchError> {
    let Some(pair) = pair else {
        return Ok(Outcome::default());
    };
    let name = work.limit.as_deref().unwrap_or_default();
    let limit = Limit::by_name(name)
        .ok_or_else(|| BenchError::Usage(format!("no limit is called '{name}'")))?;
    let flow = match work.pattern {
        Pattern::Bw | Pattern::Rate => Flow::OneWay(work.window),
        Pattern::SendRecv | Pattern::BiBw => Flow::TwoWay(work.window),
        _ => Flow::PingPong,
    };
    pair.use_pages(if work.huge { Pages::Huge } else { Pages::Small });
    let before_ns = pair.probe(PROBE_ROUNDS)?;
    let us = 1e6
        * pair.run(&Batch {
            limit,
            flow,
            mode: work.mode.of_limit(),
            size: work.size,
            iterations: work.iterations,
        })?;
    let after_ns = pair.probe(PROBE_ROUNDS)?;
    Ok(Outcome {
        us,
        before_ns,
        after_ns,
        checked_bytes: 0,
        pool_bytes: 0,
    })
}
