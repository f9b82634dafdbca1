// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of this process, where nothing of the runtime may be counted on any more.
//!
//! # Safety
//! Both calls have no conditions.
#![allow(unsafe_code, reason = "calls of the C library")]

/// Ends the process without what the program has set for its exit.
pub(crate) fn now(code: i32) -> ! {
    // SAFETY: it may be called at any time.
    unsafe { libc::_exit(code) }
}

/// The kernel's number of this thread, which is there also while its thread-locals are taken down.
pub(crate) fn thread() -> i32 {
    // SAFETY: as above.
    unsafe { libc::gettid() }
}
