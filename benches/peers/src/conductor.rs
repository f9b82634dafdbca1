// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which order goes to whom, and when.

use crate::contestant::{Contestant, How};
use crate::note;
use crate::peer::{PeerJob, empty_job};
use indicatif::{ProgressBar, ProgressStyle};
use onecopy_cli::bench::gate::{Gate, State};
use onecopy_cli::bench::jobs::{Job, Layout};
use onecopy_cli::bench::machine::Machine;
use onecopy_cli::bench::protocol::{Order, Outcome, Work};
use onecopy_cli::bench::record::{Sample, Summary};
use onecopy_cli::bench::{BenchError, Mode, Pattern, sizes};

/// Iterations whose payload is compared.
const CHECKS: u64 = 3;
/// Bytes through which the buffers of our Rust jobs and of the limit rotate; the C program's pool is as large.
const POOL: usize = 128 << 20;
/// Times that each empty job is run.
const STARTS: usize = 7;
/// Ranks of the jobs whose memory is measured.
const MEMORY_RANKS: [usize; 2] = [2, 16];

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) ranks: usize,
    pub(crate) rounds: Vec<(Pattern, Mode)>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) collective_sizes: Vec<usize>,
    pub(crate) one_root: bool,
    pub(crate) batches: usize,
    /// Jobs of each contestant, which take turns: what a job has by chance, such as where its memory lies, is not taken
    /// for its library's.
    pub(crate) jobs: usize,
    pub(crate) costs: bool,
}

/// What one contestant did at one point.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) samples: Vec<Sample>,
    pub(crate) checked_bytes: u64,
}

/// All contestants at one point, in the order of [`Run::names`]; none where one takes no part.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) pattern: Pattern,
    pub(crate) mode: Mode,
    pub(crate) size: usize,
    pub(crate) window: usize,
    pub(crate) results: Vec<Option<Measured>>,
}

/// What a job costs beside its messages.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) name: &'static str,
    /// Milliseconds of a job of two ranks that only begins and ends MPI.
    pub(crate) empty_job_ms: Summary,
    /// Ranks, KiB of rank 0, and by how many KiB the node's shared memory grew.
    pub(crate) memory: Vec<(usize, u64, i64)>,
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) machine: Machine,
    pub(crate) ranks: usize,
    pub(crate) jobs: usize,
    pub(crate) gate: Gate,
    /// Name, and whether it is one of the others. The limit comes last.
    pub(crate) names: Vec<(&'static str, bool)>,
    pub(crate) points: Vec<Point>,
    pub(crate) costs: Vec<Cost>,
}

/// The name of the limit among the contestants.
pub(crate) const LIMIT: &str = "limit";

enum Runner {
    Peer(PeerJob),
    Ours(Job),
    Limit(Job),
}

impl Runner {
    fn start(contestant: &Contestant, layout: &Layout) -> Result<Self, BenchError> {
        match &contestant.how {
            How::Mpi(mpi) => {
                PeerJob::start(contestant.name, mpi, &layout.processors).map(Self::Peer)
            }
            How::Rust(mechanism) => Job::start(Some(*mechanism), layout).map(Self::Ours),
        }
    }

    fn order(&mut self, order: &Order) -> Result<Outcome, BenchError> {
        match self {
            Self::Peer(job) => job.order(order),
            Self::Ours(job) | Self::Limit(job) => job.order(order),
        }
    }

    fn leave(self) -> Result<(), BenchError> {
        match self {
            Self::Peer(job) => job.leave(),
            Self::Ours(job) | Self::Limit(job) => job.leave(),
        }
    }

    fn limit_of(size: usize) -> String {
        if size > 56 { "direct" } else { "hand-off" }.to_owned()
    }

    /// Whether it knows the pattern.
    fn takes_part(&self, pattern: Pattern) -> bool {
        !matches!(self, Self::Limit(_)) || pattern == Pattern::PingPong
    }
}

/// The jobs of one contestant.
type Team = Vec<Runner>;

struct Turn {
    index: usize,
    /// For each job of the team.
    work: Vec<Work>,
    result: Measured,
}

