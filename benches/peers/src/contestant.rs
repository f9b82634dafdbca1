// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who takes part, and how each is started.

use crate::install::{Family, Shop};
use crate::note;
use onecopy_bench::{BenchError, Mechanism};
use std::path::PathBuf;
use std::process::Command;

/// How a contestant runs.
#[derive(Clone, Debug)]
pub(crate) enum How {
    /// The C program on an MPI library.
    Mpi(Mpi),
    /// Ours through the Rust interface.
    Rust(Mechanism),
}

/// The C program on an MPI library.
#[derive(Clone, Debug)]
pub(crate) struct Mpi {
    family: Family,
    home: PathBuf,
    program: PathBuf,
    /// The launcher.
    launcher: PathBuf,
    words: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// malloc or alloc: memory of the messages.
    pub(crate) memory: &'static str,
}

/// One that takes part.
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    /// Its name in tables.
    pub(crate) name: &'static str,
    /// How it runs.
    pub(crate) how: How,
}

impl Contestant {
    /// Whether it is one of the others.
    pub(crate) fn is_peer(&self) -> bool {
        matches!(&self.how, How::Mpi(mpi) if !mpi.family.is_ours())
    }
}

type Row = (
    &'static str,
    Family,
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
    &'static str,
);

/// Name, library, words for its launcher, environment, memory. Each peer in the forms that are fastest somewhere.
const TABLE: [Row; 12] = [
    ("onecopy", Family::Onecopy, &[], &[], "malloc"),
    (
        "onecopy --heap",
        Family::Onecopy,
        &["--heap"],
        &[],
        "malloc",
    ),
    ("onecopy Alloc_mem", Family::Onecopy, &[], &[], "alloc"),
    ("other", Family::Other, &[], &[], "malloc"),
    ("other --heap", Family::Other, &["--heap"], &[], "malloc"),
    ("other Alloc_mem", Family::Other, &[], &[], "alloc"),
    ("mpich", Family::Mpich, &[], &[], "malloc"),
    (
        "mpich ucx",
        Family::Mpich,
        &[],
        &[("MPIR_CVAR_NOLOCAL", "1")],
        "malloc",
    ),
    (
        "impi",
        Family::Intel,
        &[],
        &[("I_MPI_FABRICS", "shm"), ("I_MPI_PIN", "0")],
        "malloc",
    ),
    (
        "impi Alloc_mem",
        Family::Intel,
        &[],
        &[
            ("I_MPI_FABRICS", "shm"),
            ("I_MPI_PIN", "0"),
            ("I_MPI_SHM_HEAP", "1"),
        ],
        "alloc",
    ),
    (
        "ompi ob1",
        Family::OpenMpi,
        &["--mca", "pml", "ob1"],
        &[],
        "malloc",
    ),
    (
        "ompi ucx",
        Family::OpenMpi,
        &[
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "pml_ucx_tls",
            "any",
            "--mca",
            "pml_ucx_devices",
            "any",
        ],
        // Transports that need no thread of their own: with one, a rank that polls keeps it from running.
        &[("UCX_TLS", "self,posix,sysv,cma")],
        "malloc",
    ),
];

impl Mpi {
    /// A command that starts `ranks` of the program with these words.
    pub(crate) fn command(&self, ranks: usize, words: &[&std::ffi::OsStr]) -> Command {
        let mut command = Command::new(&self.launcher);
        if self.family.is_ours() {
            command.args(["run"]);
        }
        command.args(["-n", &ranks.to_string()]).args(self.words);
        if self.family == Family::OpenMpi {
            command
                .args([
                    "--oversubscribe",
                    "--allow-run-as-root",
                    "--bind-to",
                    "none",
                ])
                .env("OPAL_PREFIX", &self.home);
        }
        if self.family.is_ours() {
            command.args(["--bind", "none"]);
        }
        command.arg(&self.program).args(words);
        command
            .env("LD_LIBRARY_PATH", self.home.join("lib"))
            .envs(self.env.iter().copied());
        command
    }
}

/// All that can take part here and are asked for; one that cannot is named and left out.
pub(crate) fn all(shop: &Shop, only: &[String]) -> Result<Vec<Contestant>, BenchError> {
    let rust = [
        ("onecopy Rust", Mechanism::Auto),
        ("onecopy Rust alloc", Mechanism::Heap),
    ];
    let known = || {
        TABLE
            .iter()
            .map(|row| row.0)
            .chain(rust.map(|(name, _)| name))
    };
    for name in only {
        if !known().any(|known| known == name) {
            let names: Vec<&str> = known().collect();
            return Err(BenchError::Usage(format!(
                "'{name}' is none of: {}",
                names.join(", ")
            )));
        }
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|n| n == name);
    let mut all = Vec::new();
    for (name, family, words, env, memory) in TABLE {
        if !wanted(name) || (family == Family::Other && shop.other.is_none()) {
            continue;
        }
        let found = shop.home(family).and_then(|home| {
            let known = all.iter().find_map(|one: &Contestant| match &one.how {
                How::Mpi(mpi) if mpi.family == family => Some(mpi.program.clone()),
                _ => None,
            });
            let program = known.map_or_else(|| shop.program(family), Ok)?;
            Ok((home, program))
        });
        match found {
            Ok((home, program)) => all.push(Contestant {
                name,
                how: How::Mpi(Mpi {
                    family,
                    launcher: match family {
                        Family::Onecopy => shop.built.join("onecopy"),
                        Family::Other => {
                            let other = shop.other.as_ref().unwrap_or(&shop.built);
                            other.join("onecopy")
                        }
                        Family::OpenMpi => home.join("bin/mpirun"),
                        Family::Mpich | Family::Intel => home.join("bin/mpiexec"),
                    },
                    home,
                    program,
                    words,
                    env,
                    memory,
                }),
            }),
            Err(error) if family.is_ours() => return Err(error),
            Err(error) => note(&format!("{name} is left out: {error}")),
        }
    }
    for (name, mechanism) in rust {
        if wanted(name) {
            all.push(Contestant {
                name,
                how: How::Rust(mechanism),
            });
        }
    }
    Ok(all)
}
