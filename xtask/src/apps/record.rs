// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the applications found, as the last whole run has recorded it.

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::recorded::Recorded;

/// How a run ended.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Whether the application's own verification passed.
    pub(super) passed: bool,
    /// What it said, in a few words.
    pub(super) verdict: String,
    /// It ran out of time, so it said nothing.
    #[serde(default)]
    pub(super) unfinished: bool,
    /// Results that must be the same on every library: a name and a value.
    #[serde(skip)]
    pub(super) results: Vec<(String, f64)>,
}

impl Outcome {
    pub(super) fn failed(reason: Failure) -> Self {
        // What `timeout` says of a program that it had to end.
        let unfinished = reason.contains("exit status: 124");
        let verdict = match reason.lines().next() {
            _ if unfinished => "no end in time".to_owned(),
            Some(line) => line.to_owned(),
            None => "failed".to_owned(),
        };
        Self {
            verdict,
            unfinished,
            ..Self::default()
        }
    }
}

/// A run on both libraries.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AppRun {
    ranks: u32,
    onecopy: Outcome,
    mpich: Outcome,
    /// Results compared.
    compared: usize,
    /// Those that differ.
    differ: Vec<String>,
}

/// Sums are rounded in another order by another library: what is left of a number is this part of it.
const ROUNDING: f64 = 1e-6;

impl AppRun {
    pub(super) fn of(ranks: u32, onecopy: Outcome, mpich: Outcome) -> Self {
        let mut differ = Vec::new();
        if mpich.unfinished {
            return Self {
                ranks,
                onecopy,
                mpich,
                compared: 0,
                differ,
            };
        }
        if onecopy.results.len() != mpich.results.len() {
            differ.push(format!(
                "{} results, on MPICH {}",
                onecopy.results.len(),
                mpich.results.len()
            ));
        }
        for ((name, ours), (other, theirs)) in onecopy.results.iter().zip(&mpich.results) {
            let near = (ours - theirs).abs() <= ROUNDING * ours.abs().max(theirs.abs());
            if name != other || !near {
                differ.push(format!("{name} {ours}, on MPICH {other} {theirs}"));
            }
        }
        Self {
            ranks,
            compared: onecopy.results.len(),
            onecopy,
            mpich,
            differ,
        }
    }

    fn passed(&self) -> bool {
        // A library that polls does not get far with more ranks than processors: then there is nothing to compare with.
        self.onecopy.passed
            && (self.mpich.passed || self.mpich.unfinished)
            && self.differ.is_empty()
    }
}

/// An application's runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AppResult {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) verifies: String,
    pub(super) runs: Vec<AppRun>,
}

/// All of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(super) apps: Vec<AppResult>,
}

impl Record {
    /// What did not pass.
    pub(super) fn failed(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for app in &self.apps {
            for ran in app.runs.iter().filter(|ran| !ran.passed()) {
                failed.push(format!(
                    "{} with {} ranks ({}; on MPICH {}; {})",
                    app.name,
                    ran.ranks,
                    ran.onecopy.verdict,
                    ran.mpich.verdict,
                    ran.differ.join("; ")
                ));
            }
        }
        failed
    }

    /// The table, in Markdown.
    pub(super) fn table(&self) -> String {
        let mut text = String::from(
            "| application | ranks | its verification | the same program on MPICH | results compared |\n| --- | ---: | --- | --- | --- |\n",
        );
        for app in &self.apps {
            for ran in &app.runs {
                let compared = match (ran.compared, ran.differ.len()) {
                    (0, 0) => "none".to_owned(),
                    (all, 0) => format!("{all}, equal"),
                    (all, different) => format!("{all}, **{different} differ**"),
                };
                text += &format!(
                    "| {} {} | {} | {} | {} | {compared} |\n",
                    app.name, app.version, ran.ranks, ran.onecopy.verdict, ran.mpich.verdict
                );
            }
        }
        text.trim_end().to_owned()
    }
}

impl Recorded for Record {
    const RECORD: &'static str = "mpi/record/applications.json";
    const PAGE: &'static str = "docs/applications.md";

    fn page(&self) -> String {
        let mut what = String::new();
        for app in &self.apps {
            what += &format!("- {}: {}\n", app.name, app.verifies);
        }
        format!(
            "<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->\n\
             <!-- Generated by `cargo xtask apps` from {record}. -->\n\n\
             # Applications\n\n\
             Each is built from its authors' sources with `onecopy-mpicc` and run to its own verification. Then the same program\n\
             runs on MPICH 5.0.2 by `LD_LIBRARY_PATH`, and the results are compared, to {ROUNDING:e} of each number.\n\n{what}\n{table}\n",
            record = Self::RECORD,
            table = self.table()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(results: &[(&str, f64)]) -> Outcome {
        Outcome {
            passed: true,
            verdict: "passed".to_owned(),
            unfinished: false,
            results: results
                .iter()
                .map(|&(name, x)| (name.to_owned(), x))
                .collect(),
        }
    }

    #[test]
    fn a_library_that_did_not_end_is_not_compared_with() {
        let late = || Outcome::failed("timeout 900 program: exit status: 124\nlast words".into());
        let ours = || outcome(&[("energy", -4.6)]);
        assert!(late().unfinished && !late().verdict.contains("timeout"));
        assert!(AppRun::of(4, ours(), late()).passed());
        assert!(!AppRun::of(4, late(), ours()).passed());
        let broken = Outcome::failed("program: exit status: 1".into());
        assert!(!AppRun::of(4, ours(), broken).passed());
    }

    #[test]
    fn results_that_differ_are_found() {
        let ours = || outcome(&[("energy", -4.6), ("steps", 100.0)]);
        assert!(
            AppRun::of(
                2,
                ours(),
                outcome(&[("energy", -4.600_000_1), ("steps", 100.0)])
            )
            .passed()
        );
        assert!(!AppRun::of(2, ours(), outcome(&[("energy", -4.61), ("steps", 100.0)])).passed());
        assert!(!AppRun::of(2, ours(), outcome(&[("energy", -4.6)])).passed());
        assert!(!AppRun::of(2, ours(), Outcome::failed("it died".to_owned())).passed());
    }
}
