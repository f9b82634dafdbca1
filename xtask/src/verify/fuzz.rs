// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage-guided fuzzing by libFuzzer, on the toolchain that builds everything else: the
//! instrumentation is a pass of LLVM that stable flags name. AddressSanitizer comes along where the
//! toolchain has its runtime; to link it, the compiler is told that we may.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sanitizer::{Sanitizer, TARGET};
use crate::steps::{Tally, cargo, show};
use crate::{Failure, root, say};

/// All that `tests/fuzz/src/lib.rs` lists.
const TARGETS: &[&str] = &[
    "records",
    "wireup",
    "broker",
    "oob",
    "pmi",
    "settings",
    "datatypes",
    "offer",
    "coll",
    "engine",
];
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Limits {
    /// Fuzzing: seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Fuzzing: only this target
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(TARGETS))]
    target: Option<String>,
    /// Fuzzing: begin with this seed, not with a random one
    #[arg(long)]
    seed: Option<u32>,
}

/// Half a minute for each target, from a fixed seed: what fails there fails again. With a minute each, all steps take
/// 56 minutes on two processors, of the 60 that they may take.
pub(crate) fn reduced() -> Result<Tally, (Tally, Failure)> {
    run(&Limits {
        seconds: 30,
        target: None,
        seed: Some(1),
    })
}

/// Builds the fuzzer and runs the targets, as many at a time as there are processors.
pub(crate) fn run(args: &Limits) -> Result<Tally, (Tally, Failure)> {
    let program = build().map_err(|failure| (Tally::default(), failure))?;
    let targets: Vec<&str> = match &args.target {
        Some(target) => vec![target],
        None => TARGETS.to_vec(),
    };
    let next = Mutex::new(targets.iter());
    let results = Mutex::new((Tally::default(), Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(targets.len()) {
            scope.spawn(|| {
                loop {
                    let target = lock(&next).next();
                    let Some(target) = target else { break };
                    let result = fuzz(&program, target, args);
                    let mut results = lock(&results);
                    match result {
                        Ok(line) => {
                            results.0.passed += 1;
                            say::line(&format!("fuzz: {target}: {line}"));
                        }
                        Err(failure) => {
                            results.0.failed += 1;
                            say::warn(&format!("fuzz: {target}: {failure}"));
                            results.1.push(*target);
                        }
                    }
                }
            });
        }
    });
    let (tally, failed) = results
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    if failed.is_empty() && tally.passed > 0 {
        Ok(tally)
    } else {
        Err((tally, format!("failed: {}", failed.join(", "))))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn folder() -> PathBuf {
    root().join("target").join("fuzz")
}

/// Builds the one program that has all targets.
fn build() -> Result<PathBuf, Failure> {
    let mut flags = COVERAGE.to_owned();
    let asan = Sanitizer::Address.runtime().is_ok();
    if asan {
        flags.push(' ');
        flags.push_str(&Sanitizer::Address.flag());
    } else {
        say::line("fuzz: this toolchain has no AddressSanitizer; only panics and signals are seen");
    }
    let arguments = [
        "build",
        "--package",
        "onecopy-fuzz",
        "--bin",
        "fuzz",
        "--features",
        "libfuzzer",
        "--release",
        // Named, so that the flags are for what runs, not for build scripts.
        "--target",
        TARGET,
    ];
    let mut command = cargo();
    command
        .args(arguments)
        .env("CARGO_TARGET_DIR", folder())
        .env("RUSTFLAGS", flags)
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
    if asan {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    show(&mut command)?;
    Ok(folder().join(TARGET).join("release").join("fuzz"))
}

/// Runs one target; says how often and how far it came.
fn fuzz(program: &Path, target: &str, limits: &Limits) -> Result<String, Failure> {
    let (kept, found) = (
        folder().join("corpus").join(target),
        folder().join("found").join(target),
    );
    let io = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    for path in [&kept, &found] {
        fs::create_dir_all(path).map_err(|error| io(path, error))?;
    }
    let log = folder().join(format!("{target}.log"));
    let output = File::create(&log).map_err(|error| io(&log, error))?;
    let ours = root().join("tests").join("fuzz");
    // What is found anew goes to the first folder; the repository's are read.
    let corpora = [
        Some(kept),
        Some(ours.join("corpus").join(target)),
        Some(ours.join("regressions").join(target)).filter(|path| path.is_dir()),
    ];
    let status = Command::new(program)
        .arg(format!("-max_total_time={}", limits.seconds))
        .args(limits.seed.map(|seed| format!("-seed={seed}")))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args(["-timeout=20", "-rss_limit_mb=2048", "-max_len=2048"])
        .args(["-detect_leaks=0", "-print_final_stats=1", "-len_control=20"])
        .args(corpora.iter().flatten())
        .env("ONECOPY_FUZZ", target)
        .env("ASAN_OPTIONS", "quarantine_size_mb=32:detect_leaks=0")
        .env_remove("ONECOPY_JOB_FD")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(output))
        .status()
        .map_err(|error| io(program, error))?;
    let text = fs::read(&log).map_err(|error| io(&log, error))?;
    judge(
        &String::from_utf8_lossy(&text),
        status.success(),
        &format!("ONECOPY_FUZZ={target} {}", program.display()),
    )
}

/// What the fuzzer's output tells.
fn judge(output: &str, success: bool, again: &str) -> Result<String, Failure> {
    let behind = |key: &str| {
        let line = output.lines().rev().find(|line| line.contains(key))?;
        line.split_once(key)?.1.split_whitespace().next()
    };
    if !success {
        let tail: Vec<&str> = output.lines().rev().take(60).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        let remedy = match behind("Test unit written to ") {
            Some(input) => format!("the input is {input}; run it again by: {again} {input}"),
            None => "it left no input".to_owned(),
        };
        return Err(format!("{}\n{remedy}", tail.join("\n")));
    }
    let executed = behind("stat::number_of_executed_units: ");
    match executed.and_then(|text| text.parse::<u64>().ok()) {
        None | Some(0) => Err("nothing was executed".to_owned()),
        Some(executed) => {
            let covered = behind(" cov: ").unwrap_or("0");
            if covered == "0" {
                return Err(format!("{executed} executions, but no coverage"));
            }
            Ok(format!("{executed} executions, {covered} edges covered"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "#9\tDONE   cov: 220 ft: 373 corp: 10/13b\nstat::number_of_executed_units: 12\n";

    #[test]
    fn what_was_not_executed_or_not_covered_failed() {
        assert_eq!(
            judge(GOOD, true, "again"),
            Ok("12 executions, 220 edges covered".to_owned())
        );
        assert!(judge("", true, "again").is_err());
        assert!(judge(&GOOD.replace(": 12", ": 0"), true, "again").is_err());
        assert!(judge(&GOOD.replace("cov: 220", "ft: 0"), true, "again").is_err());
    }

    #[test]
    fn a_crash_names_its_input_and_how_to_see_it_again() {
        let output = "panicked\nartifact_prefix='x/'; Test unit written to x/crash-1\n";
        let failure = judge(output, false, "program").expect_err("it crashed");
        assert!(failure.contains("program x/crash-1"), "{failure}");
    }

    #[test]
    fn all_targets_are_run() {
        let list = fs::read_to_string(root().join("tests/fuzz/src/lib.rs")).expect("the list");
        let named: Vec<&str> = list
            .lines()
            .filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","))
            .collect();
        assert_eq!(named, TARGETS);
    }
}
