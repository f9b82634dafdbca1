// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loans: the only way in which memory of the program enters the engine.
//!
//! A request keeps working after the call that made it has returned, on a buffer that it does not own. Here that is
//! sound without unsafe code in the engine. A buffer is *lent* to a [`LoanTable`]. The engine keeps the [`Loan`], a
//! number with a generation, and each use looks the number up. A loan ends
//!
//! * with the closure in which a borrowed buffer was lent ([`lend`], [`scope`]), also when it panics;
//! * when an owned buffer is taken back or dropped ([`Owned`]). If an `Owned` is forgotten, its buffer is never freed;
//! * when the engine ends it, for memory whose lifetime others answer for ([`Span`]).
//!
//! After its end every use of the number is an error. The table is a part of the engine, so uses and ends exclude each
//! other by the engine's own lock.
//!
//! # Safety
//! An entry's pointer and length come from a slice that is borrowed or owned for at least as long as the entry exists.
//! Guards remove the entries. The lender of a borrow cannot leak them, because they live in this module's stack frames.
//! Slices made from an entry live only inside the closures given to [`LoanTable::read`] (shared) and
//! [`LoanTable::write`]. The latter takes the table exclusively, so no other slice exists then.
#![allow(
    unsafe_code,
    reason = "slices are rebuilt from the addresses of lent buffers"
)]

mod owned;
mod raw;

pub use owned::{Buffer, BufferMut, Owned};
pub use raw::Span;

use crate::coll::View;
use crate::copy::{Kernel, copy_overlapping};
use crate::sync::next_id;
use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A lent buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Loan {
    index: u32,
    generation: u32,
    len: usize,
    address: usize,
}

impl Loan {
    /// Bytes of the buffer.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Where the buffer is, as a number: to tell a peer, and to see whether it lies in a heap.
    #[inline]
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }
    /// The `len` bytes from `offset` on. Whether they lie in the buffer shows when they are used.
    #[inline]
    #[must_use]
    pub fn range(self, offset: usize, len: usize) -> LoanRange {
        LoanRange {
            loan: self,
            offset,
            len,
        }
    }
}

/// Bytes of a lent buffer that follow one another.
#[derive(Debug, Clone, Copy)]
pub struct LoanRange {
    /// The buffer.
    pub loan: Loan,
    /// Where in it the first one is.
    pub offset: usize,
    /// How many they are.
    pub len: usize,
}

impl LoanRange {
    /// All of a lent buffer.
    #[inline]
    #[must_use]
    pub fn whole(loan: Loan) -> Self {
        loan.range(0, loan.len())
    }

    /// The first bytes of a lent buffer.
    #[inline]
    #[must_use]
    pub fn first(loan: Loan, len: usize) -> Self {
        loan.range(0, len)
    }

    /// A part of this range.
    #[inline]
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        Self {
            offset: self.offset + offset,
            len,
            ..self
        }
    }
}

/// A use of a loan that is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoanError {
    /// The loan has ended.
    #[error("the buffer was taken back before the transfer was over")]
    Ended,
    /// The range does not lie in the buffer.
    #[error("bytes {offset}..{offset}+{len} do not lie in a buffer of {size} bytes")]
    Outside {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// Bytes of the buffer.
        size: usize,
    },
    /// Two ranges to be written at once overlap.
    #[error("two parts of a receive buffer overlap")]
    Overlap,
    /// A buffer that was lent for reading cannot be written.
    #[error("the buffer was lent for sending only")]
    ReadOnly,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    lent: bool,
    writable: bool,
    address: *mut u8,
    len: usize,
    /// The loan that this one is a part of; it ends with it.
    whole: Option<(u32, u32)>,
    /// The bytes, if the table owns them.
    owned: Option<Vec<u8>>,
}

/// The buffers that are lent to one engine.
#[derive(Debug)]
pub struct LoanTable {
    id: u64,
    entries: Vec<Entry>,
    free: Vec<u32>,
}

// SAFETY: entries are addresses of buffers whose lenders guarantee `Send` element types (plain bytes); all access goes
// through `&self` or `&mut self` of the table.
unsafe impl Send for LoanTable {}

