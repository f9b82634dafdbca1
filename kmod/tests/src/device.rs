// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices, for tests: memory is always an [`Area`].
//!
//! # Safety
//!
//! Exporting or unmapping memory is sound where nobody relies on what it holds. An area is reached by volatile accesses
//! only (see `mem.rs`), and nothing else of the program lies in it.
#![allow(unsafe_code, reason = "the calls of the devices on memory of tests")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use knem_sys::{knem_cmd_inline_copy_bounded, knem_cmd_param_iovec, knem_cookie_t};
use onecopy_sys::{CopyEnd, Progress, Segment, onecopy_generation, onecopy_stats};
use xpmem_sys::{xpmem_apid_t, xpmem_segid_t};

use crate::mem::Area;
use crate::outcome::{At, Outcome};

pub(crate) fn xpmem() -> Outcome<xpmem_sys::Device> {
    xpmem_sys::Device::open().at("open /dev/xpmem")
}

pub(crate) fn onecopy() -> Outcome<onecopy_sys::Device> {
    onecopy_sys::Device::open().at("open /dev/onecopy")
}

pub(crate) fn knem() -> Outcome<knem_sys::Device> {
    knem_sys::Device::open().at("open /dev/knem")
}

/// MAKE.
pub(crate) fn try_make(
    device: &xpmem_sys::Device,
    address: usize,
    size: u64,
    mode: u32,
) -> io::Result<xpmem_segid_t> {
    // SAFETY: see the module.
    unsafe { device.make(address, size, mode) }
}

pub(crate) fn make(device: &xpmem_sys::Device, area: &Area, mode: u32) -> Outcome<xpmem_segid_t> {
    try_make(device, area.base(), area.length() as u64, mode).at("MAKE")
}

/// GET for reading and writing.
pub(crate) fn get(device: &xpmem_sys::Device, segid: u64) -> Outcome<xpmem_apid_t> {
    device.get(segid as i64, xpmem_sys::XPMEM_RDWR).at("GET")
}

pub(crate) fn attach(
    device: &xpmem_sys::Device,
    apid: xpmem_apid_t,
    offset: usize,
    size: usize,
) -> Outcome<Area> {
    let base = device
        .attach(apid, offset as i64, size as u64)
        .at("ATTACH")?;
    Ok(Area::of(base, size))
}

/// ATTACH at the place of an area, which it replaces.
pub(crate) fn attach_over(
    device: &xpmem_sys::Device,
    apid: xpmem_apid_t,
    offset: usize,
    over: &Area,
) -> io::Result<Area> {
    // SAFETY: see the module.
    let base = unsafe { device.attach_at(apid, offset as i64, over.length() as u64, over.base()) }?;
    Ok(Area::of(base, over.length()))
}

pub(crate) fn detach(device: &xpmem_sys::Device, area: &Area) -> io::Result<()> {
    // SAFETY: see the module.
    unsafe { device.detach(area.pointer()) }
}

/// GET and ATTACH of a whole segment, for reading and writing.
pub(crate) fn attach_all(device: &xpmem_sys::Device, segid: u64, size: usize) -> Outcome<Area> {
    let apid = get(device, segid)?;
    attach(device, apid, 0, size)
}

/// EXPORT.
pub(crate) fn try_export(address: usize, length: u64, write: bool) -> io::Result<Segment> {
    let device = onecopy_sys::Device::open()?;
    // SAFETY: see the module.
    unsafe { device.export(address, length, write) }
}

pub(crate) fn export(area: &Area, write: bool) -> Outcome<Segment> {
    try_export(area.base(), area.length() as u64, write).at("EXPORT")
}

/// A mapping of a segment; it stays.
pub(crate) fn try_map(
    segment: &Segment,
    offset: u64,
    length: usize,
    write: bool,
) -> io::Result<Area> {
    let mapping = segment.map(offset, length, write)?;
    let area = Area::of(mapping.base(), mapping.length());
    std::mem::forget(mapping);
    Ok(area)
}

pub(crate) fn map(segment: &Segment, length: usize, write: bool) -> Outcome<Area> {
    try_map(segment, 0, length, write).at("mmap of a segment")
}

pub(crate) fn generation(segment: &Segment) -> Outcome<onecopy_sys::Generation> {
    segment.map_generation().at("mmap of the generation page")
}

/// What the page says.
pub(crate) fn read(page: &onecopy_sys::Generation) -> onecopy_generation {
    page.read()
}

/// COPY.
pub(crate) fn copy(
    device: &onecopy_sys::Device,
    from: CopyEnd<'_>,
    to: CopyEnd<'_>,
    length: usize,
) -> Progress {
    // SAFETY: see the module.
    unsafe { device.copy(from, to, length as u64) }
}

pub(crate) fn stats() -> Outcome<onecopy_stats> {
    onecopy()?.stats().at("STATS")
}

/// A received descriptor as a segment.
pub(crate) fn segment(fd: OwnedFd) -> Segment {
    Segment::from(fd)
}

