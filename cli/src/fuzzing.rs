// SPDX-License-Identifier: MIT OR Apache-2.0
//! The door for `tests/fuzz` to the parser of the command line.

use clap::Parser;

/// Parses a command line, as the `onecopy` program does; runs nothing.
pub fn command_line(arguments: &[String]) -> bool {
    let name = "onecopy".to_owned();
    crate::command::Cli::try_parse_from(std::iter::once(&name).chain(arguments)).is_ok()
}
