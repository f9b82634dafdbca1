// SPDX-License-Identifier: MIT OR Apache-2.0
//! How bytes come in: what arrives is kept until it is read, and the peer is told what it may send next.

use super::Adapter;
use super::head::HEAD;
use super::lane::Lane;
use crate::memory::Slot;
use crate::provider::Provider;

impl<P: Provider> Adapter<P> {
    pub(super) fn arrived(&mut self, name: u64, slot: Slot<P>, len: usize) {
        let Some((lane, changed)) = self.lanes.with_changed(name) else {
            self.pool.post(&mut self.queue, slot);
            return;
        };
        match lane.arrive(slot, len) {
            Ok(control) => {
                self.pool.end_promises(1);
                lane.sending.forget(&mut self.sends);
                changed.add(name, lane);
                let note_waiting = self.receives_notes && lane.notes.waits();
                if let Some(slot) = control {
                    if self.extended.is_some() {
                        self.receive_extended_notes(name);
                    } else if !self.receives_notes {
                        lane.notes.drop_unread();
                    }
                    self.pool.recycle(&mut self.queue, slot);
                    // At once: another lane must not get the receive that was posted for this one.
                    self.grant_and_acknowledge(name);
                } else {
                    self.bytes += (len - HEAD) as u64;
                }
                if note_waiting {
                    self.send_notes(name);
                }
            }
            Err((what, slot)) => {
                self.pool.post(&mut self.queue, slot);
                self.lanes.fail(name, format!("the peer sent {what}"));
            }
        }
    }

    pub(super) fn read_bytes(&mut self, name: u64, out: &mut [u8]) -> usize {
        let widest = self.widest();
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        let mut passed = false;
        let count = lane.receiving.read(out, |slot| {
            passed = true;
            self.pool.recycle(&mut self.queue, slot);
        });
        if passed {
            lane.receiving.widen(widest);
            self.grant_and_acknowledge(name);
        }
        count
    }

    /// Permits a lane's peer more messages, as far as receives are posted.
    pub(super) fn grant(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            let wanted = lane.receiving.wanted() as usize;
            let more = self
                .pool
                .promise_up_to(&self.domain, &mut self.queue, wanted);
            lane.receiving.grant(more as u32);
        }
    }

    /// As [`Self::grant`]. Acknowledges what was taken, if that is due.
    fn grant_and_acknowledge(&mut self, name: u64) {
        self.grant(name);
        let lane = self.lanes.get(name);
        if lane.is_some_and(|lane| lane.receiving.must_acknowledge()) {
            self.send_acknowledgement(name);
        }
    }

    /// Acknowledges what was taken, if that is due or the peer waits for it.
    pub(super) fn acknowledge_taken(&mut self, name: u64) {
        let due = |lane: &Lane<P>| lane.should_acknowledge() || lane.receiving.must_acknowledge();
        if self.lanes.get(name).is_some_and(due) {
            self.grant(name);
            self.send_acknowledgement(name);
        }
    }

    /// Sends an acknowledgement alone, if the peer permits it. What is granted was granted before.
    fn send_acknowledgement(&mut self, name: u64) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let credit = lane.sending.credit();
        if lane.failed.is_some() || credit == 0 || lane.sending.is_building() {
            // The message that is being filled carries the acknowledgement, too.
            return;
        }
        if credit == 1 && !lane.receiving.has_more_to_grant() {
            // The last permitted message is kept until it permits more. Without it, two full windows could wait for
            // each other for ever.
            return;
        }
        let head = lane.head().encode();
        if let Err(error) = lane.post_control(&mut self.queue, &self.sends, &head) {
            self.lanes.fail(name, error.to_string());
        }
    }
}
