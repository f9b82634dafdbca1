// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a trace. They are opened before anything is observed, and replaced as a whole at the end.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
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
    /// As the user wrote it.
    name: String,
    to: To,
}

#[derive(Debug)]
enum To {
    Stdout,
    /// A device or a pipe. It stays open: who reads a pipe would see its end otherwise.
    Odd(File),
    /// A regular file, which is replaced, and whose mode and owner the new one gets.
    Regular {
        path: PathBuf,
        before: Option<Metadata>,
    },
}

impl Output {
    fn open(path: &Path) -> Result<Self, CliError> {
        let name = path.display().to_string();
        match To::open(path) {
            Ok(to) => Ok(Self { name, to }),
            Err(source) => Err(CliError::Io { what: name, source }),
        }
    }

    fn write(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CliError> {
        let written = match self.to {
            To::Stdout => return print(write),
            To::Odd(file) => all_to(&file, write),
            To::Regular { path, before } => replace(&path, before.as_ref(), write),
        };
        written.map_err(CliError::io(self.name))
    }
}

impl To {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new(STDOUT) {
            return Ok(Self::Stdout);
        }
        let (path, before) = match File::options().write(true).open(path) {
            Ok(file) => {
                let meta = file.metadata()?;
                if is_stdout(&meta) {
                    return Ok(Self::Stdout);
                }
                if !meta.is_file() {
                    return Ok(Self::Odd(file));
                }
                // What links lead to is replaced, not the links.
                (std::fs::canonicalize(path)?, Some(meta))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let is_link = std::fs::symlink_metadata(path).is_ok();
                if is_link {
                    return Err(error);
                }
                let Some(file) = path.file_name() else {
                    return Err(error);
                };
                (std::fs::canonicalize(folder(path))?.join(file), None)
            }
            Err(error) => return Err(error),
        };
        // Whether it can be made. It is made at the end, so that nothing stays if this process is killed.
        drop(new_file(&path)?);
        Ok(Self::Regular { path, before })
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stdout, Self::Stdout) => true,
            (Self::Regular { path: one, .. }, Self::Regular { path: other, .. }) => one == other,
            _ => false,
        }
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn is_stdout(meta: &Metadata) -> bool {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    stdout
        .and_then(|stdout| stdout.metadata())
        .is_ok_and(|stdout| (stdout.dev(), stdout.ino()) == (meta.dev(), meta.ino()))
}

/// A file beside another one, as new as the user's mask permits.
fn new_file(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".onecopy-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder(path))
}

fn all_to(file: &File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = io::BufWriter::new(file);
    write(&mut out)?;
    out.flush()
}

fn replace(
    path: &Path,
    before: Option<&Metadata>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let new = new_file(path)?;
    all_to(new.as_file(), write)?;
    if let Some(before) = before {
        // Only an administrator gives files away.
        let _ = fchown(new.as_file(), Some(before.uid()), Some(before.gid()));
        new.as_file()
            .set_permissions(Permissions::from_mode(before.mode() & 0o777))?;
    }
    new.persist(path).map(drop).map_err(|error| error.error)
}

/// All files of a trace.
#[derive(Debug)]
pub(super) struct Outputs {
    json: Option<Output>,
    perfetto: Option<Output>,
    prometheus: Option<Output>,
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
        let outputs = Self {
            json: open(json)?,
            perfetto: open(perfetto)?,
            prometheus: open(prometheus)?,
            events: Vec::new(),
            left_out: 0,
        };
        let [a, b, c] = [&outputs.json, &outputs.perfetto, &outputs.prometheus];
        for (one, other) in [(a, b), (a, c), (b, c)] {
            if let (Some(one), Some(other)) = (one, other)
                && one.to.is_same(&other.to)
            {
                let (one, other) = (&one.name, &other.name);
                return Err(CliError::Usage(format!("{one} and {other} are one file")));
            }
        }
        Ok(outputs)
    }

    /// Whether standard output is taken.
    pub(super) fn take_stdout(&self) -> bool {
        let all = [&self.json, &self.perfetto, &self.prometheus];
        let mut all = all.into_iter().flatten();
        all.any(|output| matches!(output.to, To::Stdout))
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
        // One that cannot be written takes none of the others with it.
        let mut all = Ok(());
        if let Some(output) = self.perfetto.take() {
            let events = &self.events;
            all =
                all.and(output.write(|mut out| perfetto::write(events, &observed.tasks, &mut out)));
        }
        if let Some(output) = self.prometheus.take() {
            all = all.and(output.write(|mut out| prometheus::write(report, &mut out)));
        }
        if let Some(output) = self.json.take() {
            let json = text::json(report)?;
            all = all.and(output.write(|out| writeln!(out, "{json}")));
        }
        all
    }
}

/// Writes a value as JSON to a file, or to standard output.
pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), CliError> {
    let json = text::json(value)?;
    Output::open(path)?.write(|out| writeln!(out, "{json}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, text: &str) -> Result<(), CliError> {
        Output::open(path)?.write(|out| writeln!(out, "{text}"))
    }

    #[test]
    fn a_file_keeps_its_mode_and_the_links_that_lead_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "before").expect("written");
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("a mode");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        put(&link, "after").expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "after\n");
        let mode = std::fs::metadata(&file).expect("there").mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(
            std::fs::symlink_metadata(&link)
                .expect("there")
                .is_symlink()
        );
        let nowhere = folder.path().join("nowhere");
        std::os::unix::fs::symlink("none", &nowhere).expect("a link");
        assert!(put(&nowhere, "x").is_err(), "a link to nothing");
    }

    #[test]
    fn nothing_lies_about_before_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let output = Output::open(&path).expect("opens");
        let count = || std::fs::read_dir(folder.path()).expect("read").count();
        assert_eq!(count(), 0);
        output.write(|out| writeln!(out, "x")).expect("written");
        assert_eq!(count(), 1);
    }

    #[test]
    fn a_pipe_stays_open_until_it_is_written() {
        use std::io::Read;
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let from = pipe.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(from)?.read_to_string(&mut text)?;
            io::Result::Ok(text)
        });
        put(&pipe, "all").expect("written");
        let text = reader.join().expect("ends").expect("read");
        assert_eq!(text, "all\n");
    }

    #[test]
    fn one_file_is_not_written_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let one = Some(folder.path().join("file"));
        let same = Some(folder.path().join("./file"));
        assert!(Outputs::open(&one, &same, &None).is_err());
        assert!(Outputs::open(&one, &None, &None).is_ok());
        let stdout = Some(PathBuf::from("-"));
        assert!(Outputs::open(&stdout, &None, &stdout).is_err());
    }
}
