// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is to be run.

use onecopy_bench::{Mode, Pattern};
use onecopy_cli::bench::gate::State;
use std::time::Duration;

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
    /// States in which each point is to have its batches; none: near, as far as it is so when the point comes.
    pub(crate) states: Vec<State>,
    /// How long the machine may take to get into these.
    pub(crate) patience: Duration,
}

impl Plan {
    pub(crate) fn points(&self) -> impl Iterator<Item = (Pattern, Mode, usize)> {
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
