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
    let (views, groups) = (run.views(), run.groups());
    let all: BTreeSet<usize> = run.points.iter().map(|point| point.size).collect();
    let mut table = Builder::new();
    let mut head = vec![String::new()];
    head.extend(all.iter().map(|&size| sizes::format(size)));
    table.push_record(head);
    let mut seen: Vec<(String, Vec<f64>)> = Vec::new();
    for &(pattern, mode) in &groups {
        for (memory, ours) in MEMORIES {
            let of = |size| {
                let mut points = run.points.iter();
                points.find(|p| (p.pattern, p.mode, p.size) == (pattern, mode, size))
            };
            let mut row = vec![format!("{}, {memory}", name(pattern, mode))];
            for &size in &all {
                let cells = views.iter().map(|&view| {
                    let found = of(size).and_then(|point| ratio(run, point, view, ours));
                    let state = view.map_or("", |state| state.name());
                    let kind = [kind(pattern), memory, state].join(" ");
                    let kind = kind.trim_end().to_owned();
                    if let Some(ratio) = found {
                        match seen.iter_mut().find(|(known, _)| *known == kind) {
                            Some((_, ratios)) => ratios.push(ratio),
                            None => seen.push((kind, vec![ratio])),
                        }
                    }
                    found.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
                });
                let cells: Vec<String> = cells.collect();
                row.push(if cells.iter().all(|cell| cell == "-") {
                    String::new()
                } else {
                    cells.join(" / ")
                });
            }
            if row.iter().skip(1).any(|cell| !cell.is_empty()) {
                table.push_record(row);
            }
        }
    }
    if seen.is_empty() {
        return String::new();
    }
    let states = views.iter().flatten().map(|state| state.name());
    let states: Vec<&str> = states.collect();
    let order = match states.as_slice() {
        [] => String::new(),
        states => format!("; {}", states.join(" / ")),
    };
    let mut table = table.build();
    let mut text = format!(
        "\n### Time of onecopy divided by that of the best of the others{order}\n\n{}\n\n",
        table.with(Style::markdown())
    );
    for (kind, ratios) in seen {
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
