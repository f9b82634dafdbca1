// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an endpoint over a stream does by its lane: offers one, sends and reads by it, and hears of its end. How a pair
//! comes to a lane and goes back: [`super::lane`].

use super::device::Shared;
use super::feed::End;
use super::frame::{HEAD, What};
use super::lane::{Beside, Carrier};
use super::{SKIPS, Socket};
use crate::endpoint::{Pack, Put};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use onecopy_btl::lanes::{Fetched, Offer, Shown};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

impl Socket {
    /// Offers the peer, which is `rank`, a lane of these.
    pub(crate) fn attach_lanes(&mut self, lanes: &Shared, rank: u32) {
        let mut beside = Box::new(Beside::new(lanes.clone(), rank));
        if !self.is_mute && !self.said_farewell {
            beside.offer(&mut self.output);
        }
        self.beside = Some(beside);
        self.flush();
    }

    /// Why no lane carries the frames, as far as that is known.
    pub(crate) fn no_lane(&self) -> Option<&str> {
        self.beside.as_ref()?.why_not.as_deref()
    }

    /// Does what is due by the clock.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Some(beside) = &mut self.beside
            && beside.is_due(now)
            && !self.is_mute
            && !self.said_farewell
        {
            beside.offer(&mut self.output);
            self.flush();
        }
    }

    /// How often a lane has taken over and how often it was given up, since this was last asked.
    pub(crate) fn take_changes(&mut self) -> (u64, u64) {
        match &mut self.beside {
            Some(beside) => (
                std::mem::take(&mut beside.taken_over),
                std::mem::take(&mut beside.given_back),
            ),
            None => (0, 0),
        }
    }

    /// Writes what can be written, where there may be a lane.
    pub(super) fn flush_beside(&mut self) {
        let (Some(beside), Some(stream)) = (&mut self.beside, &self.stream) else {
            return;
        };
        let fd = stream.fd.as_fd();
        let mut written = beside.words.flush(fd);
        if beside.out == Carrier::Stream && beside.words.is_empty() && written.is_ok() {
            written = self.output.flush(fd);
            if self.output.is_empty() && !self.said_farewell {
                beside.switch();
                written = written.and_then(|()| beside.words.flush(fd));
            }
        }
        if beside.out == Carrier::Lane
            && let Some(lane) = beside.lane
            && (beside.unpushed || !self.output.is_empty())
        {
            let mut lanes = beside.lanes.lock();
            self.output.hand(|bytes| lanes.write(lane, bytes));
            beside.unpushed = !lanes.push(lane);
        }
        if let Err(errno) = written {
            self.cannot_write(errno);
        }
    }

    /// Looks by turns at a stream that carries no frames: for the lane's end, or its own.
    pub(super) fn look_at_stream(&mut self) {
        let (Some(beside), Some(stream)) = (&mut self.beside, &self.stream) else {
            return;
        };
        beside.skipped += 1;
        if beside.skipped < SKIPS && !beside.said_end || self.end.is_some() {
            return;
        }
        beside.skipped = 0;
        let mut bytes = [0; 16 * HEAD];
        match recv(stream.fd.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => {
                // What came by the lane before is found first.
                beside.lanes.lock().poll();
                return self.ended(End::Closed);
            }
            Ok(count) => beside.control.extend_from_slice(&bytes[..count]),
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM) => {}
            Err(errno) => return self.ended(End::Failed(errno)),
        }
        self.hear_control();
    }

    fn hear_control(&mut self) {
        if let Some(beside) = &mut self.beside {
            if let Err(what) = beside.hear_control(&mut self.output) {
                self.input.bad = Some(what);
            }
            self.has_given_up |= beside.given_up;
        }
        self.flush();
    }

    #[cold]
    pub(super) fn hear_offer(&mut self, offer: &[u8; Offer::BYTES]) {
        match &mut self.beside {
            // Nothing more comes from this rank.
            Some(beside) if self.said_farewell => beside.end(&mut self.output),
            Some(beside) => {
                if let Err(what) = beside.hear_offer(offer, &mut self.output) {
                    self.input.bad = Some(what);
                }
            }
            // This rank makes no lanes.
            None if !self.is_mute => self.output.push(What::End, 0),
            None => {}
        }
        self.flush();
    }

    /// A word about the lane.
    #[cold]
    pub(super) fn hear_of_lane(&mut self, what: What, word: u64) {
        let Some(beside) = &mut self.beside else {
            // The answer to this rank's refusal.
            if what != What::End || word != 0 {
                self.input.bad = Some("a word about a lane that was refused");
            }
            return;
        };
        let heard = match what {
            What::Ready => beside.hear_ready(word),
            What::Switch => beside.hear_switch(self.input.take_rest()),
            _ => beside.hear_end(word, &mut self.output),
        };
        match heard {
            Ok(()) if what == What::Switch => self.hear_control(),
            Ok(()) => self.flush(),
            Err(bad) => self.input.bad = Some(bad),
        }
    }

    /// Tells the peer what was taken of its lane, if it may wait for that.
    pub(super) fn acknowledge(&mut self) {
        if let Some(beside) = &self.beside
            && let Some(lane) = beside.lane
        {
            beside.lanes.lock().acknowledge(lane);
        }
    }

    /// The lane, as long as it carries what goes to the peer.
    fn lane(&self) -> Option<(&Shared, u64)> {
        let beside = self.beside.as_ref()?;
        let lane = beside.lane.filter(|_| beside.out == Carrier::Lane)?;
        Some((&beside.lanes, lane))
    }

    /// Lets the peer read memory of the program by the lane, if that is worth it and possible.
    pub(in crate::endpoint) fn show(&self, bytes: &[u8]) -> Option<Shown> {
        self.lane()?.0.lock().show(bytes)
    }

    /// The reads of the peer's memory, if the lane can do that.
    pub(in crate::endpoint) fn fetches(&self) -> Option<Fetches<'_>> {
        let (lanes, lane) = self.lane()?;
        let can = lanes.lock().can_fetch(lane);
        can.then_some(Fetches { lanes, lane })
    }

    /// Sends a record and its chunk by the lane, if it has room for any of it. What it has no room for is copied. As by
    /// the stream, a chunk that cannot be shown leaves no trace, and one that ends within its frame cuts the stream.
    pub(super) fn put_by_lane(&mut self, front: &[u8], len: usize, pack: &impl Pack) -> Put {
        let Some(beside) = &mut self.beside else {
            return Put::NoRoom;
        };
        let Some(lane) = beside.lane.filter(|_| !beside.unpushed) else {
            return Put::NoRoom;
        };
        let mut lanes = beside.lanes.lock();
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
        beside.unpushed = !lanes.push(lane);
        output.blocked = !output.is_empty();
        drop(lanes);
        if left > 0 {
            self.cut();
        }
        Put::Sent
    }
}

/// Reads of memory of a peer, which it has shown.
pub(crate) struct Fetches<'s> {
    lanes: &'s Shared,
    lane: u64,
}

impl Fetches<'_> {
    /// Asks for bytes; how many are on their way.
    pub(crate) fn ask(&self, token: u64, from: (u64, u32), len: u64) -> u64 {
        self.lanes.lock().fetch(self.lane, token, from, len)
    }

    /// Whether the next ones are here.
    pub(crate) fn next(&self, token: u64) -> Fetched {
        self.lanes.lock().fetched(self.lane, token)
    }

    /// Copies a part of them.
    pub(crate) fn read(&self, token: u64, at: usize, out: &mut [u8]) {
        self.lanes.lock().read_fetched(self.lane, token, at, out);
    }

    /// They were copied.
    pub(crate) fn pass(&self, token: u64) {
        self.lanes.lock().pass_fetched(self.lane, token);
    }
}
