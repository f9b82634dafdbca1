// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process shows to others by a descriptor: physical memory behind virtual addresses, and pools.
//!
//! *Physical memory.* The driver gives its handle for an address: the very one by which it was mapped. No other memory
//! has that handle while somebody holds it. So one is held here for as long as the export is kept, and the export's
//! number stands for the memory. That number never comes again.
//!
//! *A pool* cannot be held, and its handle may be another one's once it is destroyed. A send keeps an allocation of it
//! in use, and so the pool, but an offer may outlive its send by a little. So another offer shares the export only
//! while the allocation is there for which it was made. Its number is unique in a process, says the driver's manual.
//!
//! # Safety
//! Handles come from the driver, and are released once. In another context than that of the export they are not touched
//! any more. A descriptor that the driver has made is ours alone. Places for answers are ours.
#![allow(unsafe_code, reason = "calls of the driver")]

use super::handle::{HANDLE, Handle};
use super::{helper, most};
use crate::context::ContextId;
use crate::error::{Error, STAGED, check, needed};
use crate::memory::{self, Allocation, range_of};
use crate::pipeline::lock;
use cuda_sys::*;
use onecopy_shm::sync::{AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, Weak};

/// Exports of physical memory that are kept, as far as the user permits so many. Chosen by magnitude: each keeps a
/// descriptor open, and memory that the program has freed with its device.
const KEPT: usize = 32;

/// Descriptors at most that are open for exports. What is dropped is closed a little later, so there is room for more
/// than are kept.
const MOST: usize = 64;

/// Refusals that are remembered. Chosen by magnitude, as in `memory.rs`.
const REFUSED: usize = 256;

/// Descriptors that are open for exports.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A descriptor of an export. It counts until it is closed.
#[derive(Debug)]
struct Descriptor(OwnedFd);

impl Drop for Descriptor {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A pool, as the driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool(pub(super) CUmemoryPool);

// SAFETY: the driver takes a pool's handle from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

#[derive(Clone, Copy, Debug)]
enum What {
    Memory {
        handle: CUmemGenericAllocationHandle,
        /// It never comes again.
        number: u64,
        /// Where it was seen to begin.
        base: u64,
    },
    Pool {
        pool: Pool,
        /// An allocation of it that was there: where it begins, and its number.
        base: u64,
        id: u64,
    },
}

/// What other processes may open by a descriptor.
#[derive(Debug)]
pub(super) struct Export {
    what: What,
    context: ContextId,
    /// Taken at the end.
    descriptor: Option<Descriptor>,
    driver: &'static Library,
}

impl Export {
    fn new(
        driver: &'static Library,
        what: What,
        context: ContextId,
        descriptor: Descriptor,
    ) -> Arc<Self> {
        Arc::new(Self {
            what,
            context,
            descriptor: Some(descriptor),
            driver,
        })
    }

    /// The number of physical memory, if it is of this handle.
    fn number_of(&self, memory: CUmemGenericAllocationHandle) -> Option<u64> {
        match self.what {
            What::Memory { handle, number, .. } => (handle == memory).then_some(number),
            What::Pool { .. } => None,
        }
    }

    /// Whether it is of the pool that has this handle now.
    fn is_of(&self, pool: Pool) -> bool {
        match self.what {
            What::Pool {
                pool: own,
                base,
                id,
            } => own == pool && memory::id_at(self.driver, base) == Some(id),
            What::Memory { .. } => false,
        }
    }

