// SPDX-License-Identifier: MIT OR Apache-2.0
//! What observing costs: measured on this machine, by processor time of this thread.

use std::io::IoSliceMut;
use std::path::Path;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getppid};

use super::probe::{Error, Probe};
use super::{Collector, Options};

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

/// Measures without and with observing, in turns, and returns the medians.
///
/// # Errors
/// Nothing can be observed here.
pub fn calibrate(options: &Options, rounds: usize) -> Result<(Calibration, Vec<Probe>), Error> {
    let (mut before, mut after, mut probes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        before.push(measure());
        let (mut collector, tried) = Collector::start_unmeasured(options)?;
        probes = tried;
        after.push(collector.measure_self());
    }
    let calibration = Calibration {
        before: medians(&before),
        after: medians(&after),
    };
    Ok((calibration, probes))
}

fn medians(times: &[Times]) -> Times {
    let median = |of: fn(&Times) -> f64| {
        let mut values: Vec<f64> = times.iter().map(of).collect();
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
    const LARGE: usize = 64 << 10;
    let source = vec![1_u8; LARGE];
    let mut sink = vec![2_u8; LARGE];
    let mut read = |len: usize| {
        let remote = RemoteIoVec {
            base: source.as_ptr() as usize,
            len,
        };
        let mut local = [IoSliceMut::new(&mut sink[..len])];
        // Where the call is forbidden there is nothing to measure.
        let _ = process_vm_readv(Pid::this(), &mut local, &[remote]);
    };
    Times {
        small_ns: least(200, || read(4096)),
        large_ns: least(60, || read(LARGE)),
        other_ns: least(1000, || {
            std::hint::black_box(getppid());
        }),
    }
}

#[expect(clippy::cast_precision_loss, reason = "short times")]
fn least(calls: u32, mut call: impl FnMut()) -> f64 {
    const BATCHES: usize = 12;
    let mut least = f64::INFINITY;
    for _ in 0..BATCHES {
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
    const TICK_NS: u64 = 10_000_000;
    let stat = crate::identity::text(Path::new(&format!("/proc/{pid}/stat")))?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some((user + kernel) * TICK_NS)
}
