// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the host.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::{Error, Result};

/// How many lines of a failed program's output an error shows.
const TAIL: usize = 30;

/// A command with its arguments, as a person would type it.
#[must_use]
pub fn line(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// The last lines of a text.
#[must_use]
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs a program; its standard output where it succeeded.
///
/// # Errors
///
/// When it cannot be run or fails.
pub fn output(command: &mut Command) -> Result<String> {
    let output = run(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::Program {
        command: line(command),
        status: output.status.to_string(),
        tail: tail(&text, TAIL),
    })
}

/// Runs a program to its end, whatever that is.
///
/// # Errors
///
/// When it cannot be run.
pub fn run(command: &mut Command) -> Result<Output> {
    let result = command.stdin(Stdio::null()).output();
    result.map_err(Error::io(line(command)))
}

/// Finds a program of the host. (A user's path often lacks the folders of system programs.)
///
/// # Errors
///
/// When it is not there.
pub fn find(name: &str, packages: &str) -> Result<PathBuf> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    which::which_in(name, Some(path), "/").map_err(|_| Error::Missing {
        what: name.to_owned(),
        packages: packages.to_owned(),
    })
}

/// A command at the lowest urgency: what is built here has time, others on the machine may not.
pub fn gentle(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.arg("-n").arg("10").arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_what_the_program_said() {
        let error = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]));
        let text = error.expect_err("it failed").to_string();
        assert!(text.contains("sh -c"), "{text}");
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.contains("out\nerr"), "{text}");
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let error = find("no-such-program-here", "some-package").expect_err("it is missing");
        assert_eq!(
            error.to_string(),
            "no-such-program-here is missing; install it: apt-get install some-package"
        );
    }

    #[test]
    fn a_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
