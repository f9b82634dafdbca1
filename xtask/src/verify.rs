// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask verify`: tools that check the lock-free core. A run that executed nothing has failed.

use clap::ValueEnum;

use crate::steps::{Steps, Tally, cargo, count};
use crate::{Failure, root};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which tools; all of them if none is named
    #[arg(value_enum)]
    tools: Vec<Tool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// Every interleaving of the ring, the pool and the doorbell
    Loom,
}

impl Tool {
    const fn title(self) -> &'static str {
        match self {
            Self::Loom => "models under loom",
        }
    }

    fn run(self) -> Result<Tally, (Tally, Failure)> {
        match self {
            Self::Loom => loom(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let tools = if args.tools.is_empty() {
        Tool::value_variants()
    } else {
        &args.tools
    };
    let mut steps = Steps::new(tools.len());
    for tool in tools {
        steps.tests(tool.title(), || tool.run());
    }
    steps.finish()
}

/// Runs the models. They have their own target folder, since the flag changes every package.
pub(crate) fn loom() -> Result<Tally, (Tally, Failure)> {
    let target = root().join("target").join("loom");
    let result = count(
        cargo()
            .args([
                "test",
                "--package",
                "onecopy-shm",
                "--release",
                "--test",
                "loom",
            ])
            .env("CARGO_TARGET_DIR", target)
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
    );
    executed("loom", result)
}

/// Says how many models ran and fails when none did.
fn executed(
    tool: &str,
    result: Result<Tally, (Tally, Failure)>,
) -> Result<Tally, (Tally, Failure)> {
    let tally = result?;
    crate::say::line(&format!("{tool}: {} models executed", tally.passed));
    if tally.passed == 0 {
        Err((tally, format!("{tool} executed no model")))
    } else {
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_executed_is_a_failure() {
        assert!(executed("tool", Ok(Tally::default())).is_err());
        let one = Tally {
            passed: 1,
            failed: 0,
        };
        assert_eq!(executed("tool", Ok(one)), Ok(one));
    }
}
