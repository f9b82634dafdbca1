// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's device with all that its peers share, and a *lane* to each peer: a reliable connection that carries a
//! stream of bytes.
//!
//! A lane does not know the program's messages. It cuts the stream into pieces that fit a receive of the peer, and
//! keeps each piece until the peer has taken it. When it fails, each side says how many bytes it has received. The
//! bytes after these go another way ([`Lanes::left`]). So no byte is lost or comes twice, whatever the device reports
//! of a send.
//!
//! Invariants:
//!
//! - *Receives* are one pool for all lanes. Each message that a peer is permitted has a posted receive: messages that
//!   are permitted and have not come never outnumber posted receives. So no peer finds the queue empty.
//! - The last message that is permitted is kept for a control message that permits more. So two ranks whose windows are
//!   full never wait for each other.
//! - The pool grows by parts, up to a bound, while lanes use all of their windows and memory can be pinned. It shrinks
//!   when receives of its newest part come back while windows are small.
//! - A slot to send from is held while the device reads it. After that it is held only while other slots are free: else
//!   its bytes are copied to memory that is not pinned. So a peer that takes nothing keeps no other peer waiting.
//! - No call waits. A thread makes the connection, which may take a second.
//! - A rank has at most [`Settings::lanes_max`] lanes. A further lane takes the place of the lane that was silent
//!   longest. Where no lane was silent for [`SILENT`], no further lane is made. So a lane in use never loses its place.

mod close;
mod connect;
mod contract;
mod events;
mod head;
mod lane;
mod pool;
mod reads;
mod receive;
mod send;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::changed::Changed;
use crate::domain::{Domain, Receives};
use crate::error::Result;
use crate::memory::{Region, Slot};
use crate::port::{Chosen, choose_at};
use crate::provider::Provider;
use crate::queue::{Completion, Queue};
use crate::table::Table;
use crate::timing::Timing;
pub use contract::{Figures, Lanes, ReadState, Settings, Shown};
pub use head::{Mark, Offer};
use lane::{Connecting, Lane, Stage};
use pool::fitting;
pub(crate) use pool::pinned;

/// Messages that a new lane permits. The last one is kept for a control message; the others let a sender go on while
/// its permission is renewed. As many are pinned for each lane that carries nothing, so no more.
const GRANT_MIN: u32 = 4;
/// Messages that a lane permits at most. It bounds callers with settings of their own: `ONECOPY_VERBS_WINDOW` ends
/// below.
const WINDOW_MAX: u32 = 1 << 12;
/// How long a lane has carried nothing before it gives its place to another one.
pub const SILENT: Duration = Duration::from_secs(1);
/// Rounds, of a batch of completions each, in which a connection that fails may tell of what was under way. They bound
/// the stay in the library. Slots that are not told of by then come back when the pair is destroyed.
const FLUSH_ROUNDS: u32 = 256;
/// Bytes that a request itself may carry: the most that `ONECOPY_VERBS_INLINE` takes. Each request of a queue has room
/// for what is asked for.
const INLINE_MAX: usize = 512;

/// A rank's side of its lanes.
#[derive(Debug)]
pub struct Adapter<P: Provider> {
    settings: Settings,
    chosen: Arc<Chosen<P>>,
    domain: Domain<P>,
    queue: Queue<P>,
    /// None while the adapter is being dropped.
    receives: Option<Receives<P>>,
    /// The pool's parts, each a region of receives.
    parts: Vec<Region<P>>,
    sends: Region<P>,
    reads: reads::Reads<P>,
    timing: Timing,
    lanes: Table<Lane<P>>,
    /// The lane of each pair.
    by_pair: HashMap<u32, u64>,
    /// Names of lanes that have changed.
    changed: Changed,
    /// Lanes that are being connected.
    connecting: usize,
    batch: Vec<Completion<P>>,
    /// Connections of lanes that were given up meanwhile.
    orphans: Vec<Connecting<P>>,
    /// Receives that are posted, and messages that are permitted and have not come.
    posted: usize,
    promised: usize,
    /// Receives of the newest part are taken out of use.
    shrinks: bool,
    /// Nothing more can be pinned, as far as is known.
    is_full: bool,
    /// Why there are no lanes at the moment.
    down: Option<String>,
    /// The port was down: it may have other addresses.
    is_stale: bool,
    /// The first packet's number of the next lane.
    first: u32,
    bytes: u64,
    /// Lanes that gave their place to others.
    displaced: u64,
    spare: Vec<Vec<u8>>,
    /// Slots that were read to their end; empty between calls.
    read: Vec<Slot<P>>,
}

impl<P: Provider> Adapter<P> {
    /// Opens a device. Where less memory can be pinned than the settings want, the pools are smaller.
    ///
    /// # Errors
    ///
    /// Which devices there are, why none of them will do, and what would help.
    pub fn open(provider: &P, settings: Settings) -> Result<Self> {
        let device = settings.device.as_deref();
        let chosen = choose_at(provider, device, settings.port, settings.address)?;
        Self::on(chosen, settings)
    }

