// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest is given: the module, programs, and the script that runs the tests; and the verdict.

use std::path::{Path, PathBuf};

use super::build::{BuiltPackage, Programs};
use super::suite::{Judge, Test};
use super::text;
use crate::{Failure, root};
use onecopy_vm::console::Outcome;
use onecopy_vm::initramfs::Initramfs;
use onecopy_vm::ktap::Ktap;
use onecopy_vm::qemu::Report;
use onecopy_vm::userland::Userland;

/// What a guest runs, and with what.
#[derive(Debug)]
pub(super) struct Payload<'a> {
    /// What the guest has beside the kernel, where it is of another architecture.
    pub(super) userland: Option<&'a Userland>,
    /// Modules for its kernel.
    pub(super) objects: &'a [PathBuf],
    pub(super) programs: &'a Programs,
    pub(super) tests: &'a [Test],
    /// Its tests may take so many times longer than they say.
    pub(super) slower: u32,
    /// Variables that its tests find: `NAME=VALUE`.
    pub(super) variables: &'a [String],
}

impl Payload<'_> {
    /// Packs the guest's root, and says where it lies in the folder of the run.
    pub(super) fn pack(&self, run: &Path) -> Result<PathBuf, Failure> {
        let guest = self.userland.map_or_else(Initramfs::new, Initramfs::of);
        let mut guest = guest.map_err(text)?;
        for object in self.objects {
            copy_into(&mut guest, object, "payload")?;
        }
        for program in &self.programs.built {
            with_program(&mut guest, program)?;
        }
        if let Some(tree) = &self.programs.tree {
            with_tree(&mut guest, tree)?;
        }
        guest.bytes("payload/run", 0o755, self.script()?);
        let path = run.join("initramfs.gz");
        guest.write(&path).map_err(text)?;
        Ok(path)
    }

    /// The script of the tests.
    fn script(&self) -> Result<String, Failure> {
        let slower = self.slower;
        let mut script = format!(". /payload/lib.sh\nexport SLOWER={slower}\n");
        for variable in self.variables {
            script.push_str(&export(variable)?);
        }
        for test in self.tests {
            let seconds = test.seconds * slower;
            let command = quoted(&test.command);
            script.push_str(&format!("test_ {} {seconds} sh -c {command}\n", test.name));
        }
        script.push_str("exit $failed\n");
        Ok(script)
    }
}

/// Copies a file of the host under its own name into a folder of the guest.
fn copy_into(guest: &mut Initramfs, from: &Path, folder: &str) -> Result<(), Failure> {
    let name = from.file_name().unwrap_or_default().to_string_lossy();
    guest.copy(from, &format!("{folder}/{name}")).map_err(text)
}

fn with_program(guest: &mut Initramfs, program: &BuiltPackage) -> Result<(), Failure> {
    for library in &program.libraries {
        copy_into(guest, library, "payload/lib")?;
    }
    let place = format!("payload/bin/{}", program.name);
    guest.program(&program.path, &place).map_err(text)?;
    for file in &program.files {
        let from = root().join(file);
        let place = from.display().to_string();
        guest.copy(&from, &place).map_err(text)?;
    }
    Ok(())
}

/// A line of the script that gives its tests a variable.
fn export(variable: &str) -> Result<String, Failure> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_uppercase())
            && name
                .chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    match variable.split_once('=') {
        Some((name, value)) if is_name(name) => Ok(format!("export {name}={}\n", quoted(value))),
        _ => Err(format!(
            "--set {variable}: a name of capital letters, '=', and a value"
        )),
    }
}

/// A word of a shell's line.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
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
    let [dkms, remove, make, unmake] = blocks.as_slice() else {
        return Err(format!(
            "{}: the part on installing has {} blocks of commands, and not four: by DKMS and by make, each with its removal",
            path.display(),
            blocks.len()
        ));
    };
    let named = [
        ("dkms", dkms),
        ("remove", remove),
        ("make", make),
        ("unmake", unmake),
    ];
    for (name, lines) in named {
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

    fn script(slower: u32, variables: &[String], tests: &[Test]) -> Result<String, Failure> {
        let payload = Payload {
            userland: None,
            objects: &[],
            programs: &Programs::default(),
            tests,
            slower,
            variables,
        };
        payload.script()
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
        assert_eq!(blocks.len(), 4, "{blocks:?}");
        assert!(blocks[0].contains("dkms install") && !blocks[0].contains("apt"));
        assert!(blocks[1].contains("dkms remove"));
        assert!(blocks[2].contains("make install"));
        assert!(blocks[3].contains("make uninstall"));
    }
}
