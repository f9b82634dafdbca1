// SPDX-License-Identifier: MIT OR Apache-2.0
//! Room on the disks that a long task writes to. A full disk fails step after step, each for a reason that looks like
//! another one. So what lacks is said before the first step, and after a failure.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::say;

const GIB: u64 = 1 << 30;

/// A folder, and what a task adds to it.
pub(crate) struct Folder {
    /// Its name for a person.
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    /// Bytes that the task writes if there is nothing yet.
    pub(crate) bytes: u64,
    /// What it writes there late: if that exists, most is there already.
    pub(crate) late: Option<PathBuf>,
}

/// Folders of one disk.
#[derive(Debug, PartialEq, Eq)]
struct Disk {
    device: u64,
    names: Vec<&'static str>,
    /// Bytes that the task may still write.
    wanted: u64,
    /// Bytes that it can.
    free: u64,
}

/// Says of each disk that has less room than the task may take how much it lacks.
pub(crate) fn warn(folders: &[Folder]) {
    for disk in disks(folders)
        .into_iter()
        .filter(|disk| disk.free < disk.wanted)
    {
        say::warn(&disk.lack());
    }
}

/// Says of each disk that is all but full that this may be why something failed.
pub(crate) fn explain(folders: &[Folder]) {
    for disk in disks(folders).into_iter().filter(|disk| disk.free < GIB) {
        say::warn(&format!(
            "{}: the disk is all but full ({} MiB are free), which may be why",
            disk.names.join(", "),
            disk.free >> 20
        ));
    }
}

impl Disk {
    fn lack(&self) -> String {
        format!(
            "{}: {:.1} GiB are free there, and up to {:.1} GiB may be written; make room, or set CARGO_TARGET_DIR, \
             XDG_CACHE_HOME or TMPDIR to another disk",
            self.names.join(", "),
            self.free as f64 / GIB as f64,
            self.wanted as f64 / GIB as f64
        )
    }

    /// One more folder of this disk, or a disk of its own.
    fn gather(disks: &mut Vec<Self>, name: &'static str, wanted: u64, device: u64, free: u64) {
        if let Some(disk) = disks.iter_mut().find(|disk| disk.device == device) {
            disk.names.push(name);
            disk.wanted += wanted;
        } else {
            disks.push(Self {
                device,
                names: vec![name],
                wanted,
                free,
            });
        }
    }
}

/// The disks of the folders. One that nothing can be learned of is left out: a task fails there soon enough.
fn disks(folders: &[Folder]) -> Vec<Disk> {
    let mut disks = Vec::new();
    for folder in folders {
        // What an earlier run has written is written anew in part.
        let wanted = if folder.late.as_ref().is_some_and(|late| late.exists()) {
            folder.bytes / 4
        } else {
            folder.bytes
        };
        let there = folder.path.ancestors().find(|path| path.exists());
        if let Some((device, free)) = there.and_then(room) {
            Disk::gather(&mut disks, folder.name, wanted, device, free);
        }
    }
    disks
}

/// The device of a path, and the bytes that are free there.
fn room(path: &Path) -> Option<(u64, u64)> {
    let device = path.metadata().ok()?.dev();
    let disk = nix::sys::statvfs::statvfs(path).ok()?;
    // File systems without a limit say that they have no blocks at all.
    let limited = disk.blocks() > 0;
    limited.then(|| {
        (
            device,
            disk.blocks_available().saturating_mul(disk.fragment_size()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_disk_share_its_room() {
        let mut disks = Vec::new();
        Disk::gather(&mut disks, "target", 8 * GIB, 1, 9 * GIB);
        Disk::gather(&mut disks, "cache", 2 * GIB, 1, 9 * GIB);
        Disk::gather(&mut disks, "other", GIB, 2, 3 * GIB);
        assert_eq!(disks.len(), 2);
        let lacks: Vec<_> = disks.iter().map(|disk| disk.free < disk.wanted).collect();
        assert_eq!(lacks, [true, false]);
        let text = disks[0].lack();
        assert!(
            text.starts_with("target, cache: 9.0 GiB are free there, and up to 10.0 GiB"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_there_yet_lies_where_its_parent_does() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = |name, path: PathBuf, late| Folder {
            name,
            late: Some(path.join(late)),
            path,
            bytes: 400,
        };
        std::fs::write(place.path().join("late"), "").expect("a file");
        let found = disks(&[
            folder("there", place.path().to_owned(), "late"),
            folder("begun", place.path().to_owned(), "never"),
            folder("not yet", place.path().join("a/b"), "late"),
        ]);
        let [disk] = found.as_slice() else {
            panic!("one disk: {found:?}")
        };
        assert_eq!((disk.wanted, disk.names.len()), (100 + 400 + 400, 3));
    }
}
