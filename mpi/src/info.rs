// SPDX-License-Identifier: MIT OR Apache-2.0
//! Info objects: ordered pairs of strings, which are bytes to us.

use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Addr, Info, Out, OutText, Text};
use crate::handle::Table;
use crate::{c, phase};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Mutex;

/// The pairs, in the order of their first setting.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

static INFOS: Table<Mutex<Pairs>> = Table::new(2);

fn bad_info(handle: Info) -> Box<Failure> {
    fail(c::ERR_INFO, format!("{:#x} is no info object", handle.0))
}

/// What the standard wants to be known of this process.
fn environment() -> Pairs {
    let mut pairs = Pairs::new();
    let mut add = |key: &str, value: Vec<u8>| pairs.push((key.into(), value));
    let mut arguments = std::env::args_os().map(OsString::into_vec);
    if let Some(command) = arguments.next() {
        add("command", command);
    }
    let rest: Vec<Vec<u8>> = arguments.collect();
    if !rest.is_empty() {
        add("argv", rest.join(&b' '));
    }
    if let Ok(all) = phase::engine() {
        add("maxprocs", all.size().to_string().into());
    }
    if let Ok(host) = std::fs::read("/proc/sys/kernel/hostname") {
        add("host", host.trim_ascii().to_vec());
    }
    add("arch", std::env::consts::ARCH.into());
    if let Ok(directory) = std::env::current_dir() {
        add("wdir", directory.into_os_string().into_vec());
    }
    if let Some((level, _)) = phase::thread_level() {
        let name = match level {
            c::THREAD_MULTIPLE => "MPI_THREAD_MULTIPLE",
            c::THREAD_SERIALIZED => "MPI_THREAD_SERIALIZED",
            c::THREAD_FUNNELED => "MPI_THREAD_FUNNELED",
            _ => "MPI_THREAD_SINGLE",
        };
        add("thread_level", name.into());
    }
    pairs
}

/// A new object.
pub(crate) fn make(pairs: Pairs) -> Outcome<Info> {
    INFOS
        .insert(Mutex::new(pairs))
        .map(Info)
        .ok_or_else(phase::too_many)
}

/// A copy of an object's pairs; none for `MPI_INFO_NULL`.
pub(crate) fn pairs_or_none(handle: Info) -> Outcome<Pairs> {
    if handle == c::INFO_NULL {
        Ok(Pairs::new())
    } else {
        read(handle, Pairs::clone)
    }
}

fn read<R>(handle: Info, f: impl FnOnce(&Pairs) -> R) -> Outcome<R> {
    if handle == c::INFO_ENV {
        return Ok(f(&environment()));
    }
    let info = INFOS.get(handle.0).ok_or_else(|| bad_info(handle))?;
    Ok(f(&phase::lock(info)))
}

fn write<R>(handle: Info, f: impl FnOnce(&mut Pairs) -> R) -> Outcome<R> {
    let info = INFOS.get(handle.0).ok_or_else(|| bad_info(handle))?;
    Ok(f(&mut phase::lock(info)))
}

fn key_of(key: Text) -> Outcome<Vec<u8>> {
    let key = key.get()?;
    if key.is_empty() || key.len() >= c::MAX_INFO_KEY as usize {
        return Err(fail(
            c::ERR_INFO_KEY,
            format!("a key has 1 to {} bytes", c::MAX_INFO_KEY - 1),
        ));
    }
    Ok(key)
}

pub(crate) fn info_create(info: Out<Info>) -> Outcome<()> {
    info.set(make(Pairs::new())?)
}

pub(crate) fn info_create_env(_argc: i32, _argv: Addr, info: Out<Info>) -> Outcome<()> {
    info.set(make(environment())?)
}

pub(crate) fn info_free(info: Out<Info>) -> Outcome<()> {
    let handle = info.get()?;
    INFOS.remove(handle.0).ok_or_else(|| bad_info(handle))?;
    info.set(c::INFO_NULL)
}

pub(crate) fn info_dup(info: Info, copy: Out<Info>) -> Outcome<()> {
    copy.set(make(read(info, Pairs::clone)?)?)
}

pub(crate) fn info_set(info: Info, key: Text, value: Text) -> Outcome<()> {
    let (key, value) = (key_of(key)?, value.get()?);
    if value.is_empty() || value.len() >= c::MAX_INFO_VAL as usize {
        return Err(fail(
            c::ERR_INFO_VALUE,
            format!("a value has 1 to {} bytes", c::MAX_INFO_VAL - 1),
        ));
    }
    write(info, |pairs| {
        match pairs.iter_mut().find(|(other, _)| *other == key) {
            Some((_, old)) => *old = value,
            None => pairs.push((key, value)),
        }
    })
}

pub(crate) fn info_delete(info: Info, key: Text) -> Outcome<()> {
    let key = key_of(key)?;
    write(info, |pairs| {
        let index = pairs.iter().position(|(other, _)| *other == key);
        match index {
            Some(index) => {
                pairs.remove(index);
                Ok(())
            }
            None => Err(fail(
                c::ERR_INFO_NOKEY,
                format!("there is no key {:?}", String::from_utf8_lossy(&key)),
            )),
        }
    })?
}

fn value_of(info: Info, key: Text) -> Outcome<Option<Vec<u8>>> {
    let key = key_of(key)?;
    read(info, |pairs| {
        pairs
            .iter()
            .find(|(other, _)| *other == key)
            .map(|(_, value)| value.clone())
    })
}

pub(crate) fn info_get(
    info: Info,
    key: Text,
    len: i32,
    value: OutText,
    flag: Out<i32>,
) -> Outcome<()> {
    let found = value_of(info, key)?;
    if let Some(text) = &found {
        let room = usize::try_from(len).map_err(|_| fail(c::ERR_ARG, "a length below zero"))?;
        value.set(text, room + 1)?;
    }
    flag.set(i32::from(found.is_some()))
}

pub(crate) fn info_get_string(
    info: Info,
    key: Text,
    len: Out<i32>,
    value: OutText,
    flag: Out<i32>,
) -> Outcome<()> {
    let found = value_of(info, key)?;
    if let Some(text) = &found {
        let room =
            usize::try_from(len.get()?).map_err(|_| fail(c::ERR_ARG, "a length below zero"))?;
        if room > 0 {
            value.set(text, room)?;
        }
        len.set(text.len() as i32 + 1)?;
    }
    flag.set(i32::from(found.is_some()))
}

pub(crate) fn info_get_valuelen(
    info: Info,
    key: Text,
    len: Out<i32>,
    flag: Out<i32>,
) -> Outcome<()> {
    let found = value_of(info, key)?;
    if let Some(text) = &found {
        len.set(text.len() as i32)?;
    }
    flag.set(i32::from(found.is_some()))
}

pub(crate) fn info_get_nkeys(info: Info, count: Out<i32>) -> Outcome<()> {
    count.set(read(info, Vec::len)? as i32)
}

pub(crate) fn info_get_nthkey(info: Info, n: i32, key: OutText) -> Outcome<()> {
    let found = read(info, |pairs| {
        usize::try_from(n)
            .ok()
            .and_then(|n| pairs.get(n))
            .map(|(key, _)| key.clone())
    })?;
    let name = found.ok_or_else(|| fail(c::ERR_ARG, format!("there is no key number {n}")))?;
    key.set(&name, c::MAX_INFO_KEY as usize).map(drop)
}
