// SPDX-License-Identifier: MIT OR Apache-2.0
//! Libraries that are opened when they are first used. Included by the crates that bind them.
//!
//! # Safety
//! The loader takes names that end with a zero, and handles of what is open. What it opens runs with it, and is trusted
//! as the machine's own library. Nothing is closed: functions and threads of it may be in use until the process ends.
#![allow(unsafe_code, reason = "calls of the loader")]

use std::ffi::{CStr, c_int, c_void};

/// An open library.
#[derive(Clone, Copy)]
pub(crate) struct Handle(*mut c_void);

impl Handle {
    /// Opens it, and binds what it needs at once. The error is what the loader says.
    pub(crate) fn open(name: &CStr, flags: c_int) -> Result<Self, String> {
        // SAFETY: the name ends with a zero. What runs when it is loaded is the machine's own library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags | libc::RTLD_NOW) };
        match handle.is_null() {
            false => Ok(Self(handle)),
            true => Err(last_words()),
        }
    }

    /// The address of a function; `name` ends with a zero. The error is what the loader says.
    pub(crate) fn symbol(self, name: &str) -> Result<*mut c_void, String> {
        let name = CStr::from_bytes_until_nul(name.as_bytes()).unwrap_or_default();
        // SAFETY: the handle is open, and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        match found.is_null() {
            false => Ok(found),
            true => Err(last_words()),
        }
    }
}

fn last_words() -> String {
    // SAFETY: takes nothing; the text is this thread's own until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gave no reason".to_owned();
    }
    // SAFETY: a text of the loader's ends with a zero; it is copied before the next call.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
