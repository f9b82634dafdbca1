// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's fault injection, for the workers only, where the kernel has it.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Points, and after how many chances each fails one. The kernel's own only below a function of the module, where it
/// tells them apart. What fails elsewhere ends a process before it gets far, and tests somebody else.
const POINTS: &[(&str, u32, bool)] = &[
    ("failslab", 31, true),
    ("fail_page_alloc", 31, true),
    ("fail_usercopy", 31, true),
    ("onecopy/fail_alloc", 101, false),
    ("onecopy/fail_owner_lock", 53, false),
    ("onecopy/fail_retry", 53, false),
    ("onecopy/fail_pin", 53, false),
];
/// How much more seldom they fail where the kernel cannot tell them apart.
const ANYWHERE: u32 = 32;
/// Callers that are looked at.
const DEPTH: &str = "24";
const FOLDER: &str = "/sys/kernel/debug";

/// Switched off when it is dropped.
pub(super) struct Injection(Vec<PathBuf>);

/// Switches on what there is.
pub(super) fn start() -> Option<Injection> {
    let text = module_text();
    let points: Vec<PathBuf> = POINTS
        .iter()
        .map(|(name, interval, foreign)| (Path::new(FOLDER).join(name), *interval, *foreign))
        .filter(|(point, ..)| point.join("probability").exists())
        .map(|(point, interval, foreign)| {
            let set = |name: &str, value: &str| {
                // Points differ in what they have; what matters is looked at by the histogram.
                let _ = fs::write(point.join(name), value);
            };
            set("task-filter", "Y");
            set("verbose", "0");
            let interval = match (foreign, &text) {
                (false, _) => {
                    set("stacktrace-depth", "0");
                    interval
                }
                (true, Some(text)) if point.join("require-start").exists() => {
                    set("stacktrace-depth", DEPTH);
                    set("require-start", &format!("{:#x}", text.start));
                    set("require-end", &format!("{:#x}", text.end));
                    interval
                }
                _ => interval * ANYWHERE,
            };
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

/// Where the module's functions lie.
fn module_text() -> Option<Range<u64>> {
    let module = Path::new("/sys/module/onecopy");
    let start = fs::read_to_string(module.join("sections/.text")).ok()?;
    let start = u64::from_str_radix(start.trim().trim_start_matches("0x"), 16).ok()?;
    let size: u64 = fs::read_to_string(module.join("coresize"))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    (start != 0).then_some(start..start + size)
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
