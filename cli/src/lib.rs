// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `onecopy` command, above the library: a subcommand per file in `command/`, and what it measures with in
//! `bench/`. Programs that use the library do not build any of it.
#![forbid(unsafe_code)]

pub mod bench;
pub mod command;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod observe;
mod signals;
mod started;
