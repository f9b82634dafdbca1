// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exported functions. Generated: see mpi/abi/src/edge.rs.
//!
//! # Safety
//! The caller is a C program that keeps to the standard. Each pointer is null or points to as many objects as the
//! function's description says. It is valid during the call, and message buffers are for as long as the operation
//! lasts.
#![allow(
    unsafe_code,
    unused_unsafe,
    non_snake_case,
    unused_variables,
    unused_mut,
    unreachable_pub,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::too_many_arguments,
    clippy::useless_conversion,
    clippy::let_unit_value,
    reason = "generated C interface; the safety case is the same for every function and stands above"
)]

use crate::c;
use crate::ffi::{
    Addr, Callback, Comm, Datatype, Errhandler, File, Group, In, Info, Ints, Message, Op, Out,
    OutInts, OutText, Request, Session, Status, Text, Win,
};
use crate::raise::{ErrorTarget, outcome, unsupported};
use std::ffi::{c_char, c_void};

include!(concat!(env!("OUT_DIR"), "/edge.rs"));
