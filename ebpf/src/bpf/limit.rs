// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the cost of observing below a share of the observed programs' processor time, by giving up detail.

use std::collections::BTreeMap;
use std::time::Instant;

use super::attach::Group;
use super::layout::{Count, WANT_EVENTS, WANT_LATENCY};
use super::{Calibration, Collector, cost, read};
use crate::observed::Overhead;

/// What was given up, in the order in which it goes.
const EVENTS: &str = "events of the timeline";
const CAUSES: &str = "page faults, flushes and waits";
const LATENCIES: &str = "latencies";

/// What observing costs, and what was given up for it.
pub(super) struct Budget {
    pub(super) calibration: Calibration,
    /// Events that measuring itself made.
    pub(super) own_events: u64,
    pub(super) follows: bool,
    given_up: Vec<String>,
    /// At the last look: when, events, processor time of each caller.
    last: Option<(Instant, u64, BTreeMap<u32, u64>)>,
}

impl Budget {
    pub(super) fn new(follows: bool) -> Self {
        Self {
            calibration: Calibration::default(),
            own_events: 0,
            follows,
            given_up: Vec::new(),
            last: None,
        }
    }

    pub(super) fn overhead(&self) -> Overhead {
        Overhead {
            ns_per_event: self.calibration.ns_per_event(),
            ns_per_other_call: self.calibration.ns_per_other_call(),
            given_up: self.given_up.clone(),
            ..Overhead::default()
        }
    }
}

impl Collector {
    /// Compares the cost of the events since the last call with the processor time that the callers used, and gives up
    /// the next detail if it is more than `percent` of it. Returns what was given up now. The first call only looks.
    pub fn limit(&mut self, percent: f64) -> Option<String> {
        let now = Instant::now();
        let events = read::count(&self.ebpf, Count::Events).saturating_sub(self.budget.own_events);
        let callers = read::seen(&self.ebpf).callers;
        let times: BTreeMap<u32, u64> = callers
            .keys()
            .filter(|(pid, _)| *pid != std::process::id())
            .filter_map(|(pid, _)| Some((*pid, cost::process_ns(*pid)?)))
            .collect();
        let before = self.budget.last.replace((now, events, times.clone()));
        let (then, events_before, times_before) = before?;
        let mut used = 0;
        for (pid, time) in &times {
            used += time.saturating_sub(times_before.get(pid).copied().unwrap_or(0));
        }
        let share = share(
            events.saturating_sub(events_before),
            self.budget.calibration.ns_per_event(),
            used,
            now.duration_since(then).as_nanos(),
        );
        (share * 100.0 > percent).then(|| self.give_up())?
    }

    /// Gives up the next detail.
    fn give_up(&mut self) -> Option<String> {
        let what = if self.wants & WANT_EVENTS != 0 {
            self.wants &= !WANT_EVENTS;
            self.links.retain(|link| link.group != Group::Runtime);
            EVENTS
        } else if self.links.iter().any(|link| link.group == Group::Causes) {
            self.links.retain(|link| link.group != Group::Causes);
            CAUSES
        } else if self.wants & WANT_LATENCY != 0 {
            self.wants &= !WANT_LATENCY;
            LATENCIES
        } else {
            return None;
        };
        // Refused only if the map is gone, and then nothing is counted any more.
        let _ = read::want(&mut self.ebpf, self.wants);
        self.budget.calibration.after = self.measure_self();
        self.budget.given_up.push(what.to_owned());
        Some(what.to_owned())
    }
}

/// The cost of events as a share of the time used. Where that is too short to be known, the time that passed counts.
#[expect(clippy::cast_precision_loss, reason = "a share is no better")]
fn share(events: u64, ns_per_event: f64, used_ns: u64, passed_ns: u128) -> f64 {
    let used = if used_ns == 0 {
        passed_ns as f64
    } else {
        used_ns as f64
    };
    events as f64 * ns_per_event / used.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_used() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(share(1000, 500.0, 10_000_000, 1), 0.05));
        assert!(near(share(1000, 500.0, 0, 1_000_000), 0.5));
        assert!(near(share(0, 500.0, 0, 0), 0.0));
    }
}
