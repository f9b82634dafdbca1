// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening an allocation that a peer has shown, and closing it. Both may wait for a device.
//!
//! # Safety
//! A mapping is closed once, by its owner, when nobody copies from it any more. Places for answers are ours.
#![allow(unsafe_code, reason = "calls of the driver")]

use super::offer::{HANDLE, Shown};
use crate::context::ContextId;
use crate::error::{Error, check};
use cuda_sys::*;
use std::ffi::c_char;

/// What tells one mapping from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) peer: u32,
    /// The own device, and the context in which it is open.
    pub(super) context: ContextId,
    pub(super) base: u64,
    pub(super) size: u64,
    /// The allocation's number in the peer's process.
    pub(super) id: u64,
    pub(super) handle: [u8; HANDLE],
}

impl Key {
    pub(super) fn of(peer: u32, context: ContextId, shown: &Shown) -> Self {
        Self {
            peer,
            context,
            base: shown.base,
            size: shown.size,
            id: shown.id,
            handle: shown.handle,
        }
    }

    /// Whether the other one is gone since this one is there. Both have the same place, or the own device has another
    /// context.
    pub(super) fn replaces(&self, other: &Self) -> bool {
        let is_here = self.context.device == other.context.device;
        let is_same_place = (self.peer, self.base) == (other.peer, other.base);
        self != other && is_here && (is_same_place || self.context != other.context)
    }
}

/// Opens what a peer has shown, and looks whether all of it is there.
pub(super) fn open(driver: &'static Library, key: &Key) -> Result<u64, Error> {
    let about = || format!("{} bytes of rank {}", key.size, key.peer);
    let _entered = key.context.enter(driver)?;
    let handle = CUipcMemHandle {
        reserved: key.handle.map(|byte| byte as c_char),
    };
    let mut address = 0;
    let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    // SAFETY: the place for the answer is ours; the driver looks at the handle.
    let code = unsafe { (driver.cuIpcOpenMemHandle)(&raw mut address, handle, flags) };
    check(driver, code, "cuIpcOpenMemHandle", about)?;
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: the places for the answers are ours.
    let code = unsafe { (driver.cuMemGetAddressRange)(&raw mut base, &raw mut bytes, address) };
    let found = check(driver, code, "cuMemGetAddressRange", about);
    let end = base.checked_add(bytes as u64);
    let wanted = address.checked_add(key.size);
    let is_whole = base <= address && wanted.is_some_and(|wanted| Some(wanted) <= end);
    if found.is_ok() && is_whole {
        return Ok(address);
    }
    let _ = close(driver, key.context, address);
    found?;
    Err(Error::ours(
        "cuIpcOpenMemHandle",
        about(),
        "the mapping is shorter than what was offered",
        "nothing is lost: the message goes through host memory",
    ))
}

/// Closes a mapping. In another context something else may be at its address.
pub(super) fn close(
    driver: &'static Library,
    context: ContextId,
    address: u64,
) -> Result<(), Error> {
    let _entered = context.enter(driver)?;
    // SAFETY: an opened mapping, from which nobody copies any more.
    let code = unsafe { (driver.cuIpcCloseMemHandle)(address) };
    check(driver, code, "cuIpcCloseMemHandle", || {
        format!("the mapping at {address:#x}")
    })
}
