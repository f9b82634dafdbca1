// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a result depends on and a reader must know: the machine's fingerprint.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine's fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Last-level cache of the first processor, as the kernel writes it.
    pub last_level_cache: String,
    /// Kernel release.
    pub kernel: String,
    /// Architecture.
    pub architecture: String,
    /// Whether the kernel runs under a hypervisor.
    pub virtual_machine: bool,
    /// Memory in MiB.
    pub memory_mib: usize,
    /// Setting of transparent huge pages for anonymous memory.
    pub huge_pages: String,
    /// Version of onecopy.
    pub onecopy: String,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

fn kibibytes(name: &str) -> usize {
    field(&read("/proc/meminfo"), name)
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Bytes that could be used now without swapping.
#[must_use]
pub fn available_bytes() -> usize {
    kibibytes("MemAvailable") << 10
}

/// Processors of this process's affinity mask that are different cores, as far as the kernel tells, and after those the rest.
#[must_use]
pub fn processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else {
        return Vec::new();
    };
    let allowed: Vec<usize> = (0..CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect();
    let mut cores = Vec::new();
    let (first, second): (Vec<_>, Vec<_>) = allowed.into_iter().partition(|cpu| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let core = read(&path);
        let new = core.is_empty() || !cores.contains(&core);
        cores.push(core);
        new
    });
    first.into_iter().chain(second).collect()
}

impl Machine {
    /// The machine that this runs on.
    #[must_use]
    pub fn here() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let setting = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = setting
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or("off", |(chosen, _)| chosen);
        let cache = (0..8)
            .rev()
            .map(|index| {
                read(&format!(
                    "/sys/devices/system/cpu/cpu0/cache/index{index}/size"
                ))
            })
            .find(|size| !size.is_empty())
            .unwrap_or_default();
        Self {
            processor: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            processors: processors().len(),
            last_level_cache: cache.trim().to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_mib: kibibytes("MemTotal") >> 10,
            huge_pages: chosen.to_owned(),
            onecopy: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} processors{}, {} MiB, Linux {}",
            self.processor,
            self.processors,
            if self.virtual_machine {
                " (virtual machine)"
            } else {
                ""
            },
            self.memory_mib,
            self.kernel
        )
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
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, day + 1)
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
    fn this_machine_has_a_fingerprint() {
        let machine = Machine::here();
        assert!(machine.processors >= 1);
        assert!(machine.memory_mib > 0);
        assert!(!machine.kernel.is_empty());
    }
}
