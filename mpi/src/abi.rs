// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ABI itself: its version, and handles as integers. Handles fit an `int`, so the conversions change nothing.

use crate::failure::{Outcome, fail};
use crate::ffi::{
    Addr, Comm, Datatype, Errhandler, File, Group, Info, Message, Op, Out, Request, Session, Win,
};
use crate::{c, info};
use std::sync::Mutex;

pub(crate) fn abi_get_version(major: Out<i32>, minor: Out<i32>) -> Outcome<()> {
    major.set(c::ABI_VERSION)?;
    minor.set(c::ABI_SUBVERSION)
}

pub(crate) fn abi_get_info(info: Out<Info>) -> Outcome<()> {
    let size = |name: &str, bytes: usize| (name.into(), bytes.to_string().into_bytes());
    info.set(info::make(vec![
        size("mpi_aint_size", size_of::<i64>()),
        size("mpi_count_size", size_of::<i64>()),
        size("mpi_offset_size", size_of::<i64>()),
    ])?)
}

/// What a Fortran layer has announced.
static FORTRAN: Mutex<Option<info::Pairs>> = Mutex::new(None);

pub(crate) fn abi_set_fortran_info(info: Info) -> Outcome<()> {
    *crate::phase::lock(&FORTRAN) = Some(info::pairs_or_none(info)?);
    Ok(())
}

pub(crate) fn abi_get_fortran_info(info: Out<Info>) -> Outcome<()> {
    let pairs = crate::phase::lock(&FORTRAN).clone();
    info.set(match pairs {
        Some(pairs) => info::make(pairs)?,
        None => c::INFO_NULL,
    })
}

/// The size of a Fortran logical, and its two values: true, false.
type Booleans = (usize, Vec<u8>, Vec<u8>);

static BOOLEANS: Mutex<Option<Booleans>> = Mutex::new(None);

pub(crate) fn abi_set_fortran_booleans(size: i32, yes: Addr, no: Addr) -> Outcome<()> {
    let size = logical_size(size)?;
    present(yes, no)?;
    let (yes, no) = (
        crate::memory::copy_out(yes, size),
        crate::memory::copy_out(no, size),
    );
    *crate::phase::lock(&BOOLEANS) = Some((size, yes, no));
    Ok(())
}

fn present(yes: Addr, no: Addr) -> Outcome<()> {
    if yes.pointer().is_null() || no.pointer().is_null() {
        return Err(fail(c::ERR_ARG, "the pointer to a logical value is null"));
    }
    Ok(())
}

fn logical_size(size: i32) -> Outcome<usize> {
    match size {
        1 | 2 | 4 | 8 | 16 => Ok(size as usize),
        _ => Err(fail(
            c::ERR_ARG,
            format!("a Fortran logical has 1, 2, 4, 8 or 16 bytes, not {size}"),
        )),
    }
}

pub(crate) fn abi_get_fortran_booleans(
    size: i32,
    yes: Addr,
    no: Addr,
    is_set: Out<i32>,
) -> Outcome<()> {
    let size = logical_size(size)?;
    present(yes, no)?;
    match &*crate::phase::lock(&BOOLEANS) {
        Some((known, true_bytes, false_bytes)) if *known == size => {
            crate::memory::copy_in(yes, true_bytes);
            crate::memory::copy_in(no, false_bytes);
            is_set.set(1)
        }
        _ => is_set.set(0),
    }
}

macro_rules! integers {
    ($($handle:ident $to:ident $from:ident),* $(,)?) => {
        $(
            pub(crate) fn $to(handle: $handle) -> i32 {
                handle.0 as i32
            }
            pub(crate) fn $from(integer: i32) -> $handle {
                $handle(usize::try_from(integer).unwrap_or(0))
            }
        )*
    };
}

integers! {
    Comm comm_toint comm_fromint,
    Errhandler errhandler_toint errhandler_fromint,
    File file_toint file_fromint,
    Group group_toint group_fromint,
    Info info_toint info_fromint,
    Message message_toint message_fromint,
    Op op_toint op_fromint,
    Request request_toint request_fromint,
    Session session_toint session_fromint,
    Datatype type_toint type_fromint,
    Win win_toint win_fromint,
}
