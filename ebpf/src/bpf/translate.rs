// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose an id is that a call gave. It is an id in the caller's pid namespace, of a process or of one of its threads.
//!
//! Never a wrong name: a process is accepted only if it was there at the first call and at the last one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};

use super::layout::{LocalId, RawTask};
use crate::observed::{Peer, Task};
use crate::proc::{self, Stat, TICK_NS, field};

/// The inode of the outermost pid namespace, which is the same on every kernel.
pub(super) const INITIAL: u64 = 0xefff_fffc;

/// What the kernel's programs saw of processes.
#[derive(Default)]
pub(super) struct SeenProcesses {
    /// Those that made calls, by id and by which of several with this id.
    pub(super) callers: BTreeMap<(u32, u32), RawTask>,
    /// Those that ended and had an id that a call had given.
    pub(super) ended: HashMap<LocalId, RawTask>,
}

/// A process, when it began, and when it ended or 0.
#[derive(Clone, Copy)]
struct Life {
    tgid: u32,
    start_ns: u64,
    end_ns: u64,
}

impl Life {
    fn of(task: &RawTask) -> Self {
        Self {
            tgid: task.tgid,
            start_ns: task.start_ns,
            end_ns: task.end_ns,
        }
    }

    /// Whether it was there all the time from one moment to another.
    const fn holds(&self, (from, to): (u64, u64)) -> bool {
        self.start_ns <= from && (self.end_ns == 0 || to <= self.end_ns)
    }
}

/// Translates ids.
pub(super) struct Ids {
    /// Whether `/proc` has the node's own ids.
    outermost: bool,
    /// Live processes of inner namespaces, by their ids there: filled at most once for each look at the figures.
    inner: Option<HashMap<LocalId, u32>>,
    /// Whose an id is, and how long that process lives, for events.
    found: HashMap<LocalId, Life>,
    /// Ids that were looked up for [`Self::meet`].
    met: HashSet<LocalId>,
}

impl Ids {
    pub(super) fn new() -> Self {
        Self {
            outermost: outermost(),
            inner: None,
            found: HashMap::new(),
            met: HashSet::new(),
        }
    }

    /// Forgets what was seen of live processes.
    pub(super) fn refresh(&mut self) {
        self.inner = None;
        self.found.clear();
        self.met.clear();
    }

    /// The process that had an id all the time from the first call to the last, with its name if that is known.
    pub(super) fn resolve(
        &mut self,
        id: LocalId,
        there: (u64, u64),
        seen: &SeenProcesses,
    ) -> (Peer, Option<Task>) {
        let unknown = as_given(id);
        // Nobody ever answered to the id.
        if there.0 == 0 || id.namespace == 1 || id.pid <= 0 {
            return (unknown, nameless(unknown));
        }
        let lived = |task: &RawTask| Life::of(task).holds(there);
        if let Some(ended) = seen.ended.get(&id).filter(|task| lived(task)) {
            self.found.insert(id, Life::of(ended));
            return (Peer::Process(ended.tgid), Some(task_of(ended)));
        }
        let by_node = id.namespace == 0;
        let mut callers = seen.callers.values();
        let caller = callers.find(|task| {
            let same = if by_node {
                task.tgid == id.pid.cast_unsigned()
            } else {
                task.local == id
            };
            same && lived(task)
        });
        if let Some(caller) = caller {
            self.found.insert(id, Life::of(caller));
            return (Peer::Process(caller.tgid), Some(task_of(caller)));
        }
        match self.alive(id) {
            Some(life) if life.start_ns <= there.0 => {
                self.found.insert(id, life);
                (Peer::Process(life.tgid), described(life.tgid))
            }
            _ => (unknown, nameless(unknown)),
        }
    }

    /// Whose an id was at a time, as far as it was looked up; for events, which have no figures of their own.
    pub(super) fn known(&self, id: LocalId, time_ns: u64) -> Peer {
        let found = self
            .found
            .get(&id)
            .filter(|life| life.holds((time_ns, time_ns)));
        found.map_or_else(|| as_given(id), |life| Peer::Process(life.tgid))
    }

    /// Looks up, once, whose an id is that a call gave. It is of the process that had it and ended, or of a live one,
    /// which is returned.
    pub(super) fn meet(&mut self, id: LocalId, ended: &RawTask) -> Option<u32> {
        if ended.end_ns != 0 {
            self.found.insert(id, Life::of(ended));
            return None;
        }
        if id.namespace == 1 || id.pid <= 0 || !self.met.insert(id) {
            return None;
        }
        let life = self.alive(id)?;
        self.found.insert(id, life);
        Some(life.tgid)
    }

    /// Has live processes looked for anew.
    pub(super) fn look(&mut self) {
        self.inner = None;
    }

    /// A live process by one of its ids.
    fn alive(&mut self, id: LocalId) -> Option<Life> {
        if !self.outermost {
            return None;
        }
        let tgid = if id.namespace == 0 {
            // The file is there for threads too.
            let status = proc::text(Path::new(&format!("/proc/{}/status", id.pid)))?;
            field(&status, "Tgid:")?.parse().ok()?
        } else {
            *self.inner.get_or_insert_with(inner).get(&id)?
        };
        Some(Life {
            tgid,
            start_ns: start_ns(tgid)?,
            end_ns: 0,
        })
    }
}

/// Whether this process lives in the outermost pid namespace.
pub(super) fn outermost() -> bool {
    proc::pid_namespace(Path::new("/proc/self")) == Some(INITIAL)
}

/// A process as others know it. Its namespace is 0 where it is not known.
pub(super) fn task_of(task: &RawTask) -> Task {
    Task {
        comm: task.comm.clone(),
        namespace: match task.local.namespace {
            0 => INITIAL,
            1 => 0,
            namespace => u64::from(namespace),
        },
        local_pid: task.local.pid,
        owner: task.owner,
        started: task.started,
        ended: task.end_ns != 0,
        ..Task::default()
    }
}

