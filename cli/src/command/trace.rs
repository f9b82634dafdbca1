// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy trace`: what is copied between processes, by which mechanism, and why it was slow.

mod check;
mod diff;
mod outputs;
mod program;
pub(super) mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};

use super::{CliError, complain, print, text};
use crate::observe::{ObserveOptions, Source, begin_undisturbed};
use crate::signals::Signals;
use outputs::Outputs;
use program::Program;

pub(super) use program::{COMMAND as GATE, GateArgs, run_gate};

/// Show which process copied how much from which, by which mechanism, and why it was slow, for any program
///
/// With PROG, starts it, follows it and all that it starts, and reports at its end. Without, observes all programs of
/// the node until Ctrl-C or another signal asks for the report. Programs are observed by eBPF: nothing is linked,
/// restarted or set.
///
/// The report has a line for each pair of processes and each mechanism. It shows calls, bytes, latency (p50, p99),
/// rates, page faults of the caller, and errors. It lists waits for address spaces, and totals of RDMA devices and of
/// kernel modules. Single copies that were missed are listed with the reason and a remedy. Loads and stores in shared
/// memory are not seen.
///
/// Needs root, or CAP_BPF and CAP_PERFMON. Tracefs is read with CAP_DAC_READ_SEARCH, and ranks of other users are named
/// with CAP_SYS_PTRACE. A timeline has events of onecopy's runtime with CAP_SYS_ADMIN. With --check it says what is
/// permitted here, and what is lost where it is not. Onecopy's own ranks of the same user are seen without privilege.
///
/// Observing costs time: some hundred nanoseconds for each call that is observed, and less for each other system call
/// of the node. Both are measured when it begins, and printed. --max-overhead is about the first. Ranks of onecopy pay
/// nothing for their counts. Nothing stays in the kernel at the end.
///
/// The report is a table on standard output. --json writes all its figures as one JSON object, which 'trace diff'
/// compares. --perfetto writes a timeline in the trace-event form (JSON). --prometheus writes metrics in the text form,
/// as the node exporter's collector of text files takes them. Whether a file can be written is tried first. It is
/// replaced as a whole at the end, and keeps its mode and, where that is permitted, its owner. A signal that comes
/// meanwhile ends the writing, and leaves each file as it was or whole.
///
/// The exit code is that of PROG: 128 + N if signal N ended it. It is 127 or 126 if PROG is not found or cannot be
/// started; then there is no report.
/// Without PROG it is 128 + N after signal N, and otherwise 0. It is 1 if a file cannot be written, or nobody reads the
/// report of a run without PROG.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Sub>,

    /// Write the report as one JSON object, or with --check its list; - is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write a timeline for ui.perfetto.dev and other viewers of trace events; - is standard output
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,

    /// Write calls, bytes, errors, latencies, page faults, waits and costs as metrics in Prometheus's text form; - is
    /// standard output
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,

    /// How much of the callers' processor time observing may take before it gives up detail. First goes the timeline,
    /// then page faults, flushes and waits, then latencies. Counts go on beyond it
    #[arg(long, value_name = "P%", value_parser = percent, allow_negative_numbers = true)]
    max_overhead: Option<f64>,

    /// Observe for so long; PROG is then asked to end (TERM), and killed 5 seconds later
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds, allow_negative_numbers = true)]
    seconds: Option<Duration>,

    /// Try every probe, print what is lost without it and what would permit it, and end
    #[arg(long, conflicts_with_all = ["perfetto", "prometheus", "max_overhead", "seconds", "program"])]
    check: bool,

    /// The program to start, and its arguments: any program, under any launcher
    #[arg(last = true, value_name = "PROG ARGS")]
    program: Vec<OsString>,
}

#[derive(clap::Subcommand, Debug)]
enum Sub {
    /// Compare two reports that were written by --json
    Diff(diff::Args),
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| "not a number of percent".to_owned())?;
    if value > 0.0 && value <= 100.0 {
        Ok(value)
    } else {
        Err("not between 0 and 100 percent".to_owned())
    }
}

/// How often events are taken, and statistics pages are looked for at most. Chosen by magnitude: the buffers of events
/// last for longer, and nobody sees a delay of so much.
const PERIOD: Duration = Duration::from_millis(50);
/// Looking takes one part in so many of a processor's time at most: a node may have any number of processes. Chosen by
/// magnitude.
const LOOK_SHARE: u32 = 10;

