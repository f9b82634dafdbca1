// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of CUDA devices: what kind of memory a buffer is, and copies between it and the host.
//!
//! ```text
//! is_possible ─► memory::of ─► copies::to_host, copies::ToDevice
//!                                 Chunk   a pinned piece of the staging pool
//!                                 Lane    two streams of a context, and their events
//!                                 Entered a context that is the thread's one for a while
//!             direct: from device to device by one copy
//! ```
//!
//! A program without CUDA pays for [`is_possible`] alone: two loads. All else begins once the driver is in the process.
//!
//! # Safety
//!
//! The driver reads and writes memory behind the program's back, from the start of a copy until its event is complete.
//! So:
//!
//! - A copy touches a device's memory and a chunk of the staging pool, never memory of Rust. A chunk is written again
//!   only when the events of its last use are complete. If one cannot be asked any more, the chunk is lost for good.
//! - Streams are our own, and non-blocking. No call of the driver waits for a stream: kernels of the program may run in
//!   any, and wait for a message.
//! - Addresses of devices are numbers here. The driver looks at them; nothing here loads from them.

mod context;
pub mod copies;
pub mod direct;
pub mod error;
mod host;
mod lane;
pub mod memory;
pub mod pipeline;
mod presence;
pub mod staging;
pub mod survey;

/// Whether the driver can be loaded here, and has what is needed.
#[must_use]
pub fn is_supported() -> bool {
    cuda_sys::Library::load().is_ok()
}

pub use error::Error;
pub use memory::{Allocation, Kind};
pub use presence::{is_possible, is_ruled_out};
