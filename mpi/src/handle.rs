// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles of objects that the program makes.
//!
//! A handle is a number: the kind of object, a generation, and a place in the table of that kind. It is never below
//! 4096, where the standard's own handles are, and it fits an `int`, so that `MPI_X_toint` is the identity. A handle
//! that was freed or never made is told from a valid one without following it anywhere.
//!
//! # Safety A slot's value is written only while the slot is not live, by the one thread that has its [`VacantSlot`].
//! The thread has that from the free list, or from taking the last value out. It is dropped only by the one thread that
//! made it not live. References to values are given out on the standard's word. It says that no call begins with a
//! handle that is freed at the same time. Nor do two calls complete the same request at once. A call that has begun may
//! outlive its handle, though. So what can be freed while a call waits is an `Arc`. The call takes a share of it before
//! it waits (`comm::CommInUse`), or has taken from it what it needs afterwards.
#![allow(unsafe_code, reason = "a table whose entries are read without a lock")]

use onecopy_shm::sync::{AtomicU32, Ordering};
use onecopy_shm::{failing, fault};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Of a handle: four million objects of a kind. What is left of an `int`'s positive numbers tells kinds apart, and a
/// handle from those that had its place before.
const INDEX_BITS: u32 = 22;
const GENERATION_BITS: u32 = 5;
/// Slots of a table's first chunk; each further one has as many as all before it, so all places are in so many chunks.
const FIRST_CHUNK: u32 = 64;
const CHUNKS: usize = (INDEX_BITS - FIRST_CHUNK.ilog2() + 1) as usize;

/// A slot's generation, with this bit while it holds a value.
const LIVE: u32 = 1 << 31;

struct Slot<T> {
    state: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

/// A place of a table that no object is in. There is only one of each, so nobody else puts an object there.
pub(crate) struct VacantSlot(u32);

struct Free {
    list: Vec<u32>,
    used: u32,
}

/// The objects of one kind.
pub(crate) struct Table<T> {
    kind: u32,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
    _owns: PhantomData<T>,
}

// SAFETY: see the module's safety case.
unsafe impl<T: Send> Sync for Table<T> {}

impl<T> Table<T> {
    /// A table of the given kind, from 1 to 15.
    pub(crate) const fn new(kind: u32) -> Self {
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free {
                list: Vec::new(),
                used: 0,
            }),
            _owns: PhantomData,
        }
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let number = index + FIRST_CHUNK;
        let chunk = (number.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        let offset = number - (FIRST_CHUNK << chunk);
        self.chunks.get(chunk)?.get()?.get(offset as usize)
    }

    /// The live slot of a handle.
    #[inline(always)]
    fn live(&self, handle: usize) -> Option<&Slot<T>> {
        let number = u32::try_from(handle).ok()?;
        if number >> (INDEX_BITS + GENERATION_BITS) != self.kind {
            return None;
        }
        let slot = self.slot(number & ((1 << INDEX_BITS) - 1))?;
        let generation = (number >> INDEX_BITS) & ((1 << GENERATION_BITS) - 1);
        (slot.state.load(Ordering::Acquire) == LIVE | generation).then_some(slot)
    }

    /// The object of a handle.
    #[inline(always)]
    pub(crate) fn get(&self, handle: usize) -> Option<&T> {
        let slot = self.live(handle)?;
        // SAFETY: the slot is live, and stays so during the call.
        unsafe { (*slot.value.get()).as_ref() }
    }

