// SPDX-License-Identifier: MIT OR Apache-2.0
//! One lane: its window, what it keeps until the peer has it, and what has come.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::head::{HEAD, Head, Offer};
use super::{GRANT_MIN, WINDOW_MAX};
use crate::changed::Listed;
use crate::error::Error;
use crate::memory::Slot;
use crate::pair::{Pair, Prepared, Ready};
use crate::port::Reach;
use crate::provider::Provider;

/// A pair that a thread connects.
#[derive(Debug)]
pub(super) struct Connecting<P: Provider> {
    pub(super) coming: Receiver<Result<Pair<P, Ready>, Error>>,
    /// Its account, which ends with the pair where connecting fails.
    pub(super) account: u64,
}

/// How far the connection has come.
#[derive(Debug)]
pub(super) enum Stage<P: Provider> {
    /// It waits for the peer's offer.
    Prepared(Pair<P, Prepared>),
    /// A thread connects it: that may take a second.
    Connecting(Connecting<P>),
    Ready(Pair<P, Ready>),
    /// It carries nothing any more.
    Over,
}

/// The bytes of a message until the peer has taken it.
#[derive(Debug)]
pub(super) enum Bytes<P: Provider> {
    /// The device reads them.
    Posted,
    Slot(Slot<P>),
    /// In memory that is not pinned.
    Copy(Vec<u8>),
}

/// A message that the peer has not taken yet, as far as is known.
#[derive(Debug)]
pub(super) struct Kept<P: Provider> {
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) bytes: Bytes<P>,
}

/// Bytes of the peer's memory that were asked for.
#[derive(Debug)]
pub(super) struct Asked<P: Provider> {
    pub(super) token: u64,
    pub(super) number: u32,
    pub(super) len: usize,
    /// Where they are, once they have come.
    pub(super) slot: Option<Slot<P>>,
}

/// A message that has come and was not read to its end.
#[derive(Debug)]
pub(super) struct Unread<P: Provider> {
    slot: Slot<P>,
    from: usize,
    to: usize,
}

#[derive(Debug)]
pub(super) struct Lane<P: Provider> {
    pub(super) rank: u32,
    pub(super) stage: Stage<P>,
    pub(super) own: Reach,
    pub(super) failed: Option<String>,
    /// Whether it stands in the list of those that have changed.
    pub(super) is_listed: bool,

    /// Bytes of the peer's receives.
    pub(super) room: usize,
    /// Messages sent, permitted, and taken by the peer, ever.
    pub(super) sent: u32,
    pub(super) permitted: u32,
    pub(super) acknowledged: u32,
    /// The place of the next byte.
    pub(super) at: u64,
    pub(super) kept: VecDeque<Kept<P>>,
    /// A message that is being filled, and its bytes so far.
    pub(super) building: Option<(Slot<P>, usize)>,

    /// The place of the next byte that comes.
    pub(super) next: u64,
    pub(super) inbox: VecDeque<Unread<P>>,
    /// Messages that came, were taken, and are permitted, ever.
    pub(super) arrived: u32,
    pub(super) taken: u32,
    pub(super) granted: u32,
    /// What the peer was told of the last two.
    pub(super) told_taken: u32,
    pub(super) told_granted: u32,
    /// Whether there were bytes in what was taken since.
    pub(super) owes: bool,
    /// Bytes of its memory that were asked for, in that order, and how many times there were any.
    pub(super) asked: VecDeque<Asked<P>>,
    pub(super) reads: u32,
    /// Messages that the peer may have under way.
    pub(super) window: u32,
    /// `arrived`, when it was last looked at.
    pub(super) seen: u32,
    /// When it was last seen to have carried something, and what it had carried then.
    pub(super) used: Instant,
    carried: (u32, u32, u32),
    /// Operations whose end the device has told, ever, and since when it has told of none though some are under way.
    pub(super) ended: u32,
    pub(super) still: Option<(Instant, u32)>,
}

/// What became of a message that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It has bytes, which are kept with it.
    Bytes,
    /// It was a control message: an acknowledgement alone.
    Control,
}

/// An error of the peer, and the slot that its message came in.
pub(super) type Nonsense<P> = (&'static str, Slot<P>);

impl<P: Provider> Listed for Lane<P> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn is_listed(&mut self) -> &mut bool {
        &mut self.is_listed
    }
}

