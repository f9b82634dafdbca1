// SPDX-License-Identifier: MIT OR Apache-2.0
//! From figures by process ids to a report with names.

use std::collections::BTreeMap;

use crate::observed::{Observed, PairCounts, PairKey, Peer};
use crate::report::{
    Faults, Latency, MissedCopy, NamedProcess, Pair, RankCounters, Report, SizeBin, VERSION, Waits,
};

/// The process, as people know it.
#[must_use]
pub fn who(observed: &Observed, pid: u32) -> NamedProcess {
    let task = observed.tasks.get(&pid);
    NamedProcess {
        pid: Some(pid),
        rank: task.and_then(|task| task.rank),
        job: task.and_then(|task| task.job.clone()),
        comm: task
            .map(|task| task.comm.clone())
            .filter(|comm| !comm.is_empty()),
        container: task.and_then(|task| task.container.clone()),
        in_namespace: None,
    }
}

/// The other process of a call.
fn peer(observed: &Observed, caller: u32, peer: Peer) -> NamedProcess {
    match peer {
        Peer::Process(pid) => who(observed, pid),
        Peer::InNamespace { namespace, pid } => NamedProcess {
            in_namespace: Some(format!("{namespace}:{pid}")),
            ..NamedProcess::default()
        },
        Peer::Rank(rank) => NamedProcess {
            rank: Some(rank),
            job: observed
                .tasks
                .get(&caller)
                .and_then(|task| task.job.clone()),
            ..NamedProcess::default()
        },
        Peer::Unknown => NamedProcess::default(),
    }
}

/// The name of an errno, `ERRNO_n` where it has none.
fn errno_name(errno: i32) -> String {
    let known = nix::errno::Errno::from_raw(errno);
    if known == nix::errno::Errno::UnknownErrno {
        format!("ERRNO_{errno}")
    } else {
        format!("{known:?}")
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a rate is no better than its clock"
)]
fn rate(bytes: u64, ns: u64) -> Option<f64> {
    (ns > 0 && bytes > 0).then(|| bytes as f64 / ns as f64)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn pair(observed: &Observed, key: &PairKey, counts: &PairCounts) -> Pair {
    let caller = who(observed, key.caller);
    let other = peer(observed, key.caller, key.peer);
    let (source, sink) = if key.writes {
        (caller, other)
    } else {
        (other, caller)
    };
    let percentile = |share| counts.latency_ns.percentile(share).map(|ns| ns / 1000.0);
    let latency_us = percentile(0.5).and_then(|p50| {
        Some(Latency {
            p50,
            p99: percentile(0.99)?,
            p999: percentile(0.999)?,
        })
    });
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of the part of faults in a time"
    )]
    let in_faults = (counts.faults as f64 * NS_PER_FAULT) as u64;
    let copying = counts
        .time_ns
        .saturating_sub(counts.wait_ns)
        .saturating_sub(in_faults);
    // Calls without a time have bytes, too: where latencies were given up, or a tracepoint tells of the call. Those of
    // the others are taken by their share.
    let calls = u128::from(counts.calls.max(1));
    let with_time = u128::from(counts.latency_ns.total()).min(calls);
    let timed = u128::from(counts.bytes) * with_time / calls;
    let timed = u64::try_from(timed).unwrap_or(u64::MAX);
    Pair {
        source,
        sink,
        mechanism: key.mechanism,
        calls: counts.calls,
        bytes: counts.bytes,
        errors: counts
            .errors
            .iter()
            .map(|(errno, times)| (errno_name(*errno), *times))
            .collect(),
        latency_us,
        gb_per_s: rate(timed, counts.time_ns),
        copy_gb_per_s: rate(timed, copying),
        sizes: counts
            .sizes
            .bins()
            .map(|(from, below, calls)| SizeBin { from, below, calls })
            .collect(),
        faults: counts.faults,
        wait_us: micros(counts.wait_ns),
        flushes: counts.flushes,
    }
}

/// Nanoseconds of one page fault of a call, as long as nothing better is known: what zeroing a page takes at 4 GB/s.
const NS_PER_FAULT: f64 = 1000.0;

/// A report of what was observed.
#[must_use]
pub fn build(
    observed: &Observed,
    program: &[String],
    missed: Vec<MissedCopy>,
    limits: Vec<String>,
) -> Report {
    Report {
        version: VERSION,
        seconds: observed.elapsed.as_secs_f64(),
        program: program.to_vec(),
        pairs: pairs(observed),
        faults: faults(observed),
        waits: waits(observed),
        missed,
        overhead: observed.overhead.clone(),
        ranks: ranks(observed),
        rdma: Vec::new(),
        modules: Vec::new(),
        limits,
    }
}

/// Each pair that copied, those that copied most first.
fn pairs(observed: &Observed) -> Vec<Pair> {
    let each = observed.pairs.iter();
    let mut pairs: Vec<Pair> = each
        .filter(|(_, counts)| counts.calls > 0)
        .map(|(key, counts)| pair(observed, key, counts))
        .collect();
    pairs.sort_by(|a, b| {
        (b.bytes, b.calls)
            .cmp(&(a.bytes, a.calls))
            .then_with(|| (&a.source, &a.sink).cmp(&(&b.source, &b.sink)))
    });
    pairs
}

