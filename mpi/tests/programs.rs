// SPDX-License-Identifier: MIT OR Apache-2.0
//! C programs, compiled with this library's header and run as jobs of real processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where this run's library, launcher and programs are.
struct Place {
    directory: PathBuf,
    launcher: PathBuf,
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let exe = std::env::current_exe().expect("the test's own path");
        let deps = exe.parent().expect("the folder of tests");
        let profile = deps.parent().expect("the folder of the profile");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi");
        std::fs::create_dir_all(&directory).expect("a folder for the programs");
        // The library as it was built for this test; its name in deps has no hash.
        let built = deps.join("libmpi_abi.so");
        for name in ["libmpi_abi.so", "libmpi_abi.so.1"] {
            let target = directory.join(name);
            let _ = std::fs::remove_file(&target);
            std::fs::copy(&built, &target).expect("the library is built with the test");
        }
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--package",
            "onecopy",
            "--bin",
            "onecopy",
        ]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let built = build.current_dir(package()).status().expect("cargo");
        assert!(built.success(), "the launcher cannot be built");
        Place {
            directory,
            launcher: profile.join("onecopy"),
        }
    })
}

fn compile(name: &str) -> PathBuf {
    let place = place();
    let program = place.directory.join(name);
    let compiled = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(package().join(format!("tests/programs/{name}.c")))
        .arg("-I")
        .arg(package().join("include"))
        .arg("-L")
        .arg(&place.directory)
        .args(["-lmpi_abi", "-lm"])
        .output()
        .expect("cc");
    assert!(
        compiled.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    program
}

fn run(program: &Path, ranks: usize, arguments: &[&str]) -> Output {
    let place = place();
    Command::new("timeout")
        .arg("120")
        .arg(&place.launcher)
        .args(["run", "-n", &ranks.to_string()])
        .arg(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", &place.directory)
        .output()
        .expect("timeout")
}

fn passes(name: &str, ranks: &[usize]) {
    let program = compile(name);
    for &ranks in ranks {
        let output = run(&program, ranks, &[]);
        assert!(
            output.status.success(),
            "{name} with {ranks} ranks: {:?}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn point_to_point() {
    passes("p2p", &[2]);
}

#[test]
fn datatypes() {
    passes("types", &[1, 2]);
}

#[test]
fn collectives() {
    passes("coll", &[1, 2, 3, 4]);
}

#[test]
fn communicators() {
    passes("comms", &[1, 2, 3, 4]);
}

#[test]
fn errors() {
    passes("errors", &[1, 2]);
}

#[test]
fn a_fatal_error_ends_the_job_and_says_why() {
    let program = compile("errors");
    let output = run(&program, 2, &["fatal"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("MPI_Send") && said.contains("MPI_ERR_RANK") && said.contains("rank 0"),
        "{said}"
    );
}
