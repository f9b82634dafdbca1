// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results as a person reads them.

use super::record::{Record, Run, Summary};
use super::{machine, sizes};
use onecopy_bench::{Mechanism, Mode, Pattern};
use std::io::{self, Write};
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

fn with_rate(record: &Record, us: Option<f64>) -> String {
    let Some(us) = us else { return "-".into() };
    match record.pattern {
        Pattern::Bw => format!("{} ({:.1})", figure(us), gigabytes(record.size, us)),
        Pattern::BiBw => format!("{} ({:.1})", figure(us), 2.0 * gigabytes(record.size, us)),
        Pattern::Rate => format!("{us:.4} ({:.1})", 1.0 / us),
        _ => figure(us),
    }
}

/// Writes all tables of a run.
///
/// # Errors
///
/// If the output cannot be written.
pub fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let records = run.records();
    let mut groups: Vec<(Pattern, Mode)> = Vec::new();
    for record in &records {
        if !groups.contains(&(record.pattern, record.mode)) {
            groups.push((record.pattern, record.mode));
        }
    }
    for (pattern, mode) in groups {
        let of_group: Vec<&Record> = records
            .iter()
            .filter(|record| record.pattern == pattern && record.mode == mode)
            .collect();
        write_group(&of_group, pattern, mode, out)?;
    }
    if records.is_empty() {
        write_limits(run, out)?;
    }
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

/// Name of the column with the limit of a mechanism.
fn limit_of(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Cma | Mechanism::Knem => "limit cma",
        Mechanism::CmaHuge => "limit huge",
        _ => "limit",
    }
}

fn write_group(
    records: &[&Record],
    pattern: Pattern,
    mode: Mode,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut mechanisms: Vec<Mechanism> = Vec::new();
    let mut sizes_seen: Vec<usize> = Vec::new();
    for record in records {
        if !mechanisms.contains(&record.mechanism) {
            mechanisms.push(record.mechanism);
        }
        if !sizes_seen.contains(&record.size) {
            sizes_seen.push(record.size);
        }
    }
    // A stray far batch is not worth columns, unless a result has nothing else.
    let of =
        |count: fn(&Record) -> usize| records.iter().map(|record| count(record)).sum::<usize>();
    let far = of(|record| record.far.batches) * 20 > of(|record| record.all.batches)
        || records
            .iter()
            .any(|record| record.near.batches == 0 && record.far.batches > 0);
    let near = records.iter().any(|record| record.near.batches > 0);
    // With many mechanisms the least times are left to the records: a terminal is only so wide.
    let min = near && mechanisms.len() <= 2;
    let mut builder = Builder::default();
    let mut head = vec!["size".to_owned()];
    let mut shown = Vec::new();
    for mechanism in &mechanisms {
        if !shown.contains(&limit_of(*mechanism)) {
            shown.push(limit_of(*mechanism));
            head.push(limit_of(*mechanism).to_owned());
        }
        if near {
            head.push(mechanism.to_string());
        }
        if min {
            head.push("min".to_owned());
        }
        if far {
            head.push(format!("{mechanism} far"));
        }
        if !near && !far {
            head.push(format!("{mechanism} any state"));
        }
        head.push("x".into());
        if pattern.is_collective() {
            head.extend(["hand-offs", "target", "pool"].map(String::from));
        }
    }
    builder.push_record(head);
    for size in sizes_seen {
        let mut row = vec![sizes::format(size)];
        let mut shown = Vec::new();
        for mechanism in &mechanisms {
            let record = records
                .iter()
                .find(|record| record.size == size && record.mechanism == *mechanism);
            let cell = |text: &dyn Fn(&Record) -> Option<String>| {
                record
                    .and_then(|record| text(record))
                    .unwrap_or_else(|| "-".into())
            };
            if !shown.contains(&limit_of(*mechanism)) {
                shown.push(limit_of(*mechanism));
                row.push(cell(&|record| record.limit_us.map(figure)));
            }
            if near {
                row.push(cell(&|record| {
                    Some(with_rate(record, record.near.median_us))
                }));
            }
            if min {
                row.push(cell(&|record| record.near.min_us.map(figure)));
            }
            if far {
                row.push(cell(&|record| record.far.median_us.map(figure)));
            }
            if !near && !far {
                row.push(cell(&|record| {
                    Some(with_rate(record, record.all.median_us))
                }));
            }
            row.push(cell(&|record| {
                let mark = if record.ratio_of == "near" { "" } else { "*" };
                record.ratio.map(|ratio| format!("{ratio:.2}{mark}"))
            }));
            if pattern.is_collective() {
                row.push(cell(&|record| record.hand_offs.map(|n| format!("{n:.1}"))));
                row.push(cell(&|record| {
                    record.target_us.map(|us| format!("\u{2264} {us}"))
                }));
                row.push(cell(&|record| {
                    let bytes = usize::try_from(record.pool_bytes?).ok()?;
                    Some(sizes::format(bytes))
                }));
            }
        }
        builder.push_record(row);
    }
    let mut table = builder.build();
    table
        .with(Style::sharp())
        .modify(Columns::new(0..), Alignment::right())
        .modify(Rows::first().not(Columns::first()), Alignment::right());
    writeln!(out, "{}\n{table}\n", title(pattern, mode))
}

fn write_limits(run: &Run, out: &mut dyn Write) -> io::Result<()> {
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
    writeln!(
        out,
        "limits of the machine, microseconds per message\n{table}\n"
    )
}
