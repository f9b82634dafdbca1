// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes: what the two sides of a lane tell each other beside the stream. They come in order and once, as its bytes do,
//! but end with the lane.

use super::Adapter;
use super::head::{HEAD, Head};
use super::lane::Stage;
use super::lane_notes::{NOTE_MAX, Text};
use crate::memory::Local;
use crate::pair::Operation;
use crate::provider::Provider;

impl<P: Provider> Adapter<P> {
    /// Has a note go out, now or once the peer permits it.
    pub(crate) fn add_note(&mut self, name: u64, note: &[u8]) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.notes.out.push_back(Text::of(note));
            self.send_notes(name);
        }
    }

    /// Notes that wait for the peer's permission.
    pub(crate) fn notes_waiting(&self, name: u64) -> usize {
        let lane = self.lanes.get(name);
        lane.map_or(0, |lane| lane.notes.out.len())
    }

    /// The next note of the peer.
    pub(crate) fn next_note(&mut self, name: u64) -> Option<Text> {
        self.lanes.get_mut(name)?.notes.next()
    }

    /// The lane's user sends, so notes may: those that wait go first.
    pub(super) fn begin_notes(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.has_begun = true;
            if lane.notes.waits() {
                self.send_notes(name);
            }
        }
    }

    /// Sends notes that wait, as far as the peer permits it.
    pub(super) fn send_notes(&mut self, name: u64) {
        while let Some(lane) = self.lanes.get_mut(name)
            && let Some(note) = lane.notes.out.front()
            && lane.failed.is_none()
            && lane.is_open()
            && lane.sending.may_send()
            && let Stage::Ready(pair) = &lane.stage
        {
            let head = Head {
                is_note: true,
                ..lane.head()
            };
            let mut message = [0; HEAD + NOTE_MAX];
            let len = HEAD + note.bytes().len();
            message[..HEAD].copy_from_slice(&head.encode());
            message[HEAD..len].copy_from_slice(note.bytes());
            let operation = Operation::Send { immediate: None };
            let posted = if pair.inline() >= len {
                pair.post_inline(&mut self.queue, operation, &message[..len])
            } else {
                let Some(mut slot) = self.sends.take() else {
                    return;
                };
                slot.write(0, &message[..len]);
                let cookie = u64::from(lane.sending.number());
                pair.post(&mut self.queue, operation, Local::first(slot, len), cookie)
            };
            match posted {
                Ok(()) => {
                    lane.notes.out.pop_front();
                    lane.receiving.has_told();
                    lane.sending.keep_control();
                }
                Err(refused) if refused.is_full() => return,
                Err(refused) => {
                    let reason = refused.error.to_string();
                    drop(refused);
                    return self.lanes.fail(name, reason);
                }
            }
        }
    }
}
