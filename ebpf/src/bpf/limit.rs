// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the cost of observing below a share of the observed programs' processor time, by giving up detail.

use std::collections::BTreeMap;
use std::time::Instant;

use super::attach::Group;
use super::cost::{self, Costs, Times};
use super::layout::{Count, WANT_EVENTS, WANT_LATENCY};
use super::{Collector, Detail, Options, Probe, attach, read};
use crate::observed::Overhead;

/// What is given up together. The last one that is there goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionalPart {
    Latencies,
    Causes,
    Events,
}

impl OptionalPart {
    const fn name(self) -> &'static str {
        match self {
            Self::Latencies => "latencies",
            Self::Causes => "page faults, flushes and waits",
            Self::Events => "events of the timeline",
        }
    }

    /// Whether somebody wants it.
    fn is_in(self, options: &Options) -> bool {
        match self {
            Self::Latencies => options.detail >= Detail::Latencies,
            Self::Causes => options.detail >= Detail::Causes,
            Self::Events => options.events,
        }
    }
}

/// What observing costs, and what was given up for it.
pub(super) struct Budget {
    costs: Costs,
    ns_per_other_call: f64,
    /// Events that measuring itself made.
    pub(super) own_events: u64,
    pub(super) follows: bool,
    parts: Vec<OptionalPart>,
    given_up: Vec<OptionalPart>,
    /// At the last look.
    last: Option<CallSample>,
}

/// Whether observing takes no more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithinLimit {
    /// As far as is known.
    Yes,
    /// It took more: this detail was given up for it.
    GaveUp(&'static str),
    /// There is nothing left to give up: counts stay.
    No,
}

/// What callers did until now.
struct CallSample {
    when: Instant,
    events: u64,
    /// Processor time of each of them, in nanoseconds.
    used: BTreeMap<u32, u64>,
}

impl Budget {
    pub(super) fn new(follows: bool) -> Self {
        Self {
            costs: Costs::of(0.0, &[]),
            ns_per_other_call: 0.0,
            own_events: 0,
            follows,
            parts: Vec::new(),
            given_up: Vec::new(),
            last: None,
        }
    }

    /// Whether events of the timeline are kept, still.
    pub(super) fn has_events(&self) -> bool {
        self.parts.contains(&OptionalPart::Events)
    }

    fn ns_per_event(&self) -> f64 {
        self.costs.of_level(self.parts.len())
    }

    pub(super) fn overhead(&self) -> Overhead {
        let given_up = self.given_up.iter().map(|part| part.name().to_owned());
        Overhead {
            ns_per_event: self.ns_per_event(),
            ns_per_other_call: self.ns_per_other_call,
            given_up: given_up.collect(),
            ..Overhead::default()
        }
    }

    /// Which part goes, so that observing costs no more than `percent` of what callers used since the last look. The
    /// first look only sets out from there.
    fn decide(&mut self, percent: f64, now: CallSample) -> WithinLimit {
        let ns_per_event = self.ns_per_event();
        let Some(before) = self.last.replace(now) else {
            return WithinLimit::Yes;
        };
        let Some(now) = self.last.as_ref() else {
            return WithinLimit::Yes;
        };
        let mut used = 0;
        for (pid, time) in &now.used {
            used += time.saturating_sub(before.used.get(pid).copied().unwrap_or(0));
        }
        let share = share(
            now.events.saturating_sub(before.events),
            ns_per_event,
            used,
            now.when.duration_since(before.when).as_nanos(),
        );
        if share * 100.0 <= percent {
            return WithinLimit::Yes;
        }
        let Some(part) = self.parts.pop() else {
            return WithinLimit::No;
        };
        self.given_up.push(part);
        WithinLimit::GaveUp(part.name())
    }
}

impl Collector {
    /// Adds what is wanted beyond counts, and measures what calls cost with each part of it.
    pub(super) fn add_parts(&mut self, options: &Options, before: Times, probes: &mut Vec<Probe>) {
        let mut least = vec![f64::INFINITY];
        let mut measured = 0;
        for part in [
            OptionalPart::Latencies,
            OptionalPart::Causes,
            OptionalPart::Events,
        ] {
            if !part.is_in(options) {
                continue;
            }
            if part == OptionalPart::Causes {
                // What is there without them is measured while it is.
                self.measure_parts(&mut least[measured..]);
                measured = least.len();
                if !self.add_causes(probes) {
                    continue;
                }
            }
            self.budget.parts.push(part);
            least.push(f64::INFINITY);
        }
        self.measure_parts(&mut least[measured..]);
        let after = self.measuring(cost::measure);
        if let Some(highest) = least.last_mut() {
            *highest = highest.min(after.small_ns);
        }
        self.budget.costs = Costs::of(before.small_ns, &least);
        self.budget.ns_per_other_call = (after.other_ns - before.other_ns).max(0.0);
    }

