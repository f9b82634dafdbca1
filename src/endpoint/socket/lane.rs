// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lane beside a stream: how a pair comes to it, and how it goes back.
//!
//! ```text
//! stream  frames OFFER READY frames SWITCH  control frames only        END(n)  frames, from the peer's n on
//! lane                              frames  frames  frames  (fails)
//! ```
//!
//! Each direction switches for itself, once both sides are connected. From then on the stream carries no frame of that
//! direction, so that the order is the lane's. Where a lane fails, each side says by the stream how much it has
//! received by it. What is behind that is sent again by the stream. Bytes that arrived by the lane are read first.

use super::closing::Closing;
use super::feed::CarryOver;
use super::frame::{FrameKind, HEAD, Head};
use super::output::Output;
use super::retry::Retry;
use super::shared_lanes::SharedLanes;
use onecopy_btl::lanes::Offer;
use std::time::{Duration, Instant};

/// Offers of one peer come further apart than this, half of [`BACKOFF`](super::retry::BACKOFF). It offers a lane again
/// so long after it has read of the end of the one before. Without a bound a peer could have this rank make pairs, and
/// answers that nobody reads.
const OFFERS_APART: Duration = Duration::from_millis(500);

/// What carries the frames to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    Stream,
    Lane,
    /// The lane is over, and the peer's END has not reported yet how much has come by it.
    AwaitingEnd,
}

/// Which steps two sides have made towards a lane, and towards its end.
#[derive(Debug, Default)]
pub(super) struct LaneHandshake {
    /// The numbers of both ends, the own one first; the peer's once it is known.
    numbers: (u32, Option<u32>),
    /// The peer has the number of this rank's target.
    sent_target: bool,
    /// The peer knows that this side is connected.
    sent_ready: bool,
    /// The peer's side is connected.
    received_ready: bool,
    /// This side has ended the lane, and has said so if it can.
    pub(super) sent_end: bool,
}

/// What goes to the peer.
#[derive(Debug)]
pub(super) struct OutgoingFrames {
    /// What carries the frames.
    pub(super) carrier: Carrier,
    /// The device has not taken all that it was given.
    pub(super) device_backlog: bool,
    /// Control frames for the stream while it carries no others.
    pub(super) control: Output,
}

/// What comes from the peer.
#[derive(Debug, Default)]
pub(super) struct IncomingFrames {
    /// The lane carries the frames.
    pub(super) by_lane: bool,
    /// Bytes of the stream while it carries nothing but control frames.
    pub(super) control: Vec<u8>,
    /// Bytes of a lane that is over: they are read before those of the stream.
    pub(super) carry_over: CarryOver,
    /// The same, from a peer that has not switched yet: none may be read until it does.
    held: Vec<u8>,
}

/// How often what carries the frames of a pair has changed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LaneChanges {
    /// To a lane.
    pub(crate) taken_over: u64,
    /// Back to the stream.
    pub(crate) given_back: u64,
}

/// The lane of a pair.
#[derive(Debug)]
pub(super) struct PairLane {
    pub(super) lanes: SharedLanes,
    rank: u32,
    /// The lane that there is, or is being made.
    pub(super) lane: Option<u64>,
    pub(super) handshake: LaneHandshake,
    pub(super) outgoing: OutgoingFrames,
    pub(super) incoming: IncomingFrames,
    /// Polls of the stream that were left out.
    pub(super) skipped: u32,
    pub(super) retry: Retry,
    pub(super) changes: LaneChanges,
    /// Why no lane carries frames, as far as this rank knows it.
    pub(super) why_not: Option<String>,
}

/// What a peer sent against the protocol.
pub(super) type ProtocolViolation = &'static str;

/// When the peer offered a lane last.
#[derive(Debug, Default)]
pub(super) struct LastOffer(Option<Instant>);

impl LastOffer {
    /// The peer offers one now.
    pub(super) fn comes(&mut self, now: Instant) -> Result<(), ProtocolViolation> {
        match self.0.replace(now) {
            Some(last) if now < last + OFFERS_APART => Err("offers of lanes without a pause"),
            _ => Ok(()),
        }
    }
}

impl PairLane {
    pub(super) fn new(lanes: SharedLanes, rank: u32) -> Self {
        Self {
            lanes,
            rank,
            lane: None,
            handshake: LaneHandshake::default(),
            outgoing: OutgoingFrames {
                carrier: Carrier::Stream,
                device_backlog: false,
                control: Output::default(),
            },
            incoming: IncomingFrames::default(),
            skipped: 0,
            retry: Retry::new(),
            changes: LaneChanges::default(),
            why_not: None,
        }
    }

