// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains, memory, addresses of peers, events.

use std::ffi::{c_int, c_uint, c_void};

use crate::{ibv_context, ibv_gid};

/// The device may write to the memory.
pub const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
/// Peers may write to it.
pub const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
/// Peers may read it.
pub const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
/// Peers may change it by atomic operations.
pub const IBV_ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
/// Windows may be bound to it.
pub const IBV_ACCESS_MW_BIND: c_int = 1 << 4;
/// Pages are faulted in when the device touches them.
pub const IBV_ACCESS_ON_DEMAND: c_int = 1 << 6;

/// A protection domain.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_pd {
    /// Its device.
    pub context: *mut ibv_context,
    /// The kernel's number of it.
    pub handle: u32,
}

/// Registered memory.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_mr {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its domain.
    pub pd: *mut ibv_pd,
    /// Where it begins.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// The kernel's number of it.
    pub handle: u32,
    /// What own requests name it by.
    pub lkey: u32,
    /// What peers name it by.
    pub rkey: u32,
}

/// A window in registered memory.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_mw {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its domain.
    pub pd: *mut ibv_pd,
    /// What peers name it by.
    pub rkey: u32,
    /// The kernel's number of it.
    pub handle: u32,
    /// `IBV_MW_TYPE_*`.
    pub type_: c_uint,
}

/// A window that a call binds.
pub const IBV_MW_TYPE_1: c_uint = 1;
/// A window that a work request binds.
pub const IBV_MW_TYPE_2: c_uint = 2;

/// What a window shows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind_info {
    /// The memory.
    pub mr: *mut ibv_mr,
    /// Where the window begins.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// `IBV_ACCESS_*`.
    pub mw_access_flags: c_uint,
}

/// A request to bind a window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// `IBV_SEND_*`.
    pub send_flags: c_uint,
    /// What it shows.
    pub bind_info: ibv_mw_bind_info,
}

/// Where an address of a network is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_global_route {
    /// The peer.
    pub dgid: ibv_gid,
    /// A hint for routers.
    pub flow_label: u32,
    /// The own address' place in the port's table.
    pub sgid_index: u8,
    /// Routers at most.
    pub hop_limit: u8,
    /// Its class.
    pub traffic_class: u8,
}

/// Stands in the first 40 bytes of a datagram's receive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_grh {
    /// Big endian.
    pub version_tclass_flow: u32,
    /// Big endian.
    pub paylen: u16,
    /// What follows.
    pub next_hdr: u8,
    /// Routers at most.
    pub hop_limit: u8,
    /// From.
    pub sgid: ibv_gid,
    /// To.
    pub dgid: ibv_gid,
}

/// The way to a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    /// By the network's address.
    pub grh: ibv_global_route,
    /// By the subnet's number.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Which of several numbers of the own port.
    pub src_path_bits: u8,
    /// A limit on the rate.
    pub static_rate: u8,
    /// Whether `grh` counts.
    pub is_global: u8,
    /// The own port.
    pub port_num: u8,
}

/// A peer's address, for datagrams.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_ah {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its domain.
    pub pd: *mut ibv_pd,
    /// The kernel's number of it.
    pub handle: u32,
}

/// Thread domains, counters and flows are not described: only pointers to them occur.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_opaque {
    _private: [u8; 0],
}

/// A domain that processes share receive queues in.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_xrcd {
    /// Its device.
    pub context: *mut ibv_context,
}

/// `fd` counts.
pub const IBV_XRCD_INIT_ATTR_FD: u32 = 1;
/// `oflags` counts.
pub const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;

/// A domain to be opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_xrcd_init_attr {
    /// `IBV_XRCD_INIT_ATTR_*`.
    pub comp_mask: u32,
    /// A file that stands for the domain; -1 for none.
    pub fd: c_int,
    /// `O_CREAT`, `O_EXCL`.
    pub oflags: c_int,
}

/// A completion queue overran.
pub const IBV_EVENT_CQ_ERR: c_uint = 0;
/// A queue pair has failed.
pub const IBV_EVENT_QP_FATAL: c_uint = 1;
/// A peer's request was wrong.
pub const IBV_EVENT_QP_REQ_ERR: c_uint = 2;
/// A peer reached for what it may not.
pub const IBV_EVENT_QP_ACCESS_ERR: c_uint = 3;
/// A message came before the pair was ready to send.
pub const IBV_EVENT_COMM_EST: c_uint = 4;
/// The device has failed.
pub const IBV_EVENT_DEVICE_FATAL: c_uint = 8;
/// A port came up.
pub const IBV_EVENT_PORT_ACTIVE: c_uint = 9;
/// A port went down.
pub const IBV_EVENT_PORT_ERR: c_uint = 10;
/// A queue of receives has failed.
pub const IBV_EVENT_SRQ_ERR: c_uint = 14;
/// A queue of receives fell below its limit.
pub const IBV_EVENT_SRQ_LIMIT_REACHED: c_uint = 15;
/// The last receive of a failed pair was taken.
pub const IBV_EVENT_QP_LAST_WQE_REACHED: c_uint = 16;
/// A port's addresses changed.
pub const IBV_EVENT_GID_CHANGE: c_uint = 18;

/// What an event is about.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_element {
    /// `IBV_EVENT_CQ_*`.
    pub cq: *mut crate::ibv_cq,
    /// `IBV_EVENT_QP_*`.
    pub qp: *mut crate::ibv_qp,
    /// `IBV_EVENT_SRQ_*`.
    pub srq: *mut crate::ibv_srq,
    /// All others.
    pub port_num: c_int,
}

/// Something happened on a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    /// What it is about.
    pub element: ibv_async_element,
    /// `IBV_EVENT_*`.
    pub event_type: c_uint,
}
