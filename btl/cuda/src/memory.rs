// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kind of memory an address is.
//!
//! The driver tells all of it by one call. What it told is kept by allocation. An address may be freed and given out
//! again, so the allocation's number is compared each time. It is unique in a process. No answer is kept for memory
//! that the driver does not know.
//!
//! # Safety
//! Addresses are numbers that the driver looks up. It writes answers to variables of the types that it says.
#![allow(unsafe_code, reason = "calls of the driver")]

use crate::context::{Context, primary};
use crate::error::{Error, check};
use crate::host;
use crate::lane::Direction;
use crate::presence::driver;
use cuda_sys::*;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A kind of memory that the driver knows. All other memory is plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The host's, in place for devices. The processor may touch it; the kernel may refuse to let other processes.
    Pinned,
    /// It moves between host and devices.
    Managed,
    /// A device's. The processor must not touch it.
    Device,
}

/// An allocation that the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its kind.
    pub kind: Kind,
    /// The ordinal of its device.
    pub device: i32,
    /// Its number, which no other one in this process ever has.
    pub id: u64,
    /// Its first address.
    pub base: u64,
    /// Its bytes.
    pub len: u64,
    /// Null: memory of pools and of virtual addresses has none.
    context: Context,
}

impl Allocation {
    /// The bytes from `address` to its end.
    #[must_use]
    pub fn rest(&self, address: u64) -> u64 {
        let offset = address.wrapping_sub(self.base);
        self.len.saturating_sub(offset)
    }

    /// Whether the address is the first one behind it.
    pub(crate) fn ends_at(&self, address: u64) -> bool {
        self.base.wrapping_add(self.len) == address
    }

    /// Whether the address is one of it.
    #[must_use]
    pub fn has(&self, address: u64) -> bool {
        self.rest(address) > 0
    }

    /// Whether it is memory of the context that all of the process share on its device, or of none.
    pub(crate) fn is_shared(&self, driver: &'static Library) -> Result<bool, Error> {
        Ok(self.context.0.is_null() || self.context == primary(driver, self.device)?)
    }

    /// Whether it is of a context: memory of pools and of virtual addresses is not.
    pub(crate) fn is_of_a_context(&self) -> bool {
        !self.context.0.is_null()
    }

    /// The context in which it can be copied.
    pub(crate) fn context(&self, driver: &'static Library) -> Result<Context, Error> {
        if self.context.0.is_null() {
            return primary(driver, self.device);
        }
        Ok(self.context)
    }
}

/// Allocations that were looked up, in the order of their addresses.
struct Known {
    list: Vec<Allocation>,
    /// Which one goes next, when there are too many.
    hand: usize,
}

/// More are not kept. Chosen by magnitude: a binary search takes eight steps. A program that sends from more
/// allocations asks the driver again, which costs it some calls.
const MOST: usize = 256;

static KNOWN: Mutex<Known> = Mutex::new(Known {
    list: Vec::new(),
    hand: 0,
});

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn find(&self, address: u64) -> Option<Allocation> {
        let behind = self.list.partition_point(|known| known.base <= address);
        let found = *self.list.get(behind.checked_sub(1)?)?;
        found.has(address).then_some(found)
    }

    fn forget(&mut self, id: u64) {
        self.list.retain(|known| known.id != id);
    }

    fn keep(&mut self, new: Allocation) {
        let end = new.base.saturating_add(new.len);
        self.list
            .retain(|known| known.base >= end || known.base.saturating_add(known.len) <= new.base);
        if self.list.len() >= MOST {
            self.hand = (self.hand + 1) % self.list.len();
            self.list.remove(self.hand);
        }
        let place = self.list.partition_point(|known| known.base < new.base);
        self.list.insert(place, new);
    }
}

/// The allocation around an address; `None`: plain memory of the host.
///
/// # Errors
///
/// The driver cannot tell, since a context has failed for example, and the memory is none that the kernel reads.
pub fn of(address: u64) -> Result<Option<Allocation>, Error> {
    let Some(driver) = driver() else {
        return Ok(None);
    };
    let found = known().find(address);
    if let Some(found) = found {
        if id_at(driver, address) == Some(found.id) {
            return Ok(Some(found));
        }
        known().forget(found.id);
    }
    let asked = ask(driver, address)?;
    if let Some(new) = asked {
        known().keep(new);
    }
    Ok(asked)
}

/// The number of the allocation at an address.
pub(crate) fn id_at(driver: &Library, address: u64) -> Option<u64> {
    let mut id = 0u64;
    let place = (&raw mut id).cast();
    // SAFETY: the answer to this question is a number of 64 bits.
    let code =
        unsafe { (driver.cuPointerGetAttribute)(place, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) };
    (code == CUDA_SUCCESS).then_some(id)
}

/// Where the allocation around an address begins, and its bytes: of virtual memory what was mapped as one.
pub(crate) fn range_of(
    driver: &Library,
    address: u64,
    about: impl FnOnce() -> String,
) -> Result<(u64, u64), Error> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: the places for the answers are ours.
    let code = unsafe { (driver.cuMemGetAddressRange)(&raw mut base, &raw mut size, address) };
    check(driver, code, "cuMemGetAddressRange", about)?;
    Ok((base, size as u64))
}

