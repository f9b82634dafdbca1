// SPDX-License-Identifier: MIT OR Apache-2.0
//! HPCC: HPL, PTRANS, RandomAccess, FFT and more, each with a verification of its own.

use std::path::{Path, PathBuf};

use super::{App, Bench, Launch, Outcome, make, read, write};
use crate::Failure;

pub(super) const APP: App = App {
    name: "hpcc",
    title: "HPCC",
    package: "hpcc",
    verifies: "the residuals of HPL and PTRANS, the errors of RandomAccess and FFT; STREAM and DGEMM run, too",
    build,
    run,
};

/// A name for the place of what is built.
const ARCH: &str = "onecopy";

fn build(bench: &Bench, source: &Path) -> Result<PathBuf, Failure> {
    // In C alone, so that no Fortran is needed.
    let blas = bench.package("libgslcblas0")?;
    let blas = blas.join("usr/lib/x86_64-linux-gnu");
    let link = format!("-L{0} -l:libgslcblas.so.0 -Wl,-rpath,{0}", blas.display());
    let include = "-I$(TOPdir)/include -I$(TOPdir)/include/$(ARCH)";
    // Two functions of MPI-1 have other names since.
    let renamed =
        "-DMPI_Address=MPI_Get_address -DMPI_Type_struct=MPI_Type_create_struct -DHPL_CALL_CBLAS";
    let compiler = bench.prefix.join("bin/onecopy-mpicc");
    let text = format!(
        "SHELL = /bin/sh\nCD = cd\nCP = cp\nLN_S = ln -sf\nMKDIR = mkdir -p\nRM = /bin/rm -f\nTOUCH = touch\n\
         ARCH = {ARCH}\nTOPdir = ../../..\nINCdir = $(TOPdir)/include\nBINdir = $(TOPdir)/bin/$(ARCH)\nLIBdir = $(TOPdir)/lib/$(ARCH)\n\
         HPLlib = $(LIBdir)/libhpl.a\nHPL_INCLUDES = {include}\nHPL_LIBS = $(HPLlib) {link} -lm\n\
         HPL_DEFS = {renamed} $(HPL_INCLUDES)\nCC = {compiler}\nCCNOOPT = $(HPL_DEFS) -w\nCCFLAGS = $(HPL_DEFS) -O2 -w\n\
         LINKER = $(CC)\nLINKFLAGS =\nARCHIVER = ar\nARFLAGS = r\nRANLIB = echo\n",
        compiler = compiler.display()
    );
    write(&source.join(format!("hpl/Make.{ARCH}")), &text)?;
    make(source, &[format!("arch={ARCH}")])?;
    Ok(source.join("hpcc"))
}

fn run(bench: &Bench, launch: &Launch<'_>) -> Result<Outcome, Failure> {
    let grid = match launch.ranks {
        1 => (1, 1),
        2 => (1, 2),
        4 => (2, 2),
        n => (1, n),
    };
    let input = read(&launch.source.join("_hpccinf.txt"))?;
    write(&launch.folder.join("hpccinf.txt"), &adapted(&input, grid))?;
    let mut command = bench.launcher(launch);
    command.arg(launch.program);
    bench.finish(&command)?;
    let found = read(&launch.folder.join("hpccoutf.txt"))?;
    Ok(judged(&found))
}

/// The authors' example on another grid of ranks.
fn adapted(input: &str, (p, q): (u32, u32)) -> String {
    let mut text = String::new();
    for line in input.lines() {
        text += &match line {
            line if line.ends_with("Ps") => format!("{p}            Ps"),
            line if line.ends_with("Qs") => format!("{q}            Qs"),
            line => line.to_owned(),
        };
        text.push('\n');
    }
    text
}

/// Numbers of the summary that do not depend on the machine's speed.
const SAME: [&str; 6] = [
    "HPL_N",
    "HPL_NB",
    "PTRANS_residual",
    "MPIRandomAccess_N",
    "MPIFFT_N",
    "CommWorldProcs",
];

fn judged(found: &str) -> Outcome {
    let value = |name: &str| {
        found.lines().find_map(|line| {
            let (key, value) = line.trim().split_once('=')?;
            (key == name).then(|| value.parse::<f64>().ok())?
        })
    };
    let failed = found.matches("FAILED").count();
    let passed = found.matches("PASSED").count();
    let success = value("Success") == Some(1.0);
    let errors = value("MPIRandomAccess_ErrorsFraction").unwrap_or(1.0);
    let fft = value("MPIFFT_maxErr").unwrap_or(1.0);
    let good = success && failed == 0 && passed > 0 && errors <= 0.01 && fft.abs() < 1e-10;
    let results = SAME
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), value(name)?)))
        .collect();
    Outcome {
        passed: good,
        verdict: format!(
            "{}: {passed} checks passed, {failed} failed",
            if good { "success" } else { "**failure**" }
        ),
        results,
        ..Outcome::default()
    }
}
