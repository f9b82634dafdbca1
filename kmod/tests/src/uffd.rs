// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory whose faults nobody answers: a thread that touches it waits, until the descriptor is closed.
//!
//! # Safety
//!
//! The two ioctls get structures of the kernel's layout, which outlive the calls.
#![allow(unsafe_code, reason = "userfaultfd has no wrapper")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::mem::Area;
use crate::outcome::{At, Fault, Outcome};

const UFFD_API: u64 = 0xaa;
const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// Makes faults on an area, which has no pages yet, wait as long as the descriptor is open.
pub(crate) fn block(area: &Area) -> Outcome<OwnedFd> {
    // SAFETY: takes a number.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    let Ok(fd @ 0..) = i32::try_from(fd) else {
        let error = std::io::Error::last_os_error();
        return Err(Fault::Skip(format!("no userfaultfd: {error}")));
    };
    // SAFETY: the kernel has just made it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = Api {
        api: UFFD_API,
        features: 0,
        ioctls: 0,
    };
    // SAFETY: the structure that the number stands for.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &raw mut api) };
    done(result).at("UFFDIO_API")?;
    let mut register = Register {
        start: area.base() as u64,
        length: area.length() as u64,
        mode: UFFDIO_REGISTER_MODE_MISSING,
        ioctls: 0,
    };
    // SAFETY: the structure that the number stands for.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) };
    done(result).at("UFFDIO_REGISTER")?;
    Ok(fd)
}

fn done(result: i32) -> std::io::Result<()> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}
