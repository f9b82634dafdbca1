// SPDX-License-Identifier: MIT OR Apache-2.0
//! What our kernel module shows of exports and pins: of the caller's user, or of all where it may see them.

use std::fmt;
use std::path::Path;

use serde::Serialize;

/// The module's folder.
const FOLDER: &str = "/proc/onecopy";

/// Sums of its lists.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    segments: u64,
    /// Those whose owner still shows them.
    alive: u64,
    bytes: u64,
    attachments: u64,
    attached_bytes: u64,
    regions: u64,
    pinned_pages: u64,
}

/// None without the module.
pub(super) fn shown() -> Option<Shown> {
    read(Path::new(FOLDER))
}

fn read(folder: &Path) -> Option<Shown> {
    let list = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    sum(&list("exports")?, &list("pins")?)
}

fn sum(exports: &str, pins: &str) -> Option<Shown> {
    let mut shown = Shown::default();
    for line in exports.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["export", _, "uid", _, _, bytes, "mode", _, state] => {
                shown.segments += 1;
                shown.alive += u64::from(*state == "alive");
                shown.bytes = shown.bytes.saturating_add(bytes.parse().ok()?);
            }
            ["attached", _, bytes, "at", _] => {
                shown.attachments += 1;
                shown.attached_bytes = shown.attached_bytes.saturating_add(bytes.parse().ok()?);
            }
            _ => {}
        }
    }
    for line in pins.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["pinned", _, "uid", _, pages, ..] = words.as_slice() {
            shown.regions += 1;
            shown.pinned_pages += pages.parse::<u64>().ok()?;
        }
    }
    Some(shown)
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} segments ({} alive) of {} bytes, {} attachments of {} bytes; {} regions pin {} pages ({FOLDER})",
            self.segments,
            self.alive,
            self.bytes,
            self.attachments,
            self.attached_bytes,
            self.regions,
            self.pinned_pages
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_summed() {
        assert_eq!(read(Path::new("/nowhere/at/all")), None);
        let shown = sum(
            "# export OWNER uid UID ADDRESS BYTES mode MODE STATE | attached IMPORTER BYTES at OWNER-ADDRESS\n\
             export 12 uid 1000 0x7f0000000000 8192 mode 0600 alive\nattached 13 4096 at 0x7f0000001000\n\
             attached 0 8192 at 0x7f0000000000\nexport 14 uid 1000 0x0 140737488351232 mode 0000 revoked\n",
            "# pinned OWNER uid UID PAGES BYTES PIECES RIGHTS\npinned 12 uid 1000 40 163840 1 rw\npinned 12 uid 1000 2 4097 1 r- once\n",
        )
        .expect("lists");
        assert_eq!((shown.segments, shown.alive, shown.attachments), (2, 1, 2));
        assert_eq!(shown.bytes, 140_737_488_359_424);
        assert_eq!(
            (shown.attached_bytes, shown.regions, shown.pinned_pages),
            (12288, 2, 42)
        );
    }
}
