// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a lane sends: the message that is being filled, what is kept until the peer has taken it, and the peer's
//! credit.

use std::collections::VecDeque;

use super::head::{HEAD, Head, Offer};
use super::route::Route;
use super::send_slots::{Bytes, SendSlots};
use super::{INLINE_MAX, WINDOW_MAX};
use crate::error::Error;
use crate::memory::{Local, Slot};
use crate::pair::{QueuePair, Ready};
use crate::provider::Provider;
use crate::queue::Queue;
use crate::refused::Refused;

/// A message that the peer has not taken yet, as far as is known.
#[derive(Debug)]
struct SentMessage<P: Provider> {
    offset: u64,
    len: usize,
    bytes: Bytes<P>,
}

impl<P: Provider> SentMessage<P> {
    fn is_posted(&self) -> bool {
        matches!(self.bytes, Bytes::Posted)
    }
}

/// A lane's sending side.
///
/// Invariants: each message that was sent is kept until the peer says that it has taken it. What is kept, and what is
/// being filled behind it, is the end of the stream without a gap.
#[derive(Debug)]
pub(super) struct SendSide<P: Provider> {
    /// Bytes of the peer's receives.
    room: usize,
    /// Messages sent, permitted, and taken by the peer, ever.
    sent: u32,
    permitted: u32,
    acknowledged: u32,
    /// The offset of the next byte in the stream.
    offset: u64,
    kept: VecDeque<SentMessage<P>>,
    /// A message that is being filled, and its bytes so far, with those of its head.
    building: Option<(Slot<P>, usize)>,
}

impl<P: Provider> SendSide<P> {
    /// One that permits nothing yet.
    pub(super) fn new() -> Self {
        Self {
            room: 0,
            sent: 0,
            permitted: 0,
            acknowledged: 0,
            offset: 0,
            kept: VecDeque::new(),
            building: None,
        }
    }

    /// Takes the room and the permission from the peer's offer.
    pub(super) fn permit(&mut self, offer: &Offer) {
        self.room = offer.room as usize;
        self.permitted = offer.granted;
    }

    /// Messages that may be sent. The last one is kept for a control message. Without it, both sides could wait for
    /// ever.
    pub(super) fn credit(&self) -> u32 {
        self.permitted.wrapping_sub(self.sent)
    }

    /// Whether one more message may be sent, beside the one that is being filled.
    pub(super) fn may_send(&self) -> bool {
        self.credit() >= 2 + u32::from(self.is_building())
    }

    /// The offset of the next byte in the stream.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of the next message: how many were sent, ever.
    pub(super) fn number(&self) -> u32 {
        self.sent
    }

    /// Bytes of a message at most, with its head.
    fn message_bytes(&self, slots: &SendSlots<P>) -> usize {
        self.room.min(slots.slot_bytes())
    }

    /// Whether so many bytes can be sent now, or a good part of what the lane carries at once.
    pub(super) fn has_room(&self, slots: &SendSlots<P>, bytes: usize) -> bool {
        let most = self
            .permitted
            .wrapping_sub(self.acknowledged)
            .saturating_sub(1) as usize;
        let now = (self.credit().saturating_sub(1) as usize).min(slots.free());
        let each = self.message_bytes(slots) - HEAD;
        now > 0 && now >= bytes.div_ceil(each).min(most.min(slots.count()) / 4)
    }

    pub(super) fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// Whether the message that is being filled has no more room.
    pub(super) fn is_built(&self, slots: &SendSlots<P>) -> bool {
        let built = self.building.as_ref();
        built.is_some_and(|(_, len)| *len == self.message_bytes(slots))
    }

    /// Begins a message in that slot.
    pub(super) fn begin(&mut self, slot: Slot<P>) {
        self.building = Some((slot, HEAD));
    }

    /// Adds bytes to the message that is being filled; how many.
    pub(super) fn fill(&mut self, slots: &SendSlots<P>, bytes: &[u8]) -> usize {
        let most = self.message_bytes(slots);
        let Some((slot, len)) = &mut self.building else {
            return 0;
        };
        let count = (most - *len).min(bytes.len());
        slot.write(*len, &bytes[..count]);
        *len += count;
        count
    }

    /// Posts the message that was filled. After an error it is still there.
    pub(super) fn post_built(
        &mut self,
        pair: &QueuePair<P, Ready>,
        queue: &mut Queue<P>,
        head: Head,
        route: Route,
    ) -> Result<(), Error> {
        let Some((mut slot, len)) = self.building.take() else {
            return Ok(());
        };
        slot.write(0, &head.encode());
        let operation = route.send();
        let posted = if len <= pair.inline().min(INLINE_MAX) {
            let mut inline = [0; INLINE_MAX];
            slot.read(0, &mut inline[..len]);
            match pair.post_inline(queue, operation, &inline[..len]) {
                Ok(()) => Ok(Bytes::Slot(slot)),
                Err(refused) => Err((Some(slot), refused.error)),
            }
        } else {
            let cookie = route.cookie(u64::from(self.sent));
            match pair.post(queue, operation, Local::first(slot, len), cookie) {
                Ok(()) => Ok(Bytes::Posted),
                Err(Refused { local, error }) => Err((local.slot(), error)),
            }
        };
        match posted {
            Ok(bytes) => {
                self.keep(len - HEAD, bytes);
                Ok(())
            }
            Err((slot, error)) => {
                self.building = slot.map(|slot| (slot, len));
                Err(error)
            }
        }
    }

