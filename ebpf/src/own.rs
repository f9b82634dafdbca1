// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observes onecopy's own ranks, by the statistics pages that they keep.
//!
//! Nothing is asked of a rank, and nothing of it is changed. Its page is found by the name of a descriptor, and read
//! where it lies. The owner of a page is not trusted (`onecopy_shm::stats::shown`). A user who may not look into the
//! descriptors of a process finds no page of it.

mod find;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Instant;

use onecopy_obs::stats::{MECHANISMS, Row, is_same};

use crate::observed::{Mechanism, Observed, PairKey, Peer, Task};
use crate::shares::Shares;
use find::{FoundPage, Key};
use onecopy_shm::stats::Head;
use onecopy_shm::stats::shown::CheckedPage;

/// The mechanisms of a row, in the order of [`MECHANISMS`]; what a rank sends itself is no copy between processes.
const BY: [Option<Mechanism>; MECHANISMS.len()] = {
    let mut by = [None; MECHANISMS.len()];
    let mut index = 1;
    while index < by.len() {
        by[index] = Some(of_layer(MECHANISMS[index]));
        index += 1;
    }
    by
};

/// The mechanism of a layer's name.
const fn of_layer(name: &str) -> Mechanism {
    let mut index = 0;
    while !is_same(Mechanism::OF_RANKS[index].name(), name) {
        index += 1;
        assert!(
            index < Mechanism::OF_RANKS.len(),
            "a layer that is no Mechanism"
        );
    }
    Mechanism::OF_RANKS[index]
}

/// Ranks that have ended, of which figures are kept.
const ENDED_MAX: u64 = 4096;
/// Pages that are mapped at a time: a user may show as many as it likes.
const PAGES_MAX: u64 = 1 << 14;
/// Bytes of them.
const BYTES_MAX: u64 = 1 << 30;

/// Rows that are kept of one page, and of all pages of one job. The pages of a user say what it likes.
const ROWS_OF_PAGE: usize = 1 << 12;
const ROWS_OF_JOB: u64 = 1 << 17;
/// And of all jobs together.
const ROWS_MAX: u64 = 1 << 20;

/// Users for whom the report says what is left out.
const USERS_SAID: usize = 16;

/// A rank, and its last figures.
#[derive(Debug)]
struct Rank {
    found: FoundPage,
    head: Head,
    /// Until the rank has ended.
    page: Option<CheckedPage>,
    /// By the rank of the peer, in order.
    rows: Vec<(u32, Row)>,
    /// Rows that found no room.
    left_out: u64,
    counters: Vec<(&'static str, u64)>,
    ended: bool,
}

/// Room for rows.
struct RowBudget {
    jobs: HashMap<(u32, u64), u64>,
    users: Shares,
}

impl RowBudget {
    fn new() -> Self {
        Self {
            jobs: HashMap::new(),
            users: Shares::new(ROWS_MAX),
        }
    }

    fn add(&mut self, job: (u32, u64), rows: u64) {
        *self.jobs.entry(job).or_default() += rows;
        self.users.add(job.0, rows);
    }

