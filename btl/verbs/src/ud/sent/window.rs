// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send window: packets that are kept until the peer has them, what of them it has, and what was lost.

use std::collections::VecDeque;
use std::time::Duration;

/// A packet is lost when so many that were sent behind it have come: as many as TCP waits for (RFC 5681).
const REORDER_THRESHOLD: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is to go out.
    Waits,
    InFlight,
    /// The peer has it, and waits for others before it.
    Acknowledged,
}

#[derive(Debug)]
struct SentPacket {
    bytes: Vec<u8>,
    state: State,
    /// When it last went out, as which transmission of the lane, and how often it went out.
    when: Duration,
    transmission: u64,
    times: u32,
}

/// Packets in the order of the stream, from the first one that the peer may lack.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// The number of the first packet that is kept, and the offset of its first byte.
    first: u32,
    offset: u64,
    kept: VecDeque<SentPacket>,
    capacity: u32,
    permitted: u32,
    waiting: u32,
    in_flight: u32,
    /// Packets that never went out. They are the last ones, since the first that waits goes next.
    unsent: u32,
    /// Transmissions so far; the latest one that has come.
    transmissions: u64,
    latest: u64,
    /// Since when nothing new was acknowledged, while something is kept.
    since: Duration,
    /// Retransmissions since last asked.
    retransmitted: u64,
}