    /// Makes a lane and offers it. `false`: there can be none.
    pub(super) fn offer(&mut self, stream: &mut Output) -> bool {
        self.retry.tries();
        let made = self.lanes.lock().make(self.rank);
        match made {
            Ok((lane, offer)) => {
                self.lane = Some(lane);
                self.handshake.numbers = (offer.number(), None);
                stream.push_with(FrameKind::Offer, &offer.to_bytes());
                true
            }
            Err(reason) => {
                tracing::info!(peer = self.rank, "no lane: {reason}");
                self.why_not = Some(reason.to_string());
                self.retry.refused(Instant::now());
                false
            }
        }
    }

    /// The peer offers a lane.
    pub(super) fn on_offer(
        &mut self,
        bytes: &[u8; Offer::BYTES],
        stream: &mut Output,
    ) -> Result<(), ProtocolViolation> {
        let offer = Offer::from_bytes(bytes).ok_or("a malformed lane offer")?;
        if self.handshake.sent_end {
            // It is about a lane that is over on this side.
            return Ok(());
        }
        if self.handshake.numbers.1.is_some() {
            return Err("a second offer of a lane");
        }
        if self.lane.is_none() && !self.offer(stream) {
            self.end(stream);
            return Ok(());
        }
        self.handshake.numbers.1 = Some(offer.number());
        if let Some(lane) = self.lane {
            self.lanes.lock().connect(lane, &offer);
        }
        Ok(())
    }

    /// The peer has made a target for this rank's initiator.
    pub(super) fn on_target(&mut self, value: u64) -> Result<(), ProtocolViolation> {
        if self.handshake.sent_end {
            return Ok(());
        }
        let number = u32::try_from(value).map_err(|_| "TARGET with a malformed number")?;
        if self.handshake.numbers.1.is_none() || self.handshake.received_ready {
            return Err("TARGET for a lane that was not offered");
        }
        if let Some(lane) = self.lane {
            self.lanes.lock().hear_target(lane, number);
        }
        Ok(())
    }

    /// The peer's lane is connected with one of this rank's.
    pub(super) fn on_ready(&mut self, value: u64) -> Result<(), ProtocolViolation> {
        if self.handshake.sent_end {
            return Ok(());
        }
        let (theirs, ours) = ((value >> 32) as u32, value as u32);
        if self.handshake.numbers != (ours, Some(theirs)) {
            return Err("READY for a lane that was not offered");
        }
        self.handshake.received_ready = true;
        Ok(())
    }

    /// What follows in the peer's stream goes by the lane; `rest` came behind that frame.
    pub(super) fn on_switch(&mut self, rest: Vec<u8>) -> Result<(), ProtocolViolation> {
        if self.incoming.by_lane || self.lane.is_none() {
            return Err("SWITCH without a lane");
        }
        self.incoming.by_lane = true;
        self.incoming.control = rest;
        self.incoming
            .carry_over
            .add(&std::mem::take(&mut self.incoming.held));
        Ok(())
    }

    /// Moves a lane on that is being connected, and ends one that has failed.
    pub(super) fn look(&mut self, stream: &mut Output) {
        let Some(lane) = self.lane.filter(|_| !self.handshake.sent_end) else {
            return;
        };
        let (failed, connected, target) = {
            let mut lanes = self.lanes.lock();
            lanes.poll();
            let target = lanes.target(lane).filter(|_| !self.handshake.sent_target);
            (lanes.has_failed(lane), lanes.is_connected(lane), target)
        };
        if let Some(target) = target.filter(|_| !failed) {
            self.handshake.sent_target = true;
            stream.push(FrameKind::Target, u64::from(target));
        }
        if failed {
            self.end(stream);
        } else if connected
            && !self.handshake.sent_ready
            && let (ours, Some(theirs)) = self.handshake.numbers
        {
            self.handshake.sent_ready = true;
            stream.push(FrameKind::Ready, u64::from(ours) << 32 | u64::from(theirs));
        }
    }

