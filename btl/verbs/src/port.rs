// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which device, port and address a rank uses, and what a peer must know to reach it.

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::bytes::word;
use crate::domain::Device;
use crate::error::{Error, Result};
use crate::provider::{Address, Event, Path, Port, Provider};

/// A device with the port and address to use.
#[derive(Debug)]
pub struct Chosen<P: Provider> {
    /// The device.
    pub device: Device<P>,
    /// The port.
    pub port: u8,
    /// What it was when it was chosen.
    pub state: Port,
    /// The own address; none in a subnet of InfiniBand without one.
    pub address: Option<Address>,
}

/// An event of a device, as far as the lanes by a port are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortEvent {
    /// Nothing goes any more, and why.
    Down(String),
    /// Something goes again, perhaps by other addresses.
    Up,
    /// One pair failed.
    PairFailed(u32),
    /// Nothing.
    Nothing,
}

impl<P: Provider> Chosen<P> {
    /// What an event of its device means for its port.
    pub(crate) fn port_event(&self, event: Event) -> PortEvent {
        let name = self.device.name();
        match event {
            Event::PortDown(port) if port == self.port => PortEvent::Down(format!(
                "{name} port {port} has no link; look at it (`rdma link`)"
            )),
            Event::PortUp(port) | Event::Addresses(port) if port == self.port => PortEvent::Up,
            Event::PairFailed(number) => PortEvent::PairFailed(number),
            Event::DeviceFailed | Event::QueueOverran => {
                PortEvent::Down(format!("{name}: {event:?}; see the kernel's log"))
            }
            _ => PortEvent::Nothing,
        }
    }
}

/// The port that a rank's lanes go by, as it was last looked at.
///
/// Invariant: while the port is down, no lane is made. A port that came back is looked at again before, for it may have
/// other addresses. A port that the device has called down is down until a later event. One that a look found down is
/// so until the next look.
#[derive(Debug)]
pub(crate) struct OwnPort<P: Provider> {
    /// Shared with threads that connect lanes.
    chosen: Arc<Chosen<P>>,
    /// The index of the own address, where it is looked for again; the best if none.
    index: Option<u8>,
    /// Why there are no lanes at the moment.
    down: Option<String>,
    /// It is to be looked at again: it was down, and may have other addresses, or something failed.
    is_stale: bool,
}

impl<P: Provider> OwnPort<P> {
    pub(crate) fn new(chosen: Chosen<P>, index: Option<u8>) -> Self {
        Self {
            chosen: Arc::new(chosen),
            index,
            down: None,
            is_stale: false,
        }
    }

    pub(crate) fn chosen(&self) -> &Arc<Chosen<P>> {
        &self.chosen
    }

