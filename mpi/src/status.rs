// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a status tells.

use crate::failure::{Outcome, fail};
use crate::ffi::{Datatype, In, Out, OutInts, Status};
use crate::{c, datatype};

pub(crate) fn get_count(status: In<Status>, datatype: Datatype, count: OutInts) -> Outcome<()> {
    let status = status.get()?;
    let size = datatype::get(datatype)?.size();
    let bytes = status.bytes();
    count.set(match size {
        0 if bytes == 0 => 0,
        0 => i64::from(c::UNDEFINED),
        _ if bytes % size == 0 => (bytes / size) as i64,
        _ => i64::from(c::UNDEFINED),
    })
}

fn elements(status: In<Status>, datatype: Datatype) -> Outcome<i64> {
    let status = status.get()?;
    let object = datatype::get(datatype)?;
    Ok(object
        .elements_in(status.bytes())
        .map_or(i64::from(c::UNDEFINED), |count| count as i64))
}

pub(crate) fn get_elements(status: In<Status>, datatype: Datatype, count: OutInts) -> Outcome<()> {
    count.set(elements(status, datatype)?)
}

pub(crate) fn get_elements_x(
    status: In<Status>,
    datatype: Datatype,
    count: Out<i64>,
) -> Outcome<()> {
    count.set(elements(status, datatype)?)
}

pub(crate) fn status_set_elements(
    status: Out<Status>,
    datatype: Datatype,
    count: i64,
) -> Outcome<()> {
    let object = datatype::get(datatype)?;
    let count = u64::try_from(count).map_err(|_| fail(c::ERR_COUNT, "a count below zero"))?;
    let mut changed = status.get()?;
    let bytes = object
        .bytes_of_elements(count)
        .ok_or_else(|| fail(c::ERR_COUNT, "more bytes than a status can tell"))?;
    changed.set_bytes(bytes);
    status.set(changed)
}

pub(crate) fn status_set_elements_x(
    status: Out<Status>,
    datatype: Datatype,
    count: i64,
) -> Outcome<()> {
    status_set_elements(status, datatype, count)
}

fn change(status: Out<Status>, f: impl FnOnce(&mut Status)) -> Outcome<()> {
    let mut changed = status.get()?;
    f(&mut changed);
    status.set(changed)
}

pub(crate) fn status_set_cancelled(status: Out<Status>, flag: i32) -> Outcome<()> {
    change(status, |status| status.set_cancelled(flag != 0))
}

pub(crate) fn status_set_source(status: Out<Status>, source: i32) -> Outcome<()> {
    change(status, |status| status.source = source)
}

pub(crate) fn status_set_tag(status: Out<Status>, tag: i32) -> Outcome<()> {
    change(status, |status| status.tag = tag)
}

pub(crate) fn status_set_error(status: Out<Status>, error: i32) -> Outcome<()> {
    change(status, |status| status.error = error)
}

pub(crate) fn status_get_source(status: In<Status>, source: Out<i32>) -> Outcome<()> {
    source.set(status.get()?.source)
}

pub(crate) fn status_get_tag(status: In<Status>, tag: Out<i32>) -> Outcome<()> {
    tag.set(status.get()?.tag)
}

pub(crate) fn status_get_error(status: In<Status>, error: Out<i32>) -> Outcome<()> {
    error.set(status.get()?.error)
}
