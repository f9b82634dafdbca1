// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy __on-node`: what `onecopy run` starts so that its ranks lie on several nodes of this machine.
//!
//! Ranks of `onecopy run` share memory. A rank that this command starts has a node by name. It meets the others by the
//! launcher's table, as under the launcher of another library.

use super::CliError;
use onecopy::wireup::{ENV_FD, ENV_JOB, ENV_RANK, ENV_SIZE};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The command's name.
pub(super) const COMMAND: &str = "__on-node";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of nodes, on which the ranks lie in blocks
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,

    /// What to run
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

fn number(name: &str) -> Result<u64, CliError> {
    let value = std::env::var(name).unwrap_or_default();
    value.parse().map_err(|_| {
        CliError::Usage(format!(
            "{name}={value:?}: no rank of 'onecopy run', which starts this command"
        ))
    })
}

/// The node of a rank.
fn node(rank: u64, size: u64, nodes: u32) -> u64 {
    rank * u64::from(nodes) / size.max(1)
}

pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    let node = node(number("PMI_RANK")?, number("PMI_SIZE")?, args.nodes);
    let mut words = args.command.into_iter();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(&program);
    for name in [ENV_FD, ENV_JOB, ENV_RANK, ENV_SIZE] {
        command.env_remove(name);
    }
    command
        .args(words)
        .env("ONECOPY_NODE", format!("node{node}"));
    // Returns only if it fails.
    let error = command.exec();
    Err(CliError::io(program.to_string_lossy())(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_lie_in_blocks() {
        let nodes: Vec<u64> = (0..5).map(|rank| node(rank, 5, 2)).collect();
        assert_eq!(nodes, [0, 0, 0, 1, 1]);
        assert_eq!(node(0, 0, 2), 0);
    }
}
