// SPDX-License-Identifier: MIT OR Apache-2.0
//! FFTW: the tests of its transforms over MPI.

use std::path::{Path, PathBuf};

use onecopy_vm::program::{gentle, output};

use super::{App, Bench, Launch, Outcome, fresh, make, text};
use crate::Failure;

pub(super) const APP: App = App {
    name: "fftw",
    title: "FFTW",
    package: "fftw3",
    verifies: "random distributed transforms against the properties of the transform (linearity, impulse response, time shift), by its own tests/check.pl",
    build,
    run,
};

/// Random problems of each run.
const PROBLEMS: usize = 40;

fn build(bench: &Bench, source: &Path) -> Result<PathBuf, Failure> {
    let built = source.with_file_name("build");
    fresh(&built)?;
    let mut configure = gentle(source.join("configure"));
    configure
        .args(["--enable-mpi", "--disable-fortran", "--disable-doc"])
        .arg("--disable-dependency-tracking")
        .arg(format!(
            "MPICC={}",
            bench.prefix.join("bin/onecopy-mpicc").display()
        ))
        .arg("CFLAGS=-O1 -w")
        // Its Fortran layer is compiled in any case; the standard ABI has these under other names.
        .arg("CPPFLAGS=-DMPI_Fint=int -DMPI_Comm_f2c=MPI_Comm_fromint")
        .current_dir(&built);
    output(&mut configure).map_err(text)?;
    make(&built, &[])?;
    // libtool's program is a script that finds what lies beside it.
    Ok(built.join("mpi/mpi-bench"))
}

fn run(bench: &Bench, launch: &Launch<'_>) -> Result<Outcome, Failure> {
    let mut program = bench.launcher(launch);
    program.arg(launch.program);
    let line: Vec<String> = std::iter::once(program.get_program())
        .chain(program.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut check = std::process::Command::new("perl");
    check
        .arg(launch.source.join("tests/check.pl"))
        .args(["-r", &format!("-c={PROBLEMS}"), "-v", "--mpi"])
        .arg(line.join(" "))
        .current_dir(launch.folder);
    for (name, value) in program.get_envs() {
        if let Some(value) = value {
            check.env(name, value);
        }
    }
    let text = bench.finish(&check)?;
    Ok(judged(&text))
}

fn judged(output: &str) -> Outcome {
    // One line for each verified problem: the problem, and four errors.
    let verified = output
        .lines()
        .filter(|line| {
            let mut words = line.split_whitespace();
            words
                .next()
                .is_some_and(|word| word.contains('x') || word.starts_with(['o', 'i', 'r', 'k']))
                && words.filter(|word| word.parse::<f64>().is_ok()).count() >= 2
        })
        .count();
    Outcome {
        passed: verified > 0,
        verdict: format!("{verified} transforms verified"),
        // The problems are drawn by chance: their number differs from run to run.
        results: Vec::new(),
        ..Outcome::default()
    }
}
