// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who takes part, and how each is started.

use crate::install::{Family, Shop};
use crate::note;
use onecopy_bench::{BenchError, Mechanism};
use std::path::PathBuf;
use std::process::Command;

/// What a contestant runs.
#[derive(Clone, Debug)]
pub(crate) enum Runs {
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
    /// What it runs.
    pub(crate) runs: Runs,
}

impl Contestant {
    /// Whether it is one of the others.
    pub(crate) fn is_peer(&self) -> bool {
        matches!(&self.runs, Runs::Mpi(mpi) if !mpi.family.is_ours())
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
    /// Finds or installs the library and builds the program with it, unless that was done for one of `others`.
    fn prepare(shop: &Shop, row: &Row, others: &[Contestant]) -> Result<Self, BenchError> {
        let (_, family, words, env, memory) = *row;
        let home = shop.home(family)?;
        let built = others.iter().find_map(|other| match &other.runs {
            Runs::Mpi(mpi) if mpi.family == family => Some(mpi.program.clone()),
            _ => None,
        });
        let program = built.map_or_else(|| shop.program(family), Ok)?;
        let launcher = match family {
            Family::Onecopy => shop.built.join("onecopy"),
            Family::Other => {
                let other = shop.other.as_ref().unwrap_or(&shop.built);
                other.join("onecopy")
            }
            Family::OpenMpi => home.join("bin/mpirun"),
            Family::Mpich | Family::Intel => home.join("bin/mpiexec"),
        };
        Ok(Self {
            family,
            home,
            program,
            launcher,
            words,
            env,
            memory,
        })
    }

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

/// Ours through the Rust interface.
const RUST: [(&str, Mechanism); 2] = [
    ("onecopy Rust", Mechanism::Auto),
    ("onecopy Rust alloc", Mechanism::Heap),
];

/// All that can take part here and are asked for; one that cannot is named and left out.
pub(crate) fn all(shop: &Shop, only: &[String]) -> Result<Vec<Contestant>, BenchError> {
    check_names(only)?;
    let wanted = |name: &str| only.is_empty() || only.iter().any(|other| other == name);
    let mut all = Vec::new();
    for row in TABLE.iter().filter(|row| wanted(row.0)) {
        let (name, family, ..) = *row;
        if family == Family::Other && shop.other.is_none() {
            continue;
        }
        match Mpi::prepare(shop, row, &all) {
            Ok(mpi) => all.push(Contestant {
                name,
                runs: Runs::Mpi(mpi),
            }),
            Err(error) if family.is_ours() => return Err(error),
            Err(error) => note(&format!("{name} is left out: {error}")),
        }
    }
    let rust = RUST.into_iter().filter(|(name, _)| wanted(name));
    all.extend(rust.map(|(name, mechanism)| Contestant {
        name,
        runs: Runs::Rust(mechanism),
    }));
    Ok(all)
}

fn check_names(only: &[String]) -> Result<(), BenchError> {
    let known: Vec<&str> = TABLE
        .iter()
        .map(|row| row.0)
        .chain(RUST.map(|(name, _)| name))
        .collect();
    match only.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(BenchError::Usage(format!(
            "'{name}' is none of: {}",
            known.join(", ")
        ))),
    }
}
