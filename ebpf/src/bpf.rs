// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observes copies of any program by eBPF: calls of `process_vm_readv` and `process_vm_writev`, and what made them
//! slow. Kernel modules and onecopy's runtime report theirs.
//!
//! The kernel's programs count and report. Nothing is pinned: all that they are hangs on descriptors of this process,
//! and ends with it, however it ends.

mod attach;
mod check;
mod cost;
mod layout;
mod limit;
mod mapped;
mod privileges;
mod probe;
mod read;
mod sys;
#[cfg(test)]
mod tests;
mod translate;
mod usdt;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use aya::Ebpf;
use aya::maps::{Array, MapData, RingBuf};
use onecopy_obs::tracepoints::TracepointInfo;

use crate::job::JobProcesses;
use crate::observed::{Event, EventKind, Observed};
use attach::{Group, Link};
use layout::{Count, Record, SiteWords};
use limit::Budget;
use mapped::Files;
use probe::errno_of;
use translate::Ids;

pub use attach::sees_the_kernel;
pub use check::check;
pub use cost::{Calibration, Times, calibrate};
pub use limit::WithinLimit;
pub use probe::{Error, Probe, State};
pub use usdt::{Site, sites};

/// Records that are taken from the ring at a time: more than the ring has room for.
const RECORDS_MAX: usize = 1 << 18;

/// What is lost where its probe points are not watched.
const RUNTIME: &str = "events of onecopy's runtime";

/// How much is observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Calls, bytes, sizes and errors.
    Counts,
    /// And how long calls take.
    Latencies,
    /// And why: faults, flushes, waits for address spaces.
    #[default]
    Causes,
}

/// What to observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Only this process, and what it starts from now on or has started already. Without one, the whole node.
    pub follow: Option<u32>,
    /// Whether events of a timeline are kept for [`Collector::events`].
    pub events: bool,
    /// How much is counted.
    pub detail: Detail,
    /// How many pairs have room: 2.9 KiB of the kernel's memory each.
    pub pairs: u32,
    /// The size of the ring of events: a power of two, and at least a page.
    pub ring_bytes: u32,
    /// The function of the kernel that answers ioctls of `/dev/xpmem` where its module is not onecopy's.
    pub xpmem_ioctl: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            follow: None,
            events: false,
            detail: Detail::default(),
            pairs: 16384,
            ring_bytes: 8 << 20,
            xpmem_ioctl: attach::XPMEM_IOCTL,
        }
    }
}

/// The programs in the kernel, and what they found so far.
pub struct Collector {
    // First, so that they are detached first.
    links: Vec<Link>,
    ring: RingBuf<MapData>,
    ebpf: Ebpf,
    ids: Ids,
    started: Instant,
    budget: Budget,
    /// Those that were looked into for sites.
    files: Files,
    /// The tracepoint of each site that is watched.
    sites: Vec<&'static TracepointInfo>,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let links = self.links.len();
        f.debug_struct("Collector")
            .field("links", &links)
            .finish_non_exhaustive()
    }
}

impl Collector {
    /// Begins to observe, and says how each probe went. Measures what observing costs, by some ten thousand calls of
    /// its own at each level of detail.
    ///
    /// # Errors
    /// Not even system calls can be observed: says what is missing.
    pub fn start(options: &Options) -> Result<(Self, Vec<Probe>), Error> {
        let before = cost::measure();
        let (mut collector, mut probes) = Self::attach(options)?;
        collector.add_parts(options, before, &mut probes);
        Ok((collector, probes))
    }

    fn start_unmeasured(options: &Options) -> Result<(Self, Vec<Probe>), Error> {
        let (mut collector, mut probes) = Self::attach(options)?;
        collector.add_all(options, &mut probes);
        Ok((collector, probes))
    }

