// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy top`: the matrix of copies, live.

mod draw;
mod keys;
mod screen;
mod state;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use super::trace::table;
use super::{CliError, print, text};
use crate::observe::{ObserveOptions, Source, begin_undisturbed};

/// Show live which process copies how much from which, by which mechanism, on a full screen
///
/// A line for each pair of processes and each mechanism: bytes per second, calls per second, bytes, latency (p50, p99),
/// rate and errors. Rates per second are of the last interval, other figures since observing began. Lines are sorted
/// and filtered, and a pair has details: sizes of its calls and copies that it missed. Press ? for the keys. A process
/// is shown as RANK:COMMAND[ID]. Loads and stores in shared memory are not seen.
///
/// Needs root, or CAP_BPF and CAP_PERFMON; 'onecopy trace --check' says what is permitted here. Without them, and with
/// --own, it shows onecopy's own ranks of the same user by their statistics pages.
///
/// Like 'onecopy trace', it costs time. The second line says how much, for each call that is observed and for each
/// other system call of the node. With --own the ranks pay nothing.
///
/// Where standard output is no terminal, and with --once, it prints one table after one interval. --json prints one
/// JSON object an interval, each on a line, of the form that 'onecopy trace --json' writes.
///
/// The exit code is 0, 128 + N after signal N, and 129 (that of SIGHUP) if the terminal goes away.
#[derive(clap::Args, Debug)]
#[expect(
    rustdoc::broken_intra_doc_links,
    reason = "the brackets are shown as they are, in the help"
)]
pub(crate) struct Args {
    /// Print one table after one interval, and end
    #[arg(long)]
    once: bool,

    /// Print one JSON object an interval, each on a line
    #[arg(long)]
    json: bool,

    /// Show only onecopy's own ranks, by their statistics pages: needs no privilege and costs them nothing
    #[arg(long)]
    own: bool,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval, allow_negative_numbers = true)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    if (0.05..=3600.0).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err("not between 0.05 and 3600 seconds".to_owned())
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    if !args.own {
        begin_undisturbed();
    }
    let mut source = Source::open(&ObserveOptions {
        own: args.own,
        ..ObserveOptions::default()
    });
    if !args.json && !args.once && std::io::stdout().is_terminal() {
        return screen::run(&mut source, args.interval);
    }
    // Ranks that end meanwhile are found now.
    source.look();
    loop {
        std::thread::sleep(args.interval);
        let observed = source.observe();
        let report = source.report(&observed, &[]);
        if args.json {
            let line = text::json_line(&report)?;
            print(|out| writeln!(out, "{line}"))?;
        } else {
            print(|out| write!(out, "{}", table::report(&report)))?;
        }
        if args.once || !args.json {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
