// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a proc file system says of a process. A command's name may hold any bytes, so texts are read with losses.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use crate::observed::Owner;

/// Times in `stat` are in hundredths of a second, on x86-64 and arm64.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// More than the longest list of a process's mappings.
const TEXT_MAX: u64 = 16 << 20;
/// Of a process's variables: it may say that they are all of its memory, and need none for that.
const ENVIRONMENT_MAX: u64 = 1 << 20;

/// The text of a file, or as much as is sensible; none if it cannot be read.
#[must_use]
pub fn text(path: &Path) -> Option<String> {
    let bytes = bytes_at_most(path, TEXT_MAX)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The variables with which the process with this folder began its program.
pub(crate) fn environment(folder: &Path) -> Option<Vec<u8>> {
    bytes_at_most(&folder.join("environ"), ENVIRONMENT_MAX)
}

fn bytes_at_most(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// What stands behind a name in `status`.
#[must_use]
pub fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// The id of a process or thread in its own pid namespace, from its `status`.
pub(crate) fn innermost<T: FromStr>(status: &str) -> Option<T> {
    let ids = field(status, "NSpid:")?;
    ids.split_ascii_whitespace().next_back()?.parse().ok()
}

/// The inode of the pid namespace of the process with this folder.
pub(crate) fn pid_namespace(folder: &Path) -> Option<u64> {
    namespace(folder, "pid")
}

/// The inode of a namespace, by its kind.
fn namespace(folder: &Path, kind: &str) -> Option<u64> {
    let link = fs::read_link(folder.join("ns").join(kind)).ok()?;
    let number = link.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?;
    number.strip_suffix(']')?.parse().ok()
}

/// Whose the process with this folder is; `status` is the text of its file.
pub(crate) fn owner(folder: &Path, status: &str) -> Owner {
    let user = field(status, "Uid:").and_then(|ids| ids.split_ascii_whitespace().next());
    Owner {
        user: user.and_then(|user| user.parse().ok()),
        namespace: namespace(folder, "user"),
    }
}

/// The entries of a folder that are numbers: processes of `/proc`, threads of a process.
#[must_use]
pub fn numbers(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// A process's `stat`.
#[derive(Debug)]
pub struct Stat {
    /// Its command's name.
    pub comm: String,
    rest: String,
}

impl Stat {
    /// That of the process with this folder.
    #[must_use]
    pub fn read(folder: &Path) -> Option<Self> {
        Self::of(&text(&folder.join("stat"))?)
    }

    fn of(text: &str) -> Option<Self> {
        // A name may hold brackets and blanks.
        let (front, rest) = text.rsplit_once(") ")?;
        let (_, comm) = front.split_once(" (")?;
        Some(Self {
            comm: comm.to_owned(),
            rest: rest.to_owned(),
        })
    }

    /// A number, by its place in proc(5), which counts from 1.
    pub(crate) fn number(&self, place: usize) -> Option<u64> {
        let mut words = self.rest.split_ascii_whitespace();
        words.nth(place.checked_sub(3)?)?.parse().ok()
    }

    /// Whether its main thread has ended, and nobody has waited for it.
    pub(crate) fn has_ended(&self) -> bool {
        self.rest.starts_with(['Z', 'X'])
    }

    /// The process that started it.
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        u32::try_from(self.number(4)?).ok()
    }

    /// When it began, in ticks since the machine did.
    #[must_use]
    pub fn start_ticks(&self) -> Option<u64> {
        self.number(22)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_id_counts() {
        let id = |status| innermost::<u32>(status);
        assert_eq!(id("Name:\tx\nNSpid:\t4026\t17\t1\nFDSize:\t64\n"), Some(1));
        assert_eq!(id("Name:\tNSpid:\nNSpid:\t4026\n"), Some(4026));
        assert_eq!(id("Name:\tx\n"), None);
    }

    #[test]
    fn of_what_a_process_says_only_so_much_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = fs::File::create(folder.path().join("environ")).expect("a file");
        file.set_len(1 << 40).expect("a hole");
        let read = environment(folder.path()).expect("read");
        assert_eq!(read.len() as u64, ENVIRONMENT_MAX);
    }

    #[test]
    fn a_stat_is_read_whatever_the_name() {
        let stat = Stat::of("7 (a) (b) S 1 7 7\n").expect("a stat");
        assert_eq!(stat.comm, "a) (b");
        assert_eq!((stat.number(4), stat.number(6)), (Some(1), Some(7)));
        assert_eq!((stat.number(3), stat.number(9)), (None, None));
        let own = Stat::read(Path::new("/proc/self")).expect("own");
        assert!(own.start_ticks().is_some());
    }
}
