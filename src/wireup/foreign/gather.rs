// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the ranks of a job meet by its table, on one node or on several.
//!
//! 1. Each puts its place, and waits for the others.
//! 2. Rank 0 reads all places, decides which ranks are on one node, and puts a [`Digest`] of what all need to know.
//! 3. In a job of one node its door is in there. In a job of several, the host of each node opens one and links itself
//!    to rank 0's. Each puts where its door is and what its node's address is, and once more all wait.
//!
//! Whoever fails puts its reason in place of the word that others look for, so that they fail with it and do not wait.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use onecopy_obs::Knobs;

use super::{CALL, Foreign, Inner, Rest, unusable};
use crate::proof::fresh;
use crate::wireup::alone::Alone;
use crate::wireup::digest::{self, Between, Digest, Way};
use crate::wireup::host::{FIRST, Host, Plan};
use crate::wireup::launched::Launched;
use crate::wireup::meet::{Address, Door, DoorKind, Namespaces};
use crate::wireup::nodes::Nodes;
use crate::wireup::port::Port;
use crate::wireup::table::Table;
use crate::wireup::{Net, WireupError, address, link, links};

/// Where rank 0 leaves the digest.
const DIGEST: &str = "onecopy-job";

/// What rank 0 has opened for the others.
enum Opened {
    Door(Door),
    Port(Port),
}

/// What a rank knows when it has read the digest.
struct Meeting {
    table: Box<dyn Table>,
    rank: usize,
    size: usize,
    launcher: &'static str,
    limit: Duration,
    /// The secret of doors.
    secret: [u8; 16],
}

/// Meets the others by what they leave in the job's table.
pub(super) fn by_table(mut table: Box<dyn Table>, knobs: &Knobs) -> Result<Foreign, WireupError> {
    let (rank, size, launcher) = (table.rank(), table.size(), table.launcher());
    if size == 1 {
        let inner = Inner::Alone(Alone::new());
        return Ok(Foreign::new(inner, Rest::new(Some(table), None)));
    }
    let here = Namespaces::of_this_process(knobs.node.as_deref());
    table.put(CALL, &place_of(rank), &here.encode())?;
    table.barrier(CALL)?;
    let mut prepared = None;
    if rank == FIRST {
        let (word, outcome) = match prepare(&mut *table, knobs, &here) {
            Ok((digest, opened)) => (digest.encode(), Ok((digest, opened))),
            Err(reason) => (digest::refusal(&reason), Err(reason)),
        };
        digest::put(&mut *table, CALL, DIGEST, &word)?;
        prepared = Some(outcome);
    }
    table.barrier(CALL)?;
    let (digest, opened) = match prepared {
        Some(outcome) => {
            let (digest, opened) = outcome.map_err(|reason| unusable(launcher, reason))?;
            (digest, Some(opened))
        }
        None => {
            let word = digest::get(&mut *table, CALL, FIRST, DIGEST)?;
            let digest = Digest::decode(&word, size);
            (digest.ok_or_else(|| refused(launcher, &word))?, None)
        }
    };
    let meeting = Meeting {
        table,
        rank,
        size,
        launcher,
        limit: knobs.join_timeout,
        secret: digest.secret,
    };
    match (digest.way, opened) {
        (Way::Door(_), Some(Opened::Door(door))) => meeting.host_of_all(door),
        (Way::Door(address), _) => {
            let inner = meeting.at_door(&address, FIRST)?;
            Ok(Foreign::new(
                Inner::Launched(inner),
                Rest::new(Some(meeting.table), None),
            ))
        }
        (Way::Nodes(between), opened) => {
            let port = match opened {
                Some(Opened::Port(port)) => Some(port),
                _ => None,
            };
            meeting.between_nodes(Arc::new(digest.nodes), &between, port, knobs)
        }
    }
}

fn place_of(rank: usize) -> String {
    format!("onecopy-place-{rank}")
}

/// Where the host of a node leaves the way to its door, and the node's address.
fn node_key(node: u32) -> String {
    format!("onecopy-node-{node}")
}

/// Somebody left a word that does not lead on.
fn refused(launcher: &str, word: &str) -> WireupError {
    let reason = digest::reason(word).unwrap_or_else(|| {
        format!(
            "a rank left {:?} in the table, which says nothing; are all ranks of the same onecopy release?",
            word.chars().take(200).collect::<String>()
        )
    });
    unusable(launcher, reason)
}