    fn fd(&self) -> c_int {
        self.descriptor
            .as_ref()
            .map_or(-1, |descriptor| descriptor.0.as_raw_fd())
    }
}

impl Drop for Export {
    /// It may have been the last to hold memory that the program has freed. To give that back may wait for the device.
    fn drop(&mut self) {
        let (driver, what, context) = (self.driver, self.what, self.context);
        let descriptor = self.descriptor.take();
        helper::leave(Box::new(move || {
            drop(descriptor);
            if let What::Memory { handle, .. } = what
                && let Ok(_entered) = context.enter(driver)
            {
                release(driver, handle);
            }
        }));
    }
}

/// An export of the memory at an address.
#[derive(Debug)]
pub(super) struct Exported {
    /// Kept until no receive needs the descriptor any more.
    pub(super) export: Arc<Export>,
    pub(super) handle: Handle,
    /// What tells this memory from all other of this process.
    pub(super) id: u64,
    pub(super) base: u64,
    pub(super) size: u64,
}

struct Exports {
    /// The most recently used stands last.
    memory: Vec<Arc<Export>>,
    pools: Vec<Weak<Export>>,
    /// Allocations of pools that the driver shows to nobody, by their numbers.
    refused: VecDeque<(u64, Error)>,
}

static EXPORTS: Mutex<Exports> = Mutex::new(Exports {
    memory: Vec::new(),
    pools: Vec::new(),
    refused: VecDeque::new(),
});

/// Ends what is kept.
pub(super) fn end() {
    let kept = std::mem::take(&mut lock(&EXPORTS).memory);
    drop(kept);
}

/// The pool from which the memory at an address is, if it is from one.
fn pool_of(driver: &Library, address: u64) -> Option<Pool> {
    let mut pool: CUmemoryPool = null_mut();
    let (place, question) = ((&raw mut pool).cast(), CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
    // SAFETY: the answer to this question is a pool's handle.
    let code = unsafe { (driver.cuPointerGetAttribute)(place, question, address) };
    (code == CUDA_SUCCESS && !pool.is_null()).then_some(Pool(pool))
}

/// Shows `len` bytes at an address of memory that has no handle of the older kind.
pub(super) fn of(
    driver: &'static Library,
    allocation: &Allocation,
    (address, len): (u64, u64),
) -> Result<Exported, Error> {
    let about = || format!("{len} bytes at {address:#x}");
    let (id, device) = (allocation.id, allocation.device);
    if let Some(error) = lock(&EXPORTS).refusal(id) {
        return Err(error);
    }
    let context = ContextId::of(driver, device)?;
    let _entered = context.enter(driver)?;
    let (base, size) = range_of(driver, address, about)?;
    let offset = address.wrapping_sub(base);
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(Error::ours(
            "cuMemGetAddressRange",
            about(),
            "they lie in several allocations",
            STAGED,
        ));
    }
    let (export, handle, id) = match pool_of(driver, address) {
        Some(pool) => {
            let mut exports = lock(&EXPORTS);
            let export = exports.pool(driver, (pool, base, id), context);
            let export = export.inspect_err(|error| exports.refused(id, error))?;
            drop(exports);
            let (fd, data) = (export.fd(), pointer(driver, base)?);
            (export, Handle::Pool { fd, data }, id)
        }
        None => {
            let (export, number) = physical(driver, (address, base), context)?;
            let fd = export.fd();
            (export, Handle::Memory { fd }, number)
        }
    };
    Ok(Exported {
        export,
        handle,
        id,
        base,
        size,
    })
}

/// What names an allocation of a pool to another process.
fn pointer(driver: &Library, base: u64) -> Result<[u8; HANDLE], Error> {
    let export = needed(driver.cuMemPoolExportPointer, "cuMemPoolExportPointer")?;
    let mut data = CUmemPoolPtrExportData {
        reserved: [0; HANDLE],
    };
    // SAFETY: the place for the answer is ours; the driver looks the address up.
    let code = unsafe { export(&raw mut data, base) };
    check(driver, code, "cuMemPoolExportPointer", || {
        format!("the allocation at {base:#x}")
    })?;
    Ok(data.reserved)
}

/// A hold on physical memory.
struct Held {
    driver: &'static Library,
    handle: CUmemGenericAllocationHandle,
}

impl Held {
    fn at(driver: &'static Library, address: u64) -> Result<Self, Error> {
        let function = driver.cuMemRetainAllocationHandle;
        let retain = needed(function, "cuMemRetainAllocationHandle")?;
        let mut handle = 0;
        let place = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: the place for the answer is ours; the driver looks the address up.
        let code = unsafe { retain(&raw mut handle, place) };
        check(driver, code, "cuMemRetainAllocationHandle", || {
            format!("address {address:#x}")
        })?;
        Ok(Self { driver, handle })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        release(self.driver, self.handle);
    }
}

/// Ends one hold on physical memory.
fn release(driver: &Library, handle: CUmemGenericAllocationHandle) {
    if let Some(release) = driver.cuMemRelease {
        // SAFETY: a hold of ours, which ends once. What is not released ends with the process.
        let _ = unsafe { release(handle) };
    }
}

/// The export of the physical memory at an address, and its number.
fn physical(
    driver: &'static Library,
    (address, base): (u64, u64),
    context: ContextId,
) -> Result<(Arc<Export>, u64), Error> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let held = Held::at(driver, address)?;
    if Held::at(driver, base)?.handle != held.handle {
        return Err(Error::ours(
            "cuMemRetainAllocationHandle",
            format!("addresses {base:#x} and {address:#x}"),
            "the driver names one range for two allocations",
            STAGED,
        ));
    }
    let mut exports = lock(&EXPORTS);
    if let Some(known) = exports.known(held.handle, context) {
        return Ok(known);
    }
    refuse_unshareable(driver, &held)?;
    exports.sweep(driver);
    let shared = |to: *mut c_void| {
        let function = driver.cuMemExportToShareableHandle;
        let call = "cuMemExportToShareableHandle";
        // SAFETY: a handle that is held; the answer to this type is a descriptor's number.
        let code = unsafe { needed(function, call)?(to, held.handle, DESCRIPTOR, 0) };
        check(driver, code, call, || format!("the memory at {base:#x}"))
    };
    let descriptor = descriptor(shared)?;
    let (handle, number) = (held.handle, LAST.fetch_add(1, Ordering::Relaxed) + 1);
    // From here on the hold is the export's.
    std::mem::forget(held);
    let what = What::Memory {
        handle,
        number,
        base,
    };
    let export = Export::new(driver, what, context, descriptor);
    exports.memory.push(Arc::clone(&export));
    let least_used = exports.memory.len().saturating_sub(most().clamp(1, KEPT));
    exports.memory.drain(..least_used);
    Ok((export, number))
}

