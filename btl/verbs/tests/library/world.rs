// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds libibverbs in software, and reads what its world says. Included by tests, beside `limit`.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Read as _;
use std::path::{Path, PathBuf};

#[path = "../../../../tests/harness/c_library.rs"]
mod c_library;

/// What its world says, in the order of `enum count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) offences: u64,
    pub(crate) initiators: u64,
    pub(crate) targets: u64,
    pub(crate) connections: u64,
    pub(crate) most_initiators: u64,
    pub(crate) most_targets: u64,
    pub(crate) most_connections: u64,
    pub(crate) xrc_sends: u64,
    pub(crate) xrc_reads: u64,
    pub(crate) opened_targets: u64,
    pub(crate) pinned: u64,
}

/// Why there is no such library: it is built with the C header.
pub(crate) fn missing() -> Option<&'static str> {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    (!header.exists()).then_some("no /usr/include/infiniband/verbs.h (Debian: libibverbs-dev)")
}

/// A library, and a world of its devices.
#[derive(Debug)]
pub(crate) struct World {
    folder: PathBuf,
}

impl World {
    /// In a folder of its own, which is there.
    pub(crate) fn new(folder: &Path) -> Self {
        let source = c_library::folder_of(file!()).join("libibverbs.c");
        c_library::build(&source, folder, "libibverbs.so.1");
        Self {
            folder: folder.to_owned(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("world")
    }

    /// The environment of a process that has its devices.
    pub(crate) fn env(&self) -> [(&'static str, String); 2] {
        let text = |path: &Path| path.to_str().expect("a path of text").to_owned();
        [
            ("LD_LIBRARY_PATH", text(&self.folder)),
            ("MODEL_VERBS", text(&self.file())),
        ]
    }

    /// What it says. What no correct program does ends the test.
    pub(crate) fn counts(&self) -> Counts {
        // The whole of it is long, and mostly a hole.
        let mut bytes = [0; 8 * 16 + 256];
        let file = std::fs::File::open(self.file());
        file.and_then(|mut file| file.read_exact(&mut bytes))
            .expect("a world");
        let word = |index: usize| {
            let word = bytes[8 * index..].first_chunk().expect("a word");
            u64::from_ne_bytes(*word)
        };
        let text = &bytes[8 * 16..8 * 16 + 256];
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        assert_eq!(word(0), 0, "{}", String::from_utf8_lossy(text));
        Counts {
            offences: word(0),
            initiators: word(1),
            targets: word(2),
            connections: word(3),
            most_initiators: word(4),
            most_targets: word(5),
            most_connections: word(6),
            xrc_sends: word(7),
            xrc_reads: word(8),
            opened_targets: word(9),
            pinned: word(10),
        }
    }
}