    /// A control message went out.
    pub(super) fn keep_control(&mut self) {
        self.keep(0, Bytes::Copy(Vec::new()));
    }

    fn keep(&mut self, len: usize, bytes: Bytes<P>) {
        let offset = self.offset;
        self.kept.push_back(SentMessage { offset, len, bytes });
        self.sent = self.sent.wrapping_add(1);
        self.offset += len as u64;
    }

    /// The index in `kept` of the message of that number.
    fn index_of(&self, number: u32) -> Option<usize> {
        let first = self.sent.wrapping_sub(self.kept.len() as u32);
        let index = number.wrapping_sub(first) as usize;
        (index < self.kept.len()).then_some(index)
    }

    /// The device has read a message: it stays in its slot, or is copied where slots are scarce. `false`: nobody needs
    /// it any more.
    pub(super) fn has_read(
        &mut self,
        slots: &mut SendSlots<P>,
        number: u32,
        slot: Slot<P>,
    ) -> bool {
        let kept = self
            .index_of(number)
            .and_then(|index| self.kept.get_mut(index));
        let Some(kept) = kept.filter(|kept| kept.len > 0) else {
            return false;
        };
        kept.bytes = if slots.is_scarce() {
            slots.copy(&slot, kept.len)
        } else {
            Bytes::Slot(slot)
        };
        true
    }

    /// Copies bytes out of their slots that the device has read.
    pub(super) fn copy_out_of_slots(&mut self, slots: &mut SendSlots<P>) {
        for kept in &mut self.kept {
            if let Bytes::Slot(slot) = &kept.bytes {
                kept.bytes = slots.copy(slot, kept.len);
            }
        }
    }

    /// Takes the acknowledgement and the credit of a message. An error names what no correct peer would write.
    pub(super) fn receive_head(&mut self, head: Head) -> Result<(), &'static str> {
        let taken = head.taken.wrapping_sub(self.acknowledged);
        if taken > self.sent.wrapping_sub(self.acknowledged) {
            return Err("an acknowledgement of what was not sent");
        }
        let more = head.granted.wrapping_sub(self.permitted);
        if more > WINDOW_MAX || head.granted.wrapping_sub(head.taken) > WINDOW_MAX {
            return Err("credit that is beyond every window");
        }
        self.permitted = head.granted;
        self.acknowledged = head.taken;
        Ok(())
    }

    /// Forgets what the peer has taken. Messages that the device still reads are forgotten when it has.
    pub(super) fn forget(&mut self, slots: &mut SendSlots<P>) {
        while (self.kept.len() as u32) > self.sent.wrapping_sub(self.acknowledged)
            && let Some(kept) = self.kept.pop_front()
        {
            slots.give_back(kept.bytes);
        }
    }

    /// Whether the peer has taken all bytes that were written.
    pub(super) fn is_taken(&self) -> bool {
        self.building.is_none() && self.kept.iter().all(|kept| kept.len == 0)
    }

    /// Whether anything is kept, be it a control message.
    pub(super) fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether the device still reads a message.
    pub(super) fn is_posted(&self) -> bool {
        self.kept.iter().any(SentMessage::is_posted)
    }

    /// Copies the bytes of a message whose slot the device still reads.
    pub(super) fn copy_posted(&mut self, number: u32, slots: &mut SendSlots<P>, slot: &Slot<P>) {
        let kept = self
            .index_of(number)
            .and_then(|index| self.kept.get_mut(index));
        if let Some(kept) = kept.filter(|kept| kept.is_posted()) {
            kept.bytes = slots.copy(slot, kept.len);
        }
    }

    /// Takes back the slot of a message whose end the device did not report. The head in the slot says which message it
    /// is.
    pub(super) fn take_back(&mut self, slot: Slot<P>) {
        let mut raw = [0; HEAD];
        slot.read(0, &mut raw);
        let Head {
            offset, is_note, ..
        } = Head::decode(&raw);
        if is_note {
            return;
        }
        let mut kept = self.kept.iter_mut();
        if let Some(kept) =
            kept.find(|kept| kept.offset == offset && kept.len > 0 && kept.is_posted())
        {
            kept.bytes = Bytes::Slot(slot);
        }
    }

    /// Takes all bytes behind the first `received` ones of the stream. None: the peer cannot have received so many, or
    /// the device may still read some.
    pub(super) fn take_left(&mut self, received: u64) -> Option<Vec<u8>> {
        let mut left = Vec::new();
        let mut offset = self.kept.front().map_or(self.offset, |kept| kept.offset);
        if received < offset || received > self.offset {
            return None;
        }
        for kept in &self.kept {
            let skip = usize::try_from(received.saturating_sub(offset))
                .ok()?
                .min(kept.len);
            let count = kept.len - skip;
            match &kept.bytes {
                Bytes::Slot(slot) => {
                    let begin = left.len();
                    left.resize(begin + count, 0);
                    slot.read(HEAD + skip, &mut left[begin..]);
                }
                Bytes::Copy(bytes) => left.extend_from_slice(bytes.get(skip..)?),
                // The device may still read it: it did not report the end.
                Bytes::Posted => return None,
            }
            offset += kept.len as u64;
        }
        if let Some((slot, len)) = &self.building {
            let begin = left.len();
            left.resize(begin + len - HEAD, 0);
            slot.read(HEAD, &mut left[begin..]);
        }
        self.kept.clear();
        self.building = None;
        Some(left)
    }
}
