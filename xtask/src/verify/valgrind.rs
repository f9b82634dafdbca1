// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of the malloc front under valgrind. AddressSanitizer has an allocator of its own, and
//! only one of the two can be in a process.

use std::process::Command;

use super::executed;
use crate::built::{self, Target};
use crate::steps::{Tally, cargo, count};
use crate::{Failure, root};

/// The front is the allocator, so valgrind must not replace it. Valgrind's search for leaks would
/// read the whole of the range that the front reserves. Children that are other programs run
/// without.
const OPTIONS: [&str; 6] = [
    "--quiet",
    "--vgdb=no",
    "--leak-check=no",
    "--soname-synonyms=somalloc=nouserintercepts",
    "--error-exitcode=97",
    "--num-callers=30",
];

const PACKAGE: &str = "onecopy-heap";
/// Its tests that run under valgrind.
const TESTS: [&str; 2] = ["programs", "forks"];

/// The front's range, reserved. Each fork looks through all of it, which takes a minute for the
/// usual range under valgrind.
const RANGE: &str = "1G";

fn tests(only: &[&str]) -> Result<Tally, (Tally, Failure)> {
    let there = Command::new("valgrind").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        return Ok(Tally::not_run(
            "valgrind",
            "no such program; `apt-get install valgrind`",
        ));
    }
    let known = root().join("heap/tests/support/valgrind.supp");
    let words = [
        "valgrind".to_owned(),
        format!("--suppressions={}", known.display()),
    ];
    let words = words.into_iter().chain(OPTIONS.map(str::to_owned));
    let words = words.collect::<Vec<_>>().join(" ");
    let (mut all, mut failures) = (Tally::default(), Vec::new());
    for test in TESTS {
        match one(test, only, &words) {
            Ok(tally) => all = all.and(tally),
            Err((tally, failure)) => {
                all = all.and(tally);
                failures.push(failure);
            }
        }
    }
    let result = match failures.is_empty() {
        true => Ok(all),
        false => Err((all, failures.join("\n"))),
    };
    executed("valgrind", "tests", result)
}

/// Runs a test program, in its package's folder as cargo does. It runs `under` valgrind what it starts.
fn one(test: &str, only: &[&str], under: &str) -> Result<Tally, (Tally, Failure)> {
    let mut build = cargo();
    Target::Test(test).among_tests(&mut build);
    let made = built::executable(&mut build, PACKAGE, test);
    let made = made.map_err(|failure| (Tally::default(), failure))?;
    let mut command = Command::new(&made.path);
    command
        .args(only)
        .current_dir(&made.folder)
        .env("TEST_UNDER", under)
        .env("ONECOPY_HEAP_SIZE", RANGE);
    count(&mut command)
}

/// All of them.
pub(crate) fn run() -> Result<Tally, (Tally, Failure)> {
    tests(&[])
}

/// Those that take a few seconds each.
pub(crate) fn reduced() -> Result<Tally, (Tally, Failure)> {
    tests(&[
        "allocations",
        "freed_memory",
        "parent",
        "programs_that",
        "calloc",
        "cancellation",
        "size_of_files",
    ])
}
