// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a trace. They are opened before anything is observed, and replaced as a whole at the end.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use onecopy_trace::Observed;
use onecopy_trace::observed::Event;
use onecopy_trace::report::Report;
use onecopy_trace::{perfetto, prometheus};

use crate::command::{CliError, print, text};

/// The name of standard output.
const STDOUT: &str = "-";
/// Events of a timeline that are kept; a file of more is more than a viewer takes. Chosen by magnitude: at some hundred
/// bytes each they take half a gigabyte.
const EVENTS_MAX: usize = 4_000_000;

/// One file to be.
#[derive(Debug)]
struct Output {
    /// As the user wrote it.
    name: String,
    to: Sink,
    unfinished: Unfinished,
}

#[derive(Debug)]
enum Sink {
    Stdout,
    /// A device or a pipe. It stays open: the reader of a pipe would see its end otherwise.
    Odd(File),
    /// A regular file, which is replaced.
    Regular(Box<RegularFile>),
}

/// Where a regular file is or will be. The folder is open: to move it, or what leads to it, moves the file.
#[derive(Debug)]
struct RegularFile {
    folder: Arc<OwnedFd>,
    name: OsString,
    /// That of the file which is there. The new one gets its mode and owner.
    before: Option<Metadata>,
}

impl Output {
    fn open(path: &Path, unfinished: &Unfinished) -> Result<Self, CliError> {
        let name = path.display().to_string();
        match Sink::open(path) {
            Ok(to) => Ok(Self {
                name,
                to,
                unfinished: unfinished.clone(),
            }),
            Err(source) => Err(CliError::Io { what: name, source }),
        }
    }

    fn write(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CliError> {
        let written = match self.to {
            Sink::Stdout => return print(write),
            Sink::Odd(file) => all_to(&file, write),
            Sink::Regular(regular) => regular.replace(&self.unfinished, write),
        };
        written.map_err(CliError::io(self.name))
    }
}

impl Sink {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new(STDOUT) {
            return Ok(Self::Stdout);
        }
        let regular = match File::options().write(true).open(path) {
            Ok(file) => {
                let meta = file.metadata()?;
                if is_stdout(&meta) {
                    return Ok(Self::Stdout);
                }
                if !meta.is_file() {
                    return Ok(Self::Odd(file));
                }
                // What links lead to is replaced, not the links.
                let regular = RegularFile::of(&std::fs::canonicalize(path)?, Some(meta))?;
                if !regular.is_as_before()? {
                    return Err(io::Error::other("it was exchanged while it was opened"));
                }
                regular
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A user who may make links here could lead an administrator's file to any place.
                if std::fs::symlink_metadata(path).is_ok() {
                    let what = "a link to nothing; remove it, or make what it leads to";
                    return Err(io::Error::new(error.kind(), what));
                }
                if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
                    return Err(error);
                }
                RegularFile::of(path, None)?
            }
            Err(error) => return Err(error),
        };
        // Whether it can be made. It is made at the end, so that nothing stays if this process is killed.
        let unfinished = Unfinished::default();
        unfinished.begin(&regular)?;
        unfinished.give_up();
        Ok(Self::Regular(Box::new(regular)))
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stdout, Self::Stdout) => true,
            (Self::Regular(one), Self::Regular(other)) => one.is_same(other),
            // A device takes what comes from anywhere; a reader of a pipe gets one text.
            (Self::Odd(one), Self::Odd(other)) => {
                let pipe = |file: &File| {
                    let meta = file.metadata().ok()?;
                    let is_pipe = meta.file_type().is_fifo();
                    is_pipe.then_some((meta.dev(), meta.ino()))
                };
                pipe(one).is_some_and(|one| pipe(other) == Some(one))
            }
            _ => false,
        }
    }
}

impl RegularFile {
    fn of(path: &Path, before: Option<Metadata>) -> io::Result<Self> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self {
            folder: Arc::new(open(folder, flags, Mode::empty())?),
            name: path.file_name().unwrap_or_default().to_owned(),
            before,
        })
    }

    /// Whether the name still is that of the file that was opened. No link is followed.
    fn is_as_before(&self) -> io::Result<bool> {
        let name = self.name.as_os_str();
        let now = fstatat(&self.folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let before = self.before.as_ref();
        Ok(before.is_some_and(|before| (before.dev(), before.ino()) == (now.st_dev, now.st_ino)))
    }

    fn is_same(&self, other: &Self) -> bool {
        let folder = |regular: &Self| fstat(&regular.folder).map(|stat| (stat.st_dev, stat.st_ino));
        self.name == other.name && folder(self).is_ok_and(|one| folder(other) == Ok(one))
    }

    fn replace(
        &self,
        unfinished: &Unfinished,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let file = unfinished.begin(self)?;
        let whole = all_to(&file, write)
            .and_then(|()| {
                self.before
                    .as_ref()
                    .map_or(Ok(()), |before| inherit(&file, before))
            })
            .and_then(|()| unfinished.finish(&self.name));
        if whole.is_err() {
            unfinished.remove();
        }
        whole
    }
}

