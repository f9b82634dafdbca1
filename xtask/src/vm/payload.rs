// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest is given: the module, programs, and the script that runs the tests.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use onecopy_vm::console::Outcome;
use onecopy_vm::initramfs::Initramfs;
use onecopy_vm::ktap::Ktap;
use onecopy_vm::qemu::Report;
use serde_json::Value;

use super::suite::{Judge, Program, Suite, Test};
use super::text;
use crate::steps::cargo;
use crate::{Failure, root};

/// The features with which the workspace's tests are built.
pub(crate) const TESTED_WITH: &str = "fault-points";

/// Programs that were built, with what they need.
pub(super) struct Programs {
    built: Vec<Built>,
    /// A tree of the kernel's distribution.
    tree: Option<PathBuf>,
}

struct Built {
    name: String,
    path: PathBuf,
    /// Libraries of ours that it links with.
    libraries: Vec<PathBuf>,
    files: Vec<String>,
}

impl Programs {
    /// Builds what the tests use. `plant` makes a tree of packages.
    pub(super) fn build(
        suite: &Suite,
        tests: &[Test],
        release: bool,
        plant: impl Fn(&[String]) -> Result<PathBuf, Failure>,
    ) -> Result<Self, Failure> {
        let used = |program: &&Program| {
            tests
                .iter()
                .any(|test| test.programs.contains(&program.name))
        };
        let (trees, programs): (Vec<_>, Vec<_>) = suite
            .programs
            .iter()
            .filter(used)
            .partition(|program| !program.packages.is_empty());
        let tree = trees.first().map(|tree| plant(&tree.packages));
        Ok(Self {
            tree: tree.transpose()?,
            ..Self::only(&programs, release)?
        })
    }

    /// Builds all there are but the tree.
    pub(super) fn build_all(suite: &Suite, release: bool) -> Result<Self, Failure> {
        let programs: Vec<_> = suite
            .programs
            .iter()
            .filter(|program| program.packages.is_empty())
            .collect();
        Self::only(&programs, release)
    }

    fn only(programs: &[&Program], release: bool) -> Result<Self, Failure> {
        let mut built = Vec::new();
        for &program in programs {
            let (path, libraries) = match (&program.package, &program.script) {
                (Some(package), None) => (by_cargo(program, package, release)?, Vec::new()),
                (None, Some(script)) => by_script(program, script)?,
                _ => {
                    return Err(format!(
                        "suites.toml: program {} has either a package or a script",
                        program.name
                    ));
                }
            };
            built.push(Built {
                name: program.name.clone(),
                path,
                libraries,
                files: program.files.clone(),
            });
        }
        Ok(Self { built, tree: None })
    }
}

fn by_cargo(program: &Program, package: &str, release: bool) -> Result<PathBuf, Failure> {
    let mut command = cargo();
    let name = match (&program.bin, &program.test) {
        (Some(bin), None) => {
            command.args(["build", "--bin", bin]);
            bin
        }
        (None, Some(test)) => {
            command.args(["test", "--no-run", "--test", test]);
            test
        }
        _ => {
            return Err(format!(
                "suites.toml: program {} has either a bin or a test",
                program.name
            ));
        }
    };
    command.arg("--message-format=json-render-diagnostics");
    if release {
        command.args(["--release", "--package", package]);
        if !program.features.is_empty() {
            command.arg("--features").arg(program.features.join(","));
        }
    } else {
        // As `cargo xtask test` builds them, so that nothing is built twice.
        command.args(["--workspace", "--features", TESTED_WITH]);
    }
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{} cannot be built: {}",
            program.name, output.status
        ));
    }
    executable(&String::from_utf8_lossy(&output.stdout), name)
        .ok_or_else(|| format!("cargo built {name} and names no file for it"))
}

/// The file that cargo says it made for a target.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter(|message| message["target"]["name"] == target)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
}

/// Runs a script with a folder of its own under `target/`; what it leaves there is the program and its libraries.
fn by_script(program: &Program, script: &str) -> Result<(PathBuf, Vec<PathBuf>), Failure> {
    let folder = root().join("target/vm").join(&program.name);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut command = std::process::Command::new("sh");
    command.arg(script).arg(&folder).current_dir(root());
    crate::steps::show(&mut command)?;
    let path = folder.join(&program.name);
    if !path.exists() {
        return Err(format!("{script} left no {}", path.display()));
    }
    let mut libraries = Vec::new();
    let entries =
        std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry
            .map_err(|error| format!("{}: {error}", folder.display()))?
            .path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.contains(".so") {
            libraries.push(path);
        }
    }
    Ok((path, libraries))
}

/// Packs the guest's root; its tests may take so many times longer than they say, and find these variables.
pub(super) fn pack(
    slower: u32,
    variables: &[String],
    objects: &[PathBuf],
    programs: &Programs,
    tests: &[Test],
    run: &Path,
) -> Result<PathBuf, Failure> {
    let mut guest = Initramfs::new().map_err(text)?;
    for object in objects {
        let name = object.file_name().unwrap_or_default().to_string_lossy();
        guest
            .copy(object, &format!("payload/{name}"))
            .map_err(text)?;
    }
    for program in &programs.built {
        for library in &program.libraries {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            guest
                .copy(library, &format!("payload/lib/{name}"))
                .map_err(text)?;
        }
        let place = format!("payload/bin/{}", program.name);
        guest.program(&program.path, &place).map_err(text)?;
        for file in &program.files {
            let from = root().join(file);
            let place = from.display().to_string();
            guest.copy(&from, &place).map_err(text)?;
        }
    }
    if let Some(tree) = &programs.tree {
        with_tree(&mut guest, tree)?;
    }
    guest.bytes("payload/run", 0o755, script(slower, variables, tests)?);
    let path = run.join("initramfs.gz");
    guest.write(&path).map_err(text)?;
    Ok(path)
}

