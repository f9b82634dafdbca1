// SPDX-License-Identifier: MIT OR Apache-2.0
//! The onecopy device: memory of one process, granted to others as a file descriptor. Its ioctl interface as in
//! `kmod/include/uapi/onecopy.h`, and thin calls on it.
//!
//! Structures and constants keep the names of the C header; `tests/layout.rs` compares the two. A program that drives
//! the device through [`Device`] and [`Segment`] gets the kernel's errors as they are.
//!
//! # Safety
//!
//! Every ioctl gets a pointer to a structure of the type that its number stands for. It is valid for the length of the
//! call, with its size filled in. What memory is exported or copied to only the caller can answer for: those calls are
//! unsafe.
#![allow(unsafe_code, reason = "ioctls take raw pointers")]

mod abi;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;

pub use abi::*;

/// The open device. It has no state of its own: one may serve a whole process.
#[derive(Debug)]
pub struct Device(OwnedFd);

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub enum CopyEnd<'a> {
    /// An offset in a segment.
    Segment(&'a Segment, u64),
    /// An address of the caller.
    Own(u64),
}

impl CopyEnd<'_> {
    fn parts(self) -> (RawFd, u64) {
        match self {
            Self::Segment(segment, offset) => (segment.0.as_raw_fd(), offset),
            Self::Own(address) => (-1, address),
        }
    }
}

/// How far a command came, and what stopped it.
#[derive(Debug)]
pub struct Progress {
    /// Bytes that are done, counted from the start.
    pub done: u64,
    /// The error at the first byte that is not.
    pub result: io::Result<()>,
}

