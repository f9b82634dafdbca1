// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of reductions.

use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Addr, Callback, Datatype, Op, Out};
use crate::handle::{Table, Uses};
use crate::{c, coll, phase};

/// An operation of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) function: Callback,
    pub(crate) large: bool,
    pub(crate) commutes: bool,
}

struct Object {
    user: User,
    uses: Uses,
}

static OPS: Table<Object> = Table::new(8);

/// An operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Predefined(Op),
    User(User),
}

fn bad_op(handle: Op) -> Box<Failure> {
    fail(c::ERR_OP, format!("{:#x} is no operation", handle.0))
}

pub(crate) fn get(handle: Op) -> Outcome<Operation> {
    if handle != c::OP_NULL && c::OPS.iter().any(|(_, value, _)| *value == handle.0) {
        return Ok(Operation::Predefined(handle));
    }
    OPS.get(handle.0)
        .map(|object| Operation::User(object.user))
        .ok_or_else(|| bad_op(handle))
}

pub(crate) fn op_create(large: bool, function: Callback, commute: i32, op: Out<Op>) -> Outcome<()> {
    if function.number() == 0 {
        return Err(fail(c::ERR_ARG, "the function of an operation is null"));
    }
    let user = User {
        function,
        large,
        commutes: commute != 0,
    };
    let object = Object {
        user,
        uses: Uses::new(),
    };
    op.set(Op(OPS.insert(object).ok_or_else(phase::too_many)?))
}

/// An operation of the program that a persistent request uses. Its handle is good until this is dropped, also when the
/// program frees it meanwhile.
pub(crate) struct HeldOp(Op);

/// Keeps an operation, unless it stays anyway.
pub(crate) fn hold(handle: Op) -> Option<HeldOp> {
    OPS.get(handle.0)?.uses.add();
    Some(HeldOp(handle))
}

impl Drop for HeldOp {
    fn drop(&mut self) {
        if OPS.get(self.0.0).is_some_and(|object| object.uses.end()) {
            OPS.remove(self.0.0);
        }
    }
}

pub(crate) fn op_free(op: Out<Op>) -> Outcome<()> {
    let handle = op.get()?;
    if let Operation::Predefined(_) = get(handle)? {
        return Err(fail(c::ERR_OP, "a predefined operation cannot be freed"));
    }
    let freed = OPS.get(handle.0).and_then(|object| object.uses.free());
    if freed.ok_or_else(|| bad_op(handle))? {
        OPS.remove(handle.0);
    }
    op.set(c::OP_NULL)
}

pub(crate) fn op_commutative(op: Op, commute: Out<i32>) -> Outcome<()> {
    commute.set(match get(op)? {
        Operation::Predefined(op) => i32::from(op != c::REPLACE && op != c::NO_OP),
        Operation::User(user) => i32::from(user.commutes),
    })
}

pub(crate) fn reduce_local(
    _large: bool,
    inbuf: Addr,
    inout: Addr,
    count: i64,
    datatype: Datatype,
    op: Op,
) -> Outcome<()> {
    coll::reduce_here(inbuf, inout, count, datatype, op)
}
