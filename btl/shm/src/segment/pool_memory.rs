// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a payload pool's chunks, as a rank sees it: its own, or a peer's.
//!
//! # Safety
//! See [`crate::segment`].
#![allow(unsafe_code, reason = "raw copies to and from mappings")]

use crate::copy::{self, Kernel};
use crate::layout::{ChunkIndex, Geometry, OutOfBounds, check_range};
use crate::mapping::Mapping;
use crate::{fault, prefetch};
use std::ptr::NonNull;

/// Bytes that are asked for before they are copied, at most. 2 KiB in windows near take 0.162 us, 0.172 with 512 bytes,
/// 0.182 without (docs/performance.md, "Ask for a chunk before its receive is known").
const SOON: usize = 2 << 10;

/// A pool that is mapped.
#[derive(Debug, Clone, Copy)]
pub struct PoolMemory<'m> {
    map: &'m Mapping,
    /// Where in the mapping the pool begins.
    begin: u64,
    geometry: &'m Geometry,
    writable: bool,
}

impl<'m> PoolMemory<'m> {
    /// The pool of a segment of this geometry, from `begin` on in `map`.
    pub(super) fn new(
        map: &'m Mapping,
        begin: u64,
        geometry: &'m Geometry,
        writable: bool,
    ) -> Self {
        Self {
            map,
            begin,
            geometry,
            writable,
        }
    }

    /// Where `len` bytes of a chunk are.
    #[inline(always)]
    fn at(&self, chunk: ChunkIndex, offset: usize, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        let (index, size) = (u64::from(chunk.0), u64::from(self.geometry.chunk_bytes));
        check_range("a chunk", offset as u64, len as u64, size)?;
        check_range(
            "the pool's chunks",
            index,
            1,
            u64::from(self.geometry.chunks),
        )?;
        let begin = self.begin + index * size + offset as u64;
        self.map.at("the pool", begin, len as u64)
    }

    /// Copies bytes of a chunk to `out`.
    ///
    /// # Errors
    /// [`OutOfBounds`]: nothing was copied.
    #[inline(always)]
    pub fn read(
        &self,
        chunk: ChunkIndex,
        offset: usize,
        out: &mut [u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        let from = self.at(chunk, offset, out.len())?;
        let kernel = match kernel {
            // As a rule this rank writes next to a chunk that it may write. Its own has come back to it, and in a
            // peer's it sends its answer.
            Kernel::Ahead if self.writable => Kernel::AheadOwning,
            other => other,
        };
        // SAFETY: `from` is valid for the length; the pool does not overlap memory of the program.
        unsafe { copy::copy(kernel, out.as_mut_ptr(), from.as_ptr(), out.len()) };
        fault::point("chunk.read");
        Ok(())
    }

    /// Copies `bytes` into a chunk.
    ///
    /// # Errors
    /// [`OutOfBounds`]: nothing was copied. It is one, too, if the pool is mapped to be read only.
    #[inline]
    pub fn write(
        &self,
        chunk: ChunkIndex,
        offset: usize,
        bytes: &[u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds> {
        if !self.writable {
            return Err(OutOfBounds::nowhere("a pool that is mapped to be read"));
        }
        let to = self.at(chunk, offset, bytes.len())?;
        // SAFETY: `to` is valid for the length and mapped writable; the pool does not overlap memory of the program.
        unsafe { copy::copy(kernel, to.as_ptr(), bytes.as_ptr(), bytes.len()) };
        fault::point("chunk.written");
        Ok(())
    }

    /// A hint that the first `len` bytes of `chunk` are read soon, or as many as are worth it.
    #[inline(always)]
    pub fn will_read(&self, chunk: ChunkIndex, len: usize) {
        if let Ok(pointer) = self.at(chunk, 0, 1) {
            prefetch::range_for_read(pointer, len.min(SOON));
        }
    }

    /// A hint that the first `len` bytes of `chunk` are written soon.
    #[inline]
    pub fn will_write(&self, chunk: ChunkIndex, len: usize) {
        let len = len.min(self.geometry.chunk_bytes as usize);
        if let Ok(pointer) = self.at(chunk, 0, len) {
            prefetch::range_for_write(pointer, len);
        }
    }
}
