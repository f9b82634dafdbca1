// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes: values that the program hangs on communicators and datatypes, with callbacks for copying and deleting.

use crate::comm::{self, CommObject};
use crate::datatype::{self, TypeObject};
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Addr, Callback, Comm, Datatype, Out};
use crate::{c, callback, errors, job};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

/// What a keyval belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Comm,
    Type,
    Win,
}

/// A key with its callbacks. It lives until the program has freed it and no attribute has it.
#[derive(Debug)]
pub(crate) struct Keyval {
    kind: Kind,
    copy: Callback,
    delete: Callback,
    extra: Addr,
}

/// The attributes of one object, in the order of their setting.
pub(crate) type Attributes = Vec<Attribute>;

#[derive(Debug, Clone)]
pub(crate) struct Attribute {
    key: i32,
    keyval: Arc<Keyval>,
    value: Addr,
    /// The program's function for its deletion is under way: it still has its value, and is not deleted a second time.
    ending: bool,
}

/// A key that the program knows by a number.
struct Key {
    keyval: Weak<Keyval>,
    /// What keeps it until the program frees it; after that its attributes do.
    own: Option<Arc<Keyval>>,
}

struct Keys {
    known: BTreeMap<i32, Key>,
    next: i32,
}

static KEYS: Mutex<Keys> = Mutex::new(Keys {
    known: BTreeMap::new(),
    next: 1000,
});

const NULL: usize = c::COMM_NULL_COPY_FN;
const DUPLICATE: usize = c::COMM_DUP_FN;

fn create(kind: Kind, copy: Callback, delete: Callback, extra: Addr, key: Out<i32>) -> Outcome<()> {
    let mut keys = job::lock(&KEYS);
    let number = keys.next;
    keys.next += 1;
    let keyval = Arc::new(Keyval {
        kind,
        copy,
        delete,
        extra,
    });
    let known = Key {
        keyval: Arc::downgrade(&keyval),
        own: Some(keyval),
    };
    keys.known.insert(number, known);
    key.set(number)
}

fn bad_key(key: i32) -> Box<Failure> {
    fail(
        c::ERR_KEYVAL,
        format!("{key} is no attribute key for this kind of object"),
    )
}

/// The key of a number: also one that the program has freed, while an attribute has it.
fn known(kind: Kind, key: i32) -> Outcome<Arc<Keyval>> {
    job::lock(&KEYS)
        .known
        .get(&key)
        .and_then(|known| known.keyval.upgrade())
        .filter(|keyval| keyval.kind == kind)
        .ok_or_else(|| bad_key(key))
}

/// Frees a key. One that was freed and is still in use may be freed again: another handle of it.
fn free(kind: Kind, key: Out<i32>) -> Outcome<()> {
    let number = key.get()?;
    known(kind, number)?;
    let mut keys = job::lock(&KEYS);
    if let Some(known) = keys.known.get_mut(&number) {
        known.own = None;
    }
    // Those whose last attribute went after they were freed go now, too.
    keys.known
        .retain(|_, known| known.keyval.strong_count() > 0);
    drop(keys);
    key.set(c::KEYVAL_INVALID)
}

fn checked(code: i32, what: &'static str) -> Outcome<()> {
    if code == c::SUCCESS {
        Ok(())
    } else {
        Err(fail(code, what))
    }
}

/// Deletes the attribute of this key, if there is one; gives whether there was. It stays if the program's function fails.
fn end(attributes: &Mutex<Attributes>, object: usize, key: i32) -> Outcome<bool> {
    let of_key = |attribute: &&mut Attribute| attribute.key == key;
    let (keyval, value) = {
        let mut attributes = job::lock(attributes);
        let Some(found) = attributes.iter_mut().find(of_key) else {
            return Ok(false);
        };
        if std::mem::replace(&mut found.ending, true) {
            return Err(fail(
                c::ERR_KEYVAL,
                format!("attribute {key} is being deleted: its function may not delete or set it"),
            ));
        }
        (Arc::clone(&found.keyval), found.value)
    };
    // The function may use the object and its attributes.
    let code = if keyval.delete.number() == NULL {
        c::SUCCESS
    } else {
        callback::delete_attribute(keyval.delete, object, key, value, keyval.extra)
    };
    let mut attributes = job::lock(attributes);
    if code == c::SUCCESS {
        attributes.retain(|attribute| attribute.key != key);
    } else if let Some(found) = attributes.iter_mut().find(of_key) {
        found.ending = false;
    }
    drop(attributes);
    checked(code, "the function that deletes an attribute failed")?;
    Ok(true)
}

