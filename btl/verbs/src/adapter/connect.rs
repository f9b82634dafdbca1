// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a lane begins: a pair and an offer of it, then a thread that connects the pair to the peer's.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Instant;

use super::lane::{Lane, Stage};
use super::receive_side::ReceiveSide;
use super::{Adapter, Extended, GRANT_MIN, INLINE_MAX, Offer, SILENT};
use crate::error::Error;
use crate::matching::{self, OfferedRail, RAILS_MAX};
use crate::pair::{InitAttributes, QueuePair};
use crate::port::QueuePairAddress;
use crate::provider::{Depths, Kind, Provider};

/// What a new lane may have, where a rank has as many lanes as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LanePlace {
    /// The place of the lane that was silent longest.
    OfSilent,
    /// None.
    Free,
}

impl<P: Provider> Adapter<P> {
    /// What the peer must know of the pairs that were made for it, of which the first is on this device.
    pub(crate) fn offer_of(&self, rails: &[OfferedRail]) -> Offer {
        let first = rails.first().copied().unwrap_or_default();
        let mut more = [None; RAILS_MAX - 1];
        for (further, rail) in more.iter_mut().zip(rails.iter().skip(1)) {
            *further = Some(*rail);
        }
        Offer {
            rail: first,
            more,
            room: self.settings.slot.next_multiple_of(64) as u32,
            granted: GRANT_MIN,
            mark: None,
            extended: None,
        }
    }

    /// What a peer may know of the port while no pair can be made on it.
    pub(crate) fn absent_rail(&self) -> OfferedRail {
        let chosen = self.port.chosen();
        OfferedRail {
            pair: QueuePairAddress::on_port(chosen),
            speed: self.speed(),
            absent: true,
            ..OfferedRail::default()
        }
    }

