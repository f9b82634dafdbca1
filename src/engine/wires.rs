// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers on other nodes: connecting with them, looking at their wires by turns, and taking the wires down.
//!
//! A wire that was active lately is polled as a ring is. All others have no cost: the hub says which of them have
//! something, and is asked once in a while. A job of one node has no hub, and no wires to look at.

mod other_nodes;

pub(super) use other_nodes::OtherNodes;

use super::Engine;
use crate::endpoint::{
    Connector, Endpoint, EventSource, Home, Hub, Outcome, SharedLanes, Socket, SocketSettings,
};
use crate::error::{Error, Result};
use crate::peer::{Gone, PairSettings, Peer};
use crate::select::chunks::Chunks;
use crate::select::other_node;
use crate::wireup::{Card, Death, NetIdentity, Wireup, WireupError};
use onecopy_btl::link::{Link, not_permitted};
use onecopy_btl::{LayerId, Refusal};
use onecopy_btl::{lanes, registry};
use onecopy_obs::{Knobs, tracepoints};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rounds of progress between two looks at the clock, less one, in a job of several nodes. The clock says when the hub
/// is due, and a look at it costs as much as some polls of a ring. Chosen by magnitude: the cost is spread over eight
/// rounds.
pub(super) const ROUNDS: u32 = 7;
/// Rounds between two looks for cold buffers, less one. These are due once in a fraction of a second, so a look at the
/// clock in each round would be in vain. Chosen by magnitude.
pub(super) const ROUNDS_ONE_NODE: u32 = 63;
/// How often each descriptor of the hub is found, at most, when the wire-up reports that a rank is gone, which may have
/// connected before. Looking stops when it is connected or the hub has no event. The bound counts where other peers
/// keep connecting and sending. Chosen by magnitude: a connection takes three steps, each by an event of its own.
const TURNS: usize = 8;
/// The time between two polls of the hub while it has no events. A poll is a system call of about a microsecond, so a
/// wait spends a twentieth of its time on it at most.
const QUIET: Duration = Duration::from_micros(20);
/// How often lanes get the time. What they watch takes a second or more, whatever knobs say of other memory.
const LANES_PERIOD: Duration = Duration::from_secs(1);

/// A peer on another node that is gone.
pub(super) struct GonePeer {
    pub(super) rank: u32,
    pub(super) gone: Gone,
}

/// What a rank has of wires.
#[derive(Debug)]
pub(crate) struct Wires {
    hub: Hub,
    connector: Connector,
    /// When the hub was last asked.
    asked: Instant,
    lanes: LaneDevice,
    /// When lanes get the time again.
    lanes_due: Instant,
    /// The node of each rank.
    nodes: Arc<[u32]>,
}

/// What makes this rank's lanes.
#[derive(Debug)]
enum LaneDevice {
    /// It is opened when the first peer is connected with.
    Closed(lanes::Open),
    Open(SharedLanes),
    /// There is none, for this reason.
    Missing(Refusal),
}

impl Wires {
    /// Opens what ranks on other nodes connect with.
    pub(super) fn open(
        knobs: &Knobs,
        me: u32,
        net: &NetIdentity,
        home: &Home,
        lanes: Option<lanes::Open>,
    ) -> Result<Self> {
        let system = |what| {
            move |source| WireupError::System {
                call: "join",
                what,
                source,
            }
        };
        let hub = Hub::new(home.doorbell()).map_err(system("epoll_create"))?;
        let settings = SocketSettings {
            me,
            secret: net.secret,
            stream: knobs.stream(),
        };
        let connector = Connector::listen(net.address, settings, hub.set());
        let connector = connector.map_err(system(
            "listening for ranks on other nodes at this node's address",
        ))?;
        let lanes = if knobs.layers.allows(LayerId::LANE.name()) {
            LaneDevice::Closed(lanes.unwrap_or_else(registry::lanes_of_this_host))
        } else {
            LaneDevice::Missing(not_permitted())
        };
        Ok(Self {
            hub,
            connector,
            asked: Instant::now(),
            lanes,
            lanes_due: Instant::now() + LANES_PERIOD,
            nodes: Arc::from([]),
        })
    }

