// SPDX-License-Identifier: MIT OR Apache-2.0
//! The byte transport layers of onecopy: what a layer must offer, and one module per layer.
//!
//! A layer moves bytes between two processes. It never sees a message, a tag or a request. The layers on one node:
//!
//! | layer | moves bytes by | needs |
//! | --- | --- | --- |
//! | `self` | a copy within the process | nothing |
//! | [`cico`](layers::cico) | a copy into chunks of the sender's segment and a copy out | nothing |
//! | [`heap`](layers::heap) | loads from the peer's own pages, which it allocated from its segment | `alloc` on one side |
//! | [`xpmem`](layers::xpmem) | loads from the peer's pages, which a kernel module attaches | a module with `/dev/onecopy` or `/dev/xpmem` |
//! | [`cma`](layers::cma) | `process_vm_readv` and `process_vm_writev` | permission to trace the peer |
//! | [`knem`](layers::knem) | a copy by a kernel module | a module with `/dev/onecopy` or `/dev/knem` |
//!
//! [`tcp`](layers::tcp) reaches other nodes, and [`verbs`](layers::verbs) takes over where a device for RDMA is; the
//! library's endpoint moves their bytes.
//!
//! Every layer is proven for each pair by a real transfer when the pair connects ([`link`]). A layer that cannot be
//! used keeps its [`Refusal`]: what was seen, and what would help.

pub mod attachment;
pub mod contract;
pub mod cost;
mod curve;
pub mod lanes;
pub mod layers;
pub mod link;
pub mod module;
mod pieces;
mod populated;
mod proving;
pub mod rcache;
mod refusal;
pub mod registry;
pub mod yama;

pub use contract::{CopyLayer, Probe, Refusal, RegionPart, RemoteRange};
pub use link::CopyError;
pub use registry::LayerId;
