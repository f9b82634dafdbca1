// SPDX-License-Identifier: MIT OR Apache-2.0
//! `vm-images/suites.toml`: what runs in a guest.

use std::path::Path;

use onecopy_vm::kernel::Kernel;
use serde::Deserialize;

use crate::Failure;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suite {
    /// Programs that tests run.
    #[serde(rename = "program")]
    pub(super) programs: Vec<Program>,
    /// Tests, in their order.
    #[serde(rename = "test")]
    pub(super) tests: Vec<Test>,
}

/// A program that cargo, or the C compiler, makes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Program {
    /// Its name in the guest.
    pub(super) name: String,
    /// The package.
    pub(super) package: Option<String>,
    /// The program of that package.
    pub(super) bin: Option<String>,
    /// Or the test of that package.
    pub(super) test: Option<String>,
    /// With these features.
    #[serde(default)]
    pub(super) features: Vec<String>,
    /// Or a script of the repository that is given a folder and leaves the program there, with the libraries that it
    /// brings.
    pub(super) script: Option<String>,
    /// Or a file of MPICH's package: its launcher, or what that starts on each host.
    pub(super) mpich: Option<String>,
    /// Or packages of the kernel's own distribution. They, its headers and its compiler are a tree of their own in the
    /// guest. With them are the module's sources and what its README says of installing it.
    #[serde(default)]
    pub(super) packages: Vec<String>,
    /// Files of the repository that it reads, by their path from the root.
    #[serde(default)]
    pub(super) files: Vec<String>,
}

/// A test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    /// Its name.
    pub(super) name: String,
    /// What the guest's shell runs.
    pub(super) command: String,
    /// The programs it uses.
    #[serde(default)]
    pub(super) programs: Vec<String>,
    /// How long it may take.
    pub(super) seconds: u32,
    /// What it runs with: the tests of a suite share a machine.
    pub(super) suite: String,
    /// Whether it runs with every suite, and where others were chosen.
    #[serde(default)]
    pub(super) always: bool,
    /// Options of the kernel without which there is nothing to test.
    #[serde(default)]
    pub(super) needs: Vec<String>,
    /// The profiles it is for; all if empty.
    #[serde(default)]
    pub(super) profiles: Vec<String>,
    /// What judges it besides its exit code.
    #[serde(default)]
    pub(super) judge: Judge,
}

impl Test {
    fn is_for(&self, profile: &str) -> bool {
        self.profiles.is_empty() || self.profiles.iter().any(|p| p == profile)
    }
}

/// What judges a test.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Judge {
    /// Its exit code alone.
    #[default]
    Code,
    /// What its output says in KTAP too.
    Ktap,
}

/// What every change runs, and every call that asks for nothing else.
pub(super) const DEFAULT: &str = "default";

