// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which order goes to whom, and when: the jobs of all contestants, and the points of the plan that they take in turn.

use crate::contestant::{Contestant, Mpi, Runs};
use crate::note;
use crate::outcome::{Cost, LIMIT, Names, Run};
use crate::peer::{PeerJob, empty_job};
use crate::plan::Plan;
use crate::point::Point;
use crate::stage::{Runner, Stage, Team};
use indicatif::{ProgressBar, ProgressStyle};
use onecopy_bench::BenchError;
use onecopy_cli::bench::gate::State;
use onecopy_cli::bench::jobs::{BenchJob, Layout};
use onecopy_cli::bench::machine::Machine;
use onecopy_cli::bench::record::Summary;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes through which the buffers of our Rust jobs and of the limit rotate; the C program's pool is as large.
const POOL: usize = 128 << 20;
/// Times that each empty job is run.
const STARTS: usize = 7;
/// How long nothing is asked of a machine that is in no state that is wanted.
const PAUSE: Duration = Duration::from_secs(2);
/// Ranks of the jobs whose memory is measured.
const MEMORY_RANKS: [usize; 2] = [2, 16];

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
    let (names, teams) = start(plan, contestants, &processors)?;
    let mut stage = Stage::new(teams)?;
    let mut points: Vec<Point> = plan
        .points()
        .map(|(pattern, mode, size)| Point::new(pattern, mode, size, stage.teams.len()))
        .collect();
    measure(plan, &mut points, &mut stage)?;
    let gate = stage.gate();
    stage.leave()?;
    Ok(Run {
        machine: Machine::here(),
        ranks: plan.ranks,
        jobs: plan.jobs,
        gate,
        names,
        states: plan.states.clone(),
        points,
        costs,
    })
}

/// Starts the jobs of all contestants, and last those of the limit. One of the others that does not start is left out.
fn start(
    plan: &Plan,
    contestants: &[Contestant],
    processors: &[usize],
) -> Result<(Names, Vec<Team>), BenchError> {
    let layout = Layout::new(plan.ranks, processors, POOL);
    let mut names = Names::new();
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
    let two = Layout::new(2, processors, POOL);
    let limits: Result<Team, _> = (0..plan.jobs)
        .map(|_| BenchJob::start(None, &two).map(Runner::Limit))
        .collect();
    names.push((LIMIT, false));
    teams.push(limits?);
    Ok((names, teams))
}

fn measure(plan: &Plan, points: &mut [Point], stage: &mut Stage) -> Result<(), BenchError> {
    let bar = ProgressBar::new((points.len() * plan.states.len().max(1)) as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed}, left {eta}]")
    {
        bar.set_style(style);
    }
    if plan.states.is_empty() {
        for point in points {
            bar.set_message(point.to_string());
            point.measure(plan, stage, State::Near, false)?;
            bar.inc(1);
        }
    } else {
        in_states(plan, points, stage, &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Goes through the points again and again, until each point has its batches in each state. The machine goes from one
/// state to another by itself.
fn in_states(
    plan: &Plan,
    points: &mut [Point],
    stage: &mut Stage,
    bar: &ProgressBar,
) -> Result<(), BenchError> {
    let deadline = Instant::now() + plan.patience;
    loop {
        let mut moved = false;
        for index in 0..points.len() {
            let missing = points[index].missing(plan, &stage.gate());
            if missing.is_empty() || Instant::now() > deadline {
                continue;
            }
            let now = stage.look()?;
            if missing.contains(&now) {
                bar.set_message(format!("{} {}", points[index], now.name()));
                points[index].measure(plan, stage, now, true)?;
                moved = true;
            }
            let gate = stage.gate();
            let left: usize = points.iter().map(|p| p.missing(plan, &gate).len()).sum();
            bar.set_position((points.len() * plan.states.len() - left) as u64);
        }
        let gate = stage.gate();
        let lacking = points.iter().filter(|p| !p.missing(plan, &gate).is_empty());
        let lacking = lacking.count();
        if lacking == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            note(&format!(
                "{lacking} of {} points lack batches in a state: the machine was not long enough in it. --minutes says \
                 how long it may take",
                points.len()
            ));
            return Ok(());
        }
        if !moved {
            bar.set_message("waits for the machine's other state");
            sleep(PAUSE);
        }
    }
}

/// What jobs cost beside their messages, while nothing else runs.
fn costs(contestants: &[Contestant], processors: &[usize]) -> Result<Vec<Cost>, BenchError> {
    let contestants: Vec<(&Contestant, &Mpi)> = contestants
        .iter()
        .filter_map(|contestant| match &contestant.runs {
            Runs::Mpi(mpi) => Some((contestant, mpi)),
            Runs::Rust(_) => None,
        })
        .collect();
    let times = empty_jobs(&contestants)?;
    let mut costs = Vec::new();
    for ((contestant, mpi), times) in contestants.into_iter().zip(times) {
        costs.push(Cost {
            name: contestant.name,
            empty_job_ms: Summary::of(times),
            memory: memory(contestant, mpi, processors)?,
        });
    }
    Ok(costs)
}

/// Milliseconds of each one's empty jobs, which take turns.
fn empty_jobs(contestants: &[(&Contestant, &Mpi)]) -> Result<Vec<Vec<f64>>, BenchError> {
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..STARTS {
        for ((contestant, mpi), times) in contestants.iter().zip(&mut times) {
            match empty_job(mpi.command(2, &[])) {
                Ok(seconds) => times.push(seconds * 1e3),
                Err(error) if contestant.is_peer() => {
                    note(&format!("{}: {error}", contestant.name))
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(times)
}

/// Ranks, KiB of rank 0, and by how many KiB the node's shared memory grew.
fn memory(
    contestant: &Contestant,
    mpi: &Mpi,
    processors: &[usize],
) -> Result<Vec<(usize, u64, i64)>, BenchError> {
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
    Ok(memory)
}

/// Shared memory of the whole node.
fn shared_kib() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok())
        .unwrap_or(0)
}
