// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening an allocation that a peer has shown, and closing it. Both may wait for a device.
//!
//! # Safety
//! A mapping is closed once, by its owner, when nobody copies from it any more. What was made before a step that fails
//! is undone. Places for answers are ours.
#![allow(unsafe_code, reason = "calls of the driver")]

use super::export::{DESCRIPTOR, Pool};
use super::handle::{HANDLE, Handle};
use super::offer::Shown;
use super::process::{self, Refusal};
use crate::context::ContextId;
use crate::error::{Error, STAGED, check, needed};
use crate::lane::Lane;
use crate::memory::range_of;
use cuda_sys::*;
use std::ffi::{c_char, c_void};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// What tells one mapping from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) peer: u32,
    /// The own device, and the context in which it is open.
    pub(super) context: ContextId,
    /// The ordinal here of the device that has the memory.
    pub(super) device: i32,
    pub(super) base: u64,
    pub(super) size: u64,
    /// The allocation's number in the peer's process.
    pub(super) id: u64,
    pub(super) handle: Handle,
}

impl Key {
    pub(super) fn of(peer: u32, context: ContextId, device: i32, shown: &Shown) -> Self {
        Self {
            peer,
            context,
            device,
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

    /// Whether both may be one allocation of a pool. A peer's word alone tells that, so one thing in common is enough:
    /// no two allocations of a correct peer have any. The pool's descriptor may have several numbers.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        let [(_, data), (_, other_data)] = [self, other].map(|key| key.handle.encode());
        let has_same = self.id == other.id || self.base == other.base || data == other_data;
        self.peer == other.peer && has_same
    }

    /// Whether it may stay open when its message is over. Memory of a pool may not: its owner may give it back then,
    /// and only if nobody else has it open.
    pub(super) fn stays(&self) -> bool {
        !matches!(self.handle, Handle::Pool { .. })
    }

    /// Whether a refusal says nothing of others like it.
    pub(super) fn is_refused_alone(&self, refusal: &Refusal) -> bool {
        match refusal {
            Refusal::Late(_) => true,
            // Only of handles does the driver open no more than so many. Else it may be the size that was offered.
            Refusal::Driver(error) => {
                !matches!(self.handle, Handle::Ipc(_)) && error.code == CUDA_ERROR_OUT_OF_MEMORY
            }
            Refusal::Process(_) => false,
        }
    }
}

/// A mapping that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    Ipc(u64),
    /// Addresses of ours, with a peer's memory.
    Memory(u64),
    Pool {
        pool: Pool,
        address: u64,
    },
    /// The same, once the allocation was given back.
    Empty(Pool),
}

impl Opened {
    /// Its first byte, if there is one.
    pub(super) fn address(self) -> Option<u64> {
        match self {
            Self::Ipc(address) | Self::Memory(address) | Self::Pool { address, .. } => {
                Some(address)
            }
            Self::Empty(_) => None,
        }
    }
}

/// Opens what a peer has shown, and looks whether all of it is there.
pub(super) fn open(driver: &'static Library, key: &Key) -> Result<Opened, Refusal> {
    let _entered = key.context.enter(driver)?;
    let opened = match key.handle {
        Handle::Ipc(bytes) => open_handle(driver, key, bytes)?,
        // What the driver maps is as long as was asked for, or it maps nothing.
        Handle::Memory { fd } => return open_memory(driver, key, fd),
        Handle::Pool { fd, data } => open_pool(driver, key, fd, data)?,
    };
    match is_whole(driver, key, opened) {
        Ok(()) => Ok(opened),
        Err(error) => {
            let _ = undo(driver, key, opened);
            Err(error.into())
        }
    }
}

fn about(key: &Key) -> String {
    format!("{} bytes of rank {}", key.size, key.peer)
}

fn open_handle(driver: &'static Library, key: &Key, bytes: [u8; HANDLE]) -> Result<Opened, Error> {
    let handle = CUipcMemHandle {
        reserved: bytes.map(|byte| byte as c_char),
    };
    let mut address = 0;
    let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    // SAFETY: the place for the answer is ours; the driver looks at the handle.
    let code = unsafe { (driver.cuIpcOpenMemHandle)(&raw mut address, handle, flags) };
    check(driver, code, "cuIpcOpenMemHandle", || about(key))?;
    Ok(Opened::Ipc(address))
}

