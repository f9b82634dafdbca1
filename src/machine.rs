// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the runtime sees of the machine: read from /proc and /sys, and asked of the kernel by using it.

use crate::wireup::own_processors;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use onecopy_shm::doorbell::{Doorbell, SleepOutcome};
use onecopy_shm::layout::Geometry;
use onecopy_shm::segment::OwnSegment;
use onecopy_shm::sync::HeavyFence;
use serde::Serialize;
use std::fs;
use std::io::Read;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A last-level cache and the processors that share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Its size as the kernel writes it.
    pub size: String,
    /// The processors, as the kernel writes a list.
    pub processors: String,
}

/// A node of memory and its processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub node: usize,
    /// Its processors, as the kernel writes a list.
    pub processors: String,
}

/// The result of a call of the kernel when it was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ability {
    /// What was asked.
    pub name: &'static str,
    /// Whether it works.
    pub works: bool,
    /// What was seen.
    pub seen: String,
    /// What it means if it does not work.
    pub otherwise: &'static str,
}

/// The machine as the runtime sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Kernel release.
    pub kernel: String,
    /// Architecture.
    pub architecture: &'static str,
    /// Processors that are switched on, as the kernel writes a list.
    pub online: String,
    /// Processors that this process may run on.
    pub affinity: Vec<u16>,
    /// Processors' worth of time that the control group grants; none for no limit.
    pub quota: Option<f32>,
    /// Ranks that may start here and still poll: more are oversubscribed.
    pub polling_ranks: usize,
    /// Nodes of memory.
    pub nodes: Vec<Node>,
    /// Last-level caches.
    pub caches: Vec<Cache>,
    /// Bytes of a page.
    pub page_size: u64,
    /// Sizes of huge pages that the kernel offers, in KiB.
    pub huge_page_kib: Vec<u64>,
    /// Setting of transparent huge pages for shared memory.
    pub huge_shared: String,
    /// Setting of transparent huge pages for private memory.
    pub huge_private: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that the kernel calls available.
    pub available: u64,
    /// Yama's ptrace_scope, if Yama is there.
    pub ptrace_scope: Option<u8>,
    /// The pid namespace's and the user namespace's inode number.
    pub namespaces: (u64, u64),
    /// What the kernel offers.
    pub abilities: Vec<Ability>,
}

