// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs, and what their receives come from.
//!
//! # Safety
//!
//! See [`super`].
#![allow(unsafe_code, reason = "calls of libibverbs")]

use std::ffi::c_uint;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use verbs_sys::mask::IBV_QP_STATE;
use verbs_sys::{
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
    IBV_QPS_RESET, IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND,
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQT_XRC, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, Library, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_rx_hash_conf, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_tm_cap, ibv_xrcd,
    ibv_xrcd_init_attr,
};

use super::Verbs;
use super::objects::{Completions, Context, DomainOf, made, of_no_thread};
use crate::provider::{Kind, PairSpec};

of_no_thread!(SharedCore, ReceivesCore, PairOf);

/// A domain that processes share receives in.
#[derive(Clone, Debug)]
pub struct Shared(Arc<SharedCore>);

#[derive(Debug)]
struct SharedCore {
    raw: NonNull<ibv_xrcd>,
    _context: Context,
}

impl Shared {
    pub(super) fn open(context: &Context, file: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: file.map_or(-1, |file| file.as_raw_fd()),
            oflags: libc::O_CREAT,
        };
        // SAFETY: the context is open, the structure whole.
        let raw = unsafe { verbs_sys::ibv_open_xrcd(context.raw(), &raw mut attr) };
        let raw = made(raw.map_err(io::Error::from_raw_os_error)?)?;
        Ok(Self(Arc::new(SharedCore {
            raw,
            _context: context.clone(),
        })))
    }
}

impl Drop for SharedCore {
    fn drop(&mut self) {
        // SAFETY: nothing made from it exists any more: all of it holds the domain.
        let _ = unsafe { verbs_sys::ibv_close_xrcd(self.raw.as_ptr()) };
    }
}

/// A queue of receives.
#[derive(Clone, Debug)]
pub struct ReceivesOf(Arc<ReceivesCore>);

#[derive(Debug)]
struct ReceivesCore {
    raw: NonNull<ibv_srq>,
    domain: DomainOf,
    _shared: Option<(Shared, Completions)>,
}

impl ReceivesOf {
    pub(super) fn new(
        domain: &DomainOf,
        length: u32,
        shared: Option<(&Shared, &Completions)>,
    ) -> io::Result<Self> {
        let context = domain.context();
        let attr = ibv_srq_attr {
            max_wr: length,
            max_sge: 1,
            srq_limit: 0,
        };
        let raw = match shared {
            None => {
                let mut init = ibv_srq_init_attr {
                    srq_context: null_mut(),
                    attr,
                };
                // SAFETY: the domain is open, the structure whole.
                made(unsafe { (context.library().ibv_create_srq)(domain.raw(), &raw mut init) })?
            }
            Some((shared, completions)) => {
                let mut init = ibv_srq_init_attr_ex {
                    srq_context: null_mut(),
                    attr,
                    comp_mask: IBV_SRQ_INIT_ATTR_TYPE
                        | IBV_SRQ_INIT_ATTR_PD
                        | IBV_SRQ_INIT_ATTR_XRCD
                        | IBV_SRQ_INIT_ATTR_CQ,
                    srq_type: IBV_SRQT_XRC,
                    pd: domain.raw(),
                    xrcd: shared.0.raw.as_ptr(),
                    cq: completions.raw(),
                    tm_cap: ibv_tm_cap::default(),
                };
                // SAFETY: all that the structure names is open.
                let raw = unsafe {
                    verbs_sys::ibv_create_srq_ex(context.library(), context.raw(), &raw mut init)
                };
                made(raw.map_err(io::Error::from_raw_os_error)?)?
            }
        };
        let kept = shared.map(|(shared, completions)| (shared.clone(), completions.clone()));
        Ok(Self(Arc::new(ReceivesCore {
            raw,
            domain: domain.clone(),
            _shared: kept,
        })))
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.0.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.0.domain.context().library()
    }
}

