// SPDX-License-Identifier: MIT OR Apache-2.0
//! onecopy.
#![forbid(unsafe_code)]
pub mod cli;
pub mod launch;
pub mod wireup;
