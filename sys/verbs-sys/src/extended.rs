// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended queues, whose calls are pointers in the queue itself.

use std::ffi::{c_int, c_uint, c_void};

use crate::{ibv_ah, ibv_comp_channel, ibv_context, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_sge};

/// Bytes that are copied into a request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_data_buf {
    /// Where they begin.
    pub addr: *mut c_void,
    /// How many.
    pub length: usize,
}

type Pair = *mut ibv_qp_ex;
type Queue = *mut ibv_cq_ex;

/// A queue pair whose requests are built by calls: `wr_start`, then each request, then `wr_complete`. For a request
/// these are `wr_id` and `wr_flags`, one call that says what it does, and those that say with what.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "a lock of C has none")]
#[allow(missing_docs, reason = "the manual of the library explains each call")]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Pair, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(Pair, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(Pair, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(Pair, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(Pair, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(Pair, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(Pair, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(Pair)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(Pair, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(Pair, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(Pair, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(Pair, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(Pair, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(Pair, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(Pair, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(Pair, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(Pair, usize, *const ibv_sge)>,
    pub wr_start: Option<unsafe extern "C" fn(Pair)>,
    pub wr_complete: Option<unsafe extern "C" fn(Pair) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(Pair)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(Pair, u32, u64, *const c_void)>,
}

/// How [`ibv_cq_ex`] is polled: nothing to say yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_poll_cq_attr {
    /// Zero.
    pub comp_mask: u32,
}

/// What the device says of a matched tag.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_: u32,
}

/// A queue of completions that are read field by field, between `start_poll` and `end_poll`.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "a lock of C has none")]
#[allow(missing_docs, reason = "the manual of the library explains each call")]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(Queue, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(Queue) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(Queue)>,
    pub read_opcode: Option<unsafe extern "C" fn(Queue) -> c_uint>,
    pub read_vendor_err: Option<unsafe extern "C" fn(Queue) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(Queue) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(Queue) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(Queue) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(Queue) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(Queue) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(Queue) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(Queue) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(Queue) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(Queue) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(Queue) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(Queue) -> u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(Queue, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(Queue) -> u64>,
}