    /// Adds the same, and measures nothing: for tests of the cost, which measure themselves.
    pub(super) fn add_all(&mut self, options: &Options, probes: &mut Vec<Probe>) {
        for part in [
            OptionalPart::Latencies,
            OptionalPart::Causes,
            OptionalPart::Events,
        ] {
            if part.is_in(options) && (part != OptionalPart::Causes || self.add_causes(probes)) {
                self.budget.parts.push(part);
            }
        }
        self.want(self.budget.parts.len());
    }

    /// Measures the highest levels that there are, in turns, and leaves the highest on.
    fn measure_parts(&mut self, least: &mut [f64]) {
        let lowest = self.budget.parts.len() + 1 - least.len();
        for _ in 0..cost::ROUNDS {
            for (index, least) in least.iter_mut().enumerate() {
                self.want(lowest + index);
                *least = least.min(self.measuring(cost::small));
            }
        }
    }

    /// Has the programs give the first so many parts, as far as that does not hang on what is attached.
    fn want(&mut self, level: usize) {
        let mut wants = 0;
        for part in self.budget.parts.iter().take(level) {
            match part {
                OptionalPart::Latencies => wants |= WANT_LATENCY,
                OptionalPart::Causes => {}
                OptionalPart::Events => wants |= WANT_EVENTS,
            }
        }
        // Refused only if the map is gone, and then nothing is counted any more.
        let _ = read::want(&mut self.ebpf, wants);
    }

    /// Attaches what tells causes. False if nothing of it is there.
    fn add_causes(&mut self, probes: &mut Vec<Probe>) -> bool {
        let links = attach::group(&mut self.ebpf, Group::Causes, probes);
        let are_there = !links.is_empty();
        self.links.extend(links);
        are_there
    }

    /// Compares the cost of the events since the last call with the processor time that the callers used. Gives up the
    /// next detail if the cost is more than `percent` of that time. The first call only looks.
    pub fn limit(&mut self, percent: f64) -> WithinLimit {
        let events = read::count(&self.ebpf, Count::Events).saturating_sub(self.budget.own_events);
        let callers = read::callers(&self.ebpf).into_iter();
        let used = callers
            .filter(|(pid, _)| *pid != std::process::id())
            .filter_map(|(pid, _)| Some((pid, cost::process_ns(pid)?)))
            .collect();
        let when = Instant::now();
        let kept = self
            .budget
            .decide(percent, CallSample { when, events, used });
        if let (WithinLimit::GaveUp(_), Some(part)) = (kept, self.budget.given_up.last()) {
            let gone = match part {
                OptionalPart::Latencies => None,
                OptionalPart::Causes => Some(Group::Causes),
                OptionalPart::Events => Some(Group::Runtime),
            };
            self.links.retain(|link| Some(link.group) != gone);
            self.want(self.budget.parts.len());
        }
        kept
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

    /// What goes, look by look, while a process makes 100 000 calls in each second of its processor time, and what the
    /// last look says.
    fn given_up(percent: f64, call_ns: [f64; 4]) -> (Vec<&'static str>, WithinLimit) {
        let mut budget = Budget::new(true);
        budget.costs = Costs::of(1000.0, &call_ns);
        budget.parts = vec![
            OptionalPart::Latencies,
            OptionalPart::Causes,
            OptionalPart::Events,
        ];
        let start = Instant::now();
        let look = |number: u64| CallSample {
            when: start,
            events: number * 100_000,
            used: BTreeMap::from([(7, number * 1_000_000_000)]),
        };
        let kept: Vec<_> = (0..6)
            .map(|number| budget.decide(percent, look(number)))
            .collect();
        assert_eq!(kept[0], WithinLimit::Yes, "the first look");
        let gone = kept.iter().filter_map(|kept| match kept {
            WithinLimit::GaveUp(name) => Some(*name),
            WithinLimit::Yes | WithinLimit::No => None,
        });
        let gone: Vec<_> = gone.collect();
        let names: Vec<_> = budget.given_up.iter().map(|part| part.name()).collect();
        assert_eq!(gone, names);
        (gone, kept[5])
    }

    const ALL: [&str; 3] = [
        "events of the timeline",
        "page faults, flushes and waits",
        "latencies",
    ];

    #[test]
    fn no_more_is_given_up_than_has_to_be() {
        let call_ns = [1300.0, 1400.0, 1450.0, 1600.0];
        for (percent, count, last) in [
            (6.1, 0, WithinLimit::Yes),
            (5.0, 1, WithinLimit::Yes),
            (4.2, 2, WithinLimit::Yes),
            (3.5, 3, WithinLimit::Yes),
            (1.0, 3, WithinLimit::No),
        ] {
            let found = given_up(percent, call_ns);
            assert_eq!(found, (ALL[..count].to_vec(), last), "{percent}");
        }
    }

    #[test]
    fn a_measurement_that_came_out_too_low_stops_nothing() {
        // With causes a call seems to take less than with none of it.
        let call_ns = [1300.0, 1400.0, 990.0, 1600.0];
        assert_eq!(given_up(3.5, call_ns).0, ALL);
        assert_eq!(given_up(4.5, call_ns).0, ALL[..1]);
    }
}
