// SPDX-License-Identifier: MIT OR Apache-2.0
//! The benchmark: patterns of messages between two pinned ranks, collectives of all ranks, and the machine's own limits
//! measured in the same run.
//!
//! # How it measures
//!
//! - Every mechanism has its own job of ranks, all pinned alike; only one job works at a time, the others wait for a
//!   command. They take turns batch by batch (A B A B), so a change of the machine's state meets all of them.
//! - A batch lasts 3 to 5 ms and is bracketed by raw line hand-offs between the same two processes. What those show
//!   decides whether the batch counts as *near* or *far*, or is dropped; [`gate`] has the rule.
//! - The limit ([`onecopy_shm::limits`]) takes part in the same turns as one more contestant. A result's ratio is its
//!   median divided by the limit's median in the same state.
//! - Payloads are checked byte for byte outside the timed loops: every mechanism, size and direction, receive buffers
//!   spoiled first.
//! - Of collectives with a root, the root moves on with each iteration. Every rank must have got the last one before it
//!   can give the next. So the time is that of a whole operation, not of a root that runs ahead. The pool of temporary
//!   buffers is emptied before each point and its largest size, summed over the ranks, is reported.
//! - In mode `rewrite` both the limit and the mechanism fill the source before each send, inside the timed loop.

pub mod book;
pub mod engine;
pub mod gate;
pub mod jobs;
pub mod machine;
pub mod record;
pub mod sizes;
pub mod svg;
pub mod table;
pub mod targets;