impl Default for LoanTable {
    fn default() -> Self {
        Self {
            id: next_id(),
            entries: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl LoanTable {
    #[inline]
    fn insert(&mut self, address: *mut u8, len: usize, writable: bool) -> Loan {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                lent: false,
                writable: false,
                address: std::ptr::null_mut(),
                len: 0,
                whole: None,
                owned: None,
            });
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 requests at once")
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.lent = true;
        entry.writable = writable;
        entry.address = address;
        entry.len = len;
        entry.whole = None;
        if entry.owned.is_some() {
            entry.owned = None;
        }
        Loan {
            index,
            generation: entry.generation,
            len,
            address: address as usize,
        }
    }

    #[inline]
    fn remove(&mut self, table: u64, loan: Loan) {
        if table != self.id {
            // Only a WithLoans that shows different tables gets here; the loan would dangle.
            std::process::abort();
        }
        if let Some(entry) = self.entries.get_mut(loan.index as usize)
            && entry.lent
            && entry.generation == loan.generation
        {
            entry.lent = false;
            self.free.push(loan.index);
        }
    }

    #[inline]
    fn find(&self, range: LoanRange, write: bool) -> Result<*mut u8, LoanError> {
        let LoanRange { loan, offset, len } = range;
        let entry = self
            .entries
            .get(loan.index as usize)
            .filter(|e| e.lent && e.generation == loan.generation)
            .ok_or(LoanError::Ended)?;
        if let Some((index, generation)) = entry.whole {
            self.entries
                .get(index as usize)
                .filter(|e| e.lent && e.generation == generation)
                .ok_or(LoanError::Ended)?;
        }
        if write && !entry.writable {
            return Err(LoanError::ReadOnly);
        }
        if offset.checked_add(len).is_none_or(|end| end > entry.len) {
            return Err(LoanError::Outside {
                offset,
                len,
                size: entry.len,
            });
        }
        // SAFETY: offset <= len of the lent buffer.
        Ok(unsafe { entry.address.add(offset) })
    }

    /// A range of a lent buffer as a loan of its own. It ends with [`Self::release`], and is of no use after the whole
    /// has ended.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`].
    pub fn part(&mut self, range: LoanRange) -> Result<Loan, LoanError> {
        let address = self.find(range, false)?;
        let (whole, len) = (range.loan, range.len);
        let entry = &self.entries[whole.index as usize];
        let (writable, above) = (entry.writable, entry.whole);
        let part = self.insert(address, len, writable);
        // A part of a part ends with the same whole: the part between may end first.
        self.entries[part.index as usize].whole =
            Some(above.unwrap_or((whole.index, whole.generation)));
        Ok(part)
    }

    /// Lends bytes that the table keeps until [`Self::release`].
    pub fn keep(&mut self, mut bytes: Vec<u8>) -> Loan {
        let loan = self.insert(bytes.as_mut_ptr(), bytes.len(), true);
        self.entries[loan.index as usize].owned = Some(bytes);
        loan
    }

    /// Ends a part, or a loan of bytes that the table keeps. Other loans end by those who made them.
    pub fn release(&mut self, loan: Loan) {
        if let Some(entry) = self.entries.get_mut(loan.index as usize)
            && entry.lent
            && entry.generation == loan.generation
            && (entry.whole.is_some() || entry.owned.is_some())
        {
            entry.lent = false;
            entry.whole = None;
            entry.owned = None;
            self.free.push(loan.index);
        }
    }

    /// The bytes of a range, to be read in place.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`].
    #[inline]
    pub fn view(&self, range: LoanRange) -> Result<View<'_>, LoanError> {
        let pointer = self.find(range, false)?;
        let pointer = NonNull::new(pointer).unwrap_or(NonNull::dangling());
        // SAFETY: the range lies in a buffer that is lent now; `&self` keeps loans from ending.
        Ok(unsafe { View::new(pointer, range.len) })
    }

