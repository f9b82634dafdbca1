// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loans of memory whose lifetime the compiler does not see: buffers of programs in other languages.
//!
//! # Safety
//! The maker of a [`Span`] promises that its bytes stay in place until the operation that it is given to is over.
//! Until then they are left alone as its kind demands. Uses of a span go through the table of the engine that it was
//! given to, as those of a loan do. So they exclude each other. All else is as for other loans, so an engine that is
//! given spans needs no unsafe code.

use super::{Loan, LoanError, LoanTable};

/// Bytes of the program that may be lent.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    address: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: a span is an address; its maker answers for the bytes, on whatever thread.
unsafe impl Send for Span {}

impl Span {
    /// No bytes, to be received into.
    #[must_use]
    pub fn empty() -> Self {
        Self::new(std::ptr::null_mut(), 0, true)
    }

    /// Bytes to be sent.
    ///
    /// # Safety
    /// `len` bytes at `address` can be read, and nobody writes them, until the operation that the span is given to is
    /// over. The address may be anything if `len` is 0.
    #[must_use]
    pub unsafe fn sent(address: *const u8, len: usize) -> Self {
        Self::new(address.cast_mut(), len, false)
    }

    /// Bytes to be received into.
    ///
    /// # Safety
    /// Until the operation that the span is given to is over, `len` bytes at `address` can be written, and nobody else
    /// reads or writes them. The address may be anything if `len` is 0.
    #[must_use]
    pub unsafe fn received(address: *mut u8, len: usize) -> Self {
        Self::new(address, len, true)
    }

    #[inline(always)]
    fn new(address: *mut u8, len: usize, writable: bool) -> Self {
        let address = if len == 0 {
            std::ptr::NonNull::dangling().as_ptr()
        } else {
            address
        };
        Self {
            address,
            len,
            writable,
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
    #[inline]
    pub fn lend_span(&mut self, span: Span) -> Loan {
        self.insert(span.address, span.len, span.writable)
    }

    /// The first `len` bytes of a span that is not lent, to be written.
    ///
    /// # Errors
    /// [`LoanError::ReadOnly`], [`LoanError::Outside`].
    #[inline(always)]
    pub fn span_mut(&mut self, span: Span, len: usize) -> Result<&mut [u8], LoanError> {
        if !span.writable {
            return Err(LoanError::ReadOnly);
        }
        if len > span.len {
            return Err(LoanError::Outside {
                offset: 0,
                len,
                size: span.len,
            });
        }
        // SAFETY: the bytes are the operation's alone, as the span's maker promised, and the borrow of the table
        // excludes every other slice of them.
        Ok(unsafe { std::slice::from_raw_parts_mut(span.address, len) })
    }

    /// Ends a loan that [`Self::lend_span`] made.
    #[inline]
    pub fn take_back(&mut self, loan: Loan) {
        self.remove(self.id, loan);
    }
}
