// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of a lane by datagrams: when packets are sent, and how packets that come are handled. It has no device and
//! no clock. Its driver says what time it is, and may lose, double and delay packets.
//!
//! - Bytes that were added are kept until the peer has acknowledged them, and all before them.
//! - Bytes are read in the order in which they were added there, each once.
//! - No more packets are kept than the window has, in each direction.
//! - Where nothing is acknowledged within the limit, the lane is broken, and stays so.

use super::head::Head;
use super::order::{Arrival, Order};
use super::sent::Sent;
use std::time::Duration;

/// Packets of a window: what an acknowledgement has bits for.
pub(super) const WINDOW_MAX: u32 = 64;
/// How long an acknowledgement waits for a packet that it could go with. Far below the least time after which a sender
/// sends again (4 ms). Chosen by magnitude between that and the time of a packet.
const DELAY: Duration = Duration::from_micros(200);

/// What goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Out {
    /// The packet of that number.
    Packet(u32),
    /// A control message: a head alone.
    Control,
}

/// What came of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// There is more to read.
    pub(super) bytes: bool,
    /// There is more room, or all is acknowledged.
    pub(super) room: bool,
}

#[derive(Debug)]
pub(super) struct Arq {
    sent: Sent,
    order: Order,
    window: u32,
    limit: Duration,
    /// What was announced to the peer.
    announced_next: u32,
    announced_permits: u32,
    /// Packets that came since, the time of the first of them, and whether they must be acknowledged now.
    owed: u32,
    owed_since: Duration,
    must_acknowledge: bool,
    /// Packets that the writer waits to send, since when it waits, and when the peer was last asked for permission.
    wants: u32,
    wants_since: Option<Duration>,
    asked: Duration,
    asks: bool,
}

impl Arq {
    /// A lane of so many packets each way, which is broken after such a silence.
    pub(super) fn new(window: u32, limit: Duration) -> Self {
        let window = window.clamp(1, WINDOW_MAX);
        let order = Order::new(window);
        Self {
            sent: Sent::new(window),
            announced_next: 0,
            announced_permits: order.permits(),
            order,
            window,
            limit,
            owed: 0,
            owed_since: Duration::ZERO,
            must_acknowledge: false,
            wants: 0,
            wants_since: None,
            asked: Duration::ZERO,
            asks: false,
        }
    }

    /// Packets that the peer may send at first.
    pub(super) fn permits(&self) -> u32 {
        self.order.permits()
    }

    /// The peer's offer: it permits so many packets, and never more at once.
    pub(super) fn begin(&mut self, permitted: u32) {
        self.sent.begin(permitted);
    }

    /// Whether there is room for so many packets, or for a good part of a window. If not, it is waited for.
    pub(super) fn has_room(&mut self, packets: u32, now: impl FnOnce() -> Duration) -> bool {
        let needed = packets.min(self.sent.open() / 4).max(1);
        let has = self.sent.room() >= needed;
        if !has && self.sent.is_stopped(needed) && self.wants_since.is_none() {
            self.wants = needed;
            self.asked = now();
            self.wants_since = Some(self.asked);
        }
        has
    }

    /// Adds a packet; there must be room.
    pub(super) fn add(&mut self, bytes: Vec<u8>, now: Duration) {
        self.sent.add(bytes, now);
        self.wants_since = None;
    }

    /// What is to go out now.
    pub(super) fn next(&self) -> Option<Out> {
        match self.sent.next() {
            Some(number) => Some(Out::Packet(number)),
            None => (self.must_acknowledge || self.asks).then_some(Out::Control),
        }
    }

    /// The bytes that go with it.
    pub(super) fn bytes(&self, out: Out) -> &[u8] {
        match out {
            Out::Packet(number) => self.sent.bytes(number),
            Out::Control => &[],
        }
    }

    /// The head that goes with it.
    pub(super) fn head(&self, mark: u32, out: Out) -> Head {
        let number = match out {
            Out::Packet(number) => number,
            Out::Control => self.sent.number(),
        };
        Head {
            mark,
            number,
            next: self.order.next(),
            permitted: self.order.permits(),
            sacks: self.order.sacks(),
            len: self.bytes(out).len() as u16,
            asks: self.asks,
        }
    }

    /// It went out.
    pub(super) fn went(&mut self, out: Out, now: Duration) {
        if let Out::Packet(number) = out {
            self.sent.went(number, now);
        }
        self.announced_next = self.order.next();
        self.announced_permits = self.order.permits();
        (self.owed, self.must_acknowledge, self.asks) = (0, false, false);
    }

