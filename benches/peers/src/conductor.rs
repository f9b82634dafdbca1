// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which order goes to whom, and when: the jobs of all contestants, and the points of the plan that they take in turn.

use crate::contestant::{Contestant, How};
use crate::note;
use crate::outcome::{Cost, LIMIT, Run};
use crate::peer::{PeerJob, empty_job};
use crate::plan::Plan;
use crate::point::Point;
use crate::stage::{Runner, Stage, Team};
use indicatif::{ProgressBar, ProgressStyle};
use onecopy_bench::BenchError;
use onecopy_cli::bench::gate::State;
use onecopy_cli::bench::jobs::{Job, Layout};
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

    let mut stage = Stage::new(teams)?;
    let mut points: Vec<Point> = plan
        .points()
        .map(|(pattern, mode, size)| Point::new(pattern, mode, size, stage.teams.len()))
        .collect();
    let bar = ProgressBar::new((points.len() * plan.states.len().max(1)) as u64);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed}, left {eta}]")
    {
        bar.set_style(style);
    }
    if plan.states.is_empty() {
        for point in &mut points {
            bar.set_message(point.to_string());
            point.measure(plan, &mut stage, State::Near, false)?;
            bar.inc(1);
        }
    } else {
        in_states(plan, &mut points, &mut stage, &bar)?;
    }
    bar.finish_and_clear();
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

/// Goes through the points again and again, as the machine goes from one state to another by itself, until each point
/// has its batches in each state.
fn in_states(
    plan: &Plan,
    points: &mut [Point],
    stage: &mut Stage,
    bar: &ProgressBar,
) -> Result<(), BenchError> {
    let deadline = Instant::now() + plan.patience;
    loop {
        let mut moved = false;
        for at in 0..points.len() {
            let missing = points[at].missing(plan, &stage.gate());
            if missing.is_empty() || Instant::now() > deadline {
                continue;
            }
            let now = stage.look()?;
            if missing.contains(&now) {
                bar.set_message(format!("{} {}", points[at], now.name()));
                points[at].measure(plan, stage, now, true)?;
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
