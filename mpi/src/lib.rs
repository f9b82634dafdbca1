// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libmpi_abi.so.1`: the standard ABI of MPI 5.0 over the onecopy runtime.
//!
//! `edge` has the exported functions, generated from the table in mpi/abi. It wraps each argument and calls the
//! implementation, one file for each section of the table. Those files have no unsafe code. They reach what C hands
//! over through the types of `ffi`, message buffers through `memory`, objects through `handle`, and callbacks through
//! `callback`.

mod abi;
mod agree;
mod alloc;
mod attr;
mod attributes;
mod buffer;
mod callback;
mod codes;
mod coll;
mod comm;
mod datatype;
mod device;
mod edge;
mod end;
mod env;
mod errors;
mod ext;
mod failure;
mod ffi;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod handle;
mod handler;
mod info;
mod inter;
mod job;
mod memory;
mod neighbor;
mod nonblocking;
mod op;
mod p2p;
mod pack;
mod persistent;
mod persistent_coll;
mod phase;
mod process;
mod raise;
mod request;
mod status;
mod store;
mod tools;
mod topo;
mod topology;

/// The constants of the standard, without `MPI_`.
#[allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "generated: all of them"
)]
mod c {
    use crate::ffi::{
        Comm, Datatype, Errhandler, File, Group, Info, Message, Op, Request, Session, Win,
    };
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
