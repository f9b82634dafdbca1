// SPDX-License-Identifier: MIT OR Apache-2.0
//! How bytes go out: they are collected in a slot, posted as a message, and kept until the peer has taken them.

use super::head::HEAD;
use super::lane::{Bytes, Kept, Stage};
use super::{Adapter, INLINE_MAX};
use crate::memory::{Local, Slot};
use crate::pair::Operation;
use crate::provider::Provider;

/// Buffers for copies that are kept for use again. Chosen by magnitude: without one, memory is allocated.
pub(super) const SPARE_MAX: usize = 64;

pub(super) fn keep_spare(spare: &mut Vec<Vec<u8>>, mut bytes: Vec<u8>) {
    if bytes.capacity() > 0 && spare.len() < SPARE_MAX {
        bytes.clear();
        spare.push(bytes);
    }
}

impl<P: Provider> Adapter<P> {
    pub(super) fn has_room_for(&mut self, name: u64, bytes: usize) -> bool {
        if self.sends.taken() > self.sends.count() / 2 {
            self.make_room();
        }
        let Some(lane) = self.lanes.get(name) else {
            return false;
        };
        if !matches!(lane.stage, Stage::Ready(_)) || lane.failed.is_some() {
            return false;
        }
        let most = lane
            .permitted
            .wrapping_sub(lane.acknowledged)
            .saturating_sub(1) as usize;
        let slots = self.sends.count() - self.sends.taken();
        let now = (lane.credit().saturating_sub(1) as usize).min(slots);
        let each = lane.room.min(self.sends.slot_bytes()) - HEAD;
        now > 0 && now >= bytes.div_ceil(each).min(most.min(self.sends.count()) / 4)
    }

    pub(super) fn write_bytes(&mut self, name: u64, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let Some(lane) = self.lanes.get_mut(name) else {
                break;
            };
            let room = lane.room.min(self.sends.slot_bytes());
            let (slot, len) = match &mut lane.building {
                Some((_, len)) if *len == room => {
                    if !self.push_message(name) {
                        break;
                    }
                    continue;
                }
                Some((slot, len)) => (slot, len),
                None => {
                    if !lane.may_send() || lane.failed.is_some() {
                        break;
                    }
                    let mut slot = self.sends.take();
                    if slot.is_none() {
                        self.make_room();
                        slot = self.sends.take();
                    }
                    let Some(slot) = slot else { break };
                    let Some(lane) = self.lanes.get_mut(name) else {
                        break;
                    };
                    let (slot, len) = lane.building.insert((slot, HEAD));
                    (slot, len)
                }
            };
            let count = (room - *len).min(bytes.len() - written);
            slot.write(*len, &bytes[written..written + count]);
            *len += count;
            written += count;
        }
        written
    }

    pub(super) fn push_message(&mut self, name: u64) -> bool {
        self.grant(name);
        let Some(lane) = self.lanes.get_mut(name) else {
            return true;
        };
        let Some((mut slot, len)) = lane.building.take() else {
            return true;
        };
        let Stage::Ready(pair) = &lane.stage else {
            lane.building = Some((slot, len));
            return false;
        };
        slot.write(0, &lane.head().encode());
        let payload = len - HEAD;
        let operation = Operation::Send { immediate: None };
        let posted = if len <= pair.inline().min(INLINE_MAX) {
            let mut inline = [0; INLINE_MAX];
            slot.read(0, &mut inline[..len]);
            match pair.post_inline(&mut self.queue, operation, &inline[..len]) {
                Ok(()) => Ok(Bytes::Slot(slot)),
                Err(refused) => Err((refused, Some(slot))),
            }
        } else {
            let local = Local::first(slot, len);
            let cookie = u64::from(lane.sent);
            match pair.post(&mut self.queue, operation, local, cookie) {
                Ok(()) => Ok(Bytes::Posted),
                Err(mut refused) => {
                    let local = std::mem::replace(&mut refused.local, Local::Nothing);
                    Err((refused, local.slot()))
                }
            }
        };
        match posted {
            Ok(bytes) => {
                lane.has_told();
                let at = lane.at;
                lane.kept.push_back(Kept {
                    at,
                    len: payload,
                    bytes,
                });
                lane.sent = lane.sent.wrapping_add(1);
                lane.at += payload as u64;
                true
            }
            Err((refused, slot)) => {
                lane.building = slot.map(|slot| (slot, len));
                if !refused.is_full() {
                    let reason = refused.error.to_string();
                    self.fail(name, reason);
                }
                false
            }
        }
    }

    /// The device has read a message.
    pub(super) fn sent(&mut self, name: u64, number: u32, slot: Slot<P>) {
        let scarce = self.sends.count() - self.sends.taken() < self.sends.count().div_ceil(4);
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let Some(at) = lane.place_of(number) else {
            return;
        };
        let Some(kept) = lane.kept.get_mut(at).filter(|kept| kept.len > 0) else {
            return;
        };
        kept.bytes = if scarce {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.resize(kept.len, 0);
            slot.read(HEAD, &mut bytes);
            Bytes::Copy(bytes)
        } else {
            Bytes::Slot(slot)
        };
        // A sender that waits for a slot looks again.
        self.changed.add(name, lane);
    }

    /// Copies bytes that the peer has not acknowledged out of their slots, for sends that need slots.
    #[cold]
    pub(super) fn make_room(&mut self) {
        for name in self.lanes.names() {
            let Some(lane) = self.lanes.get_mut(name) else {
                continue;
            };
            for kept in &mut lane.kept {
                if let Bytes::Slot(slot) = &kept.bytes {
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.resize(kept.len, 0);
                    slot.read(HEAD, &mut bytes);
                    kept.bytes = Bytes::Copy(bytes);
                }
            }
        }
    }
}