    /// Counts, and nothing more.
    fn attach(options: &Options) -> Result<(Self, Vec<Probe>), Error> {
        check::permitted(options)?;
        let (mut ebpf, has_btf) = attach::load(options)?;
        let mut probes = Vec::new();
        if !has_btf {
            probes.push(check::without_btf());
        }
        let ring = ebpf
            .take_map("ring")
            .and_then(|map| RingBuf::try_from(map).ok());
        let Some(ring) = ring else {
            return Err(Error {
                call: "mapping",
                object: "the ring of events".to_owned(),
                reason: "the kernel gave none".to_owned(),
                remedy: String::new(),
            });
        };
        let asked = |error| Error::new("asking", "the observing programs", &error);
        read::want(&mut ebpf, 0).map_err(asked)?;
        let mut links = attach::group(&mut ebpf, Group::Tasks, &mut probes);
        if let Some(root) = options.follow {
            let mut job = JobProcesses::new(Path::new("/proc"), root);
            // Twice, so that what is started meanwhile is not missed.
            for _ in 0..2 {
                for tgid in job.living() {
                    read::follow(&mut ebpf, tgid).map_err(asked)?;
                }
                job.look();
            }
            // One that ended before it was put in is not taken out by the kernel's program.
            for tgid in job.gone() {
                let _ = read::leave(&mut ebpf, tgid);
            }
        }
        links.extend(attach::group(&mut ebpf, Group::Module, &mut probes));
        links.extend(attach::ioctls(&mut ebpf, options, &mut probes));
        links.extend(attach::copies(&mut ebpf, &mut probes)?);
        let collector = Self {
            links,
            ring,
            ebpf,
            ids: Ids::new(),
            started: Instant::now(),
            budget: Budget::new(options.follow.is_some()),
            files: Files::default(),
            sites: Vec::new(),
        };
        Ok((collector, probes))
    }

    /// Watches the probe points of onecopy's runtime in a program or library, in all processes that use this file. The
    /// path of a file in a container begins with `/proc/PID/root`.
    pub fn watch_runtime(&mut self, path: &Path) -> Vec<Probe> {
        let shown = path.display().to_string();
        match usdt::opened(path) {
            Ok((_, found)) if found.is_empty() => {
                let remedy = "the file is not onecopy's, or was built without probe points";
                vec![Probe::refused(shown, libc::ENOENT, RUNTIME, remedy)]
            }
            Ok((file, found)) => {
                // Not once more where a process has it mapped.
                self.files.is_new(&file);
                self.watch_sites(&file, path, &found)
            }
            Err(reason) => vec![Probe::refused(reason, 0, RUNTIME, "")],
        }
    }

    /// The same for each of these files that has such probe points. The others are passed over, and so is what was
    /// looked into before.
    pub fn watch_files(&mut self, paths: &[PathBuf]) -> Vec<Probe> {
        let mut probes = Vec::new();
        for path in paths {
            probes.extend(self.watch_new(path, path));
        }
        probes
    }

    /// The same for the files whose code these processes have mapped: programs that the runtime was linked into, and
    /// libraries, wherever they are.
    pub fn watch_mapped(&mut self, pids: impl IntoIterator<Item = u32>) -> Vec<Probe> {
        let mut probes = Vec::new();
        if self.budget.has_events() {
            for file in pids.into_iter().flat_map(mapped::of_process) {
                probes.extend(self.watch_new(&file.path, &file.name));
            }
        }
        probes
    }

    fn watch_new(&mut self, path: &Path, name: &Path) -> Vec<Probe> {
        // The file that is read is the one that is watched: its owner may put another one there meanwhile.
        let Ok(file) = mapped::open(path) else {
            return Vec::new();
        };
        if !self.files.is_new(&file) {
            return Vec::new();
        }
        // One that is no program has none.
        let found = usdt::sites_in(&file).unwrap_or_default();
        self.watch_sites(&file, name, &found)
    }

    fn watch_sites(&mut self, file: &File, name: &Path, found: &[Site]) -> Vec<Probe> {
        let mut probes = Vec::new();
        let all = format!("probe points in {}", name.display());
        for site in found {
            let name = format!("{} in {}", site.name, name.display());
            let watched = if self.files.take_room(file) {
                self.watch_site(&mapped::path_of(file), site)
            } else {
                Err(libc::ENOSPC)
            };
            let probe = match watched {
                Ok(()) => Probe::attached(name),
                Err(errno) => {
                    // What refuses one refuses all of the file.
                    let remedy = check::uprobe_remedy(errno);
                    Probe::refused(&all, errno, RUNTIME, remedy)
                }
            };
            // The same site was inlined in several places.
            if !probes.contains(&probe) {
                probes.push(probe);
            }
        }
        probes
    }

    fn watch_site(&mut self, path: &Path, site: &Site) -> Result<(), i32> {
        let info = site.tracepoint().ok_or(libc::ENOENT)?;
        let number = u32::try_from(self.sites.len()).map_err(|_| libc::ENOSPC)?;
        let map = self.ebpf.map_mut("sites").ok_or(libc::ENOENT)?;
        let set = Array::<_, SiteWords>::try_from(map)
            .and_then(|mut map| map.set(number, site.words(), 0));
        set.map_err(|error| errno_of(&error))?;
        let link = attach::runtime(&mut self.ebpf, path, site, number);
        self.links.push(link.map_err(|error| errno_of(&error))?);
        self.sites.push(info);
        Ok(())
    }

