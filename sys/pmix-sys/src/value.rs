// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the library gives: copied, checked, and given back.

use std::ffi::c_char;

use crate::abi::*;
use crate::library::text_of;

/// How long a value may be, in bytes: the standard has no limit, a table of ours needs none beyond this.
pub(crate) const LONGEST_VALUE: usize = 64 << 10;

/// What the library gave for a key.
pub(crate) enum KeyValue {
    Text(String),
    Number(u32),
}

/// Copies a value out and gives it back to the allocator; says what is wrong with one that is none.
///
/// # Safety
///
/// `value` is null, or was given by the library to its caller and not freed yet.
pub(crate) unsafe fn take(value: *mut pmix_value_t) -> Result<KeyValue, String> {
    if value.is_null() {
        return Err("no value came with it".to_owned());
    }
    // SAFETY: a value that the library gave.
    let copy = unsafe { value.read() };
    let given = match copy.type_ {
        PMIX_STRING => {
            // SAFETY: of a value of this type the union has this member.
            let string = unsafe { copy.data.string };
            // SAFETY: null, or a string that is the caller's.
            unsafe { take_text(string) }.map(KeyValue::Text)
        }
        PMIX_UINT32 => {
            // SAFETY: of a value of this type the union has this member.
            let number = unsafe { copy.data.uint32 };
            Ok(KeyValue::Number(number))
        }
        // What it consists of is not known here, so it cannot be given back.
        other => return Err(format!("a value of type {other} came with it")),
    };
    // SAFETY: made by `malloc`, as the standard's own macro frees it so; nothing refers to it any more.
    unsafe { libc::free(value.cast()) };
    given
}

/// As [`take`], of a string.
///
/// # Safety
///
/// `string` is null, or was given by the library to its caller and not freed yet.
unsafe fn take_text(string: *mut c_char) -> Result<String, String> {
    if string.is_null() {
        return Err("a text came that is null".to_owned());
    }
    // SAFETY: a string of C, of which no more is read than it has, and no more than the limit.
    let length = unsafe { libc::strnlen(string, LONGEST_VALUE + 1) };
    let text = match length <= LONGEST_VALUE {
        // SAFETY: it ends within the limit.
        true => unsafe { text_of(string) }.ok_or_else(String::new),
        false => Err(format!("a text of more than {LONGEST_VALUE} bytes came")),
    };
    // SAFETY: as the value: made by `malloc`, and not used any more.
    unsafe { libc::free(string.cast()) };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_and_given_back() {
        // SAFETY: as much as is asked for, or null, which `take` is made for.
        let value = unsafe { libc::calloc(1, size_of::<pmix_value_t>()) }.cast::<pmix_value_t>();
        // SAFETY: a copy of a string of C.
        let string = unsafe { libc::strdup(c"text".as_ptr()) };
        let made = pmix_value_t {
            type_: PMIX_STRING,
            data: pmix_value_data { string },
        };
        assert!(!value.is_null());
        // SAFETY: there is room for it.
        unsafe { value.write(made) };
        // SAFETY: made as the library makes them.
        let taken = unsafe { take(value) };
        assert!(matches!(taken, Ok(KeyValue::Text(text)) if text == "text"));
        let strange = Box::into_raw(Box::new(pmix_value_t::default()));
        for value in [std::ptr::null_mut(), strange] {
            // SAFETY: null, or a value that is not given back, as its type is not known.
            let taken = unsafe { take(value) };
            assert!(taken.is_err());
        }
        // SAFETY: made by a box above.
        drop(unsafe { Box::from_raw(strange) });
    }
}