    /// Lets `f` change the object of a handle. No other call may use the handle meanwhile: for requests.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, handle: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let slot = self.live(handle)?;
        // SAFETY: the slot is live, and by the standard this call alone uses the handle.
        let value = unsafe { (*slot.value.get()).as_mut() };
        value.map(f)
    }

    /// A place that no object is in; `None` if there are too many objects.
    #[cold]
    pub(crate) fn reserve(&self) -> Option<VacantSlot> {
        failing::attempt("handle.place").ok()?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.list.pop() {
            return Some(VacantSlot(index));
        }
        let index = free.used;
        if index >= fault::limit("handles", 1 << INDEX_BITS) {
            return None;
        }
        let number = index + FIRST_CHUNK;
        let chunk = (number.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        self.chunks.get(chunk)?.get_or_init(|| {
            (0..FIRST_CHUNK << chunk)
                .map(|_| Slot {
                    state: AtomicU32::new(0),
                    value: UnsafeCell::new(None),
                })
                .collect()
        });
        free.used += 1;
        Some(VacantSlot(index))
    }

    /// Gives places back that [`Self::take`] or [`Self::reserve`] gave.
    pub(crate) fn give_back(&self, places: impl IntoIterator<Item = VacantSlot>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.list.extend(places.into_iter().map(|place| place.0));
    }

    /// Keeps an object and gives its handle; `None` if there are too many.
    pub(crate) fn insert(&self, value: T) -> Option<usize> {
        let place = self.reserve()?;
        self.insert_at(place, value)
    }

    /// Keeps an object in a place that the caller got from [`Self::take`] or [`Self::reserve`] of this table, which
    /// cannot fail.
    #[inline]
    pub(crate) fn insert_at(&self, VacantSlot(index): VacantSlot, value: T) -> Option<usize> {
        let slot = self.slot(index)?;
        let generation = (slot.state.load(Ordering::Relaxed) + 1) & ((1 << GENERATION_BITS) - 1);
        // SAFETY: the slot is not live, and this thread has its place.
        unsafe { *slot.value.get() = Some(value) };
        slot.state.store(LIVE | generation, Ordering::Release);
        let number = self.kind << (INDEX_BITS + GENERATION_BITS) | generation << INDEX_BITS | index;
        Some(number as usize)
    }

    /// Takes an object out; its handle is not valid any more.
    pub(crate) fn remove(&self, handle: usize) -> Option<T> {
        let (place, value) = self.take(handle)?;
        self.give_back([place]);
        Some(value)
    }

    /// Takes an object out with its place, which is the caller's until it is given back or used again.
    #[inline]
    pub(crate) fn take(&self, handle: usize) -> Option<(VacantSlot, T)> {
        let slot = self.live(handle)?;
        let live = slot.state.load(Ordering::Relaxed);
        slot.state
            .compare_exchange(live, live & !LIVE, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        // SAFETY: this thread alone made the slot not live.
        let value = unsafe { (*slot.value.get()).take() };
        let place = VacantSlot(handle as u32 & ((1 << INDEX_BITS) - 1));
        Some((place, value?))
    }
}

/// What needs an object: the program until it frees it, and operations that are under way or may be started again.
pub(crate) struct Uses(AtomicU32);

/// The program's use.
const PROGRAM: u32 = 1 << 31;

impl Uses {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(PROGRAM))
    }

    /// One more operation.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One operation less. Whether nobody needs the object any more.
    #[must_use]
    pub(crate) fn end(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The program frees the object. Whether nobody needs it any more; `None` if it was freed before.
    #[must_use]
    pub(crate) fn free(&self) -> Option<bool> {
        let old = self.0.fetch_and(!PROGRAM, Ordering::AcqRel);
        (old & PROGRAM != 0).then_some(old == PROGRAM)
    }

    /// Whether the program has freed it.
    pub(crate) fn is_freed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & PROGRAM == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_goes_with_its_last_use() {
        let alone = Uses::new();
        assert_eq!((alone.free(), alone.free()), (Some(true), None));
        let shared = Uses::new();
        shared.add();
        shared.add();
        assert!(!shared.end() && !shared.is_freed());
        assert_eq!(shared.free(), Some(false));
        assert!(shared.is_freed() && shared.end());
    }

    #[test]
    fn a_handle_is_valid_until_it_is_removed() {
        let table: Table<String> = Table::new(3);
        let handles: Vec<usize> = (0..1000)
            .map(|number| table.insert(number.to_string()).unwrap())
            .collect();
        for (number, &handle) in handles.iter().enumerate() {
            assert!(handle >= 4096 && i32::try_from(handle).is_ok());
            assert_eq!(
                table.get(handle).map(String::as_str),
                Some(&*number.to_string())
            );
        }
        assert_eq!(table.remove(handles[7]).as_deref(), Some("7"));
        assert!(table.get(handles[7]).is_none());
        assert!(table.remove(handles[7]).is_none());
        let fresh = table.insert("fresh".to_owned()).unwrap();
        assert_ne!(
            fresh, handles[7],
            "the place is used again, the handle is not"
        );
        assert!(table.get(handles[7]).is_none());
        for strange in [0, 0x101, 4096, usize::MAX, handles[8] ^ (1 << 27)] {
            assert!(table.get(strange).is_none(), "{strange:#x}");
        }
    }
}