    /// Lets `f` write a range of one buffer while it looks at a range of another, or of the same one.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`], [`LoanError::ReadOnly`].
    #[inline]
    pub fn write_viewing<R>(
        &mut self,
        to: LoanRange,
        from: LoanRange,
        f: impl FnOnce(&mut [u8], View<'_>) -> R,
    ) -> Result<R, LoanError> {
        let source = self.find(from, false)?;
        let source = NonNull::new(source).unwrap_or(NonNull::dangling());
        // SAFETY: as in `view`. A view is no reference, so it may be of bytes that are written.
        let view = unsafe { View::new(source, from.len) };
        self.write(to, |out| f(out, view))
    }

    /// Number of loans that have not ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Shows the bytes of a range to `f`.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`].
    #[inline]
    pub fn read<R>(&self, range: LoanRange, f: impl FnOnce(&[u8]) -> R) -> Result<R, LoanError> {
        let pointer = self.find(range, false)?;
        // SAFETY: the range lies in a buffer that is lent now; `&self` keeps loans from ending and slices from being
        // written meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, range.len) };
        Ok(f(bytes))
    }

    /// Lets `f` write the bytes of a range.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`], [`LoanError::ReadOnly`].
    #[inline]
    pub fn write<R>(
        &mut self,
        range: LoanRange,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, LoanError> {
        let pointer = self.find(range, true)?;
        // SAFETY: the range lies in a buffer that is lent for writing; `&mut self` excludes every other slice of any
        // loan.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pointer, range.len) };
        Ok(f(bytes))
    }

    /// Shows several ranges to `f` at once.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`].
    pub fn read_many<R>(
        &self,
        ranges: &[LoanRange],
        f: impl FnOnce(&[IoSlice<'_>]) -> R,
    ) -> Result<R, LoanError> {
        let mut slices = Vec::with_capacity(ranges.len());
        for &range in ranges {
            let pointer = self.find(range, false)?;
            // SAFETY: as in `read`.
            slices.push(IoSlice::new(unsafe {
                std::slice::from_raw_parts(pointer, range.len)
            }));
        }
        Ok(f(&slices))
    }

    /// Lets `f` write several ranges at once. They must not overlap.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`], [`LoanError::ReadOnly`], [`LoanError::Overlap`].
    pub fn write_many<R>(
        &mut self,
        ranges: &[LoanRange],
        f: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
    ) -> Result<R, LoanError> {
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(ranges.len());
        let mut slices = Vec::with_capacity(ranges.len());
        for &range in ranges {
            let pointer = self.find(range, true)?;
            if range.len > 0 {
                places.push((pointer as usize, range.len));
            }
            // SAFETY: as in `write`; that the ranges do not overlap is checked below, before any of the slices is used.
            slices.push(IoSliceMut::new(unsafe {
                std::slice::from_raw_parts_mut(pointer, range.len)
            }));
        }
        places.sort_unstable();
        if places
            .windows(2)
            .any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
        {
            return Err(LoanError::Overlap);
        }
        Ok(f(&mut slices))
    }

    /// Copies a range to `to`, from `at` on. If the program lent overlapping buffers, the bytes move as by `memmove`.
    ///
    /// # Errors
    /// [`LoanError::Ended`], [`LoanError::Outside`], [`LoanError::ReadOnly`].
    pub fn copy(&mut self, from: LoanRange, to: Loan, at: usize) -> Result<(), LoanError> {
        let source = self.find(from, false)?;
        let target = self.find(to.range(at, from.len), true)?;
        // SAFETY: both ranges lie in buffers that are lent now.
        unsafe { copy_overlapping(Kernel::Memcpy, target, source, from.len) };
        Ok(())
    }
}

/// An engine that has a table of loans.
pub trait WithLoans {
    /// Calls `f` with the engine's table: always the same one. The engine is locked meanwhile.
    fn with_loans<R>(&self, f: impl FnOnce(&mut LoanTable) -> R) -> R;
    /// Whether the engine is this process's. In a child of a fork it is not: nothing works on its loans there, and none
    /// needs to be ended.
    fn is_ours(&self) -> bool {
        true
    }
}

/// Ends the loans of a scope.
struct Ending<'e, E: WithLoans> {
    engine: &'e E,
    table: u64,
    loans: &'e RefCell<Vec<Loan>>,
}

impl<E: WithLoans> Drop for Ending<'_, E> {
    fn drop(&mut self) {
        if !self.engine.is_ours() {
            return;
        }
        // If the engine cannot be entered, the loans would outlive their buffers.
        let guard = AbortOnDrop;
        let loans = self.loans.take();
        self.engine.with_loans(|t| {
            loans
                .into_iter()
                .for_each(|loan| t.remove(self.table, loan))
        });
        std::mem::forget(guard);
    }
}

struct AbortOnDrop;
impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Lends `bytes` for sending while `f` runs.
pub fn lend<E: WithLoans, R>(engine: &E, bytes: &[u8], f: impl FnOnce(Loan) -> R) -> R {
    let (table, loan) = engine.with_loans(|t| {
        (
            t.id,
            t.insert(bytes.as_ptr().cast_mut(), bytes.len(), false),
        )
    });
    let _ending = SingleEnding {
        engine,
        table,
        loan,
    };
    f(loan)
}

/// Lends `bytes` for receiving while `f` runs.
pub fn lend_mut<E: WithLoans, R>(engine: &E, bytes: &mut [u8], f: impl FnOnce(Loan) -> R) -> R {
    let (table, loan) =
        engine.with_loans(|t| (t.id, t.insert(bytes.as_mut_ptr(), bytes.len(), true)));
    let _ending = SingleEnding {
        engine,
        table,
        loan,
    };
    f(loan)
}

struct SingleEnding<'e, E: WithLoans> {
    engine: &'e E,
    table: u64,
    loan: Loan,
}

impl<E: WithLoans> Drop for SingleEnding<'_, E> {
    fn drop(&mut self) {
        if !self.engine.is_ours() {
            return;
        }
        let guard = AbortOnDrop;
        self.engine.with_loans(|t| t.remove(self.table, self.loan));
        std::mem::forget(guard);
    }
}

