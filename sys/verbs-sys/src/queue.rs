// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: of completions, of receives, queue pairs.

use std::ffi::{c_int, c_uint, c_void};

use crate::{ibv_ah_attr, ibv_context, ibv_opaque, ibv_pd, ibv_xrcd};

/// Tells of completions by a descriptor.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_comp_channel {
    /// Its device.
    pub context: *mut ibv_context,
    /// Readable when there is an event.
    pub fd: c_int,
    /// Queues that use it.
    pub refcnt: c_int,
}

/// A queue of completions.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "a lock of C has none")]
pub struct ibv_cq {
    /// Its device.
    pub context: *mut ibv_context,
    /// What tells of completions.
    pub channel: *mut ibv_comp_channel,
    /// The program's word.
    pub cq_context: *mut c_void,
    /// The kernel's number of it.
    pub handle: u32,
    /// Its length.
    pub cqe: c_int,
    /// The library's.
    pub mutex: libc::pthread_mutex_t,
    /// The library's.
    pub cond: libc::pthread_cond_t,
    /// Events that were acknowledged.
    pub comp_events_completed: u32,
    /// Events that were acknowledged.
    pub async_events_completed: u32,
}

/// `wc_flags` beyond those that every queue has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_init_attr_ex {
    /// Its length.
    pub cqe: u32,
    /// The program's word.
    pub cq_context: *mut c_void,
    /// What tells of completions.
    pub channel: *mut ibv_comp_channel,
    /// Which interrupt.
    pub comp_vector: u32,
    /// What a completion reports.
    pub wc_flags: u64,
    /// Which of the following count.
    pub comp_mask: u32,
    /// How it is used.
    pub flags: u32,
    /// The domain that its memory is of.
    pub parent_domain: *mut ibv_pd,
}

/// `max_wr` counts.
pub const IBV_SRQ_MAX_WR: c_int = 1;
/// `srq_limit` counts.
pub const IBV_SRQ_LIMIT: c_int = 2;

/// Lengths of a queue of receives.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_srq_attr {
    /// Receives at most.
    pub max_wr: u32,
    /// Pieces of a receive at most.
    pub max_sge: u32,
    /// With fewer receives than this it tells, once.
    pub srq_limit: u32,
}

/// A queue of receives to be made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_init_attr {
    /// The program's word.
    pub srq_context: *mut c_void,
    /// Its lengths.
    pub attr: ibv_srq_attr,
}

/// For the pairs of one process.
pub const IBV_SRQT_BASIC: c_uint = 0;
/// For the pairs of all processes in a domain.
pub const IBV_SRQT_XRC: c_uint = 1;

/// `srq_type` counts.
pub const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1;
/// `pd` counts.
pub const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
/// `xrcd` counts.
pub const IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
/// `cq` counts.
pub const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;

/// Matching of tags.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_tm_cap {
    /// Tags at most.
    pub max_num_tags: u32,
    /// Operations at most.
    pub max_ops: u32,
}

/// A queue of receives to be made, with what came later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_srq_init_attr_ex {
    /// The program's word.
    pub srq_context: *mut c_void,
    /// Its lengths.
    pub attr: ibv_srq_attr,
    /// `IBV_SRQ_INIT_ATTR_*`.
    pub comp_mask: u32,
    /// `IBV_SRQT_*`.
    pub srq_type: c_uint,
    /// Its domain.
    pub pd: *mut ibv_pd,
    /// The domain of its pairs.
    pub xrcd: *mut ibv_xrcd,
    /// Where its receives complete.
    pub cq: *mut ibv_cq,
    /// Matching of tags.
    pub tm_cap: ibv_tm_cap,
}

/// A queue of receives.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "a lock of C has none")]
pub struct ibv_srq {
    /// Its device.
    pub context: *mut ibv_context,
    /// The program's word.
    pub srq_context: *mut c_void,
    /// Its domain.
    pub pd: *mut ibv_pd,
    /// The kernel's number of it.
    pub handle: u32,
    /// The library's.
    pub mutex: libc::pthread_mutex_t,
    /// The library's.
    pub cond: libc::pthread_cond_t,
    /// Events that were acknowledged.
    pub events_completed: u32,
}

/// A reliable connection.
pub const IBV_QPT_RC: c_uint = 2;
/// An unreliable connection.
pub const IBV_QPT_UC: c_uint = 3;
/// Datagrams.
pub const IBV_QPT_UD: c_uint = 4;
/// The sending end of an extended connection.
pub const IBV_QPT_XRC_SEND: c_uint = 9;
/// The receiving end of an extended connection.
pub const IBV_QPT_XRC_RECV: c_uint = 10;

/// Lengths of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_qp_cap {
    /// Sends under way at most.
    pub max_send_wr: u32,
    /// Receives at most.
    pub max_recv_wr: u32,
    /// Pieces of a send at most.
    pub max_send_sge: u32,
    /// Pieces of a receive at most.
    pub max_recv_sge: u32,
    /// Bytes that a request itself can carry.
    pub max_inline_data: u32,
}

