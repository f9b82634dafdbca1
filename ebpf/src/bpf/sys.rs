// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that no library has as they are needed. One makes a perf event on a place in a file, with a counter
//! that says that it is watched. One links that to a program. One loads a program of which only the kernel's answer
//! matters.
//!
//! # Safety
//! The calls read structures that live on the stack for their duration. What they return are new descriptors, which
//! nobody else owns.
#![allow(unsafe_code, reason = "system calls that no library has")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The first version of `perf_event_attr` that has both words of configuration.
#[repr(C)]
struct PerfAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
}

#[repr(C)]
struct LinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

/// The first part of what a program is loaded with.
#[repr(C)]
struct ProgramAttr {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TYPE_TRACEPOINT: u32 = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PERF_EVENT: u32 = 41;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// Watches a place in a file, in all processes that map it. The kernel adds to the counter at `semaphore` in each of
/// them, if it is not 0.
pub(super) fn watch(path: &Path, offset: u64, semaphore: u64) -> io::Result<OwnedFd> {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind = kind.trim().parse().map_err(io::Error::other)?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = PerfAttr {
        kind,
        size: u32::try_from(size_of::<PerfAttr>()).map_err(io::Error::other)?,
        config: semaphore << 32,
        sample: 0,
        sample_type: 0,
        read_format: 0,
        flags: 0,
        wakeup: 0,
        breakpoint: 0,
        config1: path.as_ptr() as u64,
        config2: offset,
    };
    // SAFETY: the structure has the size that it says, and the path ends with a zero and lives until the call returns.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            -1_i32,
            0_i32,
            -1_i32,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    owned(fd)
}

/// Runs a program whenever the event happens. It gets the cookie.
pub(super) fn link(program: BorrowedFd<'_>, event: &OwnedFd, cookie: u64) -> io::Result<OwnedFd> {
    let number = |fd: BorrowedFd<'_>| u32::try_from(fd.as_raw_fd()).map_err(io::Error::other);
    let attr = LinkAttr {
        program: number(program)?,
        target: number(event.as_fd())?,
        attach_type: BPF_PERF_EVENT,
        flags: 0,
        cookie,
    };
    // SAFETY: the structure is what the command reads, and has no addresses in it.
    unsafe { bpf(BPF_LINK_CREATE, &attr) }
}

/// Loads a program that returns 0 and does nothing else.
pub(super) fn load_least_program() -> io::Result<OwnedFd> {
    // r0 = 0; exit
    let instructions: [u64; 2] = [0xb7, 0x95];
    let attr = ProgramAttr {
        kind: BPF_PROG_TYPE_TRACEPOINT,
        count: 2,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
    };
    // SAFETY: the structure is the beginning of what the command reads. The instructions and the text, whose addresses
    // are in it, live until the call returns.
    unsafe { bpf(BPF_PROG_LOAD, &attr) }
}

/// Makes a call that returns a new descriptor.
///
/// # Safety
/// `attr` has the layout that the command reads, or a beginning of it. What its addresses lead to may be read until the
/// call returns.
unsafe fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the structure lives until the call returns, and has the size that is passed. The caller answers for its
    // content.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attr),
            size_of::<T>(),
        )
    };
    owned(fd)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
