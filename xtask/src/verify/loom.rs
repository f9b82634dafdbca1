// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of the lock-free core, every interleaving of which loom tries.

use super::executed;
use crate::steps::{Tally, cargo, count};
use crate::{Failure, root};

/// Runs the models. They have their own target folder, since the flag changes every package.
pub(crate) fn run() -> Result<Tally, (Tally, Failure)> {
    let target = root().join("target").join("loom");
    let result = count(
        cargo()
            .args([
                "test",
                "--package",
                "onecopy-shm",
                "--release",
                "--test",
                "loom",
            ])
            .env("CARGO_TARGET_DIR", target)
            .env("RUSTFLAGS", "--cfg loom -D warnings")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
    );
    executed("loom", "models", result)
}
