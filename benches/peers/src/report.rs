// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as tables for a person, records for a program, and graphs.

use crate::outcome::{LIMIT, Run, View};
use crate::point::Point;
use crate::ratios;
use onecopy_bench::{BenchError, Mode, Pattern};
use onecopy_cli::bench::sizes;
use onecopy_cli::bench::svg::{Chart, Line, Quantity, Shade};
use onecopy_cli::bench::table::{figure, gigabytes};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use tabled::builder::Builder;
use tabled::settings::Style;

/// One result.
#[derive(Debug, Serialize)]
struct Record<'a> {
    pattern: Pattern,
    mode: Mode,
    size: usize,
    window: usize,
    ranks: usize,
    /// Jobs of each that took turns.
    jobs: usize,
    who: &'a str,
    /// near, far, or all where the machine was in neither state.
    state: &'static str,
    median_us: Option<f64>,
    min_us: Option<f64>,
    batches: usize,
    /// Median of the best of the others, and who that is.
    best_peer_us: Option<f64>,
    best_peer: Option<&'a str>,
    /// Median divided by that of the best of the others.
    ratio: Option<f64>,
    limit_us: Option<f64>,
    checked_bytes: u64,
    floor_ns: f64,
}

/// Writes everything and shows the tables.
pub(crate) fn write(run: &Run, out: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(out).map_err(BenchError::io(out.display().to_string()))?;
    let text = tables(run);
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    save(&out.join("peers.md"), text.as_bytes())?;
    save(&out.join("peers.jsonl"), &records(run)?)?;
    for (pattern, mode) in run.groups() {
        for view in run.views() {
            draw(run, (pattern, mode), view, out)?;
        }
    }
    let _ = writeln!(std::io::stdout().lock(), "written: {}", out.display());
    Ok(())
}

fn save(path: &Path, bytes: &[u8]) -> Result<(), BenchError> {
    fs::write(path, bytes).map_err(BenchError::io(path.display().to_string()))
}

fn records(run: &Run) -> Result<Vec<u8>, BenchError> {
    let mut text = Vec::new();
    let views = run.views();
    let each_view = |point| views.iter().map(move |&view| (point, view));
    for (point, view) in run.points.iter().flat_map(each_view) {
        let (state, each) = run.summaries(point, view);
        let best = run.best_peer(&each);
        let limit = run
            .names
            .iter()
            .zip(&each)
            .find(|((name, _), _)| *name == LIMIT);
        let limit_us = limit.and_then(|(_, summary)| summary.as_ref()?.median_us);
        for (((who, _), summary), result) in run.names.iter().zip(&each).zip(&point.results) {
            let (Some(summary), Some(result)) = (summary, result) else {
                continue;
            };
            if summary.median_us.is_none() {
                continue;
            }
            let record = Record {
                pattern: point.pattern,
                mode: point.mode,
                size: point.size,
                window: point.window,
                ranks: run.ranks,
                jobs: run.jobs,
                who,
                state,
                median_us: summary.median_us,
                min_us: summary.min_us,
                batches: summary.batches,
                best_peer_us: best.map(|(_, us)| us),
                best_peer: best.map(|(name, _)| name),
                ratio: best
                    .zip(summary.median_us)
                    .map(|((_, best), own)| (own / best * 1e3).round() / 1e3),
                limit_us,
                checked_bytes: result.checked_bytes,
                floor_ns: run.gate.floor_ns,
            };
            serde_json::to_writer(&mut text, &record)
                .map_err(|error| BenchError::Wrong(format!("record as JSON: {error}")))?;
            text.push(b'\n');
        }
    }
    Ok(text)
}

fn title(pattern: Pattern, mode: Mode) -> String {
    let what = match pattern {
        Pattern::PingPong => "Ping-pong, one-way microseconds",
        Pattern::SendRecv => "Exchange, microseconds",
        Pattern::Bw => "One-way bandwidth, GB/s",
        Pattern::BiBw => "Two-way bandwidth, GB/s of both directions",
        Pattern::Rate => "Message rate, millions of 8-byte messages per second",
        other => return format!("{}, microseconds", other.name()),
    };
    let mode = match mode {
        Mode::Same | Mode::All => "same buffers",
        Mode::OffCache => "buffers rotate through memory",
        Mode::Rewrite => "the sender rewrites its buffer before each send",
    };
    format!("{what}; {mode}")
}

