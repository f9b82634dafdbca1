// SPDX-License-Identifier: MIT OR Apache-2.0
//! The malloc front, as the runtime finds it: a preloaded library that serves large allocations of ordinary programs
//! from a memfd. A rank takes that memfd as its segment, so that the program's own buffers are memory which peers can
//! read in place.
//!
//! Front and runtime may come from different libraries of a process. They meet at one symbol, [`SYMBOL`], which returns
//! a [`Table`] whose first field is its version.
//!
//! # Safety
//! The table comes from a library that was loaded into this process, which could do anything to it in any case. We rely
//! on two things: a function of that name returns a table of the named version, or null. And what the table names stays
//! as it is while the process lives. The memfd is checked like a peer's before it becomes a segment.
#![allow(
    unsafe_code,
    reason = "looking up a symbol, and calling what it leads to"
)]

use crate::layout::{Geometry, HEAP_AT, HeapOffset};
use std::ffi::{CStr, c_int};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The function that returns the table, once per process, if its heap has so many bytes: `extern "C" fn(u64) -> *const
/// Table`.
pub const SYMBOL: &CStr = c"onecopy_heap_front";
/// Version of the table.
pub const VERSION: u32 = 1;

/// What the front offers.
#[derive(Debug)]
#[repr(C)]
pub struct Table {
    /// [`VERSION`].
    pub version: u32,
    /// The memfd: sealed, as long as a segment with this heap whose other parts lie before [`HEAP_AT`], and nothing
    /// before it in use.
    pub fd: c_int,
    /// Where the heap is in this process.
    pub base: *mut u8,
    /// Bytes of the heap's address range.
    pub bytes: u64,
    /// Zeroed memory of the heap, in whole pages, with this alignment; null if there is no room.
    pub alloc: extern "C" fn(bytes: usize, align: usize) -> *mut u8,
    /// Takes it back.
    pub free: extern "C" fn(*mut u8),
}

/// The front of this process.
#[derive(Debug)]
pub(crate) struct Front {
    table: &'static Table,
}

// SAFETY: the table is constant, and its functions may be called by any thread.
unsafe impl Send for Front {}
// SAFETY: as above.
unsafe impl Sync for Front {}

impl Front {
    /// The front, if there is one that nobody has taken yet and whose heap is the one that `geometry` asks for.
    pub(crate) fn adopt(geometry: &Geometry) -> Option<Self> {
        if geometry.heap_bytes == 0 || geometry.heap_offset().0 != HEAP_AT {
            return None;
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SYMBOL.as_ptr()) };
        if found.is_null() {
            return None;
        }
        // SAFETY: by the contract of that name (see the module) it is a function of this type.
        let take = unsafe {
            std::mem::transmute::<*mut libc::c_void, extern "C" fn(u64) -> *const Table>(found)
        };
        // SAFETY: null, or a table that stays.
        let table = unsafe { take(geometry.heap_bytes).as_ref() }?;
        (table.version == VERSION && table.bytes == geometry.heap_bytes).then_some(Self { table })
    }

    /// A descriptor of the memfd for us.
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        // SAFETY: the front keeps its descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.table.fd) }.try_clone_to_owned()
    }

    /// Where the heap is in this process.
    pub(crate) fn base(&self) -> usize {
        self.table.base as usize
    }

    /// Zeroed memory; none if there is no room.
    pub(crate) fn alloc(&self, bytes: u64, align: u64) -> Option<HeapOffset> {
        let (bytes, align) = (usize::try_from(bytes).ok()?, usize::try_from(align).ok()?);
        let address = (self.table.alloc)(bytes, align) as usize;
        let offset = address.checked_sub(self.base())? as u64;
        (offset < self.table.bytes).then_some(HeapOffset(offset))
    }

    /// Takes back what [`alloc`](Self::alloc) gave.
    pub(crate) fn free(&self, offset: HeapOffset) {
        (self.table.free)(self.table.base.wrapping_add(offset.0 as usize));
    }
}
