// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that come, go, hang and get killed: places, each with one process at a time.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::outcome::{Fault, Outcome};
use crate::{peer, system};

/// How long an idle worker is left alone, and how long one that was killed may take to go.
const STALL: Duration = Duration::from_secs(4);
const BURIAL: Duration = Duration::from_secs(60);

/// A worker's place: who works there now.
struct Slot {
    pid: Option<Pid>,
    incarnation: u64,
    progress: u64,
    since: Instant,
    /// Set when it was told to go by force.
    killed: Option<Instant>,
}

/// How workers ended.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) by_themselves: u64,
    pub(crate) killed: u64,
    pub(crate) stalled: u64,
    /// By SIGKILL, which nobody here sent: the kernel found no memory for them.
    pub(crate) starved: u64,
    /// With an error for want of memory, where fault injection takes it away.
    pub(crate) short: u64,
    /// By a signal that nobody sent, or with a failure.
    pub(crate) crashed: Vec<String>,
}

/// All places.
pub(crate) struct Crew {
    slots: Vec<Slot>,
    pub(crate) ends: Ends,
    patience: u32,
    injecting: bool,
}

impl Crew {
    /// So many places. What was killed may take so many times longer to go. Where faults are injected, an error for
    /// want of memory is no crash.
    pub(crate) fn new(places: usize, patience: u32, injecting: bool) -> Self {
        let empty = |_| Slot {
            pid: None,
            incarnation: 0,
            progress: 0,
            since: Instant::now(),
            killed: None,
        };
        Self {
            slots: (0..places).map(empty).collect(),
            ends: Ends::default(),
            patience: patience.max(1),
            injecting,
        }
    }

    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Whether nobody works there.
    pub(crate) fn is_vacant(&self, place: usize) -> bool {
        self.slots[place].pid.is_none()
    }

    /// Lets a process work at a vacant place; it is told the how manieth it is there.
    pub(crate) fn hire(&mut self, place: usize, work: impl FnOnce(u64) -> Outcome) -> Outcome {
        let slot = &mut self.slots[place];
        slot.incarnation += 1;
        let incarnation = slot.incarnation;
        let pid = peer::fork_plain(|| work(incarnation))?;
        slot.pid = Some(pid);
        slot.since = Instant::now();
        slot.killed = None;
        Ok(())
    }

    pub(crate) fn kill(&mut self, place: usize) {
        let slot = &mut self.slots[place];
        if let (Some(pid), None) = (slot.pid, slot.killed) {
            let _ = kill(pid, Signal::SIGKILL);
            slot.killed = Some(Instant::now());
            self.ends.killed += 1;
        }
    }

    /// Kills a worker that waits for something that does not come. Complains of one that does not
    /// go.
    pub(crate) fn watch(&mut self, progress: impl Fn(usize) -> u64) -> Outcome {
        for place in 0..self.slots.len() {
            let now = progress(place);
            let slot = &mut self.slots[place];
            if now != slot.progress {
                slot.progress = now;
                slot.since = Instant::now();
            }
            let stalled = slot.since.elapsed() > STALL && slot.killed.is_none();
            if let (Some(pid), Some(since)) = (slot.pid, slot.killed)
                && since.elapsed() > BURIAL * self.patience
            {
                return Err(Fault::Fail(format!(
                    "cannot be killed: {pid} {}",
                    system::where_is(pid)
                )));
            }
            if stalled && slot.pid.is_some() {
                self.ends.stalled += 1;
                self.kill(place);
            }
        }
        Ok(())
    }

    pub(crate) fn reap(&mut self) {
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let mut short = false;
            let (pid, end) = match status {
                WaitStatus::Exited(pid, peer::SHORT) if self.injecting => {
                    short = true;
                    (pid, None)
                }
                WaitStatus::Exited(pid, code) => {
                    (pid, (code != 0).then(|| format!("exit status {code}")))
                }
                WaitStatus::Signaled(pid, Signal::SIGKILL, _) => {
                    let starved = |slot: &&Slot| slot.pid == Some(pid) && slot.killed.is_none();
                    self.ends.starved += self.slots.iter().filter(starved).count() as u64;
                    (pid, None)
                }
                WaitStatus::Signaled(pid, signal, _) => (pid, Some(signal.to_string())),
                WaitStatus::StillAlive => break,
                _ => continue,
            };
            // Others are children of workers, which come here when the worker has gone.
            let Some(place) = self.slots.iter().position(|slot| slot.pid == Some(pid)) else {
                continue;
            };
            let slot = &mut self.slots[place];
            slot.pid = None;
            let incarnation = slot.incarnation;
            match end {
                None if short => self.ends.short += 1,
                None if slot.killed.is_none() => self.ends.by_themselves += 1,
                None => {}
                Some(signal) => self.ends.crashed.push(format!(
                    "worker {place}, incarnation {incarnation}: {signal}"
                )),
            }
        }
    }

    /// Ends all workers. They have been asked to go; in the end they go by force.
    pub(crate) fn end_all(&mut self) -> Outcome {
        let begin = Instant::now();
        loop {
            self.reap();
            let children = system::children();
            if children.is_empty() {
                for slot in &mut self.slots {
                    slot.pid = None;
                }
                return Ok(());
            }
            if begin.elapsed() > STALL {
                for pid in &children {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
                for slot in &mut self.slots {
                    slot.killed = slot.killed.or(Some(begin));
                }
            }
            if begin.elapsed() > BURIAL * self.patience {
                let places: Vec<String> = children
                    .iter()
                    .map(|pid| format!("{pid} {}", system::where_is(*pid)))
                    .collect();
                return Err(Fault::Fail(format!(
                    "cannot be killed: {}",
                    places.join("; ")
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A line on how they ended, and what of it is wrong.
    pub(crate) fn summary(&self) -> (String, Vec<String>) {
        let ends = &self.ends;
        let line = format!(
            "workers: {} ended by themselves, {} were killed, {} of them waiting, {} ended for want of memory, {} crashed",
            ends.by_themselves,
            ends.killed,
            ends.stalled,
            ends.short,
            ends.crashed.len()
        );
        (line, ends.crashed.iter().take(5).cloned().collect())
    }
}