impl<P: Provider> Lane<P> {
    pub(super) fn new(rank: u32, pair: Pair<P, Prepared>, own: Reach) -> Self {
        Self {
            rank,
            stage: Stage::Prepared(pair),
            own,
            failed: None,
            is_listed: false,
            room: 0,
            sent: 0,
            permitted: 0,
            acknowledged: 0,
            at: 0,
            kept: VecDeque::new(),
            building: None,
            next: 0,
            inbox: VecDeque::new(),
            arrived: 0,
            taken: 0,
            granted: 0,
            told_taken: 0,
            told_granted: 0,
            owes: false,
            asked: VecDeque::new(),
            reads: 0,
            window: GRANT_MIN,
            seen: 0,
            used: Instant::now(),
            carried: (0, 0, 0),
            ended: 0,
            still: None,
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

    pub(super) fn may_send(&self) -> bool {
        self.credit() >= 2
    }

    /// The peer has been told of all that was taken.
    pub(super) fn has_told(&mut self) {
        self.told_taken = self.taken;
        self.told_granted = self.granted;
        self.owes = false;
    }

    /// The head of the next message.
    pub(super) fn head(&self) -> Head {
        Head {
            at: self.at,
            taken: self.taken,
            granted: self.granted,
        }
    }

    /// Takes what a message says about this side's messages. An error names what no correct peer would write.
    pub(super) fn hear(&mut self, head: Head) -> Result<(), &'static str> {
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

    /// A message of `len` bytes with its head has come in `slot`. Gives the slot back if it holds no bytes.
    pub(super) fn arrive(
        &mut self,
        slot: Slot<P>,
        len: usize,
    ) -> Result<(Arrived, Option<Slot<P>>), Nonsense<P>> {
        if len < HEAD || len > slot.len() {
            return Err(("a message without a head", slot));
        }
        if self.granted == self.arrived {
            return Err(("more messages than it was permitted", slot));
        }
        let mut raw = [0; HEAD];
        slot.read(0, &mut raw);
        let head = Head::decode(&raw);
        if head.at != self.next {
            return Err(("bytes of another place than the next", slot));
        }
        if let Err(what) = self.hear(head) {
            return Err((what, slot));
        }
        self.arrived = self.arrived.wrapping_add(1);
        if len == HEAD {
            self.taken = self.taken.wrapping_add(1);
            return Ok((Arrived::Control, Some(slot)));
        }
        self.next += (len - HEAD) as u64;
        self.inbox.push_back(Unread {
            slot,
            from: HEAD,
            to: len,
        });
        Ok((Arrived::Bytes, None))
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

    /// Since when the device has told nothing of what is under way.
    pub(super) fn still_since(&mut self, now: Instant) -> Option<Instant> {
        let sends = self.kept.iter();
        let under_way = sends
            .clone()
            .any(|kept| matches!(kept.bytes, Bytes::Posted))
            || self.asked.iter().any(|asked| asked.slot.is_none());
        self.still = match self.still {
            Some((since, ended)) if under_way && ended == self.ended => Some((since, ended)),
            _ if under_way => Some((now, self.ended)),
            _ => None,
        };
        self.still.map(|(since, _)| since)
    }

    /// Learns whether it has carried something since this was last called.
    pub(super) fn look_at_use(&mut self, now: Instant) {
        let carried = (self.sent, self.arrived, self.reads);
        if std::mem::replace(&mut self.carried, carried) != carried {
            self.used = now;
        }
    }

    /// Whether its device does nothing for it. What was not read, here or by the peer, does not count: when the lane
    /// ends, it is kept for its reader or sent again.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Ready(_))
            && self.building.is_none()
            && self.asked.is_empty()
            && !self
                .kept
                .iter()
                .any(|kept| matches!(kept.bytes, Bytes::Posted))
    }

    /// The place in `kept` of the message of that number.
    pub(super) fn place_of(&self, number: u32) -> Option<usize> {
        let first = self.sent.wrapping_sub(self.kept.len() as u32);
        let at = number.wrapping_sub(first) as usize;
        (at < self.kept.len()).then_some(at)
    }

    /// Forgets what the peer has taken. Messages that the device still reads are forgotten when it has.
    pub(super) fn forget(&mut self, mut done: impl FnMut(Bytes<P>)) {
        while (self.kept.len() as u32) > self.sent.wrapping_sub(self.acknowledged)
            && let Some(kept) = self.kept.pop_front()
        {
            done(kept.bytes);
        }
    }

    /// How many more messages the peer should be permitted.
    pub(super) fn wanted(&self) -> u32 {
        let open = self.granted.wrapping_sub(self.taken);
        self.window.saturating_sub(open)
    }

    /// Whether so much was taken that the peer must hear of it before it stops.
    pub(super) fn must_tell(&self) -> bool {
        let half = (self.told_granted.wrapping_sub(self.told_taken) / 2).max(1);
        self.taken.wrapping_sub(self.told_taken) >= half
    }

    /// Whether the peer keeps something only because it was not told yet, or waits for what this side keeps.
    pub(super) fn should_tell(&self) -> bool {
        self.owes || (!self.kept.is_empty() && self.taken != self.told_taken)
    }
}
