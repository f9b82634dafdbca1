// SPDX-License-Identifier: MIT OR Apache-2.0
//! What our kernel module shows of exports, pins and users: of the caller's user, or of all where it may see them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

/// The module's folder.
pub(super) const FOLDER: &str = "/proc/onecopy";

/// A segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Export {
    /// Of a process in this pid namespace; 0 of one elsewhere.
    pub(super) owner: u32,
    /// Of one that lives.
    pub(super) owner_name: Option<String>,
    pub(super) uid: u32,
    /// The owner's, of the first byte.
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// 0 of a grant by descriptor.
    pub(super) mode: u32,
    /// `alive`, `revoked` or `owner-gone`.
    pub(super) state: String,
    pub(super) attachments: Vec<Attachment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Attachment {
    /// As the owner's.
    pub(super) importer: u32,
    pub(super) importer_name: Option<String>,
    pub(super) bytes: u64,
    /// The owner's, of the first byte.
    pub(super) address: u64,
}

/// A region of KNEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Pin {
    /// As an export's.
    pub(super) owner: u32,
    pub(super) owner_name: Option<String>,
    pub(super) uid: u32,
    pub(super) pages: u64,
    pub(super) bytes: u64,
    pub(super) pieces: u64,
    /// What others may do: `r`, `w`, and `once` or `any-user`.
    pub(super) rights: String,
}

/// What a user has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) segments: u64,
    pub(super) permits: u64,
    pub(super) regions: u64,
    pub(super) workers: u64,
    pub(super) attachments: u64,
}

/// The module's lists.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ModuleLists {
    pub(super) exports: Vec<Export>,
    pub(super) pins: Vec<Pin>,
    pub(super) users: Vec<User>,
}

/// Why a list tells nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShownError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: '{text}' is not understood; the module is of another release than this command", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        text: String,
    },
}

impl ModuleLists {
    pub(super) fn read(folder: &Path) -> Result<Self, ShownError> {
        let mut shown = Self::default();
        each_line(folder, "exports", |words| shown.export(words))?;
        each_line(folder, "pins", |words| {
            shown.pins.push(pin(words)?);
            Some(())
        })?;
        each_line(folder, "users", |words| {
            shown.users.push(user(words)?);
            Some(())
        })?;
        Ok(shown)
    }

    fn export(&mut self, words: &[&str]) -> Option<()> {
        match words {
            [
                "export",
                owner,
                "uid",
                uid,
                address,
                bytes,
                "mode",
                mode,
                state,
            ] => self.exports.push(Export {
                owner: number(owner)?,
                owner_name: None,
                uid: number(uid)?,
                address: hexadecimal(address)?,
                bytes: number(bytes)?,
                mode: u32::from_str_radix(mode, 8).ok()?,
                state: (*state).to_owned(),
                attachments: Vec::new(),
            }),
            ["attached", importer, bytes, "at", address] => {
                self.exports.last_mut()?.attachments.push(Attachment {
                    importer: number(importer)?,
                    importer_name: None,
                    bytes: number(bytes)?,
                    address: hexadecimal(address)?,
                });
            }
            _ => return None,
        }
        Some(())
    }

    /// Gives processes the names that `name_of` knows. An owner that is gone or has revoked its export has none: its
    /// number may be another process's by now.
    pub(super) fn name(&mut self, name_of: &mut dyn FnMut(u32) -> Option<String>) {
        let mut known: BTreeMap<u32, Option<String>> = BTreeMap::from([(0, None)]);
        let mut name = |pid: u32| known.entry(pid).or_insert_with(|| name_of(pid)).clone();
        for export in &mut self.exports {
            if export.state == "alive" {
                export.owner_name = name(export.owner);
            }
            for attachment in &mut export.attachments {
                attachment.importer_name = name(attachment.importer);
            }
        }
        for pin in &mut self.pins {
            pin.owner_name = name(pin.owner);
        }
    }

    pub(super) fn sums(&self) -> Sums {
        let attachments = || self.exports.iter().flat_map(|export| &export.attachments);
        let bytes = |all: &mut dyn Iterator<Item = u64>| all.fold(0, u64::saturating_add);
        let alive = |export: &&Export| export.state == "alive";
        Sums {
            segments: self.exports.len(),
            alive: self.exports.iter().filter(alive).count(),
            bytes: bytes(&mut self.exports.iter().map(|export| export.bytes)),
            attachments: attachments().count(),
            attached_bytes: bytes(&mut attachments().map(|attachment| attachment.bytes)),
            regions: self.pins.len(),
            pinned_pages: bytes(&mut self.pins.iter().map(|pin| pin.pages)),
        }
    }
}

