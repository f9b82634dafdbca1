// SPDX-License-Identifier: MIT OR Apache-2.0
//! One lane: how far its connection has come, and what its two sides owe each other.

use std::time::Instant;

use super::activity::{LastUse, Shows, Watchdog};
use super::connector::Connecting;
use super::extended_lane::ExtendedLane;
use super::head::Head;
use super::lane_notes::Notes;
use super::lane_reads::LaneReads;
use super::receive_side::ReceiveSide;
use super::route::Route;
use super::send_side::SendSide;
use super::send_slots::SendSlots;
use crate::changed::Listed;
use crate::directory::Failing;
use crate::error::Error;
use crate::memory::{Local, Slot};
use crate::pair::{Prepared, QueuePair, Ready};
use crate::port::QueuePairAddress;
use crate::provider::Provider;
use crate::queue::Queue;

/// How far the connection has come.
#[derive(Debug)]
pub(super) enum Stage<P: Provider> {
    /// It waits for the peer's offer.
    Prepared(QueuePair<P, Prepared>),
    /// A thread connects it: that may take a second.
    Connecting(Connecting<P>),
    Ready(QueuePair<P, Ready>),
    /// It goes by an extended connection, and waits for the peer's offer, or for the initiator.
    Offered,
    /// It carries nothing any more.
    Over,
}

/// A lane, in parts that can be borrowed apart. What two parts must agree on is asked of the lane.
#[derive(Debug)]
pub(super) struct Lane<P: Provider> {
    rank: u32,
    pub(super) stage: Stage<P>,
    /// How its requests say where they go.
    pub(super) route: Route,
    /// What only a lane by an extended connection has.
    pub(super) extended: Option<Box<ExtendedLane<P>>>,
    pub(super) own: QueuePairAddress,
    pub(super) failed: Option<String>,
    /// Whether it stands in the list of those that have changed.
    is_listed: bool,
    pub(super) sending: SendSide<P>,
    pub(super) receiving: ReceiveSide<P>,
    pub(super) reads: LaneReads<P>,
    pub(super) notes: Notes,
    /// The lane's user has begun to send: it knows that both sides are connected. Noted where notes are of use.
    pub(super) has_begun: bool,
    last_use: LastUse,
    pub(super) shows: Shows,
    /// It failed only because another lane needs its place.
    pub(super) is_displaced: bool,
    pub(super) watchdog: Watchdog,
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

impl<P: Provider> Failing for Lane<P> {
    fn failed(&mut self) -> &mut Option<String> {
        &mut self.failed
    }
}

impl<P: Provider> Lane<P> {
    /// One whose peer will be offered so many messages.
    pub(super) fn new(
        rank: u32,
        pair: QueuePair<P, Prepared>,
        own: QueuePairAddress,
        granted: u32,
    ) -> Self {
        Self::at(rank, Stage::Prepared(pair), own, granted)
    }

    /// One that goes by an extended connection. Its peer will be offered nothing yet.
    pub(super) fn by_extended(rank: u32, own: QueuePairAddress, extended: ExtendedLane<P>) -> Self {
        Self {
            route: Route::to_nobody(extended.number()),
            extended: Some(Box::new(extended)),
            ..Self::at(rank, Stage::Offered, own, 0)
        }
    }

    fn at(rank: u32, stage: Stage<P>, own: QueuePairAddress, granted: u32) -> Self {
        Self {
            rank,
            stage,
            route: Route::default(),
            extended: None,
            own,
            failed: None,
            is_listed: false,
            sending: SendSide::new(),
            receiving: ReceiveSide::new(granted),
            reads: LaneReads::default(),
            notes: Notes::default(),
            has_begun: false,
            last_use: LastUse::new(),
            shows: Shows::default(),
            is_displaced: false,
            watchdog: Watchdog::default(),
        }
    }

    /// The head of the next message.
    pub(super) fn head(&self) -> Head {
        self.receiving.head(self.sending.offset())
    }

    /// A message of `len` bytes with its head has come in `slot`. Gives the slot back if it holds no bytes of the
    /// stream.
    pub(super) fn arrive(
        &mut self,
        slot: Slot<P>,
        len: usize,
    ) -> Result<Option<Slot<P>>, Nonsense<P>> {
        let checked = self.receiving.check(&slot, len).and_then(|head| {
            if head.is_note {
                self.notes.take_in(&slot, len)?;
            }
            self.sending.receive_head(head).map(|()| head.is_note)
        });
        match checked {
            Ok(is_note) => Ok(self.receiving.take_in(slot, len, is_note)),
            Err(what) => Err((what, slot)),
        }
    }

    /// Posts a message that holds no bytes of the stream: an acknowledgement or a note. `false`: it cannot go now.
    pub(super) fn post_control(
        &mut self,
        queue: &mut Queue<P>,
        slots: &SendSlots<P>,
        message: &[u8],
    ) -> Result<bool, Error> {
        let Stage::Ready(pair) = &self.stage else {
            return Ok(false);
        };
        let operation = self.route.send();
        let posted = if pair.inline() >= message.len() {
            pair.post_inline(queue, operation, message)
        } else {
            // This device sends fewer bytes inline, or none.
            let Some(mut slot) = slots.take() else {
                return Ok(false);
            };
            slot.write(0, message);
            let local = Local::first(slot, message.len());
            let cookie = self.route.cookie(u64::from(self.sending.number()));
            pair.post(queue, operation, local, cookie)
        };
        match posted {
            Ok(()) => {
                self.receiving.has_announced();
                self.sending.keep_control();
                Ok(true)
            }
            Err(refused) if refused.is_full() => Ok(false),
            Err(refused) => Err(refused.error),
        }
    }

    /// Whether the peer's pair is known to be ready: the lane's user began to send, or something came from it.
    pub(super) fn is_open(&self) -> bool {
        self.has_begun || self.receiving.arrived() > 0
    }

    /// Whether the peer keeps something only because it was not acknowledged yet, or waits for what this side keeps.
    pub(super) fn should_acknowledge(&self) -> bool {
        self.receiving.owes() || (self.sending.keeps_any() && self.receiving.has_more_taken())
    }

    /// Whether messages and reads can be posted, and what comes is taken.
    pub(super) fn is_connected(&self) -> bool {
        let extended = self.extended.as_ref();
        self.failed.is_none()
            && matches!(self.stage, Stage::Ready(_))
            && extended.is_none_or(|extended| extended.serves())
    }

    /// Since when the device has told nothing of what is under way.
    pub(super) fn still_since(&mut self, now: Instant) -> Option<Instant> {
        let under_way = self.sending.is_posted() || self.reads.is_under_way();
        self.watchdog.still_since(now, under_way)
    }

    /// Learns whether it has carried something since this was last called. Gives when it was last seen to.
    pub(super) fn look_at_use(&mut self, now: Instant) -> Instant {
        let carried = (
            self.sending.number(),
            self.receiving.arrived(),
            self.reads.number(),
        );
        self.last_use.look(now, carried);
        self.last_use.time()
    }

    /// It belongs to something that was used at that time.
    pub(super) fn note_use(&mut self, time: Instant) {
        self.last_use.note(time);
    }

    /// Whether no device does anything by it. What was not read, here or by the peer, does not count: when the lane
    /// ends, it is kept for its reader or sent again.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Ready(_))
            && !self.sending.is_building()
            && self.reads.is_empty()
            && !self.shows.is_any()
            && !self.sending.is_posted()
    }
}
