// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registration cache: memory of the program that stays registered, because to register costs more than to send.
//!
//! A registration names pages, not addresses. When the program unmaps them and maps others at the same place, an old
//! registration still reaches the old ones. A message would carry bytes of the past. So an entry is good only while the
//! kernel would report such a change ([`crate::unmaps`]). Where it would not, nothing is cached: each caller gets a
//! registration of its own.
//!
//! Invariants:
//!
//! - An entry is cached only if its range was watched before it was registered, and no event came meanwhile.
//! - An event ends every entry that it touches before the call that changed the mapping returns. (A program that
//!   sends a buffer while another of its threads discards it asks for any bytes.)
//! - The kernel changes the mapping first, so another thread may have other memory there before the event. An entry
//!   is used only if no event was unread when it was looked for.
//! - Entries and bytes are bounded; the one that was used longest ago goes first. One that is in use stays registered
//!   until its operations have ended, but is found no more.
//! - Under the lock nothing is allocated, freed or asked of the kernel. The allocator may unmap memory, which would
//!   wait for the watcher, which waits for the lock.
//!
//! # Safety
//!
//! The cache registers memory that its caller answers for, as [`Domain::register`] says.
#![allow(unsafe_code, reason = "registers memory of the program")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onecopy_shm::sync::{AtomicU32, Ordering};

use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::Registered;
use crate::provider::{Access, Provider};
use crate::unmaps::{Observer, Watcher};

const PAGE: usize = 4096;

/// What bounds a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes registered at a time.
    pub bytes: usize,
    /// Entries at a time.
    pub entries: usize,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Found.
    pub hits: u64,
    /// Registered and kept.
    pub kept: u64,
    /// Registered for one use: no event would report a change.
    pub untrusted: u64,
    /// Given up for others.
    pub evicted: u64,
    /// Given up because the program changed its mappings.
    pub ended: u64,
}

#[derive(Debug)]
struct Entry<P: Provider> {
    range: Range<usize>,
    /// Bytes that count against the bounds: those of each registration.
    bytes: usize,
    access: Access,
    memories: Arc<Memories<P>>,
    used: u64,
}

/// How a buffer is to be registered.
#[derive(Debug, Clone, Copy)]
pub struct RegistrationSpec {
    /// What peers may do there.
    pub access: Access,
    /// In which domains, a bit for each.
    pub domains: u32,
    /// The domain in which it must be registered; the others may refuse.
    pub first: usize,
}

impl RegistrationSpec {
    /// In the first domain alone.
    fn in_first(access: Access) -> Self {
        Self {
            access,
            domains: 1,
            first: 0,
        }
    }
}

/// Memory that is registered in several domains, in each by itself.
#[derive(Debug)]
pub struct Memories<P: Provider> {
    /// What it is known by; no other one of this cache for a long time.
    id: u32,
    /// By the domains' indices. None: it was not wanted there, or refused.
    each: Vec<Option<Arc<Registered<P>>>>,
    /// Where it was wanted, a bit for each domain.
    wanted: u32,
}

impl<P: Provider> Memories<P> {
    /// What it is known by.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The memory in a domain.
    #[must_use]
    pub fn in_domain(&self, domain: usize) -> Option<&Arc<Registered<P>>> {
        self.each.get(domain)?.as_ref()
    }
}

#[derive(Debug)]
struct State<P: Provider> {
    entries: Vec<Entry<P>>,
    /// What was given up, until somebody may free it.
    given_up: Vec<Entry<P>>,
    bytes: usize,
    clock: u64,
    /// Changes of mappings so far.
    changes: u64,
    stats: Stats,
}

impl<P: Provider> State<P> {
    fn find(
        &mut self,
        range: &Range<usize>,
        wanted: RegistrationSpec,
    ) -> Option<(Arc<Memories<P>>, usize)> {
        let RegistrationSpec {
            access,
            domains,
            first,
        } = wanted;
        let wide = |entry: &Entry<P>| {
            (entry.access.remote_read || !access.remote_read)
                && (entry.access.remote_write || !access.remote_write)
        };
        let covers =
            |entry: &Entry<P>| entry.range.start <= range.start && range.end <= entry.range.end;
        // What the first domain refused it may take by now. Such an entry is left to others, and grows old.
        let registered = |entry: &Entry<P>| {
            entry.memories.wanted & domains == domains && entry.memories.in_domain(first).is_some()
        };
        let clock = self.clock + 1;
        let entry = self
            .entries
            .iter_mut()
            .find(|entry| covers(entry) && wide(entry) && registered(entry))?;
        entry.used = clock;
        self.clock = clock;
        self.stats.hits += 1;
        let offset = range.start - entry.range.start;
        Some((Arc::clone(&entry.memories), offset))
    }

    fn give_up(&mut self, index: usize) {
        let entry = self.entries.swap_remove(index);
        self.bytes -= entry.bytes;
        if self.given_up.len() < self.given_up.capacity() {
            self.given_up.push(entry);
        } else {
            // Several threads are registering at this moment. To make room would free memory under the lock.
            std::mem::forget(entry);
        }
    }

