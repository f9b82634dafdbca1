// SPDX-License-Identifier: MIT OR Apache-2.0
//! The unsafe core of onecopy.
pub mod fdpass;
pub mod process;
