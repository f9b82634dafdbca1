// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results as a person reads them.

use super::record::{Record, Run, Summary};
use super::{machine, sizes};
use onecopy_bench::{Mechanism, Mode, Pattern};
use std::io::{self, Write};
use tabled::Table;
use tabled::builder::Builder;
use tabled::settings::object::{Columns, Object, Rows};
use tabled::settings::{Alignment, Style};

/// Three significant digits or so.
#[must_use]
pub fn figure(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.3}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

fn median(summary: Summary) -> String {
    summary.median_us.map_or_else(|| "-".into(), figure)
}

/// Gigabytes per second of one direction.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
pub fn gigabytes(size: usize, us: f64) -> f64 {
    size as f64 / us / 1000.0
}

fn title(pattern: Pattern, mode: Mode) -> String {
    let what = match pattern {
        Pattern::PingPong => "ping-pong, one-way microseconds",
        Pattern::SendRecv => "sendrecv, microseconds per exchange",
        Pattern::Bw => "one-way bandwidth, microseconds per message (GB/s)",
        Pattern::BiBw => {
            "two-way bandwidth, microseconds per message of one direction (GB/s, both directions)"
        }
        Pattern::Rate => "message rate, microseconds per 8-byte message (million per second)",
        collective => {
            let name = collective.name();
            return format!("{name}, microseconds per operation; {}", mode_title(mode));
        }
    };
    format!("{what}; {}", mode_title(mode))
}

fn mode_title(mode: Mode) -> &'static str {
    match mode {
        Mode::Same | Mode::All => "same buffers",
        Mode::OffCache => "buffers rotate through memory",
        Mode::Rewrite => "sender rewrites its buffer before each send (the time includes it)",
    }
}

fn with_rate(record: &Record, us: Option<f64>) -> Option<String> {
    let us = us?;
    Some(match record.pattern {
        Pattern::Bw => format!("{} ({:.1})", figure(us), gigabytes(record.size, us)),
        Pattern::BiBw => format!("{} ({:.1})", figure(us), 2.0 * gigabytes(record.size, us)),
        Pattern::Rate => format!("{us:.4} ({:.1})", 1.0 / us),
        _ => figure(us),
    })
}

/// Writes all tables of a run.
///
/// # Errors
///
/// If the output cannot be written.
pub fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let records = run.records();
    for (pattern, mode) in distinct(records.iter().map(|r| (r.pattern, r.mode))) {
        let of_group = records
            .iter()
            .filter(|r| r.pattern == pattern && r.mode == mode)
            .collect();
        let table = Group::new(of_group).table();
        writeln!(out, "{}\n{table}\n", title(pattern, mode))?;
    }
    if records.is_empty() {
        let table = limits(run);
        writeln!(
            out,
            "limits of the machine, microseconds per message\n{table}\n"
        )?;
    }
    write_notes(run, &records, out)
}

/// Writes what holds for all tables of a run.
fn write_notes(run: &Run, records: &[Record], out: &mut dyn Write) -> io::Result<()> {
    let [near, far, dropped] = run.states();
    writeln!(out, "{}", run.gate)?;
    writeln!(
        out,
        "batches: {near} near, {far} far, {dropped} dropped; medians; x is the median divided by the limit of the same run (* where not near)"
    )?;
    if machine::is_translated() {
        writeln!(out, "{}", machine::TRANSLATED)?;
    }
    let bytes: u64 = records.iter().map(|record| record.checked_bytes).sum();
    writeln!(
        out,
        "payload compared byte for byte outside the timed loops: {bytes} bytes, all right"
    )?;
    if !run.missing.is_empty() {
        writeln!(out, "\nnot on this machine:")?;
        for missing in &run.missing {
            writeln!(
                out,
                "  {}: {}; {}",
                missing.mechanism, missing.reason, missing.remedy
            )?;
        }
    }
    Ok(())
}

/// Each value once, in the order of their first appearance.
fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Name of the column with the limit of a mechanism.
fn limit_of(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Cma | Mechanism::Knem => "limit cma",
        Mechanism::CmaHuge => "limit huge",
        _ => "limit",
    }
}

/// The results of one pattern in one mode.
struct Group<'a> {
    records: Vec<&'a Record>,
    mechanisms: Vec<Mechanism>,
}

