// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loans of memory whose lifetime the compiler does not see: buffers of programs in other languages.
//!
//! # Safety
//! Whoever makes a [`Span`] promises that its bytes stay in place, and are left alone as its kind demands, until the loan made from it has ended.
//! All else is as for other loans, so an engine that is given spans needs no unsafe code.

use super::{Loan, LoanTable};

/// Bytes of the program that may be lent.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    address: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: a span is an address; who made it answers for the bytes, on whatever thread.
unsafe impl Send for Span {}

impl Span {
    /// Bytes to be sent.
    ///
    /// # Safety
    /// `len` bytes at `address` can be read, and nobody writes them, until the loan made from the span has ended. The address may be anything
    /// if `len` is 0.
    #[must_use]
    pub unsafe fn sent(address: *const u8, len: usize) -> Self {
        Self {
            address: address.cast_mut(),
            len,
            writable: false,
        }
    }

    /// Bytes to be received into.
    ///
    /// # Safety
    /// `len` bytes at `address` can be written, and nobody else reads or writes them, until the loan made from the span has ended. The
    /// address may be anything if `len` is 0.
    #[must_use]
    pub unsafe fn received(address: *mut u8, len: usize) -> Self {
        Self {
            address,
            len,
            writable: true,
        }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl LoanTable {
    /// Lends a span, until [`Self::take_back`].
    pub fn lend_span(&mut self, span: Span) -> Loan {
        let address = if span.len == 0 {
            std::ptr::NonNull::dangling().as_ptr()
        } else {
            span.address
        };
        self.insert(address, span.len, span.writable)
    }

    /// Ends a loan that [`Self::lend_span`] made.
    pub fn take_back(&mut self, loan: Loan) {
        self.remove(self.id, loan);
    }
}