/// As the call gave it. A namespace that is not known is 0.
fn as_given(id: LocalId) -> Peer {
    match id.namespace {
        0 if id.pid > 0 => Peer::Process(id.pid.cast_unsigned()),
        0 => Peer::Unknown,
        1 => Peer::InNamespace {
            namespace: 0,
            pid: id.pid,
        },
        namespace => Peer::InNamespace {
            namespace: u64::from(namespace),
            pid: id.pid,
        },
    }
}

/// A process of which nothing is known. A process that has its id now is another one.
fn nameless(peer: Peer) -> Option<Task> {
    matches!(peer, Peer::Process(_)).then(|| Task {
        ended: true,
        ..Task::default()
    })
}

/// A live process, from `/proc`.
fn described(tgid: u32) -> Option<Task> {
    let place = format!("/proc/{tgid}");
    let place = Path::new(&place);
    let comm = proc::text(&place.join("comm"))?;
    let status = proc::text(&place.join("status"))?;
    Some(Task {
        started: Stat::read(place)?.start_ticks(),
        comm: comm.trim_end_matches('\n').to_owned(),
        namespace: proc::pid_namespace(place).unwrap_or(0),
        local_pid: proc::innermost(&status).unwrap_or(0),
        owner: proc::owner(place, &status),
        ..Task::default()
    })
}

/// All threads of inner namespaces, by their ids there.
fn inner() -> HashMap<LocalId, u32> {
    let mut found = HashMap::new();
    for tgid in proc::numbers(Path::new("/proc")) {
        let place = format!("/proc/{tgid}");
        let namespace = proc::pid_namespace(Path::new(&place));
        let Some(namespace) = namespace.and_then(|inode| u32::try_from(inode).ok()) else {
            continue;
        };
        if u64::from(namespace) == INITIAL {
            continue;
        }
        for tid in proc::numbers(Path::new(&format!("{place}/task"))) {
            let status = proc::text(Path::new(&format!("{place}/task/{tid}/status")));
            if let Some(pid) = status.and_then(|status| proc::innermost(&status)) {
                found.insert(LocalId { namespace, pid }, tgid);
            }
        }
    }
    found
}

/// When a live process began, by the monotonic clock, up to a hundredth of a second early.
fn start_ns(tgid: u32) -> Option<u64> {
    let ticks = Stat::read(Path::new(&format!("/proc/{tgid}")))?.start_ticks()?;
    let now = |clock| {
        let now = clock_gettime(clock).ok()?;
        let seconds = u64::try_from(now.tv_sec()).ok()?;
        Some(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec()).ok()?)
    };
    // The file counts the time that the machine slept, too.
    let slept = now(ClockId::CLOCK_BOOTTIME)?.saturating_sub(now(ClockId::CLOCK_MONOTONIC)?);
    Some((ticks * TICK_NS).saturating_sub(slept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Owner;

    fn raw(tgid: u32, local: (u32, i32), times: (u64, u64)) -> RawTask {
        RawTask {
            start_ns: times.0,
            end_ns: times.1,
            started: None,
            tgid,
            generation: 0,
            local: LocalId {
                namespace: local.0,
                pid: local.1,
            },
            owner: Owner::default(),
            comm: format!("p{tgid}"),
        }
    }

    #[test]
    fn who_came_later_is_not_taken_for_the_peer() {
        let id = LocalId {
            namespace: 4_026_532_999,
            pid: 7,
        };
        let mut seen = SeenProcesses::default();
        seen.callers
            .insert((900, 0), raw(900, (id.namespace, 7), (500, 0)));
        let mut ids = Ids::new();
        let (peer, task) = ids.resolve(id, (600, 700), &seen);
        assert_eq!(peer, Peer::Process(900));
        assert_eq!(task.expect("known").comm, "p900");
        let (peer, task) = ids.resolve(id, (400, 700), &seen);
        assert!(matches!(peer, Peer::InNamespace { pid: 7, .. }));
        assert!(task.is_none());
        seen.ended
            .insert(id, raw(800, (id.namespace, 7), (100, 450)));
        assert_eq!(ids.resolve(id, (200, 300), &seen).0, Peer::Process(800));
        let (peer, _) = ids.resolve(id, (200, 460), &seen);
        assert!(matches!(peer, Peer::InNamespace { .. }));
    }

    #[test]
    fn an_event_is_of_who_had_the_id_then() {
        let id = LocalId {
            namespace: 4_026_532_999,
            pid: 7,
        };
        let mut ids = Ids::new();
        assert_eq!(ids.meet(id, &raw(800, (id.namespace, 7), (100, 450))), None);
        assert_eq!(ids.known(id, 400), Peer::Process(800));
        for other in [99, 451] {
            assert!(matches!(ids.known(id, other), Peer::InNamespace { .. }));
        }
    }

    #[test]
    fn a_live_process_is_found_by_a_thread_and_not_before_it_began() {
        let own = std::process::id();
        // Elsewhere it has no ids to find.
        if !outermost() {
            return;
        }
        let mut ids = Ids::new();
        let id = LocalId {
            namespace: 0,
            pid: nix::unistd::gettid().as_raw(),
        };
        let began = start_ns(own).expect("own start");
        let (peer, task) = ids.resolve(id, (began + 1, began + 2), &SeenProcesses::default());
        assert_eq!(peer, Peer::Process(own));
        assert!(!task.expect("known").comm.is_empty());
        let (_, task) = ids.resolve(id, (1, 2), &SeenProcesses::default());
        assert_eq!(task.expect("without a name").comm, "");
    }
}