/// What rank 0 does for all: looks where they are, and opens what they come to. An error in words.
fn prepare(
    table: &mut dyn Table,
    knobs: &Knobs,
    here: &Namespaces,
) -> Result<(Digest, Opened), String> {
    let mut places = Vec::with_capacity(table.size());
    for rank in 0..table.size() {
        let word = table
            .get(CALL, rank, &place_of(rank))
            .map_err(|error| error.to_string())?;
        let place = Namespaces::decode(&word);
        places.push(place.ok_or_else(|| {
            format!("rank {rank} is not of this onecopy release (its place is {word:?})")
        })?);
    }
    let nodes = Namespaces::nodes(&places);
    let random = |error| format!("/dev/urandom: {error}");
    let secret: [u8; 16] = fresh().map_err(random)?;
    if nodes.count() == 1 {
        let (door, address) = open(here.door_kind(&places)?).map_err(|error| no_door(&error))?;
        let way = Way::Door(address);
        return Ok((Digest { nodes, secret, way }, Opened::Door(door)));
    }
    let mut doors = Vec::with_capacity(nodes.count());
    for host in (0..nodes.count()).filter_map(|node| nodes.host(u32::try_from(node).ok()?)) {
        let node = nodes.of(host).unwrap_or(0);
        let others: Vec<Namespaces> = nodes.ranks(node).map(|rank| places[rank].clone()).collect();
        doors.push(places[host].door_kind(&others)?);
    }
    let together = here.shares_network(&places);
    let addresses = address::candidates(knobs.net_address.as_ref(), together)
        .map_err(|reason| format!("the ranks run on several nodes. Rank 0: {reason}"))?;
    let between_secret = fresh().map_err(random)?;
    let port = Port::open(&addresses, 0, between_secret, 2 * nodes.count() + 16)?;
    let between = Between {
        doors,
        secret: between_secret,
        timeout: knobs.node_timeout,
        places: port.places(),
    };
    let way = Way::Nodes(between);
    Ok((Digest { nodes, secret, way }, Opened::Port(port)))
}

fn no_door(error: &std::io::Error) -> String {
    format!("a rank cannot listen for the others of its node: {error}")
}

/// A door for the ranks of this node, and how they find it.
fn open(kind: DoorKind) -> std::io::Result<(Door, Address)> {
    let name: [u8; 16] = fresh()?;
    let name = format!("onecopy-{:032x}", u128::from_be_bytes(name));
    match kind {
        DoorKind::Abstract => {
            let door = Door::at_abstract(&name)?;
            Ok((door, Address::Abstract(name)))
        }
        DoorKind::Process => Door::at_process(&name),
        DoorKind::Path => {
            let door = Door::at_path(&name)?;
            let address = door.address().ok_or(std::io::ErrorKind::NotFound)?;
            Ok((door, address))
        }
    }
}

/// What a host has, once its node is linked to the others.
struct Linked {
    host: Host,
    socket: OwnedFd,
    door: Address,
    address: IpAddr,
}

impl Meeting {
    fn host_of_all(self, door: Door) -> Result<Foreign, WireupError> {
        let (host, socket) = Host::start(self.plan(door, None))?;
        let inner = Launched::new(socket, self.rank, self.size)?;
        Ok(Foreign::new(
            Inner::Launched(inner),
            Rest::new(Some(self.table), Some(host)),
        ))
    }

    fn plan(&self, door: Door, links: Option<links::Plan>) -> Plan {
        Plan {
            rank: self.rank,
            size: self.size,
            secret: self.secret,
            join_timeout: self.limit,
            doors: vec![door],
            late: None,
            links,
        }
    }

    fn at_door(&self, address: &Address, host: usize) -> Result<Launched, WireupError> {
        let socket = address.connect_within(self.limit).map_err(|error| {
            let place = address.encode();
            unusable(
                self.launcher,
                format!("cannot reach rank {host} at {place}: {error}"),
            )
        })?;
        let (of, at) = ((self.rank, self.size), (host, self.secret));
        Launched::at_host(socket, of, at, self.limit)
    }

