// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests and their completions.

use std::ffi::{c_int, c_uint, c_void};

use crate::{ibv_ah, ibv_mw, ibv_mw_bind_info};

/// A piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_sge {
    /// Where it begins.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The memory's own key.
    pub lkey: u32,
}

/// What a send does.
#[allow(missing_docs, reason = "the field's own names")]
pub mod opcode {
    use std::ffi::c_uint;
    pub const IBV_WR_RDMA_WRITE: c_uint = 0;
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
    pub const IBV_WR_SEND: c_uint = 2;
    pub const IBV_WR_SEND_WITH_IMM: c_uint = 3;
    pub const IBV_WR_RDMA_READ: c_uint = 4;
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
    pub const IBV_WR_LOCAL_INV: c_uint = 7;
    pub const IBV_WR_BIND_MW: c_uint = 8;
    pub const IBV_WR_SEND_WITH_INV: c_uint = 9;
}

/// Begins after all earlier reads have ended.
pub const IBV_SEND_FENCE: c_uint = 1;
/// Tells of its completion.
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// Rings at a receiver that asked for such events only.
pub const IBV_SEND_SOLICITED: c_uint = 1 << 2;
/// The bytes are copied when it is posted.
pub const IBV_SEND_INLINE: c_uint = 1 << 3;

/// A number that goes with a send, or a key that ends with it.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_imm {
    /// Big endian.
    pub imm_data: u32,
    /// The key.
    pub invalidate_rkey: u32,
}

/// The peer's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_rdma {
    /// Where it begins there.
    pub remote_addr: u64,
    /// Its key.
    pub rkey: u32,
}

/// A word of the peer's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_atomic {
    /// Its address in the peer's memory.
    pub remote_addr: u64,
    /// What is compared or added.
    pub compare_add: u64,
    /// What comes in its place.
    pub swap: u64,
    /// Its key.
    pub rkey: u32,
}

/// Whom a datagram is for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_ud {
    /// The way.
    pub ah: *mut ibv_ah,
    /// The queue pair there.
    pub remote_qpn: u32,
    /// Its word.
    pub remote_qkey: u32,
}

/// What depends on the operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_wr {
    /// Reads and writes.
    pub rdma: ibv_send_wr_rdma,
    /// Atomic operations.
    pub atomic: ibv_send_wr_atomic,
    /// Datagrams.
    pub ud: ibv_send_wr_ud,
}

/// The binding of a window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_bind {
    /// The window.
    pub mw: *mut ibv_mw,
    /// Its new key.
    pub rkey: u32,
    /// What it shows.
    pub bind_info: ibv_mw_bind_info,
}

/// Segmentation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr_tso {
    /// What begins each segment.
    pub hdr: *mut c_void,
    /// Its bytes.
    pub hdr_sz: u16,
    /// Bytes of a segment.
    pub mss: u16,
}

/// What few operations have.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_ext {
    /// [`opcode::IBV_WR_BIND_MW`].
    pub bind_mw: ibv_send_wr_bind,
    /// Segmentation.
    pub tso: ibv_send_wr_tso,
}

/// A send.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(
    missing_debug_implementations,
    reason = "the operation says which members count"
)]
pub struct ibv_send_wr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next one of a list.
    pub next: *mut ibv_send_wr,
    /// Its pieces.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
    /// [`opcode`].
    pub opcode: c_uint,
    /// `IBV_SEND_*`.
    pub send_flags: c_uint,
    /// A number that goes along.
    pub number: ibv_send_wr_imm,
    /// Whom it is for.
    pub wr: ibv_send_wr_wr,
    /// The queue of receives there, of an extended connection.
    pub remote_srqn: u32,
    /// What few operations have.
    pub more: ibv_send_wr_ext,
}

/// A receive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_recv_wr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next one of a list.
    pub next: *mut ibv_recv_wr,
    /// Its pieces.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
}

/// How an operation ended.
#[allow(missing_docs, reason = "`ibv_wc_status_str` says it")]
pub mod status {
    use std::ffi::c_uint;
    pub const IBV_WC_SUCCESS: c_uint = 0;
    pub const IBV_WC_LOC_LEN_ERR: c_uint = 1;
    pub const IBV_WC_LOC_QP_OP_ERR: c_uint = 2;
    pub const IBV_WC_LOC_PROT_ERR: c_uint = 4;
    pub const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
    pub const IBV_WC_MW_BIND_ERR: c_uint = 6;
    pub const IBV_WC_BAD_RESP_ERR: c_uint = 7;
    pub const IBV_WC_LOC_ACCESS_ERR: c_uint = 8;
    pub const IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
    pub const IBV_WC_REM_ACCESS_ERR: c_uint = 10;
    pub const IBV_WC_REM_OP_ERR: c_uint = 11;
    pub const IBV_WC_RETRY_EXC_ERR: c_uint = 12;
    pub const IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
    pub const IBV_WC_REM_ABORT_ERR: c_uint = 16;
    pub const IBV_WC_FATAL_ERR: c_uint = 19;
    pub const IBV_WC_RESP_TIMEOUT_ERR: c_uint = 20;
    pub const IBV_WC_GENERAL_ERR: c_uint = 21;
}

/// A send has ended.
pub const IBV_WC_SEND: c_uint = 0;
/// A write has ended.
pub const IBV_WC_RDMA_WRITE: c_uint = 1;
/// A read has ended.
pub const IBV_WC_RDMA_READ: c_uint = 2;
/// A receive has ended.
pub const IBV_WC_RECV: c_uint = 1 << 7;
/// A write with a number has taken a receive.
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = (1 << 7) + 1;

/// The receive begins with [`crate::ibv_grh`].
pub const IBV_WC_GRH: c_uint = 1;
/// A number came along.
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    /// Of the request. The only field, with `status`, `qp_num` and `vendor_err`, that counts after an error.
    pub wr_id: u64,
    /// [`status`].
    pub status: c_uint,
    /// `IBV_WC_*`.
    pub opcode: c_uint,
    /// What the device's maker says of an error.
    pub vendor_err: u32,
    /// Bytes that came.
    pub byte_len: u32,
    /// The number that came along, big endian, or the key that ended.
    pub imm_data: u32,
    /// The own queue pair.
    pub qp_num: u32,
    /// The peer's, of a datagram.
    pub src_qp: u32,
    /// [`IBV_WC_GRH`], [`IBV_WC_WITH_IMM`].
    pub wc_flags: c_uint,
    /// Of the subnet.
    pub pkey_index: u16,
    /// Of the subnet.
    pub slid: u16,
    /// Of the subnet.
    pub sl: u8,
    /// Of the subnet.
    pub dlid_path_bits: u8,
}
