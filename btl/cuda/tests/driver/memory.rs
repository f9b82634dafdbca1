// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools and virtual memory in a test. Included by tests, beside `harness`.
//!
//! # Safety
//! Functions of the driver beside this file, called as its header says.
#![allow(unsafe_code, reason = "calls of the driver")]
#![allow(dead_code, reason = "each test program uses a part")]

use crate::harness::Driver;
use cuda_sys::*;
use std::ptr::null_mut;

/// How memory of a test may be shown to other processes.
pub(crate) const NOT_SHOWN: u32 = CU_MEM_HANDLE_TYPE_NONE;
pub(crate) const BY_DESCRIPTOR: u32 = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn here() -> CUmemLocation {
    on(0)
}

fn on(device: i32) -> CUmemLocation {
    CUmemLocation {
        type_: CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

fn good(code: CUresult) {
    assert_eq!(code, CUDA_SUCCESS);
}

impl Driver {
    pub(crate) fn pool(&self, kind: u32) -> CUmemoryPool {
        self.pool_on(0, kind)
    }

    pub(crate) fn pool_on(&self, device: i32, kind: u32) -> CUmemoryPool {
        let props = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: kind,
            location: on(device),
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let (mut pool, create) = (null_mut(), self.library.cuMemPoolCreate.expect("pools"));
        // SAFETY: the place for the answer is ours.
        good(unsafe { create(&raw mut pool, &raw const props) });
        pool
    }

    pub(crate) fn end_pool(&self, pool: CUmemoryPool) {
        // SAFETY: a pool of this test.
        good(unsafe { self.library.cuMemPoolDestroy.expect("pools")(pool) });
    }

    pub(crate) fn alloc_from(&self, pool: CUmemoryPool, len: usize) -> u64 {
        let (mut address, stream) = (0, std::ptr::without_provenance_mut(2));
        let alloc = self.library.cuMemAllocFromPoolAsync.expect("pools");
        // SAFETY: the place for the answer is ours; the stream is the thread's own.
        good(unsafe { alloc(&raw mut address, len, pool, stream) });
        address
    }

    /// Addresses without memory.
    pub(crate) fn reserve(&self, len: usize) -> u64 {
        let mut address = 0;
        let reserve = self.library.cuMemAddressReserve.expect("virtual memory");
        // SAFETY: the place for the answer is ours.
        good(unsafe { reserve(&raw mut address, len, 0, 0, 0) });
        address
    }

    pub(crate) fn map_at(&self, address: u64, len: usize, kind: u32) {
        let mut memory = 0;
        // SAFETY: numbers and a pointer, of which zero is a value.
        let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        prop.type_ = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.requestedHandleTypes = kind;
        prop.location = here();
        let access = CUmemAccessDesc {
            location: here(),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let library = self.library;
        let create = library.cuMemCreate.expect("virtual memory");
        // SAFETY: the place for the answer is ours.
        good(unsafe { create(&raw mut memory, len, &raw const prop, 0) });
        // SAFETY: reserved addresses of the test, and memory of that length.
        good(unsafe { library.cuMemMap.expect("it")(address, len, 0, memory, 0) });
        // SAFETY: it stays mapped.
        good(unsafe { library.cuMemRelease.expect("it")(memory) });
        let permit = library.cuMemSetAccess.expect("it");
        // SAFETY: what was just mapped.
        good(unsafe { permit(address, len, &raw const access, 1) });
    }

    pub(crate) fn map(&self, len: usize, kind: u32) -> u64 {
        let address = self.reserve(len);
        self.map_at(address, len, kind);
        address
    }

    pub(crate) fn unmap(&self, address: u64, len: usize) {
        // SAFETY: a mapping of this test.
        good(unsafe { self.library.cuMemUnmap.expect("it")(address, len) });
    }
}