impl Drop for ReceivesCore {
    fn drop(&mut self) {
        // SAFETY: no pair takes receives from it any more: they hold it.
        let _ = unsafe { (self.domain.context().library().ibv_destroy_srq)(self.raw.as_ptr()) };
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct PairOf {
    raw: NonNull<ibv_qp>,
    domain: DomainOf,
    _completions: Completions,
    _receives: Option<ReceivesOf>,
    _shared: Option<Shared>,
}

impl PairOf {
    /// A pair, and how many bytes its requests carry themselves.
    pub(super) fn new(domain: &DomainOf, spec: &PairSpec<'_, Verbs>) -> io::Result<(Self, u32)> {
        let (raw, inline) = match spec.kind {
            Kind::Connection => Self::create(domain, spec, IBV_QPT_RC)?,
            Kind::Datagrams => Self::create(domain, spec, IBV_QPT_UD)?,
            Kind::SharedSend => Self::create(domain, spec, IBV_QPT_XRC_SEND)?,
            Kind::SharedReceive => (Self::create_shared_receive(domain, spec.shared)?, 0),
        };
        let pair = Self {
            raw,
            domain: domain.clone(),
            _completions: spec.completions.clone(),
            _receives: spec.receives.cloned(),
            _shared: spec.shared.cloned(),
        };
        Ok((pair, inline))
    }

    /// A pair that sends, and receives from its own queue or a shared one.
    fn create(
        domain: &DomainOf,
        spec: &PairSpec<'_, Verbs>,
        qp_type: c_uint,
    ) -> io::Result<(NonNull<ibv_qp>, u32)> {
        let depths = spec.depths;
        let cq = spec.completions.raw();
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: match spec.receives {
                Some(receives) if spec.kind != Kind::SharedSend => receives.raw(),
                _ => null_mut(),
            },
            cap: ibv_qp_cap {
                max_send_wr: depths.sends.max(1),
                max_recv_wr: if spec.receives.is_some() {
                    0
                } else {
                    depths.receives
                },
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: depths.inline,
            },
            qp_type,
            sq_sig_all: 0,
        };
        let library = domain.context().library();
        // SAFETY: the structure is whole. It names queues that `spec` borrows, so they are open, as the domain is.
        let raw = unsafe { (library.ibv_create_qp)(domain.raw(), &raw mut init) };
        // A device that cannot carry so many bytes in a request may carry none.
        Ok((made(raw)?, init.cap.max_inline_data))
    }

    /// The receiving end of an extended connection: it has no queues, for messages name the receives that they go to.
    fn create_shared_receive(
        domain: &DomainOf,
        shared: Option<&Shared>,
    ) -> io::Result<NonNull<ibv_qp>> {
        let context = domain.context();
        let shared = shared.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mut init = ibv_qp_init_attr_ex {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: ibv_qp_cap::default(),
            qp_type: IBV_QPT_XRC_RECV,
            sq_sig_all: 0,
            comp_mask: IBV_QP_INIT_ATTR_XRCD,
            pd: null_mut(),
            xrcd: shared.0.raw.as_ptr(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: 0,
                rx_hash_key_len: 0,
                rx_hash_key: null_mut(),
                rx_hash_fields_mask: 0,
            },
            source_qpn: 0,
            send_ops_flags: 0,
        };
        // SAFETY: the structure is whole. It names a domain that `shared` borrows, so it is open, as the context is.
        let raw =
            unsafe { verbs_sys::ibv_create_qp_ex(context.library(), context.raw(), &raw mut init) };
        made(raw.map_err(io::Error::from_raw_os_error)?)
    }

    /// The receiving end that another process has made: from now on it is this one's, too.
    pub(super) fn open(
        domain: &DomainOf,
        shared: &Shared,
        completions: &Completions,
        number: u32,
    ) -> io::Result<Self> {
        let mut attr = ibv_qp_open_attr {
            comp_mask: IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
            qp_num: number,
            xrcd: shared.0.raw.as_ptr(),
            qp_context: null_mut(),
            qp_type: IBV_QPT_XRC_RECV,
        };
        // SAFETY: the structure is whole. It names a domain that `shared` borrows, so it is open, as the context is.
        let raw = unsafe { verbs_sys::ibv_open_qp(domain.context().raw(), &raw mut attr) };
        Ok(Self {
            raw: made(raw.map_err(io::Error::from_raw_os_error)?)?,
            domain: domain.clone(),
            _completions: completions.clone(),
            _receives: None,
            _shared: Some(shared.clone()),
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.domain.context().library()
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the pair exists, and its number does not change.
        unsafe { (*self.raw()).qp_num }
    }
}

impl Drop for PairOf {
    fn drop(&mut self) {
        // SAFETY: the pair is given back once. After the call the device touches nothing that was posted to it.
        if unsafe { (self.library().ibv_destroy_qp)(self.raw()) } == 0 {
            return;
        }
        // It still exists. Taken back to its beginning it touches nothing, either; should that fail as well, the device
        // is gone.
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RESET,
            ..ibv_qp_attr::default()
        };
        // SAFETY: the pair was not given back, the structure is whole.
        let _ = unsafe { (self.library().ibv_modify_qp)(self.raw(), &raw mut attr, IBV_QP_STATE) };
    }
}
