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

mod activity;
mod close;
mod connect;
#[cfg(test)]
mod connected;
mod connector;
mod contract;
mod events;
mod extended;
mod extended_lane;
mod head;
mod lane;
mod lane_notes;
mod lane_reads;
mod late;
mod notes;
mod pool;
mod reads;
mod receive;
mod receive_side;
mod route;
mod send;
mod send_side;
mod send_slots;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::directory::Directory;
use crate::domain::Domain;
use crate::error::Result;
use crate::port::{Chosen, OwnPort, choose_at};
use crate::provider::{Access, Provider, Remote};
use crate::queue::{Completion, Queue};
use crate::timing::Timing;
pub(crate) use activity::Shows;
pub(crate) use connect::LanePlace;
use connector::Connector;
pub use contract::{ExposedMemory, Figures, Lanes, NodeShare, ReadState, RemoteAddress, Settings};
use extended::Extended;
pub use head::{ExtendedOffer, Mark, Offer};
use lane::Lane;
#[cfg(test)]
pub(crate) use lane_notes::NOTE_MAX;
use pool::Pool;
pub(crate) use pool::{parts, pinned};
pub(crate) use reads::read_slots;
use send_slots::SendSlots;

/// Messages that a new lane permits. The last one is kept for a control message; the others let a sender go on while
/// its permission is renewed. As many are pinned for each lane that carries nothing, so no more.
const GRANT_MIN: u32 = 4;
/// Messages that a lane permits at most. It bounds callers with settings of their own: `ONECOPY_VERBS_WINDOW` ends
/// below.
const WINDOW_MAX: u32 = 1 << 12;
/// How long a lane has carried nothing before it gives its place to another one.
pub const SILENT: Duration = Duration::from_secs(1);
/// Rounds, of a batch of completions each, in which a connection that fails may tell of what was under way. As many
/// take what came while the rank was away. They bound the stay in the library. Slots that are not told of by then come
/// back when the pair is destroyed.
const FLUSH_ROUNDS: u32 = 256;
/// Bytes that a request itself may carry: the most that [`Settings::inline`] may say. Each request of a queue has room
/// for what is asked for.
const INLINE_MAX: usize = 512;
/// Pieces of the program's memory that a rank keeps registered. Chosen by magnitude: programs send from few buffers, as
/// in src/select/rewritten.rs.
pub const CACHE_ENTRIES: usize = 128;

/// A rank's side of its lanes, in parts that can be borrowed apart.
#[derive(Debug)]
pub struct Adapter<P: Provider> {
    settings: Settings,
    port: OwnPort<P>,
    domain: Domain<P>,
    queue: Queue<P>,
    pool: Pool<P>,
    sends: SendSlots<P>,
    reads: reads::Reads<P>,
    timing: Timing,
    /// The lanes, by the numbers of their pairs, or by their own.
    lanes: Directory<Lane<P>>,
    connector: Connector<P>,
    /// What lanes by extended connections need, if that is what they are.
    extended: Option<Extended<P>>,
    /// Completions that were polled; empty between calls.
    batch: VecDeque<Completion<P>>,
    bytes: u64,
    /// Lanes that gave their place to others.
    displaced: u64,
    /// Its pools have the size that the settings want; else there is a slot or two.
    is_furnished: bool,
    /// Notes, which peers send beside the streams, are of use here.
    receives_notes: bool,
    /// The port came back, and nobody has taken notice.
    came_back: bool,
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
    pub fn on(chosen: Chosen<P>, settings: Settings) -> Result<Self> {
        let mut adapter = Self::for_rail(chosen, settings)?;
        adapter.receives_notes = false;
        adapter.furnish()?;
        Ok(adapter)
    }

    /// As [`Self::on`], for one of several: what streams need is made when the first of them comes.
    pub(crate) fn for_rail(chosen: Chosen<P>, settings: Settings) -> Result<Self> {
        Self::with(chosen, settings, None)
    }

    fn with(
        chosen: Chosen<P>,
        mut settings: Settings,
        extended: Option<Extended<P>>,
    ) -> Result<Self> {
        let (part, count) = parts(settings.receives, settings.receives_max, settings.slot);
        settings.receives = part;
        settings.receives_max = count * part;
        let device = chosen.device.clone();
        let domain = device.domain()?;
        let mut queue = Queue::new(&device, 64, true)?;
        let length = u32::try_from(settings.receives_max).unwrap_or(u32::MAX);
        let shared = extended.as_ref().map(Extended::domain);
        let receives = queue.receives(&domain, length, shared)?;
        let sends = SendSlots::new(domain.region(1, settings.slot, Access::default())?);
        Ok(Self {
            pool: Pool::new(&settings, receives),
            timing: Timing::within(settings.silence),
            port: OwnPort::new(chosen, settings.address),
            settings,
            domain,
            queue,
            sends,
            reads: reads::Reads::default(),
            lanes: Directory::default(),
            connector: Connector::new(),
            extended,
            batch: VecDeque::new(),
            bytes: 0,
            displaced: 0,
            is_furnished: false,
            receives_notes: true,
            came_back: false,
        })
    }

    /// Makes what streams need. Where less can be pinned than the settings want, there is less.
    fn furnish(&mut self) -> Result<()> {
        if !self.is_furnished {
            let Settings {
                sends,
                receives,
                slot,
                ..
            } = self.settings;
            self.sends = SendSlots::new(pinned(&self.domain, sends, slot)?);
            let first = pinned(&self.domain, receives, slot)?;
            self.pool.begin(&mut self.queue, first);
            self.is_furnished = true;
        }
        Ok(())
    }

