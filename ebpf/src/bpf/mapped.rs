// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of programs and libraries: those that processes have mapped, each looked into once.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file as it is now. One that is written anew is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

/// Which files were looked into.
#[derive(Debug, Default)]
pub(super) struct Files(HashSet<Key>);

impl Files {
    /// Whether a file is there and was not asked for before.
    pub(super) fn is_new(&mut self, path: &Path) -> bool {
        let Ok(meta) = fs::metadata(path) else {
            return false;
        };
        let key = Key {
            device: meta.dev(),
            inode: meta.ino(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        };
        meta.is_file() && self.0.insert(key)
    }
}

/// A file that a process runs code of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// By which this process opens it, whatever became of its name and whichever root the other one has.
    pub(super) path: PathBuf,
    /// As the other process knows it.
    pub(super) name: PathBuf,
}

/// The files whose code a process has mapped; none of one that has ended or may not be looked into.
pub(super) fn of_process(pid: u32) -> Vec<Mapped> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let maps = crate::proc::text(&folder.join("maps")).unwrap_or_default();
    let mut seen = HashSet::new();
    let lines = maps.lines().filter_map(code_of);
    lines
        .filter(|(_, file, _)| seen.insert(*file))
        .map(|(range, _, name)| Mapped {
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
    fn a_file_is_looked_into_once_until_it_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "x").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let mut files = Files::default();
        assert!(files.is_new(&file) && !files.is_new(&file) && !files.is_new(&link));
        let written = fs::File::options().write(true).open(&file);
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        written
            .and_then(|file| file.set_modified(later))
            .expect("a time");
        assert!(files.is_new(&link));
        assert!(!files.is_new(folder.path()), "a folder");
        assert!(!files.is_new(&folder.path().join("none")));
    }
}
