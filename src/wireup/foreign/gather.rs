// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the ranks of a job meet by its table, on one node or on several.
//!
//! 1. Each puts its place, and waits for the others.
//! 2. Rank 0 reads all places, decides which ranks are on one node, and puts a [`Digest`] of what all need to know.
//! 3. In a job of one node its listener is in there. In a job of several, the host of each node opens one and joins
//!    itself to rank 0's. Each puts where its listener is and what its node's address is, and once more all wait.
//!
//! A rank that fails puts its reason in place of the word that others look for, so they fail with it and do not wait.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use onecopy_obs::Knobs;

use super::{CALL, EmergencyParts, Foreign, Inner, unusable};
use crate::proof::fresh;
use crate::wireup::acceptor::Acceptor;
use crate::wireup::digest::{self, Digest, JoinAt, NodesDigest};
use crate::wireup::host::{Config, FIRST, Host, StartedHost};
use crate::wireup::launched::Launched;
use crate::wireup::meet::{Address, Listener, ListenerKind, Namespaces, OpenListener};
use crate::wireup::nodes::Nodes;
use crate::wireup::singleton::Singleton;
use crate::wireup::table::Table;
use crate::wireup::{NetIdentity, WireupError, address, oob};

/// Where rank 0 leaves the digest.
const DIGEST: &str = "onecopy-job";

/// What rank 0 has opened for the others.
enum OpenSocket {
    Listener(Listener),
    Acceptor(Acceptor),
}

/// What a rank knows when it has read the digest.
struct Meeting {
    table: Box<dyn Table>,
    rank: usize,
    size: usize,
    launcher: &'static str,
    limit: Duration,
    /// The secret of listeners.
    secret: [u8; 16],
}

