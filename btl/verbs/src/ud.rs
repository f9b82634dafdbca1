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
//! - A lane that waits for its peer is *watched* until its clock says that something is due. That clock stands still
//!   while this rank does not look.
//! - What is due is judged by the *watermark*: the time up to which all that has come was read. So an answer that is
//!   here comes before a deadline, however much stands before it, and a poll still takes one batch only.
//! - An address handle is kept for all lanes that lead to its port. One that was given up exists as long as the device
//!   could use it.
//! - A pair that has failed fails all lanes; the next lane begins with a new pair.

mod arq;
mod clock;
mod head;
mod keys;
mod lanes;
mod loss;
mod memory;
mod order;
mod paths;
mod port;
mod receive;
mod schedule;
mod sent;
mod transmit;
mod watermark;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::changed::Listed;
use crate::directory::{Directory, Failing};
use crate::domain::{AddressHandle, Domain};
use crate::error::Result;
use crate::pair::{QueuePair, Ready};
use crate::port::{Chosen, OwnPort};
use crate::provider::{Path, Provider};
use crate::queue::{Completion, Queue};
use arq::{Arq, WINDOW_MAX};
use keys::Keys;
use loss::Loss;
use memory::Memory;
use onecopy_shm::attended::AttendedTime;
use paths::Handles;
use schedule::{InLists, Schedule};
use watermark::Watermark;

/// Packets of a window at least. Fewer cannot show a loss: that takes three packets behind the lost one.
const WINDOW_MIN: u32 = 4;
/// Bytes that a request itself may carry, as for connections.
const INLINE_MAX: usize = 512;
/// Sends under way beside those that hold slots: acknowledgements and short packets. Chosen by magnitude: what finds
/// no room waits in its lane.
const INLINE_SENDS: u32 = 64;
/// Buffers for packets that are kept for use again: the packets of one full window.
const SPARE_MAX: usize = 64;

/// What a rank wants of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The index of the own address, where it is looked for again; the best if none.
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
    /// Whether it stands in the list of those that have changed.
    is_listed: bool,
    in_lists: InLists,
}

impl<P: Provider> Listed for Lane<P> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn is_listed(&mut self) -> &mut bool {
        &mut self.is_listed
    }
}

impl<P: Provider> Failing for Lane<P> {
    fn failed(&mut self) -> &mut Option<String> {
        &mut self.failed
    }
}

/// A rank's side of its lanes, in parts that can be borrowed apart.
#[derive(Debug)]
pub struct Datagrams<P: Provider> {
    settings: Settings,
    port: OwnPort<P>,
    domain: Domain<P>,
    queue: Queue<P>,
    /// None: it has failed.
    pair: Option<QueuePair<P, Ready>>,
    memory: Memory<P>,
    keys: Keys,
    /// The lanes, by their marks.
    lanes: Directory<Lane<P>>,
    handles: Handles<P>,
    schedule: Schedule,
    /// The clock that lanes go by, and up to which of its times all was read.
    time: AttendedTime,
    watermark: Watermark,
    /// Completions that were polled; empty between calls.
    batch: VecDeque<Completion<P>>,
    /// Buffers for packets.
    spare: Vec<Vec<u8>>,
    loss: Loss,
    bytes: u64,
    /// Packets that were retransmitted.
    retransmitted: u64,
    /// Packets of no lane that came.
    foreign: u64,
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
        let mut all = Self {
            memory: Memory::pin(&domain, &settings, packet)?,
            port: OwnPort::new(chosen, settings.address),
            loss: Loss::new(settings.drop, settings.seed),
            settings,
            domain,
            queue,
            pair: None,
            keys: Keys::new(),
            lanes: Directory::default(),
            handles: Handles::new(),
            schedule: Schedule::new(),
            time: AttendedTime::new(clock::MOST, Instant::now()),
            watermark: Watermark::default(),
            batch: VecDeque::new(),
            spare: Vec::new(),
            bytes: 0,
            retransmitted: 0,
            foreign: 0,
        };
        all.open_pair()?;
        Ok(all)
    }

    fn now(&self) -> Duration {
        self.time.at(Instant::now())
    }
}

impl<P: Provider> Drop for Datagrams<P> {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            drop(self.queue.retire(pair));
        }
    }
}