#[doc(hidden)]
pub fn read(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

#[doc(hidden)]
pub fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// The word in brackets.
#[doc(hidden)]
pub fn setting(path: &str) -> String {
    let text = read(path);
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or_else(|| "not offered".to_owned(), |(chosen, _)| chosen.to_owned())
}

/// The numbers behind `prefix` in the names of a directory's entries, ascending.
fn numbered(directory: &str, prefix: &str, suffix: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
            digits.parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Processor model of this machine.
#[must_use]
pub fn processor() -> String {
    let cpuinfo = first_processor();
    ["model name", "Model", "cpu"]
        .iter()
        .find_map(|name| field(cpuinfo, name))
        .unwrap_or_else(|| format!("unknown {}", std::env::consts::ARCH))
}

/// What tells processors of one name apart.
pub(crate) fn stepping() -> Vec<Option<String>> {
    let cpuinfo = first_processor();
    let names = ["vendor_id", "cpu family", "model", "stepping", "CPU part"];
    names.iter().map(|name| field(cpuinfo, name)).collect()
}

/// What the kernel says of one processor: it says as much of each of hundreds. A job's start asks for it several times,
/// and the kernel writes it anew for each reader.
fn first_processor() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = Vec::new();
        let read =
            fs::File::open("/proc/cpuinfo").map(|file| file.take(8 << 10).read_to_end(&mut text));
        drop(read);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Kernel release of this machine.
#[must_use]
pub fn kernel() -> String {
    read("/proc/sys/kernel/osrelease")
}

/// Processors that are switched on, as the kernel writes a list.
#[must_use]
pub fn online() -> String {
    read("/sys/devices/system/cpu/online")
}

/// Processors that this process may run on, first those that are different cores, then their siblings.
#[must_use]
pub fn spread_processors() -> Vec<u16> {
    let mut cores = Vec::new();
    let (first, second): (Vec<_>, Vec<_>) = own_processors().into_iter().partition(|cpu| {
        let core = read(&format!(
            "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        ));
        let new = core.is_empty() || !cores.contains(&core);
        cores.push(core);
        new
    });
    first.into_iter().chain(second).collect()
}

/// Has this thread run on any processor that the system grants to this process, also where a launcher has bound it to
/// some.
pub(crate) fn unbind_thread() {
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::count() {
        // Within the set's own bounds.
        let _ = all.set(cpu);
    }
    // The kernel leaves out what the control group does not grant. A thread that stays where it was measures nothing.
    let _ = sched_setaffinity(Pid::from_raw(0), &all);
}

/// The processors that the system grants to this process, by cores as [`spread_processors`], whatever this thread is
/// bound to.
#[must_use]
pub fn all_processors() -> Vec<u16> {
    let own = spread_processors();
    if own.len() > 1 {
        return own;
    }
    // Only a thread that may end can be unbound to see.
    std::thread::Builder::new()
        .spawn(|| {
            unbind_thread();
            spread_processors()
        })
        .ok()
        .and_then(|thread| thread.join().ok())
        .unwrap_or(own)
}

#[doc(hidden)]
pub fn caches(processors: &[u16]) -> Vec<Cache> {
    let mut caches = Vec::new();
    for cpu in processors {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
        let last = numbered(&folder, "index", "")
            .into_iter()
            .max_by_key(|index| read(&format!("{folder}/index{index}/level")));
        if let Some(index) = last {
            let cache = Cache {
                size: read(&format!("{folder}/index{index}/size")),
                processors: read(&format!("{folder}/index{index}/shared_cpu_list")),
            };
            if !caches.contains(&cache) {
                caches.push(cache);
            }
        }
    }
    caches
}

fn abilities() -> Vec<Ability> {
    let fence = HeavyFence::register();
    let yes = |works| if works { "works" } else { "refused" }.to_owned();
    let pidfd = onecopy_shm::process::pidfd_open(Pid::this());
    let doorbell = Doorbell::default();
    doorbell.arm();
    let slept = doorbell.sleep(Duration::from_micros(100));
    let segment = segment();
    vec![
        Ability {
            name: "memfd with seals",
            works: segment.is_ok(),
            seen: segment.err().unwrap_or_else(|| yes(true)),
            otherwise: "no rank can start",
        },
        Ability {
            name: "membarrier",
            works: fence.is_expedited(),
            seen: yes(fence.is_expedited()),
            otherwise: "senders use a full fence for each message",
        },
        Ability {
            name: "futex",
            works: slept != SleepOutcome::Refused,
            seen: yes(slept != SleepOutcome::Refused),
            otherwise: "waits that would sleep look again every 50 us",
        },
        Ability {
            name: "pidfd_open",
            works: pidfd.is_ok(),
            seen: pidfd.map_or_else(|error| error.to_string(), |_| yes(true)),
            otherwise: "deaths are known when the launcher tells of them",
        },
    ]
}

/// Makes a segment and looks at it as a peer would.
#[doc(hidden)]
pub fn segment() -> Result<(), String> {
    let geometry = Geometry {
        ranks: 1,
        ring_slots: 32,
        chunk_bytes: 4096,
        chunks: 1,
        heap_bytes: 0,
        coll_channels: 0,
    };
    let text = |error: onecopy_shm::segment::SegmentError| error.to_string();
    let fence = HeavyFence::without_membarrier();
    let own = OwnSegment::create(0, geometry, fence, 1).map_err(text)?;
    let fd = own.fd().try_clone_to_owned().map_err(|e| e.to_string())?;
    let mut peer = onecopy_shm::segment::PeerSegment::open(fd, 0, 0, &geometry).map_err(text)?;
    onecopy_btl::link::prove_segment(&mut peer, false).map_err(|refusal| refusal.to_string())
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub fn here() -> Self {
        let affinity = own_processors();
        let quota = Some(quota()).filter(|&cpus| cpus > 0.0);
        let supply = quota.map_or(affinity.len() as f64, |cpus| {
            f64::from(cpus).min(affinity.len() as f64)
        });
        let memory = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024);
        let card = crate::wireup::Card::of_this_process();
        Self {
            processor: processor(),
            kernel: kernel(),
            architecture: std::env::consts::ARCH,
            online: online(),
            quota,
            polling_ranks: supply as usize,
            nodes: numbered("/sys/devices/system/node", "node", "")
                .into_iter()
                .map(|node| Node {
                    node: node as usize,
                    processors: read(&format!("/sys/devices/system/node/node{node}/cpulist")),
                })
                .collect(),
            caches: caches(&affinity),
            page_size: nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
                .ok()
                .flatten()
                .map_or(0, |bytes| bytes as u64),
            huge_page_kib: numbered("/sys/kernel/mm/hugepages", "hugepages-", "kB"),
            huge_shared: setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            huge_private: setting("/sys/kernel/mm/transparent_hugepage/enabled"),
            memory,
            available: onecopy_shm::segment::available_memory(),
            ptrace_scope: onecopy_btl::yama::ptrace_scope(),
            namespaces: (card.pid_ns, card.user_ns),
            abilities: abilities(),
            affinity,
        }
    }
}

/// Today in UTC, as 2026-11-21.
#[must_use]
pub fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    date(now.map_or(0, |now| now.as_secs() / 86_400))
}

/// The civil date of a day counted from 1970-01-01.
fn date(days: u64) -> String {
    let days_of = |year: u64| {
        let leap =
            (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
        365 + u64::from(leap)
    };
    let (mut year, mut day) = (1970, days);
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let lengths = [
        31,
        days_of(year) - 337,
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, day + 1)
}

/// Processors that this process's control group grants it; 0 for no limit.
pub(crate) fn quota() -> f32 {
    let read = |path: &str| fs::read_to_string(path).ok();
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let path = own
        .lines()
        .find_map(|l| l.strip_prefix("0::"))
        .unwrap_or("/")
        .to_owned();
    let mut best = 0.0f32;
    let mut folder = std::path::PathBuf::from(format!("/sys/fs/cgroup{path}"));
    loop {
        if let Some(text) = read(&folder.join("cpu.max").to_string_lossy()) {
            let mut words = text.split_whitespace();
            if let (Some(Ok(max)), Some(Ok(period))) = (
                words.next().map(str::parse::<f32>),
                words.next().map(str::parse::<f32>),
            ) {
                let cpus = max / period.max(1.0);
                best = if best == 0.0 { cpus } else { best.min(cpus) };
            }
        }
        if !folder.pop() || folder == std::path::Path::new("/sys/fs") {
            return best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_778), "2026-11-21");
        assert_eq!(date(20_818), "2026-12-31");
    }

    #[test]
    fn this_machine_is_seen() {
        let machine = Machine::here();
        assert!(!machine.affinity.is_empty() && machine.polling_ranks <= machine.affinity.len());
        assert!(machine.memory > 0 && machine.page_size >= 4096);
        assert!(!machine.kernel.is_empty() && !machine.processor.is_empty());
        assert_eq!(machine.abilities.len(), 4);
    }

    #[test]
    fn processors_are_spread_without_loss() {
        let mut spread = spread_processors();
        spread.sort_unstable();
        assert_eq!(spread, own_processors());
    }
}
