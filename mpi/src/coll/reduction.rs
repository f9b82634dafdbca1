// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operators on datatypes, as the runtime takes them.

use super::user_buffer::{Access, UserBuffer};
use super::x87;
use crate::datatype::predefined::{Basic, Element, Kind, dense_size};
use crate::datatype::{self, TypeObject};
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Addr, Datatype, Op};
use crate::op::{self, Operation};
use crate::p2p::check_count;
use crate::{c, callback, device, memory};
use onecopy::coll::{ElemType, MAX_ELEMENT, Op as Operator, PredefinedOp};

/// A kind of vector that can be reduced.
pub(crate) struct Reduction {
    pub(super) elem: ElemType,
    pub(super) op: Operator,
    datatype: &'static TypeObject,
}

impl Reduction {
    /// The bytes of `count` elements.
    pub(super) fn user_buffer(&self, buf: Addr, count: i64, access: Access) -> Outcome<UserBuffer> {
        let count = check_count(count)?;
        self.datatype.bytes_at(buf, count)?;
        let extent = u64::try_from(self.datatype.shape.extent()).unwrap_or(0);
        datatype::addressable(count.checked_mul(extent))?;
        UserBuffer::with_gaps(buf, count, self.datatype, access)
    }
}

fn predefined(op: Op) -> Option<PredefinedOp> {
    Some(match op {
        c::SUM => PredefinedOp::Sum,
        c::PROD => PredefinedOp::Prod,
        c::MIN => PredefinedOp::Min,
        c::MAX => PredefinedOp::Max,
        c::LAND => PredefinedOp::LogicalAnd,
        c::LOR => PredefinedOp::LogicalOr,
        c::LXOR => PredefinedOp::LogicalXor,
        c::BAND => PredefinedOp::BitAnd,
        c::BOR => PredefinedOp::BitOr,
        c::BXOR => PredefinedOp::BitXor,
        c::MINLOC => PredefinedOp::MinLoc,
        c::MAXLOC => PredefinedOp::MaxLoc,
        _ => return None,
    })
}

const fn unsigned(bytes: u8) -> Option<ElemType> {
    match bytes {
        1 => Some(ElemType::U8),
        2 => Some(ElemType::U16),
        4 => Some(ElemType::U32),
        8 => Some(ElemType::U64),
        _ => None,
    }
}

/// The kind of element on which the runtime has the operator.
const fn find_element(op: PredefinedOp, kind: Kind) -> Option<ElemType> {
    use PredefinedOp as P;
    let logical = matches!(op, P::LogicalAnd | P::LogicalOr | P::LogicalXor);
    let bits = matches!(op, P::BitAnd | P::BitOr | P::BitXor);
    let elem = match kind {
        Kind::Int(1) => Some(ElemType::I8),
        Kind::Int(2) => Some(ElemType::I16),
        Kind::Int(4) => Some(ElemType::I32),
        Kind::Int(8) => Some(ElemType::I64),
        Kind::Uint(n) => unsigned(n),
        // Logical operators are for C's integers and Fortran's logicals.
        Kind::Float(4) if !logical => Some(ElemType::F32),
        Kind::Float(8) if !logical => Some(ElemType::F64),
        Kind::Complex(4) => Some(ElemType::ComplexF32),
        Kind::Complex(8) => Some(ElemType::ComplexF64),
        Kind::Logical(n) if logical => unsigned(n),
        Kind::Bool if logical => Some(ElemType::U8),
        Kind::Byte if bits => Some(ElemType::U8),
        Kind::Pair(Basic::I16, Basic::I32) => Some(ElemType::I16Index),
        Kind::Pair(Basic::I32, Basic::I32) => Some(ElemType::I32Index),
        Kind::Pair(Basic::I64, Basic::I32) => Some(ElemType::I64Index),
        Kind::Pair(Basic::F32, Basic::I32) => Some(ElemType::F32Index),
        Kind::Pair(Basic::F64, Basic::I32) => Some(ElemType::F64Index),
        _ => None,
    };
    match elem {
        Some(elem) if op.accepts(elem) => Some(elem),
        _ => None,
    }
}

/// By operator and element: a short reduction spends as much on finding its kind as on its bytes otherwise.
static ELEMENTS: [[Option<ElemType>; Element::COUNT]; PredefinedOp::ALL.len()] = {
    let mut elements = [[None; Element::COUNT]; PredefinedOp::ALL.len()];
    let mut op = 0;
    while op < elements.len() {
        let mut index = 0;
        while index < Element::COUNT {
            elements[op][index] = find_element(PredefinedOp::ALL[op], Element::kind_at(index));
            index += 1;
        }
        op += 1;
    }
    elements
};

// An operator's number is its place in the list.
const _: () = {
    let mut op = 0;
    while op < PredefinedOp::ALL.len() {
        assert!(PredefinedOp::ALL[op] as usize == op);
        op += 1;
    }
};

/// The same, read from the table.
#[inline]
fn element(op: PredefinedOp, element: Element) -> Option<ElemType> {
    ELEMENTS[op as usize][element.index()]
}

/// The element and the operator of a predefined operation on a predefined datatype without gaps that the runtime has as
/// it is.
#[inline]
pub(super) fn known(op: Op, datatype: Datatype) -> Option<(ElemType, PredefinedOp)> {
    let size = dense_size(datatype.0)?;
    let op = predefined(op)?;
    let elem = element(op, Element::from_handle(datatype.0)?)?;
    (elem.size() == size).then_some((elem, op))
}

