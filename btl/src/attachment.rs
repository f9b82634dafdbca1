// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of a peer, mapped here by a kernel module: a window of its address space.
//!
//! # Safety
//! A window is made from an address range that the kernel has just mapped for this process and that nobody else unmaps.
//! The mapping ends with the value. No reference is made into it; bytes are copied by raw copies, and seen as a
//! [`View`], after a range check. Where the module answers a hole with SIGBUS, the copies are guarded
//! ([`onecopy_shm::guard`]). The mapping is not inherited by a forked child, where the same addresses may be something
//! else: there it is neither used nor unmapped.
#![allow(
    unsafe_code,
    reason = "raw copies to and from memory of a peer, and its unmapping"
)]

use onecopy_shm::coll::View;
use onecopy_shm::copy::{self, Kernel};
use onecopy_shm::guard::{self, Hole};
use onecopy_shm::layout::{OutOfBounds, check_range};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// What stands behind a window.
#[derive(Debug)]
enum Backing {
    /// A mapped segment of the extension: a hole reads as zeroes and is counted.
    Segment(ManuallyDrop<onecopy_sys::Mapping>),
    /// An attachment of the plain interface: a hole is SIGBUS.
    Plain(Arc<xpmem_sys::Device>),
}

/// A window of a peer's memory.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: u64,
    pid: u32,
    backing: Backing,
}

// SAFETY: a window is an address range of the process; what is done with it are raw copies.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

/// Why bytes of a window could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// They are not all in it.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// The peer has no memory there.
    #[error(transparent)]
    Hole(#[from] Hole),
}

impl Window {
    /// A mapped part of a segment.
    #[must_use]
    pub fn of_segment(mapping: onecopy_sys::Mapping) -> Self {
        Self {
            base: mapping.base(),
            len: mapping.length() as u64,
            pid: std::process::id(),
            backing: Backing::Segment(ManuallyDrop::new(mapping)),
        }
    }

    /// What [`xpmem_sys::Device::attach`] has just mapped: `len` bytes at `base`, the window's alone from here on.
    pub(crate) fn of_plain(device: &Arc<xpmem_sys::Device>, base: NonNull<u8>, len: u64) -> Self {
        Self {
            base,
            len,
            pid: std::process::id(),
            backing: Backing::Plain(Arc::clone(device)),
        }
    }

    /// Bytes of the window.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where a byte of it lies, as a number, for the kernel.
    #[must_use]
    pub fn address(&self, offset: u64) -> usize {
        self.base.as_ptr() as usize + offset as usize
    }

    /// Whether a hole raises SIGBUS, so that copies are guarded.
    #[must_use]
    pub fn signals(&self) -> bool {
        matches!(self.backing, Backing::Plain(_))
    }

    fn at(&self, offset: u64, len: usize) -> Result<NonNull<u8>, WindowError> {
        if self.pid != std::process::id() {
            // A child of a fork does not have the mapping.
            return Err(WindowError::Hole(Hole));
        }
        check_range("a window of the peer", offset, len as u64, self.len)?;
        // SAFETY: the offset lies in the mapping.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    fn area(&self) -> std::ops::Range<usize> {
        self.address(0)..self.address(self.len)
    }

    /// Bytes to be read in place. None: they are not all in it, or a hole would raise a signal.
    #[must_use]
    pub fn view(&self, offset: u64, len: usize) -> Option<View<'_>> {
        let pointer = self.at(offset, len).ok()?;
        match &self.backing {
            // SAFETY: the bytes lie in the mapping, which lasts as long as the window; a hole in it reads as zeroes.
            Backing::Segment(_) => Some(unsafe { View::new(pointer, len) }),
            Backing::Plain(_) => None,
        }
    }

    /// Copies from the window.
    ///
    /// # Errors
    /// [`WindowError::Bounds`]: nothing was copied. [`WindowError::Hole`]: some bytes may have been.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8], kernel: Kernel) -> Result<(), WindowError> {
        let from = self.at(offset, out.len())?;
        let (to, len) = (out.as_mut_ptr(), out.len());
        match &self.backing {
            Backing::Segment(_) => {
                // SAFETY: `len` bytes of the mapping; `out` is memory of the program, which no window covers.
                unsafe { copy::copy(kernel, to, from.as_ptr(), len) };
            }
            Backing::Plain(_) => {
                // SAFETY: as above; what may be missing lies in the area.
                unsafe { guard::copy(to, from.as_ptr(), len, self.area()) }?;
            }
        }
        Ok(())
    }

    /// Copies into the window.
    ///
    /// # Errors
    /// [`WindowError::Bounds`]: nothing was copied. [`WindowError::Hole`]: some bytes may have been.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8], kernel: Kernel) -> Result<(), WindowError> {
        let to = self.at(offset, bytes.len())?;
        let (from, len) = (bytes.as_ptr(), bytes.len());
        match &self.backing {
            Backing::Segment(_) => {
                // SAFETY: as in `read`, the other way round.
                unsafe { copy::copy(kernel, to.as_ptr(), from, len) };
            }
            Backing::Plain(_) => {
                // SAFETY: as above; what may be missing lies in the area.
                unsafe { guard::copy(to.as_ptr(), from, len, self.area()) }?;
            }
        }
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        match &mut self.backing {
            Backing::Segment(mapping) => {
                // SAFETY: dropped once, here.
                unsafe { ManuallyDrop::drop(mapping) };
            }
            Backing::Plain(device) => {
                // By the module's own call: some modules end a process that uses munmap. A refusal leaves an address
                // range behind. SAFETY: the window's address range is its own, and nobody uses it any more.
                let _ = unsafe { device.detach(self.base) };
            }
        }
    }
}
