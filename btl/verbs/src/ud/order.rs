// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has come by a lane: packets in their order, each once, and no more than the window.

use std::collections::VecDeque;

/// How a packet that arrives stands to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It was the next one.
    Next,
    /// It waits for those before it.
    Early,
    /// It was here before.
    Twice,
    /// The window does not reach so far.
    Beyond,
}

#[derive(Debug)]
pub(super) struct Order {
    window: u32,
    /// The number that comes next, and how many were read to their end.
    next: u32,
    taken: u32,
    /// What can be read, and how much of the first was.
    ready: VecDeque<Vec<u8>>,
    read: usize,
    unread: usize,
    /// What came before its turn: the number behind `next` first.
    early: VecDeque<Option<Vec<u8>>>,
    /// Bytes that came in their order, ever.
    bytes: u64,
}

impl Order {
    pub(super) fn new(window: u32) -> Self {
        Self {
            window,
            next: 0,
            taken: 0,
            ready: VecDeque::new(),
            read: 0,
            unread: 0,
            early: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The first number that the peer may not use.
    pub(super) fn permits(&self) -> u32 {
        self.taken.wrapping_add(self.window)
    }

    /// Selective acknowledgements: which of the 64 numbers behind the next one are here, a bit each.
    pub(super) fn sacks(&self) -> u64 {
        let early = self.early.iter().take(64).enumerate();
        let bits = early.filter(|(_, packet)| packet.is_some());
        bits.fold(0, |sacks, (index, _)| sacks | 1 << index)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn unread(&self) -> usize {
        self.unread
    }

    /// A packet of that number has come; `bytes` are fetched if it is kept.
    pub(super) fn arrive(&mut self, number: u32, bytes: impl FnOnce() -> Vec<u8>) -> Arrival {
        let ahead = number.wrapping_sub(self.next);
        if ahead > u32::MAX / 2 {
            return Arrival::Twice;
        }
        if number.wrapping_sub(self.taken) >= self.window {
            return Arrival::Beyond;
        }
        if ahead > 0 {
            let index = ahead as usize - 1;
            if self.early.len() <= index {
                self.early.resize_with(index + 1, || None);
            }
            let packet = &mut self.early[index];
            if packet.is_some() {
                return Arrival::Twice;
            }
            *packet = Some(bytes());
            return Arrival::Early;
        }
        self.pass(bytes());
        while let Some(packet) = self.early.pop_front() {
            // The first is that of the number which has just become the next one.
            match packet {
                Some(bytes) => self.pass(bytes),
                None => break,
            }
        }
        Arrival::Next
    }

    fn pass(&mut self, bytes: Vec<u8>) {
        self.next = self.next.wrapping_add(1);
        self.bytes += bytes.len() as u64;
        self.unread += bytes.len();
        self.ready.push_back(bytes);
    }

    /// Reads what is there; buffers that were read go to `spare`. Says how many bytes, and whether a packet has ended.
    pub(super) fn read(&mut self, out: &mut [u8], spare: &mut Vec<Vec<u8>>) -> (usize, bool) {
        let (mut count, mut passed) = (0, false);
        while count < out.len()
            && let Some(first) = self.ready.front()
        {
            let more = (first.len() - self.read).min(out.len() - count);
            out[count..count + more].copy_from_slice(&first[self.read..self.read + more]);
            count += more;
            self.read += more;
            if self.read == first.len() {
                self.read = 0;
                self.taken = self.taken.wrapping_add(1);
                spare.extend(self.ready.pop_front());
                passed = true;
            }
        }
        self.unread -= count;
        (count, passed)
    }

    /// Packets that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.ready.len() + self.early.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_once_and_in_its_turn() {
        let mut order = Order::new(4);
        let arrive =
            |order: &mut Order, number: u32| order.arrive(number, || vec![number as u8; 3]);
        assert_eq!(arrive(&mut order, 2), Arrival::Early);
        assert_eq!(arrive(&mut order, 2), Arrival::Twice);
        assert_eq!(arrive(&mut order, 4), Arrival::Beyond);
        assert_eq!(arrive(&mut order, 3), Arrival::Early);
        assert_eq!((order.sacks(), order.unread()), (0b110, 0));
        assert_eq!(arrive(&mut order, 0), Arrival::Next);
        assert_eq!((order.next(), order.sacks()), (1, 0b11));
        assert_eq!(arrive(&mut order, 0), Arrival::Twice);
        assert_eq!(arrive(&mut order, 1), Arrival::Next);
        assert_eq!((order.next(), order.sacks(), order.unread()), (4, 0, 12));
        assert_eq!(arrive(&mut order, 4), Arrival::Beyond);
        let (mut out, mut spare) = ([9; 7], Vec::new());
        assert_eq!(order.read(&mut out, &mut spare), (7, true));
        assert_eq!(out, [0, 0, 0, 1, 1, 1, 2]);
        assert_eq!((spare.len(), order.permits()), (2, 6));
        assert_eq!(arrive(&mut order, 5), Arrival::Early);
        assert_eq!(arrive(&mut order, 4), Arrival::Next);
        assert_eq!(order.bytes(), 18);
    }
}
