// SPDX-License-Identifier: MIT OR Apache-2.0
//! What RDMA devices offer, in the hands of owners: memory that is registered, queues of completions and of receives,
//! connections and datagrams.
//!
//! A [`Provider`] is a device's side of it: [`device::Verbs`] is libibverbs, [`model::Fabric`] a model in software that
//! tests drive. What stands above does not know which of the two it is:
//!
//! ```text
//! Device ─► Domain ─┬─► Region ─► Slot         memory that the device may touch, and a piece of it
//!                   ├─► Queue                  completions; what is under way, with the slots that it holds
//!                   ├─► Receives               slots that several connections receive into
//!                   ├─► QueuePair<Fresh…Ready> a connection, or datagrams
//!                   └─► AddressHandle          a peer's address, for datagrams
//! ```
//!
//! # Safety
//!
//! A device reads and writes memory behind the program's back. It does from when an operation is posted until it has
//! completed or its queue pair no longer exists. So:
//!
//! - What is posted is a [`Slot`], by value. It lies in the [`Queue`]'s table while the device may touch it. It comes
//!   back with the completion, or when [`Queue::retire`] has destroyed the queue pair.
//! - A name of an operation has a generation. A completion that comes late, of a pair that is gone, finds nothing.
//! - A queue that is dropped gives slots back only of pairs and receives that no longer exist. Of others it keeps them
//!   for ever: memory that is lost is better than memory that two write to.
//! - Nothing makes a reference into registered memory: a peer with the key may write to it at any time. Bytes are
//!   copied in and out.
//! - Memory of the program is registered by an unsafe call, [`Domain::register`], whose caller answers for it.

mod account;
pub mod adapter;
mod bytes;
pub mod cache;
mod changed;
pub mod device;
mod directory;
pub mod domain;
pub mod error;
pub mod matching;
pub mod memory;
pub mod model;
pub mod modes;
pub mod pair;
pub mod port;
pub mod provider;
pub mod queue;
pub mod rails;
pub mod refused;
pub mod split;
pub mod status;
pub mod table;
mod thread;
pub mod timing;
pub mod ud;
pub mod unmaps;

pub use adapter::{Adapter, Lanes, NodeShare, Offer};
pub use cache::Cache;
pub use device::Verbs;
pub use domain::{AddressHandle, Device, Domain, Receives};
pub use error::{Error, Result};
pub use memory::{Local, Region, Registered, Slot};
pub use pair::{Fresh, Operation, Prepared, QueuePair, Ready};
pub use port::{Chosen, QueuePairAddress};
pub use provider::{Event, Kind, Limits, Provider, Remote};
pub use queue::{Completion, Done, Queue};
pub use rails::Rails;
pub use refused::Refused;
pub use status::Status;
pub use timing::Timing;