    /// The figures since observing began.
    pub fn observe(&mut self) -> Observed {
        let mut observed = Observed {
            elapsed: self.started.elapsed(),
            ..Observed::default()
        };
        self.ids.refresh();
        read::pairs(&self.ebpf, &mut self.ids, &mut observed);
        observed.waits = read::waits(&self.ebpf);
        observed.overhead = self.budget.overhead();
        observed.overhead.events =
            read::count(&self.ebpf, Count::Events).saturating_sub(self.budget.own_events);
        observed.overhead.dropped = read::count(&self.ebpf, Count::Dropped);
        observed.overhead.not_counted = read::count(&self.ebpf, Count::NotCounted);
        observed.overhead.not_counted_by_user = read::lost(&self.ebpf);
        observed
    }

    /// The processes of the job that is followed which live now.
    #[must_use]
    pub fn followed(&self) -> Vec<u32> {
        read::followed(&self.ebpf)
    }

    /// Live processes that make calls, and those that calls name, each of the latter once: for their names, which
    /// nobody can look up later. Reads no figures.
    pub fn processes(&mut self) -> BTreeSet<u32> {
        self.ids.look();
        let callers = read::callers(&self.ebpf).into_iter();
        let callers = callers.filter(|(_, task)| task.end_ns == 0);
        let mut found: BTreeSet<u32> = callers.map(|(pid, _)| pid).collect();
        for (id, task) in read::peers(&self.ebpf) {
            found.extend(self.ids.meet(id, &task));
        }
        for wait in read::waits(&self.ebpf) {
            found.insert(wait.waiter);
            found.extend(wait.owner);
        }
        found
    }

    /// The events of the timeline since the last call. A caller that wants all of them calls often: the ring has room
    /// for a hundred thousand. Those that found none are counted in [`crate::observed::Overhead::dropped`]. Threads and
    /// ids of inner namespaces are translated as far as [`Self::processes`] or [`Self::observe`] looked them up before.
    pub fn events(&mut self) -> Vec<Event> {
        let mut records = Vec::new();
        // Not as long as there are more: callers may make them faster than they are taken.
        for _ in 0..RECORDS_MAX {
            let Some(item) = self.ring.next() else { break };
            records.extend(Record::of(&item));
        }
        let mut own = None;
        let mut events = Vec::with_capacity(records.len());
        for record in records {
            if let Record::Copy {
                caller,
                generation,
                peer,
                ..
            } = record
                && peer.pid.cast_unsigned() == std::process::id()
            {
                let seen = own.get_or_insert_with(|| read::seen(&self.ebpf));
                if read::is_own((caller, generation), peer, seen) {
                    continue;
                }
            }
            events.extend(self.event(record));
        }
        events
    }

    fn event(&self, record: Record) -> Option<Event> {
        Some(match record {
            Record::Copy {
                caller,
                peer,
                mechanism,
                tid,
                start_ns,
                duration_ns,
                asked,
                result,
                faults,
                ..
            } => Event {
                start_ns,
                duration_ns: Some(duration_ns),
                pid: caller,
                tid,
                what: EventKind::Copy {
                    mechanism,
                    peer: self.ids.known(peer, start_ns),
                    asked,
                    result,
                    faults,
                },
            },
            Record::Runtime {
                tgid,
                tid,
                site,
                start_ns,
                args,
            } => {
                let info = self.sites.get(usize::try_from(site).ok()?)?;
                Event {
                    start_ns,
                    duration_ns: None,
                    pid: tgid,
                    tid,
                    what: EventKind::Runtime {
                        name: info.name,
                        args: info
                            .numbers()
                            .filter_map(|(place, name)| Some((name, *args.get(place)?)))
                            .collect(),
                    },
                }
            }
        })
    }

    /// Measures while calls of this process on itself are observed. No figure of this collector shows them.
    fn measuring<T>(&mut self, measure: impl FnOnce() -> T) -> T {
        let before = read::count(&self.ebpf, Count::Events);
        let own = std::process::id();
        // It fails for one that is of the job anyway. Where it fails otherwise the figures are those of a process that
        // is not looked at: less.
        let added = self.budget.follows && read::follow_alone(&mut self.ebpf, own).is_ok();
        let measured = measure();
        if added {
            let _ = read::leave(&mut self.ebpf, own);
        }
        let made = read::count(&self.ebpf, Count::Events).saturating_sub(before);
        self.budget.own_events += made;
        measured
    }
}
