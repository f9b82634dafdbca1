// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocols: how a message's bytes get from one rank to the other.
//!
//! | protocol | file | payload travels |
//! | --- | --- | --- |
//! | any of them, when nothing has to wait | [`direct`] | the same way, without a request |
//! | inline, eager in slots, eager in chunks | [`eager`] | in the ring, or in chunks that the ring names |
//! | rendezvous by map, get and put | [`rendezvous`] | straight between the buffers |
//! | cooperative | [`coop`] | straight between the buffers, copied by both sides |
//! | pipeline | [`pipeline`] | in recycled chunks, on the receiver's request |
//! | within a rank | [`own`] | by one copy |
//!
//! Sending and receiving side of a protocol are in the same file. Sending works on the core and one peer,
//! receiving on the receives, too. Records of a peer come by [`incoming`], and what waits for room goes by
//! [`outgoing`]: both call the protocols. `control` writes control records, and is called by them.

pub(crate) mod broken;
mod control;
pub(crate) mod coop;
pub(crate) mod deliver;
pub(crate) mod destination;
pub(crate) mod direct;
pub(crate) mod eager;
pub(crate) mod incoming;
pub(crate) mod layers;
pub(crate) mod outgoing;
pub(crate) mod own;
pub(crate) mod pipeline;
pub(crate) mod plan;
pub(crate) mod rendezvous;