fn delete(attributes: &Mutex<Attributes>, object: usize, kind: Kind, key: i32) -> Outcome<()> {
    known(kind, key)?;
    if end(attributes, object, key)? {
        Ok(())
    } else {
        Err(fail(
            c::ERR_KEYVAL,
            format!("the object has no attribute {key}"),
        ))
    }
}

fn set(
    attributes: &Mutex<Attributes>,
    object: usize,
    kind: Kind,
    key: i32,
    value: Addr,
) -> Outcome<()> {
    let keyval = known(kind, key)?;
    end(attributes, object, key)?;
    let mut attributes = job::lock(attributes);
    attributes.retain(|attribute| attribute.key != key);
    attributes.push(Attribute {
        key,
        keyval,
        value,
        ending: false,
    });
    Ok(())
}

fn get(
    attributes: &Mutex<Attributes>,
    kind: Kind,
    key: i32,
    value: Addr,
    flag: Out<i32>,
) -> Outcome<()> {
    known(kind, key)?;
    let found = job::lock(attributes)
        .iter()
        .find(|attribute| attribute.key == key)
        .map(|attribute| attribute.value);
    if let Some(found) = found {
        value.store_pointer(found)?;
    }
    flag.set(i32::from(found.is_some()))
}

fn delete_each(attributes: &Mutex<Attributes>, object: usize) -> Outcome<()> {
    // The callbacks may change the attributes.
    loop {
        let last = job::lock(attributes).last().map(|attribute| attribute.key);
        let Some(key) = last else {
            return Ok(());
        };
        end(attributes, object, key)?;
    }
}

fn copy_each(attributes: &Mutex<Attributes>, object: usize) -> Outcome<Attributes> {
    let all = job::lock(attributes).clone();
    let mut copies = Attributes::new();
    for Attribute {
        key, keyval, value, ..
    } in all
    {
        let copy = match keyval.copy.number() {
            NULL => None,
            DUPLICATE => Some(value),
            _ => {
                let (code, copy) =
                    callback::copy_attribute(keyval.copy, object, key, keyval.extra, value);
                checked(code, "the function that copies an attribute failed")?;
                copy
            }
        };
        if let Some(copy) = copy {
            copies.push(Attribute {
                key,
                keyval,
                value: copy,
                ending: false,
            });
        }
    }
    Ok(copies)
}

/// Deletes a communicator's attributes, the last one first.
pub(crate) fn delete_all(comm: &CommObject, handle: usize) -> Outcome<()> {
    delete_each(&comm.attributes, handle)
}

/// What a duplicate of a communicator gets.
pub(crate) fn copy_all(comm: &CommObject, handle: usize) -> Outcome<Attributes> {
    copy_each(&comm.attributes, handle)
}

pub(crate) fn delete_all_of_type(object: &TypeObject, handle: usize) -> Outcome<()> {
    delete_each(&object.attributes, handle)
}

pub(crate) fn copy_all_of_type(object: &TypeObject, handle: usize) -> Outcome<Attributes> {
    copy_each(&object.attributes, handle)
}

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
            LAST_USED_CODE.store(errors::last_used_code() as u32, Ordering::Relaxed);
            (&raw const LAST_USED_CODE).addr()
        }
        c::UNIVERSE_SIZE => {
            let size = job::world().map_or(1, |world| world.size());
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
