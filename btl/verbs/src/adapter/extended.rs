// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes by extended connections (XRC): the ranks of a node have their receives in one domain, so one connection leads
//! to all of them.
//!
//! Such a connection has two ends. The *initiator* is a queue pair that only sends: a rank has one for each other node.
//! The *target* only receives: one of the ranks there has made it. A message names the queue of receives that it goes
//! to. A lane is what it is by a reliable connection, but for the queue pair, which it shares with the other lanes to
//! that node.
//!
//! ```text
//! rank 0 ─ initiator ──────────► target, made by rank 2, held by 3 ──► receives of 2
//!                                                                 └──► receives of 3
//! ```
//!
//! The first lane to a node asks its peer to make the target, and is told its number as soon as the target is ready.
//! That waits for no initiator, so no two ranks wait for each other. All lanes to the node wait until the initiator is
//! connected; until then the wire carries their messages. The other lanes then tell their peers the number, so that
//! these hold the target, too. It lives as long as any process has it open.
//!
//! Invariants, beside those of [`super`]:
//!
//! - An initiator that fails takes all lanes by it along: none of them is left that posts to it. New lanes to that node
//!   get a new one.
//! - A lane that ends leaves the initiator as it is. So what it had posted may still come to its peer, which it does
//!   not count any more. The receives for that stay promised until nothing can be under way ([`super::late`]).
//! - Bytes that the device still reads when a lane ends are copied, so that they can go another way at once.
//! - A number of a lane is used once. What comes for a lane that is over finds nothing.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use super::connector::{Connecting, Connector};
use super::extended_lane::{ExtendedLane, Target};
use super::head::ExtendedOffer;
use super::lane::{Lane, Stage};
use super::lane_notes::NoteBytes;
use super::late::LateMessages;
use super::route::{NUMBER_MAX, Route};
use super::{Adapter, INLINE_MAX, LanePlace, NodeShare, Offer, Settings, reads};
use crate::domain::Device;
use crate::error::{Error, Result};
use crate::matching::OfferedRail;
use crate::pair::{InitAttributes, Prepared, QueuePair, Ready};
use crate::port::{Chosen, QueuePairAddress};
use crate::provider::{Depths, Kind, Provider};
use crate::queue::{Completion, Done};
use crate::table::Table;

/// What a rank has for lanes by extended connections.
#[derive(Debug)]
pub(super) struct Extended<P: Provider> {
    /// The domain of the receives of all ranks of the node.
    domain: P::Shared,
    nodes: Arc<[u32]>,
    initiators: Table<Initiator<P>>,
    /// Initiators by the numbers of their pairs.
    by_pair: HashMap<u32, u64>,
    /// The number of the last lane.
    last: u32,
    late: LateMessages,
}

/// A rank's end of the connection to a node.
#[derive(Debug)]
struct Initiator<P: Provider> {
    node: u32,
    stage: InitiatorStage<P>,
    own: QueuePairAddress,
    /// The number of the target, once it is known.
    target: Option<u32>,
    /// Lanes that use it, or wait for it.
    lanes: u32,
    failed: bool,
}

#[derive(Debug)]
enum InitiatorStage<P: Provider> {
    /// It waits for the target.
    Prepared(QueuePair<P, Prepared>),
    /// A thread connects it.
    Connecting(Connecting<P>),
    Ready(QueuePair<P, Ready>),
    Over,
}

impl<P: Provider> Extended<P> {
    /// Opens the domain of this node.
    pub(super) fn open(device: &Device<P>, share: NodeShare) -> Result<Self> {
        Ok(Self {
            domain: device.shared(Some(share.file.as_fd()))?,
            nodes: share.nodes,
            initiators: Table::default(),
            by_pair: HashMap::new(),
            last: std::process::id(),
            late: LateMessages::default(),
        })
    }

    pub(super) fn domain(&self) -> &P::Shared {
        &self.domain
    }

    /// A number that no lane had lately.
    fn next_number(&mut self) -> u32 {
        self.last = self.last.wrapping_mul(0x9e37_79b1).wrapping_add(1);
        (self.last >> 1) % NUMBER_MAX + 1
    }

    /// An initiator that leads to a node, or is being made for that.
    fn initiator_to(&self, node: u32) -> Option<u64> {
        let mut names = self.initiators.names().into_iter();
        names.find(|&name| {
            let found = self.initiators.get(name);
            found.is_some_and(|initiator| initiator.node == node && !initiator.failed)
        })
    }

    /// The lane of a completion.
    #[inline]
    pub(super) fn lane_of(done: &Completion<P>) -> Option<u32> {
        match done.done {
            Done::Received => done.immediate,
            Done::Sent => done.cookie.map(Route::lane_of),
        }
    }
}

