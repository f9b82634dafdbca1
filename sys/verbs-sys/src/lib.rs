// SPDX-License-Identifier: MIT OR Apache-2.0
//! libibverbs: its types and functions under their names in C, without a link to it.
//!
//! Structures and unions that have no name there have that of the structure around them and the member's:
//! [`ibv_send_wr_rdma`] is `wr.rdma` of `ibv_send_wr`. Two members are anonymous: [`ibv_send_wr_imm`] with the
//! immediate data, and [`ibv_send_wr_ext`] with what few operations have.
//!
//! The library is opened when [`Library::load`] is first called: a program starts, and can say what is missing, on a
//! machine that has none. Its exported functions are the fields of [`Library`]. What the C header defines as inline
//! functions goes through tables of pointers in a device's context; these are the functions of this crate. Calls on an
//! extended queue (`ibv_wr_*`, `ibv_wc_read_*`) are pointers in [`ibv_qp_ex`] and [`ibv_cq_ex`], called as they are.
//!
//! `tests/layout.rs` compares all of it with the C header, where there is one.
//!
//! # Safety
//!
//! The functions are those of C: pointers must come from the library, live, and not be given back twice. What a work
//! request names is read or written by the device until its completion. The crate only makes sure that a function is
//! there before it is called. It also makes sure that a table is as long as the field that is read from it.
#![allow(unsafe_code, reason = "calls into a C library")]
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "the names are those of the C header"
)]

mod device;
mod extended;
mod inline;
mod library;
#[path = "../../loader.rs"]
mod loader;
mod objects;
mod queue;
mod table;
mod work;

pub use device::*;
pub use extended::*;
pub use inline::*;
pub use library::{Library, Missing};
pub use objects::*;
pub use queue::*;
pub use table::*;
pub use work::*;
