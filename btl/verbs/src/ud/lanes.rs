// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lanes' contract, for lanes by datagrams.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::arq::Arq;
use super::head::HEAD;
use super::schedule::{InLists, List};
use super::{Datagrams, Lane, Peer, Stage, WINDOW_MAX, WINDOW_MIN};
use crate::adapter::{ExposedMemory, Figures, Lanes, Mark, Offer, ReadState, RemoteAddress};
use crate::matching::{OfferedRail, RAILS_MAX};
use crate::pair::QueuePair;
use crate::port::PortEvent;
use crate::provider::Provider;

/// Rounds, of a batch of completions each, in which what has come before an end is taken. They bound the stay in the
/// library. Chosen by magnitude: with batches of 16 they take 4096 completions, more than a rank has receives by
/// default (160).
const LAST_ROUNDS: u32 = 256;

impl<P: Provider> Datagrams<P> {
    /// Has the packet go out that is being filled. The clock is read unless the time is given.
    fn push_at(&mut self, name: u64, time: Option<Duration>) -> bool {
        let Some(lane) = self.lanes.get_mut(name) else {
            return true;
        };
        if lane.building.is_empty() {
            return true;
        }
        if !matches!(lane.stage, Stage::Ready(_)) || lane.failed.is_some() {
            return false;
        }
        let now = time.unwrap_or_else(|| self.time.at(Instant::now()));
        if !lane.arq.has_room(1, || now) {
            self.watch(name);
            return false;
        }
        lane.arq.add(std::mem::take(&mut lane.building), now);
        self.go_out(name, now);
        true
    }
}

impl<P: Provider> Lanes for Datagrams<P> {
    fn make(&mut self, rank: u32) -> Result<(u64, Offer), String> {
        self.look_at_port()?;
        let Some(pair) = &self.pair else {
            return Err("the queue pair for datagrams has failed".to_owned());
        };
        let (mark, key) = self.keys.next_lane();
        let window = self.settings.window.clamp(WINDOW_MIN, WINDOW_MAX);
        let arq = Arq::new(window, self.settings.silence);
        let offer = Offer {
            rail: OfferedRail {
                pair: pair.address(self.port.chosen(), 0),
                speed: self.port.chosen().state.speed,
                ..OfferedRail::default()
            },
            more: [None; RAILS_MAX - 1],
            room: self.memory.room() as u32,
            granted: arq.permits(),
            mark: Some(Mark {
                key,
                mark,
                qkey: self.keys.qkey(),
            }),
            extended: None,
        };
        let lane = Lane {
            rank,
            stage: Stage::Made,
            mark,
            key,
            peer: None,
            arq,
            building: Vec::new(),
            room: 0,
            failed: None,
            is_listed: false,
            in_lists: InLists::default(),
        };
        let name = self.lanes.insert(mark, lane);
        let name = name.ok_or_else(|| "there are too many lanes".to_owned())?;
        Ok((name, offer))
    }

