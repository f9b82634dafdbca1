// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every function of the table, called with each argument wrong in turn: it refuses, leaves nothing
//! behind, and the library still works.

mod failing;

use super::{compile_file, package, place, run_on, say};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// More crashes than these are not looked for.
const CRASHES: usize = 20;

struct Suite {
    program: PathBuf,
    calls: usize,
}

fn suite() -> &'static Suite {
    static SUITE: OnceLock<Suite> = OnceLock::new();
    SUITE.get_or_init(|| {
        let folder = package().join("tests/wrong");
        let header = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let table = std::fs::read_to_string(package().join("abi/wrong.txt"));
        let table = table.expect("the table of wrong arguments");
        let made = onecopy_mpi_abi::wrong::program(&table, &header("objects.h"), &header("run.h"));
        let made = made.expect("the table of wrong arguments is in order");
        let source = place().directory.join("wrong.c");
        std::fs::write(&source, &made.text).expect("the program's text");
        say(&format!(
            "{} functions, {} parameters, {} calls; left out: {}",
            made.functions,
            made.parameters,
            made.calls,
            made.excused
                .iter()
                .map(|(name, reason)| format!("{name} ({reason})"))
                .collect::<Vec<_>>()
                .join(", ")
        ));
        Suite {
            program: compile_file(&source, &place().directory.join("wrong")),
            calls: made.calls,
        }
    })
}

/// What a run said.
struct Run {
    failures: Vec<String>,
    /// The case at which it ended, if it did so early.
    ended_at: Option<usize>,
    tried: usize,
}

fn run(program: &Path, ranks: usize, first: usize) -> Run {
    let output = run_on(
        &place().directory,
        900,
        program,
        ranks,
        &[&first.to_string()],
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut run = Run {
        failures: Vec::new(),
        ended_at: None,
        tried: 0,
    };
    for line in text.lines() {
        let mut words = line.split(' ');
        match words.next() {
            Some("FAIL") => run.failures.push(line.to_owned()),
            Some("CRASH" | "HANG") => {
                let number = words.next().and_then(|word| word.parse().ok());
                run.ended_at = run.ended_at.or(number);
                run.failures.push(format!("{line}\n{errors}"));
            }
            Some("tried") => {
                run.tried = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            }
            _ => {}
        }
    }
    if run.failures.is_empty() && !output.status.success() {
        run.failures
            .push(format!("{:?}\n{text}\n{errors}", output.status));
    }
    run
}

fn refuses(ranks: usize) {
    let Suite { program, calls } = suite();
    let mut failures = Vec::new();
    let (mut first, mut tried) = (0, 0);
    for _ in 0..CRASHES {
        let mut done = run(program, ranks, first);
        failures.append(&mut done.failures);
        match done.ended_at {
            Some(number) => first = number + 1,
            None => {
                tried = done.tried;
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(tried, *calls, "calls that were made");
}

#[test]
fn every_wrong_argument_is_refused() {
    refuses(1);
}

#[test]
fn every_wrong_argument_is_refused_beside_another_rank() {
    refuses(2);
}
