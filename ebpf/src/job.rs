// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a job that is followed: one, and all that come from it. An id alone names none of them, because
//! a process that gets it later is a stranger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::proc::{self, Stat};

/// Who is of the job.
#[derive(Debug)]
pub struct JobProcesses {
    root: PathBuf,
    first: u32,
    /// Those that live, and when each began.
    living: BTreeMap<u32, u64>,
    ended: BTreeSet<(u32, u64)>,
}

impl JobProcesses {
    /// The job of a process that lives now, in a proc file system: `/proc`, or another one of the same form.
    #[must_use]
    pub fn new(root: &Path, first: u32) -> Self {
        let mut job = Self {
            root: root.to_owned(),
            first,
            living: BTreeMap::new(),
            ended: BTreeSet::new(),
        };
        let began = Stat::read(&root.join(first.to_string()));
        let began = began.and_then(|stat| stat.start_ticks());
        job.living.extend(began.map(|began| (first, began)));
        job.look();
        job
    }

    /// Forgets the ids of those that have ended, and finds descendants of those that live.
    pub fn look(&mut self) {
        let all: BTreeMap<u32, (u32, u64)> = proc::numbers(&self.root)
            .into_iter()
            .filter_map(|pid| {
                let stat = Stat::read(&self.root.join(pid.to_string()))?;
                Some((pid, (stat.parent()?, stat.start_ticks()?)))
            })
            .collect();
        let ended = &mut self.ended;
        self.living.retain(|pid, began| {
            let lives = all.get(pid).is_some_and(|(_, now)| now == began);
            if !lives {
                ended.insert((*pid, *began));
            }
            lives
        });
        // A child may have a smaller id than its parent: until nothing is added.
        loop {
            let before = self.living.len();
            for (pid, (parent, began)) in &all {
                if self.living.contains_key(parent) {
                    self.living.entry(*pid).or_insert(*began);
                }
            }
            if self.living.len() == before {
                break;
            }
        }
    }

    /// The ids of those that live.
    pub fn living(&self) -> impl Iterator<Item = u32> {
        self.living.keys().copied()
    }

    /// The ids of those that have ended, and that no other one of the job has now.
    pub(crate) fn gone(&self) -> impl Iterator<Item = u32> {
        let ended = self.ended.iter().map(|(pid, _)| *pid);
        ended.filter(|pid| !self.living.contains_key(pid))
    }

    /// Whether a process is or was of the job. Where its beginning is not known, its id has to do.
    #[must_use]
    pub fn has(&self, pid: u32, began: Option<u64>) -> bool {
        match began {
            Some(began) => {
                self.living.get(&pid) == Some(&began) || self.ended.contains(&(pid, began))
            }
            None => pid == self.first || self.living.contains_key(&pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(root: &Path, pid: u32, parent: u32, began: u64) {
        let folder = root.join(pid.to_string());
        fs::create_dir_all(&folder).expect("a folder");
        let zeros = vec!["0"; 17].join(" ");
        fs::write(
            folder.join("stat"),
            format!("{pid} (x) S {parent} {zeros} {began} 0"),
        )
        .expect("stat");
    }

    #[test]
    fn a_later_process_of_the_same_id_is_a_stranger() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        put(root, 10, 1, 5);
        put(root, 9, 10, 6);
        put(root, 8, 9, 7);
        let mut job = JobProcesses::new(root, 10);
        assert_eq!(job.living().collect::<Vec<_>>(), [8, 9, 10]);
        // One ends, its child goes on, and a stranger gets the id and starts another one.
        put(root, 9, 1, 50);
        put(root, 8, 1, 7);
        put(root, 7, 9, 51);
        put(root, 6, 8, 52);
        job.look();
        assert_eq!(job.living().collect::<Vec<_>>(), [6, 8, 10]);
        assert_eq!(job.gone().collect::<Vec<_>>(), [9]);
        assert!(job.has(9, Some(6)) && !job.has(9, Some(50)) && !job.has(9, None));
        assert!(job.has(8, Some(7)) && job.has(6, None) && !job.has(7, Some(51)));
    }
}