pub(crate) fn run(args: Args) -> Result<ExitCode, CliError> {
    if let Some(Sub::Diff(args)) = &args.command {
        return diff::run(args);
    }
    begin_undisturbed();
    if args.check {
        return check::run(args.json.as_deref());
    }
    // Before anything is started: a file that cannot be written is known now.
    let mut outputs = Outputs::open(&args.json, &args.perfetto, &args.prometheus)?;
    let mut program = if args.program.is_empty() {
        None
    } else {
        Some(Program::prepare(&args.program)?)
    };
    // After the program was started, which would begin with these held back otherwise.
    let signals = Signals::catch()?;
    hold_back_the_limit_of_files()?;
    let mut source = Source::open(&ObserveOptions {
        own: false,
        follow: program.as_ref().map(Program::pid),
        program: args.program.clone(),
        events: args.perfetto.is_some(),
        max_overhead: args.max_overhead,
    });
    if let Some(program) = &program {
        program.go()?;
    }
    let code = watch(
        &mut source,
        &mut outputs,
        program.as_mut(),
        &signals,
        args.seconds,
    )?;
    if program.as_ref().is_some_and(Program::has_failed_to_begin) {
        // Nothing was observed: a report of an earlier run is worth more.
        outputs.unfinished().give_up();
        return Ok(code);
    }
    let written = write_report(source, outputs, signals, &args.program);
    let failed = written.into_iter().filter_map(Result::err);
    // The program has its code, whether or not somebody reads the report.
    let failed = failed.filter(|error| program.is_none() || !error.is_unread());
    report_failures(failed).map(|()| code)
}

/// Writes the report of all that was observed, in each form that is asked for. Gives what came of each.
fn write_report(
    mut source: Source,
    mut outputs: Outputs,
    signals: Signals,
    program: &[OsString],
) -> Vec<Result<(), CliError>> {
    let words = program.iter().map(|word| word.to_string_lossy().into());
    let observed = source.observe();
    outputs.keep(source.events());
    let mut report = source.report(&observed, &words.collect::<Vec<String>>());
    // A reader of what is written now may keep it waiting: the next signal ends that.
    let unfinished = outputs.unfinished();
    // Where there is no thread for that, it does so as it ends any command.
    let _ = signals.end_by_next(move || unfinished.give_up());
    let takes_stdout = outputs.takes_stdout();
    let mut written = outputs.finish(&mut report, &observed);
    if !takes_stdout {
        written.push(print(|out| write!(out, "{}", table::report(&report))));
    }
    written
}

/// Reports all failures but the first, which it returns for the caller to report.
fn report_failures(mut failed: impl Iterator<Item = CliError>) -> Result<(), CliError> {
    match failed.next() {
        None => Ok(()),
        Some(CliError::Unread(source)) => Err(CliError::io("standard output")(source)),
        Some(first) => {
            for another in failed {
                complain(&another.to_string());
            }
            Err(first)
        }
    }
}

/// A file that gets too large is an error of its writing then, and does not end the command in the middle.
fn hold_back_the_limit_of_files() -> Result<(), CliError> {
    let limit: SigSet = [Signal::SIGXFSZ].into_iter().collect();
    let held = limit.thread_block();
    held.map_err(|errno| CliError::io("SIGXFSZ")(errno.into()))
}

/// What this thread has taken of a processor. Where others take it meanwhile, names would be looked for too seldom by
/// the time that passes.
fn processor_time() -> Duration {
    let taken = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    taken.map_or(Duration::ZERO, Duration::from)
}

/// Until the program has ended, the time is over, or somebody asks for the end.
fn watch(
    source: &mut Source,
    outputs: &mut Outputs,
    mut program: Option<&mut Program>,
    signals: &Signals,
    limit: Option<Duration>,
) -> Result<ExitCode, CliError> {
    let begun = Instant::now();
    let mut next_look = begun;
    loop {
        let until = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        let wait = until.map_or(PERIOD, |left| left.min(PERIOD));
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
        // An interrupted wait is as good as one that is over.
        let _ = poll(&mut fds, timeout);
        let mut asked = None;
        while let Some(signal) = signals.next() {
            match &program {
                Some(program) if !signal.is_own_limit() => program.pass_on(&signal),
                _ => asked = Some(signal.code()),
            }
        }
        if let Some(program) = &mut program
            && let Some(code) = program.ended()?
        {
            return Ok(code);
        }
        // Statistics pages are found while their ranks live.
        let now = Instant::now();
        if now >= next_look {
            let before = processor_time();
            source.look();
            let taken = processor_time().saturating_sub(before);
            next_look = now + taken.saturating_mul(LOOK_SHARE);
        }
        outputs.keep(source.events());
        let is_over = until.is_some_and(|left| left.is_zero());
        match &mut program {
            Some(program) if is_over || asked.is_some() => return program.stop(),
            None if is_over || asked.is_some() => return Ok(asked.unwrap_or(ExitCode::SUCCESS)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_times_are_checked() {
        assert_eq!(percent("2%"), Ok(2.0));
        assert_eq!(percent("0.5"), Ok(0.5));
        assert!(percent("0").is_err());
        assert!(percent("x%").is_err());
        assert!(text::parse_seconds("0").is_err());
        assert_eq!(text::parse_seconds("1.5"), Ok(Duration::from_millis(1500)));
    }
}
