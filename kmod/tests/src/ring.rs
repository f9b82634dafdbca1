// SPDX-License-Identifier: MIT OR Apache-2.0
//! io_uring, as far as it pins memory.
//!
//! # Safety
//!
//! The calls get structures of the kernel's layout, which outlive them; memory that is registered is
//! used by tests only.
#![allow(unsafe_code, reason = "io_uring has no wrapper here")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::mem::Area;
use crate::outcome::{Fault, Outcome};

const REGISTER_BUFFERS: libc::c_uint = 0;
const UNREGISTER_BUFFERS: libc::c_uint = 1;
/// The bytes of struct io_uring_params, all of which may be zero.
const PARAMETERS: usize = 120;

/// A ring that nothing is ever submitted to.
pub(crate) struct Ring(OwnedFd);

impl Ring {
    pub(crate) fn new() -> Outcome<Self> {
        let mut parameters = [0u64; PARAMETERS / 8];
        // SAFETY: see the module.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        let Ok(fd @ 0..) = i32::try_from(fd) else {
            let error = io::Error::last_os_error();
            return Err(Fault::Skip(format!("no io_uring: {error}")));
        };
        // SAFETY: the kernel has just made it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Has memory pinned, and counted.
    pub(crate) fn register(&self, area: &Area) -> io::Result<()> {
        let piece = libc::iovec {
            iov_base: area.pointer().as_ptr().cast(),
            iov_len: area.length(),
        };
        self.call(REGISTER_BUFFERS, &raw const piece, 1)
    }

    pub(crate) fn unregister(&self) -> io::Result<()> {
        self.call(UNREGISTER_BUFFERS, std::ptr::null(), 0)
    }

    fn call(&self, what: libc::c_uint, pieces: *const libc::iovec, n: u32) -> io::Result<()> {
        // SAFETY: see the module.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.0.as_raw_fd(),
                what,
                pieces,
                n,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
