// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's device with one pair for datagrams, and a *lane* to each peer over it.
//!
//! [`crate::Lanes`] says what a lane does for its users. The rules of order, windows and retransmission are in
//! `arq.rs`. This module gives them a device and a clock.
//!
//! Invariants:
//!
//! - Registered memory is only lent to the device. A packet is copied into a slot to go out, and copied out of a slot
//!   when it comes. That slot is posted again before the next packet is looked at. So no peer keeps a slot.
//! - A packet is dropped unless its seal and its sender's pair are those of the lane.
//! - A lane that has something to send is among the *hungry* until the device has room, or its window is full.
//! - A lane that waits for its peer is *watched* until its clock says that something is due.
//! - An address handle is kept for all lanes that lead to its port. One that was given up exists as long as the device
//!   could use it.
//! - A pair that has failed fails all lanes; the next lane begins with a new pair.

mod arq;
mod clock;
mod head;
mod lanes;
mod order;
mod paths;
mod port;
mod receive;
mod sent;
mod transmit;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::adapter::pinned;
use crate::changed::{Changed, Listed};
use crate::domain::{AddressHandle, Domain};
use crate::error::Result;
use crate::memory::Region;
use crate::pair::{Pair, Ready};
use crate::port::Chosen;
use crate::provider::{Path, Provider};
use crate::queue::{Completion, DATAGRAM_HEAD, Queue};
use crate::table::Table;
use arq::{Arq, WINDOW_MAX};

/// Packets of a window at least. Fewer cannot show a loss: that takes three packets behind the lost one.
const WINDOW_MIN: u32 = 4;
/// Bytes that a request itself may carry, as for connections.
const INLINE_MAX: usize = 512;
/// Sends under way beside those that hold slots: acknowledgements and short packets. Chosen by magnitude: what finds
/// no room waits in its lane.
const INLINE_SENDS: u32 = 64;
/// Address handles that were given up and still exist, since the device may still use them. Beyond, a handle stays in
/// use.
const OLD_MAX: usize = 64;
/// Buffers for packets that are kept for use again: the packets of one full window.
const SPARE_MAX: usize = 64;

/// What a rank wants of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The place of the own address, where it is looked for again; the best if none.
    pub address: Option<u8>,
    /// Bytes of a packet at most, with what the network puts before it.
    pub packet: usize,
    /// Packets that there is room for, of all peers together.
    pub receives: usize,
    /// Packets that the device may read at once.
    pub sends: usize,
    /// Packets under way to one peer, and kept of one.
    pub window: u32,
    /// Bytes that a request itself carries, at most.
    pub inline: usize,
    /// How long a peer acknowledges nothing before its lane is over.
    pub silence: Duration,
    /// Percentage of incoming packets that are dropped: for tests.
    pub drop: u8,
    /// Seed of the choice which packets are dropped.
    pub seed: u64,
}

/// How far a lane has come.
#[derive(Debug)]
enum Stage<P: Provider> {
    /// It waits for the peer's offer.
    Made,
    /// A thread makes the address handle.
    Finding,
    Ready(AddressHandle<P>),
    /// It carries nothing any more.
    Over,
}

/// The peer's side of a lane.
#[derive(Clone, Copy, Debug)]
struct Peer {
    pair: u32,
    /// The Q_Key of its pair.
    qkey: u32,
    mark: u32,
    key: u64,
    path: Path,
}

#[derive(Debug)]
struct Lane<P: Provider> {
    rank: u32,
    stage: Stage<P>,
    mark: u32,
    key: u64,
    peer: Option<Peer>,
    arq: Arq,
    /// A packet that is being filled, and how many bytes fit.
    building: Vec<u8>,
    room: usize,
    failed: Option<String>,
    is_listed: bool,
    is_touched: bool,
    is_hungry: bool,
    is_watched: bool,
}

impl<P: Provider> Listed for Lane<P> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn is_listed(&mut self) -> &mut bool {
        &mut self.is_listed
    }
}

/// A rank's side of its lanes.
#[derive(Debug)]
pub struct Datagrams<P: Provider> {
    settings: Settings,
    chosen: Chosen<P>,
    domain: Domain<P>,
    queue: Queue<P>,
    /// None: it has failed.
    pair: Option<Pair<P, Ready>>,
    /// The Q_Key that datagrams for it must have.
    qkey: u32,
    receives: Region<P>,
    sends: Region<P>,
    /// Bytes of a datagram.
    room: usize,
    lanes: Table<Lane<P>>,
    by_mark: HashMap<u32, u64>,
    marks: u32,
    handles: HashMap<Path, AddressHandle<P>>,
    finding: HashMap<Path, Receiver<Result<AddressHandle<P>>>>,
    old: Vec<AddressHandle<P>>,
    /// Names of lanes: those that have changed, those that received something, those that wait for the device, those
    /// that wait for a time. Last, the first of these times.
    changed: Changed,
    touched: Vec<u64>,
    hungry: Vec<u64>,
    watched: Vec<u64>,
    due: Duration,
    epoch: Instant,
    batch: Vec<Completion<P>>,
    spare: Vec<Vec<u8>>,
    /// Why there are no lanes at the moment.
    down: Option<String>,
    /// The port was down: it may have other addresses.
    is_stale: bool,
    keys: RandomState,
    dice: u64,
    bytes: u64,
    again: u64,
    aliens: u64,
    dropped: u64,
}

impl<P: Provider> Datagrams<P> {
    /// Opens a pair on a device. Where less memory can be pinned than the settings want, there are fewer packets.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn on(chosen: Chosen<P>, settings: Settings) -> Result<Self> {
        let packet = settings.packet.min(chosen.state.packet as usize);
        let domain = chosen.device.domain()?;
        let queue = Queue::new(&chosen.device, 64, true)?;
        let receives = pinned(&domain, settings.receives, packet)?;
        let sends = pinned(&domain, settings.sends, packet)?;
        let mut all = Self {
            dice: settings.seed,
            settings,
            chosen,
            domain,
            queue,
            pair: None,
            qkey: 0,
            receives,
            sends,
            room: packet.saturating_sub(DATAGRAM_HEAD),
            lanes: Table::default(),
            by_mark: HashMap::new(),
            marks: 0,
            handles: HashMap::new(),
            finding: HashMap::new(),
            old: Vec::new(),
            changed: Changed::default(),
            touched: Vec::new(),
            hungry: Vec::new(),
            watched: Vec::new(),
            due: Duration::MAX,
            epoch: Instant::now(),
            batch: Vec::new(),
            spare: Vec::new(),
            down: None,
            is_stale: false,
            keys: RandomState::new(),
            bytes: 0,
            again: 0,
            aliens: 0,
            dropped: 0,
        };
        all.open_pair()?;
        Ok(all)
    }

    /// A number that peers cannot guess.
    fn fresh(&self, salt: u32) -> u64 {
        let mut hasher = self.keys.build_hasher();
        hasher.write_u32(salt);
        hasher.finish()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn fail(&mut self, name: u64, reason: String) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.failed.get_or_insert(reason);
            self.changed.add(name, lane);
        }
    }
}

impl<P: Provider> Drop for Datagrams<P> {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            drop(self.queue.retire(pair));
        }
    }
}