    /// What makes lanes, if this rank has it.
    fn lanes(
        &mut self,
        knobs: &Knobs,
        node_file: &mut dyn FnMut() -> std::result::Result<OwnedFd, String>,
    ) -> Option<&SharedLanes> {
        if let LaneDevice::Closed(open) = &self.lanes {
            let mut job = lanes::LaneJob {
                nodes: Arc::clone(&self.nodes),
                node_file,
            };
            self.lanes = match open.open(knobs, &mut job) {
                Ok(lanes) => {
                    let lanes = SharedLanes::new(lanes);
                    self.watch(&lanes);
                    LaneDevice::Open(lanes)
                }
                Err(refusal) => {
                    tracing::info!("no lanes: {refusal}");
                    LaneDevice::Missing(refusal)
                }
            };
        }
        match &self.lanes {
            LaneDevice::Open(lanes) => Some(lanes),
            LaneDevice::Closed(_) | LaneDevice::Missing(_) => None,
        }
    }

    /// Has the hub wake this rank for events of its lanes.
    fn watch(&self, lanes: &SharedLanes) {
        for descriptor in lanes.lock().descriptors() {
            if let Err(errno) = self.hub.watch(descriptor, EventSource::Device) {
                // The rank's sleep has a bound.
                tracing::debug!("epoll_ctl of a device: {errno}");
            }
        }
    }

    /// What makes lanes, once a peer was connected with.
    fn open_lanes(&self) -> Option<&SharedLanes> {
        match &self.lanes {
            LaneDevice::Open(lanes) => Some(lanes),
            LaneDevice::Closed(_) | LaneDevice::Missing(_) => None,
        }
    }

    /// Where this rank listens.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.connector.address().ok()
    }

    /// Sets the nodes of the ranks, and the addresses at which those on other nodes than `me` listen.
    pub(super) fn set_addresses(&mut self, cards: &[Card], me: usize, nodes: &[u32]) {
        let shares_node = |rank: u32| nodes[rank as usize] == nodes[me];
        self.nodes = nodes.into();
        let listens = cards.iter().enumerate();
        self.connector.set_addresses(
            listens.map(|(rank, card)| card.listens.filter(|_| !shares_node(rank as u32))),
        );
    }
}

/// A file that all ranks of this node have: the segment of the lowest of them.
fn node_file(
    wireup: &mut dyn Wireup,
    nodes: &[u32],
    me: u32,
) -> std::result::Result<OwnedFd, String> {
    let own = nodes.get(me as usize);
    let lowest = nodes.iter().position(|node| Some(node) == own);
    let found = wireup.introduce(lowest.unwrap_or(me as usize));
    let introduction = found.map_err(|error| error.to_string())?;
    Ok(introduction.memory)
}

impl Engine {
    /// Makes the peer of a rank on another node, and begins to connect with it.
    pub(super) fn connect_apart(&mut self, rank: u32) -> Result<()> {
        let wires = match &mut self.other_nodes {
            OtherNodes::Wires(wires) => wires,
            OtherNodes::Unreachable(reason) => {
                return Err(Error::Unreachable {
                    rank: rank as usize,
                    reason: reason.to_string(),
                });
            }
        };
        let Some(address) = wires.connector.address_of(rank) else {
            return Err(Error::Unreachable {
                rank: rank as usize,
                reason: format!(
                    "it does not listen for ranks on other nodes; is {} switched off there by ONECOPY_LAYERS?",
                    LayerId::WIRE
                ),
            });
        };
        let settings = self.core.knobs.stream();
        let endpoint = Endpoint::Socket(Box::new(Socket::new(address, settings)));
        let link = Link::refused(rank, &other_node());
        let pair = PairSettings {
            chunks: Chunks::of_stream(&self.core.knobs),
            ..self.peer_settings()
        };
        let peer = Peer::new(rank, endpoint, link, pair);
        self.peers[rank as usize] = Some(Box::new(peer));
        if let Some(wires) = self.other_nodes.wires_mut() {
            wires.connector.connect(rank, Instant::now());
        }
        self.take_outcomes();
        Ok(())
    }