/// A queue pair to be made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_init_attr {
    /// The program's word.
    pub qp_context: *mut c_void,
    /// Where sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where receives come from, if not from the pair itself.
    pub srq: *mut ibv_srq,
    /// Its lengths.
    pub cap: ibv_qp_cap,
    /// `IBV_QPT_*`.
    pub qp_type: c_uint,
    /// Whether every send completes.
    pub sq_sig_all: c_int,
}

/// `pd` counts.
pub const IBV_QP_INIT_ATTR_PD: u32 = 1;
/// `xrcd` counts.
pub const IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
/// `send_ops_flags` counts.
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

/// How receives are spread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}

/// A queue pair to be made, with what came later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_init_attr_ex {
    /// The program's word.
    pub qp_context: *mut c_void,
    /// Where sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where receives come from, if not from the pair itself.
    pub srq: *mut ibv_srq,
    /// Its lengths.
    pub cap: ibv_qp_cap,
    /// `IBV_QPT_*`.
    pub qp_type: c_uint,
    /// Whether every send completes.
    pub sq_sig_all: c_int,
    /// `IBV_QP_INIT_ATTR_*`.
    pub comp_mask: u32,
    /// Its domain.
    pub pd: *mut ibv_pd,
    /// The domain that shares receives.
    pub xrcd: *mut ibv_xrcd,
    /// Further kinds.
    pub create_flags: u32,
    /// Segmentation.
    pub max_tso_header: u16,
    /// Spreading.
    pub rwq_ind_tbl: *mut ibv_opaque,
    /// Spreading.
    pub rx_hash_conf: ibv_rx_hash_conf,
    /// Another pair's number.
    pub source_qpn: u32,
    /// Which of the calls of an extended pair it has.
    pub send_ops_flags: u64,
}

/// `qp_num` counts.
pub const IBV_QP_OPEN_ATTR_NUM: u32 = 1;
/// `xrcd` counts.
pub const IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
/// `qp_type` counts.
pub const IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3;

/// A receiving pair of another process to be opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_open_attr {
    /// Which of the following count.
    pub comp_mask: u32,
    /// Its number.
    pub qp_num: u32,
    /// Its domain.
    pub xrcd: *mut ibv_xrcd,
    /// The program's word.
    pub qp_context: *mut c_void,
    /// `IBV_QPT_*`.
    pub qp_type: c_uint,
}

/// Which fields of [`ibv_qp_attr`] count.
#[allow(missing_docs, reason = "named after the fields")]
pub mod mask {
    use std::ffi::c_int;
    pub const IBV_QP_STATE: c_int = 1;
    pub const IBV_QP_CUR_STATE: c_int = 1 << 1;
    pub const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
    pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
    pub const IBV_QP_PORT: c_int = 1 << 5;
    pub const IBV_QP_QKEY: c_int = 1 << 6;
    pub const IBV_QP_AV: c_int = 1 << 7;
    pub const IBV_QP_PATH_MTU: c_int = 1 << 8;
    pub const IBV_QP_TIMEOUT: c_int = 1 << 9;
    pub const IBV_QP_RETRY_CNT: c_int = 1 << 10;
    pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
    pub const IBV_QP_RQ_PSN: c_int = 1 << 12;
    pub const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
    pub const IBV_QP_SQ_PSN: c_int = 1 << 16;
    pub const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const IBV_QP_CAP: c_int = 1 << 19;
    pub const IBV_QP_DEST_QPN: c_int = 1 << 20;
}

/// New, and of no use yet.
pub const IBV_QPS_RESET: c_uint = 0;
/// Takes receives.
pub const IBV_QPS_INIT: c_uint = 1;
/// Ready to receive.
pub const IBV_QPS_RTR: c_uint = 2;
/// Ready to send.
pub const IBV_QPS_RTS: c_uint = 3;
/// Failed: everything posted completes with an error.
pub const IBV_QPS_ERR: c_uint = 6;

/// A queue pair's state, and what goes with it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the manual of the library explains each field")]
pub struct ibv_qp_attr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// A queue pair.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "a lock of C has none")]
pub struct ibv_qp {
    /// Its device.
    pub context: *mut ibv_context,
    /// The program's word.
    pub qp_context: *mut c_void,
    /// Its domain.
    pub pd: *mut ibv_pd,
    /// Where sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where receives come from.
    pub srq: *mut ibv_srq,
    /// The kernel's number of it.
    pub handle: u32,
    /// Its number on the network.
    pub qp_num: u32,
    /// `IBV_QPS_*`.
    pub state: c_uint,
    /// `IBV_QPT_*`.
    pub qp_type: c_uint,
    /// The library's.
    pub mutex: libc::pthread_mutex_t,
    /// The library's.
    pub cond: libc::pthread_cond_t,
    /// Events that were acknowledged.
    pub events_completed: u32,
}