    /// The device and the port.
    pub(crate) fn port_name(&self) -> String {
        let chosen = self.port.chosen();
        format!("{} port {}", chosen.device.name(), chosen.port)
    }

    /// Megabits a second of the port; never 0.
    pub(crate) fn speed(&self) -> u32 {
        self.port.chosen().state.speed.max(1)
    }

    pub(crate) fn domain(&self) -> &Domain<P> {
        &self.domain
    }

    /// Whether the port came back since this was last asked.
    pub(crate) fn take_came_back(&mut self) -> bool {
        std::mem::take(&mut self.came_back)
    }

    /// The next lane that has changed.
    pub(crate) fn next_changed_lane(&mut self) -> Option<u64> {
        self.lanes.next_changed_name()
    }

    /// Messages of the widest window that a lane may have.
    fn widest(&self) -> u32 {
        self.settings.window.clamp(GRANT_MIN, WINDOW_MAX)
    }
}

impl<P: Provider> Adapter<P> {
    fn make_lane(&mut self, rank: u32) -> std::result::Result<(u64, Offer), String> {
        let (name, rail) = self.prepare_lane(rank, Instant::now(), LanePlace::OfSilent)?;
        if let Err(reason) = self.begin_stream(name) {
            self.close_lane(name);
            return Err(reason);
        }
        Ok((name, self.offer_of(&[rail])))
    }

    /// Takes the results of threads that connect lanes. Says whether there was one.
    fn look_at_connecting(&mut self) -> bool {
        if self.connector.is_idle() {
            return false;
        }
        self.connector.retire_orphans(&mut self.queue);
        let extended = self.extended.is_some() && self.take_connected_extended();
        self.take_connected_lanes() | extended
    }
}

impl<P: Provider> Lanes for Adapter<P> {
    fn make(&mut self, rank: u32) -> std::result::Result<(u64, Offer), String> {
        match self.extended {
            None => self.make_lane(rank),
            Some(_) => self.make_extended_lane(rank),
        }
    }

    fn connect(&mut self, name: u64, peer: &Offer) {
        match self.extended {
            None => self.start_connecting(name, peer),
            Some(_) => self.connect_extended(name, peer),
        }
    }

    fn is_connected(&self, name: u64) -> bool {
        self.lanes.get(name).is_some_and(Lane::is_connected)
    }

    fn target(&self, name: u64) -> Option<u32> {
        self.lanes.get(name)?.extended.as_ref()?.made_target()
    }

    fn hear_target(&mut self, name: u64, target: u32) {
        self.connect_initiator(name, target);
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
        let connected = self.look_at_connecting();
        let found = self.take_completions();
        connected | found
    }

    fn next_changed(&mut self) -> Option<u32> {
        self.lanes.next_changed()
    }

    fn has_changed(&self) -> bool {
        self.lanes.has_changed()
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
        let lane = self.lanes.get(name);
        lane.is_none_or(|lane| lane.sending.is_taken())
    }

    fn unread(&self, name: u64) -> usize {
        let lane = self.lanes.get(name);
        lane.map_or(0, |lane| lane.receiving.unread())
    }

    fn read(&mut self, name: u64, out: &mut [u8]) -> usize {
        self.read_bytes(name, out)
    }

    fn acknowledge(&mut self, name: u64) {
        self.acknowledge_taken(name);
    }

    fn show(&mut self, name: u64, bytes: &[u8]) -> Option<ExposedMemory> {
        let shows = &self.lanes.get(name)?.shows;
        self.reads.show(&self.domain, &self.settings, shows, bytes)
    }

    fn can_post_reads(&mut self, name: u64) -> bool {
        self.is_connected(name)
            && self.settings.reads_by(self.domain.device().limits())
            && self.reads.can_read(&self.domain, self.settings.stripe)
    }

    fn post_read(&mut self, name: u64, token: u64, from: RemoteAddress, len: u64) -> u64 {
        let from = Remote {
            address: from.address,
            key: from.key as u32,
        };
        self.post_reads(name, token, from, len)
    }

    fn read_state(&self, name: u64, token: u64) -> ReadState {
        self.next_read(name, token)
    }

    fn copy_read(&self, name: u64, token: u64, offset: usize, out: &mut [u8]) {
        self.copy_next_read(name, token, offset, out);
    }

    fn release_read(&mut self, name: u64, token: u64) {
        self.release_next_read(name, token);
    }

    fn stop(&mut self, name: u64) -> u64 {
        self.stop_lane(name)
    }

    fn left(&mut self, name: u64, received: u64) -> Option<Vec<u8>> {
        self.lanes.get_mut(name)?.sending.take_left(received)
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

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let completions = self.queue.descriptor().into_iter();
        completions.chain([self.port.events()]).collect()
    }

    fn rails(&self, name: u64) -> Vec<String> {
        let lane = self.lanes.get(name).into_iter();
        lane.map(|_| self.port_name()).collect()
    }

    fn hear_device(&mut self) {
        self.poll_events();
    }

    fn age(&mut self, now: Instant) {
        self.age_lanes(now);
    }

    fn figures(&self) -> Figures {
        Figures {
            pinned: (self.pool.pinned() + self.sends.pinned()) as u64 + self.reads.pinned(),
            bytes: self.bytes,
            receives: self.pool.count() as u64,
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
        self.pool.retire(&mut self.queue);
    }
}