    /// Whether lanes can be made now. Looks again at a port that was down, which must still fit.
    pub(crate) fn look(
        &mut self,
        check: impl FnOnce(&Chosen<P>) -> std::result::Result<(), String>,
    ) -> std::result::Result<(), String> {
        if self.is_stale {
            let Chosen { device, port, .. } = &*self.chosen;
            let looked = look_at(device.clone(), *port, self.index);
            match looked.and_then(|chosen| check(&chosen).map(|()| chosen)) {
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

    /// Something failed, and no event will tell when it works again: the port is looked at before the next lane.
    pub(crate) fn doubt(&mut self) {
        // What the device itself has called down comes back by an event alone.
        self.is_stale |= self.down.is_none();
    }

    /// Takes what the device tells next, and notes what of it is about the port.
    pub(crate) fn next_event(&mut self) -> Option<PortEvent> {
        let of_device = self.chosen.device.next_event().ok().flatten()?;
        let event = self.chosen.port_event(of_device);
        match &event {
            PortEvent::Down(reason) => {
                self.down = Some(reason.clone());
                // A look cannot tell that the device is of use again, whatever failed before: a later event does.
                self.is_stale = false;
            }
            PortEvent::Up => self.is_stale = true,
            PortEvent::PairFailed(_) | PortEvent::Nothing => {}
        }
        Some(event)
    }

    /// Readable when the device tells something.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.chosen.device.events()
    }

    pub(crate) fn device_name(&self) -> &str {
        self.chosen.device.name()
    }
}

/// The first of the devices, or the one of that name, with a port that carries messages and that peers can reach.
///
/// # Errors
///
/// The ports that were found, and why each of them cannot be used.
pub fn choose<P: Provider>(provider: &P, wanted: Option<&str>) -> Result<Chosen<P>> {
    choose_at(provider, wanted, None, None)
}

/// As [`choose`], with a port, and the index of an own address, where they are wanted. `wanted` may be several names
/// with commas between them.
///
/// # Errors
///
/// The ports that were found, and why each of them cannot be used.
pub fn choose_at<P: Provider>(
    provider: &P,
    wanted: Option<&str>,
    port: Option<u8>,
    index: Option<u8>,
) -> Result<Chosen<P>> {
    Search::new(provider, wanted, port, index)?.first()
}

/// A look at the ports of these devices, or of all, in the library's order. Each is looked at once, when it is come to,
/// and each device is opened once for each port that is found.
#[derive(Debug)]
pub struct Search<'p, P: Provider> {
    provider: &'p P,
    port: Option<u8>,
    index: Option<u8>,
    /// Devices that were not opened yet.
    names: std::vec::IntoIter<String>,
    /// The device whose ports are looked at, and those that were not yet.
    current: Option<(String, RangeInclusive<u8>)>,
    /// That device, open, for its next port that will do.
    unused: Option<Device<P>>,
    refused: Vec<String>,
}

impl<'p, P: Provider> Search<'p, P> {
    /// Of the devices, the port and the own address that are wanted, as with [`choose_at`].
    ///
    /// # Errors
    ///
    /// Which devices there are, where one that is wanted is not among them.
    pub fn new(
        provider: &'p P,
        wanted: Option<&str>,
        port: Option<u8>,
        index: Option<u8>,
    ) -> Result<Self> {
        Ok(Self {
            provider,
            port,
            index,
            names: names(provider, wanted)?.into_iter(),
            current: None,
            unused: None,
            refused: Vec::new(),
        })
    }

    /// The first port that will do.
    ///
    /// # Errors
    ///
    /// The ports that were found, and why each of them cannot be used.
    pub fn first(&mut self) -> Result<Chosen<P>> {
        self.next().ok_or_else(|| none_will_do(&self.refused))
    }

    /// All ports that will do, of which `first` was found already: the fastest first, at most so many. Beside a device
    /// whose reads are sound, those in software are left out. Each has an open device of its own, so that each hears of
    /// its events.
    #[must_use]
    pub fn rails(self, first: Chosen<P>, most: usize) -> Vec<Chosen<P>> {
        let mut found = vec![first];
        found.extend(self);
        // Each stripe may go by any rail, so one in software would rule reads by all of them out. It is slower, too.
        let is_sound = |chosen: &Chosen<P>| chosen.device.limits().sound_reads;
        if found.iter().any(is_sound) {
            found.retain(is_sound);
        }
        // Those of one speed stay in the library's order, which is the same on all ranks of a node.
        found.sort_by_key(|chosen| std::cmp::Reverse(chosen.state.speed));
        found.truncate(most.max(1));
        found
    }

    /// Opens the next device. None: there is no other one.
    fn next_device(&mut self) -> Option<()> {
        let name = self.names.next()?;
        let device = self.open(&name);
        let with_ports = device.and_then(|device| Ok((ports_of(&device, self.port)?, device)));
        match with_ports {
            Ok((ports, device)) => {
                self.unused = Some(device);
                self.current = Some((name, ports));
            }
            Err(why) => self.refused.push(why),
        }
        Some(())
    }

