// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an endpoint over a stream does by its lane: offers one, sends and reads by it, and ends it. How a pair
//! comes to a lane and goes back: [`super::lane`].

use super::feed::End;
use super::frame::{FrameKind, HEAD};
use super::lane::{Carrier, LaneChanges, PairLane};
use super::shared_lanes::{NamedLane, SharedLanes};
use super::{SKIPS, Socket};
use crate::endpoint::{Pack, Put};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use onecopy_btl::lanes::{ExposedMemory, Offer, ReadState, RemoteAddress};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

impl Socket {
    /// Offers the peer, which is `rank`, a lane of these.
    pub(crate) fn attach_lanes(&mut self, lanes: &SharedLanes, rank: u32) {
        let mut lane_state = Box::new(PairLane::new(lanes.clone(), rank));
        if self.closing.permits_frames() {
            lane_state.offer(&mut self.output);
        }
        self.lane_state = Some(lane_state);
        self.flush();
    }

    /// Why no lane carries the frames, as far as that is known.
    pub(crate) fn no_lane(&self) -> Option<&str> {
        self.lane_state.as_ref()?.why_not.as_deref()
    }

    /// By which ports of devices the lane goes, that of the stream first.
    pub(crate) fn rails(&self) -> Vec<String> {
        let carries = |lane_state: &PairLane| {
            lane_state.incoming.by_lane || lane_state.outgoing.carrier == Carrier::Lane
        };
        let Some(lane_state) = self.lane_state.as_deref().filter(|state| carries(state)) else {
            return Vec::new();
        };
        let lane = lane_state.lane.unwrap_or(u64::MAX);
        lane_state.lanes.lock().rails(lane)
    }

