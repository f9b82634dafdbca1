// SPDX-License-Identifier: MIT OR Apache-2.0
//! How bytes come in: what arrives is kept until it is read, and the peer is told what it may send next.

use super::head::HEAD;
use super::lane::{Arrived, Bytes, Kept, Lane, Stage};
use super::send::keep_spare;
use super::{Adapter, GRANT_MIN, WINDOW_MAX};
use crate::memory::{Local, Slot};
use crate::pair::Operation;
use crate::provider::Provider;

impl<P: Provider> Adapter<P> {
    pub(super) fn arrived(&mut self, name: u64, slot: Slot<P>, len: usize) {
        let Some(lane) = self.lanes.get_mut(name) else {
            self.post(slot);
            return;
        };
        match lane.arrive(slot, len) {
            Ok((arrived, slot)) => {
                self.promised = self.promised.saturating_sub(1);
                let spare = &mut self.spare;
                lane.forget(|bytes| {
                    if let Bytes::Copy(bytes) = bytes {
                        keep_spare(spare, bytes);
                    }
                });
                if arrived == Arrived::Bytes {
                    self.bytes += (len - HEAD) as u64;
                }
                self.changed.add(name, lane);
                if let Some(slot) = slot {
                    self.recycle(slot);
                    // At once: another lane must not get the receive that was posted for this one.
                    self.grant(name);
                    if self.lanes.get(name).is_some_and(Lane::must_tell) {
                        self.tell(name);
                    }
                }
            }
            Err((what, slot)) => {
                self.post(slot);
                self.fail(name, format!("the peer sent {what}"));
            }
        }
    }

    pub(super) fn read_bytes(&mut self, name: u64, out: &mut [u8]) -> usize {
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        let mut done = std::mem::take(&mut self.read);
        let count = lane.read(out, |slot| done.push(slot));
        let passed = !done.is_empty();
        for slot in done.drain(..) {
            self.recycle(slot);
        }
        self.read = done;
        if !passed {
            return count;
        }
        let window = self.settings.window.clamp(GRANT_MIN, WINDOW_MAX);
        if let Some(lane) = self.lanes.get_mut(name) {
            let used = lane.taken.wrapping_sub(lane.told_taken) >= lane.window / 2;
            if used && lane.window < window {
                // A peer that uses half of a window before it hears of that can use a larger one.
                lane.window = (2 * lane.window).min(window);
            }
        }
        self.grant(name);
        if self.lanes.get(name).is_some_and(Lane::must_tell) {
            self.tell(name);
        }
        count
    }

    /// Permits a lane's peer more messages, as far as receives are posted.
    pub(super) fn grant(&mut self, name: u64) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let wanted = lane.wanted() as usize;
        let free = self.posted.saturating_sub(self.promised);
        if wanted > free && self.grow() {
            return self.grant(name);
        }
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let more = wanted.min(free);
        self.promised += more;
        lane.granted = lane.granted.wrapping_add(more as u32);
    }

    /// Sends an acknowledgement alone, if the peer permits it.
    pub(super) fn tell(&mut self, name: u64) {
        self.grant(name);
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let Stage::Ready(pair) = &lane.stage else {
            return;
        };
        if lane.failed.is_some() || lane.credit() == 0 || lane.building.is_some() {
            // The message that is being filled carries the acknowledgement, too.
            return;
        }
        if lane.credit() == 1 && lane.granted == lane.told_granted {
            // The last permitted message is kept until it permits more. Without it, two full windows could wait for
            // each other for ever.
            return;
        }
        let head = lane.head().encode();
        let operation = Operation::Send { immediate: None };
        let posted = if pair.inline() >= HEAD {
            pair.post_inline(&mut self.queue, operation, &head)
        } else {
            // This device has no inline sends.
            let Some(mut slot) = self.sends.take() else {
                return;
            };
            slot.write(0, &head);
            let cookie = u64::from(lane.sent);
            pair.post(&mut self.queue, operation, Local::first(slot, HEAD), cookie)
        };
        match posted {
            Ok(()) => {
                lane.has_told();
                lane.sent = lane.sent.wrapping_add(1);
                let bytes = Bytes::Copy(Vec::new());
                let at = lane.at;
                lane.kept.push_back(Kept { at, len: 0, bytes });
            }
            Err(refused) if refused.is_full() => {}
            Err(refused) => self.fail(name, refused.error.to_string()),
        }
    }
}