fn unfit(op: Op, datatype: Datatype) -> Box<Failure> {
    let name = |list: &[(&'static str, usize, &str)], handle: usize| {
        let found = list.iter().find(|(_, value, _)| *value == handle);
        found.map_or_else(|| format!("{handle:#x}"), |(name, ..)| (*name).to_owned())
    };
    fail(
        c::ERR_OP,
        format!(
            "{} has no meaning for {}",
            name(&c::OPS, op.0),
            name(&c::DATATYPES, datatype.0)
        ),
    )
}

/// Refuses elements of which a copy has no room for the next one's neighbour.
fn check_extent(object: &TypeObject) -> Outcome<()> {
    let shape = &object.shape;
    if shape.true_lb < shape.lb || shape.true_ub > shape.ub {
        return Err(fail(
            c::ERR_TYPE,
            "elements that reach beyond their extent cannot be reduced",
        ));
    }
    Ok(())
}

/// How a datatype's vectors are reduced by an operation.
pub(super) fn reduction(handle: Op, datatype: Datatype) -> Outcome<Reduction> {
    let object = datatype::committed(datatype)?;
    let (elem, op) = match op::get(handle)? {
        Operation::Predefined(op) => {
            let known = predefined(op).zip(object.named());
            let found = known.and_then(|(op, named)| match element(op, named) {
                Some(elem) => Some((elem, Operator::Predefined(op))),
                None if named.is_binary128() => None,
                None => x87::operator(op, named.kind(), named.extent()),
            });
            found.ok_or_else(|| unfit(op, datatype))?
        }
        Operation::User(user) => {
            let shape = &object.shape;
            let extent = shape.extent();
            check_extent(object)?;
            if extent > MAX_ELEMENT as i64 {
                return Err(fail(
                    c::ERR_TYPE,
                    format!("an element of {extent} bytes; at most {MAX_ELEMENT} can be reduced"),
                ));
            }
            let first = shape.lb;
            // The program gets the handle, and may have freed the datatype by then.
            let held = datatype::hold(datatype);
            let function = move |left: &[u8], right: &mut [u8]| {
                let _ = &held;
                if extent == 0 {
                    return;
                }
                let count = right.len() as i64 / extent;
                let input = memory::address_of_shared(left).offset(-first);
                let inout = memory::address_of(right).offset(-first);
                let User { function, large } = User::from(user);
                callback::reduce(function, large, input, inout, count, datatype, extent);
            };
            let elem = ElemType::Opaque(extent.max(1) as u32);
            (elem, Operator::user(function))
        }
    };
    Ok(Reduction {
        elem,
        op,
        datatype: object,
    })
}

/// What a call of the program's function needs.
struct User {
    function: crate::ffi::Callback,
    large: bool,
}

impl From<op::User> for User {
    fn from(user: op::User) -> Self {
        Self {
            function: user.function,
            large: user.large,
        }
    }
}

/// Combines two local vectors: `inout = input op inout`.
pub(crate) fn reduce_here(
    inbuf: Addr,
    inout: Addr,
    count: i64,
    datatype: Datatype,
    handle: Op,
) -> Outcome<()> {
    let object = datatype::committed(datatype)?;
    let count = check_count(count)?;
    let operation = op::get(handle)?;
    object.bytes_at(inbuf, count)?;
    object.bytes_at(inout, count)?;
    let layout = object.shape.layout_of(count)?;
    if device::holds_any(&layout, inbuf) || device::holds_any(&layout, inout) {
        // The copies in the host hold element behind element.
        check_extent(object)?;
        let mut input = UserBuffer::with_gaps(inbuf, count, object, Access::Read)?;
        let mut result = UserBuffer::with_gaps(inout, count, object, Access::Both)?;
        input.fill()?;
        result.fill()?;
        let first = object.shape.lb;
        let (input, target) = (input.address(first), result.address(first));
        combine(input, target, count, datatype, handle, operation)?;
        return device::wait(|| result.deliver());
    }
    combine(inbuf, inout, count, datatype, handle, operation)
}

/// The same of vectors in the host.
fn combine(
    inbuf: Addr,
    inout: Addr,
    count: u64,
    datatype: Datatype,
    handle: Op,
    operation: Operation,
) -> Outcome<()> {
    let object = datatype::committed(datatype)?;
    match operation {
        Operation::Predefined(op) if op == c::NO_OP => Ok(()),
        Operation::Predefined(op) if op == c::REPLACE => {
            let layout = object.shape.layout_of(count)?;
            let mut packed = memory::zeroed(layout.size() as usize)?;
            memory::gather(&layout, inbuf, 0..layout.size(), &mut packed)?;
            memory::scatter(&layout, inout, &packed)
        }
        Operation::Predefined(_) => {
            let reduction = reduction(handle, datatype)?;
            let bytes = count as usize * reduction.elem.size();
            memory::with_bytes(inbuf, bytes, |input| {
                memory::with_bytes_mut(inout, bytes, |acc| match &reduction.op {
                    Operator::Predefined(op) => {
                        onecopy_shm::reduce::reduce_under(*op, reduction.elem, acc, input);
                    }
                    Operator::User(function) => function(input, acc),
                });
            });
            Ok(())
        }
        Operation::User(user) => {
            let extent = object.shape.extent();
            callback::reduce(
                user.function,
                user.large,
                inbuf,
                inout,
                count as i64,
                datatype,
                extent,
            );
            Ok(())
        }
    }
}
