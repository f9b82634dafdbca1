// SPDX-License-Identifier: MIT OR Apache-2.0
//! libpmix, by which ranks talk to a launcher that speaks PMIx (Open MPI's mpirun, PRRTE, Slurm), without a link to it.
//!
//! [`abi`] has the few types and constants of the public standard that are needed, under their names in C. They are the
//! same from OpenPMIx 3.1 to 6.1. `tests/layout.rs` compares them with the C headers where there are some. [`Library`]
//! finds and opens the library when it is first asked for. [`Client`] is what a rank does with it: safe, and with a
//! bound on every wait.
//!
//! # Safety
//!
//! A function is called only through a [`Library`]. That was opened only if its version is one whose headers were
//! compared. It also must lay out structures as [`abi`] does, as far as it can be asked. Pointers that are handed to it
//! live on the stack or in the heap of the caller until the call returns. What it hands out is copied, and given back
//! to the allocator of the C library, as the standard's macros do.
#![allow(unsafe_code, reason = "calls into a C library")]

pub mod abi;
mod bound;
mod client;
mod failure;
mod library;
#[path = "../../loader.rs"]
mod loader;
mod places;
mod value;

pub use client::Client;
pub use failure::Failure;
pub use library::{Library, Missing, NAME};
