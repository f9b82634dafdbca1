// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a lane begins: a pair and an offer of it, then a thread that connects the pair to the peer's.

use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, sync_channel};
use std::time::Instant;

use super::lane::{Connecting, Lane, Stage};
use super::{Adapter, GRANT_MIN, INLINE_MAX, Offer, SILENT, WINDOW_MAX};
use crate::error::Error;
use crate::pair::{InitAttributes, Pair};
use crate::port::{Chosen, NUMBER_MAX, look_at};
use crate::provider::{Depths, Kind, Provider};
use crate::unmaps::without_signals;

impl<P: Provider> Adapter<P> {
    pub(super) fn make_lane(&mut self, rank: u32) -> Result<(u64, Offer), String> {
        self.look_at_port()?;
        self.make_place(Instant::now())?;
        while self.posted < self.promised + GRANT_MIN as usize {
            if !self.grow() {
                return Err(format!(
                    "all {} receives are promised to others; raise ONECOPY_VERBS_RECEIVES_MAX, or the limit on locked \
                     memory (ulimit -l)",
                    self.posted
                ));
            }
        }
        let window = self.settings.window.clamp(GRANT_MIN, WINDOW_MAX);
        let attributes = InitAttributes {
            kind: Kind::Connection,
            receives: self.receives.as_ref(),
            shared: None,
            depths: Depths {
                // Sends that do not complete one by one hold half of it.
                sends: 2 * window + 16,
                receives: 0,
                inline: self.settings.inline.min(INLINE_MAX) as u32,
            },
        };
        let text = |error: Error| error.to_string();
        let pair = Pair::new(&self.domain, &mut self.queue, &attributes).map_err(text)?;
        let account = pair.account();
        let pair = match pair.prepare(&self.chosen, 0) {
            Ok(pair) => pair,
            Err(error) => {
                self.queue.forget(account);
                return Err(text(error));
            }
        };
        // Packets of an earlier connection must not have this one's numbers.
        self.first = self.first.wrapping_mul(0x9e37_79b1).wrapping_add(1) & NUMBER_MAX;
        let own = pair.reach(&self.chosen, self.first);
        let number = pair.number();
        let mut lane = Lane::new(rank, pair, own);
        lane.granted = GRANT_MIN;
        lane.told_granted = GRANT_MIN;
        let Some(name) = self.lanes.insert(lane) else {
            self.queue.forget(account);
            return Err("there are too many lanes".to_owned());
        };
        self.promised += GRANT_MIN as usize;
        self.by_pair.insert(number, name);
        let offer = Offer {
            reach: own,
            room: self.settings.slot.next_multiple_of(64) as u32,
            granted: GRANT_MIN,
            mark: None,
        };
        Ok((name, offer))
    }

    pub(super) fn start_connecting(&mut self, name: u64, peer: &Offer) {
        if peer.mark.is_some() {
            let reason =
                "the peer's lanes are datagrams; set ONECOPY_VERBS_MODE alike on all ranks";
            return self.fail(name, reason.to_owned());
        }
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let stage = std::mem::replace(&mut lane.stage, Stage::Over);
        let Stage::Prepared(pair) = stage else {
            lane.stage = stage;
            return;
        };
        lane.permit(peer);
        let account = pair.account();
        let (chosen, own, timing) = (Arc::clone(&self.chosen), lane.own, self.timing);
        let reach = peer.reach;
        let (tell, coming) = sync_channel(1);
        let started = without_signals(|| {
            std::thread::Builder::new()
                .name("onecopy-connect".to_owned())
                .stack_size(128 << 10)
                .spawn(move || {
                    // The lane may have been given up meanwhile.
                    let _ = tell.send(pair.connect(&chosen, &own, &reach, timing));
                })
        });
        match started {
            Ok(_) => {
                lane.stage = Stage::Connecting(Connecting { coming, account });
                self.connecting += 1;
            }
            Err(error) => {
                self.queue.forget(account);
                self.fail(name, format!("a thread that connects: {error}"));
            }
        }
    }

    /// Ends the lane that was silent longest, where a rank has as many lanes as it may have.
    pub(super) fn make_place(&mut self, now: Instant) -> Result<(), String> {
        let names = self.lanes.names();
        // What was given up while a thread connects it has its pair still.
        let mut count = self.orphans.len();
        let mut oldest: Option<(Instant, u64)> = None;
        for name in names {
            let Some(lane) = self
                .lanes
                .get_mut(name)
                .filter(|lane| lane.failed.is_none())
            else {
                continue;
            };
            count += 1;
            lane.look_at_use(now);
            if lane.is_silent() && oldest.is_none_or(|(used, _)| lane.used < used) {
                oldest = Some((lane.used, name));
            }
        }
        if count < self.settings.lanes_max {
            return Ok(());
        }
        match oldest {
            Some((used, name)) if now >= used + SILENT => {
                self.displaced += 1;
                self.fail(
                    name,
                    "another rank's lane needs its place (ONECOPY_VERBS_LANES)".to_owned(),
                );
                Ok(())
            }
            _ => Err(format!(
                "all {count} lanes that a rank may have are in use; raise ONECOPY_VERBS_LANES"
            )),
        }
    }

    /// Whether lanes can be made now. Looks again at a port that was down.
    pub(super) fn look_at_port(&mut self) -> Result<(), String> {
        if self.is_stale {
            let Chosen { device, port, .. } = &*self.chosen;
            match look_at(device.clone(), *port, self.settings.address) {
                Ok(chosen) => {
                    self.chosen = Arc::new(chosen);
                    self.down = None;
                    self.is_stale = false;
                }
                Err(reason) => self.down = Some(reason),
            }
        }
        self.down.clone().map_or(Ok(()), Err)
    }

    /// Takes the results of threads that connect lanes. Says whether there was one.
    pub(super) fn look_at_connections(&mut self) -> bool {
        if self.connecting == 0 && self.orphans.is_empty() {
            return false;
        }
        let mut found = false;
        let queue = &mut self.queue;
        self.orphans
            .retain(|orphan| match orphan.coming.try_recv() {
                Ok(Ok(pair)) => {
                    drop(queue.retire(pair));
                    false
                }
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => {
                    queue.forget(orphan.account);
                    false
                }
                Err(TryRecvError::Empty) => true,
            });
        for name in self.lanes.names() {
            let Some(lane) = self.lanes.get_mut(name) else {
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
            self.connecting -= 1;
            self.changed.add(name, lane);
            if let Some(reason) = failed {
                lane.stage = Stage::Over;
                self.queue.forget(account);
                self.fail(name, reason);
            }
        }
        found
    }
}