/// A tree of the distribution, with the module's sources and what its README says of installing it.
fn with_tree(guest: &mut Initramfs, tree: &Path) -> Result<(), Failure> {
    const PLACE: &str = "payload/tree";
    guest.tree(tree, PLACE).map_err(text)?;
    guest
        .copy(&root().join("kmod"), &format!("{PLACE}/root/kmod"))
        .map_err(text)?;
    guest
        .copy(
            &root().join("vm-images/programs/install.sh"),
            &format!("{PLACE}/install.sh"),
        )
        .map_err(text)?;
    let path = root().join("kmod/README.md");
    let readme =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let blocks = install_lines(&readme);
    let [dkms, remove, make] = blocks.as_slice() else {
        return Err(format!(
            "{}: the part on installing has {} blocks of commands, and not three: by DKMS, the removal, for one kernel",
            path.display(),
            blocks.len()
        ));
    };
    for (name, lines) in [("dkms", dkms), ("remove", remove), ("make", make)] {
        guest.bytes(&format!("{PLACE}/root/{name}.sh"), 0o644, lines);
    }
    Ok(())
}

/// The blocks of commands in the README's part on installing. What apt installs is there already.
fn install_lines(readme: &str) -> Vec<String> {
    let part = readme.split("\n## Install\n").nth(1).unwrap_or_default();
    let part = part.split("\n## ").next().unwrap_or_default();
    part.split("```sh\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .map(|block| {
            block
                .lines()
                .filter(|line| !line.starts_with("sudo apt "))
                .map(|line| format!("{line}\n"))
                .collect()
        })
        .collect()
}

/// The script of the tests.
fn script(slower: u32, variables: &[String], tests: &[Test]) -> Result<String, Failure> {
    let mut script = format!(". /payload/lib.sh\nexport SLOWER={slower}\n");
    for variable in variables {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_uppercase())
                && name
                    .chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        };
        match variable.split_once('=') {
            Some((name, value)) if is_name(name) => {
                let value = value.replace('\'', "'\\''");
                script.push_str(&format!("export {name}='{value}'\n"));
            }
            _ => {
                return Err(format!(
                    "--set {variable}: a name of capital letters, '=', and a value"
                ));
            }
        }
    }
    for test in tests {
        let seconds = test.seconds * slower;
        let command = test.command.replace('\'', "'\\''");
        script.push_str(&format!(
            "test_ {} {seconds} sh -c '{command}'\n",
            test.name
        ));
    }
    script.push_str("exit $failed\n");
    Ok(script)
}

/// The verdict with what KTAP says.
pub(super) fn judge(mut report: Report, tests: &[Test]) -> Report {
    for test in tests.iter().filter(|test| test.judge == Judge::Ktap) {
        let ran = report
            .console
            .tests()
            .iter()
            .find(|ran| ran.name == test.name);
        let Some(ran) = ran.filter(|ran| ran.code == Some(0)) else {
            continue;
        };
        let ktap = Ktap::parse(&ran.output);
        let why = if !ktap.failed.is_empty() {
            format!("{}: {}", test.name, ktap.failed.join(", "))
        } else if ktap.passed == 0 {
            format!("{}: not one case ran", test.name)
        } else {
            continue;
        };
        report.outcome = match report.outcome {
            Outcome::Passed => Outcome::Failed(why),
            Outcome::Failed(already) => Outcome::Failed(format!("{already}; {why}")),
            other => other,
        };
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, command: &str) -> Test {
        Test {
            name: name.to_owned(),
            command: command.to_owned(),
            programs: Vec::new(),
            seconds: 10,
            suite: super::super::suite::DEFAULT.to_owned(),
            always: false,
            needs: Vec::new(),
            profiles: Vec::new(),
            judge: Judge::Code,
        }
    }

    #[test]
    fn the_script_quotes() {
        let set = ["CHURN_SECONDS=5".to_owned(), "A=it's".to_owned()];
        let text = script(6, &set, &[test("a", "echo 'x' && true")]).expect("script");
        assert!(text.contains("export CHURN_SECONDS='5'\nexport A='it'\\''s'\n"));
        assert!(
            text.contains("test_ a 60 sh -c 'echo '\\''x'\\'' && true'\n"),
            "{text}"
        );
        assert!(text.ends_with("exit $failed\n"));
        for wrong in ["", "A", "=1", "a=1", "A B=1", "A;B=1"] {
            assert!(script(1, &[wrong.to_owned()], &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_readme_says_how_to_install() {
        let readme = std::fs::read_to_string(root().join("kmod/README.md")).expect("README");
        let blocks = install_lines(&readme);
        assert_eq!(blocks.len(), 3, "{blocks:?}");
        assert!(blocks[0].contains("dkms install") && !blocks[0].contains("apt"));
        assert!(blocks[1].contains("dkms remove"));
        assert!(blocks[2].contains("make install"));
    }

    #[test]
    fn the_file_of_a_target_is_found() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"a"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"a"},"executable":"/t/a-1"}
{"reason":"compiler-artifact","target":{"name":"b"},"executable":"/t/b-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "a"), Some(PathBuf::from("/t/a-1")));
        assert_eq!(executable(messages, "c"), None);
    }
}
