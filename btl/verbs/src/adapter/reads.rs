// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long messages: the receiver's device reads them from the sender's memory into slots, and the receiver copies them
//! out.
//!
//! Their sender registers them for that, and keeps registrations while the kernel tells of changes ([`crate::cache`]).
//! What cannot be registered, or read, is sent as any other bytes.
//!
//! # Safety
//!
//! The program's memory is registered for peers to read, and nothing else. See [`Adapter::show_to_peers`].
#![allow(unsafe_code, reason = "registers memory of the program")]

use std::ptr::NonNull;

use super::lane::{Asked, Stage};
use super::{Adapter, ReadState, Shown};
use crate::cache::{Bounds, Cache};
use crate::memory::{Local, Region, Slot};
use crate::pair::Operation;
use crate::provider::{Access, Provider, Remote};

/// Set in the cookie of a read.
pub(super) const READ: u64 = 1 << 32;
/// Bytes of a read at most, and how many reads may be under way from this rank: 1 MiB pinned in all, with the first
/// read. A piece is copied out while the next ones are read. Their number was chosen by magnitude: a pair has as many
/// at once as its device permits.
const READ_BYTES: usize = 64 << 10;
const READS: usize = 16;

/// What a rank has for reads.
#[derive(Debug)]
pub(super) struct Reads<P: Provider> {
    /// What is registered of the program; made when it is first of use.
    cache: Option<Cache<P>>,
    /// Where reads go; made when there is the first one.
    slots: Option<Region<P>>,
    /// There is no memory for that.
    is_refused: bool,
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
}

impl<P: Provider> Adapter<P> {
    /// Registers memory of the program for peers to read, if it can be.
    pub(super) fn show_to_peers(&mut self, bytes: &[u8]) -> Option<Shown> {
        if (bytes.len() as u64) < self.settings.read_min || bytes.is_empty() {
            return None;
        }
        let (size, entries) = self.settings.cache;
        let cache = self.reads.cache.get_or_insert_with(|| {
            let bounds = Bounds {
                bytes: size,
                entries,
            };
            match entries {
                0 => Cache::without_keeping(&self.domain),
                _ => Cache::new(&self.domain, bounds),
            }
        });
        let at = NonNull::from(bytes).cast::<u8>();
        let access = Access {
            remote_read: true,
            remote_write: false,
        };
        // SAFETY: nothing is posted with it, and peers only read: what they read are bytes, whichever thread changes
        // them. The kernel keeps the pages while they are registered, mapped or not. So a peer never reads a page that
        // another owner has by now. The cache finds out when they are mapped no more.
        let found = unsafe { cache.get(at, bytes.len(), access) }.ok()?;
        let Remote { address, key } = found.memory.remote(found.at);
        Some(Shown {
            address,
            key,
            hold: Box::new(found.memory),
        })
    }

    /// Asks for bytes of a peer's memory.
    pub(super) fn ask_for(
        &mut self,
        name: u64,
        token: u64,
        (address, key): (u64, u32),
        len: u64,
    ) -> u64 {
        let mut asked = 0;
        while asked < len {
            let Some(slot) = self.slot_for_read() else {
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
            let count = most.min(len - asked);
            let from = Remote {
                address: address.wrapping_add(asked),
                key,
            };
            let number = lane.reads;
            let cookie = READ | u64::from(number);
            let local = Local::first(slot, count as usize);
            match pair.post(&mut self.queue, Operation::Read { from }, local, cookie) {
                Ok(()) => {
                    lane.reads = lane.reads.wrapping_add(1);
                    lane.asked.push_back(Asked {
                        token,
                        number,
                        len: count as usize,
                        slot: None,
                    });
                    asked += count;
                }
                Err(refused) if refused.is_full() => break,
                Err(refused) => {
                    let reason = refused.error.to_string();
                    drop(refused);
                    self.fail(name, reason);
                    break;
                }
            }
        }
        asked
    }

    fn slot_for_read(&mut self) -> Option<Slot<P>> {
        if self.reads.slots.is_none() && !self.reads.is_refused {
            let made = self.domain.region(READS, READ_BYTES, Access::default());
            self.reads.is_refused = made.is_err();
            self.reads.slots = made.ok();
        }
        self.reads.slots.as_ref()?.take()
    }

    /// Whether there can be reads at all.
    pub(super) fn can_read(&mut self) -> bool {
        if let Some(slot) = self.slot_for_read() {
            drop(slot);
        }
        self.reads.slots.is_some()
    }

    /// Whether the next bytes that were asked for are here.
    pub(super) fn next_of(&self, name: u64, token: u64) -> ReadState {
        let Some(lane) = self.lanes.get(name).filter(|lane| lane.failed.is_none()) else {
            return ReadState::Failed;
        };
        match lane.asked.iter().find(|asked| asked.token == token) {
            Some(asked) if asked.slot.is_some() => ReadState::Bytes(asked.len),
            _ => ReadState::Nothing,
        }
    }

    /// Copies a part of them.
    pub(super) fn read_next(&self, name: u64, token: u64, at: usize, out: &mut [u8]) {
        let lane = self.lanes.get(name);
        let asked = lane.and_then(|lane| lane.asked.iter().find(|asked| asked.token == token));
        if let Some(slot) = asked.and_then(|asked| asked.slot.as_ref()) {
            slot.read(at, out);
        }
    }

    /// They are of no more use.
    pub(super) fn pass_next(&mut self, name: u64, token: u64) {
        if let Some(lane) = self.lanes.get_mut(name)
            && let Some(at) = lane.asked.iter().position(|asked| asked.token == token)
        {
            lane.asked.remove(at);
        }
    }

    /// What was asked for is here, or will not come.
    pub(super) fn has_come(&mut self, name: u64, number: u32, slot: Slot<P>, all: bool) {
        let Some(lane) = self.lanes.get_mut(name).filter(|_| all) else {
            return;
        };
        if let Some(asked) = lane.asked.iter_mut().find(|asked| asked.number == number) {
            self.bytes += asked.len as u64;
            asked.slot = Some(slot);
        }
        self.changed.add(name, lane);
    }
}
