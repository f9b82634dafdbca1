// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy run` and the job API, with real processes.
//!
//! Nothing here depends on how long something takes; waits only have generous limits, beyond which a test fails instead
//! of hanging.

#[path = "../../tests/harness/limit.rs"]
mod limit;
#[path = "../../tests/harness/say.rs"]
mod say;
#[path = "launch/support.rs"]
mod support;

#[path = "launch/ends.rs"]
mod ends;
#[path = "launch/limits.rs"]
mod limits;
#[path = "launch/orphans.rs"]
mod orphans;
#[path = "launch/ranks.rs"]
mod ranks;
#[path = "launch/streams.rs"]
mod streams;
#[path = "launch/users.rs"]
mod users;
