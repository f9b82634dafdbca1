// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes: values that the program hangs on communicators and datatypes, with callbacks for copying and deleting.

use crate::attributes::{Kind, create, delete, free, get, set};
use crate::failure::Outcome;
use crate::ffi::{Addr, Callback, Comm, Datatype, Out};
use crate::{c, codes, comm, datatype};

/// Values of the predefined attributes; the program gets their addresses.
static TAG_UB: i32 = i32::MAX;
static HOST: i32 = c::PROC_NULL;
static IO: i32 = c::ANY_SOURCE;
static WTIME_IS_GLOBAL: i32 = 0;
static APPNUM: i32 = 0;
static LAST_USED_CODE: onecopy_shm::sync::AtomicU32 = onecopy_shm::sync::AtomicU32::new(0);
static UNIVERSE_SIZE: onecopy_shm::sync::AtomicU32 = onecopy_shm::sync::AtomicU32::new(0);

fn predefined(key: i32) -> Option<Addr> {
    use onecopy_shm::sync::Ordering;
    let place = match key {
        c::TAG_UB => (&raw const TAG_UB).addr(),
        c::HOST => (&raw const HOST).addr(),
        c::IO => (&raw const IO).addr(),
        c::WTIME_IS_GLOBAL => (&raw const WTIME_IS_GLOBAL).addr(),
        c::APPNUM => (&raw const APPNUM).addr(),
        c::LASTUSEDCODE => {
            LAST_USED_CODE.store(codes::last_used_code() as u32, Ordering::Relaxed);
            (&raw const LAST_USED_CODE).addr()
        }
        c::UNIVERSE_SIZE => {
            let size = comm::world().map_or(1, |world| world.size());
            UNIVERSE_SIZE.store(size as u32, Ordering::Relaxed);
            (&raw const UNIVERSE_SIZE).addr()
        }
        _ => return None,
    };
    Some(Addr::from_number(place))
}

pub(crate) fn comm_create_keyval(
    copy: Callback,
    delete: Callback,
    key: Out<i32>,
    extra: Addr,
) -> Outcome<()> {
    create(Kind::Comm, copy, delete, extra, key)
}

pub(crate) fn comm_free_keyval(key: Out<i32>) -> Outcome<()> {
    free(Kind::Comm, key)
}

pub(crate) fn comm_set_attr(comm: Comm, key: i32, value: Addr) -> Outcome<()> {
    set(&comm::get(comm)?.attributes, comm.0, Kind::Comm, key, value)
}

pub(crate) fn comm_get_attr(comm: Comm, key: i32, value: Addr, flag: Out<i32>) -> Outcome<()> {
    let object = &comm::get(comm)?;
    if let Some(place) = predefined(key) {
        value.store_pointer(place)?;
        return flag.set(1);
    }
    get(&object.attributes, Kind::Comm, key, value, flag)
}

pub(crate) fn comm_delete_attr(comm: Comm, key: i32) -> Outcome<()> {
    delete(&comm::get(comm)?.attributes, comm.0, Kind::Comm, key)
}

pub(crate) fn keyval_create(
    copy: Callback,
    delete: Callback,
    key: Out<i32>,
    extra: Addr,
) -> Outcome<()> {
    comm_create_keyval(copy, delete, key, extra)
}

pub(crate) fn keyval_free(key: Out<i32>) -> Outcome<()> {
    comm_free_keyval(key)
}

pub(crate) fn attr_put(comm: Comm, key: i32, value: Addr) -> Outcome<()> {
    comm_set_attr(comm, key, value)
}

pub(crate) fn attr_get(comm: Comm, key: i32, value: Addr, flag: Out<i32>) -> Outcome<()> {
    comm_get_attr(comm, key, value, flag)
}

pub(crate) fn attr_delete(comm: Comm, key: i32) -> Outcome<()> {
    comm_delete_attr(comm, key)
}

pub(crate) fn type_create_keyval(
    copy: Callback,
    delete: Callback,
    key: Out<i32>,
    extra: Addr,
) -> Outcome<()> {
    create(Kind::Type, copy, delete, extra, key)
}

pub(crate) fn type_free_keyval(key: Out<i32>) -> Outcome<()> {
    free(Kind::Type, key)
}

pub(crate) fn type_set_attr(datatype: Datatype, key: i32, value: Addr) -> Outcome<()> {
    let object = datatype::get(datatype)?;
    set(&object.attributes, datatype.0, Kind::Type, key, value)
}

pub(crate) fn type_get_attr(
    datatype: Datatype,
    key: i32,
    value: Addr,
    flag: Out<i32>,
) -> Outcome<()> {
    let object = datatype::get(datatype)?;
    get(&object.attributes, Kind::Type, key, value, flag)
}

pub(crate) fn type_delete_attr(datatype: Datatype, key: i32) -> Outcome<()> {
    let object = datatype::get(datatype)?;
    delete(&object.attributes, datatype.0, Kind::Type, key)
}

pub(crate) fn win_create_keyval(
    copy: Callback,
    delete: Callback,
    key: Out<i32>,
    extra: Addr,
) -> Outcome<()> {
    create(Kind::Win, copy, delete, extra, key)
}

pub(crate) fn win_free_keyval(key: Out<i32>) -> Outcome<()> {
    free(Kind::Win, key)
}
