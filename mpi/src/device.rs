// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of the program that lie in a device's memory, or that a device shares with the host.
//!
//! Nothing below this front meets such a buffer: its bytes go through a packed copy in the host, as those of a
//! scattered one do. What is sent is copied when the call is made, as the order of messages wants it. The call waits
//! for that copy alone, and moves messages meanwhile. What was received is copied to the device by steps of whoever
//! waits for the request.
//!
//! # Safety
//! The standard's contract, as in `memory.rs`. The driver looks at each address itself.
#![allow(unsafe_code, reason = "buffers of the program")]

use crate::c;
use crate::datatype::layout::Layout;
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::Addr;
use crate::phase;
use onecopy_cuda::copies::{ToDevice, to_host};
use onecopy_cuda::memory;
use std::ops::Range;

/// Whether a byte must not be touched as memory of the host alone is. Where nothing has loaded the driver of a device,
/// this is two loads.
#[inline(always)]
pub(crate) fn holds(at: Addr) -> bool {
    onecopy_cuda::is_possible() && is_known(at.number())
}

/// Whether that is so of any byte of a layout.
#[inline]
pub(crate) fn holds_any(layout: &Layout, base: Addr) -> bool {
    onecopy_cuda::is_possible() && has_known(layout, base)
}

/// An address of which the driver cannot tell anything counts too: to touch it could end the process.
#[cold]
fn is_known(address: usize) -> bool {
    !matches!(memory::of(address as u64), Ok(None))
}

/// Kinds of memory do not change within a page.
const PAGE: usize = 4096;

#[cold]
fn has_known(layout: &Layout, base: Addr) -> bool {
    let mut plain = usize::MAX;
    let mut found = false;
    layout.walk(0, 0..layout.size(), &mut |offset, _| {
        let at = base.offset(offset).number();
        if at / PAGE != plain {
            found = is_known(at);
            plain = at / PAGE;
        }
        !found
    });
    found
}

/// Moves messages while a device copies.
fn idle() {
    match phase::engine() {
        Ok(link) => link.look(|_| ()),
        Err(_) => std::thread::yield_now(),
    }
}

#[cold]
fn failed(error: &onecopy_cuda::Error) -> Box<Failure> {
    fail(c::ERR_OTHER, format!("device memory: {error}"))
}

/// The runs of a layout at an address, from `start` of the packed form on.
fn runs_of(
    layout: &Layout,
    base: Addr,
    start: u64,
) -> impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) {
    move |range, each| {
        let range = start + range.start..start + range.end;
        layout.walk(0, range, &mut |offset, len| {
            each(base.offset(offset).number() as u64, len as usize);
            true
        });
    }
}

/// Gathers bytes of the packed form, and waits for that.
#[cold]
pub(crate) fn gather(
    layout: &Layout,
    base: Addr,
    range: Range<u64>,
    out: &mut [u8],
) -> Outcome<()> {
    let mut runs = runs_of(layout, base, range.start);
    // SAFETY: the layout names bytes of the program's buffer, which it lets us read during this call.
    unsafe { to_host(&mut runs, out, &mut idle) }.map_err(|error| failed(&error))
}

/// Bytes on their way from a packed copy to a buffer.
#[derive(Default)]
pub(crate) struct Scatter(ToDevice);

impl Scatter {
    /// Moves what can be moved; `true`: all is there. The layout, the address and the bytes are the same each time.
    pub(crate) fn advance(
        &mut self,
        layout: &Layout,
        base: Addr,
        bytes: &[u8],
    ) -> Result<bool, onecopy::Error> {
        let mut runs = runs_of(layout, base, 0);
        // SAFETY: the layout names bytes of the program's buffer, which it leaves alone until the operation is over.
        unsafe { self.0.advance(&mut runs, bytes) }
            .map_err(|error| onecopy::Error::Device(error.to_string().into()))
    }

    /// The same, and waits until all is there.
    pub(crate) fn finish(mut self, layout: &Layout, base: Addr, bytes: &[u8]) -> Outcome<()> {
        while !self.advance(layout, base, bytes)? {
            idle();
        }
        Ok(())
    }
}

/// Waits until `done` says so.
pub(crate) fn wait(mut done: impl FnMut() -> Result<bool, onecopy::Error>) -> Outcome<()> {
    while !done()? {
        idle();
    }
    Ok(())
}
