// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kills a rank at each label that a job's ranks pass, and sees to it that somebody died at each.

use super::job::{self, CrashRun, RANKS};
use onecopy_shm::fault::LABELS;
use std::collections::BTreeMap;
use std::fmt;

/// Variable with the fault.
pub(crate) const FAULT: &str = "ONECOPY_JOB_FAULT";
/// What [`FAULT`] says where passings are counted and nobody dies.
pub(crate) const NO_FAULT: &str = "none:0";

/// More jobs that are run for a label at which nobody has died. A rank that passed it once may do without the next
/// time. Whether a peer sleeps, or waits for credit, is another matter in each run.
const MORE_JOBS: usize = 24;

/// The death of a rank: its `number`-th passing of the label is its last act.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    label: &'static str,
    number: u64,
    pub(crate) victim: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.label, self.number, self.victim)
    }
}

/// Passings of a label in a job in which nobody was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Passings {
    count: u64,
    variant: usize,
    rank: usize,
}

/// What is known of a label.
#[derive(Debug, Default)]
pub(crate) struct Label {
    passed_by: Vec<Passings>,
    /// How many died there.
    pub(crate) deaths: usize,
}

impl Label {
    /// How often it was passed while nobody was killed.
    pub(crate) fn passings(&self) -> u64 {
        self.passed_by.iter().map(|passings| passings.count).sum()
    }
}

/// A job whose ranks say at their ends how often they passed each label.
pub(crate) trait CrashJob {
    /// Runs it under a variant and checks what it left. Says whether the victim died.
    fn run(&self, variant: usize, fault: Option<Fault>) -> (CrashRun, bool);

    /// Which of so many passings of a rank are tried.
    fn moments(&self, passings: u64) -> Vec<u64>;
}

/// Kills a rank at each of the labels that `wanted` picks and that the job passes, under each variant.
///
/// # Panics
/// If nobody dies at a label that was passed, or if a rank outlives the passing that was to kill it.
pub(crate) fn kill_at_each(
    job: &impl CrashJob,
    variants: usize,
    wanted: impl Fn(&str) -> bool,
) -> BTreeMap<&'static str, Label> {
    let mut labels: BTreeMap<&'static str, Label> = BTreeMap::new();
    for variant in 0..variants {
        let (counted, died) = job.run(variant, None);
        assert!(!died, "variant {variant}: {}", counted.story());
        let wanted = LABELS.iter().enumerate().filter(|(_, l)| wanted(l.name));
        for (index, &onecopy_shm::fault::Label { name, .. }) in wanted {
            let label = labels.entry(name).or_default();
            // Each rank's turn comes. Some labels are passed by ranks alone that answer, or that ask.
            let ranks = (index..index + RANKS).map(|rank| rank % RANKS);
            let passings = ranks.map(|rank| Passings {
                count: passings(&counted, rank, name),
                variant,
                rank,
            });
            let passings: Vec<_> = passings.filter(|passings| passings.count > 0).collect();
            if let Some(first) = passings.first() {
                for number in job.moments(first.count) {
                    label.deaths += usize::from(dies(job, name, first, number));
                }
            }
            label.passed_by.extend(passings);
        }
    }
    for (name, label) in &mut labels {
        insist(job, name, label);
    }
    labels
}

/// Runs more jobs until a rank has died at a label that was passed. Those that passed it most often come first.
fn insist(job: &impl CrashJob, name: &'static str, label: &mut Label) {
    label.passed_by.sort_unstable_by(|a, b| b.cmp(a));
    for passings in label.passed_by.iter().cycle().take(MORE_JOBS) {
        if label.deaths > 0 {
            return;
        }
        label.deaths += usize::from(dies(job, name, passings, 1));
    }
    assert!(
        label.passed_by.is_empty() || label.deaths > 0,
        "{name} was passed {} times while nobody was killed, and nobody died there: {label:?}",
        label.passings()
    );
}

/// Whether a rank that passed a label dies at its `number`-th passing. It may do with fewer passings than before, but
/// it cannot outlive the one that kills.
fn dies(job: &impl CrashJob, label: &'static str, passed: &Passings, number: u64) -> bool {
    let &Passings { variant, rank, .. } = passed;
    let fault = Fault {
        label,
        number,
        victim: rank,
    };
    let (ran, died) = job.run(variant, Some(fault));
    let passed = passings(&ran, rank, label);
    assert!(
        died || passed < number,
        "variant {variant}: {fault}: the victim passed the label {passed} times and lives: {}",
        ran.story()
    );
    died
}

/// How often a rank says that it passed a label. What it says last holds.
fn passings(ran: &CrashRun, rank: usize, label: &str) -> u64 {
    let passed = ran.reports(rank, "passed");
    let of_label = passed.iter().filter(|words| words[0] == label);
    let counts = of_label.map(|words| words[1].parse().expect("a number"));
    counts.max().unwrap_or(0)
}

/// Says how often each label was passed, as a rank does at its end.
pub(crate) fn say_passings() {
    for (label, count) in onecopy_shm::fault::passed() {
        job::say(&format!("passed {label} {count}"));
    }
}
