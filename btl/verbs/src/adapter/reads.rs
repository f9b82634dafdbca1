// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long messages: the receiver's device reads them from the sender's memory into slots, and the receiver copies them
//! out.
//!
//! Their sender registers them for that, and keeps registrations while the kernel tells of changes ([`crate::cache`]).
//! What cannot be registered, or read, is sent as any other bytes.
//!
//! # Safety
//!
//! The program's memory is registered for peers to read, and nothing else. See [`Reads::show`].
#![allow(unsafe_code, reason = "registers memory of the program")]

use std::ptr::NonNull;

use super::activity::Shows;
use super::lane::Stage;
use super::{Adapter, ExposedMemory, ReadState, Settings};
use crate::cache::Cache;
use crate::domain::Domain;
use crate::memory::{Local, Region, Slot};
use crate::provider::{Access, Provider, Remote};

/// Set in the cookie of a read.
pub(super) const READ: u64 = 1 << 32;
/// Bytes that are pinned for reads under way from this rank by one port, with the first read. A piece is copied out
/// while the next ones are read. With stripes of the default length there are 16: as many as a pair has at once. Chosen
/// by magnitude: at 10 GB/s so much takes 0.1 ms, beyond which a wire's latency is hidden.
const READ_BYTES: usize = 1 << 20;
/// Reads at least, and at most: more slots than the second would be looked through in vain. Four keep a piece under way
/// while another one is copied out. Both are chosen by magnitude.
const READS: [usize; 2] = [4, 64];

/// What a rank has for reads: registrations of what peers read, and slots for what is read of peers.
///
/// Invariant: both are made when they are first of use. Where the slots are refused, they are not asked for again.
#[derive(Debug)]
pub(super) struct Reads<P: Provider> {
    /// What is registered of the program.
    cache: Option<Cache<P>>,
    /// Where reads go.
    slots: Option<Region<P>>,
    /// There is no memory for that.
    is_refused: bool,
}

/// Slots for reads of so many bytes.
pub(crate) fn read_slots(stripe: usize) -> usize {
    (READ_BYTES / stripe.max(1)).clamp(READS[0], READS[1])
}

impl<P: Provider> Default for Reads<P> {
    fn default() -> Self {
        Self {
            cache: None,
            slots: None,
            is_refused: false,
        }
    }
}

impl<P: Provider> Reads<P> {
    pub(super) fn pinned(&self) -> u64 {
        self.slots.as_ref().map_or(0, Region::bytes) as u64
    }

    pub(super) fn registered(&self) -> u64 {
        self.cache.as_ref().map_or(0, Cache::bytes) as u64
    }

    /// Registers memory of the program for peers to read, if it can be.
    pub(super) fn show(
        &mut self,
        domain: &Domain<P>,
        settings: &Settings,
        shows: &Shows,
        bytes: &[u8],
    ) -> Option<ExposedMemory> {
        if !settings.shows_by(domain.device().limits(), bytes) {
            return None;
        }
        let cache = self
            .cache
            .get_or_insert_with(|| Cache::new(domain, settings.cache));
        let start = NonNull::from(bytes).cast::<u8>();
        let access = Access {
            remote_read: true,
            remote_write: false,
        };
        // SAFETY: nothing is posted with it, and peers only read: what they read are bytes, whichever thread changes
        // them. The kernel keeps the pages while they are registered, mapped or not. So a peer never reads a page that
        // another owner has by now. The cache finds out when they are mapped no more.
        let found = unsafe { cache.get(start, bytes.len(), access) }.ok()?;
        let Remote { address, key } = found.memory.remote(found.offset);
        Some(ExposedMemory {
            address,
            key: u64::from(key),
            hold: shows.hold(found.memory),
        })
    }

    /// A slot for a read, if one is free.
    fn slot(&mut self, domain: &Domain<P>, stripe: usize) -> Option<Slot<P>> {
        if self.slots.is_none() && !self.is_refused {
            let made = domain.region(read_slots(stripe), stripe, Access::default());
            self.is_refused = made.is_err();
            self.slots = made.ok();
        }
        self.slots.as_ref()?.take()
    }

