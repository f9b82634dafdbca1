// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of programs and libraries: those that processes have mapped, each looked into once.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Probe points that are watched in files of one owner, root apart: nobody's files shut out those of others. Those of
/// some programs: each takes two descriptors, and the kernel some ten milliseconds to give it up.
const SITES_OF_OWNER: usize = 128;

/// Opens a file that may be anybody's: nothing of its owner's is waited for. What becomes of the path is of no matter
/// from here on.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("no regular file"));
    }
    Ok(file)
}

/// A path of this file and no other, for as long as it is open.
pub(super) fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Which files were looked into: by device and inode, as the kernel watches them. And how much room for probe points
/// their owners have taken.
#[derive(Debug, Default)]
pub(super) struct Files {
    seen: HashSet<(u64, u64)>,
    taken: HashMap<u32, usize>,
}

impl Files {
    /// Whether it was not asked for before.
    pub(super) fn is_new(&mut self, file: &File) -> bool {
        file.metadata()
            .is_ok_and(|meta| self.seen.insert((meta.dev(), meta.ino())))
    }

    /// Takes room for a probe point in it. False: its owner has no more.
    pub(super) fn take_room(&mut self, file: &File) -> bool {
        let Ok(meta) = file.metadata() else {
            return false;
        };
        let taken = self.taken.entry(meta.uid()).or_default();
        *taken += 1;
        meta.uid() == 0 || *taken <= SITES_OF_OWNER
    }
}

/// A file that a process runs code of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedFile {
    /// By which this process opens it, whatever became of its name and whichever root the other one has.
    pub(super) path: PathBuf,
    /// As the other process knows it.
    pub(super) name: PathBuf,
}

/// The files whose code a process has mapped; none of one that has ended or may not be looked into.
pub(super) fn of_process(pid: u32) -> Vec<MappedFile> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let maps = crate::proc::text(&folder.join("maps")).unwrap_or_default();
    let mut seen = HashSet::new();
    let lines = maps.lines().filter_map(code_of);
    lines
        .filter(|(_, file, _)| seen.insert(*file))
        .map(|(range, _, name)| MappedFile {
            path: folder.join("map_files").join(range),
            name: PathBuf::from(name),
        })
        .collect()
}

/// Of a line of `maps`: the range, device and inode, and the name, if it is code of a file.
fn code_of(line: &str) -> Option<(&str, (&str, &str), &str)> {
    let mut words = line.splitn(6, ' ');
    let (range, permissions, _) = (words.next()?, words.next()?, words.next()?);
    let (device, inode) = (words.next()?, words.next()?);
    let name = words.next()?.trim_start();
    let is_code = permissions.as_bytes().get(2) == Some(&b'x');
    (is_code && inode != "0" && name.starts_with('/')).then_some((range, (device, inode), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_counts() {
        let line = "7f00-7f01 r-xp 00001000 fe:00 42                         /a b (deleted)";
        assert_eq!(
            code_of(line),
            Some(("7f00-7f01", ("fe:00", "42"), "/a b (deleted)"))
        );
        for other in [
            &line.replace("r-xp", "r--p"),
            "7f00-7f01 r-xp 00000000 00:00 0                          [vdso]",
            "7f00-7f01 r-xp 00000000 00:00 0 ",
            "7f00-7f01",
            "",
        ] {
            assert_eq!(code_of(other), None, "{other}");
        }
    }

    #[test]
    fn the_program_itself_is_among_what_it_has_mapped() {
        let own = std::env::current_exe().expect("own path");
        let mapped = of_process(std::process::id());
        assert!(mapped.iter().any(|file| file.name == own), "{mapped:?}");
    }

    #[test]
    fn a_file_is_looked_into_once_by_whatever_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&path, "x").expect("written");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let [file, same] = [&path, &link].map(|path| open(path).expect("a file"));
        let mut files = Files::default();
        assert!(files.is_new(&file) && !files.is_new(&file) && !files.is_new(&same));
        for other in ["", "none"] {
            assert!(open(&folder.path().join(other)).is_err(), "{other}");
        }
    }

    #[test]
    fn what_is_opened_stays_whatever_becomes_of_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        std::fs::write(&path, "this").expect("written");
        std::fs::write(&other, "that").expect("written");
        let file = open(&path).expect("a file");
        std::fs::rename(&other, &path).expect("renamed");
        let text = std::fs::read_to_string(path_of(&file)).expect("read");
        assert_eq!(text, "this");
    }

    #[test]
    fn the_probe_points_of_one_owner_have_an_end() {
        let folder = tempfile::tempdir().expect("a folder");
        // Where nobody else's file can be made, that of this user has to do.
        let is_root = nix::unistd::geteuid().is_root();
        let owned = |name: &str, owner: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, "x").expect("written");
            if is_root {
                std::os::unix::fs::chown(&path, Some(owner), None).expect("given away");
            }
            open(&path).expect("a file")
        };
        let (first, second) = (owned("first", 1001), owned("second", 1001));
        let mut files = Files::default();
        for number in 0..SITES_OF_OWNER {
            let file = [&first, &second][number % 2];
            assert!(files.take_room(file), "{number}");
        }
        assert!(!files.take_room(&first) && !files.take_room(&second));
        if is_root {
            assert!(files.take_room(&owned("other", 1002)));
            // Programs of the system are everybody's.
            let system = owned("system", 0);
            assert!((0..=SITES_OF_OWNER).all(|_| files.take_room(&system)));
        }
    }

    #[test]
    fn a_fifo_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.expect("mkfifo").success());
        assert!(open(&fifo).is_err());
    }
}
