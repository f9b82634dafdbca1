// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole run as it is kept under `benches/record`: every figure once, one line a point.
//!
//! What follows from other figures is left out. The time of a limit stands among the limits of the point. A ratio is of
//! the near state where it has batches, else of the far one, else of all. Hand-offs are the median over the gate's
//! floor. So a record stays small enough for a repository.

use super::gate::Gate;
use super::machine::Machine;
use super::record::{LimitRecord, Record, Run, Summary};
use onecopy_bench::{Missing, Mode, Pattern};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run with the machine that it was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Book {
    /// Day of the run.
    pub date: String,
    /// The command's arguments.
    pub command: String,
    /// The machine's fingerprint.
    pub machine: Machine,
    /// Bounds of near and far.
    pub gate: Gate,
    /// Share of batches that were near, far, and dropped.
    pub states: [usize; 3],
    /// Mechanisms that the machine lacks.
    pub missing: Vec<Missing>,
    /// Ranks of the job.
    pub ranks: usize,
    /// What was measured.
    pub points: Vec<BookPoint>,
}

/// All results of one pattern, mode and size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BookPoint {
    /// How messages follow one another.
    pub pattern: Pattern,
    /// Which memory they use.
    pub mode: Mode,
    /// Bytes of one message.
    pub size: usize,
    /// Messages on their way at once.
    pub window: usize,
    /// By mechanism.
    pub results: BTreeMap<String, BookResult>,
    /// By limit.
    pub limits: BTreeMap<String, BookLimit>,
}

/// Batches by the machine's state. A state without batches is left out; so is `all` where it is the same as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BookTimes {
    /// In the near state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<BookSummary>,
    /// In the far state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<BookSummary>,
    /// All of them, those too that are neither near nor far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<BookSummary>,
}

/// Median and least microseconds per message, in five digits, and how many batches there were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BookSummary(pub f64, pub f64, pub usize);

/// One mechanism at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BookResult {
    #[serde(flatten)]
    times: BookTimes,
    /// Which limit bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    /// Median divided by that limit's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// Bytes that were compared with what was sent, outside the timed loops.
    checked_bytes: u64,
    /// Of a collective, the most bytes of temporary buffers that the pools of all ranks had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool_bytes: Option<u64>,
    /// What is to be reached, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_us: Option<f64>,
}

/// One limit at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BookLimit {
    #[serde(flatten)]
    times: BookTimes,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

impl Book {
    /// Of a run on this machine, by this command.
    #[must_use]
    pub fn new(run: &Run, machine: Machine, date: String, command: String) -> Self {
        let (records, limits) = (run.records(), run.limits());
        let point = |point: &super::record::Point| {
            let key = (point.pattern, point.mode, point.size);
            let own = records.iter();
            let own = own.filter(|record| (record.pattern, record.mode, record.size) == key);
            let bounds = limits.iter();
            let bounds = bounds.filter(|limit| (limit.pattern, limit.mode, limit.size) == key);
            BookPoint {
                pattern: point.pattern,
                mode: point.mode,
                size: point.size,
                window: point.window,
                results: own
                    .map(|record| (record.mechanism.name().to_owned(), record.into()))
                    .collect(),
                limits: bounds
                    .map(|limit| (limit.limit.clone(), limit.into()))
                    .collect(),
            }
        };
        Self {
            date,
            command,
            machine,
            gate: run.gate,
            states: run.states(),
            missing: run.missing.clone(),
            ranks: run.ranks,
            points: run.points.iter().map(point).collect(),
        }
    }

    /// As a file has it: JSON with a line for each point.
    ///
    /// # Errors
    /// A figure is no number.
    pub fn text(&self) -> serde_json::Result<String> {
        let head = Self {
            points: Vec::new(),
            ..self.clone()
        };
        let head = serde_json::to_string(&head)?;
        let points = self.points.iter().map(serde_json::to_string);
        let points = points.collect::<serde_json::Result<Vec<_>>>()?.join(",\n");
        let head = head.strip_suffix("]}").unwrap_or(&head);
        Ok(format!("{head}\n{points}\n]}}\n"))
    }
}

impl BookTimes {
    fn of(near: &Summary, far: &Summary, all: &Summary) -> Self {
        let is_new = all != near && all != far;
        Self {
            near: BookSummary::of(near),
            far: BookSummary::of(far),
            all: BookSummary::of(all).filter(|_| is_new),
        }
    }
}

impl BookSummary {
    fn of(summary: &Summary) -> Option<Self> {
        let (median, least) = (summary.median_us?, summary.min_us?);
        Some(Self(digits(median), digits(least), summary.batches))
    }
}

/// In five significant digits: batches differ by more.
fn digits(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

impl From<&Record> for BookResult {
    fn from(record: &Record) -> Self {
        Self {
            times: BookTimes::of(&record.near, &record.far, &record.all),
            limit: record.limit.clone(),
            ratio: record.ratio,
            checked_bytes: record.checked_bytes,
            pool_bytes: record.pool_bytes,
            target_us: record.target_us,
        }
    }
}

impl From<&LimitRecord> for BookLimit {
    fn from(limit: &LimitRecord) -> Self {
        Self {
            times: BookTimes::of(&limit.near, &limit.far, &limit.all),
            refused: limit.refused.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::run;
    use std::path::Path;

    fn book(probe: f64) -> Book {
        let machine = Machine::default();
        let text = |text: &str| text.to_owned();
        Book::new(&run(probe), machine, text("2026-01-31"), text("bench"))
    }

    #[test]
    fn a_book_has_each_figure_once() {
        let point = &book(60.0).points[0];
        assert_eq!((point.size, point.window), (4096, 1));
        let cico = &point.results["cico"];
        assert_eq!(cico.times.near, Some(BookSummary(0.5, 0.4, 3)));
        assert_eq!((cico.times.far, cico.times.all), (None, None));
        assert_eq!(
            (cico.limit.as_deref(), cico.ratio),
            (Some("direct"), Some(2.0))
        );
        assert_eq!(cico.checked_bytes, 4096);
        assert_eq!(
            point.limits["direct"].times.near,
            Some(BookSummary(0.25, 0.2, 2))
        );
        // Neither near nor far: what there is stands under `all`.
        let times = book(2000.0).points[0].results["cico"].times;
        assert_eq!((times.near, times.far), (None, None));
        assert_eq!(times.all, Some(BookSummary(0.5, 0.4, 3)));
    }

    #[test]
    fn a_figure_has_five_digits() {
        assert_eq!(digits(0.123_456_78), 0.123_46);
        assert_eq!(digits(123_456.78), 123_460.0);
    }

    #[test]
    fn what_is_written_is_read() {
        let book = book(60.0);
        let text = book.text().expect("numbers");
        assert_eq!(text.lines().count(), 2 + book.points.len());
        assert_eq!(serde_json::from_str::<Book>(&text).expect("a book"), book);
    }

    /// The kept runs are as this version would write them.
    #[test]
    fn kept_runs_are_books() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/record");
        let entries = std::fs::read_dir(folder).expect("the records");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut count = 0;
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "json")) {
            let text = std::fs::read_to_string(&path).expect("a file");
            let book: Book = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(!book.points.is_empty(), "{}", path.display());
            assert_eq!(book.text().expect("numbers"), text, "{}", path.display());
            count += 1;
        }
        assert!(count > 0);
    }
}
