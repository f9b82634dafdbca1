// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's message buffers.
//!
//! # Safety
//! The standard's contract of the calls that get here: a buffer is described by address, count and datatype. It can be
//! read (sent) or written (received) while the operation lasts, and the program leaves it alone meanwhile. Slices made
//! here live only inside of the closures that get them. To Rust a buffer of another language has no uninitialised
//! bytes: nothing that it compiles can tell.
#![allow(unsafe_code, reason = "buffers of the program")]

use crate::datatype::layout::Layout;
use crate::failure::{Outcome, fail};
use crate::ffi::Addr;
use crate::{c, device};
use onecopy::Span;
use onecopy_shm::copy::{Kernel, copy, copy_overlapping};
use std::ops::Range;

/// Where the bytes begin. An address where no byte can be is given with the length zero alone.
fn valid(addr: Addr) -> *mut u8 {
    if addr.is_nowhere() {
        std::ptr::NonNull::dangling().as_ptr()
    } else {
        addr.pointer()
    }
}

/// Shows `len` bytes to `f`.
#[inline(always)]
pub(crate) fn with_bytes<R>(addr: Addr, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: the program's buffer for this call.
    f(unsafe { std::slice::from_raw_parts(valid(addr), len) })
}

/// Lets `f` write `len` bytes.
#[inline(always)]
pub(crate) fn with_bytes_mut<R>(addr: Addr, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    // SAFETY: the program's buffer for this call.
    f(unsafe { std::slice::from_raw_parts_mut(valid(addr), len) })
}

/// So many zeros, where packed bytes or a copy go. A program may ask for more than there is: an error, not the
/// process's end.
pub(crate) fn zeroed(len: usize) -> Outcome<Vec<u8>> {
    bytemuck::try_zeroed_vec(len).map_err(|()| {
        fail(
            c::ERR_NO_MEM,
            format!("no memory for {len} bytes of a copy: the buffer's bytes do not lie together"),
        )
    })
}

/// A copy of `len` bytes.
pub(crate) fn copy_out(addr: Addr, len: usize) -> Vec<u8> {
    with_bytes(addr, len, <[u8]>::to_vec)
}

/// Writes bytes to the program's buffer.
pub(crate) fn copy_in(addr: Addr, bytes: &[u8]) {
    // SAFETY: the program's buffer for this call; the source is ours.
    unsafe {
        copy_overlapping(Kernel::Memcpy, addr.pointer(), bytes.as_ptr(), bytes.len());
    };
}

/// Bytes that an operation sends until it is complete.
pub(crate) fn sent(addr: Addr, len: usize) -> Span {
    // SAFETY: the buffer of an operation that the program leaves alone until its completion, which ends the loan.
    unsafe { Span::sent(addr.pointer(), len) }
}

/// Bytes that an operation receives into until it is complete.
pub(crate) fn received(addr: Addr, len: usize) -> Span {
    // SAFETY: as above.
    unsafe { Span::received(addr.pointer(), len) }
}

/// The address of a vector of ours, which its owner keeps until the operation on it is over.
pub(crate) fn address_of(bytes: &mut [u8]) -> Addr {
    // SAFETY: an address only.
    unsafe { Addr::new(bytes.as_mut_ptr()) }
}

/// Gathers bytes `range` of the packed form into `out`, which has as many.
pub(crate) fn gather(
    layout: &Layout,
    base: Addr,
    range: Range<u64>,
    out: &mut [u8],
) -> Outcome<()> {
    if device::holds_any(layout, base) {
        return device::gather(layout, base, range, out);
    }
    let mut done = 0;
    layout.walk(0, range, &mut |offset, len| {
        let len = len as usize;
        let (from, to) = (base.offset(offset).pointer(), &mut out[done..done + len]);
        // SAFETY: the layout names bytes of the program's buffer; the target is ours.
        unsafe { copy(Kernel::Memcpy, to.as_mut_ptr(), from, len) };
        done += len;
        true
    });
    Ok(())
}

/// Scatters `bytes`, the first ones of the packed form, and waits where a device copies.
pub(crate) fn scatter(layout: &Layout, base: Addr, bytes: &[u8]) -> Outcome<()> {
    if device::holds_any(layout, base) {
        return device::Scatter::default().finish(layout, base, bytes);
    }
    scatter_in_host(layout, base, 0, bytes);
    Ok(())
}

/// Scatters `bytes`, which are those from `start` on of the packed form, to a buffer of which no byte is a device's.
pub(crate) fn scatter_in_host(layout: &Layout, base: Addr, start: u64, bytes: &[u8]) {
    let mut done = 0;
    layout.walk(0, start..start + bytes.len() as u64, &mut |offset, len| {
        let len = len as usize;
        let (from, to) = (&bytes[done..done + len], base.offset(offset).pointer());
        // SAFETY: the layout names bytes of the program's buffer; the source is ours.
        unsafe { copy(Kernel::Memcpy, to, from.as_ptr(), len) };
        done += len;
        true
    });
}

/// The address of a vector of ours that is only read.
pub(crate) fn address_of_shared(bytes: &[u8]) -> Addr {
    // SAFETY: an address only.
    unsafe { Addr::new(bytes.as_ptr()) }
}
