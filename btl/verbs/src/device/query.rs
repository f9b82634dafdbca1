// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a device tells, and changes of a pair's state.
//!
//! # Safety
//!
//! See [`super`].
#![allow(unsafe_code, reason = "calls of libibverbs")]

use std::io;
use std::mem::MaybeUninit;

use verbs_sys::mask::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE,
    IBV_QP_TIMEOUT,
};
use verbs_sys::{
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ATOMIC_NONE, IBV_DEVICE_XRC,
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SRQ_LIMIT_REACHED, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_ODP_SUPPORT,
    IBV_PORT_ACTIVE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, ibv_ah_attr,
    ibv_async_event, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_global_route, ibv_port_attr,
    ibv_qp_attr,
};

use super::objects::{Context, zero};
use super::pairs::PairOf;
use crate::provider::{Address, Change, Event, Kind, Limits, Path, Port};

/// The vendor that `rdma_rxe` names: none of the registered ones (`RXE_VENDOR_ID` in the kernel).
const SOFTWARE: u32 = 0x00ff_ffff;

pub(super) fn limits(context: &Context) -> io::Result<Limits> {
    let mut attr = MaybeUninit::<ibv_device_attr_ex>::zeroed();
    // SAFETY: the context is open, the structure can be written.
    zero(unsafe {
        verbs_sys::ibv_query_device_ex(context.library(), context.raw(), attr.as_mut_ptr())
    })?;
    // SAFETY: zeros are a value of it, and the call wrote others.
    let attr = unsafe { attr.assume_init() };
    let device = attr.orig_attr;
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    // SAFETY: the context is open.
    let interrupts = unsafe { (*context.raw()).num_comp_vectors };
    Ok(Limits {
        pairs: count(device.max_qp),
        depth: count(device.max_qp_wr),
        pieces: count(device.max_sge),
        shared_pieces: count(device.max_srq_sge),
        completions: count(device.max_cqe),
        shared_receives: if device.max_srq > 0 {
            count(device.max_srq_wr)
        } else {
            0
        },
        registrations: count(device.max_mr),
        registration_bytes: device.max_mr_size,
        reads: u8::try_from(device.max_qp_rd_atom.min(device.max_qp_init_rd_atom))
            .unwrap_or(u8::MAX),
        sound_reads: device.vendor_id != SOFTWARE,
        ports: device.phys_port_cnt,
        shared_connections: device.device_cap_flags & IBV_DEVICE_XRC != 0,
        faults: attr.odp_caps.general_caps & IBV_ODP_SUPPORT != 0,
        atomics: device.atomic_cap != IBV_ATOMIC_NONE,
        interrupts: count(interrupts),
    })
}

pub(super) fn port(context: &Context, port: u8) -> io::Result<Port> {
    let attr = attributes(context, port)?;
    Ok(Port {
        active: attr.state == IBV_PORT_ACTIVE,
        packet: 128 << attr.active_mtu.clamp(1, 5),
        message: attr.max_msg_sz,
        lid: attr.lid,
        ethernet: attr.link_layer == IBV_LINK_LAYER_ETHERNET,
        speed: speed(attr.active_speed, attr.active_width),
    })
}

/// Megabits a second of a port, by the standard's numbers for the speed of a line and for how many there are.
fn speed(line: u8, width: u8) -> u32 {
    let line = match line {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lines = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    line * lines
}

fn attributes(context: &Context, port: u8) -> io::Result<ibv_port_attr> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: the context is open, the structure can be written.
    zero(unsafe {
        verbs_sys::ibv_query_port(context.library(), context.raw(), port, &raw mut attr)
    })?;
    Ok(attr)
}