    /// Has the lane carry what follows, if both sides are connected. Nothing waits for the stream.
    pub(super) fn switch(&mut self) {
        let both =
            self.handshake.sent_ready && self.handshake.received_ready && !self.handshake.sent_end;
        if both && self.outgoing.carrier == Carrier::Stream && self.outgoing.control.is_empty() {
            self.outgoing.control.push(FrameKind::Switch, 0);
            self.outgoing.carrier = Carrier::Lane;
            if let Some(lane) = self.lane {
                // What lanes send each other beside the stream may go from now on.
                self.outgoing.device_backlog = !self.lanes.lock().push(lane);
            }
            self.changes.taken_over += 1;
            self.retry.carries(Instant::now());
            self.why_not = None;
        }
    }

    /// Ends the lane on this side, and says how much has come by it.
    pub(super) fn end(&mut self, stream: &mut Output) {
        let Some(received) = self.stop() else {
            return;
        };
        match self.outgoing.carrier {
            Carrier::Stream => stream.push(FrameKind::End, received),
            Carrier::Lane | Carrier::AwaitingEnd => {
                self.outgoing.control.push(FrameKind::End, received);
            }
        }
    }

    /// Ends the lane on this side without a word to the peer. Returns how many bytes have come by it; none if the lane
    /// was over before.
    pub(super) fn stop(&mut self) -> Option<u64> {
        if std::mem::replace(&mut self.handshake.sent_end, true) {
            return None;
        }
        let mut received = 0;
        if let Some(lane) = self.lane {
            let mut lanes = self.lanes.lock();
            let reason = lanes.failure(lane);
            received = lanes.stop(lane);
            let mut bytes = vec![0; lanes.unread(lane)];
            lanes.read(lane, &mut bytes);
            if self.incoming.by_lane {
                self.incoming.carry_over.add(&bytes);
            } else {
                self.incoming.held = bytes;
            }
            let reason = reason.unwrap_or_else(|| "the peer has given it up".to_owned());
            if self.outgoing.carrier == Carrier::Lane || self.incoming.by_lane {
                tracing::info!(peer = self.rank, "the lane is over: {reason}");
            } else {
                tracing::info!(peer = self.rank, "no lane: {reason}");
            }
            self.why_not = Some(reason);
        }
        if self.outgoing.carrier != Carrier::Stream {
            self.outgoing.carrier = Carrier::AwaitingEnd;
            self.changes.given_back += 1;
        }
        Some(received)
    }

    /// The peer's side of the lane is over: so much has come there.
    pub(super) fn on_end(
        &mut self,
        received: u64,
        stream: &mut Output,
    ) -> Result<(), ProtocolViolation> {
        if self.lane.is_none() && !self.handshake.sent_end {
            return Err("END without a lane");
        }
        self.end(stream);
        if self.outgoing.carrier == Carrier::AwaitingEnd {
            let lane = self.lane.unwrap_or(u64::MAX);
            let left = self.lanes.lock().left(lane, received);
            stream.prepend(left.ok_or("it has received what was not sent")?);
            self.outgoing.carrier = Carrier::Stream;
        } else if received > 0 {
            return Err("it has received what was not sent");
        }
        if !self.incoming.held.is_empty() {
            return Err("bytes of a lane that it has not changed to");
        }
        self.incoming.by_lane = false;
        self.incoming
            .carry_over
            .add(&std::mem::take(&mut self.incoming.control));
        let had_none = self.lane.is_none();
        self.close();
        self.handshake = LaneHandshake::default();
        self.outgoing.device_backlog = false;
        if had_none {
            // This side refused it, for a reason that may pass.
            self.retry.refused(Instant::now());
        } else {
            self.retry.failed(Instant::now());
        }
        Ok(())
    }

    /// Takes the control frames from what came by the stream.
    pub(super) fn on_control(
        &mut self,
        stream: &mut Output,
        closing: &mut Closing,
    ) -> Result<(), ProtocolViolation> {
        while let Some(head) = self.incoming.control.first_chunk::<HEAD>() {
            let head = Head::decode(head)?;
            self.incoming.control.drain(..HEAD);
            match head.what {
                FrameKind::GivenUp => closing.on_given_up(),
                FrameKind::End => {
                    self.on_end(head.value, stream)?;
                    // What is behind it are frames.
                    break;
                }
                _ => return Err("a frame in a stream that carries none"),
            }
        }
        Ok(())
    }

    /// Whether a lane is to be tried again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.lane.is_none() && !self.handshake.sent_end && self.retry.is_due(now)
    }

    /// Forgets the lane.
    pub(super) fn close(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.lanes.lock().close(lane);
        }
    }
}

impl Drop for PairLane {
    fn drop(&mut self) {
        self.close();
    }
}