/// A column: its head, and what a record of its mechanism has in it.
struct Column {
    mechanism: Mechanism,
    head: String,
    cell: fn(&Record) -> Option<String>,
}

impl<'a> Group<'a> {
    fn new(records: Vec<&'a Record>) -> Self {
        let mechanisms = distinct(records.iter().map(|record| record.mechanism));
        Self {
            records,
            mechanisms,
        }
    }

    /// Whether a result was measured in the near state.
    fn has_near(&self) -> bool {
        self.records.iter().any(|record| record.near.batches > 0)
    }

    /// Whether the far state has columns. A stray far batch is not worth them, unless a result has nothing else.
    fn shows_far(&self) -> bool {
        let sum = |count: fn(&Record) -> usize| -> usize {
            self.records.iter().map(|record| count(record)).sum()
        };
        let only_far = |record: &&Record| record.near.batches == 0 && record.far.batches > 0;
        sum(|record| record.far.batches) * 20 > sum(|record| record.all.batches)
            || self.records.iter().any(only_far)
    }

    fn columns(&self) -> Vec<Column> {
        let (near, far) = (self.has_near(), self.shows_far());
        // With many mechanisms the least times are left to the records: a terminal is only so wide.
        let min = near && self.mechanisms.len() <= 2;
        let collective = self.records.iter().any(|r| r.pattern.is_collective());
        let mut columns = Vec::new();
        let mut limits = Vec::new();
        for &mechanism in &self.mechanisms {
            let mut push = |head: &str, cell: fn(&Record) -> Option<String>| {
                columns.push(Column {
                    mechanism,
                    head: head.to_owned(),
                    cell,
                });
            };
            let limit = limit_of(mechanism);
            if !limits.contains(&limit) {
                limits.push(limit);
                push(limit, |r| r.limit_us.map(figure));
            }
            if near {
                push(mechanism.name(), |r| with_rate(r, r.near.median_us));
            }
            if min {
                push("min", |r| r.near.min_us.map(figure));
            }
            if far {
                let head = format!("{mechanism} far");
                push(&head, |r| r.far.median_us.map(figure));
            }
            if !near && !far {
                let head = format!("{mechanism} any state");
                push(&head, |r| with_rate(r, r.all.median_us));
            }
            push("x", ratio);
            if collective {
                push("hand-offs", |r| r.hand_offs.map(|n| format!("{n:.1}")));
                push("target", |r| r.target_us.map(|us| format!("\u{2264} {us}")));
                push("pool", pool);
            }
        }
        columns
    }

    fn table(&self) -> Table {
        let columns = self.columns();
        let mut builder = Builder::default();
        let heads = columns.iter().map(|column| column.head.clone());
        builder.push_record(std::iter::once("size".to_owned()).chain(heads));
        for size in distinct(self.records.iter().map(|record| record.size)) {
            let cells = columns.iter().map(|column| {
                let mut records = self.records.iter();
                let record = records.find(|r| r.size == size && r.mechanism == column.mechanism);
                let cell = record.and_then(|record| (column.cell)(record));
                cell.unwrap_or_else(|| "-".to_owned())
            });
            builder.push_record(std::iter::once(sizes::format(size)).chain(cells));
        }
        let mut table = builder.build();
        table
            .with(Style::sharp())
            .modify(Columns::new(0..), Alignment::right())
            .modify(Rows::first().not(Columns::first()), Alignment::right());
        table
    }
}

fn ratio(record: &Record) -> Option<String> {
    let mark = if record.ratio_of == "near" { "" } else { "*" };
    record.ratio.map(|ratio| format!("{ratio:.2}{mark}"))
}

fn pool(record: &Record) -> Option<String> {
    let bytes = usize::try_from(record.pool_bytes?).ok()?;
    Some(sizes::format(bytes))
}

fn limits(run: &Run) -> Table {
    let mut builder = Builder::default();
    builder.push_record(["pattern", "mode", "size", "limit", "near", "min", "far"]);
    for limit in run.limits() {
        builder.push_record([
            limit.pattern.name().to_owned(),
            limit.mode.name().to_owned(),
            sizes::format(limit.size),
            limit.limit.clone(),
            median(limit.near),
            limit.near.min_us.map_or_else(|| "-".into(), figure),
            median(limit.far),
        ]);
    }
    let mut table = builder.build();
    table
        .with(Style::sharp())
        .modify(Columns::new(4..), Alignment::right());
    table
}
