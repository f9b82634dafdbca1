// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the model's devices know.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{EventPipe, Impairment};
use crate::provider::{Access, Event, Finished, Kind, Limits, Path, Peer, Piece, Remote};
use crate::status::Status;
use crate::timing::Timing;

#[derive(Debug, Default)]
pub(super) struct State {
    /// The ports of all devices.
    pub(super) ports: Vec<Port>,
    /// What open devices are told.
    pub(super) listeners: BTreeMap<u32, Listener>,
    pub(super) pairs: BTreeMap<u32, QueuePair>,
    pub(super) receives: BTreeMap<u32, Receives>,
    pub(super) queues: BTreeMap<u32, Completions>,
    pub(super) channels: BTreeMap<u32, EventPipe>,
    pub(super) memories: BTreeMap<u32, Registration>,
    pub(super) now: Duration,
    pub(super) numbers: u32,
    pub(super) domains: u64,
    pub(super) impairment: Impairment,
    pub(super) dice: u64,
    pub(super) late: Vec<Datagram>,
    pub(super) dropped: u64,
    pub(super) memory_limit: Option<usize>,
    pub(super) opens: usize,
    pub(super) looks: usize,
}

/// A port of a device, and what is known of the device.
#[derive(Debug)]
pub(super) struct Port {
    /// The device's name.
    pub(super) name: String,
    /// The port's number on its device.
    pub(super) number: u8,
    pub(super) limits: Limits,
    pub(super) address: [u8; 16],
    pub(super) network: u8,
    pub(super) active: bool,
    pub(super) alive: bool,
    pub(super) message: u32,
    pub(super) packet: u32,
    pub(super) speed: u32,
}

/// What an open device is told and has not taken.
#[derive(Debug)]
pub(super) struct Listener {
    /// The device's name.
    pub(super) name: String,
    pub(super) events: VecDeque<Event>,
    pub(super) pipe: EventPipe,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Registration {
    pub(super) domain: u64,
    pub(super) start: u64,
    pub(super) length: usize,
    pub(super) access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Fresh,
    Prepared,
    Receiving,
    Ready,
    Failed,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) kind: Kind,
    /// Its port; the first one until it is prepared.
    pub(super) port: usize,
    pub(super) domain: u64,
    pub(super) queue: u32,
    pub(super) receives: Option<u32>,
    pub(super) shared: Option<u64>,
    pub(super) own: VecDeque<Receive>,
    /// Who has it open: several for the receiving end of an extended connection.
    pub(super) holders: u32,
    pub(super) stage: Stage,
    pub(super) peer: Option<Peer>,
    pub(super) qkey: u32,
    pub(super) timing: Timing,
    pub(super) waiting: VecDeque<Send>,
    pub(super) fault: Option<Status>,
    pub(super) answers_lost: bool,
}

#[derive(Debug)]
pub(super) struct Receives {
    pub(super) device: usize,
    pub(super) domain: u64,
    pub(super) length: u32,
    pub(super) posted: VecDeque<Receive>,
    pub(super) limit: u32,
    /// Of an extended connection: the domain of its pairs, and where its receives complete.
    pub(super) shared: Option<(u64, u32)>,
}

#[derive(Debug)]
pub(super) struct Completions {
    pub(super) device: usize,
    pub(super) length: u32,
    pub(super) done: VecDeque<Finished>,
    pub(super) channel: Option<u32>,
    pub(super) armed: bool,
    /// The next poll fails, and loses what it takes.
    pub(super) fails: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) pieces: Vec<Piece>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Peer,
    Shared(u32),
    Write(Remote),
    Read(Remote),
    ReadShared(Remote, u32),
}

#[derive(Debug)]
pub(super) struct Send {
    pub(super) id: u64,
    pub(super) target: Target,
    pub(super) pieces: Vec<Piece>,
    /// What a request itself carries.
    pub(super) inline: Option<Vec<u8>>,
    pub(super) immediate: Option<u32>,
    pub(super) signaled: bool,
    /// Since when it is the next one, and what it waits for.
    pub(super) since: Option<Duration>,
    pub(super) delivered: bool,
}

impl Send {
    /// What its peer is told of it, of a pair that received it from pair `source`.
    pub(super) fn finished(&self, receive: u64, pair: u32, source: u32) -> Finished {
        Finished {
            id: receive,
            pair,
            source,
            immediate: self.immediate,
            ..Finished::default()
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Datagram {
    pub(super) to: [u8; 16],
    pub(super) pair: u32,
    pub(super) qkey: u32,
    pub(super) source: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) immediate: Option<u32>,
}

impl State {
    /// One more port: the first of a device, or a further one.
    pub(super) fn add_port(
        &mut self,
        name: &str,
        number: u8,
        limits: Limits,
        network: u8,
        speed: u32,
    ) {
        let host = u8::try_from(self.ports.len() + 1).unwrap_or(u8::MAX);
        let mut address = [0; 16];
        address[10] = 0xff;
        address[11] = 0xff;
        address[12..].copy_from_slice(&[10, 0, network, host]);
        self.ports.push(Port {
            name: name.to_owned(),
            number,
            limits,
            address,
            network,
            active: true,
            alive: true,
            message: 8 << 20,
            packet: 1024,
            speed,
        });
    }

    /// A number that nothing else has.
    pub(super) fn fresh(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers + 16
    }

    /// Reports an event to everyone who has opened the device of a port.
    pub(super) fn report(&mut self, port: usize, event: Event) {
        let Some(port) = self.ports.get(port) else {
            return;
        };
        for listener in self.listeners.values_mut() {
            if listener.name == port.name {
                listener.events.push_back(event);
                listener.pipe.signal();
            }
        }
    }

    pub(super) fn port_at(&self, address: &[u8; 16]) -> Option<usize> {
        self.ports.iter().position(|port| port.address == *address)
    }

    /// The port of that number of a device, of which another port is given.
    pub(super) fn port_of(&self, device: usize, number: u8) -> Option<usize> {
        let name = &self.ports.get(device)?.name;
        let mut ports = self.ports.iter();
        ports.position(|port| port.name == *name && port.number == number)
    }

    /// Whether a port is in the network of an address.
    pub(super) fn shares_network(&self, port: usize, address: &[u8; 16]) -> bool {
        let there = self
            .port_at(address)
            .and_then(|index| self.ports.get(index));
        let port = self.ports.get(port).zip(there);
        port.is_some_and(|(port, there)| port.network == there.network)
    }

    /// As with the kernel's device: a peer that is not there does not answer when a device asks for its address.
    pub(super) fn answers(&self, port: usize, path: &Path) -> bool {
        let there = self.port_at(&path.to);
        let is_alive =
            there.is_some_and(|index| self.ports.get(index).is_some_and(|port| port.alive));
        is_alive && self.shares_network(port, &path.to)
    }

    pub(super) fn complete(&mut self, queue: u32, finished: Finished) {
        let Some(completions) = self.queues.get_mut(&queue) else {
            return;
        };
        let device = completions.device;
        if completions.done.len() >= completions.length as usize {
            self.report(device, Event::QueueOverran);
            return;
        }
        completions.done.push_back(finished);
        let armed = std::mem::take(&mut completions.armed);
        let channel = completions.channel.filter(|_| armed);
        if let Some(pipe) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            pipe.signal();
        }
    }

    /// Whether so many percent of the cases happen now.
    pub(super) fn happens(&mut self, percent: u8) -> bool {
        // splitmix64: small, and the same everywhere.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.dice;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % 100 < u64::from(percent)
    }
}
