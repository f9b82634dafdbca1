// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is run in which order, and how often.

use super::gate::{Gate, State};
use super::jobs::{BenchJob, Layout};
use super::record::{Contestant, Point, Run, Sample, Subject};
use onecopy_bench::protocol::{Order, Outcome, Work};
use onecopy_bench::{BenchError, Mechanism, Missing, Mode, Pattern};
use onecopy_shm::limits::Limit;

/// Iterations with checked payload, for messages below and above a mebibyte. Chosen by magnitude: each iteration has a
/// pattern of its own, and to check a long one takes longer than to send it.
const CHECKS: [u64; 2] = [4, 2];

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Patterns and modes, in order.
    pub rounds: Vec<(Pattern, Mode)>,
    /// Mechanisms that take turns.
    pub mechanisms: Vec<Mechanism>,
    /// Message sizes.
    pub sizes: Vec<usize>,
    /// Whether rank 0 is the root of every collective; not: roots take turns.
    pub one_root: bool,
    /// Near batches that each contestant should get.
    pub batches: usize,
    /// Batches after which a point ends in any case.
    pub most_batches: usize,
    /// Where the ranks run.
    pub layout: Layout,
}

/// Gets reports of how far the run is.
pub trait Watch {
    /// A point begins.
    fn point(&mut self, pattern: Pattern, mode: Mode, size: usize);
    /// A point has ended.
    fn done(&mut self);
    /// Something that the user should know.
    fn note(&mut self, text: &str);
}

impl Plan {
    /// Number of points.
    #[must_use]
    pub fn points(&self) -> usize {
        self.rounds
            .iter()
            .map(|(pattern, _)| pattern.sizes(&self.sizes).len())
            .sum()
    }

    /// Batches of a size after which a point ends in any case.
    fn most_batches_of(&self, size: usize) -> usize {
        // A long message costs more than a batch of short ones: do not insist on it as often.
        if size >= 16 << 20 {
            self.most_batches.min(self.batches + 2)
        } else {
            self.most_batches
        }
    }

    /// Runs it.
    ///
    /// # Errors
    ///
    /// If no job can be started, or a rank fails.
    pub fn run(&self, watch: &mut dyn Watch) -> Result<Run, BenchError> {
        let two = Layout {
            ranks: 2,
            processors: vec![
                self.layout.processors.first().copied().unwrap_or(0),
                self.layout.processors.last().copied().unwrap_or(0),
            ],
            pool: self.layout.pool,
        };
        let mut runner = Runner {
            limits: BenchJob::start(None, &two)?,
            jobs: Vec::new(),
            probes: Vec::new(),
            missing: Vec::new(),
        };
        runner.calibrate()?;
        for &mechanism in &self.mechanisms {
            runner.start(mechanism, &self.layout, watch)?;
        }
        if runner.jobs.is_empty() && !self.mechanisms.is_empty() {
            return Err(BenchError::Usage("no mechanism could be started".into()));
        }
        let mut points = Vec::new();
        let mut last = None;
        for &(pattern, mode) in &self.rounds {
            if last.is_some_and(|last| last != mode) {
                runner.everyone(&Order::Release)?;
            }
            last = Some(mode);
            for size in pattern.sizes(&self.sizes) {
                watch.point(pattern, mode, size);
                points.push(runner.point(self, pattern, mode, size, watch)?);
                watch.done();
            }
        }
        let run = Run {
            gate: runner.gate(),
            ranks: self.layout.ranks,
            points,
            missing: std::mem::take(&mut runner.missing),
        };
        for (_, job) in runner.jobs {
            job.leave()?;
        }
        runner.limits.leave()?;
        Ok(run)
    }
}

struct Runner {
    limits: BenchJob,
    jobs: Vec<(Mechanism, BenchJob)>,
    probes: Vec<f64>,
    missing: Vec<Missing>,
}

/// A contestant and what its next batch is.
struct Turn {
    result: Contestant,
    work: Work,
}

impl Turn {
    fn new(who: Subject, plan: &Plan, pattern: Pattern, mode: Mode, size: usize) -> Self {
        let (limit, huge) = match &who {
            Subject::Limit(name, huge) => (Some(name.clone()), *huge),
            Subject::Mechanism(_) => (None, false),
        };
        Self {
            result: Contestant {
                who,
                samples: Vec::new(),
                checked_bytes: 0,
                pool_bytes: 0,
                refused: None,
            },
            work: Work {
                limit,
                huge,
                pattern,
                mode,
                size,
                window: pattern.window(size),
                one_root: plan.one_root,
                iterations: 1,
            },
        }
    }

    /// Whether it was refused, or has as many near batches as are wanted.
    fn has_enough(&self, gate: &Gate, batches: usize) -> bool {
        let samples = self.result.samples.iter();
        let near = samples.filter(|s| gate.state(s.before_ns, s.after_ns) == State::Near);
        self.result.refused.is_some() || near.count() >= batches
    }
}

impl Runner {
    /// Learns the floor before anything is judged by it.
    fn calibrate(&mut self) -> Result<(), BenchError> {
        for _ in 0..200 {
            let outcome = self
                .limits
                .order(&Order::Probe(onecopy_bench::rank::PROBE_ROUNDS))?;
            self.probes.push(outcome.before_ns);
        }
        Ok(())
    }

    fn gate(&self) -> Gate {
        Gate::of_probes(self.probes.iter().copied())
    }

    fn everyone(&mut self, order: &Order) -> Result<(), BenchError> {
        self.limits.order(order)?;
        for (_, job) in &mut self.jobs {
            job.order(order)?;
        }
        Ok(())
    }

