// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy trace --check`: what can be observed here.

use std::path::Path;
use std::process::ExitCode;

use nix::errno::Errno;
use onecopy_trace::bpf::{self, Probe, State};
use serde::Serialize;
use tabled::builder::Builder;
use tabled::settings::{Style, Width, peaker::PriorityMax};

use super::outputs::write_json;
use crate::command::{CliError, print};

#[derive(Serialize)]
struct Line {
    probe: String,
    state: &'static str,
    errno: Option<String>,
    lost: String,
    remedy: String,
}

fn line(probe: &Probe) -> Line {
    let (state, errno) = match probe.state {
        State::Attached => ("works", 0),
        State::Fallback { errno } => ("other", errno),
        State::Refused { errno } => ("refused", errno),
    };
    Line {
        probe: probe.name.clone(),
        state,
        errno: (errno != 0).then(|| format!("{:?}", Errno::from_raw(errno))),
        lost: probe.lost.clone(),
        remedy: probe.remedy.clone(),
    }
}

/// Tries every probe. One that is refused is an answer, not a failure: the code is 0.
pub(super) fn run(json: Option<&Path>) -> Result<ExitCode, CliError> {
    let probes = bpf::check();
    let lines: Vec<Line> = probes.iter().map(line).collect();
    // Neither takes the other with it.
    let written = json.map_or(Ok(()), |path| write_json(path, &lines));
    if json != Some(Path::new("-")) {
        let mut table = Builder::default();
        table.push_record(["probe", "state", "errno", "lost without it", "remedy"]);
        for line in &lines {
            table.push_record([
                &line.probe,
                line.state,
                line.errno.as_deref().unwrap_or(""),
                &line.lost,
                &line.remedy,
            ]);
        }
        let mut table = table.build();
        table.with(Style::sharp()).with(
            Width::wrap(140)
                .keep_words(true)
                .priority(PriorityMax::default()),
        );
        print(|out| {
            writeln!(out, "{table}")?;
            writeln!(
                out,
                "onecopy's own ranks are seen without any of these, by their statistics pages: onecopy top --own"
            )
        })?;
    }
    written?;
    Ok(ExitCode::SUCCESS)
}