    /// Room for one more of a job of a user, if there is any.
    fn take(&mut self, job: (u32, u64)) -> bool {
        let of_job = self.jobs.get(&job).copied().unwrap_or(0);
        let has_room = of_job < ROWS_OF_JOB && self.users.has(job.0, 1);
        if has_room {
            self.add(job, 1);
        }
        has_room
    }
}

/// Finds the ranks of this node, and keeps the figures of those that have ended.
///
/// A rank reports what came into its memory, whichever side copied it. Each key has the receiver as its caller, and the
/// sender as its peer. A message counts when it has ended, by the way by which its last bytes came; a collective, once
/// for each member and way.
#[derive(Debug)]
pub struct Collector {
    since: Instant,
    ranks: BTreeMap<Key, Rank>,
    /// By user, ranks that have ended and were forgotten.
    forgotten: BTreeMap<u32, u64>,
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
            forgotten: BTreeMap::new(),
            refused: Vec::new(),
        }
    }

    /// Looks at all ranks. Figures are those since each rank began.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn observe(&mut self) -> io::Result<Observed> {
        self.observe_those(|_, _| true)
    }

    /// Looks at all ranks, and gives the figures of wanted processes. They are named by their ids and by when they
    /// began: processes may have an id one after the other.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn observe_those(
        &mut self,
        wanted: impl Fn(u32, Option<u64>) -> bool,
    ) -> io::Result<Observed> {
        self.look()?;
        self.read(|_| true);
        self.say_what_is_left_out();
        Ok(self.figures(wanted))
    }

    /// Finds ranks while they live, and takes the last figures of those that have ended.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn look(&mut self) -> io::Result<()> {
        self.refused.clear();
        let ranks = &mut self.ranks;
        ranks.values_mut().for_each(|rank| rank.ended = true);
        let (mut pages, mut bytes) = (Shares::new(PAGES_MAX), Shares::new(BYTES_MAX));
        for rank in ranks.values().filter(|rank| rank.page.is_some()) {
            pages.add(rank.found.user, 1);
            bytes.add(rank.found.user, rank.head.bytes);
        }
        let mut beyond = BTreeMap::<u32, u64>::new();
        find::each(&mut self.refused, |key, found, page| {
            if let Some(rank) = ranks.get_mut(&key).filter(|rank| rank.page.is_some()) {
                rank.ended = false;
                return;
            }
            let (head, user) = (*page.head(), found.user);
            if !pages.has(user, 1) || !bytes.has(user, head.bytes) {
                *beyond.entry(user).or_default() += 1;
                return;
            }
            pages.add(user, 1);
            bytes.add(user, head.bytes);
            // One whose numbers an ended one had takes its place.
            let rank = Rank {
                found,
                head,
                page: Some(page),
                rows: Vec::new(),
                left_out: 0,
                counters: Vec::new(),
                ended: false,
            };
            ranks.insert(key, rank);
        })?;
        for (user, beyond) in beyond.iter().take(USERS_SAID) {
            self.refused.push(format!(
                "{beyond} pages of ranks of user {user} are not looked at. There is room for {PAGES_MAX} pages and \
                 {BYTES_MAX} bytes, and none for more of this user's"
            ));
        }
        self.read(|rank| rank.ended);
        self.forget();
        Ok(())
    }

    /// Takes the figures of some ranks.
    fn read(&mut self, wanted: impl Fn(&Rank) -> bool) {
        // What has a row keeps it: otherwise figures would fall when other ranks get more.
        let mut room = RowBudget::new();
        for rank in self.ranks.values() {
            room.add(rank.job(), rank.rows.len() as u64);
        }
        for rank in self.ranks.values_mut().filter(|rank| wanted(rank)) {
            rank.read(&mut room);
        }
    }

    fn say_what_is_left_out(&mut self) {
        let mut left_out = BTreeMap::<(u32, u64), u64>::new();
        for rank in self.ranks.values().filter(|rank| rank.left_out > 0) {
            *left_out.entry(rank.job()).or_default() += rank.left_out;
        }
        for ((user, job), rows) in left_out.iter().take(USERS_SAID) {
            self.refused.push(format!(
                "{rows} rows of job {job:016x} of user {user} are left out: {ROWS_OF_PAGE} are kept of a rank, \
                 {ROWS_OF_JOB} of a job, and {ROWS_MAX} of all"
            ));
        }
    }

    /// Forgets ranks that have ended, where there are too many: first those of the user that has most of them.
    fn forget(&mut self) {
        let mut ended = Shares::new(ENDED_MAX);
        for rank in self.ranks.values().filter(|rank| rank.ended) {
            ended.add(rank.found.user, 1);
        }
        let mut surplus = BTreeMap::<u32, u64>::new();
        while let Some(user) = ended.beyond() {
            ended.give(user, 1);
            *surplus.entry(user).or_default() += 1;
        }
        for (user, surplus) in &surplus {
            *self.forgotten.entry(*user).or_default() += surplus;
        }
        self.ranks.retain(|_, rank| {
            let surplus = surplus.get_mut(&rank.found.user);
            let Some(left) = surplus.filter(|left| rank.ended && **left > 0) else {
                return true;
            };
            *left -= 1;
            false
        });
        for (user, forgotten) in self.forgotten.iter().take(USERS_SAID) {
            self.refused.push(format!(
                "{forgotten} ranks of user {user} that have ended are shown no more: {ENDED_MAX} are kept"
            ));
        }
    }

    fn figures(&self, wanted: impl Fn(u32, Option<u64>) -> bool) -> Observed {
        let mut observed = Observed {
            elapsed: self.since.elapsed(),
            ..Observed::default()
        };
        let processes = self.processes();
        let ranks = self.ranks.values();
        for rank in ranks.filter(|rank| wanted(rank.found.pid, rank.found.started)) {
            rank.add_to(&mut observed, &processes);
        }
        observed
    }

    /// The process of each rank of each job of each user. Where there were several, a living one; none where several
    /// that live say that they are it.
    fn processes(&self) -> HashMap<(u32, u64, u32), Option<u32>> {
        let mut processes = HashMap::new();
        let (living, ended): (Vec<_>, Vec<_>) = self.ranks.values().partition(|rank| !rank.ended);
        for rank in ended {
            processes.insert(rank.identity(), Some(rank.found.pid));
        }
        let mut alive = HashMap::new();
        for rank in living {
            let claimed = alive.entry(rank.identity()).or_insert(Some(rank.found.pid));
            if *claimed != Some(rank.found.pid) {
                *claimed = None;
            }
        }
        processes.extend(alive);
        processes
    }
}

