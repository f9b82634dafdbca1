// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.
mod run;

#[derive(clap::Parser)]
#[command(name = "onecopy")]
enum Cli {
    Run(run::RunArgs),
}

pub(crate) fn main() -> i32 {
    match <Cli as clap::Parser>::parse() {
        Cli::Run(args) => args.execute(),
    }
}
