// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's fault injection, for those processes only that ask for it, where the kernel has it.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::outcome::{Fault, Outcome};

/// Points, and after how many chances each fails one. The kernel's own only below a function of the module, so only
/// where the kernel tells them apart. What fails elsewhere ends a process before it gets far, and tests somebody else.
const POINTS: &[(&str, u32, bool)] = &[
    ("failslab", 31, true),
    ("fail_page_alloc", 31, true),
    ("fail_usercopy", 31, true),
    ("onecopy/fail_alloc", 101, false),
    ("onecopy/fail_owner_lock", 53, false),
    ("onecopy/fail_retry", 53, false),
    ("onecopy/fail_pin", 53, false),
];
/// Callers that are looked at.
const DEPTH: &str = "24";
const FOLDER: &str = "/sys/kernel/debug";
/// How much more seldom the kernel's points fail where a program ends when its calls fail. It is often enough that most
/// meet it, and seldom enough that many get beyond their first calls.
pub(crate) const SELDOM: u32 = 4;
/// How many a point may fail: it counts down from there, so that it can be asked how many it did.
const ALLOWED: u64 = 1 << 30;

/// Switched off when it is dropped.
pub(crate) struct Injection(Vec<&'static str>);

/// Switches on what there is; the kernel's own points so many times more seldom.
pub(crate) fn start(seldom: u32) -> Option<Injection> {
    let text = module_text();
    let mut points = Vec::new();
    for &(name, interval, foreign) in POINTS {
        let point = place(name);
        let known = point.join("probability").exists();
        let distinguished = text.is_some() && point.join("require-start").exists();
        if !known || foreign && !distinguished {
            continue;
        }
        let set = |name: &str, value: &str| {
            // Points differ in what they have; what matters is looked at by the counts.
            let _ = fs::write(point.join(name), value);
        };
        set("task-filter", "Y");
        set("verbose", "0");
        let mut interval = interval;
        match &text {
            Some(text) if foreign => {
                interval *= seldom;
                set("stacktrace-depth", DEPTH);
                set("require-start", &format!("{:#x}", text.start));
                set("require-end", &format!("{:#x}", text.end));
            }
            _ => set("stacktrace-depth", "0"),
        }
        set("ignore-gfp-wait", "N");
        set("ignore-gfp-highmem", "N");
        set("min-order", "0");
        set("times", &ALLOWED.to_string());
        set("interval", &interval.to_string());
        set("probability", "100");
        points.push(name);
    }
    (!points.is_empty()).then_some(Injection(points))
}

/// The same, where it has to be there.
pub(crate) fn demand(seldom: u32) -> Outcome<Injection> {
    start(seldom).ok_or_else(|| Fault::Fail("this kernel has no fault injection".to_owned()))
}

fn place(point: &str) -> PathBuf {
    Path::new(FOLDER).join(point)
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
    pub(crate) fn names(&self) -> String {
        self.0.join(", ")
    }

    /// How often each point failed so far.
    fn failed(&self) -> Vec<(&'static str, u64)> {
        let left = |point: &str| {
            let text = fs::read_to_string(place(point).join("times")).ok()?;
            text.trim().parse::<u64>().ok()
        };
        self.0
            .iter()
            .map(|point| {
                (
                    *point,
                    left(point).map_or(0, |left| ALLOWED.saturating_sub(left)),
                )
            })
            .collect()
    }

    /// Switches it off, and says how often each point failed. What is wrong with that: that none did, or where enough
    /// was done for `all`, that one did not.
    pub(crate) fn end(self, all: bool, say: impl Fn(&str)) -> Vec<String> {
        let failed = self.failed();
        let sum: u64 = failed.iter().map(|(_, count)| count).sum();
        for (point, count) in &failed {
            say(&format!("  {count:9} failed by {point}"));
        }
        say(&format!("fault injection: {sum} failed"));
        if sum == 0 {
            return vec!["fault injection failed nothing".to_owned()];
        }
        failed
            .iter()
            .filter(|(_, count)| all && *count == 0)
            .map(|(point, _)| format!("fault injection: {point} failed nothing"))
            .collect()
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        for point in &self.0 {
            let _ = fs::write(place(point).join("probability"), "0");
        }
    }
}

/// Makes this task, and those that it forks, subject to it.
pub(crate) fn include_self() {
    let _ = fs::write("/proc/thread-self/make-it-fail", "1");
}
