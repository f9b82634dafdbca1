// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's profile, measured before the first job that is run on it.

use super::CliError;
use onecopy::{profile, tune};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long the stores are compared.
const TIME: Duration = Duration::from_millis(40);
/// A measurement that lasts so long is given up.
const LIMIT: Duration = Duration::from_secs(5);
/// The hidden command that measures and writes the profile, in a process of its own: whatever becomes of it, the job is
/// not touched.
pub(super) const COMMAND: &str = "__profile";

/// Has the profile measured if this machine has none. A job does without it, so nothing that fails here is an error.
pub(super) fn ensure() {
    if let Err(error) = try_ensure() {
        tracing::info!("the machine's profile was not written: {error}");
    }
}

fn try_ensure() -> Result<(), CliError> {
    let settings = tune::settings()?;
    let chosen = settings.knobs.chunk_copy != onecopy::ChunkCopy::Auto;
    if !settings.lacks_profile || chosen || onecopy::wireup::own_processors().len() < 2 {
        return Ok(());
    }
    let Some(path) = tune::profile_path() else {
        return Ok(());
    };
    // Before the measurement, which would be made with each run otherwise.
    can_write(&path).map_err(CliError::io(path.display().to_string()))?;
    let program = std::env::current_exe().map_err(CliError::io("the path of this program"))?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(CliError::io("the process that measures"))?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(CliError::Failed(format!("it ended with {status}").into()));
            }
            Ok(None) if begin.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(2)),
            late => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(late
                    .map_err(CliError::io("the process that measures"))
                    .map_or_else(
                        |error| error,
                        |_| CliError::Failed("it took too long".into()),
                    ));
            }
        }
    }
}

/// Whether a file can be made beside `path`.
fn can_write(path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let trial = path.with_extension(format!("trial-{}", std::process::id()));
    std::fs::write(&trial, b"trial")?;
    std::fs::remove_file(trial)
}

/// Measures the profile and writes it.
pub(super) fn run() -> Result<ExitCode, CliError> {
    let path = tune::profile_path().ok_or_else(|| CliError::Usage("there is no home".into()))?;
    let stores = profile::measure(TIME).map_err(|error| CliError::Failed(error.into()))?;
    stores
        .file()
        .write(&path)
        .map_err(CliError::io(path.display().to_string()))?;
    Ok(ExitCode::SUCCESS)
}