/// Runs the plan.
pub(crate) fn run(plan: &Plan, contestants: &[Contestant]) -> Result<Run, BenchError> {
    let processors: Vec<usize> = onecopy::machine::spread_processors()
        .into_iter()
        .map(usize::from)
        .collect();
    let costs = if plan.costs {
        costs(contestants, &processors)?
    } else {
        Vec::new()
    };
    let layout = Layout::new(plan.ranks, &processors, POOL);
    let mut names = Vec::new();
    let mut teams = Vec::new();
    for contestant in contestants {
        let team: Result<Team, _> = (0..plan.jobs)
            .map(|_| Runner::start(contestant, &layout))
            .collect();
        match team {
            Ok(team) => {
                names.push((contestant.name, contestant.is_peer()));
                teams.push(team);
            }
            Err(error) if contestant.is_peer() => {
                note(&format!("{} is left out: {error}", contestant.name))
            }
            Err(error) => return Err(error),
        }
    }
    names.push((LIMIT, false));
    let two = Layout::new(2, &processors, POOL);
    let limits: Result<Team, _> = (0..plan.jobs)
        .map(|_| Job::start(None, &two).map(Runner::Limit))
        .collect();
    teams.push(limits?);

    let bar = ProgressBar::new(plan.points().count() as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed}, left {eta}]")
    {
        bar.set_style(style);
    }
    let mut points = Vec::new();
    let mut probes = Vec::new();
    let mut last = None;
    for (pattern, mode, size) in plan.points() {
        bar.set_message(format!(
            "{} {} {}",
            pattern.name(),
            mode.name(),
            sizes::format(size)
        ));
        if last.is_some_and(|last| last != mode) {
            for runner in teams.iter_mut().flatten() {
                runner.order(&Order::Release)?;
            }
        }
        last = Some(mode);
        points.push(point(plan, pattern, mode, size, &mut teams, &mut probes)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    for runner in teams.into_iter().flatten() {
        runner.leave()?;
    }
    Ok(Run {
        machine: Machine::here(),
        ranks: plan.ranks,
        jobs: plan.jobs,
        gate: Gate::of_probes(probes),
        names,
        points,
        costs,
    })
}

impl Plan {
    fn points(&self) -> impl Iterator<Item = (Pattern, Mode, usize)> {
        self.rounds.iter().flat_map(|&(pattern, mode)| {
            let sizes = if pattern.is_collective() {
                &self.collective_sizes
            } else {
                &self.sizes
            };
            let sizes = pattern.sizes(sizes);
            sizes.into_iter().map(move |size| (pattern, mode, size))
        })
    }
}

fn point(
    plan: &Plan,
    pattern: Pattern,
    mode: Mode,
    size: usize,
    teams: &mut [Team],
    probes: &mut Vec<f64>,
) -> Result<Point, BenchError> {
    let window = pattern.window(size);
    // Buffers that rotate through memory are everywhere by chance already, and those of all jobs would not fit.
    let jobs = if mode == Mode::OffCache { 1 } else { plan.jobs };
    let mut turns = Vec::new();
    for (index, team) in teams.iter_mut().enumerate() {
        if !team.iter().all(|runner| runner.takes_part(pattern)) {
            continue;
        }
        let mut turn = Turn {
            index,
            work: Vec::new(),
            result: Measured {
                samples: Vec::new(),
                checked_bytes: 0,
            },
        };
        for runner in &mut team[..jobs] {
            let mut work = Work {
                limit: matches!(runner, Runner::Limit(_)).then(|| Runner::limit_of(size)),
                huge: false,
                pattern,
                mode,
                size,
                window,
                one_root: plan.one_root,
                iterations: 1,
            };
            turn.result.checked_bytes += prepare(runner, &mut work)?;
            turn.work.push(work);
        }
        turns.push(turn);
    }
    for round in 1.. {
        for turn in &mut turns {
            let job = round % jobs;
            let order = Order::Batch(turn.work[job].clone());
            let outcome = teams[turn.index][job].order(&order)?;
            probes.extend([outcome.before_ns, outcome.after_ns]);
            turn.result.samples.push(Sample {
                us: outcome.us,
                before_ns: outcome.before_ns,
                after_ns: outcome.after_ns,
            });
        }
        let gate = Gate::of_probes(probes.iter().copied());
        let near = |turn: &Turn| {
            let of = turn.result.samples.iter();
            of.filter(|s| gate.state(s.before_ns, s.after_ns) == State::Near)
                .count()
        };
        if turns.iter().all(|turn| near(turn) >= plan.batches) || round >= plan.batches * 2 + 2 {
            break;
        }
    }
    let mut results: Vec<Option<Measured>> = teams.iter().map(|_| None).collect();
    for turn in turns {
        results[turn.index] = Some(turn.result);
    }
    Ok(Point {
        pattern,
        mode,
        size,
        window,
        results,
    })
}

/// Compares the payload, warms up, and finds out how many iterations fill a batch. Gives the bytes compared.
fn prepare(runner: &mut Runner, work: &mut Work) -> Result<u64, BenchError> {
    let mut checked = 0;
    if !matches!(runner, Runner::Limit(_)) {
        let mut work = work.clone();
        work.iterations = CHECKS;
        checked = runner.order(&Order::Check(work))?.checked_bytes;
    }
    for _ in 0..5 {
        let outcome = runner.order(&Order::Batch(work.clone()))?;
        if work.fill(outcome.us) {
            break;
        }
    }
    Ok(checked)
}

/// What jobs cost beside their messages, while nothing else runs.
fn costs(contestants: &[Contestant], processors: &[usize]) -> Result<Vec<Cost>, BenchError> {
    let mut costs = Vec::new();
    let mut times: Vec<Vec<f64>> = contestants.iter().map(|_| Vec::new()).collect();
    for _ in 0..STARTS {
        for (contestant, times) in contestants.iter().zip(&mut times) {
            if let How::Mpi(mpi) = &contestant.how {
                match empty_job(mpi.command(2, &[])) {
                    Ok(seconds) => times.push(seconds * 1e3),
                    Err(error) if contestant.is_peer() => {
                        note(&format!("{}: {error}", contestant.name))
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    for (contestant, times) in contestants.iter().zip(times) {
        let How::Mpi(mpi) = &contestant.how else {
            continue;
        };
        let mut memory = Vec::new();
        for ranks in MEMORY_RANKS {
            let before = shared_kib();
            let places = Layout::new(ranks, processors, 0).processors;
            let measured = PeerJob::start(contestant.name, mpi, &places).and_then(|mut job| {
                let rank_0 = job.memory()?;
                let shared = shared_kib() - before;
                job.leave().map(|()| (ranks, rank_0, shared))
            });
            match measured {
                Ok(row) => memory.push(row),
                Err(error) if contestant.is_peer() => {
                    note(&format!("{} with {ranks} ranks: {error}", contestant.name));
                }
                Err(error) => return Err(error),
            }
        }
        costs.push(Cost {
            name: contestant.name,
            empty_job_ms: Summary::of(times),
            memory,
        });
    }
    Ok(costs)
}

/// Shared memory of the whole node.
fn shared_kib() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok())
        .unwrap_or(0)
}
