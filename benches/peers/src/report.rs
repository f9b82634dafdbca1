// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run leaves: tables for a person ([`tables`]), records for a program, and graphs.

use crate::outcome::{LIMIT, OTHER, Run, View};
use crate::point::Point;
use crate::tables::{self, title};
use onecopy_bench::{BenchError, Mode, Pattern};
use onecopy_cli::bench::svg::{Chart, Line, Quantity, Shade};
use onecopy_cli::bench::table::gigabytes;
use serde::Serialize;
use std::fs;
use std::io::Write as _;
use std::path::Path;

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
    median_us: f64,
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
    let text = tables::text(run);
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
    for point in &run.points {
        for view in run.views() {
            for record in records_of(run, point, view) {
                serde_json::to_writer(&mut text, &record)
                    .map_err(|error| BenchError::Wrong(format!("record as JSON: {error}")))?;
                text.push(b'\n');
            }
        }
    }
    Ok(text)
}

/// The results of all that have one at a point.
fn records_of<'a>(run: &'a Run, point: &Point, view: View) -> Vec<Record<'a>> {
    let (state, each) = run.summaries(point, view);
    let best = run.best_peer(&each);
    let limit = run.names.iter().position(|(name, _)| *name == LIMIT);
    let limit_us = limit.and_then(|index| each[index].as_ref()?.median_us);
    let record = |index: usize| {
        let (summary, result) = (each[index].as_ref()?, point.results[index].as_ref()?);
        let median_us = summary.median_us?;
        Some(Record {
            pattern: point.pattern,
            mode: point.mode,
            size: point.size,
            window: point.window,
            ranks: run.ranks,
            jobs: run.jobs,
            who: run.names[index].0,
            state,
            median_us,
            min_us: summary.min_us,
            batches: summary.batches,
            best_peer_us: best.map(|(_, us)| us),
            best_peer: best.map(|(name, _)| name),
            ratio: best.map(|(_, best)| (median_us / best * 1e3).round() / 1e3),
            limit_us,
            checked_bytes: result.checked_bytes,
            floor_ns: run.gate.floor_ns,
        })
    };
    (0..run.names.len()).filter_map(record).collect()
}

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

/// Draws one pattern and mode. One size makes no line.
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
    let chart = Chart {
        title: match view {
            Some(state) => format!("{}; {}", title(pattern, mode), state.name()),
            None => title(pattern, mode),
        },
        under: format!(
            "medians, {} ranks; raw hand-off floor {:.0} ns",
            run.ranks, run.gate.floor_ns
        ),
        quantity: match pattern {
            Pattern::Bw | Pattern::BiBw => Quantity::Bandwidth,
            _ => Quantity::Latency,
        },
        lines: lines(run, &points, view),
    };
    // There may be one size alone, or a state in which the machine never was.
    if !chart.has_line() {
        return Ok(());
    }
    let state = view.map_or_else(String::new, |state| format!("-{}", state.name()));
    let path = out.join(format!("{}-{}{state}.svg", pattern.name(), mode.name()));
    save(&path, chart.svg()?.as_bytes())
}

/// A line for each that has figures.
fn lines(run: &Run, points: &[&Point], view: View) -> Vec<Line> {
    let mut lines = Vec::new();
    for (index, (name, _)) in run.names.iter().enumerate() {
        let values = points.iter().filter_map(|point| {
            let (_, each) = run.summaries(point, view);
            let us = each[index].as_ref()?.median_us?;
            #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
            let size = point.size as f64;
            let value = match point.pattern {
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
    lines
}