    /// Whether there is no memory for slots, as far as is known.
    fn lacks_slots(&self) -> bool {
        self.is_refused
    }

    /// Whether there can be reads at all.
    pub(super) fn can_read(&mut self, domain: &Domain<P>, stripe: usize) -> bool {
        if let Some(slot) = self.slot(domain, stripe) {
            drop(slot);
        }
        self.slots.is_some()
    }
}

impl<P: Provider> Adapter<P> {
    /// Posts reads of a peer's memory, as many as there is room for; of how many bytes.
    pub(crate) fn post_reads(&mut self, name: u64, token: u64, from: Remote, len: u64) -> u64 {
        let mut posted = 0;
        while posted < len {
            let Some(slot) = self.reads.slot(&self.domain, self.settings.stripe) else {
                break;
            };
            let Some(lane) = self
                .lanes
                .get_mut(name)
                .filter(|lane| lane.failed.is_none())
            else {
                break;
            };
            let Stage::Ready(pair) = &lane.stage else {
                break;
            };
            let most = slot.len().min(pair.largest() as usize) as u64;
            let count = most.min(len - posted);
            let piece = Remote {
                address: from.address.wrapping_add(posted),
                key: from.key,
            };
            let cookie = lane.route.cookie(READ | u64::from(lane.reads.number()));
            let operation = lane.route.read(piece);
            let local = Local::first(slot, count as usize);
            match pair.post(&mut self.queue, operation, local, cookie) {
                Ok(()) => {
                    lane.reads.add(token, count as usize);
                    posted += count;
                }
                Err(refused) if refused.is_full() => break,
                Err(refused) => {
                    let reason = refused.error.to_string();
                    drop(refused);
                    self.lanes.fail(name, reason);
                    break;
                }
            }
        }
        posted
    }

    /// Whether it was found that nothing can be read: there is no memory to read into.
    pub(crate) fn lacks_slots(&self) -> bool {
        self.reads.lacks_slots()
    }

    /// Bytes of a lane's reads that have not come.
    pub(crate) fn reads_under_way(&self, name: u64) -> u64 {
        self.lanes
            .get(name)
            .map_or(0, |lane| lane.reads.under_way())
    }

    /// Whether a lane has read anything.
    pub(crate) fn has_read(&self, name: u64) -> bool {
        let lane = self.lanes.get(name);
        lane.is_some_and(|lane| lane.reads.has_read())
    }

    /// Bytes of one read of a lane at most.
    pub(crate) fn largest_read(&self, name: u64) -> u64 {
        match self.lanes.get(name).map(|lane| &lane.stage) {
            Some(Stage::Ready(pair)) => u64::from(pair.largest()),
            _ => 0,
        }
    }

    /// Whether the bytes of the oldest read of a token are here.
    pub(crate) fn next_read(&self, name: u64, token: u64) -> ReadState {
        let Some(lane) = self.lanes.get(name).filter(|lane| lane.failed.is_none()) else {
            return ReadState::Failed;
        };
        match lane.reads.next_of(token) {
            Some(read) if read.slot.is_some() => ReadState::Bytes(read.len),
            _ => ReadState::Nothing,
        }
    }

    /// Copies a part of them.
    pub(crate) fn copy_next_read(&self, name: u64, token: u64, offset: usize, out: &mut [u8]) {
        let lane = self.lanes.get(name);
        let read = lane.and_then(|lane| lane.reads.next_of(token));
        if let Some(slot) = read.and_then(|read| read.slot.as_ref()) {
            slot.read(offset, out);
        }
    }

    /// They are of no more use.
    pub(crate) fn release_next_read(&mut self, name: u64, token: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.reads.release(token);
        }
    }

    /// A read has ended: its bytes are in the slot, if all went well.
    pub(super) fn read_completed(&mut self, name: u64, number: u32, slot: Slot<P>, is_ok: bool) {
        let Some((lane, changed)) = self.lanes.with_changed(name).filter(|_| is_ok) else {
            return;
        };
        if let Some(len) = lane.reads.fill(number, slot) {
            self.bytes += len as u64;
        }
        changed.add(name, lane);
    }
}