fn ask(driver: &'static Library, address: u64) -> Result<Option<Allocation>, Error> {
    let mut answer = Answer::default();
    let mut code = answer.fill(driver, address);
    if code == CUDA_ERROR_INVALID_CONTEXT {
        // Some drivers want a context to ask in. Every device that has memory has one.
        for device in active(driver) {
            let _entered = primary(driver, device)?.enter(driver)?;
            code = answer.fill(driver, address);
            if code != CUDA_ERROR_INVALID_CONTEXT {
                break;
            }
        }
    }
    match code {
        // Memory of the host that the driver does not know, or a driver that nobody has initialised.
        CUDA_ERROR_INVALID_VALUE
        | CUDA_ERROR_NOT_INITIALIZED
        | CUDA_ERROR_INVALID_CONTEXT
        | CUDA_ERROR_NO_DEVICE
        | CUDA_ERROR_DEINITIALIZED => Ok(None),
        CUDA_SUCCESS => Ok(answer.allocation(address)),
        // A context that has failed answers nothing, of no address. What the kernel reads is memory of the host.
        _ if is_read_by_the_kernel(address) => Ok(None),
        code => {
            check(driver, code, "cuPointerGetAttributes", || {
                format!("address {address:#x}")
            })?;
            Ok(None)
        }
    }
}

/// Whether the kernel reads this process's memory at an address. Of a device's memory it refuses that, and of memory
/// that the driver has mapped itself. Where the call is forbidden nothing is known.
fn is_read_by_the_kernel(address: u64) -> bool {
    let mut byte = 0u8;
    // SAFETY: a variable of ours; the kernel checks the address.
    let read = unsafe { host::transfer(Direction::ToHost, &raw mut byte, address, 1) };
    matches!(read, Ok(1))
}

/// Devices whose shared context is there.
fn active(driver: &Library) -> Vec<i32> {
    let mut count: c_int = 0;
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.cuDeviceGetCount)(&raw mut count) };
    (0..count)
        .filter(|&device| {
            let (mut flags, mut active): (c_uint, c_int) = (0, 0);
            // SAFETY: the places for the answers are ours.
            let code = unsafe {
                (driver.cuDevicePrimaryCtxGetState)(device, &raw mut flags, &raw mut active)
            };
            code == CUDA_SUCCESS && active != 0
        })
        .collect()
}

/// What the driver tells of an address.
struct Answer {
    kind: c_uint,
    managed: c_uint,
    id: u64,
    context: CUcontext,
    device: c_int,
    base: u64,
    len: usize,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            kind: 0,
            managed: 0,
            id: 0,
            context: null_mut(),
            device: 0,
            base: 0,
            len: 0,
        }
    }
}

impl Answer {
    fn fill(&mut self, driver: &Library, address: u64) -> CUresult {
        let mut questions = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_BUFFER_ID,
            CU_POINTER_ATTRIBUTE_CONTEXT,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut places: [*mut c_void; 7] = [
            (&raw mut self.kind).cast(),
            (&raw mut self.managed).cast(),
            (&raw mut self.id).cast(),
            (&raw mut self.context).cast(),
            (&raw mut self.device).cast(),
            (&raw mut self.base).cast(),
            (&raw mut self.len).cast(),
        ];
        let count = questions.len() as c_uint;
        let (questions, places) = (questions.as_mut_ptr(), places.as_mut_ptr());
        // SAFETY: as many questions as places, each of the type of its answer.
        unsafe { (driver.cuPointerGetAttributes)(count, questions, places, address) }
    }

    fn allocation(&self, address: u64) -> Option<Allocation> {
        let kind = match (self.kind, self.managed) {
            (0, _) => return None,
            (_, 1..) => Kind::Managed,
            (CU_MEMORYTYPE_HOST, _) => Kind::Pinned,
            _ => Kind::Device,
        };
        // Without a range nothing is known beyond this byte.
        let (base, len) = match self.len {
            0 => (address, u64::MAX - address),
            len => (self.base, len as u64),
        };
        Some(Allocation {
            kind,
            device: self.device,
            id: self.id,
            base,
            len,
            context: Context(self.context),
        })
    }
}

/// An allocation of a test.
#[cfg(test)]
pub(crate) fn allocation(id: u64, base: u64, len: u64) -> Allocation {
    Allocation {
        kind: Kind::Device,
        device: 0,
        id,
        base,
        len,
        context: Context(null_mut()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_found_by_any_of_its_addresses_and_by_no_other() {
        let mut known = Known {
            list: Vec::new(),
            hand: 0,
        };
        known.keep(allocation(1, 100, 50));
        known.keep(allocation(2, 200, 50));
        let found = |known: &Known, address| known.find(address).map(|found| found.id);
        assert_eq!(found(&known, 99), None);
        assert_eq!(found(&known, 100), Some(1));
        assert_eq!(found(&known, 149), Some(1));
        assert_eq!(found(&known, 150), None);
        assert_eq!(found(&known, 249), Some(2));
        // A new one takes the place of those that it overlaps.
        known.keep(allocation(3, 140, 80));
        assert_eq!(found(&known, 100), None);
        assert_eq!(found(&known, 219), Some(3));
        known.forget(3);
        assert_eq!(found(&known, 140), None);
    }

    #[test]
    fn no_more_are_kept_than_the_bound() {
        let mut known = Known {
            list: Vec::new(),
            hand: 0,
        };
        for id in 0..10 * MOST as u64 {
            known.keep(allocation(id, id * 10, 10));
            assert_eq!(known.find(id * 10).map(|found| found.id), Some(id));
        }
        assert_eq!(known.list.len(), MOST);
        assert!(known.list.is_sorted_by_key(|known| known.base));
    }
}