impl SendWindow {
    /// Keeps `capacity` packets at most.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            first: 0,
            offset: 0,
            kept: VecDeque::new(),
            capacity,
            permitted: 0,
            waiting: 0,
            in_flight: 0,
            unsent: 0,
            transmissions: 0,
            latest: 0,
            since: Duration::ZERO,
            retransmitted: 0,
        }
    }

    /// The number of the next new packet.
    pub(super) fn number(&self) -> u32 {
        self.first.wrapping_add(self.kept.len() as u32)
    }

    /// Packets that are kept at most.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Transmissions so far.
    pub(super) fn transmissions(&self) -> u64 {
        self.transmissions
    }

    /// The peer has room for so many, and for no more at once.
    pub(super) fn begin(&mut self, permitted: u32) {
        self.permitted = permitted;
        self.capacity = self.capacity.min(permitted).max(1);
    }

    pub(super) fn permit(&mut self, permitted: u32) {
        // One that is older came late.
        if permitted.wrapping_sub(self.permitted) <= u32::MAX / 2 {
            self.permitted = permitted;
        }
    }

    /// Whether only the peer's permission can make room for so many: nothing is in flight that it would acknowledge.
    pub(super) fn is_stopped(&self, needed: u32) -> bool {
        self.kept.is_empty() && self.permitted.wrapping_sub(self.number()) < needed
    }

    /// How many new packets may be added, if so many may be in flight.
    pub(super) fn room(&self, open: u32) -> u32 {
        let permitted = self.permitted.wrapping_sub(self.number());
        let open = open.saturating_sub(self.in_flight + self.waiting);
        let kept = self.capacity.saturating_sub(self.kept.len() as u32);
        permitted.min(open).min(kept)
    }

    pub(super) fn add(&mut self, bytes: Vec<u8>, now: Duration) {
        if self.kept.is_empty() {
            self.since = now;
        }
        self.waiting += 1;
        self.unsent += 1;
        self.kept.push_back(SentPacket {
            bytes,
            state: State::Waits,
            when: now,
            transmission: 0,
            times: 0,
        });
    }

    /// A packet that is to go out now, if `open` may be in flight.
    pub(super) fn next(&self, open: u32) -> Option<u32> {
        if self.waiting == 0 || self.in_flight >= open {
            return None;
        }
        let index = if self.waiting == self.unsent {
            self.kept.len().checked_sub(self.unsent as usize)?
        } else {
            let mut kept = self.kept.iter();
            kept.position(|kept| kept.state == State::Waits)?
        };
        Some(self.first.wrapping_add(index as u32))
    }

    /// Its bytes.
    pub(super) fn bytes(&self, number: u32) -> &[u8] {
        let kept = self.kept.get(number.wrapping_sub(self.first) as usize);
        kept.map_or(&[], |kept| &kept.bytes)
    }

    /// It went out.
    pub(super) fn went(&mut self, number: u32, now: Duration) {
        let kept = self.kept.get_mut(number.wrapping_sub(self.first) as usize);
        if let Some(kept) = kept.filter(|kept| kept.state == State::Waits) {
            self.transmissions += 1;
            self.retransmitted += u64::from(kept.times > 0);
            self.unsent -= u32::from(kept.times == 0);
            kept.state = State::InFlight;
            (kept.when, kept.transmission) = (now, self.transmissions);
            kept.times = kept.times.saturating_add(1);
            self.waiting -= 1;
            self.in_flight += 1;
        }
    }

    /// The peer has all before `next`, and those behind it whose bit of `sacks` is set. Says of how many packets that
    /// was not known. `on_rtt_sample` is told each round-trip time. An error: no correct peer says so.
    pub(super) fn acknowledged(
        &mut self,
        next: u32,
        sacks: u64,
        now: Duration,
        spare: &mut Vec<Vec<u8>>,
        mut on_rtt_sample: impl FnMut(Duration),
    ) -> Result<u32, &'static str> {
        let count = next.wrapping_sub(self.first);
        if count > u32::MAX / 2 {
            // It came late.
            return Ok(0);
        }
        let went = self.kept.len() as u32 - self.unsent;
        let behind = went.saturating_sub(count.saturating_add(1));
        let known = 1u64.checked_shl(behind).map_or(u64::MAX, |bit| bit - 1);
        if count > went || sacks & !known != 0 {
            return Err("an acknowledgement of what was not sent");
        }
        let mut new = 0;
        for _ in 0..count {
            new += u32::from(self.has_come(0, now, &mut on_rtt_sample));
            if let Some(kept) = self.kept.pop_front() {
                self.first = self.first.wrapping_add(1);
                self.offset += kept.bytes.len() as u64;
                spare.push(kept.bytes);
            }
        }
        let mut left = sacks;
        while left != 0 {
            let index = left.trailing_zeros() as usize + 1;
            left &= left - 1;
            new += u32::from(self.has_come(index, now, &mut on_rtt_sample));
        }
        if new > 0 {
            self.since = now;
        }
        Ok(new)
    }

    /// A kept packet has come. Says whether that was not known.
    fn has_come(
        &mut self,
        index: usize,
        now: Duration,
        on_rtt_sample: &mut impl FnMut(Duration),
    ) -> bool {
        let Some(kept) = self.kept.get_mut(index) else {
            return false;
        };
        match kept.state {
            State::Acknowledged => return false,
            State::Waits => self.waiting -= 1,
            State::InFlight => self.in_flight -= 1,
        }
        kept.state = State::Acknowledged;
        if kept.times == 1 {
            // Karn's algorithm (RFC 6298): of a packet that was retransmitted it is not known which transmission was
            // answered.
            on_rtt_sample(now.saturating_sub(kept.when));
            self.latest = self.latest.max(kept.transmission);
        }
        true
    }

    /// Has what is lost go out again: packets that enough others have overtaken. Gives the latest transmission of them,
    /// if there are any.
    pub(super) fn find_losses(&mut self) -> Option<u64> {
        let latest = self.latest;
        self.lose(|kept| kept.transmission + REORDER_THRESHOLD <= latest)
    }

    /// Has all that is in flight go out again.
    pub(super) fn retransmit_all(&mut self) {
        self.lose(|_| true);
    }

    fn lose(&mut self, is_lost: impl Fn(&SentPacket) -> bool) -> Option<u64> {
        let mut newest = None;
        for kept in &mut self.kept {
            if kept.state == State::InFlight && is_lost(kept) {
                kept.state = State::Waits;
                self.in_flight -= 1;
                self.waiting += 1;
                newest = newest.max(Some(kept.transmission));
            }
        }
        newest
    }

    /// When the oldest packet that is in flight went out.
    pub(super) fn oldest(&self) -> Option<Duration> {
        if self.in_flight == 0 {
            return None;
        }
        // Each packet first went out after those before it.
        let first = self.kept.front();
        if let Some(first) = first.filter(|kept| kept.state == State::InFlight && kept.times == 1) {
            return Some(first.when);
        }
        let in_flight = self
            .kept
            .iter()
            .filter(|kept| kept.state == State::InFlight);
        in_flight.map(|kept| kept.when).min()
    }

    /// Since when nothing new was acknowledged, if something should be.
    pub(super) fn silent_since(&self) -> Option<Duration> {
        (!self.kept.is_empty()).then_some(self.since)
    }

    /// Whether the peer has all.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Retransmissions since last asked.
    pub(super) fn take_retransmitted(&mut self) -> u64 {
        std::mem::take(&mut self.retransmitted)
    }

    /// What is behind the first `received` bytes of the stream; none: the peer cannot have received so many.
    pub(super) fn left(&self, received: u64) -> Option<Vec<u8>> {
        let skip = usize::try_from(received.checked_sub(self.offset)?).ok()?;
        let all: usize = self.kept.iter().map(|kept| kept.bytes.len()).sum();
        let mut left = Vec::with_capacity(all.checked_sub(skip)?);
        let mut skip = skip;
        for kept in &self.kept {
            let before = skip.min(kept.bytes.len());
            left.extend_from_slice(&kept.bytes[before..]);
            skip -= before;
        }
        Some(left)
    }

    /// Packets that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_millis(1);
    const OPEN: u32 = 8;

    /// So many packets that went out.
    fn window(count: u32) -> SendWindow {
        let mut window = SendWindow::new(32);
        window.permit(32);
        for _ in 0..count {
            window.add(vec![1; 10], NOW);
            let number = window.next(OPEN).expect("one waits");
            window.went(number, NOW);
        }
        window
    }

    fn acknowledged(window: &mut SendWindow, next: u32, sacks: u64) -> Result<u32, &'static str> {
        window.acknowledged(next, sacks, 2 * NOW, &mut Vec::new(), |_| {})
    }

    #[test]
    fn what_three_have_overtaken_is_lost() {
        let mut window = window(8);
        assert_eq!(acknowledged(&mut window, 0, 0b011), Ok(2));
        assert_eq!(window.find_losses(), None);
        assert_eq!(acknowledged(&mut window, 0, 0b111), Ok(1));
        assert_eq!(window.find_losses(), Some(1));
        assert_eq!(window.next(OPEN), Some(0));
        assert_eq!(window.find_losses(), None, "it waits to go again");
    }

    #[test]
    fn what_is_lost_goes_before_what_never_went() {
        let mut window = window(2);
        window.add(vec![1; 10], NOW);
        window.retransmit_all();
        for number in 0..3 {
            assert_eq!(window.next(OPEN), Some(number));
            window.went(number, 3 * NOW);
        }
        assert_eq!((window.next(OPEN), window.oldest()), (None, Some(3 * NOW)));
    }

    #[test]
    fn the_oldest_need_not_be_the_first() {
        let mut window = window(8);
        assert_eq!(window.oldest(), Some(NOW));
        assert_eq!(acknowledged(&mut window, 0, 0b111), Ok(3));
        assert_eq!(window.find_losses(), Some(1));
        window.went(0, 5 * NOW);
        assert_eq!(window.oldest(), Some(NOW), "the fifth one's");
        assert_eq!(acknowledged(&mut window, 8, 0), Ok(5));
        assert_eq!(window.oldest(), None);
    }

    #[test]
    fn only_the_answer_to_a_single_transmission_has_a_time() {
        let mut window = window(2);
        window.retransmit_all();
        window.went(0, NOW);
        let mut times = Vec::new();
        let spare = &mut Vec::new();
        let new = window.acknowledged(1, 0, 3 * NOW, spare, |time| times.push(time));
        assert_eq!((new, times.len()), (Ok(1), 0));
        window.add(vec![1; 10], 3 * NOW);
        window.went(1, 3 * NOW);
        window.went(2, 4 * NOW);
        let new = window.acknowledged(3, 0, 5 * NOW, spare, |time| times.push(time));
        assert_eq!((new, times), (Ok(2), vec![NOW]));
    }

    #[test]
    fn what_no_correct_peer_says_is_refused() {
        assert!(acknowledged(&mut window(3), 4, 0).is_err());
        assert!(acknowledged(&mut window(3), 1, 0b10).is_err());
        assert!(acknowledged(&mut window(3), 3, 1).is_err());
        assert_eq!(acknowledged(&mut window(3), 1, 1), Ok(2));
    }

    #[test]
    fn what_is_left_begins_at_a_byte() {
        let mut window = window(3);
        assert_eq!(acknowledged(&mut window, 1, 0), Ok(1));
        assert_eq!(window.left(9), None);
        assert_eq!(window.left(10).map(|left| left.len()), Some(20));
        assert_eq!(window.left(25).map(|left| left.len()), Some(5));
        assert_eq!(window.left(30), Some(Vec::new()));
        assert_eq!(window.left(31), None);
    }

    #[test]
    fn room_is_the_least_of_three_bounds() {
        let mut window = SendWindow::new(32);
        assert_eq!((window.room(OPEN), window.is_stopped(1)), (0, true));
        window.permit(4);
        window.permit(2);
        assert_eq!((window.room(OPEN), window.is_stopped(1)), (4, false));
        window.permit(100);
        assert_eq!(window.room(OPEN), OPEN);
        assert_eq!(window.room(100), 32);
    }
}
