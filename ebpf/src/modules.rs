// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kernel modules for single copies count by themselves, of all programs of the node together: all that is seen
//! of a module where the kernel has no probe for it. Modules differ in what they count and in their words, which are
//! shown as they are.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where modules tell it, below the root.
const FILES: [(&str, &str); 2] = [("xpmem", "proc/xpmem/global_pages"), ("knem", "dev/knem")];
/// More than any of them writes.
const LONGEST: u64 = 16 << 10;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// The interface.
    pub module: String,
    /// The module's own name of it.
    pub name: String,
    /// What was added.
    pub added: u64,
}

/// The counters, as they were when observing began.
#[derive(Debug)]
pub struct Counters {
    root: PathBuf,
    before: BTreeMap<(&'static str, String), u64>,
}

impl Counters {
    /// Reads them all, below `/` or another folder of the same form.
    #[must_use]
    pub fn look(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            before: read(root),
        }
    }

    /// What was added to each since, where something was. Those of a module that came meanwhile began at zero.
    #[must_use]
    pub fn added(&self) -> Vec<Counter> {
        let added = read(&self.root)
            .into_iter()
            .filter_map(|((module, name), now)| {
                let before = self.before.get(&(module, name.clone())).unwrap_or(&0);
                // What fell counts nothing, or its module was loaded anew.
                let added = now.checked_sub(*before).filter(|&added| added > 0)?;
                let module = module.to_owned();
                Some(Counter {
                    module,
                    name,
                    added,
                })
            });
        added.collect()
    }
}

/// Nothing of what is not there, or may not be read.
fn read(root: &Path) -> BTreeMap<(&'static str, String), u64> {
    let mut found = BTreeMap::new();
    for (module, file) in FILES {
        let mut text = String::new();
        // What answers a read in another way must not be waited for.
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(root.join(file));
        if let Ok(opened) = opened {
            // What was read before an error, or before what is no text, counts.
            let _ = opened.take(LONGEST).read_to_string(&mut text);
        }
        for (name, value) in text.lines().filter_map(counter) {
            found.insert((module, name.to_owned()), value);
        }
    }
    found
}

/// A line that ends with a number, after its name and perhaps a colon. The others are of settings and versions.
fn counter(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.trim_end().rsplit_once([' ', '\t'])?;
    let name = name.trim().trim_end_matches(':').trim_end();
    let value = value.parse().ok()?;
    (!name.is_empty()).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, text).expect("written");
    }

    #[test]
    fn what_a_module_counted_is_what_was_added() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        put(
            root,
            "dev/knem",
            "module 1.2\n Driver ABI=0xd\n Requests Submitted : 7\nfailed 2\n",
        );
        let counters = Counters::look(root);
        assert_eq!(counters.added(), []);
        put(
            root,
            "dev/knem",
            "module 1.2\n Driver ABI=0xd\n Requests Submitted : 10\nfailed 1\n",
        );
        put(
            root,
            "proc/xpmem/global_pages",
            "all pages pinned by XPMEM: 12\nnone: 0\nx: -1\n: 5\n",
        );
        let counter = |module: &str, name: &str, added| Counter {
            module: module.to_owned(),
            name: name.to_owned(),
            added,
        };
        let expected = [
            counter("knem", "Requests Submitted", 3),
            counter("xpmem", "all pages pinned by XPMEM", 12),
        ];
        assert_eq!(counters.added(), expected);
    }

    #[test]
    fn a_node_without_modules_has_no_counters() {
        assert_eq!(Counters::look(Path::new("/nonexistent")).added(), []);
    }
}
