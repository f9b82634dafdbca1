// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual machines with other kernels: fetches kernels, builds the module against them, boots them under QEMU and
//! judges the run.
//!
//! What happens, in order: [`catalog`] says which kernels there are, [`arch`] how architectures differ, [`mirrors`]
//! where their packages come from. [`apt`] fetches these with lists of its own and never touches the host's. [`kernel`]
//! unpacks them and mends their paths. [`toolchain`] is what compiles for them, and [`module`] builds. [`userland`] is
//! what programs for another architecture are built by and find in the guest. [`initramfs`] packs a guest, [`qemu`]
//! boots it, and [`console`] reads what it said and gives the verdict. [`rdma`] fills guests with a software device for
//! RDMA.
//!
//! [`cache`], [`apt`] and [`pypi`] serve all that is fetched to be tested or compared with, also without a virtual
//! machine.
#![forbid(unsafe_code)]

pub mod apt;
pub mod arch;
pub mod cache;
pub mod catalog;
pub mod console;
mod error;
pub mod guest;
pub mod headers;
pub mod initramfs;
pub mod kernel;
pub mod ktap;
mod load_order;
pub mod mirrors;
pub mod module;
pub mod program;
pub mod progress;
pub mod pypi;
pub mod qemu;
pub mod rdma;
pub mod results;
pub mod shell;
pub mod source;
pub mod toolchain;
pub mod userland;
pub mod version;

pub use error::{Error, Result};
