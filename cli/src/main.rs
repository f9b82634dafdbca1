// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `onecopy` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    onecopy_cli::command::main()
}
