// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C programs of `mpi/tests` on a library that AddressSanitizer watches.

use super::executed;
use super::sanitizer::Sanitizer;
use crate::Failure;
use crate::built::{COMMAND_IS_BUILT, FEATURES};
use crate::steps::{Tally, count, show};

/// Tests that say nothing under a sanitizer: they measure memory, or run programs of others.
const LEFT_OUT: [&str; 3] = [
    "a_send_takes_little_memory_and_locks_none",
    "one_binary_runs_on_each_library_in_turn",
    "mpi4py_where_it_was_built",
];

/// A `cargo` whose code is watched; leaks are looked for at the end of each rank.
pub(super) fn watched() -> Result<std::process::Command, Failure> {
    let mut command = Sanitizer::Address.cargo()?;
    command.env(
        "ASAN_OPTIONS",
        "detect_leaks=1:handle_abort=1:allocator_may_return_null=1",
    );
    Ok(command)
}

/// The programs' packages: that of the library, and that of the command that starts ranks. Both are built at once, for
/// packages that they share would be built twice.
const PACKAGES: [&str; 4] = ["--package", "onecopy-mpi", "--package", "onecopy-cli"];

fn programs(only: &[&str]) -> Result<Tally, (Tally, Failure)> {
    let none = |failure| (Tally::default(), failure);
    let mut build = watched().map_err(none)?;
    build
        .args(["build", "--features", FEATURES])
        .args(PACKAGES)
        .args(["--test", "programs", "--bin", "onecopy"]);
    show(&mut build).map_err(none)?;
    let mut command = watched().map_err(none)?;
    command
        .args(["test", "--features", FEATURES])
        .args(PACKAGES)
        .args(["--test", "programs", "--"])
        .args(only)
        .env(COMMAND_IS_BUILT, "1");
    for name in LEFT_OUT {
        command.args(["--skip", name]);
    }
    executed("asan", "tests", count(&mut command))
}

/// All of it.
pub(crate) fn run() -> Result<Tally, (Tally, Failure)> {
    programs(&[])
}

/// What finds most in a short time.
pub(crate) fn reduced() -> Result<Tally, (Tally, Failure)> {
    programs(&[
        "wrong_argument",
        "failing",
        "point_to_point",
        "communicators",
    ])
}
