// SPDX-License-Identifier: MIT OR Apache-2.0
//! The KNEM device: its ioctl interface as in `kmod/include/uapi/knem.h`, and thin calls on it.
//!
//! Structures and constants keep the names of the C header; `tests/layout.rs` compares the two. A program that drives
//! the device through [`Device`] gets the kernel's errors as they are.
//!
//! # Safety
//!
//! Every ioctl gets a pointer to a structure of the type that its number stands for, valid for the length of the call.
//! What the addresses in those structures point to only the caller can answer for: calls that take some are unsafe.
#![allow(unsafe_code, reason = "ioctls take raw pointers")]

mod abi;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

pub use abi::*;

/// An open device. Regions and pending copies belong to the open file.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Opens [`KNEM_DEVICE_FILENAME`].
    ///
    /// # Errors
    ///
    /// Those of `open`: `ENOENT` without the module, `EACCES` where the device's mode does not allow the user.
    pub fn open() -> io::Result<Self> {
        Self::open_path(Path::new(KNEM_DEVICE_FILENAME))
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

    /// What the device offers.
    ///
    /// # Errors
    ///
    /// `ENOTTY` where the file is no such device.
    pub fn info(&self) -> io::Result<knem_cmd_info> {
        let mut info = knem_cmd_info::default();
        self.call(KNEM_CMD_GET_INFO, &mut info)?;
        Ok(info)
    }

    /// Chooses where the worker runs: `KNEM_BIND_FLAG_*`, and a mask of processors for a custom choice.
    ///
    /// # Errors
    ///
    /// `EBUSY` after [`Self::map_status`], `EINVAL` for a bad mask.
    pub fn bind_offload(&self, flags: u32, mask: &[u64]) -> io::Result<()> {
        let mut command = knem_cmd_bind_offload {
            flags,
            mask_len: length(size_of_val(mask))?,
            mask_ptr: mask.as_ptr().expose_provenance() as u64,
        };
        self.call(KNEM_CMD_BIND_OFFLOAD, &mut command)
    }

    /// Makes a region of the caller's memory; `protection` is what others may do with it.
    ///
    /// # Safety
    ///
    /// Until the region is destroyed others may read or write the memory, as `protection` says. The program holds no
    /// reference to it across which it relies on its bytes.
    ///
    /// # Errors
    ///
    /// `EFAULT` for memory that is not there, `ENOMEM` beyond the limit of locked memory, `EINVAL` for bad flags.
    pub unsafe fn create_region(
        &self,
        memory: &[knem_cmd_param_iovec],
        protection: u32,
        flags: u32,
    ) -> io::Result<knem_cookie_t> {
        let mut command = knem_cmd_create_region {
            iovec_array: address(memory),
            iovec_nr: length(memory.len())?,
            flags,
            protection,
            pad1: 0,
            cookie: 0,
        };
        self.call(KNEM_CMD_CREATE_REGION, &mut command)?;
        Ok(command.cookie)
    }

    /// Ends a region of this device.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown one.
    pub fn destroy_region(&self, cookie: knem_cookie_t) -> io::Result<()> {
        let mut cookie = cookie;
        self.call(KNEM_CMD_DESTROY_REGION, &mut cookie)
    }

    /// Copies between two regions. Look at `current_status` afterwards.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown region or offset, `EACCES` against its direction or user, `EBUSY` when no more can be
    /// notified.
    pub fn copy(&self, command: &mut knem_cmd_copy) -> io::Result<()> {
        self.call(KNEM_CMD_COPY, command)
    }

    /// Copies between two regions, at most so many bytes. Look at `current_status` afterwards.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    pub fn copy_bounded(&self, command: &mut knem_cmd_copy_bounded) -> io::Result<()> {
        self.call(KNEM_CMD_COPY_BOUNDED, command)
    }

    /// Copies between memory of the caller and a region. Look at `current_status` afterwards.
    ///
    /// # Safety
    ///
    /// The command names an array of [`knem_cmd_param_iovec`]. The memory that these name may be read, or written where
    /// `write` is zero, until the copy is done.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`], and `EFAULT` for memory that is not there.
    pub unsafe fn inline_copy(&self, command: &mut knem_cmd_inline_copy) -> io::Result<()> {
        self.call(KNEM_CMD_INLINE_COPY, command)
    }

    /// As [`Self::inline_copy`], at most so many bytes.
    ///
    /// # Safety
    ///
    /// As [`Self::inline_copy`].
    ///
    /// # Errors
    ///
    /// As [`Self::inline_copy`].
    pub unsafe fn inline_copy_bounded(
        &self,
        command: &mut knem_cmd_inline_copy_bounded,
    ) -> io::Result<()> {
        self.call(KNEM_CMD_INLINE_COPY_BOUNDED, command)
    }

    /// The interface before regions: exposes memory for one receive.
    ///
    /// # Safety
    ///
    /// Until it was received, another process may read the memory.
    ///
    /// # Errors
    ///
    /// As [`Self::create_region`].
    pub unsafe fn init_send(
        &self,
        memory: &[knem_cmd_param_iovec],
        flags: u32,
    ) -> io::Result<knem_cookie_t> {
        let mut command = knem_cmd_init_send_param {
            send_iovec_array: address(memory),
            send_iovec_nr: length(memory.len())?,
            flags,
            send_cookie: 0,
        };
        self.call(KNEM_CMD_INIT_SEND, &mut command)?;
        Ok(command.send_cookie)
    }

    /// The interface before regions: receives what was exposed; the status array says when it is done.
    ///
    /// # Safety
    ///
    /// The memory may be written until the status is no longer pending.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    pub unsafe fn init_async_recv(
        &self,
        memory: &[knem_cmd_param_iovec],
        cookie: knem_cookie_t,
        status_index: u32,
        flags: u32,
    ) -> io::Result<()> {
        let mut command = knem_cmd_init_async_recv_param {
            recv_iovec_array: address(memory),
            recv_iovec_nr: length(memory.len())?,
            status_index,
            send_cookie: cookie,
            flags,
            pad: 0,
        };
        self.call(KNEM_CMD_INIT_ASYNC_RECV, &mut command)
    }

    /// The interface before regions: receives what was exposed, and returns the status.
    ///
    /// # Safety
    ///
    /// The memory may be written.
    ///
    /// # Errors
    ///
    /// As [`Self::copy`].
    pub unsafe fn sync_recv(
        &self,
        memory: &[knem_cmd_param_iovec],
        cookie: knem_cookie_t,
        flags: u32,
    ) -> io::Result<knem_status_t> {
        let mut command = knem_cmd_sync_recv_param {
            recv_iovec_array: address(memory),
            recv_iovec_nr: length(memory.len())?,
            status: u32::from(KNEM_STATUS_FAILED),
            send_cookie: cookie,
            flags,
            pad: 0,
        };
        self.call(KNEM_CMD_SYNC_RECV, &mut command)?;
        Ok(knem_status_t::try_from(command.status).unwrap_or(KNEM_STATUS_FAILED))
    }

    /// Maps the array in which asynchronous copies report; once per device. Of our module, the thread that copies comes
    /// with the first copy for it.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is mapped already, `EINVAL` for too many.
    pub fn map_status(&self, count: usize) -> io::Result<StatusArray> {
        // SAFETY: a new mapping where the kernel finds room touches nothing that exists.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.0.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(StatusArray { base, count })
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

/// The array in which asynchronous copies report.
#[derive(Debug)]
pub struct StatusArray {
    base: NonNull<u8>,
    count: usize,
}

// SAFETY: the array is reached by volatile loads and stores of single bytes only, and belongs to no thread.
unsafe impl Send for StatusArray {}
// SAFETY: as for Send.
unsafe impl Sync for StatusArray {}

impl StatusArray {
    /// The address of a byte, for those who need an atomic load.
    ///
    /// # Panics
    ///
    /// Beyond the end of the array.
    #[must_use]
    pub fn slot(&self, index: usize) -> NonNull<knem_status_t> {
        assert!(index < self.count, "status {index} of {}", self.count);
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.base.add(index) }
    }

    /// What a byte says now.
    ///
    /// # Panics
    ///
    /// Beyond the end of the array.
    #[must_use]
    pub fn get(&self, index: usize) -> knem_status_t {
        let slot = self.slot(index);
        // SAFETY: the byte is mapped for the life of `self`; the kernel may change it, hence volatile.
        unsafe { slot.read_volatile() }
    }

    /// Marks a byte, before the operation that will report in it.
    ///
    /// # Panics
    ///
    /// Beyond the end of the array.
    pub fn set(&self, index: usize, status: knem_status_t) {
        let slot = self.slot(index);
        // SAFETY: the byte is mapped for the life of `self`; the kernel may change it, hence volatile.
        unsafe { slot.write_volatile(status) }
    }
}

impl Drop for StatusArray {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing can reach it afterwards.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.count) };
    }
}

fn address(memory: &[knem_cmd_param_iovec]) -> u64 {
    memory.as_ptr().expose_provenance() as u64
}

fn length(count: usize) -> io::Result<u32> {
    u32::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
