// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unit tests of the runtime under ThreadSanitizer, where the toolchain has the standard library's
//! sources.
//!
//! A standard library that was built without the sanitizer hides what its locks order, and every
//! contended lock would be a false finding. So it is built anew, from the component `rust-src`.
//! Valgrind's tools are no substitute: they know the locks of pthreads, not Rust's.

use std::path::Path;
use std::process::Command;

use super::executed;
use crate::steps::{Tally, cargo, count};
use crate::{Failure, root};

fn sources() -> bool {
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    asked.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout);
        Path::new(sysroot.trim())
            .join("lib/rustlib/src/rust/library/std")
            .exists()
    })
}

pub(crate) fn run() -> Result<Tally, (Tally, Failure)> {
    if !sources() {
        crate::say::warn(
            "tsan: NOT RUN: this toolchain lacks the component rust-src, and without it the standard library's locks are unknown to \
             ThreadSanitizer; `rustup component add rust-src` where there is a network",
        );
        return Ok(Tally::default());
    }
    let mut command = cargo();
    command
        .args([
            "test",
            "-Zbuild-std",
            "--target",
            "x86_64-unknown-linux-gnu",
        ])
        .args(["--package", "onecopy", "--lib"])
        .env("CARGO_TARGET_DIR", root().join("target").join("tsan"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=thread");
    executed("tsan", "tests", count(&mut command))
}
