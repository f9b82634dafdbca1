// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of other MPI libraries under `onecopy run`. One program, built once with MPICH's compiler wrapper against
//! the standard ABI, runs on each library.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launchers::{Launcher, peers};
use crate::meeting::{RunOutput, TRACES, finish};
use crate::processes::{limit, say};

const SOURCE: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    int rank, size, sum = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!strcmp(what, "abort")) {
        if (rank == size - 1)
            MPI_Abort(MPI_COMM_WORLD, 7);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (!strcmp(what, "desert")) {
        if (rank == 1)
            _exit(0);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    printf("rank %d of %d, sum %d\n", rank, size, sum);
    MPI_Finalize();
    return 0;
}
"#;

/// The program; none, after saying why, if it cannot be built here.
fn program() -> Option<PathBuf> {
    let home = Launcher::Mpich.home()?;
    // Of this process' own: tests run side by side.
    let built = peers().join(format!("guest-{}", std::process::id()));
    let source = built.with_extension("c");
    std::fs::write(&source, SOURCE).expect("write");
    let mut command = Command::new(home.join("bin/mpicc_abi"));
    command.arg("-o").arg(&built).arg(&source);
    let compiled = limit::try_output(&mut command);
    std::fs::remove_file(&source).expect("remove");
    match compiled {
        Ok(output) if output.status.success() => Some(built),
        failed => {
            say(&format!("skipped: mpicc_abi: {failed:?}"));
            None
        }
    }
}

/// Runs the program on `library`, `ranks` of it.
fn run(program: &Path, library: &Path, ranks: usize, args: &[&str]) -> RunOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onecopy"));
    command
        .args(["run", "-n", &ranks.to_string()])
        .arg(program)
        .args(args);
    for name in TRACES {
        command.env_remove(name);
    }
    command.env("ONECOPY_TUNE_FILE", "none");
    // The libraries look at all network devices, also at those that other tests make and take away meanwhile.
    command.env("UCX_TLS", "self,sm");
    finish(command.env("LD_LIBRARY_PATH", library.join("lib")))
}

#[test]
fn programs_of_other_libraries_run_under_our_launcher() {
    let Some(program) = program() else { return };
    for launcher in [Launcher::Mpich, Launcher::Intel] {
        let Some(library) = launcher.home() else {
            continue;
        };
        for ranks in [1, 2, 4] {
            let ran = run(&program, &library, ranks, &[]);
            assert_eq!(ran.code, Some(0), "{launcher:?}: {}", ran.text);
            let sum = ranks * (ranks - 1) / 2;
            let lines = ran.lines_with(&format!("of {ranks}, sum {sum}"));
            assert_eq!(lines, ranks, "{launcher:?}: {}", ran.text);
        }
        let ran = run(&program, &library, 3, &["abort"]);
        assert_eq!(ran.code, Some(7), "{launcher:?}: {}", ran.text);
        // One that ends in the middle, with code 0: the others do not wait for ever.
        let ran = run(&program, &library, 2, &["desert"]);
        assert_eq!(ran.code, Some(1), "{launcher:?}: {}", ran.text);
        assert!(ran.text.contains("without finalizing"), "{}", ran.text);
    }
    std::fs::remove_file(program).expect("remove");
}