    /// Where a rank on another node is reached, or why it is not; none: that is not known yet.
    pub(crate) fn reached(&mut self, rank: u32) -> Option<Result<SocketAddr>> {
        let failure = self.lives.fatal().cloned();
        if let Some(error) = failure.or_else(|| self.lives.error_of(rank)) {
            return Some(Err(error));
        }
        let address = self.other_nodes.wires()?.connector.address_of(rank)?;
        let wire = self.peers[rank as usize].as_mut()?.endpoint.wire()?;
        wire.is_attached().then_some(Ok(address))
    }

    /// What keeps a lane from carrying what comes from a rank on another node. None: one does, or nothing is known yet.
    pub(crate) fn no_lane(&mut self, rank: u32) -> Option<Refusal> {
        let endpoint = &mut self.peers[rank as usize].as_mut()?.endpoint;
        if endpoint.carrier() == LayerId::LANE {
            return None;
        }
        if let LaneDevice::Missing(refusal) = &self.other_nodes.wires()?.lanes {
            return Some(refusal.clone());
        }
        let reason = endpoint.wire()?.no_lane()?;
        let remedy = format!("{} carries the messages until a lane can", LayerId::WIRE);
        Some(Refusal::new(reason, remedy))
    }

    /// The layer that carries what comes from a rank on another node, once it is known whether that is a lane.
    pub(crate) fn settled_carrier(&mut self, rank: u32) -> Option<LayerId> {
        let carrier = self.peers[rank as usize].as_ref()?.endpoint.carrier();
        (carrier != LayerId::WIRE || self.no_lane(rank).is_some()).then_some(carrier)
    }

    /// By which ports of devices messages to a rank on another node go, that of the stream first.
    pub(crate) fn rails(&mut self, rank: u32) -> Vec<String> {
        let peer = self.peers[rank as usize].as_mut();
        let wire = peer.and_then(|peer| peer.endpoint.wire());
        wire.map_or_else(Vec::new, |wire| wire.rails())
    }

    /// Asks the hub, if that is due.
    #[inline]
    pub(super) fn look_at_wires(&mut self, now: Instant) -> bool {
        let Some(wires) = self.other_nodes.wires() else {
            return false;
        };
        let asks = wires.connector.is_busy() || now >= wires.asked + QUIET;
        let found = self.look_at_lanes();
        found | (asks && self.ask_hub(now))
    }

    /// Polls those again whose lanes have something.
    #[inline]
    fn look_at_lanes(&mut self) -> bool {
        let Self {
            other_nodes,
            peers,
            polling,
            ..
        } = self;
        let Some(lanes) = other_nodes.wires().and_then(Wires::open_lanes) else {
            return false;
        };
        lanes.lock().poll();
        let mut found = false;
        loop {
            // Not held while the peer's own lane is told to be polled.
            let changed = lanes.lock().next_changed();
            let Some(rank) = changed else {
                return found;
            };
            if let Some(Some(peer)) = peers.get_mut(rank as usize) {
                found |= polling.poll_again(peer);
            }
        }
    }

    /// Whether a lane has changed that was not looked at.
    pub(super) fn has_changed_lanes(&self) -> bool {
        let lanes = self.other_nodes.wires().and_then(Wires::open_lanes);
        lanes.is_some_and(|lanes| lanes.lock().has_changed())
    }

    /// Asks the hub what is ready, and moves connections on that are being made.
    #[cold]
    pub(super) fn ask_hub(&mut self, now: Instant) -> bool {
        let Some(wires) = self.other_nodes.wires_mut() else {
            return false;
        };
        wires.asked = now;
        let mut found = false;
        for rank in wires.hub.take_noted() {
            if let Some(Some(peer)) = self.peers.get_mut(rank as usize) {
                found |= self.polling.poll_again(peer);
            }
        }
        let mut device = false;
        for source in wires.hub.look() {
            found = true;
            match source {
                EventSource::Pair(rank) => {
                    if let Some(Some(peer)) = self.peers.get_mut(rank as usize) {
                        if !peer.polled {
                            self.polling.poll(peer);
                        } else if let Some(wire) = peer.endpoint.wire() {
                            wire.is_found_ready();
                        }
                    }
                }
                EventSource::Device => device = true,
                other => wires.connector.ready(other, now),
            }
        }
        if device && let Some(lanes) = wires.open_lanes() {
            lanes.lock().hear_device();
        }
        wires.connector.tick(now);
        self.core.counters.wire_refused = wires.connector.refused;
        if device {
            self.look_at_lanes();
        }
        found | self.take_outcomes()
    }