/// Meets the others by what they leave in the job's table.
pub(super) fn by_table(mut table: Box<dyn Table>, knobs: &Knobs) -> Result<Foreign, WireupError> {
    let (rank, size, launcher) = (table.rank(), table.size(), table.launcher());
    if size == 1 {
        let inner = Inner::Singleton(Singleton::new());
        return Ok(Foreign::new(inner, EmergencyParts::new(Some(table), None)));
    }
    let here = Namespaces::of_this_process(knobs.node.as_deref());
    table.put(CALL, &place_of(rank), &here.encode())?;
    table.barrier(CALL)?;
    let mut prepared = None;
    if rank == FIRST {
        let outcome = prepare(&mut *table, knobs, &here);
        let word = match &outcome {
            Ok(prepared) => prepared.digest.encode(),
            Err(reason) => digest::refusal(reason),
        };
        digest::put(&mut *table, CALL, DIGEST, &word)?;
        prepared = Some(outcome);
    }
    table.barrier(CALL)?;
    let (digest, opened) = match prepared {
        Some(outcome) => {
            let prepared = outcome.map_err(|reason| unusable(launcher, reason))?;
            (prepared.digest, Some(prepared.socket))
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
    match (digest.join_at, opened) {
        (JoinAt::Listener(_), Some(OpenSocket::Listener(listener))) => {
            meeting.host_of_all(listener)
        }
        (JoinAt::Listener(address), _) => {
            let inner = meeting.at_listener(&address, FIRST)?;
            Ok(Foreign::new(
                Inner::Launched(inner),
                EmergencyParts::new(Some(meeting.table), None),
            ))
        }
        (JoinAt::Nodes(between), opened) => {
            let acceptor = match opened {
                Some(OpenSocket::Acceptor(acceptor)) => Some(acceptor),
                _ => None,
            };
            meeting.between_nodes(Arc::new(digest.nodes), &between, acceptor, knobs)
        }
    }
}

fn place_of(rank: usize) -> String {
    format!("onecopy-place-{rank}")
}

/// Where the host of a node leaves the address of its listener, and the node's address.
fn node_key(node: u32) -> String {
    format!("onecopy-node-{node}")
}

/// A rank left a word that does not lead on.
fn refused(launcher: &str, word: &str) -> WireupError {
    let reason = digest::reason(word).unwrap_or_else(|| {
        format!(
            "a rank left {:?} in the table, which says nothing; are all ranks of the same onecopy release?",
            word.chars().take(200).collect::<String>()
        )
    });
    unusable(launcher, reason)
}

/// What rank 0 has prepared for all.
struct Prepared {
    digest: Digest,
    /// Where they come.
    socket: OpenSocket,
}

/// What rank 0 does for all: looks where they are, and opens what they come to. An error in words.
fn prepare(table: &mut dyn Table, knobs: &Knobs, here: &Namespaces) -> Result<Prepared, String> {
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
        let kind = here.listener_kind(&places)?;
        let OpenListener { listener, address } = open(kind).map_err(|error| no_listener(&error))?;
        return Ok(Prepared {
            digest: Digest {
                nodes,
                secret,
                join_at: JoinAt::Listener(address),
            },
            socket: OpenSocket::Listener(listener),
        });
    }
    let mut listeners = Vec::with_capacity(nodes.count());
    for host in (0..nodes.count()).filter_map(|node| nodes.host(u32::try_from(node).ok()?)) {
        let node = nodes.node(host).unwrap_or(0);
        let others: Vec<Namespaces> = nodes.ranks(node).map(|rank| places[rank].clone()).collect();
        listeners.push(places[host].listener_kind(&others)?);
    }
    let together = here.shares_network(&places);
    let addresses = address::candidates(knobs.net_address.as_ref(), together)
        .map_err(|reason| format!("the ranks run on several nodes. Rank 0: {reason}"))?;
    let between_secret = fresh().map_err(random)?;
    let acceptor = Acceptor::open(&addresses, 0, between_secret, 2 * nodes.count() + 16)?;
    let between = NodesDigest {
        listeners,
        secret: between_secret,
        timeout: knobs.node_timeout,
        places: acceptor.places(),
    };
    Ok(Prepared {
        digest: Digest {
            nodes,
            secret,
            join_at: JoinAt::Nodes(between),
        },
        socket: OpenSocket::Acceptor(acceptor),
    })
}

fn no_listener(error: &std::io::Error) -> String {
    format!("a rank cannot listen for the others of its node: {error}")
}

/// A listener for the ranks of this node.
fn open(kind: ListenerKind) -> std::io::Result<OpenListener> {
    let name: [u8; 16] = fresh()?;
    let name = format!("onecopy-{:032x}", u128::from_be_bytes(name));
    match kind {
        ListenerKind::Abstract => {
            let listener = Listener::at_abstract(&name)?;
            let address = Address::Abstract(name);
            Ok(OpenListener { listener, address })
        }
        ListenerKind::Process => Listener::at_process(&name),
        ListenerKind::Path => {
            let listener = Listener::at_path(&name)?;
            let address = listener.address().ok_or(std::io::ErrorKind::NotFound)?;
            Ok(OpenListener { listener, address })
        }
    }
}

/// What a host has, once its node is joined to the others.
struct JoinedHost {
    started: StartedHost,
    word: NodeWord,
}

/// How others reach a node and its host.
struct NodeWord {
    /// The node's.
    address: IpAddr,
    /// The host's, for the ranks of the node.
    listener: Address,
}

impl NodeWord {
    fn encode(&self) -> String {
        format!("{}|{}", self.address, self.listener.encode())
    }

    fn decode(word: &str) -> Option<Self> {
        let (address, listener) = word.split_once('|')?;
        Some(Self {
            address: address.parse().ok()?,
            listener: Address::decode(listener)?,
        })
    }
}

impl Meeting {
    fn host_of_all(self, listener: Listener) -> Result<Foreign, WireupError> {
        let StartedHost { host, socket } = Host::start(self.config(listener, None))?;
        let inner = Launched::new(socket, self.rank, self.size)?;
        Ok(Foreign::new(
            Inner::Launched(inner),
            EmergencyParts::new(Some(self.table), Some(host)),
        ))
    }

    fn config(&self, listener: Listener, oob: Option<oob::Config>) -> Config {
        Config {
            rank: self.rank,
            size: self.size,
            secret: self.secret,
            join_timeout: self.limit,
            listeners: vec![listener],
            late: None,
            oob,
        }
    }

    fn at_listener(&self, address: &Address, host: usize) -> Result<Launched, WireupError> {
        let socket = address.connect_within(self.limit).map_err(|error| {
            let place = address.encode();
            unusable(
                self.launcher,
                format!("cannot reach rank {host} at {place}: {error}"),
            )
        })?;
        Launched::at_host(socket, self.rank, self.size, host, self.secret, self.limit)
    }

    fn between_nodes(
        mut self,
        nodes: Arc<Nodes>,
        between: &NodesDigest,
        acceptor: Option<Acceptor>,
        knobs: &Knobs,
    ) -> Result<Foreign, WireupError> {
        let node = nodes.node(self.rank).unwrap_or(0);
        let host = nodes.host(node).unwrap_or(FIRST);
        let mut joined = None;
        if self.rank == host {
            let outcome = self.join_nodes(&nodes, between, acceptor, knobs);
            let word = match &outcome {
                Ok(joined) => joined.word.encode(),
                Err(reason) => digest::refusal(reason),
            };
            digest::put(&mut *self.table, CALL, &node_key(node), &word)?;
            joined = Some(outcome);
        }
        self.table.barrier(CALL)?;
        let joined = joined.transpose();
        let joined = joined.map_err(|reason| unusable(self.launcher, reason))?;
        if self.rank != FIRST {
            // If rank 0's host has given up, no other host is of use.
            self.node_word(&nodes, 0)?;
        }
        let (inner, host, address) = match joined {
            Some(joined) => {
                let StartedHost { host, socket } = joined.started;
                let inner = Launched::new(socket, self.rank, self.size)?;
                (inner, Some(host), joined.word.address)
            }
            None => {
                let word = self.node_word(&nodes, node)?;
                let mut inner = self.at_listener(&word.listener, host)?;
                inner.hears_by_host_of(nodes.beyond(node).collect());
                (inner, None, word.address)
            }
        };
        let net = NetIdentity {
            address,
            secret: between.secret,
        };
        let rest = EmergencyParts::new(Some(self.table), host);
        Ok(Foreign::on_node(Inner::Launched(inner), rest, nodes, net))
    }

    /// What the host of a node has left.
    fn node_word(&mut self, nodes: &Nodes, node: u32) -> Result<NodeWord, WireupError> {
        let host = nodes.host(node).unwrap_or(FIRST);
        let word = digest::get(&mut *self.table, CALL, host, &node_key(node))?;
        NodeWord::decode(&word).ok_or_else(|| refused(self.launcher, &word))
    }

    /// Opens the listener of this node and joins the node to the others. An error in words.
    fn join_nodes(
        &self,
        nodes: &Arc<Nodes>,
        between: &NodesDigest,
        acceptor: Option<Acceptor>,
        knobs: &Knobs,
    ) -> Result<JoinedHost, String> {
        let node = nodes.node(self.rank).unwrap_or(0);
        let kind = between
            .listeners
            .get(node as usize)
            .copied()
            .unwrap_or(ListenerKind::Path);
        let opened = open(kind).map_err(|error| no_listener(&error))?;
        let OpenListener {
            listener,
            address: place,
        } = opened;
        // The other half is for what comes after.
        let limit = self.limit / 2;
        let config = |first| oob::Config {
            nodes: Arc::clone(nodes),
            own: node,
            timeout: between.timeout,
            first,
        };
        let start = |config| {
            Host::start(self.config(listener, Some(config))).map_err(|error| error.to_string())
        };
        let (started, address) = match acceptor {
            Some(acceptor) => {
                let (complete, up) = channel();
                let started = start(config(oob::Start::Accepts(Box::new(acceptor), complete)))?;
                let address =
                    all_linked(&up, limit).ok_or_else(|| self.unlinked(between, limit))?;
                (started, address)
            }
            None => {
                let called = self.call(between, limit, knobs)?;
                let started = start(config(oob::Start::Called(called.stream)))?;
                (started, called.address)
            }
        };
        Ok(JoinedHost {
            started,
            word: NodeWord {
                address,
                listener: place,
            },
        })
    }

    fn call(
        &self,
        between: &NodesDigest,
        limit: Duration,
        knobs: &Knobs,
    ) -> Result<oob::HostStream, String> {
        let rank = self.rank;
        let from = match &knobs.net_address {
            Some(wanted) => address::candidates(Some(wanted), false)
                .map_err(|reason| format!("rank {rank}: {reason}"))?,
            None => Vec::new(),
        };
        let number = u32::try_from(rank).unwrap_or(u32::MAX);
        let hosts = oob::HostPair {
            own: number,
            peer: 0,
        };
        let called = oob::connect(&between.places, &from, hosts, between.secret, limit);
        called.map_err(|reasons| {
            format!(
                "rank {rank}, on another node than rank 0, cannot reach rank 0's: {reasons}. Name the network that the nodes share by {}, and see whether a firewall is between them",
                address::KNOB
            )
        })
    }

    fn unlinked(&self, between: &NodesDigest, limit: Duration) -> String {
        let places: Vec<String> = between.places.iter().map(ToString::to_string).collect();
        format!(
            "not all nodes have reached rank 0's within {} s, which waits for them at {}. Name the network that the nodes share by {}, see whether a firewall is between them, and raise ONECOPY_JOIN_TIMEOUT if ranks start slowly",
            limit.as_secs_f32(),
            places.join(", "),
            address::KNOB
        )
    }
}

/// The address to which most oob came; none if not all came in time.
fn all_linked(up: &Receiver<Vec<IpAddr>>, limit: Duration) -> Option<IpAddr> {
    let came_to = up.recv_timeout(limit).ok()?;
    let count = |address: &IpAddr| came_to.iter().filter(|other| *other == address).count();
    came_to.iter().max_by_key(|address| count(address)).copied()
}

#[cfg(test)]
pub(in crate::wireup) mod tests;