/// A figure in the unit of the pattern's table.
fn shown(pattern: Pattern, size: usize, us: f64) -> String {
    match pattern {
        Pattern::Bw => format!("{:.1}", gigabytes(size, us)),
        Pattern::BiBw => format!("{:.1}", 2.0 * gigabytes(size, us)),
        Pattern::Rate => format!("{:.1}", 1.0 / us),
        _ => figure(us),
    }
}

fn tables(run: &Run) -> String {
    let mut text = format!(
        "{}\n\n{} ranks, {} jobs of each; {}\n",
        run.machine, run.ranks, run.jobs, run.gate
    );
    if run.ranks > run.machine.processors {
        let _ = writeln!(
            text,
            "MORE RANKS THAN PROCESSORS ({})",
            run.machine.processors
        );
    }
    let views = run.views();
    let each_view = |group| views.iter().map(move |&view| (group, view));
    for ((pattern, mode), view) in run.groups().into_iter().flat_map(each_view) {
        let points: Vec<&Point> = run
            .points
            .iter()
            .filter(|p| (p.pattern, p.mode) == (pattern, mode))
            .collect();
        let takes_part = |index: usize| points.iter().any(|point| point.results[index].is_some());
        let columns: Vec<usize> = (0..run.names.len())
            .filter(|&index| takes_part(index))
            .collect();
        let mut table = Builder::new();
        let mut head = vec!["size".to_owned()];
        head.extend(columns.iter().map(|&index| run.names[index].0.to_owned()));
        head.extend([
            "best peer".to_owned(),
            "onecopy / best".to_owned(),
            "best ours / best".to_owned(),
        ]);
        let other = columns.iter().any(|&index| run.names[index].0 == OTHER);
        if other {
            head.push(format!("onecopy / {OTHER}"));
        }
        table.push_record(head);
        for point in points {
            let (state, each) = run.summaries(point, view);
            let mark = if state == "near" || view.is_some() {
                ""
            } else {
                " *"
            };
            let mut row = vec![format!("{}{mark}", sizes::format(point.size))];
            row.extend(columns.iter().map(|&index| {
                let median = each[index].as_ref().and_then(|summary| summary.median_us);
                median.map_or_else(|| "-".to_owned(), |us| shown(pattern, point.size, us))
            }));
            let best = run.best_peer(&each);
            row.push(best.map_or_else(|| "-".to_owned(), |(name, _)| name.to_owned()));
            let ratio = |us: Option<f64>| {
                us.zip(best).map_or_else(
                    || "-".to_owned(),
                    |(own, (_, best))| format!("{:.2}", own / best),
                )
            };
            let ours = |only: Option<&str>| {
                let own = run.names.iter().zip(&each).filter(|((name, peer), _)| {
                    !peer
                        && only.map_or(name.starts_with("onecopy") && !name.contains("Rust"), |o| {
                            o == *name
                        })
                });
                own.filter_map(|(_, summary)| summary.as_ref()?.median_us)
                    .min_by(f64::total_cmp)
            };
            row.push(ratio(ours(Some("onecopy"))));
            row.push(ratio(ours(None)));
            if other {
                let both = ours(Some("onecopy")).zip(ours(Some(OTHER)));
                row.push(
                    both.map_or_else(|| "-".to_owned(), |(new, old)| format!("{:.3}", new / old)),
                );
            }
            table.push_record(row);
        }
        let mut table = table.build();
        let _ = writeln!(
            text,
            "\n### {}{}\n\n{}",
            title(pattern, mode),
            view.map_or_else(String::new, |state| format!("; {}", state.name())),
            table.with(Style::markdown())
        );
    }
    text.push_str(&ratios::table(run));
    if !run.costs.is_empty() {
        let mut table = Builder::new();
        let mut head = vec!["".to_owned(), "empty job of 2, ms (least)".to_owned()];
        for (ranks, ..) in &run.costs[0].memory {
            head.push(format!("rank 0 of {ranks}, MB"));
            head.push(format!("shared memory of {ranks}, MB"));
        }
        table.push_record(head);
        for cost in &run.costs {
            let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
            let mut row = vec![
                cost.name.to_owned(),
                format!(
                    "{} ({})",
                    ms(cost.empty_job_ms.median_us),
                    ms(cost.empty_job_ms.min_us)
                ),
            ];
            for (_, rank_0, shared) in &cost.memory {
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                row.extend([
                    format!("{:.1}", *rank_0 as f64 / 1024.0),
                    format!("{:.1}", *shared as f64 / 1024.0),
                ]);
            }
            table.push_record(row);
        }
        let mut table = table.build();
        let _ = writeln!(
            text,
            "\n### What a job costs: an empty one, and memory after ten integers from each rank to each\n\n{}",
            table.with(Style::markdown())
        );
    }
    let bytes: u64 = run
        .points
        .iter()
        .flat_map(|p| p.results.iter().flatten())
        .map(|r| r.checked_bytes)
        .sum();
    let state = if run.states.is_empty() {
        "near state (* of others where there were too few)"
    } else {
        "state that the table names"
    };
    let _ = writeln!(
        text,
        "\nMedians of batches in the {state}. The ratio is of times, below 1 is faster than the \
         best of the others. limit: a raw hand-off up to 56 bytes, above it one core's copy straight from the peer's pages. \
         Payload compared outside the timed loops: {bytes} bytes, all right.\n"
    );
    text
}