/// Which tests are to run.
pub(super) enum Choice<'a> {
    /// Those of a suite.
    Suite(&'a str),
    /// These, or with `!` before a name the default suite without these.
    Named(&'a [String]),
}

impl Suite {
    pub(super) fn load(root: &Path) -> Result<Self, Failure> {
        let path = root.join("vm-images/suites.toml");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let suite: Self = toml::from_str(text).map_err(|error| format!("suites.toml: {error}"))?;
        let is_name = |name: &str| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        for test in &suite.tests {
            if let Some(name) = [&test.name, &test.suite].into_iter().find(|n| !is_name(n)) {
                return Err(format!("suites.toml: '{name}' is no name"));
            }
            for program in &test.programs {
                if !suite.programs.iter().any(|p| p.name == *program) {
                    return Err(format!(
                        "suites.toml: test {} wants the program {program}, which is not listed",
                        test.name
                    ));
                }
            }
        }
        Ok(suite)
    }

    /// The suites, in the order in which they begin.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for test in &self.tests {
            if !names.contains(&test.suite.as_str()) {
                names.push(&test.suite);
            }
        }
        names
    }

    /// Whether a suite has a test for a profile, other than those that always run.
    pub(super) fn has_any(&self, suite: &str, profile: &str) -> bool {
        self.tests
            .iter()
            .any(|test| test.suite == suite && !test.always && test.is_for(profile))
    }

    /// The tests that run, in order, and those that were wanted and have nothing to test on this kernel, with the
    /// reason.
    pub(super) fn choose(
        &self,
        kernel: &Kernel,
        profile: &str,
        choice: &Choice<'_>,
    ) -> Result<(Vec<Test>, Vec<String>), Failure> {
        self.select(profile, choice, |option| kernel.has(option))
    }

    fn select(
        &self,
        profile: &str,
        choice: &Choice<'_>,
        has: impl Fn(&str) -> bool,
    ) -> Result<(Vec<Test>, Vec<String>), Failure> {
        if let Choice::Suite(name) = choice
            && !self.names().contains(name)
        {
            let known = self.names().join(", ");
            return Err(format!("no suite '{name}'; there are {known}"));
        }
        if let Choice::Named(names) = choice {
            for name in *names {
                let name = name.trim_start_matches('!');
                if !self.tests.iter().any(|test| test.name == name) {
                    let known: Vec<&str> = self.tests.iter().map(|t| t.name.as_str()).collect();
                    return Err(format!("no test '{name}'; there are {}", known.join(", ")));
                }
            }
        }
        let wanted = |test: &&Test| match choice {
            Choice::Suite(name) => test.always || test.suite == **name,
            Choice::Named(names) => {
                let chosen = names.contains(&test.name);
                let excluded = names.contains(&format!("!{}", test.name));
                let only_exclusions = names.iter().all(|name| name.starts_with('!'));
                test.always || chosen || (only_exclusions && !excluded && test.suite == DEFAULT)
            }
        };
        let mut tests = Vec::new();
        let mut left_out = Vec::new();
        for test in self.tests.iter().filter(wanted) {
            let missing: Vec<&str> = test
                .needs
                .iter()
                .map(String::as_str)
                .filter(|option| !has(option))
                .collect();
            if !missing.is_empty() {
                left_out.push(format!(
                    "{}: this kernel has no {}",
                    test.name,
                    missing.join(", ")
                ));
            } else if !test.is_for(profile) {
                // Only who asked for it by its name wonders where it is.
                if matches!(choice, Choice::Named(names) if names.contains(&test.name)) {
                    let profiles = test.profiles.join(", ");
                    left_out.push(format!("{}: for {profiles} only", test.name));
                }
            } else {
                tests.push(test.clone());
            }
        }
        Ok((tests, left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [[program]]
        name = "p"
        package = "onecopy"
        bin = "onecopy"

        [[test]]
        name = "load"
        command = "insmod"
        suite = "default"
        seconds = 1
        always = true

        [[test]]
        name = "kunit"
        command = "true"
        suite = "default"
        seconds = 1
        needs = ["CONFIG_KUNIT"]
        judge = "ktap"

        [[test]]
        name = "fuzz"
        command = "p fuzz"
        suite = "fuzz"
        programs = ["p"]
        seconds = 100
        profiles = ["debug"]
    "#;

    fn names(profile: &str, choice: &Choice<'_>, kunit: bool) -> Vec<String> {
        let suite = Suite::parse(TEXT).expect("suite");
        let (tests, _) = suite.select(profile, choice, |_| kunit).expect("choice");
        tests.into_iter().map(|test| test.name).collect()
    }

    #[test]
    fn our_own_file_is_in_order() {
        let suite = Suite::load(&crate::root()).expect("suites.toml");
        assert!(suite.names().contains(&DEFAULT));
        assert!(suite.tests.iter().any(|test| test.always));
    }

    #[test]
    fn choices_choose() {
        let (default, fuzz) = (Choice::Suite(DEFAULT), Choice::Suite("fuzz"));
        assert_eq!(names("debug", &default, true), ["load", "kunit"]);
        assert_eq!(names("release", &default, false), ["load"]);
        assert_eq!(names("debug", &fuzz, true), ["load", "fuzz"]);
        assert_eq!(names("release", &fuzz, true), ["load"]);
        let suite = Suite::parse(TEXT).expect("suite");
        assert!(suite.has_any("fuzz", "debug") && !suite.has_any("fuzz", "release"));
        let fuzz = ["fuzz".to_owned()];
        assert_eq!(
            names("debug", &Choice::Named(&fuzz), true),
            ["load", "fuzz"]
        );
        let not = ["!kunit".to_owned()];
        assert_eq!(names("debug", &Choice::Named(&not), true), ["load"]);
    }

    #[test]
    fn what_is_left_out_says_why() {
        let suite = Suite::parse(TEXT).expect("suite");
        let all = suite.select("release", &Choice::Suite(DEFAULT), |_| false);
        let (_, left_out) = all.expect("choice");
        assert_eq!(left_out, ["kunit: this kernel has no CONFIG_KUNIT"]);
        let fuzz = ["fuzz".to_owned()];
        let named = suite.select("release", &Choice::Named(&fuzz), |_| true);
        let (_, left_out) = named.expect("choice");
        assert_eq!(left_out, ["fuzz: for debug only"]);
    }

    #[test]
    fn mistakes_are_named() {
        let text = TEXT.replace("programs = [\"p\"]", "programs = [\"q\"]");
        let error = Suite::parse(&text).expect_err("no program q");
        assert!(error.contains("test fuzz wants the program q"), "{error}");
        let none = Suite::parse(&TEXT.replace("suite = \"fuzz\"", "suite = \"\""));
        assert!(none.expect_err("no name").contains("'' is no name"));
        let unknown = ["fuss".to_owned()];
        let suite = Suite::parse(TEXT).expect("suite");
        let error = suite.select("debug", &Choice::Named(&unknown), |_| true);
        assert!(
            error
                .expect_err("none")
                .contains("there are load, kunit, fuzz")
        );
        let error = suite.select("debug", &Choice::Suite("fuss"), |_| true);
        assert!(error.expect_err("none").contains("there are default, fuzz"));
    }
}
