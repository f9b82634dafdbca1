// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the runtime sees of the front; the contract is in [`onecopy_shm::front`].
//!
//! # Safety
//!
//! The table is made once and stays. Its memory is taken by one runtime only, in a process where the region is the
//! memfd's.
#![allow(unsafe_code, reason = "a function that is found by its name")]

use crate::region::{Region, with_made};
use libc::c_void;
use onecopy_shm::front::{Table, VERSION};
use std::ptr::{null, null_mut, write_bytes};

/// The table, for the first who asks for a heap of this size; null for all others.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn onecopy_heap_front(bytes: u64) -> *const Table {
    let table = with_made(|region| {
        if region.private || region.adopted || region.bytes as u64 != bytes {
            return None;
        }
        region.adopted = true;
        Some(Table {
            version: VERSION,
            fd: region.fd,
            base: std::ptr::with_exposed_provenance_mut(region.base),
            bytes,
            alloc,
            free,
        })
    });
    // Once per process, and needed for the rest of its life.
    table
        .flatten()
        .map_or(null(), |table| Box::leak(Box::new(table)))
}

extern "C" fn alloc(bytes: usize, align: usize) -> *mut u8 {
    let Some(fresh) = Region::alloc(bytes, align) else {
        return null_mut();
    };
    let pointer = fresh.pointer.cast::<u8>();
    if fresh.dirty {
        // SAFETY: the range was just given out for at least `bytes` bytes, to nobody else.
        unsafe { write_bytes(pointer, 0, bytes) };
    }
    pointer
}

extern "C" fn free(pointer: *mut u8) {
    Region::free(pointer.cast::<c_void>());
}
