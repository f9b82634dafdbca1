// SPDX-License-Identifier: MIT OR Apache-2.0
//! onecopy.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod cli;
