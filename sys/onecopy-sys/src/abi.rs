// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the C header declares, under its names.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]

/// What [`onecopy_info::abi`] says.
pub const ONECOPY_ABI_VERSION: u32 = 1;
/// Where the device is.
pub const ONECOPY_DEVICE_FILENAME: &str = "/dev/onecopy";
/// The type field of every command.
pub const ONECOPY_IOC_MAGIC: u8 = 0xC1;

/// What the module offers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct onecopy_info {
    /// Size of this structure.
    pub size: u32,
    /// Out: [`ONECOPY_ABI_VERSION`].
    pub abi: u32,
    /// Out: `ONECOPY_FEATURE_*`.
    pub features: u64,
    /// Out: bytes that one fault may map.
    pub window: u64,
    /// Out: the module's version; ends with a zero byte.
    pub release: [u8; 32],
}
/// Takes [`onecopy_info`].
pub const ONECOPY_IOC_INFO: u32 = io(0x00);
/// 2 MiB mappings where the source is huge.
pub const ONECOPY_FEATURE_HUGE: u64 = 0x1;
/// The owner's page tables are read without taking a page. Absent: up to 16 pages are looked up at a time, and held
/// for that moment.
pub const ONECOPY_FEATURE_SNAPSHOT: u64 = 0x2;
/// Segments have a [`onecopy_generation`].
pub const ONECOPY_FEATURE_GENERATION: u64 = 0x4;
/// [`ONECOPY_IOC_COPY`] works.
pub const ONECOPY_FEATURE_COPY: u64 = 0x8;
/// [`ONECOPY_IOC_PREFAULT`] works.
pub const ONECOPY_FEATURE_PREFAULT: u64 = 0x10;

/// Grant `[address, address + length)` of the caller, multiples of the page size. Address 0 with length
/// [`ONECOPY_WHOLE`]: all of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct onecopy_export {
    /// Size of this structure.
    pub size: u32,
    /// `ONECOPY_EXPORT_*`.
    pub flags: u32,
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Out: the segment, close-on-exec.
    pub fd: i32,
    /// Zero.
    pub reserved: u32,
}
/// Takes [`onecopy_export`].
pub const ONECOPY_IOC_EXPORT: u32 = io(0x01);
/// Holders may write; where the owner itself may not write, nobody may.
pub const ONECOPY_EXPORT_WRITE: u32 = 0x1;
/// [`onecopy_export::length`]: the whole address space.
pub const ONECOPY_WHOLE: u64 = u64::MAX;

/// Map `[address, address + length)` of the caller's attachments now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct onecopy_prefault {
    /// Size of this structure.
    pub size: u32,
    /// [`ONECOPY_PREFAULT_WRITE`]: for writing.
    pub flags: u32,
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Out, also on error: bytes that are mapped.
    pub done: u64,
}
/// Takes [`onecopy_prefault`].
pub const ONECOPY_IOC_PREFAULT: u32 = io(0x02);
/// [`onecopy_prefault::flags`]: for writing.
pub const ONECOPY_PREFAULT_WRITE: u32 = 0x1;

/// Copy `length` bytes from `src` to `dst`: offsets in segments, or addresses of the caller where the descriptor is -1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct onecopy_copy {
    /// Size of this structure.
    pub size: u32,
    /// None yet.
    pub flags: u32,
    /// Segment to copy from, or -1.
    pub src_fd: i32,
    /// Segment to copy to, or -1.
    pub dst_fd: i32,
    /// Offset or address.
    pub src: u64,
    /// Offset or address.
    pub dst: u64,
    /// Bytes.
    pub length: u64,
    /// Out, also on error: bytes copied.
    pub done: u64,
}
/// Takes [`onecopy_copy`].
pub const ONECOPY_IOC_COPY: u32 = io(0x03);

