// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks of the repository: `cargo xtask test` runs everything that must pass.
#![forbid(unsafe_code)]

mod apps;
mod bpf;
mod built;
mod docs;
mod failures;
mod install;
mod mpi4py;
mod new_layer;
mod peers;
mod picture;
mod recorded;
mod room;
mod say;
mod soak;
mod steps;
mod test;
mod tidy;
mod verify;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what tests need where it is missing, then run every check and every test
    Test(test::Args),
    /// Check what a program can check of the rules in ARCHITECTURE.md
    Tidy,
    /// Run a tool that finds what tests do not
    Verify(verify::Args),
    /// Run tests that find more the longer they run
    Soak(soak::Args),
    /// Run the module and the runtime in virtual machines with other kernels
    Vm(vm::Args),
    /// Measure onecopy and other MPI libraries, which it installs into a cache, side by side in one run
    Peers(peers::Args),
    /// Draw what `onecopy top` shows of a real job
    Picture(picture::Args),
    /// Build the programs that observe in the kernel, or compare them with what is committed
    Bpf(bpf::Args),
    /// Write the pages under docs/ that come from tables
    Docs(docs::Args),
    /// Run mpi4py's own tests on the MPI library, and write where each of their modules stands
    Mpi4py(mpi4py::Args),
    /// Build real applications, run them to their own verification on the MPI library and on MPICH, and write what they
    /// found
    Apps(apps::Args),
    /// Make a layer that compiles, with its row in the registry, and say what remains
    NewLayer(new_layer::Args),
    /// Build and install the command, the libraries, what builds programs with them, man pages and completions
    Install(install::Args),
}

/// Why a task failed, in words.
type Failure = String;

/// The root of the repository.
fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Tidy => tidy::run(&root()),
        Task::Verify(args) => verify::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Vm(args) => vm::run(&args),
        Task::Peers(args) => peers::run(&args),
        Task::Picture(args) => picture::run(&args),
        Task::Bpf(args) => bpf::run(&args, &root()),
        Task::Docs(args) => docs::run(&args, &root()),
        Task::Mpi4py(args) => mpi4py::run(&args),
        Task::Apps(args) => apps::run(&args),
        Task::NewLayer(args) => new_layer::run(&args, &root()),
        Task::Install(args) => install::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say::warn(&format!("xtask: {failure}"));
            ExitCode::FAILURE
        }
    }
}
