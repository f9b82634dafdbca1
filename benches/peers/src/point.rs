// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pattern, a mode and a size: the batches of all contestants, one after the other.

use crate::plan::Plan;
use crate::stage::{Runner, Stage};
use onecopy_bench::protocol::{Order, Work};
use onecopy_bench::{BenchError, Mode, Pattern};
use onecopy_cli::bench::gate::{Gate, State};
use onecopy_cli::bench::record::Sample;
use onecopy_cli::bench::sizes;

/// Iterations whose payload is compared.
const CHECKS: u64 = 3;

/// What one contestant did at one point.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) samples: Vec<Sample>,
    pub(crate) checked_bytes: u64,
}

impl Measured {
    /// Batches in a state.
    fn batches(&self, gate: &Gate, state: State) -> usize {
        let is_in_state = |sample: &&Sample| gate.state(sample.before_ns, sample.after_ns) == state;
        self.samples.iter().filter(is_in_state).count()
    }
}

/// All contestants at one point, in the order of [`crate::outcome::Run::names`]; none where one takes no part, or has
/// not come to it.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) pattern: Pattern,
    pub(crate) mode: Mode,
    pub(crate) size: usize,
    pub(crate) window: usize,
    pub(crate) results: Vec<Option<Measured>>,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = sizes::format(self.size);
        write!(f, "{} {} {size}", self.pattern.name(), self.mode.name())
    }
}

impl Point {
    pub(crate) fn new(pattern: Pattern, mode: Mode, size: usize, contestants: usize) -> Self {
        Self {
            pattern,
            mode,
            size,
            window: pattern.window(size),
            results: (0..contestants).map(|_| None).collect(),
        }
    }

    /// The states of the plan in which somebody lacks batches.
    pub(crate) fn missing(&self, plan: &Plan, gate: &Gate) -> Vec<State> {
        let lacks = |&state: &State| !self.has_enough(plan, gate, state);
        plan.states.iter().copied().filter(lacks).collect()
    }

    fn has_enough(&self, plan: &Plan, gate: &Gate, state: State) -> bool {
        let mut measured = self.results.iter().flatten().peekable();
        measured.peek().is_some()
            && measured.all(|result| result.batches(gate, state) >= plan.batches)
    }

    /// Batches of all contestants in turn, until all have enough of them in a state, or it takes too many. `only`: or
    /// until the machine has left that state.
    pub(crate) fn measure(
        &mut self,
        plan: &Plan,
        stage: &mut Stage,
        state: State,
        only: bool,
    ) -> Result<(), BenchError> {
        stage.enter(self.mode)?;
        // Buffers that rotate through memory are everywhere by chance already, and those of all jobs would not fit.
        let jobs = if self.mode == Mode::OffCache {
            1
        } else {
            plan.jobs
        };
        let turns = self.prepare(plan, stage, jobs)?;
        for round in 1.. {
            let mut stayed = false;
            for (index, work) in &turns {
                let job = round % jobs;
                let order = Order::Batch(work[job].clone());
                let outcome = stage.teams[*index][job].order(&order)?;
                stage.note(&outcome);
                let (before_ns, after_ns) = (outcome.before_ns, outcome.after_ns);
                stayed |= stage.gate().state(before_ns, after_ns) == state;
                let result = self.results[*index].get_or_insert_default();
                result.samples.push(Sample {
                    us: outcome.us,
                    before_ns,
                    after_ns,
                });
            }
            let enough = self.has_enough(plan, &stage.gate(), state);
            if enough || only && !stayed || round >= plan.batches * 2 + 2 {
                break;
            }
        }
        Ok(())
    }

    /// The work of each job of each contestant that takes part.
    fn prepare(
        &mut self,
        plan: &Plan,
        stage: &mut Stage,
        jobs: usize,
    ) -> Result<Vec<(usize, Vec<Work>)>, BenchError> {
        let mut turns = Vec::new();
        for (index, team) in stage.teams.iter_mut().enumerate() {
            if !team.iter().all(|runner| runner.takes_part(self.pattern)) {
                continue;
            }
            let mut each = Vec::new();
            for runner in &mut team[..jobs] {
                let mut work = Work {
                    limit: matches!(runner, Runner::Limit(_)).then(|| Runner::limit_of(self.size)),
                    huge: false,
                    pattern: self.pattern,
                    mode: self.mode,
                    size: self.size,
                    window: self.window,
                    one_root: plan.one_root,
                    iterations: 1,
                };
                let result = self.results[index].get_or_insert_default();
                result.checked_bytes += try_out(runner, &mut work)?;
                each.push(work);
            }
            turns.push((index, each));
        }
        Ok(turns)
    }
}

/// Compares the payload, warms up, and finds out how many iterations fill a batch. Gives the bytes compared.
fn try_out(runner: &mut Runner, work: &mut Work) -> Result<u64, BenchError> {
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
