// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes: what the two sides of a lane tell each other beside the stream. They come in order and once, as its bytes do,
//! but end with the lane.

use super::Adapter;
use super::head::{HEAD, Head};
use super::lane_notes::{NOTE_MAX, NoteBytes};
use crate::provider::Provider;

impl<P: Provider> Adapter<P> {
    /// Has a note go out, now or once the peer permits it.
    pub(crate) fn add_note(&mut self, name: u64, note: &[u8]) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.notes.out.push_back(NoteBytes::of(note));
            self.send_notes(name);
        }
    }

    /// Notes that wait for the peer's permission.
    pub(crate) fn notes_waiting(&self, name: u64) -> usize {
        let lane = self.lanes.get(name);
        lane.map_or(0, |lane| lane.notes.out.len())
    }

    /// The next note of the peer.
    pub(crate) fn next_note(&mut self, name: u64) -> Option<NoteBytes> {
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
        {
            let head = Head {
                is_note: true,
                ..lane.head()
            };
            let mut message = [0; HEAD + NOTE_MAX];
            let len = HEAD + note.bytes().len();
            message[..HEAD].copy_from_slice(&head.encode());
            message[HEAD..len].copy_from_slice(note.bytes());
            match lane.post_control(&mut self.queue, &self.sends, &message[..len]) {
                Ok(true) => {
                    lane.notes.out.pop_front();
                }
                Ok(false) => return,
                Err(error) => return self.lanes.fail(name, error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Lanes;
    use crate::adapter::connected::connected;
    use crate::model::usual_settings;

    /// A note comes while a message is being filled for which the last but one was meant.
    #[test]
    fn a_note_leaves_the_last_message_to_a_control_message() {
        let (mut sides, lanes) =
            connected(|chosen| Adapter::for_rail(chosen, usual_settings()).expect("a rail"));
        for (side, lane) in sides.iter_mut().zip(lanes) {
            for _ in 0..2 {
                assert_eq!(side.write(lane, b"word"), 4);
                assert!(side.push(lane));
            }
            assert_eq!(side.write(lane, b"word"), 4);
            side.add_note(lane, b"note");
            assert!(side.push(lane));
        }
        // Now both windows are full, and both sides read.
        for _ in 0..4 {
            for (side, lane) in sides.iter_mut().zip(lanes) {
                side.poll();
                side.read(lane, &mut [0; 100]);
                side.acknowledge(lane);
            }
        }
        for (side, lane) in sides.iter_mut().zip(lanes) {
            assert_eq!(side.notes_waiting(lane), 0);
            assert_eq!(side.next_note(lane), Some(NoteBytes::of(b"note")));
            assert_eq!(side.write(lane, b"more"), 4);
        }
    }
}
