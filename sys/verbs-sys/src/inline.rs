// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the C header defines as inline functions: calls through the tables of a context.
//!
//! Where a table has no such function, the answer is `EOPNOTSUPP`, as in C. Calls that return an error in C by `errno`
//! return it here.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;

use crate::*;

const NOT_SUPPORTED: c_int = libc::EOPNOTSUPP;

/// The extended context around a context, if it is long enough for the field at this offset.
unsafe fn extended(context: *mut ibv_context, field: usize) -> Option<*mut verbs_context> {
    // SAFETY: the caller's context is open.
    let marked = unsafe { (*context).abi_compat };
    if marked != std::ptr::without_provenance_mut::<c_void>(usize::MAX) {
        return None;
    }
    // SAFETY: marked so, the context is the last member of an extended one.
    let whole =
        unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // SAFETY: its length stands just before the context, in every version.
    let length = unsafe { (*whole).sz };
    (length >= size_of::<verbs_context>() - field).then_some(whole)
}

macro_rules! call {
    ($context:expr, $field:ident) => {{
        // SAFETY: the caller's context is open.
        let whole = unsafe { extended($context, offset_of!(verbs_context, $field)) };
        whole.and_then(|whole| {
            // SAFETY: the table is long enough for the field.
            unsafe { (*whole).$field }
        })
    }};
}

fn errno() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

fn made<T>(pointer: *mut T) -> Result<*mut T, c_int> {
    if pointer.is_null() {
        Err(errno())
    } else {
        Ok(pointer)
    }
}

/// Takes completions; how many, or a negative number.
///
/// # Safety
///
/// `cq` is open, `wc` has room for `count`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the queue is open.
    let context = unsafe { (*cq).context };
    // SAFETY: a queue's context is open.
    match unsafe { (*context).ops.poll_cq } {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(cq, count, wc) },
        None => -1,
    }
}

/// Asks for an event with the next completion.
///
/// # Safety
///
/// `cq` is open.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the queue is open.
    let context = unsafe { (*cq).context };
    // SAFETY: a queue's context is open.
    match unsafe { (*context).ops.req_notify_cq } {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(cq, solicited_only) },
        None => NOT_SUPPORTED,
    }
}

/// Posts sends. On an error `bad` names the first that was not taken.
///
/// # Safety
///
/// `qp` is open; the list and what it names are there; memory that is not copied stays until the completion.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the pair is open.
    let context = unsafe { (*qp).context };
    // SAFETY: a pair's context is open.
    match unsafe { (*context).ops.post_send } {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(qp, wr, bad) },
        None => NOT_SUPPORTED,
    }
}

/// Posts receives.
///
/// # Safety
///
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the pair is open.
    let context = unsafe { (*qp).context };
    // SAFETY: a pair's context is open.
    match unsafe { (*context).ops.post_recv } {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(qp, wr, bad) },
        None => NOT_SUPPORTED,
    }
}

/// Posts receives that several pairs share.
///
/// # Safety
///
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue is open.
    let context = unsafe { (*srq).context };
    // SAFETY: a queue's context is open.
    match unsafe { (*context).ops.post_srq_recv } {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(srq, wr, bad) },
        None => NOT_SUPPORTED,
    }
}

/// Makes a window.
///
/// # Errors
///
/// `EOPNOTSUPP`, or the device's.
///
/// # Safety
///
/// `pd` is open.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: std::ffi::c_uint) -> Result<*mut ibv_mw, c_int> {
    // SAFETY: the domain is open.
    let context = unsafe { (*pd).context };
    // SAFETY: a domain's context is open.
    let call = unsafe { (*context).ops.alloc_mw }.ok_or(NOT_SUPPORTED)?;
    // SAFETY: as the caller promises.
    made(unsafe { call(pd, kind) })
}

/// Binds a window.
///
/// # Safety
///
/// All three are open, the request is whole.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the window is open.
    let context = unsafe { (*mw).context };
    // SAFETY: a window's context is open.
    match unsafe { (*context).ops.bind_mw } {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(qp, mw, bind) },
        None => NOT_SUPPORTED,
    }
}

/// Ends a window.
///
/// # Safety
///
/// `mw` is open, and not used again.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the window is open.
    let context = unsafe { (*mw).context };
    // SAFETY: a window's context is open.
    match unsafe { (*context).ops.dealloc_mw } {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(mw) },
        None => NOT_SUPPORTED,
    }
}

/// A port, with all that this crate knows.
///
/// # Safety
///
/// `context` is open, `attr` can be written.
pub unsafe fn ibv_query_port(
    library: &Library,
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    if let Some(call) = call!(context, query_port) {
        // SAFETY: as the caller promises, and the length is that of the structure.
        return unsafe { call(context, port, attr, size_of::<ibv_port_attr>()) };
    }
    // SAFETY: the structure can be written.
    unsafe { attr.write(ibv_port_attr::default()) };
    // SAFETY: the older call writes a part of the structure.
    unsafe { (library.ibv_query_port)(context, port, attr) }
}

