// SPDX-License-Identifier: MIT OR Apache-2.0
//! Takes completions. Packets that came are checked and given to their lanes.

use super::head::{HEAD, Head};
use super::schedule::List;
use super::{Datagrams, SPARE_MAX};
use crate::memory::Slot;
use crate::pair::QueuePair;
use crate::provider::Provider;
use crate::queue::{BATCH, Completion, DATAGRAM_HEAD, Done};
use crate::status::Status;
use std::time::{Duration, Instant};

impl<P: Provider> Datagrams<P> {
    pub(super) fn take_completions(&mut self) -> bool {
        let time = self.time.looks(Instant::now());
        let batch = &mut self.batch;
        let polled = self.queue.poll(|completion| batch.push_back(completion));
        if let Ok(taken) = polled {
            let capacity = self.queue.capacity();
            self.watermark.polled(time, taken, taken < BATCH, capacity);
        }
        let found = !self.batch.is_empty();
        let (has_sent, failed) = self.take_batch(time);
        if let Some(status) = failed {
            self.fail_pair(&status.to_string());
        }
        if let Err(error) = polled {
            self.fail_pair(&error.to_string());
            self.port.doubt();
        }
        self.serve(List::Touched);
        if has_sent {
            self.serve(List::Hungry);
        }
        self.spare.truncate(SPARE_MAX);
        found
    }

    /// Takes what was polled: gives packets to their lanes, and posts their slots again. Says whether a send has ended,
    /// and why one of the pair that is in use has failed.
    fn take_batch(&mut self, now: Duration) -> (bool, Option<Status>) {
        let (mut has_sent, mut failed) = (false, None);
        while let Some(completion) = self.batch.pop_front() {
            let Completion {
                done,
                outcome,
                pair,
                source,
                bytes,
                slot,
                ..
            } = completion;
            match (done, outcome) {
                (Done::Received, outcome) => {
                    let Some(slot) = slot else { continue };
                    if outcome.is_ok() && !self.loss.hits() {
                        let known = self.take_in(&slot, bytes, source, now);
                        self.foreign += u64::from(!known);
                    }
                    if let Some(pair) = &self.pair {
                        // What is refused goes back to the region, and is posted with the next pair.
                        drop(pair.receive(&mut self.queue, slot, 0));
                    }
                }
                (Done::Sent, Ok(())) => has_sent = true,
                (Done::Sent, Err(status)) => {
                    let own = self.pair.as_ref().map(QueuePair::number);
                    if own == Some(pair) {
                        failed.get_or_insert(status);
                    }
                }
            }
        }
        (has_sent, failed)
    }

    /// Has all lanes of a list go on. Those that are added meanwhile wait for the next time.
    fn serve(&mut self, list: List) {
        for _ in 0..self.schedule.count(list) {
            let lane = self.schedule.take(list, &mut self.lanes);
            if let Some((name, _)) = lane {
                self.go_out(name, self.time.last());
            }
        }
    }

    /// Takes a packet that came in a slot. `false`: it belongs to no lane.
    fn take_in(&mut self, slot: &Slot<P>, bytes: usize, source: u32, now: Duration) -> bool {
        const BEGIN: usize = DATAGRAM_HEAD + HEAD;
        if bytes < BEGIN || bytes > slot.len() {
            return false;
        }
        let mut raw = [0; HEAD];
        slot.read(DATAGRAM_HEAD, &mut raw);
        let Some(name) = self.lanes.name_of(Head::mark(&raw)) else {
            return false;
        };
        let Some((lane, changed)) = self.lanes.with_changed(name) else {
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
        let received = lane.arq.received();
        let fill = |body: &mut Vec<u8>| {
            // What it held before is overwritten.
            body.resize(head.len.into(), 0);
            slot.read(BEGIN, body);
        };
        let outcome = lane.arq.receive(&head, fill, now, &mut self.spare);
        self.bytes += lane.arq.received() - received;
        match outcome {
            Ok(outcome) => {
                if outcome.bytes || outcome.room {
                    changed.add(name, lane);
                }
                self.schedule.add(List::Touched, name, &mut lane.in_lists);
            }
            Err(what) => self.lanes.fail(name, format!("the peer sent {what}")),
        }
        true
    }
}
