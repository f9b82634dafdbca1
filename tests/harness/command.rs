// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command, started without any setting of the one who runs the tests.

#[path = "limit.rs"]
pub(crate) mod limit;

use std::process::{Command, Output};

/// Runs the command and waits for its end.
pub(crate) fn onecopy(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ONECOPY_") {
            command.env_remove(name);
        }
    }
    command.env("ONECOPY_TUNE_FILE", "none").args(args);
    limit::output(command.envs(env.iter().copied()))
}

/// What it wrote.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}
