// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the screen of `top` shows, and what keys change of it. Knows no terminal.

use std::collections::HashMap;

use onecopy_trace::report::{NamedProcess, Pair, Report};

use crate::command::trace::table::{errors, name};

/// By what lines are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Bytes per second.
    #[default]
    Rate,
    Bytes,
    Calls,
    P99,
    Errors,
    Source,
}

impl Sort {
    const ALL: [Self; 6] = [
        Self::Rate,
        Self::Bytes,
        Self::Calls,
        Self::P99,
        Self::Errors,
        Self::Source,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "bytes per second",
            Self::Bytes => "bytes",
            Self::Calls => "calls",
            Self::P99 => "p99",
            Self::Errors => "errors",
            Self::Source => "source",
        }
    }

    fn next(self) -> Self {
        let index = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(index + 1) % Self::ALL.len()]
    }
}

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    First,
    Last,
    Enter,
    Back,
    Erase,
    Char(char),
}

/// Which view is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Matrix,
    /// One pair, by its identity.
    Pair(Identity),
    Help,
}

/// What tells pairs apart from look to look: not the names that are shown, which are learned meanwhile.
pub(super) type Identity = (String, String, &'static str);

pub(super) fn identity(pair: &Pair) -> Identity {
    let process = |who: &NamedProcess| match (who.pid, &who.in_namespace) {
        (Some(pid), _) => pid.to_string(),
        (None, Some(id)) => id.clone(),
        (None, None) => name(who),
    };
    (
        process(&pair.source),
        process(&pair.sink),
        pair.mechanism.name(),
    )
}

/// A line of the matrix.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) pair: Pair,
    pub(super) bytes_per_s: f64,
    pub(super) calls_per_s: f64,
}

/// All that the screen shows.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) report: Report,
    lines: Vec<Line>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) types: bool,
    pub(super) paused: bool,
    pub(super) view: View,
    selected: Option<Identity>,
    pub(super) over: bool,
}

