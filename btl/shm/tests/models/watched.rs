// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that several threads touch and only the order between them protects.
//!
//! # Safety
//! loom's `UnsafeCell` fails the model before two threads have pointers to one cell at the same time, one of them to
//! write.
#![allow(unsafe_code, reason = "plain memory under loom's eyes")]

use loom::cell::UnsafeCell;

/// Memory whose every access loom checks.
pub(crate) struct Watched<T>(UnsafeCell<T>);

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        self.0.with(|at| {
            // SAFETY: loom has checked that nobody writes now.
            f(unsafe { &*at })
        })
    }

    /// Writes.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with_mut(|at| {
            // SAFETY: loom has checked that nobody else uses it now.
            f(unsafe { &mut *at })
        })
    }
}
