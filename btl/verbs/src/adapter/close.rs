// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a lane ends: its pair fails, and what the peer has not received is handed back.

use super::head::{HEAD, Head};
use super::lane::{Bytes, Stage};
use super::{Adapter, FLUSH_ROUNDS};
use crate::memory::Slot;
use crate::provider::Provider;

impl<P: Provider> Adapter<P> {
    pub(super) fn stop_lane(&mut self, name: u64) -> u64 {
        // Takes what has completed before.
        for _ in 0..FLUSH_ROUNDS {
            if !self.take_completions() {
                break;
            }
        }
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        lane.failed
            .get_or_insert_with(|| "it was given up".to_owned());
        match std::mem::replace(&mut lane.stage, Stage::Over) {
            Stage::Prepared(pair) => drop(self.queue.retire(pair)),
            Stage::Connecting(pair) => {
                self.connecting -= 1;
                self.orphans.push(pair);
            }
            Stage::Ready(pair) => {
                // If this call fails, the pair has failed already.
                let _ = pair.fail();
                for _ in 0..FLUSH_ROUNDS {
                    let under_way = self.lanes.get(name).is_some_and(|lane| {
                        let mut kept = lane.kept.iter();
                        kept.any(|kept| matches!(kept.bytes, Bytes::Posted))
                    });
                    if !self.take_completions() && !under_way {
                        break;
                    }
                }
                let number = pair.number();
                let slots = self.queue.retire(pair);
                self.by_pair.remove(&number);
                self.take_back(name, slots);
            }
            Stage::Over => {}
        }
        self.by_pair.retain(|_, lane| *lane != name);
        self.lanes.get(name).map_or(0, |lane| lane.next)
    }

    pub(super) fn take_left(&mut self, name: u64, received: u64) -> Option<Vec<u8>> {
        let lane = self.lanes.get_mut(name)?;
        let mut left = Vec::new();
        let mut at = lane.kept.front().map_or(lane.at, |kept| kept.at);
        if received < at || received > lane.at {
            return None;
        }
        for kept in &lane.kept {
            let skip = usize::try_from(received.saturating_sub(at))
                .ok()?
                .min(kept.len);
            let count = kept.len - skip;
            match &kept.bytes {
                Bytes::Slot(slot) => {
                    let begin = left.len();
                    left.resize(begin + count, 0);
                    slot.read(HEAD + skip, &mut left[begin..]);
                }
                Bytes::Copy(bytes) => left.extend_from_slice(bytes.get(skip..)?),
                // The device may still read it: it did not report the end.
                Bytes::Posted => return None,
            }
            at += kept.len as u64;
        }
        if let Some((slot, len)) = &lane.building {
            let begin = left.len();
            left.resize(begin + len - HEAD, 0);
            slot.read(HEAD, &mut left[begin..]);
        }
        lane.kept.clear();
        lane.building = None;
        Some(left)
    }

    pub(super) fn close_lane(&mut self, name: u64) {
        self.stop_lane(name);
        let Some(mut lane) = self.lanes.remove(name) else {
            return;
        };
        self.promised -= (lane.granted.wrapping_sub(lane.arrived) as usize).min(self.promised);
        let mut left = Vec::new();
        let mut nobodys = [0; 4096];
        while lane.read(&mut nobodys, |slot| left.push(slot)) > 0 {}
        for slot in left {
            self.recycle(slot);
        }
    }

    /// Takes back slots of messages whose end the device did not report. The head in each slot says which message it
    /// is.
    pub(super) fn take_back(&mut self, name: u64, slots: Vec<Slot<P>>) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        // Slots of reads are dropped: they go back to their region.
        for slot in slots.into_iter().filter(|slot| self.sends.owns(slot)) {
            let mut raw = [0; HEAD];
            slot.read(0, &mut raw);
            let at = Head::decode(&raw).at;
            let mut kept = lane.kept.iter_mut();
            let found = kept
                .find(|kept| kept.at == at && kept.len > 0 && matches!(kept.bytes, Bytes::Posted));
            if let Some(kept) = found {
                kept.bytes = Bytes::Slot(slot);
            }
        }
    }
}