    /// Takes connections that are there, and gives up ranks with which there can be none.
    fn take_outcomes(&mut self) -> bool {
        let mut found = false;
        while let Some(outcome) = self
            .other_nodes
            .wires_mut()
            .and_then(|wires| wires.connector.outcome())
        {
            found = true;
            match outcome {
                Outcome::Connected(rank, fd) => self.attach(rank, fd),
                Outcome::Failed(rank, reason) => {
                    self.core.agenda.fail(rank, Gone::Unreachable(reason));
                }
            }
        }
        found
    }

    fn attach(&mut self, rank: u32, fd: OwnedFd) {
        if self.peers[rank as usize].is_none() && self.connect_apart(rank).is_err() {
            return;
        }
        let (Some(wires), Some(peer)) =
            (self.other_nodes.wires_mut(), &mut self.peers[rank as usize])
        else {
            return;
        };
        let Some(wire) = peer.endpoint.wire().filter(|_| !peer.life.is_gone()) else {
            return;
        };
        if let Err(errno) = wire.attach(fd, wires.hub.set(), rank) {
            let reason = format!("epoll_ctl of its connection: {errno}");
            return self.core.agenda.fail(rank, Gone::Unreachable(reason));
        }
        self.core.counters.wire_connects += 1;
        tracepoints::wire_connected(rank as usize, LayerId::WIRE.name());
        let (nodes, me) = (&self.nodes, self.core.me);
        let mut node_file = || node_file(&mut *self.wireup, nodes, me);
        if let Some(lanes) = wires.lanes(&self.core.knobs, &mut node_file) {
            wire.attach_lanes(lanes, rank);
        }
        self.polling.poll(peer);
    }

    /// Arms what wakes this rank for a wire. `false`: nothing would.
    pub(super) fn arm_wires(&mut self) -> bool {
        let Some(wires) = self.other_nodes.wires_mut() else {
            return true;
        };
        // Armed before the last look at what has completed.
        let lanes = wires.open_lanes().is_none_or(|lanes| lanes.lock().arm());
        lanes && wires.hub.arm()
    }

    /// What a look at the peers' lives does for wires: what is due by the clock, and streams that were cut. Gives the
    /// ranks that are gone now.
    pub(super) fn check_wires(&mut self) -> Vec<GonePeer> {
        let mut over = Vec::new();
        if self.other_nodes.wires().is_none() {
            return over;
        }
        let now = Instant::now();
        self.ask_hub(now);
        let grace = 2 * self.waits.policy.period;
        for peer in self.peers.iter_mut().flatten() {
            let Some(wire) = peer.endpoint.wire() else {
                continue;
            };
            if peer.life.is_gone() {
                wire.poll_give_up();
                continue;
            }
            wire.tick(now);
            let is_drained = wire.input_is_complete() && !wire.has_unread();
            if wire.ended_without_farewell() {
                peer.life.end(now);
            }
            let failure = wire.network_failure();
            match &peer.life.going {
                // What it had sent is here, or will not come any more.
                Some((gone, since))
                    if is_drained
                        || !wire.is_attached()
                        || *gone != Gone::Left && now > *since + grace =>
                {
                    over.push(GonePeer {
                        rank: peer.rank,
                        gone: gone.clone(),
                    });
                }
                Some(_) => {}
                None if peer.life.ended_for(grace, now) => {
                    let gone = failure.map_or(Gone::Died(Death::Unknown), Gone::Unreachable);
                    over.push(GonePeer {
                        rank: peer.rank,
                        gone,
                    });
                }
                None => {}
            }
        }
        over
    }

    /// Counts what came by wires.
    pub(crate) fn count_wires(&mut self) {
        let counters = &mut self.core.counters;
        for peer in self.peers.iter_mut().flatten() {
            if let Some(wire) = peer.endpoint.wire() {
                LayerId::WIRE.count(counters, wire.take_read());
                let changes = wire.take_changes();
                counters.lane_connects += changes.taken_over;
                counters.lane_demotions += changes.given_back;
            }
        }
        if let Some(lanes) = self.other_nodes.wires().and_then(Wires::open_lanes) {
            let figures = lanes.lock().figures();
            let before = LayerId::LANE.bytes(counters);
            LayerId::LANE.count(counters, figures.bytes - before);
            counters.lane_pinned = figures.pinned;
            counters.lane_resends = figures.retransmitted;
            counters.lane_foreign = figures.foreign;
            counters.lane_evictions = figures.displaced;
            counters.lane_striped = figures.striped;
            counters.lane_rails_lost = figures.rails_lost;
            counters.lane_stripes_again = figures.stripes_again;
        }
    }

