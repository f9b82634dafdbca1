// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask verify`: tools that check more than tests do, one file each. A run that
//! executed nothing has failed; a tool that cannot run here says why, and is counted apart.

use clap::ValueEnum;

use crate::Failure;
use crate::steps::{Steps, Tally};

pub(crate) mod asan;
pub(crate) mod fuzz;
mod kmod;
pub(crate) mod loom;
mod miri;
mod sanitizer;
mod tsan;
pub(crate) mod valgrind;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which tools; all of them if none is named
    #[arg(value_enum)]
    tools: Vec<Tool>,
    #[command(flatten)]
    fuzz: fuzz::Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// Every interleaving of the lock-free core
    Loom,
    /// What peers, launchers and users write, by coverage-guided fuzzing
    Fuzz,
    /// C programs on the library under AddressSanitizer
    Asan,
    /// The malloc front under valgrind
    Valgrind,
    /// Unit tests under Miri, or what comes nearest to it here
    Miri,
    /// Threads under ThreadSanitizer, where it can run
    Tsan,
    /// The kernel module's sources: W=1, sparse, smatch, checkpatch, coccinelle, kernel-doc
    Kmod,
    /// All of them
    All,
}

impl Tool {
    const fn title(self) -> &'static str {
        match self {
            Self::Loom => "models under loom",
            Self::Fuzz => "fuzzing",
            Self::Asan => "C programs under AddressSanitizer",
            Self::Valgrind => "the malloc front under valgrind",
            Self::Miri => "unit tests under Miri or in a checked build",
            Self::Tsan => "threads under ThreadSanitizer",
            Self::Kmod => "the kernel module's sources",
            Self::All => "all tools",
        }
    }

    fn run(self, args: &Args) -> Result<Tally, (Tally, Failure)> {
        match self {
            Self::Loom => loom::run(),
            Self::Fuzz => fuzz::run(&args.fuzz),
            Self::Asan => asan::run(),
            Self::Valgrind => valgrind::run(),
            Self::Miri => miri::run(),
            Self::Tsan => tsan::run(),
            Self::Kmod => kmod::run(),
            Self::All => Ok(Tally::default()),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let all = args.tools.is_empty() || args.tools.contains(&Tool::All);
    let tools = if all {
        Tool::value_variants()
    } else {
        &args.tools
    };
    let tools = tools.iter().filter(|&&tool| tool != Tool::All);
    let mut steps = Steps::new(tools.clone().count());
    for tool in tools {
        steps.tests(tool.title(), || tool.run(args));
    }
    steps.finish()
}

/// Says how much ran and fails when nothing did.
fn executed(
    tool: &str,
    what: &str,
    result: Result<Tally, (Tally, Failure)>,
) -> Result<Tally, (Tally, Failure)> {
    let tally = result?;
    crate::say::line(&format!("{tool}: {} {what} executed", tally.passed));
    if tally.passed == 0 {
        Err((tally, format!("{tool} executed no {what}")))
    } else {
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_executed_is_a_failure() {
        assert!(executed("tool", "tests", Ok(Tally::default())).is_err());
        assert_eq!(executed("tool", "tests", Ok(Tally::ONE)), Ok(Tally::ONE));
    }
}
