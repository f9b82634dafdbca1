// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends the packets that lanes have, as far as the device has room, and does what is due by the clock.

use std::time::Duration;

use super::head::HEAD;
use super::{Datagrams, INLINE_MAX, OLD_MAX, Stage};
use crate::memory::Local;
use crate::pair::Operation;
use crate::provider::Provider;

impl<P: Provider> Datagrams<P> {
    /// Sends what a lane has to send, as far as the device has room.
    pub(super) fn go_out(&mut self, name: u64) {
        let now = self.now();
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
            } else if let Some(mut slot) = self.sends.take() {
                slot.write(0, &head);
                slot.write(HEAD, bytes);
                pair.post(&mut self.queue, to, Local::first(slot, len), 0)
            } else {
                self.hunger(name);
                break;
            };
            match posted {
                Ok(()) => lane.arq.went(out, now),
                Err(refused) if refused.is_full() => {
                    drop(refused);
                    self.hunger(name);
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

    /// A lane waits for the device.
    pub(super) fn hunger(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name)
            && !std::mem::replace(&mut lane.is_hungry, true)
        {
            self.hungry.push(name);
        }
    }

    /// A lane waits for a time.
    pub(super) fn watch(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            self.again += lane.arq.take_again();
            if let Some(due) = lane.arq.due() {
                self.due = self.due.min(due);
                if !std::mem::replace(&mut lane.is_watched, true) {
                    self.watched.push(name);
                }
            }
        }
    }

    /// Does what is due by the clock.
    pub(super) fn tend(&mut self) {
        if self.watched.is_empty() {
            return;
        }
        let now = self.now();
        if now < self.due {
            return;
        }
        self.due = Duration::MAX;
        for name in std::mem::take(&mut self.watched) {
            let Some(lane) = self.lanes.get_mut(name) else {
                continue;
            };
            lane.is_watched = false;
            if lane.failed.is_some() {
                continue;
            }
            match lane.arq.tend(now) {
                Ok(()) => self.go_out(name),
                Err(reason) => {
                    let path = lane.peer.map(|peer| peer.path);
                    let limit = self.settings.silence;
                    self.fail(name, format!("{reason} for {limit:?}"));
                    // The address may lead to another port by now.
                    if self.old.len() < OLD_MAX
                        && let Some(ah) = path.and_then(|path| self.handles.remove(&path))
                    {
                        self.old.push(ah);
                    }
                }
            }
        }
    }
}
