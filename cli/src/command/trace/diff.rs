// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy trace diff`: two reports beside each other.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use onecopy_trace::diff::{Change, Diff, diff};
use onecopy_trace::report::{Report, VERSION};
use tabled::builder::Builder;
use tabled::settings::Style;

use super::table::{name, number};
use crate::command::{CliError, print, text};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The report to compare with; - is standard input
    #[arg(value_name = "A")]
    a: PathBuf,

    /// The other one
    #[arg(value_name = "B")]
    b: PathBuf,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn read(path: &Path) -> Result<Report, CliError> {
    let mut name = path.display().to_string();
    let input: Box<dyn Read> = if path == Path::new("-") {
        "standard input".clone_into(&mut name);
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(CliError::io(name.clone()))?)
    };
    let report: Report = serde_json::from_reader(BufReader::new(input)).map_err(|error| {
        CliError::Failed(format!("{name} is no report of 'onecopy trace --json': {error}").into())
    })?;
    if report.version > VERSION {
        return Err(CliError::Failed(
            format!(
                "{name} has the form {}, and this command knows those up to {VERSION}",
                report.version
            )
            .into(),
        ));
    }
    Ok(report)
}

/// Both values, and by what the second one differs.
fn both(a: Option<f64>, b: Option<f64>, show: impl Fn(f64) -> String) -> String {
    let one = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), &show);
    match (a, b) {
        (Some(a), Some(b)) if a > 0.0 && (b / a - 1.0).abs() >= 0.005 => {
            format!(
                "{} → {} ({:+.0} %)",
                show(a),
                show(b),
                (b / a - 1.0) * 100.0
            )
        }
        (a, b) if a == b => one(a),
        (a, b) => format!("{} → {}", one(a), one(b)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn row(change: &Change) -> [String; 8] {
    let figure = |get: fn(&onecopy_trace::report::Pair) -> Option<f64>| {
        (
            change.a.as_ref().and_then(get),
            change.b.as_ref().and_then(get),
        )
    };
    let (calls, bytes) = (
        figure(|pair| Some(pair.calls as f64)),
        figure(|pair| Some(pair.bytes as f64)),
    );
    let p50 = figure(|pair| pair.latency_us.map(|latency| latency.p50));
    let p99 = figure(|pair| pair.latency_us.map(|latency| latency.p99));
    let rate = figure(|pair| pair.gb_per_s);
    let whole = |value: f64| number(value.round() as u64);
    let size = |value: f64| text::size(value.round() as u64);
    [
        name(&change.source),
        name(&change.sink),
        change.mechanism.name().to_owned(),
        both(calls.0, calls.1, whole),
        both(bytes.0, bytes.1, size),
        both(p50.0, p50.1, text::micros),
        both(p99.0, p99.1, text::micros),
        both(rate.0, rate.1, |value| format!("{value:.2}")),
    ]
}

fn table(diff: &Diff) -> String {
    let mut table = Builder::default();
    table.push_record([
        "source",
        "sink",
        "mechanism",
        "calls",
        "bytes",
        "p50 us",
        "p99 us",
        "GB/s",
    ]);
    for change in &diff.changes {
        table.push_record(row(change));
    }
    table.build().with(Style::sharp()).to_string()
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let diff = diff(&read(&args.a)?, &read(&args.b)?);
    if args.json {
        let json = text::json(&diff)?;
        print(|out| writeln!(out, "{json}"))?;
    } else {
        print(|out| writeln!(out, "{}", table(&diff)))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_its_share() {
        let show = |value: f64| format!("{value}");
        assert_eq!(both(Some(2.0), Some(3.0), show), "2 → 3 (+50 %)");
        assert_eq!(both(Some(2.0), Some(2.0), show), "2");
        assert_eq!(both(None, Some(2.0), show), "- → 2");
        assert_eq!(both(None, None, show), "-");
    }
}
