// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kernel modules for single copies count by themselves, of all programs of the node together. Nothing else is
//! seen of a module where the kernel has no probe for it. Modules differ in what they count and in their words,
//! which are shown as they are.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A file in which a module tells it.
#[derive(Debug)]
struct CounterFile {
    module: &'static str,
    /// Below the root.
    file: &'static str,
    /// Whether it may be held open. An open device keeps its module loaded.
    is_held: bool,
}

const FILES: [CounterFile; 2] = [
    CounterFile {
        module: "xpmem",
        file: "proc/xpmem/global_pages",
        is_held: true,
    },
    CounterFile {
        module: "knem",
        file: "dev/knem",
        is_held: false,
    },
];
/// More than any of them writes.
const LONGEST: u64 = 16 << 10;
/// How many looks pass by what was not there.
const PASSED: u32 = 15;

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
    /// The files that are held open.
    held: [Option<File>; FILES.len()],
    /// Of each file, how many looks pass by it yet.
    passed: [u32; FILES.len()],
}

impl Counters {
    /// Reads them all, below `/` or another folder of the same form.
    #[must_use]
    pub fn look(root: &Path) -> Self {
        let mut counters = Self {
            root: root.to_owned(),
            before: BTreeMap::new(),
            held: FILES.map(|_| None),
            passed: [0; FILES.len()],
        };
        counters.before = counters.read();
        // A collector that asks once has what came meanwhile.
        counters.passed = [0; FILES.len()];
        counters
    }

    /// What was added to each since, where something was. Those of a module that came meanwhile began at zero. Where
    /// there was none at the last look, it is looked for seldom.
    #[must_use]
    pub fn added(&mut self) -> Vec<Counter> {
        let added = self.read().into_iter().filter_map(|((module, name), now)| {
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

    /// Nothing of what is not there, or may not be read.
    fn read(&mut self) -> BTreeMap<(&'static str, String), u64> {
        let mut found = BTreeMap::new();
        let state = self.held.iter_mut().zip(&mut self.passed);
        for (entry, (held, passed)) in FILES.iter().zip(state) {
            if *passed > 0 {
                *passed -= 1;
                continue;
            }
            // One whose module went can be read no more; another one may have come.
            let text = held.as_ref().and_then(text).or_else(|| {
                *held = None;
                let file = open(&self.root.join(entry.file))?;
                let text = text(&file);
                *held = Some(file).filter(|_| entry.is_held && text.is_some());
                text
            });
            let Some(text) = text else {
                *passed = PASSED;
                continue;
            };
            for (name, value) in text.lines().filter_map(counter) {
                found.insert((entry.module, name.to_owned()), value);
            }
        }
        found
    }
}

fn open(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    // What answers a read in another way must not be waited for.
    options.custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).ok()
}

/// What a file tells now, from its start; none if nothing. What was read before an error counts.
fn text(mut file: &File) -> Option<String> {
    let mut bytes = Vec::new();
    // A device that has just been opened is there, and may not be one that seeks.
    let _ = file.rewind();
    let _ = file.take(LONGEST).read_to_end(&mut bytes);
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
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
        // There, and without numbers yet.
        put(root, XPMEM, "version\n");
        let mut counters = Counters::look(root);
        assert_eq!(counters.added(), []);
        put(
            root,
            "dev/knem",
            "module 1.2\n Driver ABI=0xd\n Requests Submitted : 10\nfailed 1\n",
        );
        put(
            root,
            XPMEM,
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

    const XPMEM: &str = "proc/xpmem/global_pages";

    fn values(counters: &mut Counters) -> Vec<u64> {
        let added = counters.added();
        added.iter().map(|counter| counter.added).collect()
    }

    #[test]
    fn a_module_that_is_not_there_is_looked_for_seldom() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let mut counters = Counters::look(root);
        // One question gets all.
        put(root, XPMEM, "pages 1\n");
        assert_eq!(values(&mut counters), [1]);
        put(root, "dev/knem", "copies 4\n");
        for look in 0..PASSED {
            assert_eq!(values(&mut counters), [1], "{look}");
        }
        assert_eq!(values(&mut counters), [4, 1]);
        put(root, "dev/knem", "copies 5\n");
        assert_eq!(values(&mut counters), [5, 1]);
    }

    #[test]
    fn a_file_is_opened_once_and_a_device_is_not_held() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        for file in [XPMEM, "dev/knem"] {
            put(root, file, "pages 1\n");
        }
        let mut counters = Counters::look(root);
        for file in [XPMEM, "dev/knem"] {
            put(root, "new", "pages 8\n");
            std::fs::rename(root.join("new"), root.join(file)).expect("replaced");
        }
        let added = counters.added();
        assert_eq!(added.len(), 1, "{added:?}");
        assert_eq!((added[0].module.as_str(), added[0].added), ("knem", 7));
        // It tells nothing any more: the next one is opened.
        let held = counters.held[0].as_ref().expect("held");
        let held = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(held));
        let held = OpenOptions::new().write(true).open(held).expect("opened");
        held.set_len(0).expect("emptied");
        assert_eq!(values(&mut counters), [7, 7]);
    }

    #[test]
    fn a_node_without_modules_has_no_counters() {
        assert_eq!(Counters::look(Path::new("/nonexistent")).added(), []);
    }
}
