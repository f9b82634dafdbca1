// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures as metrics, in Prometheus's text form: a node exporter's collector of text files takes them.

use std::io::{self, Write};

use crate::plain;
use crate::report::{NamedProcess, Pair, RankCounters, Report};

/// A label's value, in quotes. The form has an escape for a line end, and none for what else a terminal would obey.
fn quoted(value: &str) -> String {
    let lines: Vec<String> = value.split('\n').map(plain::text).collect();
    let text = lines.join("\n").replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('\n', "\\n"))
}

fn labels_of(prefix: &str, who: &NamedProcess, labels: &mut Vec<(String, String)>) {
    let mut label = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            labels.push((format!("{prefix}{name}"), value));
        }
    };
    label("pid", who.pid.map(|pid| pid.to_string()));
    label("rank", who.rank.map(|rank| rank.to_string()));
    label("job", who.job.clone());
    label("comm", who.comm.clone());
    label("container", who.container.clone());
    label("in_namespace", who.in_namespace.clone());
}

type Labels = Vec<(String, String)>;

/// A value, and of what.
type Sample = (Labels, f64);

fn labels_of_pair(pair: &Pair) -> Labels {
    let mut labels = vec![("mechanism".to_owned(), pair.mechanism.name().to_owned())];
    labels_of("source_", &pair.source, &mut labels);
    labels_of("sink_", &pair.sink, &mut labels);
    labels
}

fn with(mut labels: Labels, name: &str, value: impl Into<String>) -> Labels {
    labels.push((name.to_owned(), value.into()));
    labels
}

/// A metric, and its samples in a report.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&Report) -> Vec<Sample>,
}

const METRICS: [Metric; 10] = [
    Metric {
        name: "onecopy_copy_calls_total",
        kind: "counter",
        help: "Calls that copied between two processes, or failed to.",
        samples: |report| of_pairs(report, |pair| number(pair.calls)),
    },
    Metric {
        name: "onecopy_copy_bytes_total",
        kind: "counter",
        help: "Bytes copied between two processes.",
        samples: |report| of_pairs(report, |pair| number(pair.bytes)),
    },
    Metric {
        name: "onecopy_copy_faults_total",
        kind: "counter",
        help: "Page faults of the caller in these calls.",
        samples: |report| of_pairs(report, |pair| number(pair.faults)),
    },
    Metric {
        name: "onecopy_copy_errors_total",
        kind: "counter",
        help: "Calls that failed, by errno.",
        samples: errors,
    },
    Metric {
        name: "onecopy_copy_latency_seconds",
        kind: "gauge",
        help: "Percentiles of the time of a call.",
        samples: latencies,
    },
    Metric {
        name: "onecopy_wait_seconds_total",
        kind: "counter",
        help: "Time waited for the lock of an address space, in calls and outside of them.",
        samples: waits,
    },
    Metric {
        name: "onecopy_rank_counter",
        kind: "gauge",
        help: "Counters of onecopy's own ranks, by name.",
        samples: counters,
    },
    Metric {
        name: "onecopy_trace_events_total",
        kind: "counter",
        help: "Events that were observed.",
        samples: |report| of_all(number(report.overhead.events)),
    },
    Metric {
        name: "onecopy_trace_dropped_total",
        kind: "counter",
        help: "Records of the timeline that were lost.",
        samples: |report| of_all(number(report.overhead.dropped)),
    },
    Metric {
        name: "onecopy_trace_event_seconds",
        kind: "gauge",
        help: "What observing one event costs its caller.",
        samples: |report| of_all(report.overhead.ns_per_event / 1e9),
    },
];

#[expect(
    clippy::cast_precision_loss,
    reason = "samples are floating-point numbers"
)]
fn number(count: u64) -> f64 {
    count as f64
}

fn of_all(value: f64) -> Vec<Sample> {
    vec![(Labels::new(), value)]
}

fn of_pairs(report: &Report, value: fn(&Pair) -> f64) -> Vec<Sample> {
    let pairs = report.pairs.iter();
    pairs
        .map(|pair| (labels_of_pair(pair), value(pair)))
        .collect()
}

