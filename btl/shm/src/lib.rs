// SPDX-License-Identifier: MIT OR Apache-2.0
//! The unsafe core of onecopy: memory that several processes share, and the few structures that live in it.
//!
//! Nothing here knows what a message, a tag or a protocol is. Upwards everything is safe to call; each module that uses
//! unsafe code says under *Safety* what it guarantees and what it relies on. The rules that hold everywhere:
//!
//! * no reference is made into memory that a peer can write; control words are atomics, payload is copied as raw bytes;
//! * a peer's offsets are checked against the mapping before they are followed;
//! * memory of the program is reached through a `loan` only.
//!
//! Under loom only the algorithms remain: what works on mappings and on the kernel has no place in a model.

#[cfg(not(loom))]
pub mod attended;
#[cfg(not(loom))]
pub mod backlog;
pub mod cells;
pub mod coll;
pub mod coop;
#[cfg(not(loom))]
pub mod copy;
pub mod doorbell;
pub mod failing;
pub mod fault;
#[cfg(not(loom))]
pub mod fdpass;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
pub mod front;
pub mod gate;
#[cfg(not(loom))]
pub mod guard;
#[cfg(not(loom))]
pub mod heap;
pub mod layout;
#[cfg(not(loom))]
pub mod limits;
#[cfg(not(loom))]
pub mod liveness;
#[cfg(not(loom))]
pub mod loan;
#[cfg(not(loom))]
mod mapping;
pub mod pool;
pub mod prefetch;
#[cfg(not(loom))]
pub mod process;
pub mod reduce;
pub mod ring;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod stats;
pub mod sync;
#[cfg(not(loom))]
pub mod thread;
pub mod watch;
