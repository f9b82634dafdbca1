// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask soak`: tests that find more the longer they run.

use crate::Failure;
use crate::steps::{Steps, cargo, count};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SoakCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SoakCommand {
    /// Kills a random rank of four at random instants under traffic and checks what the others do
    Kills {
        /// Ranks to kill, one job each
        #[arg(long, default_value_t = 1000)]
        count: u64,
        /// Where the random numbers begin; a failure names its run and seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Runs random communication of eight threads in each of two, three and four ranks, through MPI
    Threads {
        /// For how long
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Where the random numbers begin
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Runs random programs of messages against an oracle, and a message of more than 4 GiB
    Programs {
        /// For how long
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut steps = Steps::new(match args.what {
        SoakCommand::Kills { .. } | SoakCommand::Threads { .. } => 1,
        SoakCommand::Programs { .. } => 2,
    });
    match args.what {
        SoakCommand::Kills { count: kills, seed } => {
            steps.tests(&format!("{kills} random kills"), || {
                count(
                    cargo()
                        .args(["test", "--package", "onecopy", "--features", "fault-points"])
                        .args(["--test", "crash", "kills", "--", "--nocapture"])
                        .env("TEST_KILLS", kills.to_string())
                        .env("TEST_SEED", seed.to_string()),
                )
            })
        }
        SoakCommand::Threads { minutes, seed } => {
            steps.tests(&format!("threads for {minutes} minutes"), || {
                count(
                    cargo()
                        .args(["test", "--release", "--package", "onecopy-mpi"])
                        .args(["--test", "programs", "--", "--exact", "--nocapture"])
                        .arg("threads")
                        .env("TEST_SOAK", (minutes * 60).to_string())
                        .env("TEST_SEED", seed.to_string()),
                )
            });
        }
        SoakCommand::Programs { seconds } => {
            steps.tests("a message of more than 4 GiB", || {
                let test = ["test", "--test", "conformance", "--", "4_gib"];
                count(cargo().args(test).env("TEST_SOAK", "1"))
            });
            steps.tests("random programs", || {
                let test = ["test", "--test", "property", "--", "--exact", "soak"];
                let mut command = cargo();
                command
                    .args(test)
                    .arg("--nocapture")
                    .env("TEST_SOAK", seconds.to_string());
                count(&mut command)
            });
        }
    }
    steps.finish()
}
