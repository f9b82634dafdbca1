// SPDX-License-Identifier: MIT OR Apache-2.0
//! onecopy moves messages between the processes of a node with at most one copy of the payload.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod bench;
#[doc(hidden)]
pub mod cli;
pub mod launch;
pub mod wireup;
