// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory: regions of our own, cut into slots, and memory of the program.
//!
//! # Safety
//!
//! A region's pages are its own mapping. They are reached by raw pointers only, in a slot's bounds, and unmapped after
//! the registration has ended. While a slot exists as a value, the program alone touches it, but for peers that have
//! the region's key. So its bytes are copied, and never referred to. A slot that is posted is no value of the program's
//! any more; see [`crate::queue`]. Should a registration not end, unmapping is still sound: the kernel has pinned the
//! pages, and nobody else is given them.
#![allow(unsafe_code, reason = "memory that a device touches")]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use onecopy_shm::sync::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::provider::{Keys, Piece, Provider};

/// Pages of our own.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to no thread; all accesses are by raw pointers, under the rules above.
unsafe impl Send for Pages {}
// SAFETY: as for Send.
unsafe impl Sync for Pages {}

impl Pages {
    /// New pages of zeros. A child of a fork has none of them: it would get a copy of what a device writes to.
    pub(crate) fn new(length: usize) -> Result<Self> {
        let failed =
            || Error::of("mmap", format!("{length} bytes"))(std::io::Error::last_os_error());
        // SAFETY: a new mapping where the kernel finds room touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(failed());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(failed)?;
        let pages = Self { base, length };
        // SAFETY: the mapping is this value's own.
        if unsafe { libc::madvise(base.as_ptr().cast(), length, libc::MADV_DONTFORK) } != 0 {
            return Err(Error::of("madvise", format!("{length} bytes"))(
                std::io::Error::last_os_error(),
            ));
        }
        Ok(pages)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing reaches it afterwards.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// What the slots of a region share. Fields end in their order: first the registration, then the pages.
struct Core<P: Provider> {
    memory: P::Memory,
    pages: Pages,
    keys: Keys,
    slot: usize,
    count: usize,
    /// A bit for each slot that is taken.
    taken: Vec<AtomicU64>,
}

/// Registered pages, cut into slots of one size.
pub struct Region<P: Provider>(Arc<Core<P>>);

impl<P: Provider> fmt::Debug for Region<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core {
            slot,
            count,
            keys,
            memory,
            ..
        } = &*self.0;
        write!(
            f,
            "Region({count} slots of {slot} bytes, {keys:?}, {memory:?})"
        )
    }
}

impl<P: Provider> Region<P> {
    pub(crate) fn new(pages: Pages, memory: P::Memory, slot: usize) -> Self {
        let count = pages.len() / slot;
        let taken = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let keys = P::keys(&memory);
        Self(Arc::new(Core {
            memory,
            pages,
            keys,
            slot,
            count,
            taken,
        }))
    }

    /// A slot that nobody has, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<Slot<P>> {
        let core = &self.0;
        for (word_index, word) in core.taken.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            loop {
                let bit = (!seen).trailing_zeros() as usize;
                let index = word_index * 64 + bit;
                if bit == 64 || index >= core.count {
                    break;
                }
                // SYNC(verbs.slot): acquire what its last owner did to it
                match word.compare_exchange_weak(
                    seen,
                    seen | 1 << bit,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        return Some(Slot {
                            core: Arc::clone(core),
                            index,
                        });
                    }
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Whether a slot is one of its own.
    #[must_use]
    pub fn owns(&self, slot: &Slot<P>) -> bool {
        Arc::ptr_eq(&self.0, &slot.core)
    }

    /// How many slots it has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// How many of them are taken, or posted.
    #[must_use]
    pub fn taken(&self) -> usize {
        let bits = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones() as usize;
        self.0.taken.iter().map(bits).sum()
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.0.slot
    }

    /// Bytes that are pinned for it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.pages.len()
    }
}

/// A piece of a region, in one pair of hands. It goes back when it is dropped.
pub struct Slot<P: Provider> {
    core: Arc<Core<P>>,
    index: usize,
}

impl<P: Provider> fmt::Debug for Slot<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} of {})", self.index, self.core.count)
    }
}

