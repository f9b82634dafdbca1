// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes out by a lane: packets that are kept until the peer has them, which of them go next, and how many at once.

use super::clock::Clock;
use std::collections::VecDeque;
use std::time::Duration;

/// Packets under way at first: about what TCP begins with (RFC 6928 has ten).
const FIRST: u32 = 8;
/// Packets under way at least: with a single one, each would wait for its acknowledgement.
const LEAST: u32 = 2;
/// A packet is lost when so many that were sent behind it have come: as many as TCP waits for (RFC 5681).
const BEHIND: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is to go out.
    Waits,
    UnderWay,
    /// The peer has it, and waits for others before it.
    Acknowledged,
}

#[derive(Debug)]
struct SentPacket {
    bytes: Vec<u8>,
    state: State,
    /// When it last went out, as which of all packets that the lane sent, and how often it went out.
    when: Duration,
    turn: u64,
    times: u32,
}

#[derive(Debug)]
pub(super) struct Sent {
    /// The number of the first packet that is kept, and the offset of its first byte.
    first: u32,
    offset: u64,
    kept: VecDeque<SentPacket>,
    most: u32,
    permitted: u32,
    waiting: u32,
    under_way: u32,
    /// The congestion window: how many may be under way. The threshold from which on it grows by one for each window
    /// that is acknowledged, and how many were acknowledged since it last did.
    open: u32,
    slow: u32,
    grown: u32,
    turns: u64,
    /// The latest turn that has come, and the one up to which losses count as the same.
    latest: u64,
    recover: u64,
    clock: Clock,
    /// Since when nothing new was acknowledged, while something is kept.
    since: Duration,
    /// Packets that went out again, ever.
    again: u64,
}

impl Sent {
    /// Keeps `most` packets at most.
    pub(super) fn new(most: u32) -> Self {
        Self {
            first: 0,
            offset: 0,
            kept: VecDeque::new(),
            most,
            permitted: 0,
            waiting: 0,
            under_way: 0,
            open: FIRST,
            slow: u32::MAX,
            grown: 0,
            turns: 0,
            latest: 0,
            recover: 0,
            clock: Clock::default(),
            since: Duration::ZERO,
            again: 0,
        }
    }

    fn end(&self) -> u32 {
        self.first.wrapping_add(self.kept.len() as u32)
    }

    /// The number of the next new packet.
    pub(super) fn number(&self) -> u32 {
        self.end()
    }

    /// The peer has room for so many, and for no more at once.
    pub(super) fn begin(&mut self, permitted: u32) {
        self.permitted = permitted;
        self.most = self.most.min(permitted).max(1);
    }

    pub(super) fn permit(&mut self, permitted: u32) {
        // One that is older came late.
        if permitted.wrapping_sub(self.permitted) <= u32::MAX / 2 {
            self.permitted = permitted;
        }
    }

    /// Whether only the peer's permission can make room for so many: nothing is under way that it would acknowledge.
    pub(super) fn is_stopped(&self, needed: u32) -> bool {
        self.kept.is_empty() && self.permitted.wrapping_sub(self.end()) < needed
    }

    /// How many new packets may be added.
    pub(super) fn room(&self) -> u32 {
        let permitted = self.permitted.wrapping_sub(self.end());
        let open = self.open.saturating_sub(self.under_way + self.waiting);
        let kept = self.most.saturating_sub(self.kept.len() as u32);
        permitted.min(open).min(kept)
    }

    /// How many could be under way.
    pub(super) fn open(&self) -> u32 {
        self.open.min(self.most)
    }

    pub(super) fn add(&mut self, bytes: Vec<u8>, now: Duration) {
        if self.kept.is_empty() {
            self.since = now;
        }
        self.waiting += 1;
        self.kept.push_back(SentPacket {
            bytes,
            state: State::Waits,
            when: now,
            turn: 0,
            times: 0,
        });
    }

