// SPDX-License-Identifier: MIT OR Apache-2.0
//! onecopy moves messages between the processes of a job. On a node a large message is copied once where the system
//! permits it. Between nodes messages go by RDMA where both ranks have a device, else by TCP.
#![forbid(unsafe_code)]

pub mod coll;
mod comm;
mod endpoint;
mod engine;
pub mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
#[cfg(test)]
mod knob_defaults;
pub mod machine;
mod matching;
pub mod memory;
mod nonblocking;
mod peer;
mod proof;
mod proto;
pub mod raw;
mod records;
mod request;
mod runtime;
pub mod select;
mod state;
pub mod tune;
mod wait;
pub mod wireup;

pub use comm::{CollRequest, Comm};
pub use error::{Error, Result};
pub use matching::{Source, Tag};
pub use nonblocking::{
    Matched, Persistent, Request, Scope, ScopedRequest, test_all, test_any, test_some, wait_all,
    wait_any, wait_some,
};
pub use onecopy_btl::cost::{Costs, Curve};
pub use onecopy_btl::{LayerId, Refusal};
pub use onecopy_obs::values::parse_size;
pub use onecopy_obs::{ChunkCopy, CounterSnapshot, Knobs};
pub use onecopy_shm::heap::HeapBuf;
pub use onecopy_shm::loan::{Buffer, BufferMut, Span};
pub use request::Status;
pub use runtime::measure;
pub use runtime::{LayerState, Options, ReachedPeer, Runtime, Threads, local, local_with};
#[doc(hidden)]
pub use runtime::{local_of_nodes, local_on};

/// Receives from any rank.
pub const ANY_SOURCE: Source = Source::Any;
/// Receives with any tag.
pub const ANY_TAG: Tag = Tag::Any;
