// SPDX-License-Identifier: MIT OR Apache-2.0
//! What observing costs: measured on this machine, by processor time of this thread.

use std::io::IoSliceMut;
use std::path::Path;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getppid};

use super::probe::{Error, Probe};
use super::{Collector, Options};
use crate::proc::{Stat, TICK_NS};

/// Nanoseconds of calls of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// `process_vm_readv` of 4 KiB.
    pub small_ns: f64,
    /// `process_vm_readv` of 64 KiB.
    pub large_ns: f64,
    /// Another system call.
    pub other_ns: f64,
}

/// Times without and with observing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Without.
    pub before: Times,
    /// With.
    pub after: Times,
}

impl Calibration {
    /// How much longer an observed call takes.
    #[must_use]
    pub fn ns_per_event(&self) -> f64 {
        (self.after.small_ns - self.before.small_ns).max(0.0)
    }

    /// How much longer every other system call takes.
    #[must_use]
    pub fn ns_per_other_call(&self) -> f64 {
        (self.after.other_ns - self.before.other_ns).max(0.0)
    }
}

/// How often each level is measured, in turns: what disturbs one for a while disturbs the others, too.
pub(super) const ROUNDS: usize = 3;

/// What an observed call costs at each level of detail, the least first: nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Costs(Vec<f64>);

impl Costs {
    /// From the least time that a call takes without observing, and those at each level. Each level does what the one
    /// below does, and more. So what comes out lower is noise, and nothing is cheaper than nothing.
    pub(super) fn of(without: f64, levels: &[f64]) -> Self {
        let mut least = 0.0_f64;
        let costs = levels.iter().map(|with| {
            least = least.max(with - without);
            least
        });
        Self(costs.collect())
    }

    /// Nanoseconds of a level. One that was not measured costs what the highest does.
    pub(super) fn of_level(&self, level: usize) -> f64 {
        let cost = self.0.get(level).or(self.0.last());
        cost.copied().unwrap_or(0.0)
    }
}

/// Measures without and with observing, in turns, and returns the medians. For tests of the cost; the command measures
/// as it begins.
///
/// # Errors
/// Nothing can be observed here.
pub fn calibrate(options: &Options, rounds: usize) -> Result<(Calibration, Vec<Probe>), Error> {
    let (mut before, mut after, mut probes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        before.push(measure());
        let (mut collector, tried) = Collector::start_unmeasured(options)?;
        probes = tried;
        after.push(collector.measuring(measure));
    }
    let calibration = Calibration {
        before: medians(&before),
        after: medians(&after),
    };
    Ok((calibration, probes))
}

fn medians(times: &[Times]) -> Times {
    let median = |figure: fn(&Times) -> f64| {
        let mut values: Vec<f64> = times.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    Times {
        small_ns: median(|times| times.small_ns),
        large_ns: median(|times| times.large_ns),
        other_ns: median(|times| times.other_ns),
    }
}

/// Measures now: the least of short batches, so that others on the machine disturb little.
pub(super) fn measure() -> Times {
    let mut own = OwnMemory::new();
    Times {
        small_ns: least(BATCHES, 200, || own.read(SMALL)),
        large_ns: least(BATCHES, 60, || own.read(LARGE)),
        other_ns: least(BATCHES, 1000, || {
            std::hint::black_box(getppid());
        }),
    }
}

/// What a small call takes, as [`measure`] says it: one round of several.
pub(super) fn small() -> f64 {
    let mut own = OwnMemory::new();
    least(BATCHES / ROUNDS, 200, || own.read(SMALL))
}

const SMALL: usize = 4096;
const LARGE: usize = 64 << 10;
const BATCHES: usize = 12;

/// Memory of this process that it copies by the kernel.
struct OwnMemory {
    source: Vec<u8>,
    sink: Vec<u8>,
}

impl OwnMemory {
    fn new() -> Self {
        Self {
            source: vec![1; LARGE],
            sink: vec![2; LARGE],
        }
    }

    fn read(&mut self, len: usize) {
        let remote = RemoteIoVec {
            base: self.source.as_ptr() as usize,
            len,
        };
        let mut local = [IoSliceMut::new(&mut self.sink[..len])];
        // Where the call is forbidden there is nothing to measure.
        let _ = process_vm_readv(Pid::this(), &mut local, &[remote]);
    }
}

#[expect(clippy::cast_precision_loss, reason = "short times")]
fn least(batches: usize, calls: u32, mut call: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..batches {
        let begin = thread_ns();
        for _ in 0..calls {
            call();
        }
        let took = thread_ns().saturating_sub(begin) as f64 / f64::from(calls);
        least = least.min(took);
    }
    least
}

/// Processor time of this thread.
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    now.map_or(0, |now| {
        let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    })
}

/// Processor time of a process in nanoseconds; none if it has ended.
pub(super) fn process_ns(pid: u32) -> Option<u64> {
    let stat = Stat::read(Path::new(&format!("/proc/{pid}")))?;
    Some((stat.number(14)? + stat.number(15)?) * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_detail_never_costs_less() {
        let costs = |levels: &[f64]| Costs::of(1000.0, levels);
        assert_eq!(costs(&[1300.0, 1400.0, 1450.0]).0, [300.0, 400.0, 450.0]);
        // The second measurement came out below the first, by noise.
        assert_eq!(costs(&[1300.0, 1250.0, 1450.0]).0, [300.0, 300.0, 450.0]);
        assert_eq!(costs(&[900.0, 950.0]).0, [0.0, 0.0]);
        assert_eq!(costs(&[1300.0]).of_level(5).to_bits(), 300.0_f64.to_bits());
        assert_eq!(costs(&[]).of_level(0).to_bits(), 0.0_f64.to_bits());
    }
}
