// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of any object, with callbacks for copying and deleting.

use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Addr, Callback, Out};
use crate::{c, callback, phase};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

/// What a keyval belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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

pub(crate) fn create(
    kind: Kind,
    copy: Callback,
    delete: Callback,
    extra: Addr,
    key: Out<i32>,
) -> Outcome<()> {
    let mut keys = phase::lock(&KEYS);
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
    phase::lock(&KEYS)
        .known
        .get(&key)
        .and_then(|known| known.keyval.upgrade())
        .filter(|keyval| keyval.kind == kind)
        .ok_or_else(|| bad_key(key))
}

/// Frees a key. One that was freed and is still in use may be freed again: another handle of it.
pub(crate) fn free(kind: Kind, key: Out<i32>) -> Outcome<()> {
    let number = key.get()?;
    known(kind, number)?;
    let mut keys = phase::lock(&KEYS);
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

/// Deletes the attribute of this key, if there is one; gives whether there was. It stays if the program's function
/// fails.
fn end(attributes: &Mutex<Attributes>, object: usize, key: i32) -> Outcome<bool> {
    let of_key = |attribute: &&mut Attribute| attribute.key == key;
    let (keyval, value) = {
        let mut attributes = phase::lock(attributes);
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
    let mut attributes = phase::lock(attributes);
    if code == c::SUCCESS {
        attributes.retain(|attribute| attribute.key != key);
    } else if let Some(found) = attributes.iter_mut().find(of_key) {
        found.ending = false;
    }
    drop(attributes);
    checked(code, "the function that deletes an attribute failed")?;
    Ok(true)
}

pub(crate) fn delete(
    attributes: &Mutex<Attributes>,
    object: usize,
    kind: Kind,
    key: i32,
) -> Outcome<()> {
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

pub(crate) fn set(
    attributes: &Mutex<Attributes>,
    object: usize,
    kind: Kind,
    key: i32,
    value: Addr,
) -> Outcome<()> {
    let keyval = known(kind, key)?;
    end(attributes, object, key)?;
    let mut attributes = phase::lock(attributes);
    attributes.retain(|attribute| attribute.key != key);
    attributes.push(Attribute {
        key,
        keyval,
        value,
        ending: false,
    });
    Ok(())
}

pub(crate) fn get(
    attributes: &Mutex<Attributes>,
    kind: Kind,
    key: i32,
    value: Addr,
    flag: Out<i32>,
) -> Outcome<()> {
    known(kind, key)?;
    let found = phase::lock(attributes)
        .iter()
        .find(|attribute| attribute.key == key)
        .map(|attribute| attribute.value);
    if let Some(found) = found {
        value.store_pointer(found)?;
    }
    flag.set(i32::from(found.is_some()))
}

/// Deletes all attributes of an object, the last one first.
pub(crate) fn delete_all(attributes: &Mutex<Attributes>, object: usize) -> Outcome<()> {
    // The callbacks may change the attributes.
    loop {
        let last = phase::lock(attributes)
            .last()
            .map(|attribute| attribute.key);
        let Some(key) = last else {
            return Ok(());
        };
        end(attributes, object, key)?;
    }
}

/// What a duplicate of an object gets.
pub(crate) fn copy_all(attributes: &Mutex<Attributes>, object: usize) -> Outcome<Attributes> {
    let all = phase::lock(attributes).clone();
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
