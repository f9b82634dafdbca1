// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of devices in software: what is above is driven by it in tests, with faults where a test wants them.
//!
//! It does nothing by itself. A send is carried out when it is posted, or when what it waits for has come: a receive, a
//! peer, or a time. Time passes by [`Fabric::advance`] only. So a test sees the same every time. It models reliable
//! connections, datagrams, shared receives, and extended connections, which no software device of a kernel has.
//!
//! # Safety
//!
//! As a device does, the model reads and writes memory by addresses. It does so within a range that is registered under
//! the given key, between the posting and the completion of an operation. A range is forgotten before its registration
//! ends, a pair with all that it waits for when it is dropped.
#![allow(unsafe_code, reason = "implements a device")]

mod objects;
mod provide;
mod run;
mod state;

use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::adapter::Settings;
use crate::provider::{Event, Limits};
use crate::status::Status;
pub use objects::{
    AddressHandleOf, Channel, Completions, Context, DomainOf, Memory, PairOf, ReceivesOf, Shared,
};
use state::State;

/// Several devices that reach one another. A clone is the same fabric.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Mutex<State>>);

/// What happens to datagrams, each in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Lost.
    pub loss: u8,
    /// Delivered twice.
    pub duplicate: u8,
    /// Delivered after the next one.
    pub reorder: u8,
}

/// A descriptor that is readable while something was signalled and not taken.
#[derive(Debug)]
pub(crate) struct EventPipe {
    out: Arc<PipeReader>,
    into: PipeWriter,
    signalled: u32,
}

impl EventPipe {
    fn new() -> io::Result<Self> {
        let (out, into) = io::pipe()?;
        Ok(Self {
            out: Arc::new(out),
            into,
            signalled: 0,
        })
    }

    fn signal(&mut self) {
        // Readable is readable: a pipe has room for one byte.
        if self.signalled == 0 && self.into.write_all(&[1]).is_err() {
            return;
        }
        self.signalled += 1;
    }

    fn take(&mut self) -> io::Result<u32> {
        if self.signalled > 0 {
            io::Read::read_exact(&mut &*self.out, &mut [0])?;
        }
        Ok(std::mem::take(&mut self.signalled))
    }
}

/// Limits like those of the kernel's software device, with extended connections besides.
#[must_use]
pub fn usual_limits() -> Limits {
    Limits {
        pairs: 1 << 20,
        depth: 1 << 14,
        pieces: 32,
        shared_pieces: 27,
        completions: 32_767,
        shared_receives: 1 << 20,
        registrations: 1 << 19,
        registration_bytes: u64::MAX,
        reads: 128,
        sound_reads: true,
        ports: 1,
        shared_connections: true,
        faults: false,
        atomics: true,
        interrupts: 1,
    }
}

/// Settings of a rank that are small, so that bounds are met soon.
#[must_use]
pub fn usual_settings() -> Settings {
    Settings {
        device: None,
        port: None,
        address: None,
        lanes_max: 64,
        slot: 256,
        receives: 32,
        receives_max: 128,
        sends: 32,
        window: 16,
        inline: 64,
        silence: Duration::from_secs(1),
        read_min: 1000,
        trusts_reads: false,
        stripe: 64 << 10,
        rails: 1,
        cache: crate::cache::Bounds {
            bytes: 1 << 20,
            entries: 16,
        },
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new(&["m0", "m1"])
    }
}

impl Fabric {
    /// Devices of these names.
    #[must_use]
    pub fn new(names: &[&str]) -> Self {
        let fabric = Self(Arc::default());
        for name in names {
            fabric.add(name, usual_limits());
        }
        fabric
    }

    /// One more device.
    pub fn add(&self, name: &str, limits: Limits) {
        self.add_in(name, limits, 0, 25_000);
    }

    /// One more device, in a network that reaches no other one, with a port of so many megabits a second.
    pub fn add_in(&self, name: &str, limits: Limits, network: u8, speed: u32) {
        self.lock().add_port(name, 1, limits, network, speed);
    }

    /// One more port of a device, in a network that reaches no other one.
    pub fn add_port(&self, name: &str, network: u8, speed: u32) {
        let mut state = self.lock();
        let mut of_device = state.ports.iter_mut().filter(|port| port.name == name);
        let Some(first) = of_device.next() else {
            return;
        };
        first.limits.ports += 1;
        let limits = first.limits.clone();
        state.add_port(name, limits.ports, limits, network, speed);
    }

    /// Takes what tells networks apart out of all addresses, as with fabrics of one subnet prefix.
    pub fn hide_networks(&self) {
        for port in &mut self.lock().ports {
            let host = port.address[15];
            port.address = [0; 16];
            port.address[..2].copy_from_slice(&[0xfe, 0x80]);
            port.address[15] = host;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        let mut state = self.lock();
        state.now += time;
        state.release_late();
        state.run();
    }

    /// The first port of a device goes down, or comes up.
    pub fn set_link(&self, name: &str, up: bool) {
        self.set_port_link(name, 1, up);
    }

    /// A port of a device goes down, or comes up.
    pub fn set_port_link(&self, name: &str, number: u8, up: bool) {
        let mut state = self.lock();
        let mut changed = None;
        for (index, port) in state.ports.iter_mut().enumerate() {
            if port.name == name && port.number == number && port.active != up {
                port.active = up;
                changed = Some(index);
            }
        }
        if let Some(index) = changed {
            let event = match up {
                true => Event::PortUp(number),
                false => Event::PortDown(number),
            };
            state.report(index, event);
        }
        state.run();
    }

    /// A host dies: it answers nothing any more.
    pub fn kill(&self, name: &str) {
        let mut state = self.lock();
        for port in state.ports.iter_mut().filter(|port| port.name == name) {
            port.alive = false;
        }
        state.run();
    }

    /// The next operation of a pair fails so.
    pub fn fail_next(&self, pair: u32, status: Status) {
        if let Some(pair) = self.lock().pairs.get_mut(&pair) {
            pair.fault = Some(status);
        }
    }

    /// The next poll of each queue of a device fails, and loses the completions that it would have taken.
    pub fn fail_poll(&self, name: &str) {
        let State { ports, queues, .. } = &mut *self.lock();
        for queue in queues.values_mut() {
            queue.fails |= ports[queue.device].name == name;
        }
    }

    /// What a pair sends arrives, and the answers are lost.
    pub fn lose_answers(&self, pair: u32) {
        if let Some(pair) = self.lock().pairs.get_mut(&pair) {
            pair.answers_lost = true;
        }
    }

    /// What happens to datagrams from now on. One seed gives one sequence.
    pub fn impair(&self, impairment: Impairment, seed: u64) {
        let mut state = self.lock();
        state.impairment = impairment;
        state.dice = seed;
        state.release_late();
        state.run();
    }

    /// Bytes of a packet, on all devices.
    pub fn set_packet(&self, bytes: u32) {
        for port in &mut self.lock().ports {
            port.packet = bytes;
        }
    }

    /// No more bytes than this can be registered, in all.
    pub fn limit_memory(&self, bytes: usize) {
        self.lock().memory_limit = Some(bytes);
    }

    /// Bytes that are registered.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.lock()
            .memories
            .values()
            .map(|memory| memory.length)
            .sum()
    }

    /// Datagrams that found no receive, or had another Q_Key.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// How often a device was opened.
    #[must_use]
    pub fn opens(&self) -> usize {
        self.lock().opens
    }

    /// How often a port was looked at.
    #[must_use]
    pub fn looks(&self) -> usize {
        self.lock().looks
    }

    /// Pairs that exist.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.lock().pairs.len()
    }
}
