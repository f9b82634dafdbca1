// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's profile, measured before the first job that is run on it.

use super::CliError;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use onecopy::machine::spread_processors;
use onecopy::measure;
use onecopy::tune::{self, profile};
use onecopy_launch::guard;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A measurement that lasts so long is given up. Chosen by magnitude: it takes some tens of milliseconds, four times as
/// long on a busy machine.
const LIMIT: Duration = Duration::from_secs(5);
/// The hidden command that measures and writes the profile, in a process of its own: whatever becomes of it, the job is
/// not touched.
pub(super) const COMMAND: &str = "__profile";

/// Has the profile measured if this machine has none. `env`: what the ranks are given besides. A job does without the
/// profile, so nothing that fails here is an error.
pub(super) fn ensure(env: &[(String, String)]) {
    // The command is started again to guard itself.
    if guard::is_second() {
        return;
    }
    if let Err(error) = try_ensure(env) {
        tracing::info!("the machine's profile was not written: {error}");
    }
}

fn try_ensure(env: &[(String, String)]) -> Result<(), CliError> {
    let decided =
        |(name, _): &(String, String)| name == "ONECOPY_TUNE_FILE" || name == profile::KNOB;
    let wanted = tune::settings()?.lacks_profile && !env.iter().any(decided);
    if !wanted || spread_processors().len() < 2 {
        return Ok(());
    }
    if let Some(obstacle) = profile::obstacle() {
        return Err(CliError::Failed(obstacle.into()));
    }
    let program = std::env::current_exe().map_err(CliError::io("the path of this program"))?;
    let what = "the process that measures";
    let mut child = Command::new(program)
        .args([COMMAND, &std::process::id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(CliError::io(what))?;
    let begin = Instant::now();
    let ended = loop {
        match child.try_wait().map_err(CliError::io(what))? {
            None if begin.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(2)),
            ended => break ended,
        }
    };
    match ended {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(CliError::Failed(format!("{what}: {status}").into())),
        None => {
            // One that ended just now is not there to be killed.
            let _ = child.kill();
            let _ = child.wait();
            Err(CliError::Failed(format!("{what} took too long").into()))
        }
    }
}

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The process that waits for this one
    parent: i32,
}

/// Measures the profile and writes it, for the process that started this one and no longer than it lives.
pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let dies_with_parent = prctl::set_pdeathsig(Signal::SIGKILL);
    dies_with_parent.map_err(|errno| CliError::Failed(format!("prctl: {errno}").into()))?;
    if getppid() != Pid::from_raw(args.parent) {
        return Ok(ExitCode::FAILURE);
    }
    measure::keep_profile().map_err(|reason| CliError::Failed(reason.into()))?;
    Ok(ExitCode::SUCCESS)
}