/// The page faults of each caller.
fn faults(observed: &Observed) -> Vec<Faults> {
    let mut faults = BTreeMap::<u32, u64>::new();
    for (key, counts) in &observed.pairs {
        *faults.entry(key.caller).or_default() += counts.faults;
    }
    faults
        .into_iter()
        .filter(|(_, faults)| *faults > 0)
        .map(|(pid, faults)| Faults {
            who: who(observed, pid),
            faults,
        })
        .collect()
}

/// Who waited for whose address space, those that waited longest first.
fn waits(observed: &Observed) -> Vec<Waits> {
    let each = observed.waits.iter();
    let mut waits: Vec<Waits> = each
        .map(|wait| Waits {
            who: who(observed, wait.waiter),
            owner: wait
                .owner
                .map_or_else(NamedProcess::default, |owner| who(observed, owner)),
            waits: wait.waits,
            total_us: micros(wait.total_ns),
            longest_us: micros(wait.longest_ns),
        })
        .collect();
    waits.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
    waits
}

/// What onecopy's own ranks counted.
fn ranks(observed: &Observed) -> Vec<RankCounters> {
    let each = observed.counters.iter();
    each.map(|(pid, counters)| RankCounters {
        who: who(observed, *pid),
        counters: counters
            .iter()
            .filter(|(_, value)| *value > 0)
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{Mechanism, Task};

    fn observed(mechanism: Mechanism, peer: Peer) -> Observed {
        let mut observed = Observed::default();
        let task = |rank, comm: &str| Task {
            comm: comm.to_owned(),
            rank: Some(rank),
            job: Some("j".to_owned()),
            ..Task::default()
        };
        observed.tasks.insert(10, task(0, "a"));
        observed.tasks.insert(11, task(1, "b"));
        let mut counts = PairCounts {
            calls: 3,
            bytes: 8192,
            time_ns: 4096,
            faults: 2,
            ..PairCounts::default()
        };
        counts.errors.insert(1, 1);
        counts.latency_ns.add(2000, 3);
        counts.sizes.add(4096, 3);
        let key = PairKey {
            caller: 10,
            peer,
            mechanism,
            writes: mechanism == Mechanism::CmaWrite,
        };
        observed.pairs.insert(key, counts);
        observed
    }

    #[test]
    fn the_mechanism_says_who_is_the_source() {
        for (mechanism, source) in [(Mechanism::CmaRead, 11), (Mechanism::CmaWrite, 10)] {
            let observed = observed(mechanism, Peer::Process(11));
            let report = build(&observed, &[], Vec::new(), Vec::new());
            let pair = &report.pairs[0];
            assert_eq!(pair.source.pid, Some(source));
            assert_eq!(pair.sink.pid, Some(21 - source));
            assert_eq!(pair.errors["EPERM"], 1);
            assert_eq!(pair.gb_per_s, Some(2.0));
            assert_eq!(pair.sizes.len(), 1);
            assert!(pair.latency_us.is_some());
            assert_eq!(report.faults[0].faults, 2);
        }
    }

    #[test]
    fn calls_without_a_time_do_not_make_copies_faster() {
        let mut observed = observed(Mechanism::CmaRead, Peer::Process(11));
        for counts in observed.pairs.values_mut() {
            // Three more of as many bytes, after latencies were given up.
            (counts.calls, counts.bytes) = (6, 16_384);
        }
        let report = build(&observed, &[], Vec::new(), Vec::new());
        assert_eq!(report.pairs[0].gb_per_s, Some(2.0));
    }

    #[test]
    fn what_is_not_known_has_no_name() {
        let there = Peer::InNamespace {
            namespace: 77,
            pid: 42,
        };
        let report = build(
            &observed(Mechanism::CmaRead, there),
            &[],
            Vec::new(),
            Vec::new(),
        );
        let source = &report.pairs[0].source;
        assert_eq!(source.in_namespace.as_deref(), Some("77:42"));
        assert_eq!((source.pid, &source.comm), (None, &None));
        let rank = build(
            &observed(Mechanism::Cico, Peer::Rank(7)),
            &[],
            Vec::new(),
            Vec::new(),
        );
        assert_eq!(rank.pairs[0].source.rank, Some(7));
        assert_eq!(rank.pairs[0].source.job.as_deref(), Some("j"));
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = build(
            &observed(Mechanism::CmaRead, Peer::Unknown),
            &["x".to_owned()],
            Vec::new(),
            vec!["none".to_owned()],
        );
        let text = serde_json::to_string(&report).expect("text");
        let read: Report = serde_json::from_str(&text).expect("a report");
        assert_eq!(read.pairs[0].source, report.pairs[0].source);
        assert_eq!(read.pairs[0].sizes, report.pairs[0].sizes);
        assert_eq!(read.pairs[0].errors, report.pairs[0].errors);
        assert_eq!((read.program, read.limits), (report.program, report.limits));
    }
}