    fn between_nodes(
        mut self,
        nodes: Arc<Nodes>,
        between: &Between,
        port: Option<Port>,
        knobs: &Knobs,
    ) -> Result<Foreign, WireupError> {
        let node = nodes.of(self.rank).unwrap_or(0);
        let host = nodes.host(node).unwrap_or(FIRST);
        let mut linked = None;
        if self.rank == host {
            let outcome = self.link(&nodes, between, port, knobs);
            let word = match &outcome {
                Ok(linked) => format!("{}|{}", linked.address, linked.door.encode()),
                Err(reason) => digest::refusal(reason),
            };
            digest::put(&mut *self.table, CALL, &node_key(node), &word)?;
            linked = Some(outcome);
        }
        self.table.barrier(CALL)?;
        let linked = linked.transpose();
        let linked = linked.map_err(|reason| unusable(self.launcher, reason))?;
        if self.rank != FIRST {
            // If rank 0's host has given up, nobody else's is of use.
            self.node_word(&nodes, 0)?;
        }
        let (inner, host, address) = match linked {
            Some(linked) => {
                let inner = Launched::new(linked.socket, self.rank, self.size)?;
                (inner, Some(linked.host), linked.address)
            }
            None => {
                let (address, door) = self.node_word(&nodes, node)?;
                let mut inner = self.at_door(&door, host)?;
                inner.hears_by_host_of(nodes.beyond(node).collect());
                (inner, None, address)
            }
        };
        let net = Net {
            address,
            secret: between.secret,
        };
        let rest = Rest::new(Some(self.table), host);
        Ok(Foreign::on_node(Inner::Launched(inner), rest, nodes, net))
    }

    /// What the host of a node has left: the node's address, and its door.
    fn node_word(&mut self, nodes: &Nodes, node: u32) -> Result<(IpAddr, Address), WireupError> {
        let host = nodes.host(node).unwrap_or(FIRST);
        let word = digest::get(&mut *self.table, CALL, host, &node_key(node))?;
        let parts = word
            .split_once('|')
            .and_then(|(address, door)| Some((address.parse().ok()?, Address::decode(door)?)));
        parts.ok_or_else(|| refused(self.launcher, &word))
    }

    /// Opens the door of this node and joins the node to the others. An error in words.
    fn link(
        &self,
        nodes: &Arc<Nodes>,
        between: &Between,
        port: Option<Port>,
        knobs: &Knobs,
    ) -> Result<Linked, String> {
        let node = nodes.of(self.rank).unwrap_or(0);
        let kind = between
            .doors
            .get(node as usize)
            .copied()
            .unwrap_or(DoorKind::Path);
        let (door, place) = open(kind).map_err(|error| no_door(&error))?;
        // The other half is for what comes after.
        let limit = self.limit / 2;
        let plan = |first| links::Plan {
            nodes: Arc::clone(nodes),
            own: node,
            timeout: between.timeout,
            first,
        };
        let start =
            |plan| Host::start(self.plan(door, Some(plan))).map_err(|error| error.to_string());
        let (host, socket, address) = match port {
            Some(port) => {
                let (told, up) = channel();
                let (host, socket) = start(plan(links::First::Port(port, told)))?;
                let address =
                    all_linked(&up, limit).ok_or_else(|| self.unlinked(between, limit))?;
                (host, socket, address)
            }
            None => {
                let (stream, address) = self.call(between, limit, knobs)?;
                let (host, socket) = start(plan(links::First::Called(stream)))?;
                (host, socket, address)
            }
        };
        Ok(Linked {
            host,
            socket,
            door: place,
            address,
        })
    }

    fn call(
        &self,
        between: &Between,
        limit: Duration,
        knobs: &Knobs,
    ) -> Result<(std::net::TcpStream, IpAddr), String> {
        let rank = self.rank;
        let from = match &knobs.net_address {
            Some(wanted) => address::candidates(Some(wanted), false)
                .map_err(|reason| format!("rank {rank}: {reason}"))?,
            None => Vec::new(),
        };
        let number = u32::try_from(rank).unwrap_or(u32::MAX);
        let called = link::call(&between.places, &from, (number, 0), between.secret, limit);
        called.map_err(|reasons| {
            format!(
                "rank {rank}, on another node than rank 0, cannot reach rank 0's: {reasons}. Name the network that the nodes share by {}, and see whether a firewall is between them",
                address::KNOB
            )
        })
    }

    fn unlinked(&self, between: &Between, limit: Duration) -> String {
        let places: Vec<String> = between.places.iter().map(ToString::to_string).collect();
        format!(
            "not all nodes have reached rank 0's within {} s, which waits for them at {}. Name the network that the nodes share by {}, see whether a firewall is between them, and raise ONECOPY_JOIN_TIMEOUT if ranks start slowly",
            limit.as_secs_f32(),
            places.join(", "),
            address::KNOB
        )
    }
}

/// The address to which most links came; none if not all came in time.
fn all_linked(up: &Receiver<Vec<IpAddr>>, limit: Duration) -> Option<IpAddr> {
    let came_to = up.recv_timeout(limit).ok()?;
    let count = |address: &IpAddr| came_to.iter().filter(|other| *other == address).count();
    came_to.iter().max_by_key(|address| count(address)).copied()
}

#[cfg(test)]
mod tests;