    fn open(&self, name: &str) -> std::result::Result<Device<P>, String> {
        Device::open(self.provider, name).map_err(|error| error.to_string())
    }
}

impl<P: Provider> Iterator for Search<'_, P> {
    type Item = Chosen<P>;

    fn next(&mut self) -> Option<Chosen<P>> {
        loop {
            let Some((name, ports)) = &mut self.current else {
                self.next_device()?;
                continue;
            };
            let Some(port) = ports.next() else {
                self.current = None;
                continue;
            };
            let name = name.clone();
            // Kept until a port takes it; each further one has another.
            let device = self.unused.clone().map_or_else(|| self.open(&name), Ok);
            match device.and_then(|device| look_at(device, port, self.index)) {
                Ok(chosen) => {
                    self.unused = None;
                    return Some(chosen);
                }
                Err(why) => self.refused.push(why),
            }
        }
    }
}

/// The names of the devices that are wanted, each once, or of all.
fn names<P: Provider>(provider: &P, wanted: Option<&str>) -> Result<Vec<String>> {
    let there = provider
        .devices()
        .map_err(Error::of("ibv_get_device_list", "this host"))?;
    let Some(wanted) = wanted else {
        return Ok(there);
    };
    let mut names: Vec<String> = Vec::new();
    for name in wanted.split(',') {
        if !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    if let Some(missing) = names.iter().find(|name| !there.contains(name)) {
        let there = if there.is_empty() {
            "none".to_owned()
        } else {
            there.join(", ")
        };
        return Err(Error::refused(
            "choosing",
            missing,
            format!("the devices are: {there}"),
            "name one of them",
        ));
    }
    Ok(names)
}

fn none_will_do(refused: &[String]) -> Error {
    let why = if refused.is_empty() {
        "there is none".to_owned()
    } else {
        refused.join("; ")
    };
    Error::refused(
        "choosing",
        "a device for RDMA",
        why,
        "bring a port up (`rdma link`); messages go by sockets until then",
    )
}

/// The port of a device that is wanted, or all.
fn ports_of<P: Provider>(
    device: &Device<P>,
    wanted: Option<u8>,
) -> std::result::Result<RangeInclusive<u8>, String> {
    let (name, ports) = (device.name(), device.limits().ports.max(1));
    match wanted {
        Some(port) if port == 0 || port > ports => {
            Err(format!("{name} has {ports} ports, and no port {port}"))
        }
        Some(port) => Ok(port..=port),
        None => Ok(1..=ports),
    }
}

/// A port as it is now, if it carries messages and peers can reach it.
pub(crate) fn look_at<P: Provider>(
    device: Device<P>,
    port: u8,
    index: Option<u8>,
) -> std::result::Result<Chosen<P>, String> {
    let name = device.name().to_owned();
    let state = device.port(port).map_err(|error| error.to_string())?;
    if !state.active {
        return Err(format!("{name} port {port}: no link"));
    }
    let addresses = device.addresses(port).map_err(|error| error.to_string())?;
    let address = match index {
        None => best(&addresses, state.ethernet),
        Some(index) => {
            let found = addresses.iter().find(|address| address.index == index);
            let found = found.copied();
            if found.is_none() {
                return Err(format!("{name} port {port} has no address {index}"));
            }
            found
        }
    };
    if state.ethernet && address.is_none() {
        return Err(format!(
            "{name} port {port}: no address of RoCE v2; give its network interface an address of IP"
        ));
    }
    Ok(Chosen {
        device,
        port,
        state,
        address,
    })
}

/// Over Ethernet: an address in packets of UDP, of IP version 4 before version 6, and no link-local one.
fn best(addresses: &[Address], ethernet: bool) -> Option<Address> {
    let rank = |address: &Address| {
        let mapped = address.bytes[..10] == [0; 10] && address.bytes[10..12] == [0xff; 2];
        let local = address.bytes[0] == 0xfe && address.bytes[1] & 0xc0 == 0x80;
        match (mapped, local) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        }
    };
    let usable = addresses
        .iter()
        .filter(|address| !ethernet || address.routable);
    usable
        .min_by_key(|address| (rank(address), address.index))
        .copied()
}

