// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver interface of CUDA: its types and functions under their names in C, without a link to it.
//!
//! The library is opened by [`Library::load`], or found by [`Library::loaded`] where the process has it already.
//! Nothing of CUDA is needed to build, or to start on a machine without it. The functions are the fields of
//! [`Library`]. Those that a driver of 2020 need not have are options.
//!
//! A function of the driver has one exported symbol for each change of its signature (`cuMemAlloc_v2`). A row here
//! names the function, the version of CUDA in which its signature here appeared, and that symbol. Where the driver
//! has `cuGetProcAddress`, it is asked for name and version, so that tools between program and driver see the call.
//! Else the symbol is looked up.
//!
//! For functions that take a stream the driver has a second symbol (`_ptsz`), in which stream 0 is the thread's own
//! one. Here they are always the first kind: a caller names a stream that it made, and never stream 0. Then the two
//! are the same.
//!
//! The blocking calls (`cuMemcpyDtoH`, `cuStreamSynchronize`, `cuCtxSynchronize`) are not here. They wait for kernels
//! of the program, which may wait for a message.
//!
//! `tests/layout.rs` compares all of it with the C header, where there is one.
//!
//! # Safety
//!
//! The functions are those of C: handles must come from the driver, live, and not be given back twice. Memory that an
//! asynchronous copy names is read or written until its event is complete.
#![allow(unsafe_code, reason = "calls into a C library")]
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "the names are those of the C header"
)]

mod library;
#[path = "../../loader.rs"]
mod loader;
mod types;

pub use library::{Function, Library, Missing};
pub use types::*;
