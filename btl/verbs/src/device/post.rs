// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting and polling: what is called for every message.
//!
//! # Safety
//!
//! Requests lie on the stack for the length of the call, which copies them. What they name is the caller's to keep.
#![allow(unsafe_code, reason = "calls of libibverbs")]

use std::ffi::c_uint;
use std::io;
use std::ptr::null_mut;

use verbs_sys::opcode::{
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
};
use verbs_sys::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_RECV, IBV_WC_WITH_IMM, ibv_mw_bind_info,
    ibv_recv_wr, ibv_send_wr, ibv_send_wr_bind, ibv_send_wr_ext, ibv_send_wr_imm, ibv_send_wr_rdma,
    ibv_send_wr_ud, ibv_send_wr_wr, ibv_sge, ibv_wc,
};

use super::Verbs;
use super::objects::{Completions, zero};
use super::pairs::{PairOf, ReceivesOf};
use crate::provider::{Finished, Piece, Remote, Request, Verb};

/// Completions that are taken at once. They lie on the stack and are cleared for each poll, mostly in vain. So they are
/// few.
const BATCH: usize = 4;
/// Pieces of a request: owners above use one.
const PIECES: usize = 4;

#[inline]
pub(super) fn poll(queue: &Completions, into: &mut [Finished]) -> io::Result<usize> {
    let mut taken = 0;
    while taken < into.len() {
        let mut batch = [ibv_wc::default(); BATCH];
        let room = (into.len() - taken).min(BATCH);
        let most = i32::try_from(room).unwrap_or(0);
        // SAFETY: the queue is open, and there is room for so many.
        let count = unsafe { verbs_sys::ibv_poll_cq(queue.raw(), most, batch.as_mut_ptr()) };
        // What was taken before is lost with that, as it is within a call of the library.
        let count = usize::try_from(count)
            .map_err(|_| io::Error::other("the queue of completions failed"))?
            .min(room);
        for (finished, wc) in into[taken..].iter_mut().zip(&batch[..count]) {
            // Of a failed operation only name, status and pair count.
            let whole = wc.status == 0;
            *finished = Finished {
                id: wc.wr_id,
                status: wc.status,
                received: whole && wc.opcode & IBV_WC_RECV != 0,
                bytes: wc.byte_len,
                immediate: (whole && wc.wc_flags & IBV_WC_WITH_IMM != 0)
                    .then(|| u32::from_be(wc.imm_data)),
                pair: wc.qp_num,
                source: if whole { wc.src_qp } else { 0 },
            };
        }
        taken += count;
        if count < room {
            break;
        }
    }
    Ok(taken)
}

fn sges(pieces: &[Piece]) -> io::Result<([ibv_sge; PIECES], i32)> {
    let mut list = [ibv_sge::default(); PIECES];
    if pieces.len() > PIECES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (sge, piece) in list.iter_mut().zip(pieces) {
        *sge = ibv_sge {
            addr: piece.address,
            length: piece.length,
            lkey: piece.key,
        };
    }
    Ok((list, i32::try_from(pieces.len()).unwrap_or(0)))
}

/// What a request asks for, in the library's terms.
struct Work {
    opcode: c_uint,
    /// The peer's memory, or the peer of a datagram.
    target: ibv_send_wr_wr,
    /// The number of the peer's shared receives.
    shared: u32,
}

#[inline]
fn work(verb: &Verb<'_, Verbs>, with_immediate: bool) -> Work {
    let rdma = |remote: &Remote| ibv_send_wr_wr {
        rdma: ibv_send_wr_rdma {
            remote_addr: remote.address,
            rkey: remote.key,
        },
    };
    let nowhere = rdma(&Remote { address: 0, key: 0 });
    let send = if with_immediate {
        IBV_WR_SEND_WITH_IMM
    } else {
        IBV_WR_SEND
    };
    let mut shared = 0;
    let (opcode, target) = match verb {
        Verb::Send => (send, nowhere),
        Verb::SendTo { ah, number, qkey } => {
            let ud = ibv_send_wr_ud {
                ah: ah.raw.as_ptr(),
                remote_qpn: *number,
                remote_qkey: *qkey,
            };
            (send, ibv_send_wr_wr { ud })
        }
        Verb::SendShared { receives } => {
            shared = *receives;
            (send, nowhere)
        }
        Verb::Write(to) if with_immediate => (IBV_WR_RDMA_WRITE_WITH_IMM, rdma(to)),
        Verb::Write(to) => (IBV_WR_RDMA_WRITE, rdma(to)),
        Verb::Read(from) => (IBV_WR_RDMA_READ, rdma(from)),
        Verb::ReadShared { from, receives } => {
            shared = *receives;
            (IBV_WR_RDMA_READ, rdma(from))
        }
    };
    Work {
        opcode,
        target,
        shared,
    }
}

/// # Safety
///
/// As [`crate::Provider::send`].
#[inline]
pub(super) unsafe fn send(pair: &PairOf, request: &Request<'_, Verbs>) -> io::Result<()> {
    let (mut list, count) = sges(request.pieces)?;
    let Work {
        opcode,
        target,
        shared,
    } = work(&request.verb, request.immediate.is_some());
    let mut flags = 0;
    if request.signaled {
        flags |= IBV_SEND_SIGNALED;
    }
    if request.inline {
        flags |= IBV_SEND_INLINE;
    }
    let nothing = ibv_mw_bind_info {
        mr: null_mut(),
        addr: 0,
        length: 0,
        mw_access_flags: 0,
    };
    let mut wr = ibv_send_wr {
        wr_id: request.id,
        next: null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: count,
        opcode,
        send_flags: flags,
        number: ibv_send_wr_imm {
            imm_data: request.immediate.unwrap_or(0).to_be(),
        },
        wr: target,
        remote_srqn: shared,
        more: ibv_send_wr_ext {
            bind_mw: ibv_send_wr_bind {
                mw: null_mut(),
                rkey: 0,
                bind_info: nothing,
            },
        },
    };
    let mut bad = null_mut();
    // SAFETY: the pair exists, the request is whole; the caller keeps what it names.
    zero(unsafe { verbs_sys::ibv_post_send(pair.raw(), &raw mut wr, &raw mut bad) })
}

fn receive_wr(id: u64, list: &mut [ibv_sge; PIECES], count: i32) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: id,
        next: null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: count,
    }
}

/// # Safety
///
/// As [`crate::Provider::receive`].
pub(super) unsafe fn receive(pair: &PairOf, id: u64, pieces: &[Piece]) -> io::Result<()> {
    let (mut list, count) = sges(pieces)?;
    let mut wr = receive_wr(id, &mut list, count);
    let mut bad = null_mut();
    // SAFETY: as for a send.
    zero(unsafe { verbs_sys::ibv_post_recv(pair.raw(), &raw mut wr, &raw mut bad) })
}

/// # Safety
///
/// As [`crate::Provider::receive_shared`].
pub(super) unsafe fn receive_shared(
    receives: &ReceivesOf,
    id: u64,
    pieces: &[Piece],
) -> io::Result<()> {
    let (mut list, count) = sges(pieces)?;
    let mut wr = receive_wr(id, &mut list, count);
    let mut bad = null_mut();
    // SAFETY: as for a send.
    zero(unsafe { verbs_sys::ibv_post_srq_recv(receives.raw(), &raw mut wr, &raw mut bad) })
}