pub(super) fn addresses(context: &Context, port: u8) -> io::Result<Vec<Address>> {
    let rows = u8::try_from(attributes(context, port)?.gid_tbl_len.max(0)).unwrap_or(u8::MAX);
    let mut found = Vec::new();
    for index in 0..rows {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: the context is open, the structure can be written and has this size.
        let code = unsafe {
            (context.library()._ibv_query_gid_ex)(
                context.raw(),
                u32::from(port),
                u32::from(index),
                &raw mut entry,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        // A row may be empty.
        if code == 0 && entry.gid.raw != [0; 16] {
            let routable = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
            found.push(Address {
                index,
                bytes: entry.gid.raw,
                routable,
            });
        }
    }
    Ok(found)
}

pub(super) fn next_event(context: &Context) -> io::Result<Option<Event>> {
    let library = context.library();
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: the context is open, the structure can be written.
    if unsafe { (library.ibv_get_async_event)(context.raw(), event.as_mut_ptr()) } != 0 {
        let error = io::Error::last_os_error();
        let quiet = matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        );
        return if quiet { Ok(None) } else { Err(error) };
    }
    // SAFETY: the call wrote it.
    let mut event = unsafe { event.assume_init() };
    let port = || {
        // SAFETY: events of ports have a number there.
        let number = unsafe { event.element.port_num };
        u8::try_from(number).unwrap_or(0)
    };
    let reported = match event.event_type {
        IBV_EVENT_PORT_ACTIVE => Event::PortUp(port()),
        IBV_EVENT_PORT_ERR => Event::PortDown(port()),
        IBV_EVENT_GID_CHANGE => Event::Addresses(port()),
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: events of pairs have a pair there.
            let pair = unsafe { event.element.qp };
            // SAFETY: the pair exists until its event is acknowledged.
            Event::PairFailed(unsafe { (*pair).qp_num })
        }
        IBV_EVENT_SRQ_LIMIT_REACHED => Event::ReceivesLow,
        IBV_EVENT_CQ_ERR => Event::QueueOverran,
        IBV_EVENT_DEVICE_FATAL => Event::DeviceFailed,
        other => Event::Other(other),
    };
    // SAFETY: the event is acknowledged once.
    unsafe { (library.ibv_ack_async_event)(&raw mut event) };
    Ok(Some(reported))
}

pub(super) fn path(path: &Path) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: path.to },
            flow_label: 0,
            sgid_index: path.from,
            hop_limit: 64,
            traffic_class: 0,
        },
        dlid: path.lid,
        is_global: u8::from(path.routed),
        port_num: path.port,
        ..ibv_ah_attr::default()
    }
}

pub(super) fn change(pair: &PairOf, kind: Kind, change: &Change) -> io::Result<()> {
    let mut attr = ibv_qp_attr::default();
    let mut mask = IBV_QP_STATE;
    let datagrams = kind == Kind::Datagrams;
    match change {
        Change::Prepare { port, qkey } => {
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = *port;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if datagrams {
                attr.qkey = *qkey;
                mask |= IBV_QP_QKEY;
            } else {
                attr.qp_access_flags =
                    (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE).cast_unsigned();
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        Change::Receive { peer, timing } => {
            attr.qp_state = IBV_QPS_RTR;
            if let Some(peer) = peer {
                attr.path_mtu = peer.packet.max(256).ilog2() - 7;
                attr.dest_qp_num = peer.number;
                attr.rq_psn = peer.first;
                attr.ah_attr = path(&peer.path);
                mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
                // An end that only sends extended messages is asked for nothing.
                if kind != Kind::SharedSend {
                    attr.max_dest_rd_atomic = peer.reads;
                    attr.min_rnr_timer = timing.full_timer();
                    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
                }
            }
        }
        Change::Send {
            first,
            reads,
            timing,
        } => {
            attr.qp_state = IBV_QPS_RTS;
            attr.sq_psn = *first;
            mask |= IBV_QP_SQ_PSN;
            if !datagrams {
                attr.timeout = timing.exponent();
                mask |= IBV_QP_TIMEOUT;
                if kind != Kind::SharedReceive {
                    attr.retry_cnt = timing.retries();
                    attr.rnr_retry = timing.full_retries();
                    attr.max_rd_atomic = *reads;
                    mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
                }
            }
        }
        Change::Fail => attr.qp_state = IBV_QPS_ERR,
    }
    // SAFETY: the pair exists, the structure is whole.
    zero(unsafe { (pair.library().ibv_modify_qp)(pair.raw(), &raw mut attr, mask) })
}