    /// Tells lanes the time, if they have not heard it for a while. They give back what is not needed, and try again
    /// what was lost.
    pub(super) fn age_lanes(&mut self, now: Instant) {
        let Some(wires) = self
            .other_nodes
            .wires_mut()
            .filter(|wires| wires.lanes_due <= now)
        else {
            return;
        };
        wires.lanes_due = now + LANES_PERIOD;
        if let Some(lanes) = wires.open_lanes() {
            lanes.lock().age(now);
        }
    }

    /// The wire-up has reported that these ranks are gone. They may have connected, sent, and left since this rank last
    /// looked. A connection that is there is read anyway. Once for all of them: many ranks may leave at a time.
    pub(super) fn look_for_last_words(&mut self, ranks: &[u32]) {
        for _ in 0..self.looks_for_last_words() {
            let all = ranks.iter().all(|&rank| self.has_connection(rank));
            if all || !self.ask_hub(Instant::now()) {
                break;
            }
        }
    }

    /// The wire-up has reported that `rank` is gone, and [`Self::look_for_last_words`] has looked. Says whether nothing
    /// of it is left to receive. `false`: bytes that it had sent are still arriving, and [`Self::check_wires`] reports
    /// the end of its stream.
    pub(super) fn is_gone_now(&mut self, rank: u32, gone: &Gone) -> bool {
        if let Some(peer) = &mut self.peers[rank as usize]
            && !peer.life.is_gone()
            && let Some(wire) = peer.endpoint.wire()
            && wire.is_attached()
            && (!wire.input_is_complete() || wire.has_unread())
        {
            peer.life.goes(gone.clone(), Instant::now());
            if !peer.polled {
                self.polling.poll(peer);
            }
            return false;
        }
        true
    }

    /// Polls of the hub in which a rank that has connected is found, whatever else is ready.
    fn looks_for_last_words(&self) -> usize {
        let Some(wires) = self.other_nodes.wires() else {
            return 0;
        };
        TURNS * Hub::looks_to_find(self.peers.len() + wires.connector.descriptors())
    }

    fn has_connection(&mut self, rank: u32) -> bool {
        let peer = self.peers[rank as usize].as_mut();
        let wire = peer.and_then(|peer| peer.endpoint.wire());
        wire.is_some_and(|wire| wire.is_attached())
    }

    /// Tells a rank that is gone nothing more, and takes nothing of it.
    pub(super) fn forget_wire(&mut self, rank: u32) {
        if let Some(wires) = self.other_nodes.wires_mut() {
            wires.connector.give_up(rank);
        }
    }

    /// Tells all ranks on other nodes that nothing more comes.
    pub(crate) fn say_farewell(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            if !peer.life.is_gone()
                && let Some(wire) = peer.endpoint.wire()
            {
                wire.say_farewell();
            }
        }
    }

    /// Whether all that was sent to ranks on other nodes is with them: no end of this one can destroy it.
    pub(crate) fn is_delivered(&mut self) -> bool {
        let mut peers = self.peers.iter_mut().flatten();
        peers.all(|peer| match (peer.endpoint.wire(), &peer.life.gone) {
            (None, _) => true,
            (Some(wire), None) => wire.is_delivered(),
            (Some(wire), Some(_)) => wire.poll_give_up(),
        })
    }

    /// Whether all ranks on other nodes have announced that nothing more comes.
    pub(crate) fn has_heard_farewells(&mut self) -> bool {
        let mut peers = self.peers.iter_mut().flatten();
        peers.all(|peer| {
            let talks = |wire: &mut Socket| wire.is_attached() && !wire.input_is_complete();
            peer.life.is_gone() || !peer.endpoint.wire().is_some_and(talks)
        })
    }
}

#[cfg(test)]
mod tests;