impl Rank {
    /// Takes its figures. The memory of a page lives as long as it is mapped, so the last figures are never missed.
    fn read(&mut self, room: &mut RowBudget) {
        let job = self.job();
        let Some(page) = &self.page else { return };
        self.counters = page.counters().collect();
        let before = std::mem::take(&mut self.rows);
        let mut kept = before.len();
        let mut before = before.into_iter().map(|(peer, _)| peer).peekable();
        self.left_out = 0;
        for (peer, row) in page.rows().filter(|(_, row)| *row != Row::default()) {
            // A row that its owner took back.
            while before.next_if(|before| *before < peer).is_some() {}
            let had_room = before.next_if_eq(&peer).is_some();
            if had_room {
                self.rows.push((peer, row));
            } else if kept < ROWS_OF_PAGE && room.take(job) {
                kept += 1;
                self.rows.push((peer, row));
            } else {
                self.left_out += 1;
            }
        }
        if self.ended {
            self.page = None;
        }
    }

    /// User, job.
    fn job(&self) -> (u32, u64) {
        (self.found.user, self.head.job)
    }

    /// User, job, rank.
    fn identity(&self) -> (u32, u64, u32) {
        (self.found.user, self.head.job, self.head.rank)
    }

    fn add_to(&self, observed: &mut Observed, processes: &HashMap<(u32, u64, u32), Option<u32>>) {
        let (pid, head) = (self.found.pid, &self.head);
        let (rank, job) = (Some(head.rank), job(head.job));
        let task = Task {
            comm: self.found.comm.clone(),
            local_pid: head.pid.cast_signed(),
            rank,
            job: job.clone(),
            started: self.found.started,
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
            let process = processes.get(&(self.found.user, head.job, *peer));
            let process = process.copied().flatten().filter(|_| head.job != 0);
            let peer = process.map_or(Peer::Rank(*peer), Peer::Process);
            for (came, mechanism) in row.by.iter().zip(BY) {
                let Some(mechanism) = mechanism.filter(|_| came.messages > 0 || came.bytes > 0)
                else {
                    continue;
                };
                let key = PairKey {
                    caller: pid,
                    peer,
                    mechanism,
                    writes: false,
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
