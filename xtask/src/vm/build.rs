// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that guests run, built by cargo or by a script, for this machine's architecture or another one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use onecopy_vm::progress::Progress;
use onecopy_vm::pypi;
use onecopy_vm::userland::Userland;

use super::suite::{Program, Suite, Test};
use super::text;
use crate::built::{self, Target};
use crate::steps::{cargo, show};
use crate::{Failure, root};

/// Programs that were built, with what they need.
#[derive(Debug, Default)]
pub(super) struct Programs {
    pub(super) built: Vec<BuiltPackage>,
    /// A tree of the kernel's distribution.
    pub(super) tree: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct BuiltPackage {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Libraries of ours that it links with.
    pub(super) libraries: Vec<PathBuf>,
    pub(super) files: Vec<String>,
}

/// How programs are built.
#[derive(Clone, Copy)]
pub(super) struct Builder<'a> {
    release: bool,
    /// For another architecture.
    userland: Option<&'a Userland>,
    /// Only the package itself is built, not the workspace with it.
    alone: bool,
}

/// What cargo has fetched.
pub(super) fn cargo_home() -> Result<PathBuf, Failure> {
    let home = |name| std::env::var_os(name).filter(|value: &std::ffi::OsString| !value.is_empty());
    let place = home("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&home("HOME")?).join(".cargo")));
    place.ok_or_else(|| "no place for what cargo fetches: set HOME or CARGO_HOME".to_owned())
}

impl<'a> Builder<'a> {
    pub(super) fn new(release: bool, userland: Option<&'a Userland>) -> Self {
        Self {
            release,
            userland,
            alone: false,
        }
    }

    /// A folder of what is built for the architecture.
    fn folder(self, name: &str) -> PathBuf {
        match self.userland {
            None => root().join("target").join(name),
            Some(userland) => root()
                .join("target")
                .join(userland.arch.tag("vm"))
                .join(name),
        }
    }

    fn cargo(self) -> Result<Command, Failure> {
        let Some(userland) = self.userland else {
            return Ok(cargo());
        };
        // What runs among the compilers cannot fetch: it sees neither the names of hosts nor certificates.
        show(cargo().args(["fetch", "--locked", "--target", userland.arch.rust]))?;
        userland
            .cargo(&root(), &self.folder("cargo"), &cargo_home()?)
            .map_err(text)
    }

    fn shell(self, script: &str, folder: &Path) -> Result<Command, Failure> {
        let mut command = match self.userland {
            None => {
                let mut command = Command::new("sh");
                command.current_dir(root());
                command
            }
            Some(userland) => userland.command(&root(), "sh").map_err(text)?,
        };
        command.arg(script).arg::<&OsStr>(folder.as_ref());
        Ok(command)
    }
}

impl Programs {
    /// Builds what the tests use. `plant` makes a tree of packages.
    pub(super) fn build(
        suite: &Suite,
        tests: &[Test],
        builder: Builder<'_>,
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
            ..Self::only(&programs, builder)?
        })
    }

    /// Builds all there are but the tree.
    pub(super) fn build_all(suite: &Suite, builder: Builder<'_>) -> Result<Self, Failure> {
        let programs: Vec<_> = suite
            .programs
            .iter()
            .filter(|program| program.packages.is_empty())
            .collect();
        Self::only(&programs, builder)
    }

    /// Builds programs whose packages are built by themselves.
    pub(super) fn alone(programs: &[&Program], builder: Builder<'_>) -> Result<Self, Failure> {
        let alone = true;
        Self::only(programs, Builder { alone, ..builder })
    }

    /// Builds programs.
    pub(super) fn only(programs: &[&Program], builder: Builder<'_>) -> Result<Self, Failure> {
        let mut built = Vec::new();
        for &program in programs {
            let (path, libraries) = match (&program.package, &program.script, &program.mpich) {
                (Some(package), None, None) => (by_cargo(program, package, builder)?, Vec::new()),
                (None, Some(script), None) => by_script(program, script, builder)?,
                (None, None, Some(file)) => (of_mpich(file)?, Vec::new()),
                _ => {
                    return Err(format!(
                        "program {} has either a package, a script or a file of MPICH",
                        program.name
                    ));
                }
            };
            built.push(BuiltPackage {
                name: program.name.clone(),
                path,
                libraries,
                files: program.files.clone(),
            });
        }
        Ok(Self { built, tree: None })
    }
}

fn by_cargo(program: &Program, package: &str, builder: Builder<'_>) -> Result<PathBuf, Failure> {
    let target = match (&program.bin, &program.test) {
        (Some(bin), None) => Target::Program(bin),
        (None, Some(test)) => Target::Test(test),
        _ => {
            return Err(format!(
                "suites.toml: program {} has either a bin or a test",
                program.name
            ));
        }
    };
    let mut command = builder.cargo()?;
    if builder.release || builder.alone || builder.userland.is_some() {
        target.alone(&mut command);
        command.args(["--package", package]);
        if builder.release {
            command.arg("--release");
        }
        if !program.features.is_empty() {
            command.arg("--features").arg(program.features.join(","));
        }
    } else {
        target.among_tests(&mut command);
    }
    Ok(built::executable(&mut command, package, target.name())?.path)
}

/// A file of MPICH's package, which is installed first where it is missing.
fn of_mpich(file: &str) -> Result<PathBuf, Failure> {
    let cache = pypi::cache().map_err(text)?;
    let home = pypi::MPICH.home(&cache, &Progress::new()).map_err(text)?;
    let path = home.join(file);
    if !path.is_file() {
        return Err(format!(
            "{} is not there: this version of MPICH has no such file, or its installation in {} is broken; remove that \
             folder, and it is installed anew",
            path.display(),
            home.display()
        ));
    }
    Ok(path)
}

/// Runs a script with a folder of its own under `target/`; what it leaves there is the program and its libraries.
fn by_script(
    program: &Program,
    script: &str,
    builder: Builder<'_>,
) -> Result<(PathBuf, Vec<PathBuf>), Failure> {
    let folder = builder.folder("vm").join(&program.name);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    show(&mut builder.shell(script, &folder)?)?;
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
