// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes out by a lane: packets that are kept until the peer has them, which of them go next, and how many at once.

mod congestion;
mod window;

use super::clock::Clock;
use congestion::Congestion;
use std::time::Duration;
use window::SendWindow;

#[derive(Debug)]
pub(super) struct Sent {
    window: SendWindow,
    congestion: Congestion,
    clock: Clock,
}

impl Sent {
    /// Keeps `capacity` packets at most.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            window: SendWindow::new(capacity),
            congestion: Congestion::new(),
            clock: Clock::default(),
        }
    }

    /// The number of the next new packet.
    pub(super) fn number(&self) -> u32 {
        self.window.number()
    }

    /// The peer has room for so many, and for no more at once.
    pub(super) fn begin(&mut self, permitted: u32) {
        self.window.begin(permitted);
    }

    pub(super) fn permit(&mut self, permitted: u32) {
        self.window.permit(permitted);
    }

    /// Whether only the peer's permission can make room for so many: nothing is in flight that it would acknowledge.
    pub(super) fn is_stopped(&self, needed: u32) -> bool {
        self.window.is_stopped(needed)
    }

    /// How many new packets may be added.
    pub(super) fn room(&self) -> u32 {
        self.window.room(self.congestion.window())
    }

    /// How many could be in flight.
    pub(super) fn open(&self) -> u32 {
        self.congestion.window().min(self.window.capacity())
    }

    pub(super) fn add(&mut self, bytes: Vec<u8>, now: Duration) {
        self.window.add(bytes, now);
    }

    /// A packet that is to go out now.
    pub(super) fn next(&self) -> Option<u32> {
        self.window.next(self.congestion.window())
    }

    /// Its bytes.
    pub(super) fn bytes(&self, number: u32) -> &[u8] {
        self.window.bytes(number)
    }

    /// It went out.
    pub(super) fn went(&mut self, number: u32, now: Duration) {
        self.window.went(number, now);
    }

    /// The peer has all before `next`, and those behind it whose bit of `sacks` is set. Says whether that was not
    /// known. An error: no correct peer says so.
    pub(super) fn acknowledged(
        &mut self,
        next: u32,
        sacks: u64,
        now: Duration,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<bool, &'static str> {
        let Self {
            window,
            congestion,
            clock,
        } = self;
        let new = window.acknowledged(next, sacks, now, spare, |time| clock.took(time))?;
        if new == 0 {
            return Ok(false);
        }
        clock.has_received();
        congestion.on_acknowledged(new, window.capacity());
        if let Some(newest) = window.find_losses() {
            congestion.on_loss(newest, window.transmissions());
        }
        Ok(true)
    }

    /// When what is in flight is given up, if nothing comes.
    pub(super) fn due(&self) -> Option<Duration> {
        Some(self.window.oldest()? + self.clock.rto())
    }

    /// Nothing has come in time: all that is in flight goes out again, a few at first.
    pub(super) fn retransmit_all(&mut self) {
        self.window.retransmit_all();
        self.clock.was_silent();
        self.congestion.on_timeout(self.window.transmissions());
    }

    /// Since when nothing new was acknowledged, if something should be.
    pub(super) fn silent_since(&self) -> Option<Duration> {
        self.window.silent_since()
    }

    /// Nothing has come in the time of an answer.
    pub(super) fn was_silent(&mut self) {
        self.clock.was_silent();
    }

    pub(super) fn rto(&self) -> Duration {
        self.clock.rto()
    }

    /// Whether the peer has all.
    pub(super) fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// Retransmissions since last asked.
    pub(super) fn take_retransmitted(&mut self) -> u64 {
        self.window.take_retransmitted()
    }

    /// What is behind the first `received` bytes of the stream; none: the peer cannot have received so many.
    pub(super) fn left(&self, received: u64) -> Option<Vec<u8>> {
        self.window.left(received)
    }

    /// Packets that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.window.kept()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_millis(1);

    /// So many packets that went out.
    fn sent(count: u32) -> Sent {
        let mut sent = Sent::new(32);
        sent.permit(32);
        for _ in 0..count {
            sent.add(vec![1; 10], NOW);
            let number = sent.next().expect("one waits");
            sent.went(number, NOW);
        }
        sent
    }

    fn goes_again(sent: &mut Sent) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Some(number) = sent.next() {
            numbers.push(number);
            sent.went(number, NOW);
        }
        numbers
    }

    #[test]
    fn what_three_have_overtaken_goes_again_and_once() {
        let mut sent = sent(8);
        let spare = &mut Vec::new();
        assert_eq!(sent.acknowledged(0, 0b011, NOW, spare), Ok(true));
        assert_eq!(goes_again(&mut sent), []);
        assert_eq!(sent.acknowledged(0, 0b111, NOW, spare), Ok(true));
        assert_eq!(goes_again(&mut sent), [0]);
        assert_eq!(sent.acknowledged(0, 0b111, NOW, spare), Ok(false));
        assert_eq!(goes_again(&mut sent), []);
        assert_eq!(sent.acknowledged(8, 0, NOW, spare), Ok(true));
        assert_eq!(
            (sent.kept(), spare.len(), sent.take_retransmitted()),
            (0, 8, 1)
        );
        // Late and for nothing.
        assert_eq!(sent.acknowledged(3, 1, NOW, spare), Ok(false));
    }

    #[test]
    fn silence_sends_all_again_few_at_a_time() {
        let mut sent = sent(8);
        let due = sent.due().expect("in flight");
        assert_eq!(due, NOW + sent.rto());
        sent.retransmit_all();
        assert_eq!(goes_again(&mut sent), [0, 1]);
        assert!(sent.due() > Some(due), "it waits longer");
        let spare = &mut Vec::new();
        assert_eq!(sent.acknowledged(2, 0, NOW, spare), Ok(true));
        assert_eq!(goes_again(&mut sent), [2, 3, 4, 5]);
    }

    #[test]
    fn what_no_correct_peer_says_is_refused() {
        let spare = &mut Vec::new();
        assert!(sent(3).acknowledged(4, 0, NOW, spare).is_err());
        assert!(sent(3).acknowledged(1, 0b10, NOW, spare).is_err());
        assert!(sent(3).acknowledged(3, 1, NOW, spare).is_err());
        assert_eq!(sent(3).acknowledged(1, 1, NOW, spare), Ok(true));
    }

    #[test]
    fn what_is_left_begins_at_a_byte() {
        let mut sent = sent(3);
        let spare = &mut Vec::new();
        assert_eq!(sent.acknowledged(1, 0, NOW, spare), Ok(true));
        assert_eq!(sent.left(9), None);
        assert_eq!(sent.left(10).map(|left| left.len()), Some(20));
        assert_eq!(sent.left(25).map(|left| left.len()), Some(5));
        assert_eq!(sent.left(30), Some(Vec::new()));
        assert_eq!(sent.left(31), None);
    }

    #[test]
    fn permission_and_window_bound_what_goes_out() {
        let mut sent = Sent::new(32);
        assert_eq!((sent.room(), sent.is_stopped(1)), (0, true));
        sent.permit(4);
        sent.permit(2);
        assert_eq!((sent.room(), sent.is_stopped(1)), (4, false));
        sent.permit(100);
        assert_eq!(sent.room(), congestion::INITIAL_WINDOW);
    }
}