impl<P: Provider> Adapter<P> {
    /// As [`Self::on`], for lanes by extended connections.
    ///
    /// # Errors
    ///
    /// Those of the device: above all it may have none.
    pub fn on_extended(chosen: Chosen<P>, settings: Settings, share: NodeShare) -> Result<Self> {
        let extended = Extended::open(&chosen.device, share)?;
        let mut adapter = Self::with(chosen, settings, Some(extended))?;
        adapter.furnish()?;
        Ok(adapter)
    }

    /// Makes a lane, and if need be the initiator that leads to its peer's node.
    pub(super) fn make_extended_lane(
        &mut self,
        rank: u32,
    ) -> std::result::Result<(u64, Offer), String> {
        let now = Instant::now();
        self.port.look(|_| Ok(()))?;
        self.renew_receives()?;
        self.end_late(now);
        self.make_room_for_lane(now, LanePlace::OfSilent)?;
        let receives = self.pool.receives().map(|receives| receives.number());
        let receives = match receives {
            Some(number) => number.map_err(|error| error.to_string())?,
            None => return Err("the receives are gone".to_owned()),
        };
        let (initiator, own, leads) = self.initiator_of(rank)?;
        let Some(extended) = &mut self.extended else {
            return Err("there are no extended connections".to_owned());
        };
        let mut number = extended.next_number();
        while self.lanes.name_of(number).is_some() {
            number = extended.next_number();
        }
        let lane = ExtendedLane {
            number,
            initiator,
            leads,
            uses: true,
            peer: None,
            target: Target::None,
            is_asked: false,
        };
        if let Some(initiator) = extended.initiators.get_mut(initiator) {
            initiator.lanes += 1;
        }
        let lane = Lane::by_extended(rank, own, lane);
        let Some(name) = self.lanes.insert(number, lane) else {
            self.drop_initiator(initiator);
            return Err("there are too many lanes".to_owned());
        };
        if let Err(reason) = self.begin_stream(name) {
            // It was promised no receive, and nobody knows of it.
            self.drop_initiator(initiator);
            self.lanes.forget_numbers_of(name);
            self.lanes.remove(name);
            return Err(reason);
        }
        let rail = OfferedRail {
            pair: own,
            speed: self.speed(),
            ..OfferedRail::default()
        };
        let offer = Offer {
            extended: Some(ExtendedOffer {
                receives,
                lane: number,
                wants_target: leads,
            }),
            ..self.offer_of(&[rail])
        };
        Ok((name, offer))
    }

    /// The initiator to a rank's node: its name, its address, and whether it is new.
    fn initiator_of(
        &mut self,
        rank: u32,
    ) -> std::result::Result<(u64, QueuePairAddress, bool), String> {
        let Some(extended) = &self.extended else {
            return Err("there are no extended connections".to_owned());
        };
        let Some(&node) = extended.nodes.get(rank as usize) else {
            return Err(format!("rank {rank} is on no known node"));
        };
        if let Some(name) = extended.initiator_to(node)
            && let Some(initiator) = extended.initiators.get(name)
        {
            return Ok((name, initiator.own, false));
        }
        let attributes = InitAttributes {
            kind: Kind::SharedSend,
            receives: None,
            shared: None,
            depths: Depths {
                sends: 2 * self.widest() + 16,
                receives: 0,
                inline: self.settings.inline.min(INLINE_MAX) as u32,
            },
        };
        let (pair, own) = self.prepared(&attributes)?;
        let number = pair.number();
        let initiator = Initiator {
            node,
            stage: InitiatorStage::Prepared(pair),
            own,
            target: None,
            lanes: 0,
            failed: false,
        };
        let extended = self.extended.as_mut();
        let name = extended.and_then(|extended| {
            let name = extended.initiators.insert(initiator)?;
            extended.by_pair.insert(number, name);
            Some(name)
        });
        let name = name.ok_or_else(|| "there are too many initiators".to_owned())?;
        Ok((name, own, true))
    }

    /// A pair on the own port that is not connected yet.
    fn prepared(
        &mut self,
        attributes: &InitAttributes<'_, P>,
    ) -> std::result::Result<(QueuePair<P, Prepared>, QueuePairAddress), String> {
        let text = |error: Error| error.to_string();
        let pair = QueuePair::new(&self.domain, &mut self.queue, attributes).map_err(text)?;
        let account = pair.account();
        match pair.prepare(self.port.chosen(), 0) {
            Ok(pair) => {
                let own = pair.address(self.port.chosen(), self.connector.next_first());
                Ok((pair, own))
            }
            Err(error) => {
                self.queue.forget(account);
                Err(text(error))
            }
        }
    }

