// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which device is meant: ordinals differ between processes, numbers in the world do not.
//!
//! # Safety
//! Each question is answered in a variable of ours, of the type that the driver says.
#![allow(unsafe_code, reason = "calls of the driver")]

use cuda_sys::{CUDA_SUCCESS, CUuuid, Library};
use std::ffi::c_int;
use std::sync::OnceLock;

type Number = [u8; 16];

/// The numbers of all devices that this process sees, by ordinal. Empty: the driver is too old to tell.
fn all(driver: &'static Library) -> &'static [Number] {
    static ALL: OnceLock<Vec<Number>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut count: c_int = 0;
        // SAFETY: the place for the answer is ours.
        unsafe { (driver.cuDeviceGetCount)(&raw mut count) };
        (0..count).map_while(|device| ask(driver, device)).collect()
    })
}

fn ask(driver: &Library, device: c_int) -> Option<Number> {
    let mut uuid = CUuuid::default();
    // SAFETY: the place for the answer is ours.
    let code = unsafe { (driver.cuDeviceGetUuid?)(&raw mut uuid, device) };
    (code == CUDA_SUCCESS).then(|| uuid.bytes.map(|byte| byte as u8))
}

/// The number of a device.
pub(super) fn of(driver: &'static Library, device: i32) -> Option<Number> {
    all(driver).get(usize::try_from(device).ok()?).copied()
}

/// The device of a number, if this process sees it.
pub(super) fn find(driver: &'static Library, number: &Number) -> Option<i32> {
    let index = all(driver).iter().position(|known| known == number)?;
    i32::try_from(index).ok()
}

/// Whether a device can use another one's memory, or both are the same.
pub(super) fn reaches(driver: &Library, device: i32, other: i32) -> bool {
    if device == other {
        return true;
    }
    let mut can: c_int = 0;
    // SAFETY: the place for the answer is ours; ordinals are handles.
    let code = unsafe { (driver.cuDeviceCanAccessPeer)(&raw mut can, device, other) };
    code == CUDA_SUCCESS && can != 0
}
