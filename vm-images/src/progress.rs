// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a person sees while they wait: one line that moves on a terminal, one line for each step elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows which step runs.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    started: Instant,
}

impl Progress {
    /// Shows on standard error.
    #[must_use]
    pub fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        let bar = if terminal {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        } else {
            ProgressBar::hidden()
        };
        Self {
            bar,
            terminal,
            started: Instant::now(),
        }
    }

    /// Shows nothing: for what runs beside a step that is shown.
    #[must_use]
    pub fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            terminal: true,
            started: Instant::now(),
        }
    }

    /// A step begins.
    pub fn step(&self, what: &str) {
        if self.terminal {
            self.bar.set_message(what.to_owned());
        } else {
            let seconds = self.started.elapsed().as_secs();
            self.note(&format!("[{seconds:>4} s] {what}"));
        }
    }

    /// Where a step stands; only a terminal shows it.
    pub fn detail(&self, what: &str) {
        if self.terminal {
            self.bar.set_message(what.to_owned());
        }
    }

    /// A line that stays.
    pub fn note(&self, what: &str) {
        // When standard error is closed there is nobody left to tell.
        self.bar.suspend(|| {
            let _ = writeln!(io::stderr().lock(), "{what}");
        });
    }

    /// Leaves the terminal to somebody else.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
