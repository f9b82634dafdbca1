// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device reports: completions, and events of ports and pairs. Lanes whose device reports nothing for too long
//! fail.

use std::time::{Duration, Instant};

use super::{Adapter, Extended, FLUSH_ROUNDS, reads};
use crate::port::PortEvent;
use crate::provider::Provider;
use crate::queue::{Completion, Done};

impl<P: Provider> Adapter<P> {
    pub(super) fn take_completions(&mut self) -> bool {
        let batch = &mut self.batch;
        let polled = self.queue.poll(|completion| batch.push_back(completion));
        let found = !self.batch.is_empty();
        while let Some(completion) = self.batch.pop_front() {
            self.completed(completion);
        }
        if let Err(error) = polled {
            self.fail_all(&error.to_string());
            self.port.doubt();
            self.pool.doubt();
        }
        found
    }

    /// Takes completions until none is left, or for so many rounds.
    pub(super) fn flush(&mut self) {
        for _ in 0..FLUSH_ROUNDS {
            if !self.take_completions() {
                break;
            }
        }
    }

    fn completed(&mut self, done: Completion<P>) {
        let number = match &self.extended {
            None => Some(done.pair),
            Some(_) => Extended::lane_of(&done),
        };
        let name = number.and_then(|number| self.lanes.name_of(number));
        match done.done {
            Done::Received => {
                self.pool.has_completed();
                let Some(slot) = done.slot else { return };
                match (name, done.outcome) {
                    (Some(name), Ok(())) => self.arrived(name, slot, done.bytes),
                    (name, outcome) => {
                        self.pool.post(&mut self.queue, slot);
                        if name.is_none() {
                            self.came_late(number);
                        }
                        if let (Some(name), Err(status)) = (name, outcome) {
                            self.lanes.fail(name, status.to_string());
                        }
                    }
                }
            }
            Done::Sent => {
                if self.extended.is_some() {
                    match done.outcome {
                        Ok(()) => self.room_came(done.pair),
                        Err(status) => self.fail_pair(done.pair, &status.to_string()),
                    }
                }
                let Some(name) = name else { return };
                let mut note_waiting = false;
                if let Some(lane) = self.lanes.get_mut(name) {
                    lane.watchdog.note_end();
                    note_waiting = self.receives_notes && lane.notes.waits();
                }
                match (done.slot, done.cookie) {
                    (Some(slot), Some(cookie)) if cookie & reads::READ != 0 => {
                        self.read_completed(name, cookie as u32, slot, done.outcome.is_ok());
                    }
                    (Some(slot), Some(cookie)) => self.sent(name, cookie as u32, slot),
                    _ => {}
                }
                if let Err(status) = done.outcome {
                    self.lanes.fail(name, status.to_string());
                }
                if note_waiting {
                    // There is room in the pair's queue, which it may have waited for.
                    self.send_notes(name);
                }
            }
        }
    }

    pub(super) fn poll_events(&mut self) {
        // A descriptor that stays readable would let no wait sleep.
        let _ = self.queue.take_wakes();
        while let Some(event) = self.port.next_event() {
            match event {
                PortEvent::Down(reason) => self.fail_all(&reason),
                PortEvent::PairFailed(number) => {
                    let reason = format!("{}: the connection failed", self.port.device_name());
                    if self.extended.is_some() {
                        self.fail_pair(number, &reason);
                    } else if let Some(lane) = self.lanes.name_of(number) {
                        self.lanes.fail(lane, reason);
                    }
                }
                PortEvent::Up => self.came_back = true,
                PortEvent::Nothing => {}
            }
        }
    }

    /// No lane carries anything any more.
    fn fail_all(&mut self, reason: &str) {
        self.lanes.fail_all(reason);
        self.fail_initiators(reason);
    }

    pub(super) fn age_lanes(&mut self, now: Instant) {
        // A device reports a peer's silence itself. Here ends the wait for a device that reports nothing.
        let longest = 2 * self.timing.silence() + Duration::from_secs(1);
        // What it has reported while this rank was away counts.
        self.flush();
        for name in self.lanes.names() {
            if let Some((lane, changed)) = self.lanes.with_changed(name) {
                let still = lane.still_since(now);
                if still.is_some_and(|since| now > since + longest) {
                    let text =
                        "the device tells nothing of what is under way; see the kernel's log";
                    lane.failed.get_or_insert_with(|| text.to_owned());
                    changed.add(name, lane);
                }
                lane.receiving.narrow();
                lane.look_at_use(now);
                // Those that wait for a slot to send from are not told when another lane gives it back.
                if lane.notes.waits() {
                    self.send_notes(name);
                }
            }
        }
        self.end_late(now);
        self.sends.trim();
        self.pool.may_grow_again();
    }
}