/// The address of a queue pair, all that a peer must know to reach it: exchanged before the pair is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairAddress {
    /// The pair's number.
    pub number: u32,
    /// The number of its first packet.
    pub first: u32,
    /// Bytes of a packet.
    pub packet: u32,
    /// Its port in a subnet.
    pub lid: u16,
    /// Reads that it serves at once.
    pub reads: u8,
    /// Whether the GID counts.
    pub routed: bool,
    /// The GID of its port.
    pub gid: [u8; 16],
}

impl QueuePairAddress {
    /// Bytes of it on a wire.
    pub const BYTES: usize = 32;

    /// What the port says of it, before there is a queue pair.
    pub(crate) fn on_port<P: Provider>(chosen: &Chosen<P>) -> Self {
        Self {
            packet: chosen.state.packet,
            lid: chosen.state.lid,
            routed: chosen.address.is_some(),
            gid: chosen.address.map_or([0; 16], |address| address.bytes),
            ..Self::default()
        }
    }

    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.packet.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.lid.to_le_bytes());
        bytes[14] = self.reads;
        bytes[15] = u8::from(self.routed);
        bytes[16..].copy_from_slice(&self.gid);
        bytes
    }

    /// From a peer's bytes; none where they can be no pair's.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |offset| word(bytes, offset);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..]);
        let found = Self {
            number: word(0),
            first: word(4),
            packet: word(8),
            lid: u16::from_le_bytes([bytes[12], bytes[13]]),
            reads: bytes[14],
            routed: bytes[15] == 1,
            gid,
        };
        let packet = matches!(found.packet, 256 | 512 | 1024 | 2048 | 4096);
        let numbers = found.number <= NUMBER_MAX && found.first <= NUMBER_MAX;
        (packet && numbers && bytes[15] <= 1).then_some(found)
    }

    /// The way to it from an own port.
    #[must_use]
    pub fn path<P: Provider>(&self, from: &Chosen<P>) -> Path {
        Path {
            port: from.port,
            from: from.address.map_or(0, |address| address.index),
            to: self.gid,
            lid: self.lid,
            routed: self.routed,
        }
    }
}

/// Numbers of pairs and packets have 24 bits.
pub const NUMBER_MAX: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: u8, first: u8, mapped: bool, routable: bool) -> Address {
        let mut bytes = [0; 16];
        bytes[0] = first;
        if first == 0xfe {
            bytes[1] = 0x80;
        }
        if mapped {
            bytes[10] = 0xff;
            bytes[11] = 0xff;
        }
        Address {
            index,
            bytes,
            routable,
        }
    }

    #[test]
    fn an_address_of_ip_that_routers_know_is_taken() {
        let local = address(0, 0xfe, false, true);
        let old = address(1, 0, true, false);
        let four = address(2, 0, true, true);
        let six = address(3, 0x20, false, true);
        assert_eq!(best(&[local, old, six, four], true), Some(four));
        assert_eq!(best(&[local, old, six], true), Some(six));
        assert_eq!(best(&[old], true), None);
        assert_eq!(best(&[old], false), Some(old));
    }

    #[test]
    fn what_a_peer_says_is_checked() {
        let address = QueuePairAddress {
            number: 17,
            first: 99,
            packet: 1024,
            lid: 3,
            reads: 16,
            routed: true,
            gid: [7; 16],
        };
        let bytes = address.to_bytes();
        assert_eq!(QueuePairAddress::from_bytes(&bytes), Some(address));
        for (offset, wrong) in [(3, 1), (7, 1), (8, 1), (15, 2)] {
            let mut bytes = bytes;
            bytes[offset] = wrong;
            assert_eq!(QueuePairAddress::from_bytes(&bytes), None, "{offset}");
        }
    }
}