/// A region of code during which borrowed buffers can be lent.
pub struct Scope<'scope, 'env: 'scope, E: WithLoans> {
    engine: &'env E,
    loans: RefCell<Vec<Loan>>,
    // Invariant in both lifetimes, as std::thread::Scope is: a borrow lent here must live as long as the whole scope.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env, E: WithLoans> Scope<'scope, 'env, E> {
    /// Lends `bytes` for sending until the scope ends.
    pub fn lend(&'scope self, bytes: &'env [u8]) -> Loan {
        self.insert(bytes.as_ptr().cast_mut(), bytes.len(), false)
    }
    /// Lends `bytes` for receiving until the scope ends.
    pub fn lend_mut(&'scope self, bytes: &'env mut [u8]) -> Loan {
        self.insert(bytes.as_mut_ptr(), bytes.len(), true)
    }
    fn insert(&self, address: *mut u8, len: usize, writable: bool) -> Loan {
        let loan = self.engine.with_loans(|t| t.insert(address, len, writable));
        self.loans.borrow_mut().push(loan);
        loan
    }
}

/// Runs `f` with a scope. All loans made in it end when `f` returns or panics, after `settle` has run: there the engine
/// finishes or abandons what still uses them.
pub fn scope<'env, E: WithLoans, R>(
    engine: &'env E,
    settle: impl FnOnce(),
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, E>) -> R,
) -> R {
    struct Settle<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for Settle<F> {
        fn drop(&mut self) {
            if let Some(settle) = self.0.take() {
                settle();
            }
        }
    }
    let table = engine.with_loans(|t| t.id);
    let scope = Scope {
        engine,
        loans: RefCell::new(Vec::new()),
        _scope: PhantomData,
        _env: PhantomData,
    };
    let _ending = Ending {
        engine,
        table,
        loans: &scope.loans,
    };
    // Dropped in reverse order: first settle, then the loans end.
    let settle = Settle(Some(settle));
    let result = f(&scope);
    drop(settle);
    result
}

#[cfg(test)]
mod tests;
