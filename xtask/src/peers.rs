// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask peers`: onecopy beside other MPI libraries, measured in one run. What it does is in `benches/peers`.

use crate::steps::{cargo, show};
use crate::{Failure, install, root, say};
use std::process::Command;

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Words for the comparison; --help lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORDS"
    )]
    words: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    say::line("building (release) ...");
    let mut build = cargo();
    build.args(["build", "--release"]);
    for package in [
        "onecopy-cli",
        "onecopy-mpi",
        "onecopy-heap",
        "onecopy-peers",
    ] {
        build.args(["--package", package]);
    }
    show(&mut build)?;
    let built = install::target_directory()?.join("release");
    let mut compare = Command::new(built.join("onecopy-peers"));
    compare.arg("--built").arg(&built).arg("--root").arg(root());
    show(compare.args(&args.words))
}
