// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads under ThreadSanitizer, where the toolchain has the standard library's sources: the unit
//! tests of the runtime, and eight threads in each of several ranks.
//!
//! A standard library that was built without the sanitizer hides what its locks order, and every
//! contended lock would be a false finding. So it is built anew, from the component `rust-src`.
//! Valgrind's tools are no substitute: they know the locks of pthreads, not Rust's.

use super::executed;
use super::sanitizer::{Sanitizer, sysroot};
use crate::Failure;
use crate::steps::{Tally, count};

const NO_SOURCES: &str = "this toolchain lacks the component rust-src, and without it the locks of \
    the standard library are unknown to ThreadSanitizer; `rustup component add rust-src` where \
    there is a network";

pub(crate) fn run() -> Result<Tally, (Tally, Failure)> {
    let bare = |failure| (Tally::default(), failure);
    let sources = sysroot()
        .map_err(bare)?
        .join("lib/rustlib/src/rust/library/std");
    if !sources.exists() {
        return Ok(Tally::not_run("tsan", NO_SOURCES));
    }
    let mut units = Sanitizer::Thread.cargo().map_err(bare)?;
    units.args(["test", "-Zbuild-std", "--lib"]);
    for package in ["onecopy", "onecopy-bench", "onecopy-launch", "onecopy-cli"] {
        units.args(["--package", package]);
    }
    let units = executed("tsan", "unit tests", count(&mut units))?;
    let mut ranks = Sanitizer::Thread
        .cargo()
        .map_err(|failure| (units, failure))?;
    ranks
        .args(["test", "-Zbuild-std", "--package", "onecopy-mpi", "--test"])
        .args(["programs", "--", "--exact", "--nocapture", "threads"])
        .env("TEST_SOAK", "60");
    match executed("tsan", "tests of ranks with threads", count(&mut ranks)) {
        Ok(ranks) => Ok(units.and(ranks)),
        Err((ranks, failure)) => Err((units.and(ranks), failure)),
    }
}
