// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the C header declares, under its names.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]

/// What [`knem_cmd_info::abi`] says.
pub const KNEM_ABI_VERSION: u32 = 0x0000_000d;
/// Where the device is.
pub const KNEM_DEVICE_FILENAME: &str = "/dev/knem";
/// The type field of every command.
pub const KNEM_IOC_MAGIC: u8 = b'K';

/// A region's name. Opaque.
pub type knem_cookie_t = u64;
/// What became of an asynchronous operation: a byte of the array mapped from offset 0 of the device.
pub type knem_status_t = u8;

/// Not done yet.
pub const KNEM_STATUS_PENDING: knem_status_t = 0;
/// All bytes copied.
pub const KNEM_STATUS_SUCCESS: knem_status_t = 1;
/// Not all bytes copied.
pub const KNEM_STATUS_FAILED: knem_status_t = 2;

/// Copies by a DMA engine.
pub const KNEM_FEATURE_DMA: u32 = 0x1;

/// Copy by a DMA engine, if there is one.
pub const KNEM_FLAG_DMA: u32 = 0x1;
/// Let the engine report completion by itself.
pub const KNEM_FLAG_ASYNCDMACOMPLETE: u32 = 0x2;
/// Let the worker wait for the engine.
pub const KNEM_FLAG_DMATHREAD: u32 = 0x4;
/// Let the worker copy.
pub const KNEM_FLAG_MEMCPYTHREAD: u32 = 0x8;
/// Pin local pages too.
pub const KNEM_FLAG_PINLOCAL: u32 = 0x10;
/// The region ends with its first use.
pub const KNEM_FLAG_SINGLEUSE: u32 = 0x20;
/// Report completion by the descriptor.
pub const KNEM_FLAG_NOTIFY_FD: u32 = 0x40;
/// Other users may use the region.
pub const KNEM_FLAG_ANY_USER_ACCESS: u32 = 0x80;

/// Flags that are about a thread.
pub const KNEM_FLAG_ANY_THREAD_MASK: u32 = KNEM_FLAG_DMATHREAD | KNEM_FLAG_MEMCPYTHREAD;
/// With one of these there must be a status array, and the result is in it.
pub const KNEM_FLAG_ANY_ASYNC_MASK: u32 = KNEM_FLAG_ASYNCDMACOMPLETE | KNEM_FLAG_ANY_THREAD_MASK;
/// Flags that are about an engine.
pub const KNEM_FLAG_ANY_DMA_MASK: u32 =
    KNEM_FLAG_DMA | KNEM_FLAG_ASYNCDMACOMPLETE | KNEM_FLAG_DMATHREAD;
/// What the making of a region looks at.
pub const KNEM_FLAG_ANY_CREATE_MASK: u32 = KNEM_FLAG_SINGLEUSE | KNEM_FLAG_ANY_USER_ACCESS;
/// What a copy looks at.
pub const KNEM_FLAG_ANY_COPY_MASK: u32 =
    KNEM_FLAG_ANY_DMA_MASK | KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_PINLOCAL | KNEM_FLAG_NOTIFY_FD;

/// Bytes of one process: fixed width, unlike `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_param_iovec {
    /// Where they begin.
    pub base: u64,
    /// How many.
    pub len: u64,
}

/// What the device offers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_info {
    /// [`KNEM_ABI_VERSION`].
    pub abi: u32,
    /// `KNEM_FEATURE_*`.
    pub features: u32,
    /// Flags without effect.
    pub ignored_flags: u32,
    /// Flags that are always on.
    pub forced_flags: u32,
}
/// Takes [`knem_cmd_info`].
pub const KNEM_CMD_GET_INFO: u32 = ioc(WRITE, 0x10, size_of::<knem_cmd_info>());

/// Where the mask says.
pub const KNEM_BIND_FLAG_CUSTOM: u32 = 0x1;
/// Where the caller may run.
pub const KNEM_BIND_FLAG_CURRENT: u32 = 0x2;
/// Where the caller may not run.
pub const KNEM_BIND_FLAG_CURRENT_REVERSED: u32 = 0x4;

/// Where the worker runs. Before the status array is mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_bind_offload {
    /// `KNEM_BIND_FLAG_*`.
    pub flags: u32,
    /// Bytes of the mask.
    pub mask_len: u32,
    /// Its address.
    pub mask_ptr: u64,
}
/// Takes [`knem_cmd_bind_offload`].
pub const KNEM_CMD_BIND_OFFLOAD: u32 = ioc(READ, 0x11, size_of::<knem_cmd_bind_offload>());

/// A new region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_create_region {
    /// Address of [`knem_cmd_param_iovec`]s.
    pub iovec_array: u64,
    /// How many.
    pub iovec_nr: u32,
    /// [`KNEM_FLAG_SINGLEUSE`], [`KNEM_FLAG_ANY_USER_ACCESS`].
    pub flags: u32,
    /// `PROT_READ`, `PROT_WRITE`: what others may do with it.
    pub protection: u32,
    /// Unused.
    pub pad1: u32,
    /// Out: its name.
    pub cookie: knem_cookie_t,
}
/// Takes [`knem_cmd_create_region`].
pub const KNEM_CMD_CREATE_REGION: u32 =
    ioc(READ | WRITE, 0x21, size_of::<knem_cmd_create_region>());
/// Takes a [`knem_cookie_t`].
pub const KNEM_CMD_DESTROY_REGION: u32 = ioc(READ, 0x22, size_of::<knem_cookie_t>());

