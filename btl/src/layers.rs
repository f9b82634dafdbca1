// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file per layer, with a folder of the same name where a layer has parts. What layers share lies beside this
//! folder: they do not know one another.

pub mod cico;
pub mod cma;
pub mod heap;
pub mod knem;
pub mod tcp;
pub mod verbs;
pub mod xpmem;
