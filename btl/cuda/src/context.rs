// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts: what a process has on a device.
//!
//! # Safety
//! A context's handle is only passed to the driver, which knows whether it is still one.
#![allow(unsafe_code, reason = "calls of the driver")]

use crate::error::{Error, LATER_DRIVER, check};
use cuda_sys::{
    CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_NOT_SUPPORTED,
    CUcontext, CUstreamCaptureMode, Library,
};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

/// A context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context(pub(crate) CUcontext);

// SAFETY: the driver takes a context's handle from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The context that all of the process share on a device, with its number. After a reset of the device another one has
/// the same handle, and nothing of this one is there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextId {
    pub(crate) device: i32,
    pub(crate) number: u64,
}

impl ContextId {
    /// That of a device.
    ///
    /// # Errors
    ///
    /// The driver does not tell it, or there is no such context.
    pub(crate) fn of(driver: &'static Library, device: i32) -> Result<Self, Error> {
        let number = primary(driver, device)?.number(driver)?;
        Ok(Self { device, number })
    }

    /// Makes it the thread's context.
    ///
    /// # Errors
    ///
    /// It is gone, or the driver refuses it.
    pub(crate) fn enter(self, driver: &'static Library) -> Result<Entered, Error> {
        let context = primary(driver, self.device)?;
        let entered = context.enter(driver)?;
        self.expect(driver, context)?;
        Ok(entered)
    }

    /// An error: a context is not this one any more, or has failed.
    pub(crate) fn expect(self, driver: &Library, context: Context) -> Result<(), Error> {
        if context.number(driver)? == self.number {
            return Ok(());
        }
        Err(Error {
            call: "cuCtxGetId",
            about: format!("context {} of device {}", self.number, self.device),
            code: CUDA_ERROR_CONTEXT_IS_DESTROYED,
            name: "the context has ended".to_owned(),
            remedy: None,
        })
    }
}

/// The thread's context is this one until it is dropped; then it is again what it was.
///
/// The program may be capturing a stream of its own for a graph, and then most calls would end that. What is called
/// here has nothing to do with it, and says so for as long.
#[derive(Debug)]
pub(crate) struct Entered {
    driver: &'static Library,
    /// How captures restricted the thread.
    mode: CUstreamCaptureMode,
    /// It is about this thread.
    _here: PhantomData<*mut ()>,
}

impl Context {
    /// Its number.
    ///
    /// # Errors
    ///
    /// It has failed or is gone, or the driver is too old to tell it.
    pub(crate) fn number(self, driver: &Library) -> Result<u64, Error> {
        let (mut id, call) = (0, "cuCtxGetId");
        let code = match driver.cuCtxGetId {
            // SAFETY: a handle that the driver looks at; the place for the answer is ours.
            Some(ask) => unsafe { ask(self.0, &raw mut id) },
            None => CUDA_ERROR_NOT_SUPPORTED,
        };
        let about = || format!("context {:p}", self.0);
        if code == CUDA_ERROR_NOT_SUPPORTED {
            let why =
                "the driver is older than CUDA 12, and does not tell one context from the next";
            return Err(Error {
                code,
                ..Error::ours(call, about(), why, LATER_DRIVER)
            });
        }
        check(driver, code, call, about)?;
        Ok(id)
    }

    pub(crate) fn enter(self, driver: &'static Library) -> Result<Entered, Error> {
        // SAFETY: a handle of the driver's, which looks at it.
        let code = unsafe { (driver.cuCtxPushCurrent)(self.0) };
        check(driver, code, "cuCtxPushCurrent", || {
            format!("context {:p}", self.0)
        })?;
        let mode = exchange(driver, CU_STREAM_CAPTURE_MODE_RELAXED);
        Ok(Entered {
            driver,
            mode,
            _here: PhantomData,
        })
    }
}

/// Sets how captures restrict the thread, and gives what it was.
fn exchange(driver: &Library, mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // SAFETY: the place is ours; it is read and written.
    unsafe { (driver.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
    mode
}

impl Drop for Entered {
    fn drop(&mut self) {
        exchange(self.driver, self.mode);
        let mut popped = null_mut();
        // SAFETY: what was pushed by this thread; the place for the answer is ours.
        unsafe { (self.driver.cuCtxPopCurrent)(&raw mut popped) };
    }
}

/// The context that all of the process share on the device of the thread's context. What it registers stays registered
/// when the program ends a context of its own.
pub(crate) fn lasting(driver: &'static Library) -> Result<Context, Error> {
    let mut device = 0;
    // SAFETY: the place for the answer is ours.
    let code = unsafe { (driver.cuCtxGetDevice)(&raw mut device) };
    check(driver, code, "cuCtxGetDevice", || {
        "the thread's context".to_owned()
    })?;
    primary(driver, device)
}

/// The context that all of the process share on a device: for memory that belongs to no context. It is kept.
pub(crate) fn primary(driver: &'static Library, device: i32) -> Result<Context, Error> {
    static KEPT: Mutex<Vec<(i32, Context)>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, context)) = kept.iter().find(|(known, _)| *known == device) {
        return Ok(*context);
    }
    let mut context = null_mut();
    // SAFETY: the place for the answer is ours.
    let code = unsafe { (driver.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
    check(driver, code, "cuDevicePrimaryCtxRetain", || {
        format!("device {device}")
    })?;
    kept.push((device, Context(context)));
    Ok(Context(context))
}
