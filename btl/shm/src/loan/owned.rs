// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that are lent together with their ownership.
//!
//! # Safety
//! An owned buffer is neither freed nor given back before its loan has ended. While it is lent, nobody has a reference
//! to its bytes but the table's closures.
#![allow(
    unsafe_code,
    reason = "what a buffer is, and taking it out of its owner once its loan has ended"
)]

use super::{AbortOnDrop, Loan, WithLoans};
use bytemuck::{AnyBitPattern, NoUninit};

/// Buffers that can be owned by a request: their bytes stay in place when the owner moves.
///
/// # Safety
/// `bytes` gives the same address and length until the buffer is changed through the owner or dropped, also when the
/// owner is moved. All bytes are initialised.
pub unsafe trait Buffer: Send + 'static {
    /// Address and length of the bytes.
    fn bytes(&self) -> (*const u8, usize);
}

/// Buffers that can be received into.
///
/// # Safety
/// As [`Buffer`]; moreover the owner is the only access to the bytes, and every bit pattern is valid.
pub unsafe trait BufferMut: Buffer {
    /// Address and length of the bytes.
    fn bytes_mut(&mut self) -> (*mut u8, usize);
}

// SAFETY: a vector's elements stay in place when it is moved; NoUninit has no padding.
unsafe impl<T: NoUninit + Send> Buffer for Vec<T> {
    fn bytes(&self) -> (*const u8, usize) {
        (self.as_ptr().cast(), size_of_val(self.as_slice()))
    }
}
// SAFETY: as above, and AnyBitPattern accepts all bytes.
unsafe impl<T: NoUninit + AnyBitPattern + Send> BufferMut for Vec<T> {
    fn bytes_mut(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr().cast(), size_of_val(self.as_slice()))
    }
}
// SAFETY: a box's elements stay in place when it is moved.
unsafe impl<T: NoUninit + Send> Buffer for Box<[T]> {
    fn bytes(&self) -> (*const u8, usize) {
        (self.as_ptr().cast(), size_of_val(&**self))
    }
}
// SAFETY: as above.
unsafe impl<T: NoUninit + AnyBitPattern + Send> BufferMut for Box<[T]> {
    fn bytes_mut(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr().cast(), size_of_val(&**self))
    }
}
// SAFETY: static memory never moves.
unsafe impl<T: NoUninit + Sync> Buffer for &'static [T] {
    fn bytes(&self) -> (*const u8, usize) {
        (self.as_ptr().cast(), size_of_val(*self))
    }
}
// SAFETY: the shared elements stay in place, and nobody can change them while this clone exists.
unsafe impl<T: NoUninit + Send + Sync> Buffer for std::sync::Arc<[T]> {
    fn bytes(&self) -> (*const u8, usize) {
        (self.as_ptr().cast(), size_of_val(&**self))
    }
}

/// A buffer that is lent together with its ownership, until it is taken back or dropped.
///
/// Dropping ends the loan and frees the buffer; forgetting it leaks the buffer, which keeps the loan sound.
pub struct Owned<E: WithLoans, B> {
    engine: E,
    table: u64,
    loan: Loan,
    buffer: std::mem::ManuallyDrop<B>,
}

impl<E: WithLoans, B: Buffer> Owned<E, B> {
    /// Lends `buffer` for sending.
    pub fn new(engine: E, buffer: B) -> Self {
        let buffer = std::mem::ManuallyDrop::new(buffer);
        let (address, len) = buffer.bytes();
        let (table, loan) = engine.with_loans(|t| (t.id, t.insert(address.cast_mut(), len, false)));
        Self {
            engine,
            table,
            loan,
            buffer,
        }
    }
}

impl<E: WithLoans, B: BufferMut> Owned<E, B> {
    /// Lends `buffer` for receiving.
    pub fn new_mut(engine: E, buffer: B) -> Self {
        let mut buffer = std::mem::ManuallyDrop::new(buffer);
        let (address, len) = buffer.bytes_mut();
        let (table, loan) = engine.with_loans(|t| (t.id, t.insert(address, len, true)));
        Self {
            engine,
            table,
            loan,
            buffer,
        }
    }
}

impl<E: WithLoans, B> Owned<E, B> {
    /// The loan.
    #[must_use]
    pub fn loan(&self) -> Loan {
        self.loan
    }
    /// The engine that the buffer is lent to.
    #[must_use]
    pub fn engine(&self) -> &E {
        &self.engine
    }
    fn end(&mut self) {
        if !self.engine.is_ours() {
            return;
        }
        let guard = AbortOnDrop;
        let (table, loan) = (self.table, self.loan);
        self.engine.with_loans(|t| t.remove(table, loan));
        std::mem::forget(guard);
    }
    /// Ends the loan and gives the buffer back.
    #[must_use]
    pub fn take(mut self) -> B {
        self.end();
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the buffer is taken once, and `this` is not dropped.
        let buffer = unsafe { std::mem::ManuallyDrop::take(&mut this.buffer) };
        // SAFETY: the engine is dropped once, and `this` is not used again.
        unsafe { std::ptr::drop_in_place(&raw mut this.engine) };
        buffer
    }
}

impl<E: WithLoans, B> Drop for Owned<E, B> {
    fn drop(&mut self) {
        self.end();
        // SAFETY: the loan has ended; the buffer is dropped once, here.
        unsafe { std::mem::ManuallyDrop::drop(&mut self.buffer) };
    }
}

impl<E: WithLoans, B> std::fmt::Debug for Owned<E, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned")
            .field("loan", &self.loan)
            .finish_non_exhaustive()
    }
}
