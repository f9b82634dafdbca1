// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came out of a run, and how it is told: by which state of the machine, and beside whom.

use crate::point::{Measured, Point};
use onecopy_bench::{Mode, Pattern};
use onecopy_cli::bench::gate::{Gate, State};
use onecopy_cli::bench::machine::Machine;
use onecopy_cli::bench::record::Summary;

/// What a job costs beside its messages.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) name: &'static str,
    /// Milliseconds of a job of two ranks that only begins and ends MPI.
    pub(crate) empty_job_ms: Summary,
    /// Ranks, KiB of rank 0, and by how many KiB the node's shared memory grew.
    pub(crate) memory: Vec<(usize, u64, i64)>,
}

/// Name, and whether it is one of the others. The limit comes last.
pub(crate) type Names = Vec<(&'static str, bool)>;

/// A whole run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) machine: Machine,
    pub(crate) ranks: usize,
    pub(crate) jobs: usize,
    pub(crate) gate: Gate,
    pub(crate) names: Names,
    /// Those of the plan.
    pub(crate) states: Vec<State>,
    pub(crate) points: Vec<Point>,
    pub(crate) costs: Vec<Cost>,
}

/// The name of the limit among the contestants.
pub(crate) const LIMIT: &str = "limit";

/// Another build of onecopy among the contestants.
pub(crate) const OTHER: &str = "other";

/// The figures shown of a point: of one state of the plan; or, none, of the state with the most figures.
pub(crate) type View = Option<State>;

/// Batches from which a figure of a state counts.
const FEW: usize = 3;

impl Run {
    /// Patterns and modes, in the order of the plan.
    pub(crate) fn groups(&self) -> Vec<(Pattern, Mode)> {
        let mut groups = Vec::new();
        for point in &self.points {
            if !groups.contains(&(point.pattern, point.mode)) {
                groups.push((point.pattern, point.mode));
            }
        }
        groups
    }

    /// The figures shown of each point.
    pub(crate) fn views(&self) -> Vec<View> {
        if self.states.is_empty() {
            return vec![None];
        }
        self.states.iter().copied().map(Some).collect()
    }

    /// The state that is told of, and everybody's figures in it.
    pub(crate) fn summaries(
        &self,
        point: &Point,
        view: View,
    ) -> (&'static str, Vec<Option<Summary>>) {
        let figure =
            |result: &Measured, state| Summary::in_state(&self.gate, &result.samples, state);
        let each = |state| -> Vec<Option<Summary>> {
            let results = point.results.iter();
            results
                .map(|result| result.as_ref().map(|result| figure(result, state)))
                .collect()
        };
        if let Some(state) = view {
            let enough = |summary: Option<Summary>| summary.filter(|s| s.batches >= FEW);
            let each = each(Some(state)).into_iter().map(enough);
            return (state.name(), each.collect());
        }
        for state in [State::Near, State::Far] {
            let each = each(Some(state));
            if each.iter().flatten().all(|summary| summary.batches >= FEW) {
                return (state.name(), each);
            }
        }
        ("all", each(None))
    }

    pub(crate) fn best_peer(&self, each: &[Option<Summary>]) -> Option<(&'static str, f64)> {
        let peers = self.names.iter().zip(each).filter(|((_, peer), _)| *peer);
        peers
            .filter_map(|((name, _), summary)| Some((*name, summary.as_ref()?.median_us?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
}
