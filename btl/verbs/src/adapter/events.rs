// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device reports: completions, and events of ports and pairs. Lanes whose device reports nothing for too long
//! fail.

use std::time::{Duration, Instant};

use super::send::SPARE_MAX;
use super::{Adapter, GRANT_MIN, reads};
use crate::port::Said;
use crate::provider::Provider;
use crate::queue::{Completion, Done};

impl<P: Provider> Adapter<P> {
    pub(super) fn take_completions(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let polled = self.queue.poll(|completion| batch.push(completion));
        let found = !batch.is_empty();
        for completion in batch.drain(..) {
            self.completed(completion);
        }
        self.batch = batch;
        if let Err(error) = polled {
            let reason = error.to_string();
            self.fail_all(&reason);
            self.down = Some(reason);
        }
        found
    }

    pub(super) fn completed(&mut self, done: Completion<P>) {
        let name = self.by_pair.get(&done.pair).copied();
        match done.done {
            Done::Received => {
                self.posted = self.posted.saturating_sub(1);
                let Some(slot) = done.slot else { return };
                match (name, done.outcome) {
                    (Some(name), Ok(())) => self.arrived(name, slot, done.bytes),
                    (name, outcome) => {
                        self.post(slot);
                        if let (Some(name), Err(status)) = (name, outcome) {
                            self.fail(name, status.to_string());
                        }
                    }
                }
            }
            Done::Sent => {
                let Some(name) = name else { return };
                if let Some(lane) = self.lanes.get_mut(name) {
                    lane.ended = lane.ended.wrapping_add(1);
                }
                match (done.slot, done.cookie) {
                    (Some(slot), Some(cookie)) if cookie & reads::READ != 0 => {
                        self.has_come(name, cookie as u32, slot, done.outcome.is_ok());
                    }
                    (Some(slot), Some(cookie)) => self.sent(name, cookie as u32, slot),
                    _ => {}
                }
                if let Err(status) = done.outcome {
                    self.fail(name, status.to_string());
                }
            }
        }
    }

    pub(super) fn hear_events(&mut self) {
        // A descriptor that stays readable would let no wait sleep.
        let _ = self.queue.take_wakes();
        while let Ok(Some(event)) = self.chosen.device.next_event() {
            match self.chosen.said(event) {
                Said::Down(reason) => {
                    self.fail_all(&reason);
                    self.down = Some(reason);
                }
                Said::Stale => self.is_stale = true,
                Said::PairFailed(number) => {
                    if let Some(&lane) = self.by_pair.get(&number) {
                        let name = self.chosen.device.name();
                        self.fail(lane, format!("{name}: the connection failed"));
                    }
                }
                Said::Nothing => {}
            }
        }
    }

    pub(super) fn age_lanes(&mut self, now: Instant) {
        // A device reports a peer's silence itself. Here ends the wait for a device that reports nothing.
        let longest = 2 * self.timing.silence() + Duration::from_secs(1);
        for name in self.lanes.names() {
            if let Some(lane) = self.lanes.get_mut(name) {
                let still = lane.still_since(now);
                if still.is_some_and(|since| now > since + longest) {
                    let text =
                        "the device tells nothing of what is under way; see the kernel's log";
                    lane.failed.get_or_insert_with(|| text.to_owned());
                    self.changed.add(name, lane);
                }
                if lane.seen == lane.arrived {
                    lane.window = (lane.window / 2).max(GRANT_MIN);
                }
                lane.seen = lane.arrived;
                lane.look_at_use(now);
            }
        }
        self.spare.truncate(SPARE_MAX / 4);
        self.is_full = false;
    }

    pub(super) fn fail_all(&mut self, reason: &str) {
        for name in self.lanes.names() {
            self.fail(name, reason.to_owned());
        }
    }
}
