// SPDX-License-Identifier: MIT OR Apache-2.0
//! The onecopy command.
#![forbid(unsafe_code)]
mod cli;

fn main() {
    std::process::exit(cli::main());
}