/// The segment whose descriptor the kernel has just returned in a structure.
pub(crate) fn returned(fd: i32) -> Segment {
    // SAFETY: the kernel has just made it, and nothing else knows it.
    Segment::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An area as the device names memory.
pub(crate) fn vector(area: &Area) -> knem_cmd_param_iovec {
    knem_cmd_param_iovec {
        base: area.base() as u64,
        len: area.length() as u64,
    }
}

pub(crate) fn try_region(
    device: &knem_sys::Device,
    memory: &[knem_cmd_param_iovec],
    protection: i32,
    flags: u32,
) -> io::Result<knem_cookie_t> {
    // SAFETY: see the module.
    unsafe { device.create_region(memory, protection as u32, flags) }
}

pub(crate) fn region(
    device: &knem_sys::Device,
    area: &Area,
    protection: i32,
    flags: u32,
) -> Outcome<knem_cookie_t> {
    try_region(device, &[vector(area)], protection, flags).at("CREATE_REGION")
}

/// INLINE_COPY_BOUNDED: between memory of this process and a region.
#[derive(Clone, Copy)]
pub(crate) struct Inline {
    pub(crate) cookie: knem_cookie_t,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) write: bool,
    pub(crate) flags: u32,
    pub(crate) index: u32,
}

impl Inline {
    /// Reads so many bytes from the region's start.
    pub(crate) fn read(cookie: u64, length: usize) -> Self {
        Self {
            cookie,
            offset: 0,
            length: length as u64,
            write: false,
            flags: 0,
            index: 0,
        }
    }

    /// Writes so many bytes to the region's start.
    pub(crate) fn write(cookie: u64, length: usize) -> Self {
        Self {
            write: true,
            ..Self::read(cookie, length)
        }
    }

    /// The call; the status that it reports.
    pub(crate) fn run(
        self,
        device: &knem_sys::Device,
        local: &[knem_cmd_param_iovec],
    ) -> io::Result<u32> {
        let mut command = knem_cmd_inline_copy_bounded {
            local_iovec_array: local.as_ptr().expose_provenance() as u64,
            local_iovec_nr: local.len() as u32,
            write: u32::from(self.write),
            remote_cookie: self.cookie,
            remote_offset: self.offset,
            length: self.length,
            flags: self.flags,
            current_status: u32::MAX,
            async_status_index: self.index,
            pad: 0,
        };
        // SAFETY: see the module.
        unsafe { device.inline_copy_bounded(&mut command) }?;
        Ok(command.current_status)
    }
}

/// An ioctl with any number and a small number for a pointer.
pub(crate) fn raw_ioctl(fd: i32, command: u64, argument: usize) -> io::Result<i32> {
    // SAFETY: the argument is no address of anything: the lowest page is never mapped.
    let result = unsafe { libc::ioctl(fd, command as _, argument) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An ioctl with any number, on any descriptor, with a pointer to anywhere.
pub(crate) fn any_ioctl(fd: i32, number: u32, argument: usize) -> io::Result<i32> {
    // SAFETY: what the kernel writes to is memory of tests. That is the structure, and what its words name: addresses
    // of areas, or of nothing that a process lives in.
    let result = unsafe { libc::ioctl(fd, number as _, argument) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An ioctl whose argument is an area, which begins with a structure.
pub(crate) fn scratch_ioctl(fd: i32, command: u32, argument: &Area) -> io::Result<i32> {
    // SAFETY: the area is a page, larger than any structure of the devices.
    let result = unsafe { libc::ioctl(fd, command as _, argument.pointer().as_ptr()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// INLINE_COPY.
pub(crate) fn inline_copy(
    device: &knem_sys::Device,
    command: &mut knem_sys::knem_cmd_inline_copy,
) -> io::Result<()> {
    // SAFETY: see the module.
    unsafe { device.inline_copy(command) }
}

/// CREATE_REGION, with an array anywhere.
pub(crate) fn create_region(
    device: &knem_sys::Device,
    command: &mut knem_sys::knem_cmd_create_region,
) -> io::Result<i32> {
    use std::os::fd::{AsFd, AsRawFd};
    let fd = device.as_fd().as_raw_fd();
    let command: *mut knem_sys::knem_cmd_create_region = command;
    // SAFETY: see the module; the kernel judges the array's address.
    let result = unsafe { libc::ioctl(fd, knem_sys::KNEM_CMD_CREATE_REGION as _, command) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// INIT_SEND.
pub(crate) fn init_send(
    device: &knem_sys::Device,
    memory: &[knem_cmd_param_iovec],
) -> io::Result<knem_cookie_t> {
    // SAFETY: see the module.
    unsafe { device.init_send(memory, 0) }
}

/// SYNC_RECV.
pub(crate) fn sync_recv(
    device: &knem_sys::Device,
    memory: &[knem_cmd_param_iovec],
    cookie: knem_cookie_t,
) -> io::Result<knem_sys::knem_status_t> {
    // SAFETY: see the module.
    unsafe { device.sync_recv(memory, cookie, 0) }
}

/// INIT_ASYNC_RECV.
pub(crate) fn async_recv(
    device: &knem_sys::Device,
    memory: &[knem_cmd_param_iovec],
    cookie: knem_cookie_t,
    index: u32,
) -> io::Result<()> {
    // SAFETY: see the module.
    unsafe { device.init_async_recv(memory, cookie, index, 0) }
}

/// EXPORT on an open device, for reading.
pub(crate) fn export_with(device: &onecopy_sys::Device, area: &Area) -> io::Result<Segment> {
    // SAFETY: see the module.
    unsafe { device.export(area.base(), area.length() as u64, false) }
}

/// ATTACH with any values.
pub(crate) fn try_attach(
    device: &xpmem_sys::Device,
    apid: xpmem_apid_t,
    offset: i64,
    size: u64,
) -> io::Result<Area> {
    let base = device.attach(apid, offset, size)?;
    Ok(Area::of(base, size as usize).whole_pages())
}

/// EXPORT with any values.
pub(crate) fn export_on(
    device: &onecopy_sys::Device,
    address: usize,
    length: u64,
    write: bool,
) -> io::Result<Segment> {
    // SAFETY: see the module.
    unsafe { device.export(address, length, write) }
}