impl State {
    /// Shows a later report.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(super) fn show(&mut self, report: Report) {
        if self.paused {
            return;
        }
        let seconds = (report.seconds - self.report.seconds).max(1e-6);
        // What ranks count began with them, before anybody looked.
        let unseen = |pair: &Pair| match pair.mechanism.is_of_ranks() {
            true => (pair.bytes, pair.calls),
            false => (0, 0),
        };
        let before: HashMap<Identity, (u64, u64)> = self
            .report
            .pairs
            .iter()
            .map(|pair| (identity(pair), (pair.bytes, pair.calls)))
            .collect();
        self.lines = report
            .pairs
            .iter()
            .map(|pair| {
                let (bytes, calls) = before
                    .get(&identity(pair))
                    .copied()
                    .unwrap_or_else(|| unseen(pair));
                Line {
                    bytes_per_s: pair.bytes.saturating_sub(bytes) as f64 / seconds,
                    calls_per_s: pair.calls.saturating_sub(calls) as f64 / seconds,
                    pair: pair.clone(),
                }
            })
            .collect();
        self.report = report;
    }

    /// The lines that are shown, in their order.
    pub(super) fn lines(&self) -> Vec<&Line> {
        let wanted = self.filter.to_lowercase();
        let mut lines: Vec<&Line> = self
            .lines
            .iter()
            .filter(|line| {
                let pair = &line.pair;
                let job = pair.source.job.as_deref().unwrap_or("");
                let text = format!(
                    "{} {} {} {} {job}",
                    name(&pair.source),
                    name(&pair.sink),
                    pair.mechanism.name(),
                    errors(pair)
                );
                text.to_lowercase().contains(&wanted)
            })
            .collect();
        let p99 = |line: &Line| line.pair.latency_us.map_or(0.0, |latency| latency.p99);
        let failed = |line: &Line| line.pair.errors.values().sum::<u64>();
        lines.sort_by(|a, b| match self.sort {
            Sort::Rate => b.bytes_per_s.total_cmp(&a.bytes_per_s),
            Sort::Bytes => b.pair.bytes.cmp(&a.pair.bytes),
            Sort::Calls => b.pair.calls.cmp(&a.pair.calls),
            Sort::P99 => p99(b).total_cmp(&p99(a)),
            Sort::Errors => failed(b).cmp(&failed(a)),
            Sort::Source => a.pair.source.cmp(&b.pair.source),
        });
        lines
    }

    /// The place of the selected line among those that are shown.
    pub(super) fn selected(&self) -> usize {
        let lines = self.lines();
        self.selected
            .as_ref()
            .and_then(|wanted| {
                lines
                    .iter()
                    .position(|line| identity(&line.pair) == *wanted)
            })
            .unwrap_or(0)
    }

    /// The pair whose details are shown.
    pub(super) fn detailed(&self) -> Option<&Line> {
        let View::Pair(wanted) = &self.view else {
            return None;
        };
        self.lines
            .iter()
            .find(|line| identity(&line.pair) == *wanted)
    }

    fn select(&mut self, row: usize) {
        let chosen = self.lines().get(row).map(|line| identity(&line.pair));
        self.selected = chosen;
    }

    /// Does what a key means.
    pub(super) fn press(&mut self, key: Key) {
        if self.types {
            match key {
                Key::Char(c) => self.filter.push(c),
                Key::Erase => drop(self.filter.pop()),
                Key::Enter => self.types = false,
                Key::Back => {
                    self.filter.clear();
                    self.types = false;
                }
                Key::Up | Key::Down | Key::First | Key::Last => {}
            }
            return;
        }
        let (row, count) = (self.selected(), self.lines().len());
        match key {
            Key::Up | Key::Char('k') => self.select(row.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select((row + 1).min(count.saturating_sub(1))),
            Key::First => self.select(0),
            Key::Last => self.select(count.saturating_sub(1)),
            Key::Enter => {
                let chosen = self.lines().get(row).map(|line| identity(&line.pair));
                if let (View::Matrix, Some(chosen)) = (&self.view, chosen) {
                    self.view = View::Pair(chosen);
                }
            }
            Key::Back if self.view == View::Matrix => self.filter.clear(),
            Key::Back | Key::Erase => self.view = View::Matrix,
            Key::Char('q') => self.over = true,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('/') => self.types = true,
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Char('?' | 'h') => {
                self.view = if self.view == View::Help {
                    View::Matrix
                } else {
                    View::Help
                };
            }
            Key::Char(_) => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use onecopy_trace::observed::Mechanism;
    use onecopy_trace::report::{Latency, NamedProcess, SizeBin};

    pub(crate) fn report(seconds: f64, bytes: [u64; 2]) -> Report {
        let who = |rank, comm: &str| NamedProcess {
            pid: Some(100 + rank),
            rank: Some(rank),
            comm: Some(comm.to_owned()),
            ..NamedProcess::default()
        };
        let pair = |source, sink, mechanism, bytes: u64| Pair {
            source,
            sink,
            mechanism,
            calls: bytes / 10,
            bytes,
            errors: std::collections::BTreeMap::from([("EPERM".to_owned(), 2)]),
            latency_us: Some(Latency {
                p50: 1.5,
                p99: 10.0,
                p999: 20.0,
            }),
            gb_per_s: Some(3.0),
            copy_gb_per_s: None,
            sizes: vec![SizeBin {
                from: 4096,
                below: 5120,
                calls: 7,
            }],
            faults: 3,
            wait_us: 0.0,
            flushes: 0,
        };
        Report {
            seconds,
            pairs: vec![
                pair(
                    who(0, "alpha"),
                    who(1, "beta"),
                    Mechanism::CmaRead,
                    bytes[0],
                ),
                pair(who(1, "beta"), who(0, "alpha"), Mechanism::Heap, bytes[1]),
            ],
            ..Report::default()
        }
    }

    fn state() -> State {
        let mut state = State::default();
        state.show(report(1.0, [1000, 5000]));
        state.show(report(2.0, [9000, 6000]));
        state
    }

    fn mechanisms(state: &State) -> Vec<&'static str> {
        state
            .lines()
            .iter()
            .map(|line| line.pair.mechanism.name())
            .collect()
    }

    /// What ranks have counted since they began has no rate when it is first seen; what the kernel's programs count
    /// began with them. A row stays the same when its names are learned.
    #[test]
    fn a_first_rate_is_of_what_was_seen() {
        let mut state = State::default();
        state.show(report(2.0, [1000, 5000]));
        let rates = |state: &State| {
            let lines = state.lines.iter();
            let rates = lines.map(|line| (line.bytes_per_s.round(), line.calls_per_s.round()));
            rates.collect::<Vec<_>>()
        };
        assert_eq!(rates(&state), [(500.0, 50.0), (0.0, 0.0)]);
        let mut later = report(3.0, [1000, 6000]);
        later.pairs[0].source.comm = Some("gamma".to_owned());
        later.pairs[0].sink.rank = Some(7);
        state.show(later);
        assert_eq!(rates(&state), [(0.0, 0.0), (1000.0, 100.0)]);
    }

    #[test]
    fn rates_are_of_the_last_interval() {
        let mut state = state();
        assert_eq!(mechanisms(&state), ["cma-read", "heap"]);
        assert!((state.lines()[0].bytes_per_s - 8000.0).abs() < 1.0);
        state.show(report(3.0, [9000, 9000]));
        assert_eq!(mechanisms(&state), ["heap", "cma-read"]);
        state.press(Key::Char('p'));
        state.show(report(4.0, [90_000, 9000]));
        assert_eq!(mechanisms(&state), ["heap", "cma-read"], "paused");
    }

    #[test]
    fn the_selection_follows_its_pair() {
        let mut state = state();
        state.press(Key::Down);
        assert_eq!(state.selected(), 1);
        state.press(Key::Down);
        assert_eq!(state.selected(), 1, "the last one");
        state.show(report(3.0, [9000, 90_000]));
        assert_eq!(state.selected(), 0, "it is the first line now");
        state.press(Key::Enter);
        assert_eq!(
            state.detailed().map(|line| line.pair.mechanism),
            Some(Mechanism::Heap)
        );
        state.press(Key::Back);
        assert_eq!(state.view, View::Matrix);
    }

    #[test]
    fn a_filter_is_typed_and_given_up() {
        let mut state = state();
        for key in ["/", "H", "e", "a", "q"]
            .iter()
            .flat_map(|text| text.chars())
        {
            state.press(Key::Char(key));
        }
        assert!(!state.over, "the letter went to the filter");
        assert!(mechanisms(&state).is_empty());
        state.press(Key::Erase);
        state.press(Key::Enter);
        assert_eq!(mechanisms(&state), ["heap"]);
        state.press(Key::Back);
        assert_eq!(mechanisms(&state).len(), 2);
        state.press(Key::Char('q'));
        assert!(state.over);
    }

    #[test]
    fn every_order_is_reached() {
        let mut state = state();
        let first = state.sort;
        for _ in 0..Sort::ALL.len() {
            state.press(Key::Char('s'));
            assert_eq!(state.lines().len(), 2);
        }
        assert_eq!(state.sort, first);
        state.press(Key::Char('?'));
        assert_eq!(state.view, View::Help);
        state.press(Key::Char('?'));
        assert_eq!(state.view, View::Matrix);
    }
}
