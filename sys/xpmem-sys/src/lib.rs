// SPDX-License-Identifier: MIT OR Apache-2.0
//! The XPMEM device: its ioctl interface as in `kmod/include/uapi/xpmem.h`, and thin calls on it.
//!
//! Structures and constants keep the names of the C header; `tests/layout.rs` compares the two. A program that drives
//! the device through [`Device`] gets the kernel's errors as they are.
//!
//! # Safety
//!
//! Every ioctl gets a pointer to a structure of the type that its number stands for, valid for the length of the call.
//! What memory is exported, and what is unmapped, only the caller can answer for: those calls are unsafe.
#![allow(unsafe_code, reason = "ioctls take raw pointers")]

mod abi;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

pub use abi::*;

/// Where the device is.
pub const DEVICE: &str = "/dev/xpmem";

/// An open device. Segments and permits belong to the open file: they end when its last descriptor is closed.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Opens [`DEVICE`].
    ///
    /// # Errors
    ///
    /// Those of `open`: `ENOENT` without the module, `EACCES` where the device's mode does not allow the user.
    pub fn open() -> io::Result<Self> {
        Self::open_path(Path::new(DEVICE))
    }

    /// Opens the device at another place.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    pub fn open_path(path: &Path) -> io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self(file.into()))
    }

    /// The interface's version, as [`XPMEM_CURRENT_VERSION`].
    ///
    /// # Errors
    ///
    /// `ENOTTY` where the file is no such device.
    pub fn version(&self) -> io::Result<u32> {
        // SAFETY: the command takes no argument.
        let returned = unsafe { libc::ioctl(self.0.as_raw_fd(), XPMEM_CMD_VERSION as _, 0) };
        u32::try_from(returned).map_err(|_| io::Error::last_os_error())
    }

    /// Exports `size` bytes from `address` to those whom `mode` lets in, and returns the segment's id. Both are
    /// multiples of the page size; a size of [`XPMEM_MAXADDR_SIZE`] means up to the end of the address space.
    ///
    /// # Safety
    ///
    /// Others may read and, if `mode` says so, write the memory at any time until the segment is removed. The program
    /// holds no reference to it across which it relies on its bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a bad range or mode.
    pub unsafe fn make(&self, address: usize, size: u64, mode: u32) -> io::Result<xpmem_segid_t> {
        let mut command = xpmem_cmd_make {
            vaddr: address as u64,
            size,
            permit_type: XPMEM_PERMIT_MODE,
            pad: 0,
            permit_value: u64::from(mode),
            segid: -1,
        };
        self.call(XPMEM_CMD_MAKE, &mut command)?;
        Ok(command.segid)
    }

    /// Ends a segment that this process made.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an id that is unknown, `EACCES` for one of another process.
    pub fn remove(&self, segid: xpmem_segid_t) -> io::Result<()> {
        self.call(XPMEM_CMD_REMOVE, &mut xpmem_cmd_remove { segid })
    }

    /// Asks for access to a segment; `flags` is [`XPMEM_RDONLY`] or [`XPMEM_RDWR`].
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown id, `EACCES` where the segment's mode does not let the caller in.
    pub fn get(&self, segid: xpmem_segid_t, flags: i32) -> io::Result<xpmem_apid_t> {
        let mut command = xpmem_cmd_get {
            segid,
            flags,
            permit_type: XPMEM_PERMIT_MODE,
            permit_value: 0,
            apid: -1,
        };
        self.call(XPMEM_CMD_GET, &mut command)?;
        Ok(command.apid)
    }

    /// Gives a permit back.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown id.
    pub fn release(&self, apid: xpmem_apid_t) -> io::Result<()> {
        self.call(XPMEM_CMD_RELEASE, &mut xpmem_cmd_release { apid })
    }

    /// Maps `size` bytes that begin `offset` bytes into the segment, where the kernel finds room.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range outside the segment, `ENOMEM` without room, `ENOENT` where the owner is gone.
    pub fn attach(&self, apid: xpmem_apid_t, offset: i64, size: u64) -> io::Result<NonNull<u8>> {
        let mut command = xpmem_cmd_attach {
            apid,
            offset,
            size,
            vaddr: 0,
            fd: 0,
            flags: 0,
        };
        self.call(XPMEM_CMD_ATTACH, &mut command)?;
        pointer(command.vaddr)
    }

    /// As [`Self::attach`], at the given address.
    ///
    /// # Safety
    ///
    /// Whatever is mapped there is replaced: nothing of the program may lie there.
    ///
    /// # Errors
    ///
    /// As [`Self::attach`].
    pub unsafe fn attach_at(
        &self,
        apid: xpmem_apid_t,
        offset: i64,
        size: u64,
        address: usize,
    ) -> io::Result<NonNull<u8>> {
        let mut command = xpmem_cmd_attach {
            apid,
            offset,
            size,
            vaddr: address as u64,
            fd: 0,
            flags: 0,
        };
        self.call(XPMEM_CMD_ATTACH, &mut command)?;
        pointer(command.vaddr)
    }

    /// Unmaps the attachment that contains the address.
    ///
    /// # Safety
    ///
    /// Nothing uses the attachment any more.
    ///
    /// # Errors
    ///
    /// `EINVAL` where no attachment lies there.
    pub unsafe fn detach(&self, address: NonNull<u8>) -> io::Result<()> {
        let vaddr = address.addr().get() as u64;
        self.call(XPMEM_CMD_DETACH, &mut xpmem_cmd_detach { vaddr })
    }

    fn call<T>(&self, command: u32, argument: &mut T) -> io::Result<()> {
        let argument: *mut T = argument;
        // SAFETY: the callers pair each number with its structure, which outlives the call.
        let returned = unsafe { libc::ioctl(self.0.as_raw_fd(), command as _, argument) };
        if returned < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn pointer(address: u64) -> io::Result<NonNull<u8>> {
    usize::try_from(address)
        .ok()
        .and_then(|address| NonNull::new(std::ptr::with_exposed_provenance_mut(address)))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))
}