    /// Ends all entries in a range.
    fn end(&mut self, range: &Range<usize>) {
        self.changes += 1;
        let mut index = 0;
        while let Some(entry) = self.entries.get(index) {
            let apart = entry.range.end <= range.start || range.end <= entry.range.start;
            if apart {
                index += 1;
            } else {
                self.stats.ended += 1;
                self.give_up(index);
            }
        }
    }

    /// Gives up entries until there is room, the oldest first.
    fn make_room(&mut self, bytes: usize, bounds: &Bounds) {
        while !self.entries.is_empty()
            && (self.bytes + bytes > bounds.bytes || self.entries.len() >= bounds.entries)
        {
            let oldest = self
                .entries
                .iter()
                .enumerate()
                .min_by_key(|(_, entry)| entry.used);
            let index = oldest.map_or(0, |(index, _)| index);
            self.stats.evicted += 1;
            self.give_up(index);
        }
    }
}

/// What the watcher changes.
#[derive(Debug)]
struct Shared<P: Provider>(Mutex<State<P>>);

impl<P: Provider> Shared<P> {
    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Provider> Observer for Shared<P> {
    fn observe(&self, take: &mut dyn FnMut() -> Option<Range<usize>>) {
        // The call that changed a mapping returns when its event was taken. That needs the lock, so a thread that asks
        // afterwards waits for what is done here.
        let mut state = self.lock();
        while let Some(range) = take() {
            state.end(&range);
        }
    }
}

/// Registrations of one domain, or of several: the kernel tells one watcher of a range, so they share it.
#[derive(Debug)]
pub struct Cache<P: Provider> {
    domains: Vec<Domain<P>>,
    /// What the next registration is known by.
    next: AtomicU32,
    bounds: Bounds,
    /// Goes before what it changes: registrations end in the thread that drops the cache.
    watcher: Option<Watcher>,
    shared: Arc<Shared<P>>,
    refused: Option<String>,
}

/// Registered memory, and where in it a buffer begins.
#[derive(Debug)]
pub struct RegisteredBuffer<P: Provider> {
    /// The memory.
    pub memory: Arc<Registered<P>>,
    /// Where the buffer begins in it.
    pub offset: usize,
}

impl<P: Provider> Cache<P> {
    /// A cache. Where the kernel would not report changes it keeps nothing; [`Self::refused`] says why.
    #[must_use]
    pub fn new(domain: &Domain<P>, bounds: Bounds) -> Self {
        Self::of(vec![domain.clone()], bounds)
    }

    /// A cache of several domains, which share its bounds.
    #[must_use]
    pub fn of(domains: Vec<Domain<P>>, bounds: Bounds) -> Self {
        if bounds.entries == 0 || bounds.bytes == 0 {
            return Self::watched_by(domains, bounds, |_| Err("not wanted".to_owned()));
        }
        Self::watched_by(domains, bounds, Watcher::start)
    }

    /// A cache that keeps nothing.
    #[must_use]
    pub fn without_keeping(domain: &Domain<P>) -> Self {
        let bounds = Bounds {
            bytes: 0,
            entries: 0,
        };
        Self::of(vec![domain.clone()], bounds)
    }

