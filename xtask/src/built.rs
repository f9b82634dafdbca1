// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tests run, built as the tests of the whole workspace are.
//!
//! Cargo builds a package once for each set of features that it and its dependencies have. That set depends on what is
//! asked for beside it. So what runs a program of the tests asks for it as they do, and nothing is built twice.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Failure;

/// What only tests have: points at which they kill, and steps that they let fail.
pub(crate) const FEATURES: &str = "fault-points";
/// Tells the tests of C programs that the command lies beside them, as new as they are. Without it they build it.
pub(crate) const COMMAND_IS_BUILT: &str = "TEST_COMMAND_BUILT";
/// A test that takes no time to build. Cargo counts the features that tests want only where a test is asked for.
const SMALL_TEST: &str = "layout";

/// What cargo is to build.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    Program(&'a str),
    Test(&'a str),
}

impl<'a> Target<'a> {
    /// Its name.
    pub(crate) const fn name(self) -> &'a str {
        match self {
            Self::Program(name) | Self::Test(name) => name,
        }
    }

    /// Has cargo build it, as it is asked for by itself.
    pub(crate) fn alone(self, cargo: &mut Command) {
        match self {
            Self::Program(name) => cargo.args(["build", "--bin", name]),
            Self::Test(name) => cargo.args(["test", "--no-run", "--test", name]),
        };
    }

    /// Has cargo build it as it builds the tests of the workspace.
    pub(crate) fn among_tests(self, cargo: &mut Command) {
        self.alone(cargo);
        if matches!(self, Self::Program(_)) {
            cargo.args(["--test", SMALL_TEST]);
        }
        cargo.args(["--workspace", "--features", FEATURES]);
    }
}

/// A file that cargo made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    pub(crate) path: PathBuf,
    /// The folder of its package.
    pub(crate) folder: PathBuf,
}

/// Runs a `cargo` that builds. Gives what it made for a package's target: other packages may have one of that name.
pub(crate) fn executable(
    cargo: &mut Command,
    package: &str,
    target: &str,
) -> Result<Executable, Failure> {
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("{target} cannot be built: {}", output.status));
    }
    let made = named(&String::from_utf8_lossy(&output.stdout), package, target);
    made.ok_or_else(|| format!("cargo built {target} and names no file for it"))
}

/// The file of a package's target among cargo's messages.
fn named(messages: &str, package: &str, target: &str) -> Option<Executable> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter(|message| message["target"]["name"] == target)
        .filter(|message| is_of(message["package_id"].as_str().unwrap_or_default(), package))
        .filter_map(|message| {
            let manifest = Path::new(message["manifest_path"].as_str()?);
            Some(Executable {
                path: PathBuf::from(message["executable"].as_str()?),
                folder: manifest.parent()?.to_owned(),
            })
        })
        .next_back()
}

/// Whether cargo's name of a package is that of this one: `path+file:///w/folder#name@version`, without the name where
/// the folder has it.
fn is_of(id: &str, package: &str) -> bool {
    let (place, end) = id.rsplit_once('#').unwrap_or((id, ""));
    match end.split_once('@') {
        Some((name, _)) => name == package,
        None => place.rsplit('/').next() == Some(package),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(name: &str, package: &str, executable: &str) -> String {
        let target = format!(r#""target":{{"name":"{name}"}},"executable":{executable}"#);
        let of = format!(r#""package_id":"{package}","manifest_path":"/w/Cargo.toml""#);
        format!(r#"{{"reason":"compiler-artifact",{of},{target}}}"#)
    }

    #[test]
    fn the_file_of_a_target_is_found() {
        let messages = [
            message("a", "path+file:///w#p@0.1.0", "null"),
            message("a", "path+file:///w#p@0.1.0", r#""/t/a-1""#),
            message("b", "path+file:///w#p@0.1.0", r#""/t/b-1""#),
            message("b", "path+file:///w/q#0.1.0", r#""/t/b-2""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let messages = messages.join("\n");
        let found = |package, name| {
            let made = named(&messages, package, name)?;
            assert_eq!(made.folder, Path::new("/w"));
            Some(made.path.display().to_string())
        };
        assert_eq!(found("p", "a").as_deref(), Some("/t/a-1"));
        assert_eq!(found("p", "b").as_deref(), Some("/t/b-1"));
        assert_eq!(found("q", "b").as_deref(), Some("/t/b-2"));
        assert_eq!(found("q", "a"), None);
    }

    #[test]
    fn what_tests_want_is_counted_for_programs_too() {
        let words = |target: Target<'_>| -> Vec<String> {
            let mut cargo = Command::new("cargo");
            target.among_tests(&mut cargo);
            let words = cargo.get_args();
            words.map(|word| word.to_string_lossy().into()).collect()
        };
        for target in [Target::Program("onecopy"), Target::Test("crash")] {
            let words = words(target);
            assert!(words.contains(&"--test".to_owned()), "{words:?}");
            assert!(words.contains(&"--workspace".to_owned()), "{words:?}");
        }
    }
}