    /// Does what is due by the clock.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Some(lane_state) = &mut self.lane_state
            && lane_state.is_due(now)
            && self.closing.permits_frames()
        {
            lane_state.offer(&mut self.output);
            self.flush();
        }
    }

    /// The changes of what carries the frames, since this was last asked.
    pub(crate) fn take_changes(&mut self) -> LaneChanges {
        let lane_state = self.lane_state.as_mut();
        lane_state.map_or_else(LaneChanges::default, |lane_state| {
            std::mem::take(&mut lane_state.changes)
        })
    }

    /// Writes what can be written, where there may be a lane.
    pub(super) fn flush_by_lane(&mut self) {
        let (Some(lane_state), Some(stream)) = (&mut self.lane_state, &self.stream) else {
            return;
        };
        let fd = stream.fd.as_fd();
        let mut written = lane_state.outgoing.control.flush(fd);
        if lane_state.outgoing.carrier == Carrier::Stream
            && lane_state.outgoing.control.is_empty()
            && written.is_ok()
        {
            written = self.output.flush(fd);
            if self.output.is_empty() && self.closing.permits_frames() {
                lane_state.switch();
                written = written.and_then(|()| lane_state.outgoing.control.flush(fd));
            }
        }
        if lane_state.outgoing.carrier == Carrier::Lane
            && let Some(lane) = lane_state.lane
            && (lane_state.outgoing.device_backlog || !self.output.is_empty())
        {
            let mut lanes = lane_state.lanes.lock();
            self.output.hand(|bytes| lanes.write(lane, bytes));
            lane_state.outgoing.device_backlog = !lanes.push(lane);
        }
        if let Err(errno) = written {
            self.cannot_write(errno);
        }
    }

    /// Looks by turns at a stream that carries no frames: for the lane's end, or its own.
    pub(super) fn look_at_stream(&mut self) {
        let (Some(lane_state), Some(stream)) = (&mut self.lane_state, &self.stream) else {
            return;
        };
        lane_state.skipped += 1;
        if lane_state.skipped < SKIPS && !lane_state.handshake.sent_end || self.closing.has_ended()
        {
            return;
        }
        lane_state.skipped = 0;
        let mut bytes = [0; 16 * HEAD];
        match recv(stream.fd.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => {
                // What came by the lane before is found first.
                lane_state.lanes.lock().poll();
                return self.ended(End::Closed);
            }
            Ok(count) => {
                lane_state
                    .incoming
                    .control
                    .extend_from_slice(&bytes[..count]);
                self.note_read();
            }
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => {}
            Err(errno) => return self.ended(End::Failed(errno)),
        }
        self.on_control();
    }

    fn on_control(&mut self) {
        if let Some(lane_state) = &mut self.lane_state
            && let Err(what) = lane_state.on_control(&mut self.output, &mut self.closing)
        {
            self.input.bad = Some(what);
        }
        self.drop_answers();
        self.flush();
    }

    #[cold]
    pub(super) fn on_offer(&mut self, offer: &[u8; Offer::BYTES]) {
        if self.closing.has_stopped() {
            // Nothing goes to the peer, so the lane is over. What follows about it in the stream is no fault.
            if let Some(lane_state) = &mut self.lane_state {
                lane_state.stop();
            }
            return;
        }
        // One that has crossed this rank's END is ignored. It may be read at one time with the next one, however long
        // the peer has paused between them.
        let lane_state = self.lane_state.as_ref();
        let is_late = lane_state.is_some_and(|lane_state| lane_state.handshake.sent_end);
        if !is_late && let Err(what) = self.last_offer.comes(Instant::now()) {
            self.input.bad = Some(what);
            return;
        }
        match &mut self.lane_state {
            // This rank has said farewell.
            Some(lane_state) if !self.closing.permits_frames() => lane_state.end(&mut self.output),
            Some(lane_state) => {
                if let Err(what) = lane_state.on_offer(offer, &mut self.output) {
                    self.input.bad = Some(what);
                }
            }
            // This rank makes no lanes.
            None => self.output.push(FrameKind::End, 0),
        }
        self.flush();
    }

    /// A control frame about the lane.
    #[cold]
    pub(super) fn on_lane_control(&mut self, what: FrameKind, value: u64) {
        let Some(lane_state) = &mut self.lane_state else {
            // The answer to this rank's refusal.
            if what != FrameKind::End || value != 0 {
                self.input.bad = Some("a control frame about a lane that was refused");
            }
            return;
        };
        let result = match what {
            FrameKind::Ready => lane_state.on_ready(value),
            FrameKind::Target => lane_state.on_target(value),
            FrameKind::Switch => lane_state.on_switch(self.input.take_rest()),
            _ => lane_state.on_end(value, &mut self.output),
        };
        match result {
            Ok(()) if what == FrameKind::Switch => self.on_control(),
            Ok(()) => {
                self.drop_answers();
                self.flush();
            }
            Err(bad) => self.input.bad = Some(bad),
        }
    }

    /// Tells the peer what was taken of its lane, if it may wait for that.
    pub(super) fn acknowledge(&mut self) {
        if let Some(lane_state) = &self.lane_state
            && let Some(lane) = lane_state.lane
        {
            lane_state.lanes.lock().acknowledge(lane);
        }
    }

    /// The lane, as long as it carries what goes to the peer.
    fn lane(&self) -> Option<NamedLane<'_>> {
        let lane_state = self.lane_state.as_ref()?;
        let name = lane_state
            .lane
            .filter(|_| lane_state.outgoing.carrier == Carrier::Lane)?;
        Some(NamedLane {
            lanes: &lane_state.lanes,
            name,
        })
    }

    /// Lets the peer read memory of the program by the lane, if that is worth it and possible.
    pub(in crate::endpoint) fn show(&self, bytes: &[u8]) -> Option<ExposedMemory> {
        let lane = self.lane()?;
        lane.lanes.lock().show(lane.name, bytes)
    }

    /// The reads of the peer's memory, if the lane can do that.
    pub(in crate::endpoint) fn remote_reads(&self) -> Option<RemoteReads<'_>> {
        let lane = self.lane()?;
        let can = lane.lanes.lock().can_post_reads(lane.name);
        can.then_some(RemoteReads(lane))
    }

    /// Sends a record and its chunk by the lane, if it has room for any of it. What it has no room for is copied. As by
    /// the stream, a chunk that cannot be shown leaves no trace, and one that ends within its frame cuts the stream.
    pub(super) fn put_by_lane(&mut self, front: &[u8], len: usize, pack: &impl Pack) -> Put {
        let Some(lane_state) = &mut self.lane_state else {
            return Put::NoRoom;
        };
        let Some(lane) = lane_state
            .lane
            .filter(|_| !lane_state.outgoing.device_backlog)
        else {
            return Put::NoRoom;
        };
        let mut lanes = lane_state.lanes.lock();
        if !lanes.has_room(lane, front.len() + len) {
            self.output.blocked = true;
            return Put::NoRoom;
        }
        let output = &mut self.output;
        let (mut left, mut has_begun) = (len, false);
        let mut put = |bytes: &[u8]| {
            let mut written = 0;
            if output.is_empty() {
                written = lanes.write(lane, bytes);
            }
            output.add(&bytes[written..]);
        };
        let shown = pack.show(|_, bytes| {
            if !std::mem::replace(&mut has_begun, true) {
                put(front);
            }
            let bytes = &bytes[..bytes.len().min(left)];
            left -= bytes.len();
            put(bytes);
        });
        if !has_begun {
            if shown.is_err() {
                return Put::Withdrawn;
            }
            put(front);
        }
        lane_state.outgoing.device_backlog = !lanes.push(lane);
        output.blocked = !output.is_empty();
        drop(lanes);
        if left > 0 {
            self.cut();
        }
        Put::Sent
    }
}

/// Reads of memory of a peer, which it has shown.
pub(crate) struct RemoteReads<'s>(NamedLane<'s>);

impl RemoteReads<'_> {
    /// Posts reads; how many bytes are on their way.
    pub(crate) fn post_read(&self, token: u64, from: RemoteAddress, len: u64) -> u64 {
        let NamedLane { lanes, name } = self.0;
        lanes.lock().post_read(name, token, from, len)
    }

    /// Whether the next ones are here. Once they failed, the reads of that token are over.
    pub(crate) fn next(&self, token: u64) -> ReadState {
        let NamedLane { lanes, name } = self.0;
        let mut lanes = lanes.lock();
        let state = lanes.read_state(name, token);
        if state == ReadState::Failed {
            lanes.release_read(name, token);
        }
        state
    }

    /// Copies a part of them.
    pub(crate) fn read(&self, token: u64, offset: usize, out: &mut [u8]) {
        let NamedLane { lanes, name } = self.0;
        lanes.lock().copy_read(name, token, offset, out);
    }

    /// They were copied.
    pub(crate) fn pass(&self, token: u64) {
        let NamedLane { lanes, name } = self.0;
        lanes.lock().release_read(name, token);
    }
}
