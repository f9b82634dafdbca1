// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.
mod run;

use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, clap::Parser)]
#[command(name = "onecopy")]
enum Cli {
    Run(run::Args),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("{0}")]
    Usage(String),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let Cli::Run(args) = clap::Parser::parse();
    run::run(args).unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "onecopy: {error}");
        ExitCode::from(2)
    })
}
