// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask soak`: random programs of messages for as long as one likes.

use crate::Failure;
use crate::steps::{Steps, cargo, count};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For how long
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut steps = Steps::new(2);
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
            .env("TEST_SOAK", args.seconds.to_string());
        count(&mut command)
    });
    steps.finish()
}
