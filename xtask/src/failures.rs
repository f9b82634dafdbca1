// SPDX-License-Identifier: MIT OR Apache-2.0
//! What test programs say of their failures, kept for the end of a long task. A reader of only the end of its output
//! sees there which test failed and why.

use std::collections::VecDeque;

/// Lines that are kept of one failed test.
const LINES_OF_A_TEST: usize = 30;
/// Lines that are kept of a program that died: what it wrote last.
const LAST_LINES: usize = 12;
/// Lines that are kept in all.
const LINES: usize = 400;

/// Reads the output of `cargo test`, in which cargo's own lines stand between those of the programs, if they are there.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// The program that runs, as cargo calls it.
    program: String,
    /// Whether it has begun, and its summary has not come.
    open: bool,
    /// How many more lines belong to a failed test's output.
    rest: usize,
    last: VecDeque<String>,
    kept: Vec<String>,
}

impl Failures {
    /// Reads a line.
    pub(crate) fn read(&mut self, line: &str) {
        let text = line.trim_start();
        if text.starts_with("Running ") || text.starts_with("Doc-tests ") {
            self.close();
            text.clone_into(&mut self.program);
        } else if text.starts_with("running ") && text.trim_end_matches('s').ends_with(" test") {
            self.close();
            self.open = true;
        } else if text.starts_with("test result: ") {
            self.open = false;
            self.rest = 0;
            if text.starts_with("test result: FAILED") {
                self.keep(format!("{}: {text}", self.program));
            }
        } else if line.starts_with("---- ") && line.ends_with(" ----") {
            self.rest = LINES_OF_A_TEST;
        } else if line == "failures:" {
            self.rest = 0;
        }
        if self.rest > 0 {
            self.rest -= 1;
            self.keep(line.to_owned());
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }

    /// The program that ran has ended. Without a summary it died.
    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            // Cargo names programs on its standard error, which is not read where it is a terminal.
            let program = match self.program.as_str() {
                "" => "a test program",
                program => program,
            };
            self.keep(format!(
                "{program}: died before its summary. Its last lines:"
            ));
            for line in std::mem::take(&mut self.last) {
                self.keep(format!("    {line}"));
            }
        }
        self.last.clear();
    }

    fn keep(&mut self, line: String) {
        if self.kept.len() < LINES {
            self.kept.push(line);
        }
    }

    /// All that is to be told, a line each.
    pub(crate) fn into_lines(mut self) -> Vec<String> {
        self.close();
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(output: &str) -> String {
        let mut failures = Failures::default();
        for line in output.lines() {
            failures.read(line);
        }
        failures.into_lines().join("\n")
    }

    #[test]
    fn success_is_silent() {
        let output = "     Running tests/a.rs (target/a)\n\nrunning 1 test\ntest one ... ok\n\n\
            test result: ok. 1 passed; 0 failed; 0 ignored\n\n   Doc-tests a\n";
        assert_eq!(summary(output), "");
    }

    #[test]
    fn a_failed_test_is_told_with_its_output() {
        let output = "     Running tests/a.rs (target/a)\n\nrunning 2 tests\ntest one ... FAILED\ntest two ... ok\n\n\
            failures:\n\n---- one stdout ----\nit was wrong\n\n\nfailures:\n    one\n\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored\n";
        let summary = summary(output);
        assert!(summary.contains("---- one stdout ----\nit was wrong"));
        assert!(summary.contains("tests/a.rs (target/a): test result: FAILED. 1 passed"));
        assert!(!summary.contains("test two"));
    }

    #[test]
    fn a_program_that_died_is_named_with_its_last_lines() {
        let output = "     Running tests/a.rs (target/a)\nrunning 2 tests\ntest one ... ok\none place: hangs\n\
            error: test failed, to rerun pass `-p a --test a`\n     Running tests/b.rs (target/b)\nrunning 0 tests\n\
            test result: ok. 0 passed; 0 failed; 0 ignored\n";
        let summary = summary(output);
        assert!(summary.starts_with("Running tests/a.rs (target/a): died before its summary"));
        assert!(summary.contains("    one place: hangs"));
        assert!(!summary.contains("tests/b.rs"));
    }

    #[test]
    fn the_last_program_of_all_may_die_too() {
        assert!(summary("     Running tests/a.rs (a)\nrunning 1 test").contains("died"));
    }
}