fn errors(report: &Report) -> Vec<Sample> {
    let of_pair = |pair: &Pair| {
        let labels = labels_of_pair(pair);
        let errors = pair.errors.iter();
        let samples =
            errors.map(|(errno, &times)| (with(labels.clone(), "errno", errno), number(times)));
        samples.collect::<Vec<_>>()
    };
    report.pairs.iter().flat_map(of_pair).collect()
}

fn latencies(report: &Report) -> Vec<Sample> {
    let of_pair = |pair: &Pair| {
        let latency = pair.latency_us?;
        let labels = labels_of_pair(pair);
        Some(
            [
                ("0.5", latency.p50),
                ("0.99", latency.p99),
                ("0.999", latency.p999),
            ]
            .map(|(share, us)| (with(labels.clone(), "quantile", share), us / 1e6)),
        )
    };
    report.pairs.iter().filter_map(of_pair).flatten().collect()
}

fn waits(report: &Report) -> Vec<Sample> {
    let waits = report.waits.iter().map(|wait| {
        let mut labels = Labels::new();
        labels_of("", &wait.who, &mut labels);
        labels_of("owner_", &wait.owner, &mut labels);
        (labels, wait.total_us / 1e6)
    });
    waits.collect()
}

fn counters(report: &Report) -> Vec<Sample> {
    let of_rank = |rank: &RankCounters| {
        let mut labels = Labels::new();
        labels_of("", &rank.who, &mut labels);
        let counters = rank.counters.iter();
        let samples =
            counters.map(|(name, &value)| (with(labels.clone(), "counter", name), number(value)));
        samples.collect::<Vec<_>>()
    };
    report.ranks.iter().flat_map(of_rank).collect()
}

impl Metric {
    /// Writes the metric with all its samples. Without one it is left out.
    fn write(&self, report: &Report, out: &mut impl Write) -> io::Result<()> {
        let Self {
            name, kind, help, ..
        } = self;
        let samples = (self.samples)(report);
        if samples.is_empty() {
            return Ok(());
        }
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
        for (labels, value) in samples {
            writeln!(out, "{name}{} {value}", braced(&labels))?;
        }
        Ok(())
    }
}

/// Labels as they stand behind a metric's name; nothing if there are none.
fn braced(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels = labels.iter();
    let labels: Vec<String> = labels
        .map(|(label, value)| format!("{label}={}", quoted(value)))
        .collect();
    format!("{{{}}}", labels.join(","))
}

/// Writes a report.
///
/// # Errors
/// Those of `out`.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    METRICS
        .iter()
        .try_for_each(|metric| metric.write(report, out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Mechanism;
    use std::collections::BTreeMap;

    #[test]
    fn metrics_have_labels_that_are_escaped() {
        let report = Report {
            pairs: vec![Pair {
                source: NamedProcess {
                    pid: Some(1),
                    comm: Some("a\"b\\c\nd\u{1b}\u{9b}".to_owned()),
                    ..NamedProcess::default()
                },
                sink: NamedProcess::default(),
                mechanism: Mechanism::CmaRead,
                calls: 3,
                bytes: 12,
                errors: BTreeMap::from([("EPERM".to_owned(), 2)]),
                latency_us: None,
                gb_per_s: None,
                copy_gb_per_s: None,
                sizes: Vec::new(),
                faults: 0,
                wait_us: 0.0,
                flushes: 0,
            }],
            ..Report::default()
        };
        let mut out = Vec::new();
        write(&report, &mut out).expect("memory");
        let text = String::from_utf8(out).expect("text");
        let labels = r#"mechanism="cma-read",source_pid="1",source_comm="a\"b\\c\nd??""#;
        assert!(text.contains(&format!("onecopy_copy_bytes_total{{{labels}}} 12\n")));
        assert!(text.contains(&format!(
            "onecopy_copy_errors_total{{{labels},errno=\"EPERM\"}} 2\n"
        )));
        assert!(text.contains("onecopy_trace_events_total 0\n"));
        assert!(!text.contains("latency"), "no sample, no metric");
    }
}