/// What a device can do, with all that this crate knows; what an older library does not say is zero.
///
/// # Safety
///
/// `context` is open, `attr` can be written.
pub unsafe fn ibv_query_device_ex(
    library: &Library,
    context: *mut ibv_context,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    if let Some(call) = call!(context, query_device_ex) {
        let input = ibv_query_device_ex_input::default();
        // SAFETY: as the caller promises, and the length is that of the structure.
        let code = unsafe {
            call(
                context,
                &raw const input,
                attr,
                size_of::<ibv_device_attr_ex>(),
            )
        };
        if code != NOT_SUPPORTED && code != libc::ENOSYS {
            return code;
        }
    }
    // SAFETY: zeros are a value of it, and it can be written.
    unsafe { attr.write_bytes(0, 1) };
    // SAFETY: a member of a structure that can be written.
    let first = unsafe { &raw mut (*attr).orig_attr };
    // SAFETY: the context is open.
    unsafe { (library.ibv_query_device)(context, first) }
}

/// Opens a domain that processes share receive queues in.
///
/// # Errors
///
/// `EOPNOTSUPP` where the device has none, or the device's own.
///
/// # Safety
///
/// `context` is open, `attr` is whole.
pub unsafe fn ibv_open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> Result<*mut ibv_xrcd, c_int> {
    let call = call!(context, open_xrcd).ok_or(NOT_SUPPORTED)?;
    // SAFETY: as the caller promises.
    made(unsafe { call(context, attr) })
}

/// Closes it.
///
/// # Safety
///
/// `xrcd` is open, and not used again.
pub unsafe fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the domain is open.
    let context = unsafe { (*xrcd).context };
    match call!(context, close_xrcd) {
        // SAFETY: as the caller promises.
        Some(call) => unsafe { call(xrcd) },
        None => NOT_SUPPORTED,
    }
}

/// Makes a queue of receives of any kind.
///
/// # Errors
///
/// `EOPNOTSUPP` for a kind that the device has not, or the device's own.
///
/// # Safety
///
/// `context` and what `attr` names are open.
pub unsafe fn ibv_create_srq_ex(
    library: &Library,
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: the structure is the caller's.
    let asked = unsafe { *attr };
    let (mask, kind, pd) = (asked.comp_mask, asked.srq_type, asked.pd);
    let typed = mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
    let basic = mask & !(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE) == 0
        && mask & IBV_SRQ_INIT_ATTR_PD != 0
        && (!typed || kind == IBV_SRQT_BASIC);
    if basic {
        // SAFETY: the longer structure begins with the shorter one.
        return made(unsafe { (library.ibv_create_srq)(pd, attr.cast()) });
    }
    let call = call!(context, create_srq_ex).ok_or(NOT_SUPPORTED)?;
    // SAFETY: as the caller promises.
    made(unsafe { call(context, attr) })
}

/// The number by which peers name a queue of receives.
///
/// # Errors
///
/// `EOPNOTSUPP` for a queue that has none, or the device's own.
///
/// # Safety
///
/// `srq` is open.
pub unsafe fn ibv_get_srq_num(srq: *mut ibv_srq) -> Result<u32, c_int> {
    // SAFETY: the queue is open.
    let context = unsafe { (*srq).context };
    let call = call!(context, get_srq_num).ok_or(NOT_SUPPORTED)?;
    let mut number = 0;
    // SAFETY: the number can be written.
    match unsafe { call(srq, &raw mut number) } {
        0 => Ok(number),
        code => Err(code),
    }
}

/// Makes a queue pair of any kind.
///
/// # Errors
///
/// `EOPNOTSUPP` for a kind that the device has not, or the device's own.
///
/// # Safety
///
/// `context` and what `attr` names are open.
pub unsafe fn ibv_create_qp_ex(
    library: &Library,
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: the structure is the caller's.
    let asked = unsafe { *attr };
    let (mask, pd) = (asked.comp_mask, asked.pd);
    if mask == IBV_QP_INIT_ATTR_PD {
        // SAFETY: the longer structure begins with the shorter one.
        return made(unsafe { (library.ibv_create_qp)(pd, attr.cast()) });
    }
    let call = call!(context, create_qp_ex).ok_or(NOT_SUPPORTED)?;
    // SAFETY: as the caller promises.
    made(unsafe { call(context, attr) })
}

/// Opens the receiving pair of an extended connection that another process made.
///
/// # Errors
///
/// `EOPNOTSUPP`, or the device's own.
///
/// # Safety
///
/// `context` and what `attr` names are open.
pub unsafe fn ibv_open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> Result<*mut ibv_qp, c_int> {
    let call = call!(context, open_qp).ok_or(NOT_SUPPORTED)?;
    // SAFETY: as the caller promises.
    made(unsafe { call(context, attr) })
}

/// Makes an extended queue of completions.
///
/// # Errors
///
/// `EOPNOTSUPP`, or the device's own.
///
/// # Safety
///
/// `context` and what `attr` names are open.
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, c_int> {
    let call = call!(context, create_cq_ex).ok_or(NOT_SUPPORTED)?;
    // SAFETY: as the caller promises.
    made(unsafe { call(context, attr) })
}

/// An extended queue as a plain one. (The two begin alike.)
#[must_use]
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    if cq.is_null() { null_mut() } else { cq.cast() }
}
