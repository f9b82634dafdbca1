// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inter-communicators. None can be made yet, so queries answer that a communicator is none.

use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Comm, Group, Out};
use crate::{c, comm};

fn no_inter() -> Box<Failure> {
    fail(c::ERR_COMM, "not an inter-communicator")
}

pub(crate) fn comm_test_inter(comm: Comm, flag: Out<i32>) -> Outcome<()> {
    comm::get(comm)?;
    flag.set(0)
}

pub(crate) fn comm_remote_size(comm: Comm, _size: Out<i32>) -> Outcome<()> {
    comm::get(comm)?;
    Err(no_inter())
}

pub(crate) fn comm_remote_group(comm: Comm, _group: Out<Group>) -> Outcome<()> {
    comm::get(comm)?;
    Err(no_inter())
}
