// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as tables of Markdown.

use crate::outcome::{Cost, OTHER, Run, View};
use crate::point::Point;
use crate::ratios;
use onecopy_bench::{Mode, Pattern};
use onecopy_cli::bench::record::Summary;
use onecopy_cli::bench::sizes;
use onecopy_cli::bench::table::{figure, gigabytes};
use std::fmt::Write as _;
use tabled::builder::Builder;
use tabled::settings::Style;

/// What stands where there is no figure.
const NONE: &str = "-";

/// All tables, with what a reader must know of them.
pub(crate) fn text(run: &Run) -> String {
    let mut text = heading(run);
    for group in run.groups() {
        for view in run.views() {
            text.push_str(&group_table(run, group, view));
        }
    }
    text.push_str(&ratios::table(run));
    text.push_str(&cost_table(&run.costs));
    text.push_str(&notes(run));
    text
}

fn heading(run: &Run) -> String {
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
    text
}

pub(crate) fn title(pattern: Pattern, mode: Mode) -> String {
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

/// The figures of one pattern and mode: a row for each size.
fn group_table(run: &Run, (pattern, mode): (Pattern, Mode), view: View) -> String {
    let points: Vec<&Point> = run
        .points
        .iter()
        .filter(|point| (point.pattern, point.mode) == (pattern, mode))
        .collect();
    let takes_part = |&index: &usize| points.iter().any(|point| point.results[index].is_some());
    let contestants: Vec<usize> = (0..run.names.len()).filter(takes_part).collect();
    let with_other = contestants.iter().any(|&index| run.names[index].0 == OTHER);
    let mut table = Builder::new();
    let mut head = vec!["size".to_owned()];
    head.extend(
        contestants
            .iter()
            .map(|&index| run.names[index].0.to_owned()),
    );
    head.extend(["best peer", "onecopy / best", "best ours / best"].map(str::to_owned));
    if with_other {
        head.push(format!("onecopy / {OTHER}"));
    }
    table.push_record(head);
    for point in points {
        let row = Row::new(run, point, view);
        let mut cells = vec![row.size()];
        cells.extend(contestants.iter().map(|&index| row.figure(index)));
        cells.push(row.best.map_or(NONE, |(name, _)| name).to_owned());
        cells.push(row.beside_best(row.median_of("onecopy")));
        cells.push(row.beside_best(row.best_of_ours()));
        if with_other {
            cells.push(row.beside_other());
        }
        table.push_record(cells);
    }
    let state = view.map_or_else(String::new, |state| format!("; {}", state.name()));
    format!(
        "\n### {}{state}\n\n{}\n",
        title(pattern, mode),
        table.build().with(Style::markdown())
    )
}

/// The figures of one point.
struct Row<'a> {
    run: &'a Run,
    point: &'a Point,
    view: View,
    state: &'static str,
    /// By contestant.
    each: Vec<Option<Summary>>,
    best: Option<(&'static str, f64)>,
}

impl<'a> Row<'a> {
    fn new(run: &'a Run, point: &'a Point, view: View) -> Self {
        let (state, each) = run.summaries(point, view);
        Self {
            run,
            point,
            view,
            state,
            best: run.best_peer(&each),
            each,
        }
    }

    fn size(&self) -> String {
        let usual = self.state == "near" || self.view.is_some();
        let mark = if usual { "" } else { " *" };
        format!("{}{mark}", sizes::format(self.point.size))
    }

    /// A contestant's figure in the unit of the pattern's table.
    fn figure(&self, contestant: usize) -> String {
        let summary = self.each[contestant].as_ref();
        let Some(us) = summary.and_then(|summary| summary.median_us) else {
            return NONE.to_owned();
        };
        let size = self.point.size;
        match self.point.pattern {
            Pattern::Bw => format!("{:.1}", gigabytes(size, us)),
            Pattern::BiBw => format!("{:.1}", 2.0 * gigabytes(size, us)),
            Pattern::Rate => format!("{:.1}", 1.0 / us),
            _ => figure(us),
        }
    }

    /// The least median of those of ours that `wanted` picks by name.
    fn least(&self, wanted: impl Fn(&str) -> bool) -> Option<f64> {
        let all = self.run.names.iter().zip(&self.each);
        let ours = all.filter(|((name, is_peer), _)| !is_peer && wanted(name));
        ours.filter_map(|(_, summary)| summary.as_ref()?.median_us)
            .min_by(f64::total_cmp)
    }

    fn median_of(&self, name: &str) -> Option<f64> {
        self.least(|other| other == name)
    }

    /// Of the MPI library, with any memory.
    fn best_of_ours(&self) -> Option<f64> {
        self.least(|name| name.starts_with("onecopy") && !name.contains("Rust"))
    }

    fn beside_best(&self, us: Option<f64>) -> String {
        let both = us.zip(self.best);
        both.map_or(NONE.to_owned(), |(us, (_, best))| {
            format!("{:.2}", us / best)
        })
    }

    fn beside_other(&self) -> String {
        let both = self.median_of("onecopy").zip(self.median_of(OTHER));
        both.map_or(NONE.to_owned(), |(new, old)| format!("{:.3}", new / old))
    }
}

/// What jobs cost beside their messages; nothing if that was not measured.
fn cost_table(costs: &[Cost]) -> String {
    let Some(first) = costs.first() else {
        return String::new();
    };
    let mut table = Builder::new();
    let mut head = vec![String::new(), "empty job of 2, ms (least)".to_owned()];
    for (ranks, ..) in &first.memory {
        head.push(format!("rank 0 of {ranks}, MB"));
        head.push(format!("shared memory of {ranks}, MB"));
    }
    table.push_record(head);
    for cost in costs {
        let ms = |ms: Option<f64>| ms.map_or(NONE.to_owned(), |ms| format!("{ms:.0}"));
        let Summary {
            median_us, min_us, ..
        } = cost.empty_job_ms;
        let mut row = vec![
            cost.name.to_owned(),
            format!("{} ({})", ms(median_us), ms(min_us)),
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
    format!(
        "\n### What a job costs: an empty one, and memory after ten integers from each rank to each\n\n{}\n",
        table.build().with(Style::markdown())
    )
}

fn notes(run: &Run) -> String {
    let results = run.points.iter().flat_map(|p| p.results.iter().flatten());
    let bytes: u64 = results.map(|result| result.checked_bytes).sum();
    let state = if run.states.is_empty() {
        "near state (* of others where there were too few)"
    } else {
        "state that the table names"
    };
    format!(
        "\nMedians of batches in the {state}. The ratio is of times, below 1 is faster than the \
         best of the others. limit: a raw hand-off up to 56 bytes, above it one core's copy straight from the peer's pages. \
         Payload compared outside the timed loops: {bytes} bytes, all right.\n\n"
    )
}
