// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the modules stand, as the last whole run has found it.

use std::fmt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

use crate::recorded::Recorded;

/// A run of all modules.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(super) version: String,
    pub(super) ranks: Vec<u32>,
    pub(super) modules: Vec<Module>,
}

/// A module of the tests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Module {
    pub(super) name: String,
    /// It must pass.
    pub(super) required: bool,
    /// A test class that was left out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) left_out: Option<String>,
    pub(super) results: Vec<ModuleRun>,
}

/// How a module's tests went, with a number of ranks. Every rank runs all of them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModuleRun {
    ranks: u32,
    tests: u32,
    skipped: u32,
    /// Failed ones on the rank with the most of them.
    failed: u32,
    /// Why there is no result of every rank.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ended: Option<String>,
    #[serde(skip)]
    seconds: f64,
}

impl ModuleRun {
    /// From what the ranks wrote, each line with `[rank]` before it.
    pub(super) fn of(ranks: u32, text: &str, status: ExitStatus, seconds: f64) -> Self {
        let mut ran = Self {
            ranks,
            tests: 0,
            skipped: 0,
            failed: 0,
            ended: None,
            seconds,
        };
        let mut verdicts = 0;
        for line in text.lines() {
            let message = line.split_once("] ").map_or(line, |(_, message)| message);
            let number = |text: &str| text.parse().unwrap_or(0);
            if let Some(rest) = message.strip_prefix("Ran ") {
                ran.tests = number(rest.split(' ').next().unwrap_or_default());
            }
            let words = ["OK", "FAILED", "NO TESTS RAN"]
                .iter()
                .find_map(|word| message.strip_prefix(word));
            let Some(details) = words.filter(|rest| rest.is_empty() || rest.starts_with(" ("))
            else {
                continue;
            };
            verdicts += 1;
            let mut failed = 0;
            for part in details.trim_matches([' ', '(', ')']).split(", ") {
                match part.split_once('=') {
                    Some(("skipped", n)) => ran.skipped = ran.skipped.max(number(n)),
                    Some(("failures" | "errors" | "unexpected successes", n)) => {
                        failed += number(n);
                    }
                    _ => {}
                }
            }
            ran.failed = ran.failed.max(failed);
        }
        if verdicts < ranks {
            ran.ended = Some(match status.code() {
                Some(124) => "no end".to_owned(),
                Some(code) => format!("ended with {code}"),
                None => status.to_string(),
            });
        } else if !status.success() && ran.failed == 0 {
            ran.ended = Some(format!("passed, then {status}"));
        }
        ran
    }

    /// Whether every test passed or was skipped.
    pub(super) fn passed(&self) -> bool {
        self.failed == 0 && self.ended.is_none()
    }
}

impl fmt::Display for ModuleRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ended) = &self.ended {
            return f.write_str(ended);
        }
        let passed = self.tests.saturating_sub(self.skipped + self.failed);
        write!(f, "{passed} passed")?;
        if self.failed > 0 {
            write!(f, ", **{} failed**", self.failed)?;
        }
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

impl Record {
    /// The table, in Markdown.
    pub(super) fn table(&self) -> String {
        let mut text = String::from("| module |");
        for ranks in &self.ranks {
            text += &format!(" {ranks} rank{} |", if *ranks == 1 { "" } else { "s" });
        }
        text += "\n| --- |";
        text += &" --- |".repeat(self.ranks.len());
        text.push('\n');
        for module in &self.modules {
            let mark = if module.required { "" } else { " °" };
            let without = match &module.left_out {
                Some(class) => format!(" (without {class})"),
                None => String::new(),
            };
            text += &format!("| {}{without}{mark} |", module.name);
            for ran in &module.results {
                text += &format!(" {ran} |");
            }
            text.push('\n');
        }
        text.trim_end().to_owned()
    }
}

impl Recorded for Record {
    const RECORD: &'static str = "mpi/record/mpi4py.json";
    const PAGE: &'static str = "docs/mpi4py.md";

    fn page(&self) -> String {
        let all = self.modules.len();
        let passed = |module: &&Module| module.results.iter().all(ModuleRun::passed);
        let passed = self.modules.iter().filter(passed).count();
        format!(
            "<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->\n\
             <!-- Generated by `cargo xtask mpi4py` from {record}. -->\n\n\
             # mpi4py\n\n\
             mpi4py {version}, built from its source package with `onecopy-mpicc`, and its own tests under `onecopy run`. Every rank runs all \
             tests of a\nmodule. {passed} of {all} modules pass; those without ° must. What the others need is in [mpi.md](mpi.md) under *not implemented*.\n\n\
             {table}\n",
            record = Self::RECORD,
            version = self.version,
            table = self.table()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn ran(ranks: u32, code: i32, text: &str) -> ModuleRun {
        ModuleRun::of(ranks, text, ExitStatus::from_raw(code << 8), 0.0)
    }

    #[test]
    fn what_the_ranks_say_is_read() {
        let good = "[0] Ran 12 tests in 0.1s\n[0] \n[0] OK (skipped=2)\n[1] Ran 12 tests in 0.1s\n[1] OK (skipped=1)\n";
        let good = ran(2, 0, good);
        assert!(good.passed());
        assert_eq!(good.to_string(), "10 passed, 2 skipped");
        let bad = "[0] OKAY\n[0] Ran 3 tests in 0.1s\n[0] FAILED (failures=1, errors=1)\n[1] Ran 3 tests in 0.1s\n[1] OK\n";
        let bad = ran(2, 1, bad);
        assert!(!bad.passed());
        assert_eq!(bad.to_string(), "1 passed, **2 failed**");
        let half = "[0] Ran 3 tests in 0.1s\n[0] OK\n";
        assert_eq!(ran(2, 124, half).to_string(), "no end");
        assert_eq!(ran(2, 55, half).to_string(), "ended with 55");
        assert!(
            !ran(1, 3, half).passed(),
            "a rank that dies after its tests"
        );
    }
}
