// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's fault injection, for the workers only, where the kernel has it.

use std::fs;
use std::path::{Path, PathBuf};

/// Points, and after how many chances each fails one.
const POINTS: &[(&str, u32)] = &[
    ("failslab", 997),
    ("fail_page_alloc", 499),
    ("fail_usercopy", 499),
    ("onecopy/fail_alloc", 101),
    ("onecopy/fail_owner_lock", 53),
    ("onecopy/fail_retry", 53),
    ("onecopy/fail_pin", 53),
];
const FOLDER: &str = "/sys/kernel/debug";

/// Switched off when it is dropped.
pub(super) struct Injection(Vec<PathBuf>);

/// Switches on what there is.
pub(super) fn start() -> Option<Injection> {
    let points: Vec<PathBuf> = POINTS
        .iter()
        .map(|(name, interval)| (Path::new(FOLDER).join(name), *interval))
        .filter(|(point, _)| point.join("probability").exists())
        .map(|(point, interval)| {
            let set = |name: &str, value: &str| {
                // Points differ in what they have; what matters is looked at by the histogram.
                let _ = fs::write(point.join(name), value);
            };
            set("task-filter", "Y");
            set("verbose", "0");
            set("ignore-gfp-wait", "N");
            set("ignore-gfp-highmem", "N");
            set("min-order", "0");
            set("times", "-1");
            set("interval", &interval.to_string());
            set("probability", "100");
            point
        })
        .collect();
    (!points.is_empty()).then_some(Injection(points))
}

impl Injection {
    /// What is switched on.
    pub(super) fn names(&self) -> String {
        let names: Vec<String> = self
            .0
            .iter()
            .map(|point| {
                point
                    .strip_prefix(FOLDER)
                    .unwrap_or(point)
                    .display()
                    .to_string()
            })
            .collect();
        names.join(", ")
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        for point in &self.0 {
            let _ = fs::write(point.join("probability"), "0");
        }
    }
}

/// Makes this task, and those that it forks, subject to it.
pub(super) fn include_self() {
    let _ = fs::write("/proc/thread-self/make-it-fail", "1");
}