    /// Has a lane carry a stream: messages are promised to its peer.
    pub(crate) fn begin_stream(&mut self, name: u64) -> Result<(), String> {
        self.furnish().map_err(|error| error.to_string())?;
        let first = GRANT_MIN as usize;
        if !self.pool.has_free(&self.domain, &mut self.queue, first) {
            return Err(format!(
                "all {} receives are promised to others; raise ONECOPY_VERBS_RECEIVES_MAX, or the limit on locked \
                 memory (ulimit -l)",
                self.pool.posted()
            ));
        }
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.receiving = ReceiveSide::new(GRANT_MIN);
            self.pool.promise(first);
        }
        Ok(())
    }

    /// Makes a lane that carries no stream, and so pins nothing for its peer.
    pub(crate) fn prepare_lane(
        &mut self,
        rank: u32,
        now: Instant,
        place: LanePlace,
    ) -> Result<(u64, OfferedRail), String> {
        self.port.look(|_| Ok(()))?;
        self.renew_receives()?;
        self.make_room_for_lane(now, place)?;
        let attributes = InitAttributes {
            kind: Kind::Connection,
            receives: self.pool.receives(),
            shared: None,
            depths: Depths {
                // Sends that do not complete one by one hold half of it.
                sends: 2 * self.widest() + 16,
                receives: 0,
                inline: self.settings.inline.min(INLINE_MAX) as u32,
            },
        };
        let text = |error: Error| error.to_string();
        let pair = QueuePair::new(&self.domain, &mut self.queue, &attributes).map_err(text)?;
        let account = pair.account();
        let pair = match pair.prepare(self.port.chosen(), 0) {
            Ok(pair) => pair,
            Err(error) => {
                self.queue.forget(account);
                return Err(text(error));
            }
        };
        let own = pair.address(self.port.chosen(), self.connector.next_first());
        let number = pair.number();
        let lane = Lane::new(rank, pair, own, 0);
        let Some(name) = self.lanes.insert(number, lane) else {
            self.queue.forget(account);
            return Err("there are too many lanes".to_owned());
        };
        let rail = OfferedRail {
            pair: own,
            speed: self.speed(),
            ..OfferedRail::default()
        };
        Ok((name, rail))
    }

    /// Makes the receives anew where completions of some were lost. Else peers were permitted messages that no receive
    /// is posted for.
    ///
    /// The queue of completions stays: an error of a poll is one of what it took, and its descriptor is slept on. What
    /// it still tells of old operations finds nothing in its table.
    pub(super) fn renew_receives(&mut self) -> Result<(), String> {
        if !self.pool.is_in_doubt() {
            return Ok(());
        }
        // The device may write to a receive as long as a pair exists that takes from it.
        self.connector.retire_orphans(&mut self.queue);
        let is_over = |lane: &Lane<P>| matches!(lane.stage, Stage::Over);
        let mut lanes = self.lanes.names().into_iter();
        let all_over = lanes.all(|name| self.lanes.get(name).is_none_or(is_over));
        if !all_over || self.connector.orphans() > 0 {
            let device = self.port.device_name();
            return Err(format!("{device}: lanes that failed are not over yet"));
        }
        let shared = self.extended.as_ref().map(Extended::domain);
        let renewed = self.pool.renew(&self.domain, &mut self.queue, shared);
        renewed.map_err(|error| error.to_string())
    }

    pub(crate) fn start_connecting(&mut self, name: u64, peer: &Offer) {
        let other = match (peer.mark, peer.extended) {
            (Some(_), _) => Some("datagrams"),
            (None, Some(_)) => Some("extended connections"),
            (None, None) => None,
        };
        if let Some(other) = other {
            let reason =
                format!("the peer's lanes are {other}; set ONECOPY_VERBS_MODE alike on all ranks");
            return self.lanes.fail(name, reason);
        }
        let speed = self.speed();
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let stage = std::mem::replace(&mut lane.stage, Stage::Over);
        let Stage::Prepared(pair) = stage else {
            lane.stage = stage;
            return;
        };
        lane.sending.permit(peer);
        let account = pair.account();
        let chosen = Arc::clone(self.port.chosen());
        // A peer with several ports goes by that which both find to be the best.
        let own = OfferedRail {
            pair: lane.own,
            speed,
            ..OfferedRail::default()
        };
        let rails = peer.rails();
        let best = matching::match_rails(&[own], &rails)
            .first()
            .map_or(0, |best| best.peer);
        let reached = rails[best];
        if reached.absent {
            drop(pair);
            self.queue.forget(account);
            let reason = "the peer's port that leads here has no link";
            return self.lanes.fail(name, reason.to_owned());
        }
        let ends = (lane.own, reached.pair);
        match self.connector.start(pair, chosen, ends, self.timing) {
            Ok(connecting) => lane.stage = Stage::Connecting(connecting),
            Err(error) => {
                self.queue.forget(account);
                let reason = format!("a thread that connects: {error}");
                self.lanes.fail(name, reason);
            }
        }
    }

    /// When a lane was last seen to have carried something.
    pub(crate) fn last_use(&mut self, name: u64, now: Instant) -> Option<Instant> {
        let lane = self.lanes.get_mut(name)?;
        Some(lane.look_at_use(now))
    }

    /// A lane belongs to something that was used at that time.
    pub(crate) fn note_use(&mut self, name: u64, time: Instant) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.note_use(time);
        }
    }

    /// Whether a lane failed only because another one needs its place.
    pub(crate) fn is_displaced(&self, name: u64) -> bool {
        let lane = self.lanes.get(name);
        lane.is_some_and(|lane| lane.is_displaced)
    }

    /// Ends the lane that was silent longest, where a rank has as many lanes as it may have.
    pub(super) fn make_room_for_lane(
        &mut self,
        now: Instant,
        place: LanePlace,
    ) -> Result<(), String> {
        // What was given up while a thread connects it has its pair still.
        let mut count = self.connector.orphans();
        let mut oldest: Option<(Instant, u64)> = None;
        for name in self.lanes.names() {
            let Some(lane) = self
                .lanes
                .get_mut(name)
                .filter(|lane| lane.failed.is_none())
            else {
                continue;
            };
            count += 1;
            let used = lane.look_at_use(now);
            if lane.is_silent() && oldest.is_none_or(|(oldest, _)| used < oldest) {
                oldest = Some((used, name));
            }
        }
        if count < self.settings.lanes_max {
            return Ok(());
        }
        match oldest {
            Some((used, name)) if now >= used + SILENT && place == LanePlace::OfSilent => {
                self.displaced += 1;
                if let Some(lane) = self.lanes.get_mut(name) {
                    lane.is_displaced = true;
                }
                let reason = "another rank's lane needs its place (ONECOPY_VERBS_LANES)";
                self.lanes.fail(name, reason.to_owned());
                Ok(())
            }
            _ => Err(format!(
                "all {count} lanes that a rank may have are in use; raise ONECOPY_VERBS_LANES"
            )),
        }
    }

    /// Takes the results of threads that connect lanes by a connection of their own. Says whether there was one.
    pub(super) fn take_connected_lanes(&mut self) -> bool {
        let mut found = false;
        for name in self.lanes.names() {
            let Some((lane, changed)) = self.lanes.with_changed(name) else {
                continue;
            };
            let Stage::Connecting(pair) = &lane.stage else {
                continue;
            };
            let account = pair.account;
            let failed = match pair.coming.try_recv() {
                Ok(Ok(pair)) => {
                    lane.stage = Stage::Ready(pair);
                    None
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => Some("the thread that connects it ended".into()),
            };
            found = true;
            self.connector.end_wait();
            changed.add(name, lane);
            if let Some(reason) = failed {
                lane.stage = Stage::Over;
                self.queue.forget(account);
                self.lanes.fail(name, reason);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::connected::connected;
    use crate::adapter::{Lanes, Settings};
    use crate::model::usual_settings;

    /// The peer reads for longer than a lane may be silent.
    #[test]
    fn a_lane_whose_peer_may_be_reading_keeps_its_place() {
        let ([mut a, _b], lanes) = connected(|chosen| {
            let settings = Settings {
                lanes_max: 1,
                ..usual_settings()
            };
            Adapter::on(chosen, settings).expect("a device")
        });
        let message = vec![7; 5000];
        let shown = a.show(lanes[0], &message).expect("shown");
        let later = Instant::now() + 2 * SILENT;
        a.prepare_lane(1, later, LanePlace::OfSilent)
            .expect_err("in use");
        drop(shown);
        a.prepare_lane(1, later, LanePlace::OfSilent)
            .expect("a place");
        assert!(a.is_displaced(lanes[0]));
    }
}
