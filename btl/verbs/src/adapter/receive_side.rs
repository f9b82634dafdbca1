// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a lane receives: what has come and was not read, what the peer is permitted, and what it was told of that.

use std::collections::VecDeque;

use super::GRANT_MIN;
use super::head::{HEAD, Head};
use crate::memory::Slot;
use crate::provider::Provider;

/// A message that has come and was not read to its end.
#[derive(Debug)]
struct Unread<P: Provider> {
    slot: Slot<P>,
    from: usize,
    to: usize,
}

/// A lane's receiving side.
///
/// Invariants: messages come without a gap, and never more than are permitted. A slot is held from when its message
/// comes until it was read to its end. Only then does the message count as taken.
#[derive(Debug)]
pub(super) struct ReceiveSide<P: Provider> {
    /// The offset of the next byte that comes.
    next: u64,
    inbox: VecDeque<Unread<P>>,
    /// Messages that came, were taken, and are permitted, ever.
    arrived: u32,
    taken: u32,
    granted: u32,
    /// What was announced to the peer of the last two.
    announced_taken: u32,
    announced_granted: u32,
    /// Whether there were bytes in what was taken since.
    owes: bool,
    /// Messages that the peer may have under way.
    window: u32,
    /// `arrived`, when it was last looked at.
    seen: u32,
}

impl<P: Provider> ReceiveSide<P> {
    /// One whose peer will be told of so many messages when the lane is offered to it.
    pub(super) fn new(granted: u32) -> Self {
        Self {
            next: 0,
            inbox: VecDeque::new(),
            arrived: 0,
            taken: 0,
            granted,
            announced_taken: 0,
            announced_granted: granted,
            owes: false,
            window: GRANT_MIN,
            seen: 0,
        }
    }

    /// Bytes of the stream that have come, ever.
    pub(super) fn received(&self) -> u64 {
        self.next
    }

    /// Messages that have come, ever.
    pub(super) fn arrived(&self) -> u32 {
        self.arrived
    }

    /// Messages that are permitted and have not come.
    pub(super) fn open(&self) -> u32 {
        self.granted.wrapping_sub(self.arrived)
    }

    /// The head of the next message to the peer, whose bytes begin at that offset of the stream.
    pub(super) fn head(&self, offset: u64) -> Head {
        Head {
            offset,
            taken: self.taken,
            granted: self.granted,
            is_note: false,
        }
    }

    /// The head of a message of `len` bytes that has come in `slot`. An error names what no correct peer would send.
    pub(super) fn check(&self, slot: &Slot<P>, len: usize) -> Result<Head, &'static str> {
        if len < HEAD || len > slot.len() {
            return Err("a message without a head");
        }
        if self.granted == self.arrived {
            return Err("more messages than it was permitted");
        }
        let mut raw = [0; HEAD];
        slot.read(0, &mut raw);
        let head = Head::decode(&raw);
        if head.offset != self.next {
            return Err("bytes of another offset than the next");
        }
        Ok(head)
    }

    /// Takes a message in that was found to be correct. Gives the slot back if it holds no bytes of the stream: that
    /// was a control message or a note.
    pub(super) fn take_in(&mut self, slot: Slot<P>, len: usize, is_note: bool) -> Option<Slot<P>> {
        self.arrived = self.arrived.wrapping_add(1);
        if len == HEAD || is_note {
            self.taken = self.taken.wrapping_add(1);
            return Some(slot);
        }
        self.next += (len - HEAD) as u64;
        self.inbox.push_back(Unread {
            slot,
            from: HEAD,
            to: len,
        });
        None
    }

    /// Bytes that have come and were not read.
    pub(super) fn unread(&self) -> usize {
        self.inbox
            .iter()
            .map(|unread| unread.to - unread.from)
            .sum()
    }

    /// Reads bytes; the slots that are of no more use go to `done`.
    pub(super) fn read(&mut self, out: &mut [u8], mut done: impl FnMut(Slot<P>)) -> usize {
        let mut read = 0;
        while read < out.len()
            && let Some(unread) = self.inbox.front_mut()
        {
            let count = (unread.to - unread.from).min(out.len() - read);
            unread.slot.read(unread.from, &mut out[read..read + count]);
            unread.from += count;
            read += count;
            if unread.from == unread.to
                && let Some(unread) = self.inbox.pop_front()
            {
                self.taken = self.taken.wrapping_add(1);
                self.owes = true;
                done(unread.slot);
            }
        }
        read
    }

    /// Nobody reads any more: all slots go to `done`.
    pub(super) fn drop_unread(&mut self, mut done: impl FnMut(Slot<P>)) {
        for unread in self.inbox.drain(..) {
            done(unread.slot);
        }
    }

    /// Widens the window, up to `most`, where the peer uses half of it before that is acknowledged.
    pub(super) fn widen(&mut self, most: u32) {
        let used = self.taken.wrapping_sub(self.announced_taken) >= self.window / 2;
        if used && self.window < most {
            self.window = (2 * self.window).min(most);
        }
    }

    /// Halves the window where nothing has come since this was last called.
    pub(super) fn narrow(&mut self) {
        if self.seen == self.arrived {
            self.window = (self.window / 2).max(GRANT_MIN);
        }
        self.seen = self.arrived;
    }

    /// How many more messages the peer should be permitted.
    pub(super) fn wanted(&self) -> u32 {
        let open = self.granted.wrapping_sub(self.taken);
        self.window.saturating_sub(open)
    }

    /// Permits the peer more messages. It is told with the next one to it.
    pub(super) fn grant(&mut self, more: u32) {
        self.granted = self.granted.wrapping_add(more);
    }

    /// All that was taken and granted has been announced to the peer.
    pub(super) fn has_announced(&mut self) {
        self.announced_taken = self.taken;
        self.announced_granted = self.granted;
        self.owes = false;
    }

    /// Whether the peer is permitted more than was announced to it.
    pub(super) fn has_more_to_grant(&self) -> bool {
        self.granted != self.announced_granted
    }

    /// Whether so much was taken that it must be acknowledged before the peer stops.
    pub(super) fn must_acknowledge(&self) -> bool {
        let half = (self.announced_granted.wrapping_sub(self.announced_taken) / 2).max(1);
        self.taken.wrapping_sub(self.announced_taken) >= half
    }

    /// Whether the peer keeps bytes only because it was not told yet.
    pub(super) fn owes(&self) -> bool {
        self.owes
    }

    /// Whether anything was taken that was not announced to the peer.
    pub(super) fn has_more_taken(&self) -> bool {
        self.taken != self.announced_taken
    }
}
