// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine has of CUDA, for people.
//!
//! # Safety
//! Each question is answered in a variable of ours, of the type that the driver says.
#![allow(unsafe_code, reason = "calls of the driver")]

use crate::error::check;
use cuda_sys::*;
use std::ffi::{CStr, c_char, c_int};

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its ordinal.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its address on the bus.
    pub bus: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Whether another device can use its memory, by ordinal.
    pub peers: Vec<i32>,
    /// Whether virtual memory can be shown to other processes by file descriptors.
    pub shows_virtual: bool,
    /// The same of memory of pools.
    pub shows_pools: bool,
}

/// The driver and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The version of CUDA that the driver has.
    pub version: (i32, i32),
    /// The devices.
    pub devices: Vec<Device>,
}

/// Loads the driver and asks it.
///
/// # Errors
///
/// Why there is none, and what would help.
pub fn survey() -> Result<Survey, String> {
    let driver = Library::load().map_err(ToString::to_string)?;
    let mut version: c_int = 0;
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.cuDriverGetVersion)(&raw mut version) };
    // SAFETY: no flag is defined.
    let code = unsafe { (driver.cuInit)(0) };
    check(driver, code, "cuInit", || "the driver".into()).map_err(|error| error.to_string())?;
    let mut count: c_int = 0;
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.cuDeviceGetCount)(&raw mut count) };
    Ok(Survey {
        version: (version / 1000, version % 1000 / 10),
        devices: (0..count)
            .map(|ordinal| device(driver, ordinal, count))
            .collect(),
    })
}

fn device(driver: &Library, ordinal: i32, count: i32) -> Device {
    let mut handle: CUdevice = 0;
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.cuDeviceGet)(&raw mut handle, ordinal) };
    let (mut name, mut bus) = ([0 as c_char; 256], [0 as c_char; 32]);
    // SAFETY: the text is no longer than its place.
    unsafe { (driver.cuDeviceGetName)(name.as_mut_ptr(), name.len() as c_int - 1, handle) };
    // SAFETY: as above.
    unsafe { (driver.cuDeviceGetPCIBusId)(bus.as_mut_ptr(), bus.len() as c_int - 1, handle) };
    let mut memory = 0usize;
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.cuDeviceTotalMem)(&raw mut memory, handle) };
    let attribute = |attribute| {
        let mut value: c_int = 0;
        // SAFETY: the place for the answer is ours.
        unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, attribute, handle) };
        value
    };
    let reaches = |peer: &i32| {
        let mut can: c_int = 0;
        // SAFETY: the place for the answer is ours; ordinals are handles.
        unsafe { (driver.cuDeviceCanAccessPeer)(&raw mut can, *peer, handle) };
        can != 0
    };
    Device {
        ordinal,
        name: text(&name),
        bus: text(&bus),
        memory: memory as u64,
        capability: (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        peers: (0..count)
            .filter(|peer| *peer != ordinal)
            .filter(reaches)
            .collect(),
        shows_virtual: attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
            != 0,
        shows_pools: attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)
            & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as c_int
            != 0,
    }
}

fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&c| c as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}