/// Gives a file the owner and the mode of another one. By its descriptor: its name may be another's by now.
fn inherit(file: &File, before: &Metadata) -> io::Result<()> {
    let mut mode = before.mode() & 0o777;
    // Only an administrator gives files away; others have groups.
    let is_owned = fchown(file, Some(before.uid()), Some(before.gid())).is_ok();
    if !is_owned && fchown(file, None, Some(before.gid())).is_err() {
        // What a group might do, another one may not.
        mode &= !0o070;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

/// The file that is written now, beside the one that it will replace. The end of this process takes it away.
#[derive(Clone, Debug, Default)]
pub(super) struct Unfinished(Arc<Mutex<Pending>>);

#[derive(Debug, Default)]
struct Pending {
    file: Option<(Arc<OwnedFd>, OsString)>,
    /// Nothing is begun or finished any more.
    is_over: bool,
}

impl Pending {
    fn check(&self) -> io::Result<()> {
        if self.is_over {
            return Err(Errno::EINTR.into());
        }
        Ok(())
    }

    fn remove(&mut self) {
        if let Some((folder, name)) = self.file.take() {
            // One that somebody else has removed is gone as well.
            let _ = unlinkat(&folder, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl Unfinished {
    fn with<T>(&self, act: impl FnOnce(&mut Pending) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a file. A new one is as open as the user's mask permits; one that replaces another is the owner's alone
    /// until it is whole.
    fn begin(&self, regular: &RegularFile) -> io::Result<File> {
        let mode = if regular.before.is_some() {
            0o600
        } else {
            0o666
        };
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        self.with(|pending| {
            pending.check()?;
            loop {
                let number = RandomState::new().build_hasher().finish();
                let name = OsString::from(format!(".onecopy-{number:016x}"));
                let mode = Mode::from_bits_truncate(mode);
                match openat(&regular.folder, name.as_os_str(), flags, mode) {
                    Ok(file) => {
                        pending.file = Some((Arc::clone(&regular.folder), name));
                        return Ok(File::from(file));
                    }
                    Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        })
    }

    /// Gives the file its name.
    fn finish(&self, name: &OsStr) -> io::Result<()> {
        self.with(|pending| {
            pending.check()?;
            if let Some((folder, beside)) = &pending.file {
                renameat(folder, beside.as_os_str(), folder, name)?;
                pending.file = None;
            }
            Ok(())
        })
    }

    fn remove(&self) {
        self.with(Pending::remove);
    }

    /// Takes it away. From then on no file gets a name.
    pub(super) fn give_up(&self) {
        self.with(|pending| {
            pending.is_over = true;
            pending.remove();
        });
    }
}

fn is_stdout(meta: &Metadata) -> bool {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    stdout
        .and_then(|stdout| stdout.metadata())
        .is_ok_and(|stdout| (stdout.dev(), stdout.ino()) == (meta.dev(), meta.ino()))
}

fn all_to(file: &File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = io::BufWriter::new(file);
    write(&mut out)?;
    out.flush()
}

/// All files of a trace.
#[derive(Debug)]
pub(super) struct Outputs {
    json: Option<Output>,
    perfetto: Option<Output>,
    prometheus: Option<Output>,
    unfinished: Unfinished,
    events: Vec<Event>,
    left_out: u64,
}

impl Outputs {
    pub(super) fn open(
        json: &Option<PathBuf>,
        perfetto: &Option<PathBuf>,
        prometheus: &Option<PathBuf>,
    ) -> Result<Self, CliError> {
        let unfinished = Unfinished::default();
        let open = |path: &Option<PathBuf>| {
            let path = path.as_deref();
            path.map(|path| Output::open(path, &unfinished)).transpose()
        };
        let outputs = Self {
            json: open(json)?,
            perfetto: open(perfetto)?,
            prometheus: open(prometheus)?,
            unfinished: unfinished.clone(),
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
    pub(super) fn takes_stdout(&self) -> bool {
        let all = [&self.json, &self.perfetto, &self.prometheus];
        let mut all = all.into_iter().flatten();
        all.any(|output| matches!(output.to, Sink::Stdout))
    }

    /// Keeps events of the timeline.
    pub(super) fn keep(&mut self, events: Vec<Event>) {
        if self.perfetto.is_none() {
            return;
        }
        let room = EVENTS_MAX.saturating_sub(self.events.len());
        self.left_out += events.len().saturating_sub(room) as u64;
        self.events.extend(events.into_iter().take(room));
    }

    /// What is written now.
    pub(super) fn unfinished(&self) -> Unfinished {
        self.unfinished.clone()
    }

    /// Writes all of them. One that cannot be written takes none of the others with it.
    pub(super) fn finish(
        &mut self,
        report: &mut Report,
        observed: &Observed,
    ) -> Vec<Result<(), CliError>> {
        if self.left_out > 0 {
            report.limits.push(format!(
                "the timeline has the first {EVENTS_MAX} events; {} are left out",
                self.left_out
            ));
        }
        let mut written = Vec::new();
        if let Some(output) = self.perfetto.take() {
            let events = &self.events;
            written
                .push(output.write(|mut out| perfetto::write(events, &observed.tasks, &mut out)));
        }
        if let Some(output) = self.prometheus.take() {
            written.push(output.write(|mut out| prometheus::write(report, &mut out)));
        }
        if let Some(output) = self.json.take() {
            let json = text::json(report);
            written.push(json.and_then(|json| output.write(|out| writeln!(out, "{json}"))));
        }
        written
    }
}

/// Writes a value as JSON to a file, or to standard output.
pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), CliError> {
    let json = text::json(value)?;
    Output::open(path, &Unfinished::default())?.write(|out| writeln!(out, "{json}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(path: &Path) -> Result<Output, CliError> {
        Output::open(path, &Unfinished::default())
    }

    fn put(path: &Path, text: &str) -> Result<(), CliError> {
        opened(path)?.write(|out| writeln!(out, "{text}"))
    }

    #[test]
    fn a_file_keeps_its_mode_and_the_links_that_lead_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "before").expect("written");
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("a mode");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        // Only an administrator may give it away.
        let _ = std::os::unix::fs::chown(&file, Some(65534), Some(65534));
        let owner = || {
            std::fs::metadata(&file)
                .map(|meta| (meta.uid(), meta.gid()))
                .expect("there")
        };
        let before = owner();
        put(&link, "after").expect("written");
        assert_eq!(owner(), before);
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
        let output = opened(&path).expect("opens");
        let count = || std::fs::read_dir(folder.path()).expect("read").count();
        assert_eq!(count(), 0);
        output.write(|out| writeln!(out, "x")).expect("written");
        assert_eq!(count(), 1);
    }

    /// The command gives up while a file is written, or before: no file gets its name, and nothing lies beside it.
    #[test]
    fn what_is_given_up_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let names = || -> Vec<OsString> {
            let entries = std::fs::read_dir(folder.path()).expect("read");
            entries
                .map(|entry| entry.expect("read").file_name())
                .collect()
        };
        for before in [None, Some("before")] {
            if let Some(before) = before {
                std::fs::write(&path, before).expect("written");
            }
            let unfinished = Unfinished::default();
            let open = || Output::open(&path, &unfinished).expect("opens");
            let (output, later) = (open(), open());
            let given_up = output.write(|out| {
                out.write_all(&[b'x'; 1 << 20])?;
                let there = names().len();
                unfinished.give_up();
                assert_eq!(names().len(), there - 1);
                Ok(())
            });
            assert!(given_up.is_err());
            assert!(later.write(|out| writeln!(out, "x")).is_err());
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), before);
            assert_eq!(names().len(), usize::from(before.is_some()));
        }
        let failed = opened(&path)
            .expect("opens")
            .write(|_| Err(io::Error::other("full")));
        assert!(failed.is_err());
        assert_eq!(names(), ["file"]);
    }

    /// The report of what others do is not shown to more people than the file that it replaces.
    #[test]
    fn a_private_file_stays_private_while_it_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "before").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
        let modes = || -> Vec<u32> {
            let entries = std::fs::read_dir(folder.path()).expect("read");
            let modes = entries.map(|entry| entry.expect("read").metadata().expect("there").mode());
            modes.map(|mode| mode & 0o777).collect()
        };
        let written = opened(&path).expect("opens").write(|_| {
            assert_eq!(modes(), [0o600, 0o600]);
            Ok(())
        });
        written.expect("written");
        assert_eq!(modes(), [0o600]);
    }

    /// A user who exchanges what leads to a file does not choose what is replaced, or given an owner.
    #[test]
    fn a_file_is_where_it_was_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path_of = |name: &str| folder.path().join(name);
        for name in ["a", "other"] {
            std::fs::create_dir(path_of(name)).expect("a folder");
        }
        for is_there in [true, false] {
            let file = if is_there { "old" } else { "new" };
            if is_there {
                std::fs::write(path_of("a").join(file), "before").expect("written");
            }
            std::fs::write(path_of("other").join(file), "another's").expect("written");
            let output = opened(&path_of("a").join(file)).expect("opens");
            std::fs::rename(path_of("a"), path_of("b")).expect("moved");
            std::os::unix::fs::symlink("other", path_of("a")).expect("a link");
            output.write(|out| writeln!(out, "x")).expect("written");
            let text =
                |folder: &str| std::fs::read_to_string(path_of(folder).join(file)).expect("read");
            assert_eq!(
                (text("b"), text("other")),
                ("x\n".into(), "another's".into())
            );
            std::fs::remove_file(path_of("a")).expect("removed");
            std::fs::rename(path_of("b"), path_of("a")).expect("moved back");
        }
    }

    #[test]
    fn a_pipe_stays_open_until_it_is_written() {
        use std::io::Read;
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
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
