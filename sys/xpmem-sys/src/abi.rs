// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the C header declares, under its names.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]

/// The version of the interface: major (16 bits), minor (4), step (12). What [`XPMEM_CMD_VERSION`] returns.
pub const XPMEM_CURRENT_VERSION: u32 = 0x0002_7004;

/// The type field of every command.
pub const XPMEM_IOC_MAGIC: u8 = b'x';
/// Returns the version.
pub const XPMEM_CMD_VERSION: u32 = io(0);
/// Takes [`xpmem_cmd_make`].
pub const XPMEM_CMD_MAKE: u32 = io(1);
/// Takes [`xpmem_cmd_remove`].
pub const XPMEM_CMD_REMOVE: u32 = io(2);
/// Takes [`xpmem_cmd_get`].
pub const XPMEM_CMD_GET: u32 = io(3);
/// Takes [`xpmem_cmd_release`].
pub const XPMEM_CMD_RELEASE: u32 = io(4);
/// Takes [`xpmem_cmd_attach`].
pub const XPMEM_CMD_ATTACH: u32 = io(5);
/// Takes [`xpmem_cmd_detach`].
pub const XPMEM_CMD_DETACH: u32 = io(6);
/// Before a fork. No argument.
pub const XPMEM_CMD_FORK_BEGIN: u32 = io(7);
/// After a fork. No argument.
pub const XPMEM_CMD_FORK_END: u32 = io(8);

/// [`xpmem_cmd_get::flags`]: for reading.
pub const XPMEM_RDONLY: i32 = 0x1;
/// [`xpmem_cmd_get::flags`]: for reading and writing.
pub const XPMEM_RDWR: i32 = 0x2;
/// The permit's value is a mode like that of a file, 0 to 0777.
pub const XPMEM_PERMIT_MODE: i32 = 0x1;
/// [`xpmem_cmd_make::size`]: up to the end of the address space.
pub const XPMEM_MAXADDR_SIZE: u64 = u64::MAX;
/// "This process has not opened the device": beyond the kernel's own errors. A forked child opens it anew.
pub const XPMEM_ERRNO_NOPROC: i32 = 2004;

/// A segment's id. Opaque.
pub type xpmem_segid_t = i64;
/// A permit's id. Opaque.
pub type xpmem_apid_t = i64;

/// Export `[vaddr, vaddr + size)`, both multiples of the page size.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct xpmem_cmd_make {
    /// Where the segment begins.
    pub vaddr: u64,
    /// Its bytes.
    pub size: u64,
    /// [`XPMEM_PERMIT_MODE`].
    pub permit_type: i32,
    /// Unused.
    pub pad: u32,
    /// The mode.
    pub permit_value: u64,
    /// Out: the segment.
    pub segid: xpmem_segid_t,
}

/// End a segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct xpmem_cmd_remove {
    /// Which.
    pub segid: xpmem_segid_t,
}

/// Ask for access to a segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct xpmem_cmd_get {
    /// Which.
    pub segid: xpmem_segid_t,
    /// [`XPMEM_RDONLY`] or [`XPMEM_RDWR`].
    pub flags: i32,
    /// [`XPMEM_PERMIT_MODE`].
    pub permit_type: i32,
    /// Zero.
    pub permit_value: u64,
    /// Out: the permit.
    pub apid: xpmem_apid_t,
}

/// Give a permit back.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct xpmem_cmd_release {
    /// Which.
    pub apid: xpmem_apid_t,
}

/// Map `size` bytes that begin `offset` bytes into the segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct xpmem_cmd_attach {
    /// The permit.
    pub apid: xpmem_apid_t,
    /// A multiple of the page size.
    pub offset: i64,
    /// Bytes.
    pub size: u64,
    /// In: where, or zero. Out: where it lies.
    pub vaddr: u64,
    /// Unused.
    pub fd: i32,
    /// Unused.
    pub flags: i32,
}

/// Unmap an attachment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct xpmem_cmd_detach {
    /// An address within it.
    pub vaddr: u64,
}

/// `_IO` of the C header: neither direction nor size.
const fn io(number: u8) -> u32 {
    (XPMEM_IOC_MAGIC as u32) << 8 | number as u32
}
