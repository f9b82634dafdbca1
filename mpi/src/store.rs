// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffered messages under way, which every wait looks after.

use crate::failure::Outcome;
use crate::ffi::Addr;
use crate::phase;
use crate::request::Pending;
use onecopy::raw::Poll;
use onecopy_shm::sync::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Messages under way with the bytes that each counts.
#[derive(Default)]
pub(crate) struct Store(Mutex<Vec<(Pending, u64)>>);

/// A buffer that the program attached.
pub(crate) struct AttachedBuffer {
    pub(crate) address: Addr,
    pub(crate) size: i64,
    pub(crate) store: Arc<Store>,
}

/// Messages under way in all buffers; those of communicators are in a list, too, so that every wait can look after
/// them.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
static STORES: Mutex<Vec<Arc<Store>>> = Mutex::new(Vec::new());

impl Store {
    /// Forgets what is complete, and says whether nothing is left. The engine is locked before the store, always.
    pub(crate) fn poll(&self, poll: &mut Poll<'_>) -> bool {
        let mut messages = phase::lock(&self.0);
        messages.retain_mut(|(pending, _)| {
            let over = pending.take(poll).is_some();
            if over {
                UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
            }
            !over
        });
        messages.is_empty()
    }

    pub(crate) fn used(&self) -> u64 {
        phase::lock(&self.0).iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Forgets complete messages. Called by everything that waits.
#[inline]
pub(crate) fn reap() {
    if UNDER_WAY.load(Ordering::Relaxed) != 0 {
        reap_all();
    }
}

#[cold]
fn reap_all() {
    let stores = phase::lock(&STORES).clone();
    if let Ok(link) = phase::engine() {
        link.peek(|poll| {
            for store in &stores {
                store.poll(poll);
            }
        });
    }
}

/// Waits for all messages of all buffers.
pub(crate) fn drain_all() {
    let stores = phase::lock(&STORES).clone();
    for store in stores {
        let _ = drain(&store);
    }
}

/// Waits for all messages of one.
pub(crate) fn drain(store: &Store) -> Outcome<()> {
    phase::engine()?.wait_until(|poll| store.poll(poll).then_some(()));
    Ok(())
}

/// Counts a message under way.
pub(crate) fn add(store: &Store, pending: Pending, bytes: u64) {
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    phase::lock(&store.0).push((pending, bytes));
}

/// A new store, which every wait looks after until it is given up.
pub(crate) fn open() -> Arc<Store> {
    let store = Arc::new(Store::default());
    phase::lock(&STORES).push(Arc::clone(&store));
    store
}

/// Nobody looks after it any more.
pub(crate) fn give_up(gone: &Arc<Store>) {
    phase::lock(&STORES).retain(|store| !Arc::ptr_eq(store, gone));
}
