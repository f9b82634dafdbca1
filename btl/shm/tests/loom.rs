// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of the lock-free core. loom runs each of them in every interleaving, up to a number of preemptions. Each load
//! sees every value that the memory model permits. `cargo xtask verify loom` runs them.
//!
//! Payload lies in loom's `UnsafeCell` ([`watched`]), and control words are loom's atomics. So a slot, a chunk or a
//! range that two sides touch without an order between them is reported as a data race. The kernel's part of a sleep is
//! a mutex and a condition variable. Besides the sleeper, only the ringer that took the doorbell touches them, so they
//! order nothing that the doorbell does not.
#![cfg(loom)]

#[path = "models/cells.rs"]
mod cells;
#[path = "models/channel.rs"]
mod channel;
#[path = "models/coll.rs"]
mod coll;
#[path = "models/coop.rs"]
mod coop;
#[path = "models/copy_request.rs"]
mod copy_request;
#[path = "models/doorbell.rs"]
mod doorbell;
#[path = "models/gate.rs"]
mod gate;
#[path = "models/pool.rs"]
mod pool;
#[path = "models/retire.rs"]
mod retire;
#[path = "models/ring.rs"]
mod ring;
#[path = "models/watch.rs"]
mod watch;
#[path = "models/watched.rs"]
mod watched;

/// Runs a model with at most `preemptions` preemptions of a thread by another.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(body);
}