    fn connect(&mut self, name: u64, offer: &Offer) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        if !matches!(lane.stage, Stage::Made) {
            return;
        }
        let room = self.memory.room().min(offer.room as usize);
        let Some(mark) = offer.mark.filter(|_| room > HEAD) else {
            let reason =
                "the peer's lanes are connections; set ONECOPY_VERBS_MODE alike on all ranks";
            return self.lanes.fail(name, reason.to_owned());
        };
        let path = offer.rail.pair.path(self.port.chosen());
        lane.peer = Some(Peer {
            pair: offer.rail.pair.number,
            qkey: mark.qkey,
            mark: mark.mark,
            key: mark.key,
            path,
        });
        lane.room = room - HEAD;
        lane.arq.begin(offer.granted.min(WINDOW_MAX));
        self.find(name, path);
    }

    fn is_connected(&self, name: u64) -> bool {
        let lane = self.lanes.get(name);
        lane.is_some_and(|lane| lane.failed.is_none() && matches!(lane.stage, Stage::Ready(_)))
    }

    fn has_failed(&self, name: u64) -> bool {
        let lane = self.lanes.get(name);
        lane.is_none_or(|lane| lane.failed.is_some())
    }

    fn failure(&self, name: u64) -> Option<String> {
        match self.lanes.get(name) {
            Some(lane) => lane.failed.clone(),
            None => Some("the lane is over".to_owned()),
        }
    }

    fn poll(&mut self) -> bool {
        let found = self.handles.is_finding() && self.take_handles();
        let completed = self.take_completions();
        self.tend();
        found | completed
    }

    fn next_changed(&mut self) -> Option<u32> {
        self.lanes.next_changed()
    }

    fn has_changed(&self) -> bool {
        self.lanes.has_changed()
    }

    fn has_room(&mut self, name: u64, bytes: usize) -> bool {
        let time = &self.time;
        let Some(lane) = self.lanes.get_mut(name) else {
            return false;
        };
        if !matches!(lane.stage, Stage::Ready(_)) || lane.failed.is_some() {
            return false;
        }
        let packets = bytes.div_ceil(lane.room.max(1));
        let has = lane
            .arq
            .has_room(u32::try_from(packets).unwrap_or(u32::MAX), || {
                time.at(Instant::now())
            });
        if !has {
            self.watch(name);
        }
        has
    }

    fn write(&mut self, name: u64, bytes: &[u8]) -> usize {
        let mut written = 0;
        // The clock is read once for all packets.
        let mut first = None;
        while written < bytes.len() {
            let time = &self.time;
            let mut now = || *first.get_or_insert_with(|| time.at(Instant::now()));
            let Some(lane) = self.lanes.get_mut(name) else {
                break;
            };
            if lane.failed.is_some() || lane.room == 0 {
                break;
            }
            if lane.building.len() == lane.room {
                let now = now();
                if !self.push_at(name, Some(now)) {
                    break;
                }
                continue;
            }
            if lane.building.is_empty() {
                if !lane.arq.has_room(1, &mut now) {
                    self.watch(name);
                    break;
                }
                if lane.building.capacity() == 0 {
                    lane.building = self.spare.pop().unwrap_or_default();
                    lane.building.clear();
                }
            }
            let count = (lane.room - lane.building.len()).min(bytes.len() - written);
            let more = &bytes[written..written + count];
            lane.building.extend_from_slice(more);
            written += count;
        }
        written
    }

    fn push(&mut self, name: u64) -> bool {
        self.push_at(name, None)
    }

    fn is_taken(&self, name: u64) -> bool {
        let lane = self.lanes.get(name);
        lane.is_none_or(|lane| lane.building.is_empty() && lane.arq.is_taken())
    }

    fn unread(&self, name: u64) -> usize {
        self.lanes.get(name).map_or(0, |lane| lane.arq.unread())
    }

    fn read(&mut self, name: u64, out: &mut [u8]) -> usize {
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        let count = lane.arq.read(out, &mut self.spare);
        if lane.arq.next().is_some() {
            self.go_out(name, self.now());
        }
        count
    }

    fn acknowledge(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.arq.acknowledge();
            if lane.arq.next().is_some() {
                self.go_out(name, self.now());
            }
        }
    }

    // Long messages come as packets: to read them needs a connection.
    fn show(&mut self, _: u64, _: &[u8]) -> Option<ExposedMemory> {
        None
    }

    fn can_post_reads(&mut self, _: u64) -> bool {
        false
    }

    fn post_read(&mut self, _: u64, _: u64, _: RemoteAddress, _: u64) -> u64 {
        0
    }

    fn read_state(&self, _: u64, _: u64) -> ReadState {
        ReadState::Failed
    }

    fn copy_read(&self, _: u64, _: u64, _: usize, _: &mut [u8]) {}

    fn release_read(&mut self, _: u64, _: u64) {}

    fn stop(&mut self, name: u64) -> u64 {
        // What has come before is taken.
        for _ in 0..LAST_ROUNDS {
            if !self.take_completions() {
                break;
            }
        }
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        let given_up = || "it was given up".to_owned();
        lane.failed.get_or_insert_with(given_up);
        lane.stage = Stage::Over;
        lane.arq.received()
    }

    fn left(&mut self, name: u64, received: u64) -> Option<Vec<u8>> {
        let lane = self.lanes.get_mut(name)?;
        let mut left = lane.arq.left(received)?;
        left.append(&mut lane.building);
        Some(left)
    }

    fn close(&mut self, name: u64) {
        self.stop(name);
        if let Some(lane) = self.lanes.remove(name) {
            self.lanes.forget_number(lane.mark);
        }
    }

    fn arm(&mut self) -> bool {
        // A rank that sleeps acknowledges nothing, so it does so before.
        for index in (0..self.schedule.count(List::Watched)).rev() {
            if let Some(name) = self.schedule.watched(index) {
                self.acknowledge(name);
            }
        }
        // What is refused is found by the next poll.
        let _ = self.queue.take_wakes();
        let armed = self.queue.arm().is_ok();
        let found = self.poll();
        armed && !found
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let completions = self.queue.descriptor().into_iter();
        completions.chain([self.port.events()]).collect()
    }

    fn rails(&self, name: u64) -> Vec<String> {
        let chosen = self.port.chosen();
        let lane = self.lanes.get(name).into_iter();
        lane.map(|_| format!("{} port {}", chosen.device.name(), chosen.port))
            .collect()
    }

    fn hear_device(&mut self) {
        // A descriptor that stays readable would let no wait sleep.
        let _ = self.queue.take_wakes();
        while let Some(event) = self.port.next_event() {
            match event {
                PortEvent::Down(reason) => self.fail_pair(&reason),
                PortEvent::PairFailed(number) => {
                    if self.pair.as_ref().map(QueuePair::number) == Some(number) {
                        let name = self.port.device_name();
                        self.fail_pair(&format!("{name}: the queue pair for datagrams failed"));
                    }
                }
                PortEvent::Up | PortEvent::Nothing => {}
            }
        }
    }

    fn age(&mut self, _: Instant) {
        self.poll();
        self.spare.truncate(super::SPARE_MAX / 4);
    }

    fn figures(&self) -> Figures {
        Figures {
            pinned: self.memory.pinned() as u64,
            bytes: self.bytes,
            receives: self.memory.receives() as u64,
            retransmitted: self.retransmitted,
            foreign: self.foreign,
            dropped: self.loss.dropped(),
            ..Figures::default()
        }
    }
}