    fn order(&mut self, who: &Subject, order: &Order) -> Result<Outcome, BenchError> {
        match who {
            Subject::Limit(..) => self.limits.order(order),
            Subject::Mechanism(mechanism) => {
                let job = self.jobs.iter_mut().find(|(name, _)| name == mechanism);
                let (_, job) = job.ok_or_else(|| {
                    BenchError::Usage(format!("{mechanism} has not been started"))
                })?;
                job.order(order)
            }
        }
    }

    fn contestants(&self, pattern: Pattern, size: usize) -> Vec<Subject> {
        let mut all: Vec<Subject> = self
            .jobs
            .iter()
            .map(|(mechanism, _)| Subject::Mechanism(*mechanism))
            .collect();
        let has = |test: fn(&Mechanism) -> bool| self.jobs.iter().any(|(m, _)| test(m));
        let windowed = matches!(pattern, Pattern::Bw | Pattern::BiBw | Pattern::Rate);
        let two_way = matches!(pattern, Pattern::SendRecv | Pattern::BiBw);
        for limit in Limit::all() {
            let wanted = limit.carries(size)
                && match limit {
                    Limit::HandOff => !windowed,
                    Limit::NextLine => !windowed,
                    Limit::Slots => windowed,
                    Limit::Direct(_) => size > 56 && (windowed || size > 64),
                    // In two-way flows both cores are busy with their own messages.
                    Limit::Cooperative => has(|m| *m == Mechanism::Heap) && !two_way,
                    Limit::CmaRead => has(|m| m.is_kernel_copy()),
                    Limit::CmaCooperative => has(|m| m.is_kernel_copy()) && !two_way,
                };
            if !wanted {
                continue;
            }
            let name = limit.name().to_owned();
            if name.starts_with("cma") {
                if has(|m| matches!(m, Mechanism::Cma | Mechanism::Knem)) {
                    all.push(Subject::Limit(name.clone(), false));
                }
                if has(|m| *m == Mechanism::CmaHuge) {
                    all.push(Subject::Limit(name, true));
                }
            } else {
                all.push(Subject::Limit(name, false));
            }
        }
        all
    }

    /// Starts the job of a mechanism, or notes why there is none.
    fn start(
        &mut self,
        mechanism: Mechanism,
        layout: &Layout,
        watch: &mut dyn Watch,
    ) -> Result<(), BenchError> {
        match BenchJob::start(Some(mechanism), layout) {
            Ok(job) if job.missing.is_empty() => self.jobs.push((mechanism, job)),
            Ok(job) => {
                self.missing.extend(job.missing.iter().cloned());
                job.leave()?;
            }
            Err(error) => {
                watch.note(&format!("{mechanism} is left out: {error}"));
                if !self.missing.iter().any(|m| m.mechanism == mechanism.name()) {
                    self.missing.push(Missing {
                        mechanism: mechanism.name().to_owned(),
                        reason: error.to_string(),
                        remedy: "see 'onecopy info'".to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn point(
        &mut self,
        plan: &Plan,
        pattern: Pattern,
        mode: Mode,
        size: usize,
        watch: &mut dyn Watch,
    ) -> Result<Point, BenchError> {
        let mut turns: Vec<Turn> = self
            .contestants(pattern, size)
            .into_iter()
            .map(|who| Turn::new(who, plan, pattern, mode, size))
            .collect();
        // Limits on huge and on small pages share their buffers: keep them together, so that they are not made anew
        // each time.
        for turn in &mut turns {
            self.prepare(turn, watch)?;
        }
        let most = plan.most_batches_of(size);
        let mut rounds = 0;
        loop {
            for turn in &mut turns {
                self.turn(turn)?;
            }
            rounds += 1;
            let gate = self.gate();
            let settled = turns
                .iter()
                .all(|turn| turn.has_enough(&gate, plan.batches));
            if settled || rounds >= most {
                break;
            }
        }
        Ok(Point {
            pattern,
            mode,
            size,
            window: pattern.window(size),
            contestants: turns.into_iter().map(|turn| turn.result).collect(),
        })
    }

    /// Checks the payload, warms up, and finds out how many iterations fill a batch.
    fn prepare(&mut self, turn: &mut Turn, watch: &mut dyn Watch) -> Result<(), BenchError> {
        let who = turn.result.who.clone();
        if let Subject::Mechanism(_) = who {
            let mut work = turn.work.clone();
            work.iterations = CHECKS[usize::from(work.size >= 1 << 20)];
            let outcome = self.order(&who, &Order::Check(work))?;
            turn.result.checked_bytes += outcome.checked_bytes;
            turn.result.pool_bytes = turn.result.pool_bytes.max(outcome.pool_bytes);
        }
        for _ in 0..4 {
            let outcome = match self.order(&who, &Order::Batch(turn.work.clone())) {
                Err(BenchError::Rank { reason, .. })
                    if matches!(who, Subject::Limit(..)) && reason.contains("refused") =>
                {
                    watch.note(&format!("limit left out: {reason}"));
                    turn.result.refused = Some(reason);
                    return Ok(());
                }
                other => other?,
            };
            if turn.work.fill(outcome.us) {
                break;
            }
        }
        Ok(())
    }

    fn turn(&mut self, turn: &mut Turn) -> Result<(), BenchError> {
        if turn.result.refused.is_some() {
            return Ok(());
        }
        let outcome = self.order(&turn.result.who, &Order::Batch(turn.work.clone()))?;
        self.probes.extend([outcome.before_ns, outcome.after_ns]);
        turn.result.pool_bytes = turn.result.pool_bytes.max(outcome.pool_bytes);
        turn.result.samples.push(Sample {
            us: outcome.us,
            before_ns: outcome.before_ns,
            after_ns: outcome.after_ns,
        });
        Ok(())
    }
}