/// Copy between regions, as much as both have.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_copy {
    /// From this region.
    pub src_cookie: knem_cookie_t,
    /// From this byte of it on.
    pub src_offset: u64,
    /// To this region.
    pub dst_cookie: knem_cookie_t,
    /// To this byte of it on.
    pub dst_offset: u64,
    /// `KNEM_FLAG_*`.
    pub flags: u32,
    /// Out: `KNEM_STATUS_*`.
    pub current_status: u32,
    /// Which byte of the status array reports it, if it is still pending.
    pub async_status_index: u32,
    /// Unused.
    pub pad: u32,
}
/// Takes [`knem_cmd_copy`].
pub const KNEM_CMD_COPY: u32 = ioc(READ, 0x32, size_of::<knem_cmd_copy>());

/// Copy between regions, at most `length` bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_copy_bounded {
    /// From this region.
    pub src_cookie: knem_cookie_t,
    /// From this byte of it on.
    pub src_offset: u64,
    /// To this region.
    pub dst_cookie: knem_cookie_t,
    /// To this byte of it on.
    pub dst_offset: u64,
    /// Bytes.
    pub length: u64,
    /// `KNEM_FLAG_*`.
    pub flags: u32,
    /// Out: `KNEM_STATUS_*`.
    pub current_status: u32,
    /// Which byte of the status array reports it, if it is still pending.
    pub async_status_index: u32,
    /// Unused.
    pub pad: u32,
}
/// Takes [`knem_cmd_copy_bounded`].
pub const KNEM_CMD_COPY_BOUNDED: u32 = ioc(READ, 0x34, size_of::<knem_cmd_copy_bounded>());

/// Copy between memory of the caller and a region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_inline_copy {
    /// Address of [`knem_cmd_param_iovec`]s.
    pub local_iovec_array: u64,
    /// How many.
    pub local_iovec_nr: u32,
    /// Non-zero: from the caller to the region.
    pub write: u32,
    /// The region.
    pub remote_cookie: knem_cookie_t,
    /// From this byte of it on.
    pub remote_offset: u64,
    /// `KNEM_FLAG_*`.
    pub flags: u32,
    /// Out: `KNEM_STATUS_*`.
    pub current_status: u32,
    /// Which byte of the status array reports it, if it is still pending.
    pub async_status_index: u32,
    /// Unused.
    pub pad: u32,
}
/// Takes [`knem_cmd_inline_copy`].
pub const KNEM_CMD_INLINE_COPY: u32 = ioc(READ, 0x33, size_of::<knem_cmd_inline_copy>());

/// Copy between memory of the caller and a region, at most `length` bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_inline_copy_bounded {
    /// Address of [`knem_cmd_param_iovec`]s.
    pub local_iovec_array: u64,
    /// How many.
    pub local_iovec_nr: u32,
    /// Non-zero: from the caller to the region.
    pub write: u32,
    /// The region.
    pub remote_cookie: knem_cookie_t,
    /// From this byte of it on.
    pub remote_offset: u64,
    /// Bytes.
    pub length: u64,
    /// `KNEM_FLAG_*`.
    pub flags: u32,
    /// Out: `KNEM_STATUS_*`.
    pub current_status: u32,
    /// Which byte of the status array reports it, if it is still pending.
    pub async_status_index: u32,
    /// Unused.
    pub pad: u32,
}
/// Takes [`knem_cmd_inline_copy_bounded`].
pub const KNEM_CMD_INLINE_COPY_BOUNDED: u32 =
    ioc(READ, 0x35, size_of::<knem_cmd_inline_copy_bounded>());

/// Before regions: expose memory for one receive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_init_send_param {
    /// Address of [`knem_cmd_param_iovec`]s.
    pub send_iovec_array: u64,
    /// How many.
    pub send_iovec_nr: u32,
    /// `KNEM_FLAG_*`.
    pub flags: u32,
    /// Out: its name.
    pub send_cookie: knem_cookie_t,
}
/// Takes [`knem_cmd_init_send_param`].
pub const KNEM_CMD_INIT_SEND: u32 = ioc(READ | WRITE, 0x20, size_of::<knem_cmd_init_send_param>());

/// Before regions: take what was exposed, asynchronously.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_init_async_recv_param {
    /// Address of [`knem_cmd_param_iovec`]s.
    pub recv_iovec_array: u64,
    /// How many.
    pub recv_iovec_nr: u32,
    /// Which byte of the status array reports completion.
    pub status_index: u32,
    /// What was exposed.
    pub send_cookie: knem_cookie_t,
    /// `KNEM_FLAG_*`.
    pub flags: u32,
    /// Unused.
    pub pad: u32,
}
/// Takes [`knem_cmd_init_async_recv_param`].
pub const KNEM_CMD_INIT_ASYNC_RECV: u32 =
    ioc(READ, 0x30, size_of::<knem_cmd_init_async_recv_param>());

/// Before regions: take what was exposed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct knem_cmd_sync_recv_param {
    /// Address of [`knem_cmd_param_iovec`]s.
    pub recv_iovec_array: u64,
    /// How many.
    pub recv_iovec_nr: u32,
    /// Out: `KNEM_STATUS_*`.
    pub status: u32,
    /// What was exposed.
    pub send_cookie: knem_cookie_t,
    /// `KNEM_FLAG_*`.
    pub flags: u32,
    /// Unused.
    pub pad: u32,
}
/// Takes [`knem_cmd_sync_recv_param`].
pub const KNEM_CMD_SYNC_RECV: u32 = ioc(READ, 0x31, size_of::<knem_cmd_sync_recv_param>());

const WRITE: u32 = 1;
const READ: u32 = 2;

/// `_IOR`, `_IOW`, `_IOWR` of the C header.
const fn ioc(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (KNEM_IOC_MAGIC as u32) << 8 | number
}
