// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that die, that lack what they need, or that write nonsense: the others go on.
//!
//! The ranks are this very test program, started by the launcher with the one test [`as_rank`]. Nothing depends on how
//! long something takes; limits are generous, and beyond them a test fails instead of hanging.

#[path = "crash/attached.rs"]
mod attached;
#[path = "crash/collectives.rs"]
mod collectives;
#[path = "crash/job.rs"]
mod job;
#[path = "crash/kills.rs"]
mod kills;
#[cfg(feature = "fault-points")]
#[path = "crash/labels.rs"]
mod labels;
#[path = "harness/limit.rs"]
mod limit;
#[path = "harness/module.rs"]
mod module;
#[path = "crash/outlived.rs"]
mod outlived;
#[cfg(feature = "fault-points")]
#[path = "crash/points.rs"]
mod points;
#[path = "crash/scarce.rs"]
mod scarce;
#[path = "crash/traffic.rs"]
mod traffic;
#[path = "crash/waits.rs"]
mod waits;

/// What a rank does. Not a test of its own: without a role it does nothing.
#[test]
fn as_rank() {
    match std::env::var(job::ROLE).as_deref() {
        Ok("attached") => attached::rank(),
        Ok("witness") => attached::witness(),
        Ok("traffic") => traffic::rank(),
        Ok("waits") => waits::rank(),
        Ok("collectives") => collectives::rank(),
        Ok("unopened") => scarce::unopened(),
        Ok("forming") => scarce::forming(),
        Ok("introduced") => scarce::introduced(),
        Ok("sending") => scarce::sending(),
        Ok(other) => panic!("no role {other}"),
        Err(_) => {}
    }
}
