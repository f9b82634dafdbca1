// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observes onecopy's own ranks, by the pages of statistics that they keep.
//!
//! Nothing is asked of a rank, and nothing of it is changed: its page is found by the name of a descriptor, and read
//! where it lies. The owner of a page is not trusted (`onecopy_shm::stats::shown`). Who may not look into the
//! descriptors of a process finds no page of it.

mod find;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Instant;

use onecopy_obs::stats::{MECHANISMS, Row};

use crate::observed::{Mechanism, Observed, PairKey, Peer, Task};
use find::{Found, Key};

/// The mechanisms of a row, in the order of [`MECHANISMS`]; what a rank sends itself is no copy between processes.
const BY: [Option<Mechanism>; MECHANISMS.len()] = [
    None,
    Some(Mechanism::Heap),
    Some(Mechanism::Xpmem),
    Some(Mechanism::Cma),
    Some(Mechanism::Knem),
    Some(Mechanism::Cico),
    Some(Mechanism::Verbs),
    Some(Mechanism::Tcp),
];

/// A rank, and its last figures.
#[derive(Debug)]
struct Rank {
    found: Found,
    rows: Vec<(u32, Row)>,
    counters: Vec<(&'static str, u64)>,
    ended: bool,
}

/// Finds the ranks of this node, and keeps the figures of those that have ended.
///
/// A rank says what it received: each key has the receiver as its caller, and the sender as its peer. A message counts
/// when it has ended, by the way by which its last bytes came.
#[derive(Debug)]
pub struct Collector {
    since: Instant,
    ranks: BTreeMap<Key, Rank>,
    /// Files with the name of such a page that the last look found and could not use: which, and why.
    pub refused: Vec<String>,
}

impl Default for Collector {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector {
    /// One that has found nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            since: Instant::now(),
            ranks: BTreeMap::new(),
            refused: Vec::new(),
        }
    }

    /// Looks at all ranks. Figures are those since each rank began.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn observe(&mut self) -> io::Result<Observed> {
        self.refused.clear();
        let ranks = &mut self.ranks;
        ranks.values_mut().for_each(|rank| rank.ended = true);
        find::each(&mut self.refused, |key, found| {
            let rank = ranks.entry(key).or_insert_with(|| Rank {
                found,
                rows: Vec::new(),
                counters: Vec::new(),
                ended: false,
            });
            rank.ended = false;
        })?;
        for rank in ranks.values_mut() {
            rank.read();
        }
        Ok(self.figures())
    }

    fn figures(&self) -> Observed {
        let mut observed = Observed {
            elapsed: self.since.elapsed(),
            ..Observed::default()
        };
        let processes = self.processes();
        for rank in self.ranks.values() {
            rank.tell(&mut observed, &processes);
        }
        observed
    }

    /// The process of each rank of each job. Where there were several, a living one.
    fn processes(&self) -> HashMap<(u64, u32), u32> {
        let mut processes = HashMap::new();
        let (living, ended): (Vec<_>, Vec<_>) = self.ranks.values().partition(|rank| !rank.ended);
        for rank in ended.into_iter().chain(living) {
            let head = rank.found.page.head();
            processes.insert((head.job, head.rank), rank.found.pid);
        }
        processes
    }
}

impl Rank {
    /// Takes its figures. The memory of a page lives as long as it is mapped, so the last figures are never missed.
    fn read(&mut self) {
        let page = &self.found.page;
        self.counters = page.counters().collect();
        self.rows = page
            .rows()
            .filter(|(_, row)| *row != Row::default())
            .collect();
    }

    fn tell(&self, observed: &mut Observed, processes: &HashMap<(u64, u32), u32>) {
        let (pid, head) = (self.found.pid, self.found.page.head());
        let (rank, job) = (Some(head.rank), job(head.job));
        let task = Task {
            comm: self.found.comm.clone(),
            local_pid: head.pid.cast_signed(),
            rank,
            job: job.clone(),
            ended: self.ended,
            ..Task::default()
        };
        let task = observed.tasks.entry(pid).or_insert(task);
        // Of a process with several ranks no figure is one rank's.
        if (task.rank, &task.job) != (rank, &job) {
            task.rank = None;
        }
        task.ended &= self.ended;
        let counters = observed.counters.entry(pid).or_default();
        if counters.is_empty() {
            counters.clone_from(&self.counters);
        } else {
            for ((_, sum), (_, value)) in counters.iter_mut().zip(&self.counters) {
                *sum = sum.saturating_add(*value);
            }
        }
        for (peer, row) in &self.rows {
            let process = processes.get(&(head.job, *peer)).filter(|_| head.job != 0);
            let peer = process.map_or(Peer::Rank(*peer), |pid| Peer::Process(*pid));
            for (came, mechanism) in row.by.iter().zip(BY) {
                let Some(mechanism) = mechanism.filter(|_| came.messages > 0 || came.bytes > 0)
                else {
                    continue;
                };
                let key = PairKey {
                    caller: pid,
                    peer,
                    mechanism,
                };
                let pair = observed.pairs.entry(key).or_default();
                pair.calls = pair.calls.saturating_add(came.messages);
                pair.bytes = pair.bytes.saturating_add(came.bytes);
            }
        }
    }
}

/// The name of a job; a job that has no number has none.
fn job(number: u64) -> Option<String> {
    (number != 0).then(|| format!("{number:016x}"))
}

#[cfg(test)]
mod tests;