/// Sums since the module was loaded, of all devices and users; gauges are of now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct onecopy_stats {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
    /// Gauge.
    pub segments: u64,
    /// Gauge: xpmem access permits.
    pub permits: u64,
    /// Gauge: knem regions.
    pub regions: u64,
    /// Gauge: by knem regions.
    pub pinned_pages: u64,
    /// Mappings of a segment that were made.
    pub attaches: u64,
    /// Page faults on attachments.
    pub faults: u64,
    /// Faults that could not be answered at once.
    pub retries: u64,
    /// Pages mapped one by one.
    pub mapped_small: u64,
    /// 2 MiB mappings.
    pub mapped_huge: u64,
    /// Changes of owners' memory, each once for every segment that it touches.
    pub invalidations: u64,
    /// Accesses that found no memory of the owner that may be used so.
    pub holes: u64,
    /// COPYs that were begun, and copies of knem that succeeded.
    pub copies: u64,
    /// Bytes that they copied.
    pub copied_bytes: u64,
    /// Gauge: mappings of segments; all VMAs into which one was split count as one.
    pub attachments: u64,
    /// Gauge: address spaces that have segments.
    pub spaces: u64,
    /// Gauge: knem status arrays; each has a thread from the first copy for it on.
    pub workers: u64,
}
/// Takes [`onecopy_stats`].
pub const ONECOPY_IOC_STATS: u32 = io(0x04);

/// What a segment is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct onecopy_segment_info {
    /// Size of this structure.
    pub size: u32,
    /// Out: `ONECOPY_SEGMENT_*`.
    pub flags: u32,
    /// Out: the owner's address of offset 0. Every holder of the descriptor learns it, to make an offset of an address
    /// that the owner names.
    pub address: u64,
    /// Out: bytes.
    pub length: u64,
}
/// Takes [`onecopy_segment_info`].
pub const ONECOPY_IOC_SEGMENT_INFO: u32 = io(0x10);
/// This descriptor may be mapped for writing.
pub const ONECOPY_SEGMENT_WRITE: u32 = 0x1;
/// The owner's memory is gone, or the grant was revoked.
pub const ONECOPY_SEGMENT_DEAD: u32 = 0x2;
/// It is the caller's own memory.
pub const ONECOPY_SEGMENT_MINE: u32 = 0x4;

/// A second descriptor of the same segment, with the same or fewer rights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct onecopy_restrict {
    /// Size of this structure.
    pub size: u32,
    /// [`ONECOPY_EXPORT_WRITE`]: keep the right to write.
    pub flags: u32,
    /// Out: close-on-exec.
    pub fd: i32,
    /// Zero.
    pub reserved: u32,
}
/// Takes [`onecopy_restrict`].
pub const ONECOPY_IOC_RESTRICT: u32 = io(0x11);
/// Take all attachments back, for good. By the owner's process only. No argument.
pub const ONECOPY_IOC_REVOKE: u32 = io(0x12);

/// Offset at which a segment's [`onecopy_generation`] is mapped.
pub const ONECOPY_MMAP_GENERATION: u64 = 1 << 62;

/// A reader through an attachment compares `holes` and `state` with what they were when it was mapped: unchanged means
/// that every byte was the owner's. Load them after the bytes, behind an acquire fence. Once they differ, map it anew:
/// zeroes that stood for a hole may stay for as long as the mapping does.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct onecopy_generation {
    /// Accesses, by any holder, that found no memory of the owner.
    pub holes: u64,
    /// How often the owner's mappings within the segment changed.
    pub invalidations: u64,
    /// `ONECOPY_STATE_*`.
    pub state: u32,
    /// Zero.
    pub reserved: u32,
}
/// The owner lives.
pub const ONECOPY_STATE_ALIVE: u32 = 0;
/// The owner's memory is gone.
pub const ONECOPY_STATE_OWNER_GONE: u32 = 1;
/// The owner took the segment back.
pub const ONECOPY_STATE_REVOKED: u32 = 2;

/// `_IO` of the C header: neither direction nor size.
const fn io(number: u8) -> u32 {
    (ONECOPY_IOC_MAGIC as u32) << 8 | number as u32
}
