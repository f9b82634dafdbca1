// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures as metrics, in Prometheus's text form: a node exporter's collector of text files takes them.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::plain;
use crate::report::{Pair, Report, Who};

/// A label's value, in quotes. The form has an escape for a line end, and none for what else a terminal would obey.
fn quoted(value: &str) -> String {
    let lines: Vec<String> = value.split('\n').map(plain::text).collect();
    let text = lines.join("\n").replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('\n', "\\n"))
}

fn labels_of(prefix: &str, who: &Who, labels: &mut Vec<(String, String)>) {
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

fn pair_labels(pair: &Pair) -> Labels {
    let mut labels = vec![("mechanism".to_owned(), pair.mechanism.name().to_owned())];
    labels_of("source_", &pair.source, &mut labels);
    labels_of("sink_", &pair.sink, &mut labels);
    labels
}

fn with(mut labels: Labels, name: &str, value: impl Into<String>) -> Labels {
    labels.push((name.to_owned(), value.into()));
    labels
}

/// One metric with all its samples.
fn metric(
    out: &mut impl Write,
    (name, kind, help): (&str, &str, &str),
    samples: impl IntoIterator<Item = (Labels, f64)>,
) -> io::Result<()> {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
    for (labels, value) in samples {
        let mut text = String::new();
        for (index, (label, value)) in labels.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(text, "{comma}{label}={}", quoted(value));
        }
        if text.is_empty() {
            writeln!(out, "{name} {value}")?;
        } else {
            writeln!(out, "{name}{{{text}}} {value}")?;
        }
    }
    Ok(())
}

/// Writes a report.
///
/// # Errors
/// Those of `out`.
#[expect(
    clippy::cast_precision_loss,
    reason = "samples are floating-point numbers"
)]
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let pairs = || report.pairs.iter();
    let of = |get: fn(&Pair) -> f64| pairs().map(move |pair| (pair_labels(pair), get(pair)));
    metric(
        out,
        (
            "onecopy_copy_calls_total",
            "counter",
            "Calls that copied between two processes, or failed to.",
        ),
        of(|pair| pair.calls as f64),
    )?;
    metric(
        out,
        (
            "onecopy_copy_bytes_total",
            "counter",
            "Bytes copied between two processes.",
        ),
        of(|pair| pair.bytes as f64),
    )?;
    metric(
        out,
        (
            "onecopy_copy_faults_total",
            "counter",
            "Page faults of the caller in these calls.",
        ),
        of(|pair| pair.faults as f64),
    )?;
    metric(
        out,
        (
            "onecopy_copy_errors_total",
            "counter",
            "Calls that failed, by errno.",
        ),
        pairs().flat_map(|pair| {
            pair.errors
                .iter()
                .map(|(errno, times)| (with(pair_labels(pair), "errno", errno), *times as f64))
        }),
    )?;
    metric(
        out,
        (
            "onecopy_copy_latency_seconds",
            "gauge",
            "Percentiles of the time of a call.",
        ),
        pairs().flat_map(|pair| {
            pair.latency_us.into_iter().flat_map(|latency| {
                [
                    ("0.5", latency.p50),
                    ("0.99", latency.p99),
                    ("0.999", latency.p999),
                ]
                .map(|(share, us)| (with(pair_labels(pair), "quantile", share), us / 1e6))
            })
        }),
    )?;
    metric(
        out,
        (
            "onecopy_wait_seconds_total",
            "counter",
            "Time waited for the lock of an address space, in calls and outside of them.",
        ),
        report.waits.iter().map(|wait| {
            let mut labels = Vec::new();
            labels_of("", &wait.who, &mut labels);
            labels_of("owner_", &wait.owner, &mut labels);
            (labels, wait.total_us / 1e6)
        }),
    )?;
    metric(
        out,
        (
            "onecopy_rank_counter",
            "gauge",
            "Counters of onecopy's own ranks, by name.",
        ),
        report.ranks.iter().flat_map(|rank| {
            rank.counters.iter().map(|(name, value)| {
                let mut labels = Vec::new();
                labels_of("", &rank.who, &mut labels);
                (with(labels, "counter", name), *value as f64)
            })
        }),
    )?;
    let one = |value: f64| [(Vec::new(), value)];
    let cost = &report.overhead;
    metric(
        out,
        (
            "onecopy_trace_events_total",
            "counter",
            "Events that were observed.",
        ),
        one(cost.events as f64),
    )?;
    metric(
        out,
        (
            "onecopy_trace_dropped_total",
            "counter",
            "Records of the timeline that were lost.",
        ),
        one(cost.dropped as f64),
    )?;
    metric(
        out,
        (
            "onecopy_trace_event_seconds",
            "gauge",
            "What observing one event costs its caller.",
        ),
        one(cost.ns_per_event / 1e9),
    )
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
                source: Who {
                    pid: Some(1),
                    comm: Some("a\"b\\c\nd\u{1b}\u{9b}".to_owned()),
                    ..Who::default()
                },
                sink: Who::default(),
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
