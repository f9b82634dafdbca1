// SPDX-License-Identifier: MIT OR Apache-2.0
//! What C hands over: handles, pointers to arguments, strings.
//!
//! # Safety
//! The pointers in these types come from the arguments of an exported function. By the standard each is null or points
//! to as many objects as the function's description says, valid during the call. Nothing here outlives the call. Null
//! is an error that is reported, except where the standard gives it a meaning.
#![allow(unsafe_code, reason = "the arguments of C functions")]

use crate::c;
use crate::failure::{Failure, Outcome, fail};
use std::ffi::{CStr, c_char};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
            pub(crate) struct $name(pub(crate) usize);
        )*
    };
}

handles! {
    /// `MPI_Comm`.
    Comm,
    /// `MPI_Datatype`.
    Datatype,
    /// `MPI_Errhandler`.
    Errhandler,
    /// `MPI_File`.
    File,
    /// `MPI_Group`.
    Group,
    /// `MPI_Info`.
    Info,
    /// `MPI_Message`.
    Message,
    /// `MPI_Op`.
    Op,
    /// `MPI_Request`.
    Request,
    /// `MPI_Session`.
    Session,
    /// `MPI_Win`.
    Win,
}

/// `MPI_Status`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The sender.
    pub(crate) source: i32,
    /// The tag.
    pub(crate) tag: i32,
    /// The error class.
    pub(crate) error: i32,
    /// Bytes, in two halves; whether it was cancelled; two that are not used.
    internal: [i32; 5],
}

impl Status {
    /// A status of so many bytes.
    pub(crate) fn new(source: i32, tag: i32, bytes: u64) -> Self {
        let mut status = Self {
            source,
            tag,
            ..Self::default()
        };
        status.set_bytes(bytes);
        status
    }

    /// What operations without a message give.
    pub(crate) fn empty() -> Self {
        Self::new(c::ANY_SOURCE, c::ANY_TAG, 0)
    }

    /// What a receive from nobody gives.
    pub(crate) fn of_nobody() -> Self {
        Self::new(c::PROC_NULL, c::ANY_TAG, 0)
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.internal[0] as u32) | u64::from(self.internal[1] as u32) << 32
    }

    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.internal[0] = bytes as u32 as i32;
        self.internal[1] = (bytes >> 32) as u32 as i32;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.internal[2] != 0
    }

    pub(crate) fn set_cancelled(&mut self, cancelled: bool) {
        self.internal[2] = i32::from(cancelled);
    }
}

#[cold]
fn null(what: &str) -> Box<Failure> {
    fail(c::ERR_ARG, format!("the pointer to {what} is null"))
}

/// A pointer to objects that are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) unsafe fn new(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// The address, for arguments whose special values are addresses.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    pub(crate) fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(null("an argument"));
        }
        // SAFETY: not null, so valid for the call.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// A copy of `len` objects.
    pub(crate) fn list(self, len: usize) -> Outcome<Vec<T>> {
        (0..len).map(|index| self.at(index)).collect()
    }

    pub(crate) fn at(self, index: usize) -> Outcome<T> {
        Self(self.0.wrapping_add(index)).get_of(self.0)
    }

    fn get_of(self, base: *const T) -> Outcome<T> {
        if base.is_null() {
            return Err(null("an array"));
        }
        self.get()
    }
}

/// A pointer to objects that are written, and perhaps read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Whether a result can be written: for calls that do what cannot be undone before they write it.
    #[inline(always)]
    pub(crate) fn check(self) -> Outcome<()> {
        if self.0.is_null() {
            return Err(null("a result"));
        }
        Ok(())
    }

    pub(crate) fn get(self) -> Outcome<T> {
        // SAFETY: an `Out` is as good as an `In`.
        unsafe { In::new(self.0) }.get()
    }

    pub(crate) fn at(self, index: usize) -> Outcome<T> {
        // SAFETY: an `Out` is as good as an `In`.
        unsafe { In::new(self.0.cast_const()) }.at(index)
    }

    pub(crate) fn list(self, len: usize) -> Outcome<Vec<T>> {
        // SAFETY: an `Out` is as good as an `In`.
        unsafe { In::new(self.0.cast_const()) }.list(len)
    }

    #[inline]
    pub(crate) fn set(self, value: T) -> Outcome<()> {
        if self.0.is_null() {
            return Err(null("a result"));
        }
        // SAFETY: not null, so valid for the call.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn set_at(self, index: usize, value: T) -> Outcome<()> {
        if self.0.is_null() {
            return Err(null("an array of results"));
        }
        Self(self.0.wrapping_add(index)).set(value)
    }

    /// Writes, unless the program ignores this result.
    pub(crate) fn set_unless_null(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for the call.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    pub(crate) fn set_all(self, values: &[T]) -> Outcome<()> {
        for (index, &value) in values.iter().enumerate() {
            self.set_at(index, value)?;
        }
        Ok(())
    }
}

impl Out<Status> {
    /// The element of an array, or one ignored.
    pub(crate) fn element(self, index: usize) -> Self {
        if self.0.is_null() {
            self
        } else {
            Self(self.0.wrapping_add(index))
        }
    }

    /// Writes a status. A call that completes one request leaves the error field alone.
    pub(crate) fn put(self, status: &Status) {
        if !self.0.is_null() {
            let mut status = *status;
            // SAFETY: not null, so valid for the call; only the field's address is taken.
            let error = unsafe { &raw const (*self.0).error };
            // SAFETY: a field of a status that is valid for the call.
            status.error = unsafe { error.read_unaligned() };
            self.set_unless_null(status);
        }
    }