    /// The peer's offer of a lane has come.
    pub(super) fn connect_extended(&mut self, name: u64, offer: &Offer) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let Some(own) = lane.extended.as_mut().filter(|own| own.peer.is_none()) else {
            return;
        };
        let Some(peer) = offer.extended else {
            let reason = "the peer's lanes are no extended connections; set ONECOPY_VERBS_MODE alike on all ranks";
            return self.lanes.fail(name, reason.to_owned());
        };
        if lane.failed.is_some() {
            return;
        }
        own.peer = Some(offer.rail.pair);
        own.is_asked = peer.wants_target;
        lane.sending.permit(offer);
        lane.route = lane.route.to(peer.receives, peer.lane);
        if peer.wants_target
            && let Err(reason) = self.make_target(name, offer.rail.pair)
        {
            return self.lanes.fail(name, reason);
        }
        self.take_initiator(name);
    }

    /// Makes the target of the peer's initiator, and has a thread connect it.
    fn make_target(
        &mut self,
        name: u64,
        initiator: QueuePairAddress,
    ) -> std::result::Result<(), String> {
        let Some(extended) = &self.extended else {
            return Ok(());
        };
        let domain = extended.domain.clone();
        let attributes = InitAttributes {
            kind: Kind::SharedReceive,
            receives: None,
            shared: Some(&domain),
            depths: Depths {
                sends: 0,
                receives: 0,
                inline: 0,
            },
        };
        let (pair, own) = self.prepared(&attributes)?;
        let account = pair.account();
        let chosen = Arc::clone(self.port.chosen());
        let connecting = self
            .connector
            .start(pair, chosen, (own, initiator), self.timing);
        let connecting = connecting.map_err(|error| {
            self.queue.forget(account);
            format!("a thread that connects: {error}")
        })?;
        let lane = self.lanes.get_mut(name);
        match lane.and_then(|lane| lane.extended.as_mut()) {
            Some(lane) => lane.target = Target::Connecting(connecting),
            None => self.connector.give_up(connecting),
        }
        Ok(())
    }

    /// The peer has made the target that this side's initiator needs.
    pub(super) fn connect_initiator(&mut self, name: u64, target: u32) {
        let (Some(lane), Some(extended)) = (self.lanes.get(name), &mut self.extended) else {
            return;
        };
        if lane.failed.is_some() {
            return;
        }
        let own = lane.extended.as_ref().filter(|own| own.leads);
        let asked = own.and_then(|own| Some((own.initiator, own.peer?)));
        let found = asked.and_then(|(initiator, peer)| {
            Some((initiator, peer, extended.initiators.get_mut(initiator)?))
        });
        let Some((key, peer, initiator)) = found.filter(|(.., it)| it.target.is_none()) else {
            let reason = "the peer has made a target that nobody asked for";
            return self.lanes.fail(name, reason.to_owned());
        };
        let stage = std::mem::replace(&mut initiator.stage, InitiatorStage::Over);
        let InitiatorStage::Prepared(pair) = stage else {
            initiator.stage = stage;
            return;
        };
        initiator.target = Some(target);
        let account = pair.account();
        let peer = QueuePairAddress {
            number: target,
            ..peer
        };
        let ends = (initiator.own, peer);
        let chosen = Arc::clone(self.port.chosen());
        match self.connector.start(pair, chosen, ends, self.timing) {
            Ok(connecting) => initiator.stage = InitiatorStage::Connecting(connecting),
            Err(error) => {
                self.queue.forget(account);
                self.fail_initiator(key, &format!("a thread that connects: {error}"));
            }
        }
    }

    /// Has a lane post to its initiator, if that is connected and the peer is known. Tells the peer to hold the target.
    fn take_initiator(&mut self, name: u64) {
        let (Some((lane, changed)), Some(extended)) =
            (self.lanes.with_changed(name), &self.extended)
        else {
            return;
        };
        let Some(own) = lane.extended.as_ref().filter(|own| own.peer.is_some()) else {
            return;
        };
        let Some(initiator) = extended.initiators.get(own.initiator) else {
            return;
        };
        let (InitiatorStage::Ready(pair), Stage::Offered) = (&initiator.stage, &lane.stage) else {
            return;
        };
        lane.stage = Stage::Ready(pair.share());
        if let Some(target) = initiator.target.filter(|_| !own.leads) {
            let note = NoteBytes::of(&target.to_le_bytes());
            lane.notes.out.push_back(note);
        }
        changed.add(name, lane);
    }

    /// Takes what the peer sends beside the stream: the target of its initiator, which this side is to hold.
    #[cold]
    pub(super) fn receive_extended_notes(&mut self, name: u64) {
        let Some(extended) = &self.extended else {
            return;
        };
        while let Some(lane) = self.lanes.get_mut(name)
            && let Some(note) = lane.notes.next()
        {
            let number = note
                .bytes()
                .first_chunk::<4>()
                .map(|bytes| u32::from_le_bytes(*bytes));
            let free = lane
                .extended
                .as_mut()
                .filter(|own| matches!(own.target, Target::None));
            let (Some(number), Some(own)) = (number, free) else {
                let reason = "the peer sent a malformed note".to_owned();
                return self.lanes.fail(name, reason);
            };
            let domain = &extended.domain;
            match QueuePair::open_shared(&self.domain, &mut self.queue, domain, number) {
                Ok(pair) => own.target = Target::Held(pair),
                // Who has made it is gone. The peer's initiator fails soon, if it has not yet.
                Err(error) => return self.lanes.fail(name, error.to_string()),
            }
        }
    }

    /// Takes the results of threads that connect targets and initiators. Says whether there was one.
    pub(super) fn take_connected_extended(&mut self) -> bool {
        let mut found = false;
        for name in self.lanes.names() {
            let Some((lane, changed)) = self.lanes.with_changed(name) else {
                continue;
            };
            let Some(own) = &mut lane.extended else {
                continue;
            };
            let Target::Connecting(connecting) = &own.target else {
                continue;
            };
            let Some(outcome) = take_connected(connecting, &mut self.connector) else {
                continue;
            };
            found = true;
            let account = connecting.account;
            match outcome {
                Ok(pair) => {
                    own.target = Target::Held(pair);
                    changed.add(name, lane);
                }
                Err(reason) => {
                    own.target = Target::None;
                    self.queue.forget(account);
                    self.lanes.fail(name, reason);
                }
            }
        }
        let names = self.extended.as_ref().map(|it| it.initiators.names());
        for key in names.unwrap_or_default() {
            let extended = self.extended.as_mut();
            let Some(initiator) = extended.and_then(|it| it.initiators.get_mut(key)) else {
                continue;
            };
            let InitiatorStage::Connecting(connecting) = &initiator.stage else {
                continue;
            };
            let Some(outcome) = take_connected(connecting, &mut self.connector) else {
                continue;
            };
            found = true;
            let account = connecting.account;
            match outcome {
                Ok(pair) => {
                    initiator.stage = InitiatorStage::Ready(pair);
                    self.lanes_of(key)
                        .into_iter()
                        .for_each(|name| self.take_initiator(name));
                }
                Err(reason) => {
                    initiator.stage = InitiatorStage::Over;
                    self.queue.forget(account);
                    self.fail_initiator(key, &reason);
                }
            }
        }
        found
    }

    /// The lanes that go by an initiator, or wait for it.
    fn lanes_of(&self, initiator: u64) -> Vec<u64> {
        let uses = |lane: &Lane<P>| {
            let own = lane.extended.as_ref();
            own.is_some_and(|own| own.uses && own.initiator == initiator)
        };
        let mut names = self.lanes.names();
        names.retain(|&name| self.lanes.get(name).is_some_and(uses));
        names
    }

    /// An initiator carries nothing any more, and so does no lane by it.
    fn fail_initiator(&mut self, key: u64, reason: &str) {
        let extended = self.extended.as_mut();
        let Some(initiator) = extended.and_then(|it| it.initiators.get_mut(key)) else {
            return;
        };
        initiator.failed = true;
        for name in self.lanes_of(key) {
            self.lanes.fail(name, reason.to_owned());
        }
    }

    /// The pair of an initiator has failed, if it is one.
    pub(super) fn fail_pair(&mut self, number: u32, reason: &str) {
        let extended = self.extended.as_ref();
        if let Some(&key) = extended.and_then(|it| it.by_pair.get(&number)) {
            self.fail_initiator(key, reason);
        }
    }

    /// All initiators have failed.
    pub(super) fn fail_initiators(&mut self, reason: &str) {
        let names = self.extended.as_ref().map(|it| it.initiators.names());
        for key in names.unwrap_or_default() {
            self.fail_initiator(key, reason);
        }
    }

    /// A send of an initiator has ended: lanes that found no room in its queue look again.
    pub(super) fn room_came(&mut self, number: u32) {
        let Some(extended) = &self.extended else {
            return;
        };
        let Some(&key) = extended.by_pair.get(&number) else {
            return;
        };
        let Some(InitiatorStage::Ready(pair)) = extended
            .initiators
            .get(key)
            .map(|initiator| &initiator.stage)
        else {
            return;
        };
        if self.queue.take_wanted(pair.account()) {
            for name in self.lanes_of(key) {
                if let Some((lane, changed)) = self.lanes.with_changed(name) {
                    changed.add(name, lane);
                }
            }
        }
    }

    /// A message has come for a lane that is over.
    #[cold]
    pub(super) fn came_late(&mut self, lane: Option<u32>) {
        let late = self
            .extended
            .as_mut()
            .zip(lane)
            .is_some_and(|(extended, lane)| extended.late.take(lane));
        self.pool.end_promises(usize::from(late));
    }

    /// Ends the promises of lanes that were over long ago.
    pub(super) fn end_late(&mut self, now: Instant) {
        let ended = self.extended.as_mut().map_or(0, |it| it.late.end(now));
        self.pool.end_promises(ended);
    }

    /// A lane stops: it posts nothing more. What the device still reads of it is copied. Gives the pair of its
    /// initiator, if no lane uses that any more.
    pub(super) fn stop_extended(
        &mut self,
        name: u64,
        pair: Option<QueuePair<P, Ready>>,
    ) -> Option<QueuePair<P, Ready>> {
        let lane = self.lanes.get_mut(name)?;
        if let Some(pair) = pair {
            let number = lane.extended.as_ref().map_or(0, |own| own.number);
            let (sending, sends) = (&mut lane.sending, &mut self.sends);
            self.queue.look_under_way(pair.account(), |cookie, slot| {
                if Route::lane_of(cookie) == number && cookie & reads::READ == 0 {
                    sending.copy_posted(cookie as u32, sends, slot);
                }
            });
        }
        let own = lane.extended.as_mut()?;
        let (key, leads) = (own.initiator, own.leads);
        if !std::mem::replace(&mut own.uses, false) {
            return None;
        }
        let extended = self.extended.as_ref();
        let initiator = extended.and_then(|it| it.initiators.get(key));
        let waits = |it: &Initiator<P>| !matches!(it.stage, InitiatorStage::Ready(_));
        if leads && initiator.is_some_and(waits) {
            self.fail_initiator(key, "the lane that was to connect its initiator is over");
        }
        self.release_initiator(key)
    }

    /// A lane uses an initiator no more. The last one ends it, and gives its pair, if that is connected, to be ended.
    fn release_initiator(&mut self, key: u64) -> Option<QueuePair<P, Ready>> {
        let extended = self.extended.as_mut()?;
        let initiator = extended.initiators.get_mut(key)?;
        initiator.lanes = initiator.lanes.saturating_sub(1);
        if initiator.lanes > 0 {
            return None;
        }
        extended.by_pair.retain(|_, name| *name != key);
        match extended.initiators.remove(key)?.stage {
            InitiatorStage::Prepared(pair) => drop(self.queue.retire(pair)),
            InitiatorStage::Connecting(connecting) => self.connector.give_up(connecting),
            InitiatorStage::Ready(pair) => return Some(pair),
            InitiatorStage::Over => {}
        }
        None
    }

    /// A lane that was not offered uses an initiator no more.
    fn drop_initiator(&mut self, key: u64) {
        // A connected one has other lanes, so this is none.
        if let Some(pair) = self.release_initiator(key) {
            drop(self.queue.retire(pair));
        }
    }

    /// A lane is forgotten: its target is given up, and its promises end later.
    pub(super) fn close_extended(&mut self, own: ExtendedLane<P>, open: usize) {
        match own.target {
            Target::Connecting(connecting) => self.connector.give_up(connecting),
            Target::Held(pair) => drop(self.queue.retire(pair)),
            Target::None => {}
        }
        match &mut self.extended {
            // The peer may have sent something.
            Some(extended) if own.peer.is_some() && open > 0 => {
                let longest = 2 * self.timing.silence() + Duration::from_secs(1);
                extended
                    .late
                    .add(own.number, open, Instant::now() + longest);
            }
            _ => self.pool.end_promises(open),
        }
    }
}

/// What a thread has connected, if it is done.
fn take_connected<P: Provider>(
    connecting: &Connecting<P>,
    connector: &mut Connector<P>,
) -> Option<std::result::Result<QueuePair<P, Ready>, String>> {
    let outcome = match connecting.coming.try_recv() {
        Ok(Ok(pair)) => Ok(pair),
        Ok(Err(error)) => Err(error.to_string()),
        Err(TryRecvError::Empty) => return None,
        Err(TryRecvError::Disconnected) => Err("the thread that connects it ended".to_owned()),
    };
    connector.end_wait();
    Some(outcome)
}
