// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two ranks of this very program, started to find something out.

use super::CliError;
use onecopy_launch::{Job, Output, Stream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Runs `command` of this program on two ranks and gives the lines that rank 0 printed.
pub(super) fn run(
    command: &[&str],
    env: &[(&str, String)],
    limit: Duration,
    mut on_line: impl FnMut(&str) + Send + 'static,
) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::io("the path of this program"))?;
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let mut job = Job::new(program, 2)
        .args(command)
        .quiet(true)
        .timeout(limit)
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
    let mut text = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
    text.extend(outcome.messages);
    Err(CliError::Failed(
        format!(
            "two ranks started for '{}' ended with code {}: {}",
            command.join(" "),
            outcome.code,
            text.join("; ")
        )
        .into(),
    ))
}
