// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls into the program.
//!
//! # Safety
//! A callback is a function of the type that the standard demands where it was given; it was checked not to be null.
#![allow(unsafe_code, reason = "functions of the program")]

use crate::ffi::{Addr, Callback, Datatype};
use std::ffi::c_void;

type ErrorHandler = unsafe extern "C" fn(*mut usize, *mut i32, ...);
type CopyAttribute =
    unsafe extern "C" fn(usize, i32, *mut c_void, *mut c_void, *mut *mut c_void, *mut i32) -> i32;
type DeleteAttribute = unsafe extern "C" fn(usize, i32, *mut c_void, *mut c_void) -> i32;
type Reduce = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut i32, *mut Datatype);
type ReduceLarge = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut i64, *mut Datatype);

/// Calls an error handler.
pub(crate) fn error_handler(function: Callback, mut object: usize, mut code: i32) {
    if function.pointer().is_null() {
        return;
    }
    // SAFETY: the function was given as an error handler.
    let f = unsafe { std::mem::transmute::<*const c_void, ErrorHandler>(function.pointer()) };
    // SAFETY: as above; both places outlive the call.
    unsafe { f(&raw mut object, &raw mut code) };
}

/// Calls the function that copies an attribute: its return code, and the copy if one is to be kept.
pub(crate) fn copy_attribute(
    function: Callback,
    object: usize,
    keyval: i32,
    extra: Addr,
    value: Addr,
) -> (i32, Option<Addr>) {
    let (mut copy, mut flag) = (std::ptr::null_mut(), 0);
    // SAFETY: the function was given as one that copies attributes.
    let f = unsafe { std::mem::transmute::<*const c_void, CopyAttribute>(function.pointer()) };
    let (extra, value) = (extra.pointer().cast(), value.pointer().cast());
    // SAFETY: as above; both places outlive the call.
    let code = unsafe { f(object, keyval, extra, value, &raw mut copy, &raw mut flag) };
    // SAFETY: an address only.
    let copy = unsafe { Addr::new(copy.cast()) };
    (code, (flag != 0).then_some(copy))
}

/// Calls the function that deletes an attribute.
pub(crate) fn delete_attribute(
    function: Callback,
    object: usize,
    keyval: i32,
    value: Addr,
    extra: Addr,
) -> i32 {
    // SAFETY: the function was given as one that deletes attributes.
    let f = unsafe { std::mem::transmute::<*const c_void, DeleteAttribute>(function.pointer()) };
    // SAFETY: as above.
    unsafe {
        f(
            object,
            keyval,
            value.pointer().cast(),
            extra.pointer().cast(),
        )
    }
}

/// Calls a reduction of the program. One that takes `int` counts is called in parts.
pub(crate) fn reduce(
    function: Callback,
    large: bool,
    input: Addr,
    inout: Addr,
    count: i64,
    mut datatype: Datatype,
    extent: i64,
) {
    if large {
        let mut count = count;
        // SAFETY: the function was given as a reduction with large counts.
        let f = unsafe { std::mem::transmute::<*const c_void, ReduceLarge>(function.pointer()) };
        let (a, b) = (input.pointer().cast(), inout.pointer().cast());
        // SAFETY: as above; both buffers hold `count` elements.
        unsafe { f(a, b, &raw mut count, &raw mut datatype) };
        return;
    }
    // SAFETY: the function was given as a reduction.
    let f = unsafe { std::mem::transmute::<*const c_void, Reduce>(function.pointer()) };
    let mut done = 0;
    while done < count {
        let mut part = i32::try_from(count - done).unwrap_or(1 << 30);
        let a = input.offset(done * extent).pointer().cast();
        let b = inout.offset(done * extent).pointer().cast();
        done += i64::from(part);
        // SAFETY: as above; both buffers hold `count` elements.
        unsafe { f(a, b, &raw mut part, &raw mut datatype) };
    }
}
