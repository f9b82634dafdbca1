// SPDX-License-Identifier: MIT OR Apache-2.0
//! All points in one table: our time divided by that of the best of the others, in whichever of their settings is best
//! there.

use crate::outcome::{Run, View};
use crate::point::Point;
use onecopy_bench::{Mode, Pattern};
use onecopy_cli::bench::record::Summary;
use onecopy_cli::bench::sizes;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use tabled::builder::Builder;
use tabled::settings::Style;

/// Memory of the messages, and ours that have it.
const MEMORIES: [(&str, &[&str]); 2] = [
    ("plain", &["onecopy"]),
    ("heap", &["onecopy --heap", "onecopy Alloc_mem"]),
];

/// The table, and the median of each kind of row; nothing where none of the others took part.
pub(crate) fn table(run: &Run) -> String {
    let sizes: BTreeSet<usize> = run.points.iter().map(|point| point.size).collect();
    let mut rows = Vec::new();
    for group in run.groups() {
        for memory in MEMORIES {
            rows.extend(Row::new(run, group, memory, &sizes));
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Builder::new();
    let heads = sizes.iter().map(|&size| sizes::format(size));
    table.push_record(std::iter::once(String::new()).chain(heads));
    for row in &rows {
        table.push_record(row.cells());
    }
    let views = run.views();
    let states: Vec<&str> = views.iter().flatten().map(|state| state.name()).collect();
    let order = match states.as_slice() {
        [] => String::new(),
        states => format!("; {}", states.join(" / ")),
    };
    format!(
        "\n### Time of onecopy divided by that of the best of the others{order}\n\n{}\n\n{}",
        table.build().with(Style::markdown()),
        medians(&rows, &views)
    )
}

/// Ratios of one pattern and mode, with messages in one kind of memory.
struct Row {
    pattern: Pattern,
    mode: Mode,
    memory: &'static str,
    /// By size, and by view.
    ratios: Vec<Vec<Option<f64>>>,
}

impl Row {
    /// None if there is no ratio.
    fn new(
        run: &Run,
        (pattern, mode): (Pattern, Mode),
        (memory, ours): (&'static str, &[&str]),
        sizes: &BTreeSet<usize>,
    ) -> Option<Self> {
        let views = run.views();
        let of_size = |&size: &usize| {
            let mut points = run.points.iter();
            let point = points.find(|p| (p.pattern, p.mode, p.size) == (pattern, mode, size));
            let of_view = |&view: &View| ratio(run, point?, view, ours);
            views.iter().map(of_view).collect()
        };
        let ratios: Vec<Vec<Option<f64>>> = sizes.iter().map(of_size).collect();
        ratios
            .iter()
            .flatten()
            .any(Option::is_some)
            .then_some(Self {
                pattern,
                mode,
                memory,
                ratios,
            })
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![format!(
            "{}, {}",
            name(self.pattern, self.mode),
            self.memory
        )];
        cells.extend(self.ratios.iter().map(|ratios| {
            if ratios.iter().all(Option::is_none) {
                return String::new();
            }
            let text = |ratio: &Option<f64>| ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
            let texts: Vec<String> = ratios.iter().map(text).collect();
            texts.join(" / ")
        }));
        cells
    }
}

/// A line for each kind of row and each view, in the order of their first ratios.
fn medians(rows: &[Row], views: &[View]) -> String {
    let mut kinds: Vec<(String, Vec<f64>)> = Vec::new();
    for row in rows {
        for ratios in &row.ratios {
            for (&ratio, &view) in ratios.iter().zip(views) {
                let Some(ratio) = ratio else { continue };
                let state = view.map_or("", |state| state.name());
                let kind = [kind(row.pattern), row.memory, state].join(" ");
                let kind = kind.trim_end().to_owned();
                match kinds.iter_mut().find(|(known, _)| *known == kind) {
                    Some((_, ratios)) => ratios.push(ratio),
                    None => kinds.push((kind, vec![ratio])),
                }
            }
        }
    }
    let mut text = String::new();
    for (kind, ratios) in kinds {
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let count = ratios.len();
        let median = Summary::of(ratios).median_us.unwrap_or(0.0);
        let _ = writeln!(
            text,
            "- {kind}: median {median:.2}, most {most:.2}, {count} cells"
        );
    }
    text
}

fn name(pattern: Pattern, mode: Mode) -> String {
    match mode {
        Mode::Same | Mode::All => pattern.name().to_owned(),
        other => format!("{} {}", pattern.name(), other.name()),
    }
}

/// Patterns of which a median is told together.
fn kind(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::PingPong => "ping-pong",
        Pattern::Bw | Pattern::BiBw | Pattern::Rate => "windows",
        Pattern::SendRecv => "exchange",
        _ => "collectives",
    }
}

/// The best of ours with this memory, divided by the best of the others.
fn ratio(run: &Run, point: &Point, view: View, ours: &[&str]) -> Option<f64> {
    let (_, each) = run.summaries(point, view);
    let (_, best) = run.best_peer(&each)?;
    let own = run.names.iter().zip(&each);
    let own = own.filter(|((name, _), _)| ours.contains(name));
    let own = own.filter_map(|(_, summary)| summary.as_ref()?.median_us);
    Some(own.min_by(f64::total_cmp)? / best)
}
