// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the kernel module. They run as root, in a virtual machine, with the module loaded.
//!
//! `acceptance` has one test or more for each thing that the module guarantees. `speed` measures first touch, `fuzz`
//! calls at random, `churn` does everything at once, and `lists` has a command show the module's lists.

mod acceptance;
mod census;
mod churn;
mod crew;
mod device;
mod dice;
mod fuzz;
mod inject;
mod mappings;
mod mem;
mod notes;
mod outcome;
mod peer;
mod probe;
mod ring;
mod runner;
mod settings;
mod speed;
mod system;
mod trace;
mod uffd;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tests of the onecopy kernel module, to be run as root in a virtual machine.
#[derive(Parser)]
#[command(name = "onecopy-kmod-tests", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What the module guarantees, each a test.
    Acceptance(runner::Arguments),
    /// First touch of an attachment, per page; figures of an emulated processor are relative only.
    Speed(speed::Arguments),
    /// Random calls on the three devices by several processes.
    Fuzz(fuzz::Arguments),
    /// Everything that may happen to memory that is shared, all at once.
    Churn(churn::Arguments),
    /// Runs a command that shows what the module's lists have, while each has something.
    Lists {
        /// The command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// What a test starts with exec: does nothing for a while.
    #[command(hide = true)]
    Idle {
        /// How long.
        seconds: u64,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Acceptance(arguments) => runner::run(acceptance::TESTS, &arguments),
        Command::Speed(arguments) => speed::run(&arguments).map(|()| true),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Churn(arguments) => churn::run(&arguments),
        Command::Lists { command } => acceptance::shown::by_command(&command),
        Command::Idle { seconds } => system::idle(seconds),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => {
            let _ = writeln!(std::io::stderr().lock(), "onecopy-kmod-tests: {fault}");
            ExitCode::from(2)
        }
    }
}
