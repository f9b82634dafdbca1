// SPDX-License-Identifier: MIT OR Apache-2.0
//! One lane's notes: what its two sides tell each other beside the stream.

use std::collections::VecDeque;

use super::head::HEAD;
use crate::memory::Slot;
use crate::provider::Provider;

/// Bytes of a note at most. The longest is an offer: 8 bytes, and a rail of 40.
pub(crate) const NOTE_MAX: usize = 48;
/// Notes of a peer that nobody has looked at yet. A correct one has fewer under way, and each look takes all. Chosen by
/// magnitude: a few notes for each of three further rails, many times over, in some 12 KiB.
const UNREAD_MAX: usize = 256;

/// A note, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoteBytes {
    len: u8,
    bytes: [u8; NOTE_MAX],
}

impl NoteBytes {
    /// The first bytes of these.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut note = Self {
            len: bytes.len().min(NOTE_MAX) as u8,
            bytes: [0; NOTE_MAX],
        };
        let len = usize::from(note.len);
        note.bytes[..len].copy_from_slice(&bytes[..len]);
        note
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A lane's notes: those that wait to go, and those that have come.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) out: VecDeque<NoteBytes>,
    unread: VecDeque<NoteBytes>,
}

impl Notes {
    /// A note has come. An error names what no correct peer would send.
    pub(super) fn take_in<P: Provider>(
        &mut self,
        slot: &Slot<P>,
        len: usize,
    ) -> Result<(), &'static str> {
        let len = len - HEAD;
        if len == 0 || len > NOTE_MAX {
            return Err("a note of no use");
        }
        if self.unread.len() >= UNREAD_MAX {
            return Err("more notes than there is anything to say");
        }
        let mut bytes = [0; NOTE_MAX];
        slot.read(HEAD, &mut bytes[..len]);
        self.unread.push_back(NoteBytes::of(&bytes[..len]));
        Ok(())
    }

    /// Whether any waits to go.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next one that has come.
    pub(super) fn next(&mut self) -> Option<NoteBytes> {
        self.unread.pop_front()
    }

    /// Forgets what has come: this side has no use for it.
    pub(super) fn drop_unread(&mut self) {
        self.unread.clear();
    }
}