    /// A packet that is to go out now.
    pub(super) fn next(&self) -> Option<u32> {
        if self.waiting == 0 || self.under_way >= self.open {
            return None;
        }
        let index = self
            .kept
            .iter()
            .position(|kept| kept.state == State::Waits)?;
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
            self.turns += 1;
            self.again += u64::from(kept.times > 0);
            kept.state = State::UnderWay;
            (kept.when, kept.turn, kept.times) = (now, self.turns, kept.times.saturating_add(1));
            self.waiting -= 1;
            self.under_way += 1;
        }
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
        let count = next.wrapping_sub(self.first);
        if count > u32::MAX / 2 {
            // It came late.
            return Ok(false);
        }
        let fresh = self.kept.iter().rev().take_while(|kept| kept.times == 0);
        let went = (self.kept.len() - fresh.count()) as u32;
        let behind = went.saturating_sub(count.saturating_add(1));
        let known = 1u64.checked_shl(behind).map_or(u64::MAX, |bit| bit - 1);
        if count > went || sacks & !known != 0 {
            return Err("an acknowledgement of what was not sent");
        }
        let mut new = 0;
        for _ in 0..count {
            new += u32::from(self.has_come(0, now));
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
            new += u32::from(self.has_come(index, now));
        }
        if new == 0 {
            return Ok(false);
        }
        self.since = now;
        self.clock.has_received();
        self.widen(new);
        self.find_losses();
        Ok(true)
    }

    /// A kept packet has come. Says whether that was not known.
    fn has_come(&mut self, index: usize, now: Duration) -> bool {
        let Some(kept) = self.kept.get_mut(index) else {
            return false;
        };
        match kept.state {
            State::Acknowledged => return false,
            State::Waits => self.waiting -= 1,
            State::UnderWay => self.under_way -= 1,
        }
        kept.state = State::Acknowledged;
        if kept.times == 1 {
            // Of others it is not known which time has come.
            self.clock.took(now.saturating_sub(kept.when));
            self.latest = self.latest.max(kept.turn);
        }
        true
    }

    fn widen(&mut self, new: u32) {
        if self.open < self.slow {
            self.open += new;
        } else {
            self.grown += new;
            if self.grown >= self.open {
                self.grown = 0;
                self.open += 1;
            }
        }
        self.open = self.open.min(self.most.max(LEAST));
    }

    /// Finds what is lost, by what was sent behind it and has come.
    fn find_losses(&mut self) {
        let mut newest = 0;
        for kept in &mut self.kept {
            if kept.state == State::UnderWay && kept.turn + BEHIND <= self.latest {
                kept.state = State::Waits;
                self.under_way -= 1;
                self.waiting += 1;
                newest = newest.max(kept.turn);
            }
        }
        if newest > self.recover {
            // What else is lost of those that are under way is of the same cause.
            self.recover = self.turns;
            self.narrow(self.open / 2);
        }
    }

    fn narrow(&mut self, open: u32) {
        self.slow = (self.open / 2).max(LEAST);
        self.open = open.max(LEAST);
        self.grown = 0;
    }

    /// When what is under way is given up, if nothing comes.
    pub(super) fn due(&self) -> Option<Duration> {
        let under_way = self
            .kept
            .iter()
            .filter(|kept| kept.state == State::UnderWay);
        let oldest = under_way.map(|kept| kept.when).min()?;
        Some(oldest + self.clock.rto())
    }

    /// Nothing has come in time: all that is under way goes out again, a few at first.
    pub(super) fn give_up(&mut self) {
        for kept in &mut self.kept {
            if kept.state == State::UnderWay {
                kept.state = State::Waits;
                self.under_way -= 1;
                self.waiting += 1;
            }
        }
        self.recover = self.turns;
        self.clock.was_silent();
        self.narrow(LEAST);
    }

    /// Since when nothing new was acknowledged, if something should be.
    pub(super) fn silent_since(&self) -> Option<Duration> {
        (!self.kept.is_empty()).then_some(self.since)
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
        self.kept.is_empty()
    }

    /// Packets that went out again, since this was last asked.
    pub(super) fn take_again(&mut self) -> u64 {
        std::mem::take(&mut self.again)
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
        assert_eq!((sent.kept(), spare.len(), sent.take_again()), (0, 8, 1));
        // Late and for nothing.
        assert_eq!(sent.acknowledged(3, 1, NOW, spare), Ok(false));
    }

    #[test]
    fn silence_sends_all_again_few_at_a_time() {
        let mut sent = sent(8);
        let due = sent.due().expect("under way");
        assert_eq!(due, NOW + sent.rto());
        sent.give_up();
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
        assert_eq!(sent.room(), FIRST);
    }
}
