// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a trace. They are opened before anything is observed, and replaced as a whole at the end.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use onecopy_trace::Observed;
use onecopy_trace::observed::Event;
use onecopy_trace::report::Report;
use onecopy_trace::{perfetto, prometheus};
use tempfile::NamedTempFile;

use crate::command::{CliError, print, text};

/// The name of standard output.
const STDOUT: &str = "-";
/// Events of a timeline that are kept; a file of more is more than a viewer takes.
const EVENTS_MAX: usize = 4_000_000;

/// One file to be.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    /// Beside the file; none: it is no regular one, or standard output.
    new: Option<NamedTempFile>,
}

impl Output {
    fn open(path: &Path) -> Result<Self, CliError> {
        let fail = |source| CliError::Io {
            what: path.display().to_string(),
            source,
        };
        let is_plain = std::fs::metadata(path).map_or(true, |meta| meta.is_file());
        let new = if path == Path::new(STDOUT) {
            None
        } else if is_plain {
            let folder = match path.parent() {
                Some(folder) if folder != Path::new("") => folder,
                _ => Path::new("."),
            };
            if path.is_dir() {
                return Err(fail(io::ErrorKind::IsADirectory.into()));
            }
            Some(
                tempfile::Builder::new()
                    .prefix(".onecopy-")
                    .tempfile_in(folder)
                    .map_err(fail)?,
            )
        } else {
            // A device or a pipe.
            File::options().write(true).open(path).map_err(fail)?;
            None
        };
        Ok(Self {
            path: path.to_owned(),
            new,
        })
    }

    fn write(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CliError> {
        let name = self.path.display().to_string();
        let fail = |source| CliError::Io { what: name, source };
        if self.path == Path::new(STDOUT) {
            return print(write);
        }
        let Some(new) = self.new else {
            let file = File::options().write(true).open(&self.path);
            return file
                .and_then(|file| {
                    let mut out = io::BufWriter::new(file);
                    write(&mut out)?;
                    out.flush()
                })
                .map_err(fail);
        };
        let mut out = io::BufWriter::new(new.as_file());
        let written = write(&mut out).and_then(|()| out.flush());
        drop(out);
        written
            .and_then(|()| readable(new.as_file()))
            .and_then(|()| {
                new.persist(&self.path)
                    .map(drop)
                    .map_err(|error| error.error)
            })
            .map_err(fail)
    }
}

/// A new file is for its owner alone; a report is for whom other files are.
fn readable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

/// All files of a trace.
#[derive(Debug)]
pub(super) struct Outputs {
    json: Option<Output>,
    perfetto: Option<Output>,
    prometheus: Option<Output>,
    json_to_stdout: bool,
    events: Vec<Event>,
    left_out: u64,
}

impl Outputs {
    pub(super) fn open(
        json: &Option<PathBuf>,
        perfetto: &Option<PathBuf>,
        prometheus: &Option<PathBuf>,
    ) -> Result<Self, CliError> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
        Ok(Self {
            json: open(json)?,
            perfetto: open(perfetto)?,
            prometheus: open(prometheus)?,
            json_to_stdout: json.as_deref() == Some(Path::new(STDOUT)),
            events: Vec::new(),
            left_out: 0,
        })
    }

    pub(super) fn json_is_stdout(&self) -> bool {
        self.json_to_stdout
    }

    /// Keeps events of the timeline.
    pub(super) fn events(&mut self, events: Vec<Event>) {
        if self.perfetto.is_none() {
            return;
        }
        let room = EVENTS_MAX.saturating_sub(self.events.len());
        self.left_out += events.len().saturating_sub(room) as u64;
        self.events.extend(events.into_iter().take(room));
    }

    /// Writes all of them.
    pub(super) fn finish(
        &mut self,
        report: &mut Report,
        observed: &Observed,
    ) -> Result<(), CliError> {
        if self.left_out > 0 {
            report.limits.push(format!(
                "the timeline has the first {EVENTS_MAX} events; {} are left out",
                self.left_out
            ));
        }
        if let Some(output) = self.perfetto.take() {
            output.write(|mut out| perfetto::write(&self.events, &observed.tasks, &mut out))?;
        }
        if let Some(output) = self.prometheus.take() {
            output.write(|mut out| prometheus::write(report, &mut out))?;
        }
        if let Some(output) = self.json.take() {
            let json = text::json(report)?;
            output.write(|out| writeln!(out, "{json}"))?;
        }
        Ok(())
    }
}

/// Writes a value as JSON to a file, or to standard output.
pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), CliError> {
    let json = text::json(value)?;
    Output::open(path)?.write(|out| writeln!(out, "{json}"))
}