impl<P: Provider> Slot<P> {
    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.core.slot
    }

    /// Whether the slot has no bytes, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.core.slot == 0
    }

    /// Its index in its region: slots of one region have different ones.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{offset} and {length} bytes in a slot of {}",
            self.len()
        );
        let in_pages = self.index * self.core.slot + offset;
        // SAFETY: the slot lies in the pages, and the bytes in the slot, by the assertion.
        unsafe { self.core.pages.start().as_ptr().add(in_pages) }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// Beyond the slot's end.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.pointer(offset, bytes.len());
        // SAFETY: in the slot, which is this value's; the program's bytes do not lie in it, since nobody refers to it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out. A peer with the region's key may change them while it copies.
    ///
    /// # Panics
    ///
    /// Beyond the slot's end.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer(offset, into.len());
        // SAFETY: as for writing. Bytes of any value are bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// A copy of some bytes.
    ///
    /// # Panics
    ///
    /// Beyond the slot's end.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut copy = vec![0; range.len()];
        self.read(range.start, &mut copy);
        copy
    }

    /// Where a byte of it is, and the key by which peers reach it.
    ///
    /// # Panics
    ///
    /// Beyond the slot's end.
    #[must_use]
    pub fn remote(&self, offset: usize) -> crate::Remote {
        let address = self.pointer(offset, 0).addr() as u64;
        crate::Remote {
            address,
            key: self.core.keys.peers,
        }
    }

    pub(crate) fn piece(&self, range: &Range<usize>) -> Piece {
        let pointer = self.pointer(range.start, range.len());
        // The device's side finds the memory by this number.
        let address = pointer.expose_provenance() as u64;
        let length = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Piece {
            address,
            length,
            key: self.core.keys.own,
        }
    }
}

impl<P: Provider> Drop for Slot<P> {
    fn drop(&mut self) {
        let mask = !(1 << (self.index % 64));
        if let Some(word) = self.core.taken.get(self.index / 64) {
            // SYNC(verbs.slot): release what this owner did to it
            word.fetch_and(mask, Ordering::Release);
        }
    }
}

/// Memory of the program that is registered.
#[derive(Debug)]
pub struct Registered<P: Provider> {
    memory: P::Memory,
    start: u64,
    length: usize,
}

impl<P: Provider> Registered<P> {
    pub(crate) fn new(memory: P::Memory, start: NonNull<u8>, length: usize) -> Self {
        let start = start.as_ptr().expose_provenance() as u64;
        Self {
            memory,
            start,
            length,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where a byte of it is, and the key by which peers reach it.
    #[must_use]
    pub fn remote(&self, offset: usize) -> crate::Remote {
        crate::Remote {
            address: self.start + offset as u64,
            key: P::keys(&self.memory).peers,
        }
    }

    pub(crate) fn piece(&self, range: &Range<usize>) -> Option<Piece> {
        (range.start <= range.end && range.end <= self.length).then(|| Piece {
            address: self.start + range.start as u64,
            length: u32::try_from(range.len()).unwrap_or(u32::MAX),
            key: P::keys(&self.memory).own,
        })
    }
}

/// What an operation reads or writes on the own side.
#[derive(Debug)]
pub enum Local<P: Provider> {
    /// A part of a slot, which comes back with the completion.
    Slot(Slot<P>, Range<usize>),
    /// A part of the program's memory, which stays registered until the completion.
    Program(Arc<Registered<P>>, Range<usize>),
    /// Nothing.
    Nothing,
}

impl<P: Provider> Local<P> {
    /// The first bytes of a slot.
    #[must_use]
    pub fn first(slot: Slot<P>, bytes: usize) -> Self {
        Self::Slot(slot, 0..bytes)
    }

    pub(crate) fn piece(&self) -> Option<Piece> {
        match self {
            Self::Slot(slot, range) => {
                (range.start <= range.end && range.end <= slot.len()).then(|| slot.piece(range))
            }
            Self::Program(memory, range) => memory.piece(range),
            Self::Nothing => Some(Piece::default()),
        }
    }

    pub(crate) fn slot(self) -> Option<Slot<P>> {
        match self {
            Self::Slot(slot, _) => Some(slot),
            _ => None,
        }
    }

    pub(crate) fn or(self, slot: Slot<P>) -> Self {
        let bytes = slot.len();
        match self {
            Self::Nothing => Self::first(slot, bytes),
            other => other,
        }
    }
}