fn each_line(
    folder: &Path,
    name: &str,
    mut take: impl FnMut(&[&str]) -> Option<()>,
) -> Result<(), ShownError> {
    let path = folder.join(name);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(ShownError::Read { path, source }),
    };
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        if take(&words).is_none() {
            return Err(ShownError::Line {
                path,
                line: number + 1,
                text: line.to_owned(),
            });
        }
    }
    Ok(())
}

fn pin(words: &[&str]) -> Option<Pin> {
    let [
        "pinned",
        owner,
        "uid",
        uid,
        pages,
        bytes,
        pieces,
        rights @ ..,
    ] = words
    else {
        return None;
    };
    Some(Pin {
        owner: number(owner)?,
        owner_name: None,
        uid: number(uid)?,
        pages: number(pages)?,
        bytes: number(bytes)?,
        pieces: number(pieces)?,
        rights: rights.join(" "),
    })
}

fn user(words: &[&str]) -> Option<User> {
    let [
        "uid",
        uid,
        "segments",
        segments,
        "permits",
        permits,
        "regions",
        regions,
        "workers",
        workers,
        "attachments",
        attachments,
    ] = words
    else {
        return None;
    };
    Some(User {
        uid: number(uid)?,
        segments: number(segments)?,
        permits: number(permits)?,
        regions: number(regions)?,
        workers: number(workers)?,
        attachments: number(attachments)?,
    })
}

fn number<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// Sums of the lists of exports and pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Sums {
    segments: usize,
    /// Those whose owner still shows them.
    alive: usize,
    bytes: u64,
    attachments: usize,
    attached_bytes: u64,
    regions: usize,
    pinned_pages: u64,
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} segments ({} alive) of {} bytes, {} attachments of {} bytes; {} regions pin {} pages (onecopy info module)",
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
pub(super) mod tests {
    use super::*;

    /// Lists as the module writes them.
    pub(in super::super) fn lists() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("list");
        };
        write(
            "exports",
            "# export OWNER uid UID ADDRESS BYTES mode MODE STATE | attached IMPORTER BYTES at OWNER-ADDRESS\n\
             export 12 uid 1000 0x7f0000000000 8192 mode 0600 alive\nattached 13 4096 at 0x7f0000001000\n\
             attached 0 8192 at 0x7f0000000000\nexport 14 uid 1000 0x0 140737488351232 mode 0000 revoked\n",
        );
        write(
            "pins",
            "# pinned OWNER uid UID PAGES BYTES PIECES RIGHTS\npinned 12 uid 1000 40 163840 1 rw\npinned 12 uid 1000 2 4097 1 r- once\n",
        );
        write(
            "users",
            "# uid UID segments N permits N regions N workers N attachments N\n\
             uid 1000 segments 2 permits 1 regions 2 workers 0 attachments 2\n",
        );
        folder
    }

    #[test]
    fn the_lists_are_read_and_summed() {
        let error = ModuleLists::read(Path::new("/nowhere/at/all")).expect_err("no such folder");
        assert!(error.to_string().starts_with("/nowhere/at/all/exports: "));
        let shown = ModuleLists::read(lists().path()).expect("lists");
        let first = &shown.exports[0];
        assert_eq!((first.owner, first.mode, first.bytes), (12, 0o600, 8192));
        assert_eq!(
            first.attachments[0],
            Attachment {
                importer: 13,
                importer_name: None,
                bytes: 4096,
                address: 0x7f00_0000_1000
            }
        );
        assert_eq!(shown.pins[1].rights, "r- once");
        assert_eq!((shown.users[0].permits, shown.users[0].attachments), (1, 2));
        let sums = shown.sums();
        assert_eq!((sums.segments, sums.alive, sums.attachments), (2, 1, 2));
        assert_eq!(sums.bytes, 140_737_488_359_424);
        assert_eq!(
            (sums.attached_bytes, sums.regions, sums.pinned_pages),
            (12288, 2, 42)
        );
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        for (name, line) in [
            ("exports", "attached 13 4096 at 0x7f0000001000"),
            (
                "exports",
                "export 12 uid 1000 7f0000000000 8192 mode 0600 alive",
            ),
            (
                "exports",
                "export 12 uid 1000 0x7f0000000000 8192 mode 0900 alive",
            ),
            (
                "exports",
                "export 12 uid 1000 0x7f0000000000 8192 mode 0600 alive more",
            ),
            ("pins", "pinned 12 uid -1 40 163840 1 rw"),
            ("users", "uid 1000 segments 2 permits 1 regions 2 workers 0"),
            ("users", ""),
        ] {
            let folder = lists();
            let path = folder.path().join(name);
            std::fs::write(&path, format!("# head\n{line}\n")).expect("list");
            let error = ModuleLists::read(folder.path()).expect_err(line);
            let expected = format!("{}, line 2: '{line}' is not understood", path.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
