// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a rank and its peer end their connection: by a farewell, by giving up, or because the stream has ended. Which
//! of these has happened: [`super::closing`].

use super::Socket;
use super::feed::End;
use super::frame::FrameKind;
use super::lane::Carrier;
use super::stream::Stream;
use crate::endpoint::home::Home;
use nix::errno::Errno;
use onecopy_shm::{backlog, fault};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long the control frame GIVEN_UP may take to drain. A peer that reads takes it at once. Chosen by magnitude: one
/// that does not read for seconds is stopped or gone.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(2);

impl Socket {
    /// The stream has ended, and the peer had sent no farewell.
    pub(crate) fn ended_without_farewell(&self) -> bool {
        self.closing.has_ended() && !self.closing.has_heard_farewell()
    }

    /// All that the peer ever sends has been read.
    pub(crate) fn input_is_complete(&self) -> bool {
        self.closing.has_ended() || self.closing.has_heard_farewell()
    }

    /// Why the network, and not the peer, has cut the stream, if it has.
    pub(crate) fn network_failure(&self) -> Option<String> {
        let Some(End::Failed(errno)) = self.closing.end() else {
            return None;
        };
        let network = matches!(
            errno,
            Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::ENETDOWN
        );
        network.then(|| {
            format!(
                "the connection with {} failed: {errno}; is the network between the nodes up? A longer {} survives \
                 longer outages",
                self.address, self.settings.timeout_knob
            )
        })
    }

    /// Why bytes that had come could not be read, if that is no fault of the peer's. The stream has ended then.
    #[cold]
    pub(crate) fn reading_failed(&mut self) -> Option<String> {
        let errno = self.input.take_failure()?;
        self.ended(End::Failed(errno));
        let other = || format!("the connection with {} failed: {errno}", self.address);
        Some(self.network_failure().unwrap_or_else(other))
    }

    /// Tells the peer that nothing more comes.
    pub(crate) fn say_farewell(&mut self) {
        if self.stream.is_none() {
            // No peer is left to read it, and nothing to be lost.
            self.closing.stop_sending();
            self.output.clear();
        }
        if self.closing.say_farewell() {
            self.output.push(FrameKind::Farewell, 0);
            self.flush();
            fault::point("farewell.sent");
        }
    }

    /// Whether all that went out is with the peer's kernel, or can never be.
    pub(crate) fn is_delivered(&mut self) -> bool {
        self.flush();
        if self.closing.has_stopped() {
            debug_assert!(
                self.closing.give_up_deadline().is_none(),
                "GIVEN_UP may wait: poll_give_up tells when it is out"
            );
            return true;
        }
        if let Some(lane_state) = &self.lane_state {
            let lane = lane_state.lane.unwrap_or(u64::MAX);
            let taken = match lane_state.outgoing.carrier {
                Carrier::Stream => true,
                Carrier::Lane => {
                    !lane_state.outgoing.device_backlog && lane_state.lanes.lock().is_taken(lane)
                }
                Carrier::AwaitingEnd => false,
            };
            if !taken || !lane_state.outgoing.control.is_empty() {
                return false;
            }
        }
        let Some(stream) = &self.stream else {
            return self.output.is_empty();
        };
        self.output.is_empty() && backlog::unsent(stream.fd.as_fd()).unwrap_or(0) == 0
    }

    pub(in crate::endpoint) fn give_up(&mut self) {
        if let Some(lane_state) = &mut self.lane_state
            && lane_state.outgoing.carrier != Carrier::Stream
            && !self.closing.has_stopped()
        {
            // The lane ends before it could carry that.
            lane_state.outgoing.control.push(FrameKind::GivenUp, 0);
            self.flush();
        } else {
            self.push(FrameKind::GivenUp, 0);
        }
        self.closing.give_up(Instant::now() + GIVE_UP_TIMEOUT);
    }

    pub(in crate::endpoint) fn has_given_up(&self) -> bool {
        self.closing.peer_gave_up()
    }

    /// Drains what must still reach a peer that this rank gives up: the rest of a frame in progress, then the control
    /// frame GIVEN_UP. Returns true when drained, or when the deadline has passed; the stream is then closed for
    /// writing.
    pub(crate) fn poll_give_up(&mut self) -> bool {
        let Some(deadline) = self.closing.give_up_deadline() else {
            return true;
        };
        self.flush();
        let unsent = |stream: &Stream| backlog::unsent(stream.fd.as_fd()).unwrap_or(0) > 0;
        let has_output = match &self.stream {
            // What the kernel kept for a peer that is gone counts as unsent for ever.
            Some(stream) => !stream.is_closed() && (self.must_go_by_stream() || unsent(stream)),
            None => false,
        };
        if has_output && Instant::now() < deadline {
            return false;
        }
        self.closing.give_up_is_over();
        self.end_writing();
        true
    }

    /// Whether this rank holds bytes that must go by the stream. What a lane carries is dropped: the control frame
    /// goes by the stream then.
    fn must_go_by_stream(&self) -> bool {
        match &self.lane_state {
            Some(lane_state) if lane_state.outgoing.carrier != Carrier::Stream => {
                !lane_state.outgoing.control.is_empty()
            }
            Some(lane_state) => !lane_state.outgoing.control.is_empty() || !self.output.is_empty(),
            None => !self.output.is_empty(),
        }
    }

    pub(in crate::endpoint) fn reclaim_all(&mut self, _: &mut Home) {
        // Nothing more goes to a peer that is gone, and nothing is taken from it.
        self.closing.stop_sending();
        if let Some(stream) = &mut self.stream {
            stream.unwatch();
        }
        if self.closing.give_up_deadline().is_none() {
            self.end_writing();
        } else {
            self.poll_give_up();
        }
    }

    pub(super) fn end_writing(&mut self) {
        self.output.clear();
        self.lane_state = None;
        if let Some(stream) = &self.stream {
            stream.end_writing();
        }
    }

    /// Drops what the lane has to say, if nothing goes to the peer any more. What the peer said before is still read,
    /// and some of that asks for an answer.
    #[inline]
    pub(super) fn drop_answers(&mut self) {
        if self.closing.sends_nothing() {
            self.clear_outputs();
        }
    }

    /// Drops all that waits for the peer, whatever is to carry it.
    #[cold]
    fn clear_outputs(&mut self) {
        self.output.clear();
        if let Some(lane_state) = &mut self.lane_state {
            lane_state.outgoing.control.clear();
        }
    }

    /// The peer reads no more. What it had sent before can still be read.
    #[cold]
    pub(super) fn cannot_write(&mut self, errno: Errno) {
        self.closing.stop_sending();
        self.clear_outputs();
        if !matches!(errno, Errno::EPIPE | Errno::ECONNRESET) {
            // The kernel tells it once.
            self.ended(End::Failed(errno));
        }
    }

    /// A frame has begun of which the rest is not to be had. The peer reads the end of the stream within it, and takes
    /// none of it for a message.
    #[cold]
    pub(super) fn cut(&mut self) {
        self.ended(End::Failed(Errno::EFAULT));
        self.end_writing();
    }

    #[cold]
    pub(super) fn ended(&mut self, end: End) {
        self.closing.on_end(end);
        self.clear_outputs();
        if let Some(stream) = &mut self.stream {
            stream.unwatch();
        }
    }
}
