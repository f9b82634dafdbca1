// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a lane ends: its pair fails, and what the peer has not received is handed back.

use super::lane::Stage;
use super::{Adapter, FLUSH_ROUNDS};
use crate::pair::{QueuePair, Ready};
use crate::provider::Provider;

impl<P: Provider> Adapter<P> {
    pub(crate) fn stop_lane(&mut self, name: u64) -> u64 {
        // Takes what has completed before.
        self.flush();
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        lane.failed
            .get_or_insert_with(|| "it was given up".to_owned());
        match std::mem::replace(&mut lane.stage, Stage::Over) {
            Stage::Prepared(pair) => drop(self.queue.retire(pair)),
            Stage::Connecting(pair) => self.connector.give_up(pair),
            Stage::Ready(pair) if self.extended.is_some() => self.end_extended(name, Some(pair)),
            Stage::Ready(pair) => self.end_connection(name, pair),
            Stage::Offered => self.end_extended(name, None),
            Stage::Over => {}
        }
        self.lanes.forget_numbers_of(name);
        let lane = self.lanes.get(name);
        lane.map_or(0, |lane| lane.receiving.received())
    }

    /// Has the device end what is under way, and takes back slots of messages whose end it does not report.
    fn end_connection(&mut self, name: u64, pair: QueuePair<P, Ready>) {
        // If this call fails, the pair has failed already.
        let _ = pair.fail();
        for _ in 0..FLUSH_ROUNDS {
            let lane = self.lanes.get(name);
            let under_way = lane.is_some_and(|lane| lane.sending.is_posted());
            if !self.take_completions() && !under_way {
                break;
            }
        }
        let slots = self.queue.retire(pair);
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        // Slots of reads are dropped: they go back to their region.
        for slot in slots.into_iter().filter(|slot| self.sends.owns(slot)) {
            lane.sending.take_back(slot);
        }
    }

    /// Stops a lane by an extended connection. Has the device end what is under way by its initiator, if no lane uses
    /// that any more.
    fn end_extended(&mut self, name: u64, pair: Option<QueuePair<P, Ready>>) {
        let Some(initiator) = self.stop_extended(name, pair) else {
            return;
        };
        // If this call fails, the pair has failed already.
        let _ = initiator.fail();
        self.flush();
        // Slots of messages and reads are dropped: they go back to their regions.
        drop(self.queue.retire(initiator));
    }

    pub(crate) fn close_lane(&mut self, name: u64) {
        self.stop_lane(name);
        let Some(mut lane) = self.lanes.remove(name) else {
            return;
        };
        let open = lane.receiving.open() as usize;
        match lane.extended.take() {
            None => self.pool.end_promises(open),
            Some(extended) => self.close_extended(*extended, open),
        }
        lane.receiving
            .drop_unread(|slot| self.pool.recycle(&mut self.queue, slot));
    }
}
