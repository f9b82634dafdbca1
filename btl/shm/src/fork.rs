// SPDX-License-Identifier: MIT OR Apache-2.0
//! Children of forks: none of them is a rank, whatever its parent is.
//!
//! A child has a copy of everything that makes its parent a rank, down to the descriptors. If it used them, it would
//! write into the parent's rings and speak for it to the launcher. So every process counts the forks above it
//! ([`generation`]), by a handler that the C library calls in each child. What belongs to a rank keeps the number with
//! which it was made, and is of no use where it differs. `vfork` and `posix_spawn` call no handlers. They share all
//! memory with a child that can do nothing but start a program. `_Fork` and `clone` call none either; a program that
//! uses a runtime behind them breaks its contract.
//!
//! # Safety
//!
//! The handler only stores to atomics, which is permitted in a child of a process with threads. The words that it
//! stores to are static.
#![allow(
    unsafe_code,
    reason = "a handler of forks, and words that are found by their address"
)]

use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use std::ptr::with_exposed_provenance;
use std::sync::Once;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between this process and the one in which the first rank was made.
#[inline(always)]
#[must_use]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A word that the handler changes: its address, 0 for none, and its value in a child.
struct Word {
    address: AtomicUsize,
    value: AtomicU32,
}

static WORDS: [Word; 4] = [const {
    Word {
        address: AtomicUsize::new(0),
        value: AtomicU32::new(0),
    }
}; 4];

/// Has forks counted from now on.
pub fn watch() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        // SAFETY: a function that may be called in any child. It refuses when memory is short: then forks are not
        // counted.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Has `word` set to `value` in every child; false if there is no more room for such words.
pub fn set_in_child(word: &'static AtomicU32, value: u32) -> bool {
    watch();
    let address = std::ptr::from_ref(word).expose_provenance();
    WORDS.iter().any(|slot| {
        let taken = slot
            .address
            .compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
        let ours = taken.is_ok() || taken == Err(address);
        if ours {
            slot.value.store(value, Ordering::Relaxed);
        }
        ours
    })
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for slot in &WORDS {
        let address = slot.address.load(Ordering::Relaxed);
        let word = with_exposed_provenance::<AtomicU32>(address);
        // SAFETY: null, or the address of a static, which was exposed.
        if let Some(word) = unsafe { word.as_ref() } {
            word.store(slot.value.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
