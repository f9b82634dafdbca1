// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a job of a test may take.

use std::time::Duration;

/// Beyond this something hangs, also where other work has most of the processors: three minutes, or `TEST_SLOWER` times as long on a machine that is
/// so many times slower.
pub(crate) fn limit() -> Duration {
    let slower = std::env::var("TEST_SLOWER").ok();
    let slower = slower.map_or(1, |text| text.parse().expect("TEST_SLOWER"));
    Duration::from_secs(180) * slower
}