/// The kind of descriptors that are shown.
pub(super) const DESCRIPTOR: CUmemAllocationHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// An error: memory that was not made to be shown by a descriptor, or is in no device.
fn refuse_unshareable(driver: &'static Library, held: &Held) -> Result<(), Error> {
    let call = "cuMemGetAllocationPropertiesFromHandle";
    let about = || "virtual memory".to_owned();
    // SAFETY: numbers and a pointer, of which zero is a value.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    let function = needed(driver.cuMemGetAllocationPropertiesFromHandle, call)?;
    // SAFETY: a handle that is held; the place for the answer is ours.
    let code = unsafe { function(&raw mut prop, held.handle) };
    check(driver, code, call, about)?;
    let is_shown = prop.requestedHandleTypes & DESCRIPTOR != 0;
    match is_shown && prop.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE {
        true => Ok(()),
        false => Err(Error::ours(
            call,
            about(),
            "it was not made to be shown by a descriptor",
            "ask cuMemCreate for CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
        )),
    }
}

/// A descriptor that the driver writes to a place.
fn descriptor(shared: impl FnOnce(*mut c_void) -> Result<(), Error>) -> Result<Descriptor, Error> {
    let about = "a descriptor for another process";
    let before = OPEN.fetch_add(1, Ordering::Relaxed);
    let refused = |name: &str| {
        OPEN.fetch_sub(1, Ordering::Relaxed);
        Err(Error::ours("an export", about.to_owned(), name, STAGED))
    };
    if before >= MOST {
        return refused("as many are open as there may be");
    }
    let mut fd: c_int = -1;
    if let Err(error) = shared((&raw mut fd).cast()) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
        return Err(error);
    }
    if fd < 0 {
        return refused("the driver has given none");
    }
    // SAFETY: the driver has just made it for us.
    let descriptor = Descriptor(unsafe { OwnedFd::from_raw_fd(fd) });
    // A program that the process executes has no use for it. SAFETY: the call touches no memory.
    let _ = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    Ok(descriptor)
}

impl Exports {
    /// An export of physical memory that is kept, and its number.
    fn known(
        &mut self,
        handle: CUmemGenericAllocationHandle,
        context: ContextId,
    ) -> Option<(Arc<Export>, u64)> {
        let (index, number) = self.memory.iter().enumerate().find_map(|(index, export)| {
            let number = export.number_of(handle)?;
            (export.context == context).then_some((index, number))
        })?;
        let found = self.memory.remove(index);
        self.memory.push(Arc::clone(&found));
        Some((found, number))
    }

    /// Ends what is not where it was: the program has most likely freed it.
    fn sweep(&mut self, driver: &'static Library) {
        self.memory.retain(|export| match export.what {
            What::Memory { handle, base, .. } => {
                Held::at(driver, base).is_ok_and(|now| now.handle == handle)
            }
            What::Pool { .. } => false,
        });
    }

    /// Why the driver shows an allocation of a pool to nobody.
    fn refusal(&self, id: u64) -> Option<Error> {
        let known = self.refused.iter().find(|(known, _)| *known == id);
        known.map(|(_, error)| error.clone())
    }

    /// The driver does not show an allocation of a pool. If that is about the pool, it would say so each time.
    fn refused(&mut self, id: u64, error: &Error) {
        let is_of_the_pool = matches!(
            error.code,
            CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_PERMITTED | CUDA_ERROR_NOT_SUPPORTED
        );
        if is_of_the_pool {
            self.refused.truncate(REFUSED - 1);
            self.refused.push_front((id, error.clone()));
        }
    }

    fn pool(
        &mut self,
        driver: &'static Library,
        (pool, base, id): (Pool, u64, u64),
        context: ContextId,
    ) -> Result<Arc<Export>, Error> {
        self.pools.retain(|export| export.strong_count() > 0);
        let mut live = self.pools.iter().filter_map(Weak::upgrade);
        if let Some(known) = live.find(|it| it.context == context && it.is_of(pool)) {
            return Ok(known);
        }
        let shared = |to: *mut c_void| {
            let function = driver.cuMemPoolExportToShareableHandle;
            let call = "cuMemPoolExportToShareableHandle";
            // SAFETY: a pool that has memory in use; the answer to this type is a descriptor's number.
            let code = unsafe { needed(function, call)?(to, pool.0, DESCRIPTOR, 0) };
            check(driver, code, call, || format!("the pool of {base:#x}"))
        };
        let what = What::Pool { pool, base, id };
        let export = Export::new(driver, what, context, descriptor(shared)?);
        self.pools.push(Arc::downgrade(&export));
        Ok(export)
    }
}
