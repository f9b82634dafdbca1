// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for messages, and addresses.

use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Info, Out};
use crate::{c, info, job, memory, phase};
use onecopy::HeapBuf;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

/// What `MPI_Alloc_mem` gave out, by address.
static GIVEN: LazyLock<Mutex<HashMap<usize, HeapBuf>>> = LazyLock::new(Mutex::default);

/// Memory that peers read in place: messages from and to it need one copy and no privilege.
pub(crate) fn alloc_mem(size: i64, info: Info, base: Addr) -> Outcome<()> {
    info::pairs_or_none(info)?;
    let size = usize::try_from(size)
        .map_err(|_| fail(c::ERR_ARG, format!("{size} bytes cannot be allocated")))?;
    if base.pointer().is_null() {
        return Err(fail(c::ERR_ARG, "the pointer to a result is null"));
    }
    let mut buffer = job::with_runtime(|runtime| Ok(runtime.alloc(size.max(1))?))?;
    let address = memory::address_of(&mut buffer);
    phase::lock(&GIVEN).insert(address.number(), buffer);
    base.store_pointer(address)
}

pub(crate) fn free_mem(base: Addr) -> Outcome<()> {
    if base.pointer().is_null() {
        return Ok(());
    }
    match phase::lock(&GIVEN).remove(&base.number()) {
        Some(_) => Ok(()),
        None => Err(fail(
            c::ERR_BASE,
            format!("{:#x} did not come from MPI_Alloc_mem", base.number()),
        )),
    }
}

pub(crate) fn get_address(location: Addr, address: Out<i64>) -> Outcome<()> {
    address.set(location.number() as i64)
}

pub(crate) fn aint_add(base: i64, displacement: i64) -> i64 {
    base.wrapping_add(displacement)
}

pub(crate) fn aint_diff(a: i64, b: i64) -> i64 {
    a.wrapping_sub(b)
}
