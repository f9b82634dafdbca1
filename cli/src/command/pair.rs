// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks of this very program, started to find something out.

use super::{CliError, on_node};
use onecopy_launch::{Bind, Job, Output, Stream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Runs `command` of this program on two ranks and gives the lines that rank 0 printed.
pub(super) fn run(
    command: &[&str],
    env: &[(&str, String)],
    limit: Duration,
    on_line: impl FnMut(&str) + Send + 'static,
) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::io("the path of this program"))?;
    let job = Job::new(program, 2).args(command).timeout(limit);
    finish(job, "two ranks", command, env, on_line)
}

/// Nodes of one machine are not silent because of the network, but the machine may have other work. A minute is chosen
/// by magnitude.
const NODE_TIMEOUT: (&str, &str) = ("ONECOPY_NODE_TIMEOUT", "60");

/// As [`run`], on so many ranks that lie on so many nodes, all of which are this machine.
pub(super) fn run_on_nodes(
    (ranks, nodes): (usize, usize),
    command: &[&str],
    env: &[(&str, String)],
    limit: Option<Duration>,
    on_line: impl FnMut(&str) + Send + 'static,
) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::io("the path of this program"))?;
    let mut job = Job::new(&program, ranks)
        .arg(on_node::COMMAND)
        .arg(nodes.to_string())
        .arg(program)
        .args(command)
        .bind(Bind::None);
    if let Some(limit) = limit {
        job = job.timeout(limit);
    }
    if std::env::var_os(NODE_TIMEOUT.0).is_none() {
        job = job.env(NODE_TIMEOUT.0, NODE_TIMEOUT.1);
    }
    let who = format!("{ranks} ranks on {nodes} nodes");
    finish(job, &who, command, env, on_line)
}

fn finish(
    mut job: Job,
    who: &str,
    command: &[&str],
    env: &[(&str, String)],
    mut on_line: impl FnMut(&str) + Send + 'static,
) -> Result<(), CliError> {
    let printed = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&printed);
    job = job
        .quiet(true)
        .output(Output::Lines(Box::new(move |rank, stream, line| {
            let line = String::from_utf8_lossy(line);
            match stream {
                Stream::Stdout if rank == 0 => on_line(line.trim_end()),
                Stream::Stdout => {}
                Stream::Stderr => heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line.trim_end().to_owned()),
            }
        })));
    for (name, value) in env {
        job = job.env(name, value);
    }
    let outcome = job.run().map_err(|error| CliError::Failed(error.into()))?;
    if outcome.code == 0 {
        return Ok(());
    }
    let mut text = printed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    text.extend(outcome.messages);
    Err(CliError::Failed(
        format!(
            "{who} started for '{}' ended with code {}: {}",
            command.join(" "),
            outcome.code,
            text.join("; ")
        )
        .into(),
    ))
}
