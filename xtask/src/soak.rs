// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask soak`: tests that find more the longer they run.

use crate::Failure;
use crate::steps::{Steps, cargo, count};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Kills a random rank of four at random instants under traffic and checks what the others do
    Kills {
        /// Ranks to kill, one job each
        #[arg(long, default_value_t = 1000)]
        count: u64,
        /// Where the random numbers begin; a failure names its run and seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut steps = Steps::new(1);
    match args.what {
        What::Kills { count: kills, seed } => steps.tests(&format!("{kills} random kills"), || {
            count(
                cargo()
                    .args(["test", "--package", "onecopy", "--features", "fault-points"])
                    .args(["--test", "crash", "kills", "--", "--nocapture"])
                    .env("TEST_KILLS", kills.to_string())
                    .env("TEST_SEED", seed.to_string()),
            )
        }),
    }
    steps.finish()
}
