// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps of a long task: which one runs, how long each took, what passed and failed in all.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::failures::Failures;
use crate::{Failure, say};

/// What passed and what failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests, and steps that are no tests, that passed.
    pub(crate) passed: u64,
    /// Those that failed.
    pub(crate) failed: u64,
    /// Tools that could not run here; they said why. Neither a success nor a failure.
    pub(crate) not_run: u64,
}

impl Tally {
    /// Of a check that passed as a whole.
    pub(crate) const ONE: Self = Self {
        passed: 1,
        failed: 0,
        not_run: 0,
    };

    /// Of a tool that this machine lacks. Says which and why.
    pub(crate) fn not_run(tool: &str, reason: &str) -> Self {
        say::warn(&format!("{tool}: NOT RUN: {reason}"));
        Self {
            not_run: 1,
            ..Self::default()
        }
    }

    /// Adds another.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            not_run: self.not_run + other.not_run,
        }
    }

    /// Adds what a line of a test program's summary tells.
    fn add(&mut self, line: &str) {
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        let mut previous = "";
        for word in rest.split([' ', ';', '.']).filter(|word| !word.is_empty()) {
            let number = previous.parse().unwrap_or(0);
            match word {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "measured" => break,
                _ => {}
            }
            previous = word;
        }
    }
}

/// A `cargo` that is the one that runs us.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(crate::root());
    command
}

/// Runs a program with its output shown.
pub(crate) fn show(command: &mut Command) -> Result<(), Failure> {
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", name(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", name(command)))
    }
}

/// Runs test programs with their output shown and counts their tests. What failed is told once more in the failure.
pub(crate) fn count(command: &mut Command) -> Result<Tally, (Tally, Failure)> {
    let mut tally = Tally::default();
    let mut failures = Failures::default();
    let started = start(command).map_err(|error| (tally, format!("{}: {error}", name(command))))?;
    let (mut child, output) = started;
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        tally.add(&line);
        failures.read(&line);
        say::line(&line);
    }
    let failure = match child.wait() {
        Ok(status) if status.success() => return Ok(tally),
        Ok(status) => format!("{}: {status}", name(command)),
        Err(error) => format!("{}: {error}", name(command)),
    };
    Err((tally, explained(failure, failures.into_lines())))
}

/// A failure, and the lines that explain it.
pub(crate) fn explained(failure: Failure, lines: Vec<String>) -> Failure {
    let all = std::iter::once(failure).chain(lines);
    all.collect::<Vec<_>>().join("\n")
}

/// Starts a program whose output is read. Its errors are among it, unless they go to a terminal, which cargo draws on.
fn start(command: &mut Command) -> std::io::Result<(Child, Box<dyn Read>)> {
    if std::io::stderr().is_terminal() {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output: Box<dyn Read> = match child.stdout.take() {
            Some(output) => Box::new(output),
            None => Box::new(std::io::empty()),
        };
        return Ok((child, output));
    }
    let (reader, writer) = std::io::pipe()?;
    let child = command.stdout(writer.try_clone()?).stderr(writer).spawn();
    // Our ends for writing have to go, else the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok((child?, Box::new(reader)))
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().map_or_else(
        || program.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    );
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// The steps of a task, run one after the other; a failure does not keep later steps from running.
pub(crate) struct Steps {
    total: usize,
    current: usize,
    started: Instant,
    tally: Tally,
    /// The steps that failed, and why.
    failed: Vec<(String, Failure)>,
}

impl Steps {
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            current: 0,
            started: Instant::now(),
            tally: Tally::default(),
            failed: Vec::new(),
        }
    }

    /// A step that passes or fails as a whole.
    pub(crate) fn check(&mut self, what: &str, step: impl FnOnce() -> Result<(), Failure>) {
        self.tests(what, || match step() {
            Ok(()) => Ok(Tally::ONE),
            Err(failure) => Err((Tally::default(), failure)),
        });
    }

    /// A step that runs tests.
    pub(crate) fn tests(
        &mut self,
        what: &str,
        step: impl FnOnce() -> Result<Tally, (Tally, Failure)>,
    ) {
        self.current += 1;
        let label = format!("[{}/{}] {what}", self.current, self.total);
        say::line(&format!("{label} ..."));
        let started = Instant::now();
        let result = step();
        let seconds = started.elapsed().as_secs_f64();
        let tally = match result {
            Ok(tally) => {
                let word = match (tally.passed, tally.not_run) {
                    (0, 1..) => "NOT RUN",
                    (_, 1..) => "ok, but not all could run",
                    _ => "ok",
                };
                say::line(&format!("{label}: {word}, {seconds:.1} s"));
                tally
            }
            Err((mut tally, failure)) => {
                let first = failure.lines().next().unwrap_or_default();
                say::line(&format!("{label}: FAILED, {seconds:.1} s: {first}"));
                self.failed.push((what.to_owned(), failure));
                // A step that failed without a failed test (it did not build, say) counts as one failure itself.
                tally.failed = tally.failed.max(1);
                tally
            }
        };
        self.tally = self.tally.and(tally);
    }

    /// The summary, whose last line is `N passed, N failed`.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let seconds = self.started.elapsed().as_secs_f64();
        say::line(&format!("{} steps in {seconds:.0} s", self.current));
        // On the same stream as all else, so that the order holds.
        for (what, why) in &self.failed {
            say::line(&format!("failed: {what}: {why}"));
        }
        if self.tally.not_run > 0 {
            say::warn(&format!("{} not run, see above", self.tally.not_run));
        }
        say::line(&format!(
            "{} passed, {} failed",
            self.tally.passed, self.tally.failed
        ));
        if self.tally.failed == 0 && self.tally.passed > 0 {
            Ok(())
        } else {
            Err("not everything passed".to_owned())
        }
    }
}

/// What cargo knows of the workspace.
pub(crate) fn metadata(root: &Path) -> Result<Value, Failure> {
    let output = cargo()
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata: {}", reason.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_test_programs_are_added_up() {
        let mut tally = Tally::default();
        tally.add("test some::test ... ok");
        tally.add("test result: ok. 20 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        tally.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(
            tally,
            Tally {
                passed: 23,
                failed: 2,
                not_run: 0
            }
        );
    }

    #[test]
    fn a_step_that_dies_is_a_failure() {
        let mut steps = Steps::new(2);
        steps.check("good", || Ok(()));
        steps.tests("bad", || {
            Err((Tally::default(), "did not build".to_owned()))
        });
        assert_eq!(
            steps.tally,
            Tally {
                passed: 1,
                failed: 1,
                not_run: 0
            }
        );
        assert!(steps.finish().is_err());
    }

    #[test]
    fn what_could_not_run_is_no_success() {
        let mut steps = Steps::new(2);
        steps.tests("missing", || Ok(Tally::not_run("tool", "it is not here")));
        assert_eq!((steps.tally.passed, steps.tally.failed), (0, 0));
        assert!(steps.finish().is_err());
        let mut steps = Steps::new(2);
        steps.tests("missing", || Ok(Tally::not_run("tool", "it is not here")));
        steps.check("good", || Ok(()));
        assert!(steps.finish().is_ok());
    }
}
