// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unit tests under Miri, or, where no toolchain has it, in a checked build under AddressSanitizer.

use super::sanitizer::Sanitizer;
use super::{asan, executed};
use crate::Failure;
use crate::steps::{Tally, cargo, count};

/// The packages whose unit tests do without most system calls.
const PACKAGES: [&str; 12] = [
    "--package",
    "onecopy-shm",
    "--package",
    "onecopy-mpi",
    "--package",
    "onecopy",
    "--package",
    "onecopy-launch",
    "--package",
    "onecopy-bench",
    "--package",
    "onecopy-cli",
];

fn is_there() -> bool {
    let asked = cargo().args(["miri", "--version"]).output();
    asked.is_ok_and(|output| output.status.success())
}

pub(crate) fn run() -> Result<Tally, (Tally, Failure)> {
    if is_there() {
        crate::say::line("miri: this toolchain has it");
        let mut command = cargo();
        command
            .args(["miri", "test", "--lib"])
            .args(PACKAGES)
            .env("MIRIFLAGS", "-Zmiri-disable-isolation");
        return executed("miri", "tests", count(&mut command));
    }
    crate::say::line(
        "miri: this toolchain has none. Instead, a checked build runs under AddressSanitizer. It sees memory that is not there \
         or not there any more, and broken preconditions of unsafe functions. It sees no breach of aliasing and no uninitialised value",
    );
    let mut command = asan::watched().map_err(|failure| (Tally::default(), failure))?;
    command
        .args(["test", "--lib", "--no-fail-fast"])
        .args(PACKAGES)
        // The sanitizer keeps what is freed for a while, which this one measures.
        .args(["--", "--skip", "memory_is_back_at_its_start_after_a_burst"])
        .env(
            "RUSTFLAGS",
            format!("{} -Zub-checks=yes", Sanitizer::Address.flag()),
        );
    executed("the checked build", "tests", count(&mut command))
}