impl Device {
    /// Opens [`ONECOPY_DEVICE_FILENAME`].
    ///
    /// # Errors
    ///
    /// Those of `open`: `ENOENT` without the module, `EACCES` where the device's mode does not allow the user.
    pub fn open() -> io::Result<Self> {
        Self::open_path(Path::new(ONECOPY_DEVICE_FILENAME))
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

    /// What the module offers.
    ///
    /// # Errors
    ///
    /// `ENOTTY` where the file is no such device.
    pub fn info(&self) -> io::Result<onecopy_info> {
        let mut info = onecopy_info {
            size: size_of::<onecopy_info>() as u32,
            ..Default::default()
        };
        call(&self.0, ONECOPY_IOC_INFO, &mut info)?;
        Ok(info)
    }

    /// Counters and gauges of the whole module.
    ///
    /// # Errors
    ///
    /// `ENOTTY` where the file is no such device.
    pub fn stats(&self) -> io::Result<onecopy_stats> {
        let mut stats = onecopy_stats {
            size: size_of::<onecopy_stats>() as u32,
            ..Default::default()
        };
        call(&self.0, ONECOPY_IOC_STATS, &mut stats)?;
        Ok(stats)
    }

    /// Grants `length` bytes from `address` on, multiples of the page size. Address 0 and [`ONECOPY_WHOLE`]: the whole
    /// address space.
    ///
    /// # Safety
    ///
    /// A holder of the segment may read and, with `write`, write the memory at any time until it is revoked or its
    /// descriptors are gone. The program holds no reference to it across which it relies on its bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a bad range, `EMFILE`, `ENOMEM`.
    pub unsafe fn export(&self, address: usize, length: u64, write: bool) -> io::Result<Segment> {
        let mut command = onecopy_export {
            size: size_of::<onecopy_export>() as u32,
            flags: if write { ONECOPY_EXPORT_WRITE } else { 0 },
            address: address as u64,
            length,
            fd: -1,
            reserved: 0,
        };
        call(&self.0, ONECOPY_IOC_EXPORT, &mut command)?;
        segment(command.fd)
    }

    /// Maps `length` bytes from `address` on, within the caller's attachments, now.
    ///
    /// The result's error is that of the first page that could not be mapped.
    pub fn prefault(&self, address: usize, length: u64, write: bool) -> Progress {
        let mut command = onecopy_prefault {
            size: size_of::<onecopy_prefault>() as u32,
            flags: if write { ONECOPY_PREFAULT_WRITE } else { 0 },
            address: address as u64,
            length,
            done: 0,
        };
        let result = call(&self.0, ONECOPY_IOC_PREFAULT, &mut command);
        Progress {
            done: command.done,
            result,
        }
    }

    /// Copies `length` bytes. The result's error is that of the first byte that could not be copied.
    ///
    /// # Safety
    ///
    /// `to`, if it is memory of the caller or of a segment that the caller owns, may be written; `from` may be read.
    pub unsafe fn copy(&self, from: CopyEnd<'_>, to: CopyEnd<'_>, length: u64) -> Progress {
        let (src_fd, src) = from.parts();
        let (dst_fd, dst) = to.parts();
        let mut command = onecopy_copy {
            size: size_of::<onecopy_copy>() as u32,
            flags: 0,
            src_fd,
            dst_fd,
            src,
            dst,
            length,
            done: 0,
        };
        let result = call(&self.0, ONECOPY_IOC_COPY, &mut command);
        Progress {
            done: command.done,
            result,
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Memory of a process, granted. Its descriptor may be passed on.
#[derive(Debug)]
pub struct Segment(OwnedFd);

impl From<OwnedFd> for Segment {
    /// A descriptor that was received. That it is a segment shows at the first call: `ENOTTY` or `ENODEV` if it is not.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Segment> for OwnedFd {
    fn from(segment: Segment) -> Self {
        segment.0
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Segment {
    /// What it is.
    ///
    /// # Errors
    ///
    /// `ENOTTY` where the descriptor is no segment.
    pub fn info(&self) -> io::Result<onecopy_segment_info> {
        let mut info = onecopy_segment_info {
            size: size_of::<onecopy_segment_info>() as u32,
            ..Default::default()
        };
        call(&self.0, ONECOPY_IOC_SEGMENT_INFO, &mut info)?;
        Ok(info)
    }

    /// A second descriptor of the same segment, with the same or fewer rights.
    ///
    /// # Errors
    ///
    /// `EACCES` for a right that this one lacks.
    pub fn restrict(&self, write: bool) -> io::Result<Self> {
        let mut command = onecopy_restrict {
            size: size_of::<onecopy_restrict>() as u32,
            flags: if write { ONECOPY_EXPORT_WRITE } else { 0 },
            fd: -1,
            reserved: 0,
        };
        call(&self.0, ONECOPY_IOC_RESTRICT, &mut command)?;
        segment(command.fd)
    }

    /// Takes all attachments back, for good.
    ///
    /// # Errors
    ///
    /// `EPERM` for anybody but the owner's process.
    pub fn revoke(&self) -> io::Result<()> {
        call(&self.0, ONECOPY_IOC_REVOKE, &mut ())
    }

    /// Maps `length` bytes that begin `offset` bytes into the segment.
    ///
    /// # Errors
    ///
    /// `EACCES` for writing without the right, `EINVAL` or `ENXIO` beyond the segment, `ENOMEM`.
    pub fn map(&self, offset: u64, length: usize, write: bool) -> io::Result<Mapping> {
        let write = if write { libc::PROT_WRITE } else { 0 };
        Mapping::new(&self.0, offset, length, libc::PROT_READ | write)
    }

    /// Maps the page that says whether what was read was there.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` where the descriptor is no segment.
    pub fn map_generation(&self) -> io::Result<Generation> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(4096);
        Mapping::new(&self.0, ONECOPY_MMAP_GENERATION, page, libc::PROT_READ).map(Generation)
    }
}

/// A mapping, unmapped when it is dropped.
///
/// Memory of another process: it changes at any time, and is reached through raw pointers only. A hole reads as zeroes,
/// takes writes to nowhere, and counts.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type only hands out its address.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: &OwnedFd, offset: u64, length: usize, protection: i32) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        // SAFETY: a new mapping where the kernel finds room touches nothing that exists.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { base, length })
    }

    /// Where it begins.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. Callers that got its address use it no longer than the value lives.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A segment's mapped [`onecopy_generation`].
#[derive(Debug)]
pub struct Generation(Mapping);

impl Generation {
    /// Where it lies, for those who need atomic loads. Mapped as long as `self` lives, for reading only.
    #[must_use]
    pub fn pointer(&self) -> NonNull<onecopy_generation> {
        self.0.base.cast()
    }

    /// What it says now, member by member. Orders nothing: where bytes read before or after matter, use
    /// [`Self::pointer`] and fences.
    #[must_use]
    pub fn read(&self) -> onecopy_generation {
        let page = self.pointer();
        // SAFETY: the page is mapped for the life of `self`; the kernel may change it, hence volatile.
        unsafe { page.read_volatile() }
    }
}

/// The command's structure is the one that its number stands for: each caller pairs them.
fn call<T>(fd: &OwnedFd, command: u32, argument: &mut T) -> io::Result<()> {
    let argument: *mut T = argument;
    // SAFETY: by the pairing the kernel touches nothing beyond the structure, which outlives the call.
    let returned = unsafe { libc::ioctl(fd.as_raw_fd(), command as _, argument) };
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn segment(fd: RawFd) -> io::Result<Segment> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the kernel has just made the descriptor for this caller.
    Ok(Segment(unsafe { OwnedFd::from_raw_fd(fd) }))
}
