// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel has allocated, before and after.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::runner::say;
use crate::system::number;

/// Pages of a kind, and how many more are no leak: what caches and processors keep for themselves.
const PAGES: &[(&str, u64)] = &[
    ("nr_slab_unreclaimable", 1024),
    ("nr_page_table_pages", 128),
    ("nr_kernel_stack", 512),
    ("nr_anon_pages", 1024),
    ("nr_anon_transparent_hugepages", 4),
    ("nr_mlock", 0),
    ("nr_unevictable", 16),
];

/// Objects that a leak of ours would show in.
const SLABS: &[&str] = &[
    "mm_struct",
    "vm_area_struct",
    "filp",
    "task_struct",
    "anon_vma",
    "pid",
    "user_namespace",
    "cred_jar",
    "kmalloc-",
    "radix_tree_node",
    "skbuff_head_cache",
];

/// How many more address spaces are no leak: some process of the system's.
const SPACES: u64 = 24;
/// How many KiB less may be available: caches.
const AVAILABLE: u64 = 32 << 10;

/// Counts at one moment when nobody works.
pub(crate) struct Census {
    pages: BTreeMap<&'static str, u64>,
    /// Pages that are pinned by device drivers for long.
    pinned: i64,
    slabs: BTreeMap<String, u64>,
    /// Address spaces that somebody has a reference to, where the kernel tells exactly.
    spaces: Option<u64>,
    /// KiB, with the free pages that processors keep in lists of their own.
    available: u64,
    /// KiB in those lists.
    listed: u64,
}

impl Census {
    pub(crate) fn take() -> Self {
        // What is freed late: files, address spaces, callbacks.
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        std::thread::sleep(Duration::from_secs(2));
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        // What each processor counted by itself, which it tells when it finds time.
        let _ = fs::read("/proc/sys/vm/stat_refresh");
        let value = |name: &str| number("/proc/vmstat", name).unwrap_or(0);
        let listed = listed(&fs::read_to_string("/proc/zoneinfo").unwrap_or_default());
        Self {
            pages: PAGES.iter().map(|(name, _)| (*name, value(name))).collect(),
            pinned: value("nr_foll_pin_acquired") as i64 - value("nr_foll_pin_released") as i64,
            slabs: slabs(),
            spaces: spaces(),
            available: number("/proc/meminfo", "MemAvailable").unwrap_or(0) + listed,
            listed,
        }
    }

    /// What grew more than it may.
    pub(crate) fn compare(&self, after: &Self) -> Vec<String> {
        let mut problems = Vec::new();
        // A kernel that watches its memory keeps freed objects back for a while.
        let quarantine = if watches_memory() {
            number("/proc/meminfo", "MemTotal").unwrap_or(0) / 4 / 32
        } else {
            0
        };
        for (name, allowed) in PAGES {
            let (old, new) = (self.pages[name], after.pages[name]);
            let slack = if name.starts_with("nr_slab") {
                quarantine
            } else {
                0
            };
            say(&format!("  {name}: {old} before, {new} after"));
            if new > old + allowed + slack {
                problems.push(format!("{name} grew from {old} to {new} pages"));
            }
        }
        say(&format!(
            "  pinned pages: {} before, {} after",
            self.pinned, after.pinned
        ));
        if after.pinned != self.pinned {
            problems.push(format!(
                "pinned pages: {} before, {} after",
                self.pinned, after.pinned
            ));
        }
        let (old, new) = (self.available, after.available);
        say(&format!(
            "  available: {old} KiB before, {new} after; of these, processors keep {} and {}",
            self.listed, after.listed
        ));
        if new + AVAILABLE + 4 * quarantine < old {
            problems.push(format!("available memory shrank from {old} to {new} KiB"));
        }
        if quarantine > 0 {
            return problems;
        }
        if let (Some(old), Some(new)) = (self.spaces, after.spaces) {
            say(&format!("  address spaces: {old} before, {new} after"));
            if new > old + SPACES {
                problems.push(format!("address spaces grew from {old} to {new}"));
            }
        }
        for (name, new) in &after.slabs {
            let old = self.slabs.get(name).copied().unwrap_or(0);
            if *new > old + old / 4 + 2000 {
                problems.push(format!("slab {name} grew from {old} to {new} objects"));
            }
        }
        problems
    }
}

/// KiB of free pages in the lists of processors, from the text of /proc/zoneinfo.
///
/// No other count of free memory has them. Since Linux 6.7 these lists grow while much is allocated and freed, up to an
/// eighth of a zone for all its processors. They shrink again only as time passes.
fn listed(zoneinfo: &str) -> u64 {
    let pages: u64 = zoneinfo
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("count:")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .sum();
    pages * (crate::mem::page_size() as u64 / 1024)
}

/// Objects of the slab of address spaces, without those that processors keep for themselves.
fn spaces() -> Option<u64> {
    const SLAB: &str = "/sys/kernel/slab/mm_struct";
    fs::write(format!("{SLAB}/shrink"), "1").ok()?;
    let text = fs::read_to_string(format!("{SLAB}/objects")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Active objects of the slabs that matter.
fn slabs() -> BTreeMap<String, u64> {
    let text = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            let matters = SLABS.iter().any(|slab| name.starts_with(slab));
            let active = words.next()?.parse().ok()?;
            matters.then(|| (name.to_owned(), active))
        })
        .collect()
}

/// Whether the kernel was built with KASAN.
fn watches_memory() -> bool {
    fs::read_to_string("/proc/kallsyms").is_ok_and(|text| text.contains(" kasan_report"))
}
