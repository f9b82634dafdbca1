// SPDX-License-Identifier: MIT OR Apache-2.0
//! A peer's heap as a rank maps it. The mapping is apart from that of the segment, so a copy needs nothing else of the
//! peer.
//!
//! # Safety
//! See [`crate::segment`].
#![allow(unsafe_code, reason = "raw copies to and from mappings")]

use crate::coll::View;
use crate::copy::{self, Kernel};
use crate::layout::{HeapOffset, OutOfBounds};
use crate::mapping::{Advice, Mapping};
use std::ptr::NonNull;

/// The heap of a peer, mapped here.
#[derive(Debug)]
pub struct PeerHeap {
    map: Mapping,
}

impl PeerHeap {
    pub(super) fn new(map: Mapping) -> Self {
        Self { map }
    }

    #[inline]
    fn at(&self, offset: HeapOffset, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        self.map.at("the peer's heap", offset.0, len as u64)
    }

    /// Copies from the heap.
    ///
    /// # Errors
    /// [`OutOfBounds`]: nothing was copied.
    #[inline]
    pub fn read(
        &self,
        offset: HeapOffset,
        out: &mut [u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        let from = self.at(offset, out.len())?;
        // SAFETY: valid for the length. `out` is memory of this process's program, which is not in the peer's segment.
        unsafe { copy::copy(kernel, out.as_mut_ptr(), from.as_ptr(), out.len()) };
        Ok(())
    }

    /// Bytes to be read in place.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn view(&self, offset: HeapOffset, len: usize) -> Result<View<'_>, OutOfBounds> {
        let pointer = self.at(offset, len)?;
        // SAFETY: the range lies in the mapping, which `self` keeps.
        Ok(unsafe { View::new(pointer, len) })
    }

    /// Copies into the heap.
    ///
    /// # Errors
    /// [`OutOfBounds`]: nothing was copied.
    #[inline]
    pub fn write(
        &self,
        offset: HeapOffset,
        bytes: &[u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: valid for the length. `bytes` is memory of this process's program, which is not in the peer's
        // segment.
        unsafe { copy::copy(kernel, to.as_ptr(), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Fills the page tables for a range in one call instead of a fault per page. A refusal changes nothing.
    pub fn populate(&self, offset: HeapOffset, len: u64) {
        self.map.advise(offset.0, len, Advice::PopulateWrite);
    }
}