    fn watched_by(
        domains: Vec<Domain<P>>,
        bounds: Bounds,
        watcher: impl FnOnce(Arc<dyn Observer>) -> std::result::Result<Watcher, String>,
    ) -> Self {
        let shared = Arc::new(Shared(Mutex::new(State {
            entries: Vec::with_capacity(bounds.entries),
            // Emptied before each registration, and between two of them no more than all entries are given up.
            given_up: Vec::with_capacity(bounds.entries + 1),
            bytes: 0,
            clock: 0,
            changes: 0,
            stats: Stats::default(),
        })));
        let observer = Arc::clone(&shared);
        let (watcher, refused) = match watcher(observer) {
            Ok(watcher) => (Some(watcher), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            domains,
            next: AtomicU32::new(1),
            bounds,
            shared,
            watcher,
            refused,
        }
    }

    /// Why nothing is kept, if so.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Registered memory with this buffer, as it is mapped now.
    ///
    /// # Errors
    ///
    /// Those of [`Domain::register`]. At the limit on locked memory, all that is kept was given up before.
    ///
    /// # Safety
    ///
    /// That of [`Domain::register`] for the buffer, until what is returned is dropped. The rest of its pages is
    /// registered with it. For that no operation may be posted. Peers that are given the key may read or write there,
    /// as `access` says.
    pub unsafe fn get(
        &self,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<RegisteredBuffer<P>> {
        // SAFETY: as the caller promises.
        let (memories, offset) =
            unsafe { self.get_in(base, length, RegistrationSpec::in_first(access)) }?;
        let memory = memories.in_domain(0).map(Arc::clone);
        let memory = memory.ok_or_else(|| {
            Error::refused("ibv_reg_mr", "a buffer", "it is in no domain", "name one")
        })?;
        Ok(RegisteredBuffer { memory, offset })
    }

    /// As [`Self::get`], in the domains that are wanted, and where in the memory the buffer begins.
    ///
    /// # Errors
    ///
    /// Those of [`Self::get`].
    ///
    /// # Safety
    ///
    /// That of [`Self::get`].
    pub unsafe fn get_in(
        &self,
        base: NonNull<u8>,
        length: usize,
        wanted: RegistrationSpec,
    ) -> Result<(Arc<Memories<P>>, usize)> {
        let start = base.as_ptr().expose_provenance();
        let exact = start..start.saturating_add(length);
        // Before the lock: what was taken until then has ended its entries when the lock is had.
        let quiet = self.watcher.as_ref().is_some_and(Watcher::is_quiet);
        let (found, changes) = {
            let mut state = self.shared.lock();
            let found = quiet.then(|| state.find(&exact, wanted)).flatten();
            (found, state.changes)
        };
        if let Some(found) = found {
            return Ok(found);
        }
        self.collect();
        let page = start & !(PAGE - 1);
        let pages = page..exact.end.next_multiple_of(PAGE);
        let bytes = pages
            .len()
            .saturating_mul(wanted.domains.count_ones() as usize);
        let has_room = bytes <= self.bounds.bytes && self.bounds.entries > 0;
        let watched = has_room
            && self
                .watcher
                .as_ref()
                .is_some_and(|watcher| watcher.watch(&pages));
        if !watched {
            self.shared.lock().stats.untrusted += 1;
            // SAFETY: as the caller promises.
            let memories = unsafe { self.register_in(base, length, wanted) }?;
            return Ok((memories, 0));
        }
        let whole = NonNull::new(std::ptr::with_exposed_provenance_mut(page)).unwrap_or(base);
        // SAFETY: as the caller promises; the pages of the buffer are mapped.
        let memories = unsafe { self.register_in(whole, pages.len(), wanted) }?;
        let entry = Entry {
            range: pages.clone(),
            bytes,
            access: wanted.access,
            memories: Arc::clone(&memories),
            used: 0,
        };
        self.keep(entry, changes);
        self.collect();
        Ok((memories, start - page))
    }

    /// # Safety
    ///
    /// That of [`Domain::register`].
    unsafe fn register_in(
        &self,
        base: NonNull<u8>,
        length: usize,
        wanted: RegistrationSpec,
    ) -> Result<Arc<Memories<P>>> {
        let RegistrationSpec {
            access,
            domains,
            first,
        } = wanted;
        let mut each = vec![None; self.domains.len()];
        if let (Some(domain), Some(memory)) = (self.domains.get(first), each.get_mut(first)) {
            // SAFETY: as the caller promises.
            *memory = Some(unsafe { self.register(domain, base, length, access) }?);
        }
        for (index, (domain, memory)) in self.domains.iter().zip(&mut each).enumerate() {
            if index != first && domains & 1 << index != 0 {
                // Without it, this domain's rail reads nothing of the buffer.
                // SAFETY: as the caller promises.
                *memory = unsafe { domain.register(base, length, access) }.ok();
            }
        }
        Ok(Arc::new(Memories {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            each,
            wanted: domains,
        }))
    }

    fn keep(&self, mut entry: Entry<P>, changes: u64) {
        let mut state = self.shared.lock();
        if state.changes != changes {
            // The mapping may have changed between the watch and the registration: it is good for this use alone.
            state.stats.untrusted += 1;
            return drop_later(state, entry);
        }
        let bytes = entry.bytes;
        state.make_room(bytes, &self.bounds);
        state.clock += 1;
        entry.used = state.clock;
        state.bytes += bytes;
        state.stats.kept += 1;
        state.entries.push(entry);
    }

    /// # Safety
    ///
    /// That of [`Domain::register`].
    unsafe fn register(
        &self,
        domain: &Domain<P>,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Arc<Registered<P>>> {
        // SAFETY: as the caller promises.
        match unsafe { domain.register(base, length, access) } {
            Err(error) if error.is_exhaustion() && self.count() > 0 => {
                self.clear();
                // SAFETY: as the caller promises.
                unsafe { domain.register(base, length, access) }
            }
            result => result,
        }
    }

    /// Gives up all that is kept.
    pub fn clear(&self) {
        self.collect();
        {
            let mut state = self.shared.lock();
            while !state.entries.is_empty() {
                state.stats.evicted += 1;
                state.give_up(0);
            }
        }
        self.collect();
    }

    /// Ends registrations that were given up and are in no use. Every other call does so as well.
    pub fn collect(&self) {
        // Room for what may be given up meanwhile is made before the lock is taken, and what was is freed after.
        let mut room = Vec::with_capacity(self.bounds.entries + 1);
        std::mem::swap(&mut self.shared.lock().given_up, &mut room);
        drop(room);
    }

    /// Entries that are kept.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.lock().entries.len()
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.lock().bytes
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }
}

/// Drops an entry when the lock is free again.
fn drop_later<P: Provider>(state: MutexGuard<'_, State<P>>, entry: Entry<P>) {
    drop(state);
    drop(entry);
}