    /// Writes the error field alone.
    pub(crate) fn set_error(self, error: i32) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for the call; only the field's address is taken.
            let field = unsafe { &raw mut (*self.0).error };
            // SAFETY: a field of a status that is valid for the call.
            unsafe { field.write_unaligned(error) };
        }
    }

    /// Writes the status of what is no request, whose error field is part of it.
    pub(crate) fn put_empty(self) {
        self.set_unless_null(Status::empty());
    }
}

/// An array of counts of either width.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ints {
    /// Of the plain form.
    Narrow(In<i32>),
    /// Of the form with large counts.
    Wide(In<i64>),
}

impl Ints {
    pub(crate) unsafe fn narrow(pointer: *const i32) -> Self {
        Self::Narrow(In(pointer))
    }

    pub(crate) unsafe fn wide(pointer: *const i64) -> Self {
        Self::Wide(In(pointer))
    }

    pub(crate) fn at(self, index: usize) -> Outcome<i64> {
        match self {
            Self::Narrow(p) => p.at(index).map(i64::from),
            Self::Wide(p) => p.at(index),
        }
    }

    pub(crate) fn list(self, len: usize) -> Outcome<Vec<i64>> {
        (0..len).map(|index| self.at(index)).collect()
    }
}

/// A place for counts of either width.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OutInts {
    /// Of the plain form.
    Narrow(Out<i32>),
    /// Of the form with large counts.
    Wide(Out<i64>),
}

impl OutInts {
    pub(crate) fn is_null(self) -> bool {
        match self {
            Self::Narrow(p) => p.is_null(),
            Self::Wide(p) => p.is_null(),
        }
    }

    pub(crate) unsafe fn narrow(pointer: *mut i32) -> Self {
        Self::Narrow(Out(pointer))
    }

    pub(crate) unsafe fn wide(pointer: *mut i64) -> Self {
        Self::Wide(Out(pointer))
    }

    pub(crate) fn get(self) -> Outcome<i64> {
        match self {
            Self::Narrow(p) => p.get().map(i64::from),
            Self::Wide(p) => p.get(),
        }
    }

    /// Writes a count; one that the width does not hold is `MPI_UNDEFINED`.
    pub(crate) fn set(self, value: i64) -> Outcome<()> {
        match self {
            Self::Narrow(p) => p.set(i32::try_from(value).unwrap_or(c::UNDEFINED)),
            Self::Wide(p) => p.set(value),
        }
    }
}

/// An address whose bytes only [`crate::memory`] touches: a message buffer, or a value that is kept for the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addr(*mut u8);

// SAFETY: an address; the code that uses it answers for that.
unsafe impl Send for Addr {}
// SAFETY: as above.
unsafe impl Sync for Addr {}

impl Addr {
    pub(crate) unsafe fn new(pointer: *const u8) -> Self {
        Self(pointer.cast_mut())
    }

    pub(crate) fn from_number(number: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(number))
    }

    pub(crate) fn number(self) -> usize {
        self.0.expose_provenance()
    }

    pub(crate) fn pointer(self) -> *mut u8 {
        self.0
    }

    pub(crate) fn is_in_place(self) -> bool {
        self.0.addr() == c::IN_PLACE
    }

    /// Whether no byte can be here: null, or the word for "in place" where nothing can be in place.
    #[inline(always)]
    pub(crate) fn is_nowhere(self) -> bool {
        const { assert!(c::IN_PLACE == 1) };
        self.0.addr() <= c::IN_PLACE
    }

    /// The address so many bytes further.
    pub(crate) fn offset(self, bytes: i64) -> Self {
        Self(self.0.wrapping_offset(bytes as isize))
    }

    /// Writes a pointer to where this address points: for functions that return one through `void *`.
    #[allow(
        clippy::cast_ptr_alignment,
        reason = "what is written through an Out need not be aligned"
    )]
    pub(crate) fn store_pointer(self, value: Self) -> Outcome<()> {
        Out(self.0.cast::<*mut u8>()).set(value.0)
    }
}

/// A function of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Callback(*const std::ffi::c_void);

// SAFETY: the address of code.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    pub(crate) unsafe fn new(pointer: *const std::ffi::c_void) -> Self {
        Self(pointer)
    }

    pub(crate) fn pointer(self) -> *const std::ffi::c_void {
        self.0
    }

    /// The number that stands for a predefined callback.
    pub(crate) fn number(self) -> usize {
        self.0.addr()
    }
}

/// A string of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) unsafe fn new(pointer: *const c_char) -> Self {
        Self(pointer)
    }

    /// Its bytes, in whatever encoding: the standard knows none.
    pub(crate) fn get(self) -> Outcome<Vec<u8>> {
        if self.0.is_null() {
            return Err(null("a string"));
        }
        // SAFETY: not null, so a terminated string that is valid for the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_bytes().to_vec())
    }
}

/// A place for a string.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutText(*mut c_char);

impl OutText {
    pub(crate) unsafe fn new(pointer: *mut c_char) -> Self {
        Self(pointer)
    }

    /// Writes at most `room` bytes with the terminator, and gives the length without it.
    pub(crate) fn set(self, text: impl AsRef<[u8]>, room: usize) -> Outcome<usize> {
        if self.0.is_null() {
            return Err(null("a string"));
        }
        let text = text.as_ref();
        let len = text.len().min(room.saturating_sub(1));
        let out: Out<u8> = Out(self.0.cast());
        out.set_all(&text[..len])?;
        if room > 0 {
            out.set_at(len, 0)?;
        }
        Ok(len)
    }
}

impl Out<i32> {
    /// The address, for arguments whose special values are addresses.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }
}
