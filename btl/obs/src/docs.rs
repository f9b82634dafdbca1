// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages under `docs/` that are written from the tables.

use std::fmt::Write as _;

use crate::knobs::Audience;
use crate::{COUNTERS, CounterKind, KNOBS, TRACEPOINTS};

const NOTE: &str =
    "<!-- Written by `cargo xtask docs` from the tables in btl/obs; do not edit. -->\n\n";

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// `docs/knobs.md`.
#[must_use]
pub fn knobs_page() -> String {
    let mut page = format!(
        "{NOTE}# Knobs\n\nEnvironment variables that onecopy reads. `onecopy env` shows the values in force and where each comes \
         from; `onecopy env --all` shows those for experts, too. A size is a number of bytes with an optional unit K, M, G or T (powers \
         of 1024; `64K`, `64KiB`). A value out of range stops the program before anything starts. A variable that begins with \
         `ONECOPY_` and is no knob is reported.\n"
    );
    for (audience, title, who) in [
        (
            Audience::User,
            "For users",
            "An administrator or a user of a job has cause to set these. They say what may carry messages and how much memory \
             they take, how ranks wait, what a job checks and prints.",
        ),
        (
            Audience::Expert,
            "For experts",
            "These say where one way of moving bytes ends and the next begins, and the grain within one. `auto`, the default, or \
             `onecopy tune` finds them. Set one to measure what it does ([tuning.md](tuning.md)).",
        ),
        (
            Audience::Test,
            "For tests",
            "Tests of onecopy itself set these. A job has no cause to.",
        ),
    ] {
        let _ = write!(
            page,
            "\n## {title}\n\n{who}\n\n| variable | area | default | accepted | meaning |\n| --- | --- | --- | --- | --- |\n"
        );
        for knob in KNOBS.iter().filter(|knob| knob.audience == audience) {
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} |",
                knob.name,
                knob.area,
                cell(&knob.default_text()),
                cell(&knob.range()),
                cell(&knob.meaning())
            );
        }
    }
    page
}

/// `docs/counters.md`: the counters and the tracepoints.
#[must_use]
pub fn counters_page() -> String {
    let mut page = format!(
        "{NOTE}# Counters and tracepoints\n\n## Counters\n\nEach rank counts for itself; `Runtime::counters` gives the values.\n\n\
         | counter | unit | kind | meaning |\n| --- | --- | --- | --- |\n"
    );
    for counter in COUNTERS {
        let kind = match counter.kind {
            CounterKind::Sum => "sum",
            CounterKind::Level => "level",
            CounterKind::Peak => "peak",
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {kind} | {} |",
            counter.name,
            counter.unit,
            cell(counter.doc)
        );
    }
    let _ = write!(
        page,
        "\n## Tracepoints\n\nEvents under the `tracing` target `{}`. `ONECOPY_LOG=debug` or `trace` shows them in the command \
         `onecopy`; a program shows them by a subscriber of its own.\n\n\
         | event | level | arguments | meaning |\n| --- | --- | --- | --- |\n",
        crate::tracepoints::TARGET
    );
    for point in TRACEPOINTS {
        let args: Vec<String> = point
            .args
            .iter()
            .map(|(name, ty)| format!("{name}: {ty}"))
            .collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            point.name,
            point.level.as_str().to_lowercase(),
            args.join(", "),
            cell(point.doc)
        );
    }
    page
}
