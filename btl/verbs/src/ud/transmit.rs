// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends the packets that lanes have, as far as the device has room, and does what is due by the clock.

use super::head::HEAD;
use super::schedule::List;
use super::{Datagrams, INLINE_MAX, Stage};
use crate::memory::Local;
use crate::pair::Operation;
use crate::provider::Provider;
use std::time::Duration;

impl<P: Provider> Datagrams<P> {
    /// Sends what a lane has to send, as far as the device has room.
    pub(super) fn go_out(&mut self, name: u64, now: Duration) {
        loop {
            let (Some(lane), Some(pair)) = (self.lanes.get_mut(name), &self.pair) else {
                return;
            };
            let (Stage::Ready(ah), Some(peer), None) = (&lane.stage, lane.peer, &lane.failed)
            else {
                return;
            };
            let Some(out) = lane.arq.next() else { break };
            let head = lane.arq.head(peer.mark, out).encode(peer.key);
            let bytes = lane.arq.bytes(out);
            let len = HEAD + bytes.len();
            let to = Operation::SendTo {
                ah,
                pair: peer.pair,
                qkey: peer.qkey,
                immediate: None,
            };
            let posted = if len <= pair.inline().min(INLINE_MAX) {
                let mut inline = [0; INLINE_MAX];
                inline[..HEAD].copy_from_slice(&head);
                inline[HEAD..len].copy_from_slice(bytes);
                pair.post_inline(&mut self.queue, to, &inline[..len])
            } else if let Some(mut slot) = self.memory.take_send() {
                slot.write(0, &head);
                slot.write(HEAD, bytes);
                pair.post(&mut self.queue, to, Local::first(slot, len), 0)
            } else {
                self.schedule.add(List::Hungry, name, &mut lane.in_lists);
                break;
            };
            match posted {
                Ok(()) => lane.arq.went(out, now),
                Err(refused) if refused.is_full() => {
                    self.schedule.add(List::Hungry, name, &mut lane.in_lists);
                    break;
                }
                Err(refused) => {
                    let reason = refused.error.to_string();
                    drop(refused);
                    return self.fail_pair(&reason);
                }
            }
        }
        self.watch(name);
    }

    /// Has the clock serve a lane when something of it is due.
    pub(super) fn watch(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            self.retransmitted += lane.arq.take_retransmitted();
            if let Some(due) = lane.arq.due() {
                self.schedule.watch(name, &mut lane.in_lists, due);
            }
        }
    }

    /// Does what is due by the clock. Peers are judged as far as all that has come was read.
    pub(super) fn tend(&mut self) {
        if self.schedule.count(List::Watched) == 0 {
            return;
        }
        let (now, read_to) = (self.time.last(), self.watermark.at());
        for _ in 0..self.schedule.begin_round(now) {
            let Some((name, lane)) = self.schedule.take(List::Watched, &mut self.lanes) else {
                continue;
            };
            if lane.failed.is_some() {
                continue;
            }
            lane.arq.acknowledge_in_time(now);
            match lane.arq.tend(read_to) {
                Ok(()) => self.go_out(name, now),
                Err(reason) => {
                    let path = lane.peer.map(|peer| peer.path);
                    let limit = self.settings.silence;
                    self.lanes.fail(name, format!("{reason} for {limit:?}"));
                    // The address may lead to another port by now.
                    if let Some(path) = path {
                        self.handles.give_up(&path);
                    }
                }
            }
        }
    }
}
