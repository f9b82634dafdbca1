// SPDX-License-Identifier: MIT OR Apache-2.0
//! How bytes go out: they are collected in a slot, posted as a message, and kept until the peer has taken them.

use super::Adapter;
use super::lane::Stage;
use crate::memory::Slot;
use crate::provider::Provider;

impl<P: Provider> Adapter<P> {
    pub(super) fn has_room_for(&mut self, name: u64, bytes: usize) -> bool {
        if self.sends.is_half_taken() {
            self.free_slots();
        }
        let Some(lane) = self.lanes.get(name) else {
            return false;
        };
        if !lane.is_connected() {
            return false;
        }
        lane.sending.has_room(&self.sends, bytes)
    }

    pub(super) fn write_bytes(&mut self, name: u64, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let Some(lane) = self.lanes.get_mut(name) else {
                break;
            };
            if lane.sending.is_built(&self.sends) {
                if !self.push_message(name) {
                    break;
                }
                continue;
            }
            if lane.sending.is_building() {
                written += lane.sending.fill(&self.sends, &bytes[written..]);
                continue;
            }
            if !lane.sending.may_send() || lane.failed.is_some() {
                break;
            }
            let Some(slot) = self.take_slot() else {
                break;
            };
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.sending.begin(slot);
                written += lane.sending.fill(&self.sends, &bytes[written..]);
            }
        }
        written
    }

    pub(super) fn push_message(&mut self, name: u64) -> bool {
        if self.receives_notes {
            self.begin_notes(name);
        }
        self.grant(name);
        let Some(lane) = self.lanes.get_mut(name) else {
            return true;
        };
        if !lane.sending.is_building() {
            return true;
        }
        let head = lane.head();
        let Stage::Ready(pair) = &lane.stage else {
            return false;
        };
        match lane
            .sending
            .post_built(pair, &mut self.queue, head, lane.route)
        {
            Ok(()) => {
                lane.receiving.has_announced();
                true
            }
            Err(error) => {
                if !error.is_full() {
                    self.lanes.fail(name, error.to_string());
                }
                false
            }
        }
    }

    /// A slot for a message. None only while all are being filled or read by the device: one that waits for its peer
    /// alone is copied.
    fn take_slot(&mut self) -> Option<Slot<P>> {
        if let Some(slot) = self.sends.take() {
            return Some(slot);
        }
        self.free_slots();
        self.sends.take()
    }

    /// Copies bytes that peers have not acknowledged out of their slots, for sends that need slots.
    #[cold]
    fn free_slots(&mut self) {
        for name in self.lanes.names() {
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.sending.copy_out_of_slots(&mut self.sends);
            }
        }
    }

    /// The device has read a message.
    pub(super) fn sent(&mut self, name: u64, number: u32, slot: Slot<P>) {
        let Some((lane, changed)) = self.lanes.with_changed(name) else {
            return;
        };
        if lane.sending.has_read(&mut self.sends, number, slot) {
            // A sender that waits for a slot looks again.
            changed.add(name, lane);
        }
    }
}
