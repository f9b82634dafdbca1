// SPDX-License-Identifier: MIT OR Apache-2.0
//! Takes completions. Packets that came are checked and given to their lanes.

use super::head::{HEAD, Head};
use super::{Datagrams, SPARE_MAX};
use crate::memory::Slot;
use crate::pair::Pair;
use crate::provider::Provider;
use crate::queue::{Completion, DATAGRAM_HEAD, Done};

impl<P: Provider> Datagrams<P> {
    pub(super) fn take_completions(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let polled = self.queue.poll(|completion| batch.push(completion));
        let found = !batch.is_empty();
        let mut failed = None;
        let mut sent = false;
        for Completion {
            done,
            outcome,
            pair,
            source,
            bytes,
            slot,
            ..
        } in batch.drain(..)
        {
            match (done, outcome) {
                (Done::Received, outcome) => {
                    let Some(slot) = slot else { continue };
                    if outcome.is_ok() && !self.is_dropped() {
                        let known = self.take_in(&slot, bytes, source);
                        self.aliens += u64::from(!known);
                    }
                    if let Some(pair) = &self.pair {
                        // What is refused goes back to the region, and is posted with the next pair.
                        drop(pair.receive(&mut self.queue, slot, 0));
                    }
                }
                (Done::Sent, Ok(())) => sent = true,
                (Done::Sent, Err(status)) => {
                    let own = self.pair.as_ref().map(Pair::number);
                    if own == Some(pair) {
                        failed.get_or_insert(status);
                    }
                }
            }
        }
        self.batch = batch;
        if let Some(status) = failed {
            self.fail_pair(&status.to_string());
        }
        if let Err(error) = polled {
            let reason = error.to_string();
            self.fail_pair(&reason);
            self.down = Some(reason);
        }
        for name in std::mem::take(&mut self.touched) {
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.is_touched = false;
                self.go_out(name);
            }
        }
        if sent && !self.hungry.is_empty() {
            for name in std::mem::take(&mut self.hungry) {
                if let Some(lane) = self.lanes.get_mut(name) {
                    lane.is_hungry = false;
                    self.go_out(name);
                }
            }
        }
        self.spare.truncate(SPARE_MAX);
        found
    }

    /// Whether to drop a packet that came: for tests.
    pub(super) fn is_dropped(&mut self) -> bool {
        if self.settings.drop == 0 {
            return false;
        }
        // splitmix64.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.dice;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let drops = (word ^ word >> 31) % 100 < u64::from(self.settings.drop);
        self.dropped += u64::from(drops);
        drops
    }

    /// Takes a packet that came in a slot. `false`: it belongs to no lane.
    pub(super) fn take_in(&mut self, slot: &Slot<P>, bytes: usize, source: u32) -> bool {
        const BEGIN: usize = DATAGRAM_HEAD + HEAD;
        if bytes < BEGIN || bytes > slot.len() {
            return false;
        }
        let mut raw = [0; HEAD];
        slot.read(DATAGRAM_HEAD, &mut raw);
        let Some(&name) = self.by_mark.get(&Head::mark(&raw)) else {
            return false;
        };
        let Some(lane) = self.lanes.get_mut(name) else {
            return false;
        };
        if lane.peer.is_none_or(|peer| peer.pair != source) {
            return false;
        }
        let Some(head) = Head::open(&raw, lane.key) else {
            return false;
        };
        if usize::from(head.len) != bytes - BEGIN {
            return false;
        }
        if lane.failed.is_some() {
            return true;
        }
        let now = self.epoch.elapsed();
        let received = lane.arq.received();
        let fill = |body: &mut Vec<u8>| {
            body.resize(head.len.into(), 0);
            slot.read(BEGIN, body);
        };
        let heard = lane.arq.hear(&head, fill, now, &mut self.spare);
        self.bytes += lane.arq.received() - received;
        match heard {
            Ok(heard) => {
                if heard.bytes || heard.room {
                    self.changed.add(name, lane);
                }
                if !std::mem::replace(&mut lane.is_touched, true) {
                    self.touched.push(name);
                }
            }
            Err(what) => self.fail(name, format!("the peer sent {what}")),
        }
        true
    }
}
