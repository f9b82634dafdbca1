// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds statistics pages among the descriptors of all processes.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use onecopy_shm::stats::NAME;
use onecopy_shm::stats::shown::CheckedPage;

use crate::proc::{self, Stat};

/// Files that are refused by name in one look; further ones are only counted.
const SAID: usize = 32;
/// Pages of one process that are looked at: ranks may be threads, but nobody has so many.
const PAGES: usize = 256;

/// Which page: of which process, and which file. Neither number is used again while the page is mapped here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) pid: u32,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// A page, and whose it is.
#[derive(Debug)]
pub(super) struct FoundPage {
    /// The process, as this tool's namespace numbers it.
    pub(super) pid: u32,
    /// When it began, in ticks as `/proc` says it.
    pub(super) started: Option<u64>,
    /// Its command's name.
    pub(super) comm: String,
    /// The user that made the page.
    pub(super) user: u32,
}

/// Passes each page of each process to `take`. What is refused is added to `refused`.
pub(super) fn each(
    refused: &mut Vec<String>,
    mut take: impl FnMut(Key, FoundPage, CheckedPage),
) -> io::Result<()> {
    let mut more = 0_usize;
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        of_process(&entry.path(), pid, &mut take, &mut |why| {
            if refused.len() < SAID {
                refused.push(why);
            } else {
                more += 1;
            }
        });
    }
    if more > 0 {
        refused.push(format!("and {more} more"));
    }
    Ok(())
}

/// Those of one process. One that ends meanwhile, or may not be looked into, has none.
fn of_process(
    place: &Path,
    pid: u32,
    take: &mut impl FnMut(Key, FoundPage, CheckedPage),
    refuse: &mut impl FnMut(String),
) {
    let target = format!("/memfd:{NAME} (deleted)");
    let descriptors = fs::read_dir(place.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    let named = descriptors
        .map(|entry| entry.path())
        .filter(|path| fs::read_link(path).is_ok_and(|link| link.as_os_str() == target.as_str()));
    let mut seen = Vec::new();
    for path in named.take(PAGES) {
        let opened = OpenOptions::new()
            .read(true)
            // Another file with this name may be one that waits.
            .custom_flags(libc::O_NONBLOCK)
            .open(&path);
        let Ok(file) = opened else { continue };
        let Ok(meta) = file.metadata() else { continue };
        let key = Key {
            pid,
            device: meta.dev(),
            inode: meta.ino(),
        };
        // A second descriptor of the same file.
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        match CheckedPage::of(&file) {
            Ok(page) if is_of(place, page.head().pid) => {
                let comm = proc::text(&place.join("comm")).unwrap_or_default();
                let comm = comm.trim_end().to_owned();
                let user = meta.uid();
                let started = Stat::read(place).and_then(|stat| stat.start_ticks());
                let found = FoundPage {
                    pid,
                    started,
                    comm,
                    user,
                };
                take(key, found, page);
            }
            // A child of a rank's process has its descriptors, but is no rank.
            Ok(_) => {}
            Err(unfit) => {
                refuse(format!(
                    "process {pid} has a file {NAME} that is of no use here: {unfit}"
                ));
            }
        }
    }
}

/// Whether a process numbers itself so, in its own pid namespace.
fn is_of(place: &Path, number: u32) -> bool {
    let status = proc::text(&place.join("status")).unwrap_or_default();
    proc::innermost(&status) == Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_numbers_itself_by_its_own_id() {
        assert!(is_of(Path::new("/proc/self"), std::process::id()));
    }
}
