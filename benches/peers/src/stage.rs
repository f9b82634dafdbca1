// SPDX-License-Identifier: MIT OR Apache-2.0
//! The jobs of all contestants, side by side, and what is known of the machine's state.

use crate::contestant::{Contestant, Runs};
use crate::peer::PeerJob;
use onecopy_bench::protocol::{Order, Outcome};
use onecopy_bench::rank::PROBE_ROUNDS;
use onecopy_bench::{BenchError, Mode, Pattern};
use onecopy_cli::bench::gate::{Gate, State};
use onecopy_cli::bench::jobs::{BenchJob, Layout};

/// Probes from which the floor is known before anything is judged by it.
const PROBES: usize = 50;

/// A job that waits for orders.
pub(crate) enum Runner {
    Peer(PeerJob),
    Ours(BenchJob),
    Limit(BenchJob),
}

impl Runner {
    pub(crate) fn start(contestant: &Contestant, layout: &Layout) -> Result<Self, BenchError> {
        match &contestant.runs {
            Runs::Mpi(mpi) => {
                PeerJob::start(contestant.name, mpi, &layout.processors).map(Self::Peer)
            }
            Runs::Rust(mechanism) => BenchJob::start(Some(*mechanism), layout).map(Self::Ours),
        }
    }

    pub(crate) fn order(&mut self, order: &Order) -> Result<Outcome, BenchError> {
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

    /// The limit of messages of this size.
    pub(crate) fn limit_of(size: usize) -> String {
        if size > 56 { "direct" } else { "hand-off" }.to_owned()
    }

    /// Whether it knows the pattern.
    pub(crate) fn takes_part(&self, pattern: Pattern) -> bool {
        !matches!(self, Self::Limit(_)) || pattern == Pattern::PingPong
    }
}

/// The jobs of one contestant.
pub(crate) type Team = Vec<Runner>;

/// All jobs. The team of the limit comes last.
pub(crate) struct Stage {
    pub(crate) teams: Vec<Team>,
    probes: Vec<f64>,
    mode: Option<Mode>,
}

impl Stage {
    pub(crate) fn new(teams: Vec<Team>) -> Result<Self, BenchError> {
        let mut stage = Self {
            teams,
            probes: Vec::new(),
            mode: None,
        };
        for _ in 0..PROBES {
            stage.probe()?;
        }
        Ok(stage)
    }

    /// What is near and what is far, by all probes so far.
    pub(crate) fn gate(&self) -> Gate {
        Gate::of_probes(self.probes.iter().copied())
    }

    /// Takes note of the probes around a batch.
    pub(crate) fn note(&mut self, outcome: &Outcome) {
        self.probes.extend([outcome.before_ns, outcome.after_ns]);
    }

    fn probe(&mut self) -> Result<f64, BenchError> {
        let Some(limit) = self.teams.last_mut().and_then(|team| team.first_mut()) else {
            return Ok(0.0);
        };
        let probe = limit.order(&Order::Probe(PROBE_ROUNDS))?.before_ns;
        self.probes.push(probe);
        Ok(probe)
    }

    /// The state that the machine is in.
    pub(crate) fn look(&mut self) -> Result<State, BenchError> {
        let (before, after) = (self.probe()?, self.probe()?);
        Ok(self.gate().state(before, after))
    }

    /// Lets all jobs give up the memory of another mode.
    pub(crate) fn enter(&mut self, mode: Mode) -> Result<(), BenchError> {
        if self.mode.replace(mode).is_some_and(|last| last != mode) {
            for runner in self.teams.iter_mut().flatten() {
                runner.order(&Order::Release)?;
            }
        }
        Ok(())
    }

    /// Ends all jobs.
    pub(crate) fn leave(self) -> Result<(), BenchError> {
        self.teams.into_iter().flatten().try_for_each(Runner::leave)
    }
}