/// An error: a mapping is shorter than what was offered.
fn is_whole(driver: &'static Library, key: &Key, opened: Opened) -> Result<(), Error> {
    let address = opened.address().unwrap_or(0);
    let (base, bytes) = range_of(driver, address, || about(key))?;
    let end = base.checked_add(bytes);
    let wanted = address.checked_add(key.size);
    if base <= address && wanted.is_some_and(|wanted| Some(wanted) <= end) {
        return Ok(());
    }
    Err(Error::ours(
        "cuMemGetAddressRange",
        about(key),
        "the mapping is shorter than what was offered",
        STAGED,
    ))
}

/// The driver's form of a descriptor that it is to import.
fn descriptor(fd: &impl AsRawFd) -> *mut c_void {
    std::ptr::without_provenance_mut(fd.as_raw_fd() as usize)
}

/// How a device uses memory.
fn access_of(device: i32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: CUmemLocation {
            type_: CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

fn open_memory(driver: &'static Library, key: &Key, fd: i32) -> Result<Opened, Refusal> {
    let call = "cuMemImportFromShareableHandle";
    let import = needed(driver.cuMemImportFromShareableHandle, call)?;
    let release = needed(driver.cuMemRelease, "cuMemRelease")?;
    let fd = process::take(key.peer, fd)?;
    let mut memory = 0;
    // SAFETY: the place for the answer is ours; the driver looks at the descriptor.
    let code = unsafe { import(&raw mut memory, descriptor(&fd), DESCRIPTOR) };
    check(driver, code, call, || about(key))?;
    drop(fd);
    let mapped = map(driver, key, memory);
    // SAFETY: what was just imported, once. A mapping keeps the memory.
    let _ = unsafe { release(memory) };
    Ok(mapped?)
}

/// Maps physical memory to addresses of ours.
fn map(
    driver: &'static Library,
    key: &Key,
    memory: CUmemGenericAllocationHandle,
) -> Result<Opened, Error> {
    let reserve = needed(driver.cuMemAddressReserve, "cuMemAddressReserve")?;
    let map = needed(driver.cuMemMap, "cuMemMap")?;
    let permit = needed(driver.cuMemSetAccess, "cuMemSetAccess")?;
    let size = key.size as usize;
    let mut address = 0;
    // SAFETY: the place for the answer is ours.
    let code = unsafe { reserve(&raw mut address, size, 0, 0, 0) };
    check(driver, code, "cuMemAddressReserve", || about(key))?;
    // SAFETY: addresses that were just reserved, and memory that was imported. The driver compares the sizes.
    let code = unsafe { map(address, size, 0, memory, 0) };
    if let Err(error) = check(driver, code, "cuMemMap", || about(key)) {
        let _ = free_addresses(driver, address, size);
        return Err(error);
    }
    let access = access_of(key.context.device);
    // SAFETY: what was just mapped, and one description of ours.
    let code = unsafe { permit(address, size, &raw const access, 1) };
    let opened = Opened::Memory(address);
    if let Err(error) = check(driver, code, "cuMemSetAccess", || about(key)) {
        let _ = undo(driver, key, opened);
        return Err(error);
    }
    Ok(opened)
}

fn free_addresses(driver: &'static Library, address: u64, size: usize) -> Result<(), Error> {
    let free = needed(driver.cuMemAddressFree, "cuMemAddressFree")?;
    // SAFETY: addresses that were reserved so, once, with nothing there.
    let code = unsafe { free(address, size) };
    check(driver, code, "cuMemAddressFree", || {
        format!("the addresses from {address:#x}")
    })
}

fn open_pool(
    driver: &'static Library,
    key: &Key,
    fd: i32,
    data: [u8; HANDLE],
) -> Result<Opened, Refusal> {
    let call = "cuMemPoolImportFromShareableHandle";
    let import = needed(driver.cuMemPoolImportFromShareableHandle, call)?;
    let fd = process::take(key.peer, fd)?;
    let mut pool = null_mut();
    // SAFETY: the place for the answer is ours; the driver looks at the descriptor.
    let code = unsafe { import(&raw mut pool, descriptor(&fd), DESCRIPTOR, 0) };
    check(driver, code, call, || about(key))?;
    drop(fd);
    let pool = Pool(pool);
    let opened = match point(driver, key, pool, data) {
        Ok(opened) => opened,
        Err(error) => {
            let _ = undo(driver, key, Opened::Empty(pool));
            return Err(error.into());
        }
    };
    if let Err(error) = is_of_device(driver, key, opened) {
        let _ = undo(driver, key, opened);
        return Err(error.into());
    }
    Ok(opened)
}

/// An error: the memory is of another device than was offered, so that nobody has asked for access to it. A copy would
/// break the context.
fn is_of_device(driver: &'static Library, key: &Key, opened: Opened) -> Result<(), Error> {
    let (call, address) = ("cuPointerGetAttribute", opened.address().unwrap_or(0));
    let (mut device, question) = (-1_i32, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    let place = (&raw mut device).cast();
    // SAFETY: the place for the answer is ours, and has the type of an ordinal.
    let code = unsafe { (driver.cuPointerGetAttribute)(place, question, address) };
    check(driver, code, call, || about(key))?;
    if device == key.device {
        return Ok(());
    }
    Err(Error::ours(
        call,
        about(key),
        "the memory is of another device than was offered",
        STAGED,
    ))
}

/// Imports an allocation of a pool.
fn point(
    driver: &'static Library,
    key: &Key,
    pool: Pool,
    data: [u8; HANDLE],
) -> Result<Opened, Error> {
    let call = "cuMemPoolImportPointer";
    let import = needed(driver.cuMemPoolImportPointer, call)?;
    // Memory of an imported pool is in reach of its own device, and of those that are named.
    if key.device != key.context.device {
        let permit = needed(driver.cuMemPoolSetAccess, "cuMemPoolSetAccess")?;
        let access = access_of(key.context.device);
        // SAFETY: a pool that was just imported, and one description of ours.
        let code = unsafe { permit(pool.0, &raw const access, 1) };
        check(driver, code, "cuMemPoolSetAccess", || about(key))?;
    }
    let mut data = CUmemPoolPtrExportData { reserved: data };
    let mut address = 0;
    // SAFETY: the places are ours; the driver looks at what is in them.
    let code = unsafe { import(&raw mut address, pool.0, &raw mut data) };
    check(driver, code, call, || about(key))?;
    Ok(Opened::Pool { pool, address })
}

/// Gives memory of a pool back, behind what the lane copies. Other mappings stay.
pub(super) fn give_back(opened: &mut Opened, lane: &Lane) -> Result<(), Error> {
    if let Opened::Pool { pool, address } = *opened {
        // SAFETY: it was imported for one message, whose copy is in this lane. It is given back once, as is noted.
        unsafe { lane.free_between(address) }?;
        *opened = Opened::Empty(pool);
    }
    Ok(())
}

/// Closes a mapping. In another context something else may be at its address.
pub(super) fn close(driver: &'static Library, key: &Key, opened: Opened) -> Result<(), Error> {
    let _entered = key.context.enter(driver)?;
    undo(driver, key, opened)
}

/// The same, in the context.
fn undo(driver: &'static Library, key: &Key, opened: Opened) -> Result<(), Error> {
    match opened {
        Opened::Ipc(address) => {
            // SAFETY: an opened mapping, from which nobody copies any more.
            let code = unsafe { (driver.cuIpcCloseMemHandle)(address) };
            check(driver, code, "cuIpcCloseMemHandle", || {
                format!("the mapping at {address:#x}")
            })
        }
        Opened::Memory(address) => {
            let unmap = needed(driver.cuMemUnmap, "cuMemUnmap")?;
            let size = key.size as usize;
            // SAFETY: a mapping of ours as a whole, from which nobody copies any more.
            let code = unsafe { unmap(address, size) };
            check(driver, code, "cuMemUnmap", || {
                format!("the mapping at {address:#x}")
            })?;
            free_addresses(driver, address, size)
        }
        Opened::Pool { pool, address } => {
            // SAFETY: an imported allocation, from which nobody copies any more.
            let code = unsafe { (driver.cuMemFree)(address) };
            let freed = check(driver, code, "cuMemFree", || {
                format!("the imported allocation at {address:#x}")
            });
            freed.and(undo(driver, key, Opened::Empty(pool)))
        }
        Opened::Empty(pool) => {
            let destroy = needed(driver.cuMemPoolDestroy, "cuMemPoolDestroy")?;
            // SAFETY: an imported pool, once. What is given back in a queue ends first, says the driver's manual.
            let code = unsafe { destroy(pool.0) };
            check(driver, code, "cuMemPoolDestroy", || {
                "an imported pool".into()
            })
        }
    }
}
