// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traffic in which one step after the other fails: the job ends, with the right bytes or with an
//! error that names itself.

use crate::{compile_file, job, limit, package, place, say};
use std::os::unix::process::ExitStatusExt;
use std::process::Output;

fn run(order: &str) -> Output {
    let source = package().join("tests/wrong/failing.c");
    static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile_file(&source, &place().directory.join("failing")));
    let mut command = job(&place().directory, &["-n", "2"], program);
    limit::output(command.env("ONECOPY_JOB_FAIL", order))
}

/// What was wrong with how a job ended.
fn verdict(output: &Output) -> Option<&'static str> {
    let errors = String::from_utf8_lossy(&output.stderr);
    let crashed = output.status.signal().is_some()
        || [
            "panicked",
            "AddressSanitizer",
            "LeakSanitizer",
            "signal SIGSEGV",
            "signal SIGABRT",
        ]
        .iter()
        .any(|word| errors.contains(word));
    if crashed {
        return Some("it crashed");
    }
    match output.status.code() {
        Some(0) => None,
        Some(99) => Some("a wrong result"),
        // An error has words.
        _ if errors.contains("class ") || errors.contains("onecopy:") => None,
        _ => Some("it failed without a word"),
    }
}

/// `TEST_FAILURES`: how often at most each step fails, in jobs of their own.
#[test]
fn failing_steps_are_errors_or_nothing() {
    if !cfg!(feature = "fault-points") {
        return say("skipped: built without the feature fault-points");
    }
    let most = std::env::var("TEST_FAILURES").ok();
    let most: u64 = most.and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut failures = Vec::new();
    // In one rank; in all ranks and the launcher.
    let turns = onecopy_shm::failing::STEPS
        .iter()
        .flat_map(|step| [(step, ":0"), (step, "")]);
    for (step, where_) in turns {
        let mut reached = 0;
        for count in 1..=most {
            let order = format!("{}:{count}{where_}", step.name);
            let output = run(&order);
            let errors = String::from_utf8_lossy(&output.stderr);
            if !errors.contains("fails by order") && output.status.success() {
                break;
            }
            reached += 1;
            if let Some(what) = verdict(&output) {
                failures.push(format!("{order}: {what}: {:?}\n{errors}", output.status));
            }
        }
        say(&format!("{}{where_}: failed {reached} times", step.name));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