    /// A packet has come whose seal is good. If its bytes are kept, `fill` puts them in the place of what a buffer has.
    /// An error: no correct peer sends it.
    pub(super) fn receive(
        &mut self,
        head: &Head,
        fill: impl FnOnce(&mut Vec<u8>),
        now: Duration,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<Received, &'static str> {
        let mut received = Received::default();
        let before = self.sent.room();
        received.room = self.sent.acknowledged(head.next, head.sacks, now, spare)?;
        if head.permitted.wrapping_sub(head.next) > WINDOW_MAX {
            return Err("a permission that is beyond every window");
        }
        self.sent.permit(head.permitted);
        received.room |= self.sent.room() > before;
        if self.wants_since.is_some() {
            // The peer is there; whether it permits more is its own affair.
            self.wants_since = self.sent.is_stopped(self.wants).then_some(now);
        }
        self.must_acknowledge |= head.asks;
        if head.len > 0 {
            let bytes = || {
                let mut bytes = spare.pop().unwrap_or_default();
                fill(&mut bytes);
                bytes
            };
            match self.order.arrive(head.number, bytes) {
                Arrival::Next => {
                    // A sender waits for the acknowledgement that the gap is filled.
                    received.bytes = true;
                    let gap = self.order.sacks() != 0;
                    self.owe(now, gap);
                }
                Arrival::Early | Arrival::Twice => self.owe(now, true),
                Arrival::Beyond => {}
            }
        }
        Ok(received)
    }

    fn owe(&mut self, now: Duration, at_once: bool) {
        if self.owed == 0 {
            self.owed_since = now;
        }
        self.owed += 1;
        self.must_acknowledge |= at_once || self.owed >= (self.window / 4).max(1);
    }

    /// Bytes that can be read.
    pub(super) fn unread(&self) -> usize {
        self.order.unread()
    }

    /// Reads them; buffers that were read go to `spare`.
    pub(super) fn read(&mut self, out: &mut [u8], spare: &mut Vec<Vec<u8>>) -> usize {
        let (count, passed) = self.order.read(out, spare);
        if passed {
            let more = self.order.permits().wrapping_sub(self.announced_permits);
            self.must_acknowledge |= more >= (self.window / 2).max(1);
        }
        count
    }

    /// Nothing else will go to the peer soon: what it waits for is sent now.
    pub(super) fn acknowledge(&mut self) {
        let permits = self.announced_permits.wrapping_sub(self.announced_next) < self.window / 2
            && self.announced_permits != self.order.permits();
        self.must_acknowledge |= self.owed > 0 || permits;
    }

    /// Does what is due by the clock. An error: the lane is broken.
    pub(super) fn tend(&mut self, now: Duration) -> Result<(), &'static str> {
        let over = |since: Option<Duration>| since.is_some_and(|since| now > since + self.limit);
        if over(self.sent.silent_since()) {
            return Err("the peer acknowledges nothing");
        }
        if over(self.wants_since) {
            return Err("the peer does not answer");
        }
        if self.sent.due().is_some_and(|due| now >= due) {
            self.sent.retransmit_all();
        }
        if self.wants_since.is_some() && now >= self.asked + self.sent.rto() {
            (self.asks, self.asked) = (true, now);
            self.sent.was_silent();
        }
        Ok(())
    }

    /// Acknowledges what has waited for long enough. Nothing is judged by that, so whether all was read does not count.
    pub(super) fn acknowledge_in_time(&mut self, now: Duration) {
        self.must_acknowledge |= self.owed > 0 && now >= self.owed_since + DELAY;
    }

    /// When something is due by the clock.
    pub(super) fn due(&self) -> Option<Duration> {
        let owed = (self.owed > 0).then_some(self.owed_since + DELAY);
        let ask_due = self.wants_since.map(|_| self.asked + self.sent.rto());
        let end_due = self.sent.silent_since().map(|since| since + self.limit);
        [self.sent.due(), owed, ask_due, end_due]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the peer has all that was added.
    pub(super) fn is_taken(&self) -> bool {
        self.sent.is_empty()
    }

    /// Bytes of the peer's stream that came in their order, ever.
    pub(super) fn received(&self) -> u64 {
        self.order.bytes()
    }

    /// What the peer has not received, if it has received so many bytes; none: it cannot have.
    pub(super) fn left(&self, received: u64) -> Option<Vec<u8>> {
        self.sent.left(received)
    }

    /// Retransmissions since last asked.
    pub(super) fn take_retransmitted(&mut self) -> u64 {
        self.sent.take_retransmitted()
    }

    /// How many packets may be added.
    #[cfg(test)]
    pub(super) fn room(&self) -> u32 {
        self.sent.room()
    }

    /// Packets that are kept, in both directions.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.sent.kept(), self.order.kept())
    }
}

#[cfg(test)]
mod tests;
