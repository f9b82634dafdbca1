// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy bench net`.

use super::{CliError, failed, print};
use crate::bench::sizes;
use crate::command::{pair, text};
use onecopy::Knobs;
use onecopy_bench::BenchError;
use onecopy_bench::net::{NetMode, NetPattern, NetPlan, NetRow, as_rank};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

const AFTER_HELP: &str = "\
Without PATTERN: all of them. Two ranks on two nodes, both of which are this machine: two processes that reach each other over the \
loopback. A batch of a ping-pong gives the median of its round trips, of other patterns the mean. 'bare' is a loop of send and recv over a socket between the same two processes, in turns with the library's batches. 'x' is the \
library's median time divided by the limit: that of the bare loop, or of perftest where its programs are in the path. With --mode rc both go by a device for RDMA. The bare loop copies into and out of \
registered memory, sends by a queue pair, and polls. 'perftest' is the time by ib_send_lat (typical), ib_write_bw or ib_send_bw (average), between the same two processors, after the batches. With --mode xrc the library goes by extended connections, if the device has them, with --mode ud it sends datagrams. The bare loop is that of rc then.

Settings of the ranks come from ONECOPY_ variables, as for any job.";

/// Between ranks on two nodes, beside a bare socket or queue pair
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// How messages follow one another
    #[arg(value_enum)]
    pattern: Option<NetPattern>,
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = NetMode::Tcp)]
    mode: NetMode,
    /// Message sizes, separated by commas, with suffixes K, M, G
    #[arg(long, value_name = "LIST", default_value = "8,1K,16K,64K,256K,1M,4M")]
    sizes: String,
    /// Batches of each contestant
    #[arg(long, value_name = "COUNT", default_value_t = 15,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    batches: u16,
    /// Milliseconds of a batch
    #[arg(long, value_name = "MS", default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// Write one JSON record per pattern and size to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn line(row: &NetRow) -> String {
    let (ours, bare) = row.mb_per_s();
    let pattern = match row.pattern {
        NetPattern::PingPong => "pingpong",
        NetPattern::Bw => "bw",
        NetPattern::BiBw => "bibw",
        NetPattern::Rate => "rate",
    };
    format!(
        "{pattern:<10}{:>6}{:>12.3}{:>12.3}{:>12}{:>8.2}{ours:>12.1}{bare:>12.1}",
        sizes::format(row.bytes),
        row.us,
        row.bare_us,
        row.perftest_us
            .map_or("-".to_owned(), |us| format!("{us:.3}")),
        row.ratio,
    )
}

/// The hidden command of its ranks.
pub(in crate::command) const RANK: &str = "__net-rank";

/// A rank of the benchmark.
#[derive(Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// What is measured
    plan: String,
}

/// Runs a rank of the benchmark, of which rank 0 prints a line of JSON per row.
pub(crate) fn run_rank(args: &RankArgs) -> Result<ExitCode, CliError> {
    let plan: NetPlan =
        serde_json::from_str(&args.plan).map_err(|error| CliError::Usage(error.to_string()))?;
    let (knobs, ..) = Knobs::from_env().map_err(|error| CliError::Usage(error.to_string()))?;
    let mut show = |row: &NetRow| {
        let wrong = |error: CliError| BenchError::Wrong(error.to_string());
        let line = text::json_line(row).map_err(wrong)?;
        print(|out| writeln!(out, "{line}")).map_err(wrong)
    };
    as_rank(&plan, knobs, &mut show).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the ranks; each row is shown as soon as it is there.
fn measure(plan: &NetPlan) -> Result<Vec<NetRow>, CliError> {
    let (sender, receiver) = channel();
    let words = text::json_line(plan)?;
    let command = [RANK, words.as_str()];
    pair::run_on_nodes((2, 2), &command, &[], None, move |text| {
        let row = serde_json::from_str::<NetRow>(text);
        if let Ok(row) = &row {
            // A reader that has gone gets the file all the same.
            let _ = print(|out| writeln!(out, "{}", line(row)));
        }
        // Nobody listens any more only when this command has failed.
        let _ = sender.send(row);
    })?;
    let rows: Result<_, _> = receiver.into_iter().collect();
    rows.map_err(|error| CliError::Failed(error.into()))
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let plan = NetPlan {
        mode: args.mode,
        patterns: match args.pattern {
            Some(pattern) => vec![pattern],
            None => vec![
                NetPattern::PingPong,
                NetPattern::Bw,
                NetPattern::BiBw,
                NetPattern::Rate,
            ],
        },
        sizes: sizes::parse_list(&args.sizes).map_err(failed)?,
        batches: usize::from(args.batches),
        batch: Duration::from_millis(args.batch.into()),
    };
    if plan.sizes.contains(&0) {
        let text = "a bare socket has no messages of 0 bytes; leave them out of --sizes";
        return Err(CliError::Usage(text.to_owned()));
    }
    print(|out| {
        writeln!(
            out,
            "{:<10}{:>6}{:>12}{:>12}{:>12}{:>8}{:>12}{:>12}",
            "pattern", "size", "us", "bare us", "perftest", "x", "MB/s", "bare MB/s"
        )
    })?;
    let rows = measure(&plan)?;
    if let Some(path) = &args.json {
        let mut text = Vec::new();
        for row in &rows {
            serde_json::to_writer(&mut text, row)
                .map_err(|error| CliError::Failed(Box::new(error)))?;
            text.push(b'\n');
        }
        fs::write(path, text).map_err(CliError::io(path.display().to_string()))?;
        print(|out| writeln!(out, "written: {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