    /// As [`Self::open`], on a device that was chosen.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn on(chosen: Chosen<P>, mut settings: Settings) -> Result<Self> {
        settings.receives = fitting(settings.receives, settings.slot);
        let parts = settings.receives_max.div_ceil(settings.receives).max(1);
        settings.receives_max = parts * settings.receives;
        let device = chosen.device.clone();
        let domain = device.domain()?;
        let mut queue = Queue::new(&device, 64, true)?;
        let length = u32::try_from(settings.receives_max).unwrap_or(u32::MAX);
        let receives = queue.receives(&domain, length, None)?;
        let sends = pinned(&domain, settings.sends, settings.slot)?;
        let first = pinned(&domain, settings.receives, settings.slot)?;
        let timing = Timing::within(settings.silence);
        let mut adapter = Self {
            is_full: first.count() < settings.receives,
            settings,
            chosen: Arc::new(chosen),
            domain,
            queue,
            receives: Some(receives),
            parts: Vec::new(),
            sends,
            reads: reads::Reads::default(),
            timing,
            lanes: Table::default(),
            by_pair: HashMap::new(),
            changed: Changed::default(),
            connecting: 0,
            batch: Vec::new(),
            orphans: Vec::new(),
            posted: 0,
            promised: 0,
            shrinks: false,
            down: None,
            first: std::process::id(),
            bytes: 0,
            displaced: 0,
            spare: Vec::new(),
            read: Vec::new(),
            is_stale: false,
        };
        adapter.add_part(first);
        Ok(adapter)
    }

    fn fail(&mut self, name: u64, reason: String) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.failed.get_or_insert(reason);
            self.changed.add(name, lane);
        }
    }
}

impl<P: Provider> Lanes for Adapter<P> {
    fn make(&mut self, rank: u32) -> std::result::Result<(u64, Offer), String> {
        self.make_lane(rank)
    }

    fn connect(&mut self, name: u64, peer: &Offer) {
        self.start_connecting(name, peer);
    }

    fn is_connected(&self, name: u64) -> bool {
        self.lanes
            .get(name)
            .is_some_and(|lane| lane.failed.is_none() && matches!(lane.stage, Stage::Ready(_)))
    }

    fn has_failed(&self, name: u64) -> bool {
        self.lanes
            .get(name)
            .is_none_or(|lane| lane.failed.is_some())
    }

    fn failure(&self, name: u64) -> Option<String> {
        match self.lanes.get(name) {
            Some(lane) => lane.failed.clone(),
            None => Some("the lane is over".to_owned()),
        }
    }

    fn poll(&mut self) -> bool {
        let connected = self.look_at_connections();
        let found = self.take_completions();
        connected | found
    }

    fn next_changed(&mut self) -> Option<u32> {
        self.changed.next(&mut self.lanes)
    }

    fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    fn has_room(&mut self, name: u64, bytes: usize) -> bool {
        self.has_room_for(name, bytes)
    }

    fn write(&mut self, name: u64, bytes: &[u8]) -> usize {
        self.write_bytes(name, bytes)
    }

    fn push(&mut self, name: u64) -> bool {
        self.push_message(name)
    }

    fn is_taken(&self, name: u64) -> bool {
        self.lanes.get(name).is_none_or(|lane| {
            lane.building.is_none() && lane.kept.iter().all(|kept| kept.len == 0)
        })
    }

    fn unread(&self, name: u64) -> usize {
        self.lanes.get(name).map_or(0, Lane::unread)
    }

    fn read(&mut self, name: u64, out: &mut [u8]) -> usize {
        self.read_bytes(name, out)
    }

    fn acknowledge(&mut self, name: u64) {
        let due = |lane: &Lane<P>| lane.should_tell() || lane.must_tell();
        if self.lanes.get(name).is_some_and(due) {
            self.tell(name);
        }
    }

    fn show(&mut self, bytes: &[u8]) -> Option<Shown> {
        self.show_to_peers(bytes)
    }

    fn can_post_reads(&mut self, name: u64) -> bool {
        self.is_connected(name) && self.can_read()
    }

    fn post_read(&mut self, name: u64, token: u64, from: (u64, u32), len: u64) -> u64 {
        self.ask_for(name, token, from, len)
    }

    fn read_state(&self, name: u64, token: u64) -> ReadState {
        self.next_of(name, token)
    }

    fn copy_read(&self, name: u64, token: u64, at: usize, out: &mut [u8]) {
        self.read_next(name, token, at, out);
    }

    fn release_read(&mut self, name: u64, token: u64) {
        self.pass_next(name, token);
    }

    fn stop(&mut self, name: u64) -> u64 {
        self.stop_lane(name)
    }

    fn left(&mut self, name: u64, received: u64) -> Option<Vec<u8>> {
        self.take_left(name, received)
    }

    fn close(&mut self, name: u64) {
        self.close_lane(name);
    }

    fn arm(&mut self) -> bool {
        // The next poll finds what the device refuses here.
        let _ = self.queue.take_wakes();
        let armed = self.queue.arm().is_ok();
        let found = self.poll();
        armed && !found
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [self.queue.descriptor(), Some(self.chosen.device.events())]
    }

    fn hear_device(&mut self) {
        self.hear_events();
    }

    fn age(&mut self, now: Instant) {
        self.age_lanes(now);
    }

    fn figures(&self) -> Figures {
        let receives = self.parts.iter();
        let pinned: usize = receives.map(Region::bytes).sum::<usize>() + self.sends.bytes();
        Figures {
            pinned: pinned as u64 + self.reads.pinned(),
            bytes: self.bytes,
            receives: self.parts.iter().map(Region::count).sum::<usize>() as u64,
            registered: self.reads.registered(),
            displaced: self.displaced,
            ..Figures::default()
        }
    }
}

impl<P: Provider> Drop for Adapter<P> {
    fn drop(&mut self) {
        for name in self.lanes.names() {
            self.close(name);
        }
        if let Some(receives) = self.receives.take() {
            drop(self.queue.retire_receives(receives));
        }
    }
}