/// Another build of onecopy among the contestants.
const OTHER: &str = "other";

/// Colours: ours warm, the others cool.
const SHADES: [(&str, Shade); 15] = [
    ("onecopy", Shade(200, 40, 60)),
    ("onecopy --heap", Shade(230, 120, 0)),
    ("onecopy Alloc_mem", Shade(200, 160, 0)),
    ("onecopy Rust", Shade(240, 150, 160)),
    ("onecopy Rust alloc", Shade(245, 200, 130)),
    (OTHER, Shade(90, 60, 50)),
    ("other --heap", Shade(140, 110, 90)),
    ("other Alloc_mem", Shade(190, 170, 150)),
    ("mpich", Shade(0, 107, 164)),
    ("mpich ucx", Shade(95, 158, 209)),
    ("impi", Shade(44, 140, 80)),
    ("impi Alloc_mem", Shade(140, 200, 150)),
    ("ompi ob1", Shade(110, 80, 160)),
    ("ompi ucx", Shade(170, 140, 210)),
    (LIMIT, Shade(130, 130, 130)),
];

fn draw(
    run: &Run,
    (pattern, mode): (Pattern, Mode),
    view: View,
    out: &Path,
) -> Result<(), BenchError> {
    let points: Vec<&Point> = run
        .points
        .iter()
        .filter(|point| (point.pattern, point.mode) == (pattern, mode) && point.size > 0)
        .collect();
    if points.len() < 2 {
        return Ok(());
    }
    let quantity = if matches!(pattern, Pattern::Bw | Pattern::BiBw) {
        Quantity::Bandwidth
    } else {
        Quantity::Latency
    };
    let mut lines = Vec::new();
    for (index, (name, _)) in run.names.iter().enumerate() {
        let values = points.iter().filter_map(|point| {
            let (_, each) = run.summaries(point, view);
            let us = each[index].as_ref()?.median_us?;
            #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
            let size = point.size as f64;
            let value = match pattern {
                Pattern::Bw => gigabytes(point.size, us),
                Pattern::BiBw => 2.0 * gigabytes(point.size, us),
                _ => us,
            };
            Some((size, value))
        });
        let values: Vec<(f64, f64)> = values.collect();
        if !values.is_empty() {
            let shade = SHADES.iter().find(|(known, _)| known == name);
            lines.push(Line {
                name: (*name).to_owned(),
                shade: shade.map_or(Shade(0, 0, 0), |(_, shade)| *shade),
                dashed: *name == LIMIT,
                points: values,
            });
        }
    }
    let chart = Chart {
        title: match view {
            Some(state) => format!("{}; {}", title(pattern, mode), state.name()),
            None => title(pattern, mode),
        },
        under: format!(
            "medians, {} ranks; raw hand-off floor {:.0} ns",
            run.ranks, run.gate.floor_ns
        ),
        quantity,
        lines,
    };
    let state = view.map_or_else(String::new, |state| format!("-{}", state.name()));
    let path = out.join(format!("{}-{}{state}.svg", pattern.name(), mode.name()));
    save(&path, chart.svg()?.as_bytes())
}
