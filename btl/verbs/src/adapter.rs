// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's device with all that its peers share, and a *lane* to each peer: a reliable connection that carries a
//! stream of bytes.
//!
//! A lane knows no message. It cuts the stream into what a receive of the peer has room for, and keeps each piece until
//! the peer has taken it. When it fails, both sides say how far they have received, and what is behind that goes
//! another way ([`Lanes::close`]). So nothing is lost and nothing comes twice, whatever the device says of a send.
//!
//! Invariants:
//!
//! - *Receives* are one pool for all lanes. A peer is permitted no message for which no receive is posted: the sum of
//!   what is permitted and has not come never exceeds what is posted. So no peer finds the queue empty.
//! - The last message that is permitted is kept for a control message that permits more. A rank whose bytes wait for
//!   permission can therefore always give some.
//! - The pool grows by parts while lanes use all of their windows, to a bound, and as long as memory can be pinned. It
//!   shrinks as receives of its newest part come back while windows are small.
//! - A slot to send from is held only while the device reads it, or while there are others: what the peer does not take
//!   is copied to memory that nobody pins. So a peer that takes nothing keeps no other one waiting.
//! - Nothing waits: a connection that may take a second is made by a thread.
//! - A rank has at most [`Settings::lanes_max`] lanes. For another one, that which was silent longest gives its place;
//!   where none was silent for [`SILENT`], there is no further lane. So lanes that are in use are never exchanged.

mod contract;
mod head;
mod lane;
mod pool;
mod reads;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use crate::domain::{Domain, Receives};
use crate::error::{Error, Result};
use crate::memory::{Local, Region, Slot};
use crate::news::News;
use crate::pair::{InitAttributes, Operation, Pair, Ready};
use crate::port::{Chosen, NUMBER_MAX, Said, choose_at, look_at};
use crate::provider::{Depths, Kind, Provider};
use crate::queue::{Completion, Done, Queue};
use crate::table::Table;
use crate::timing::Timing;
use crate::unmaps::without_signals;
pub use contract::{Fetched, Figures, Lanes, Settings, Shown};
use head::{HEAD, Head};
pub use head::{Mark, Offer};
use lane::{Arrived, Bytes, Kept, Lane, Stage};
use pool::fitting;
pub(crate) use pool::pinned;

/// Messages that a new lane permits: fewer carry nothing.
const GRANT_MIN: u32 = 4;
/// Messages that a lane permits at most.
const WINDOW_MAX: u32 = 1 << 12;
/// How long a lane has carried nothing before it gives its place to another one.
pub const SILENT: Duration = Duration::from_secs(1);
/// Rounds in which a connection that fails may tell of what was under way.
const FLUSH_ROUNDS: u32 = 256;
/// Bytes that a request itself may carry.
const INLINE_MAX: usize = 512;

/// A rank's side of its lanes.
#[derive(Debug)]
pub struct Adapter<P: Provider> {
    settings: Settings,
    chosen: Arc<Chosen<P>>,
    domain: Domain<P>,
    queue: Queue<P>,
    /// None when it is being dropped.
    receives: Option<Receives<P>>,
    /// The pool's parts, each a region of receives.
    parts: Vec<Region<P>>,
    sends: Region<P>,
    reads: reads::Reads<P>,
    timing: Timing,
    lanes: Table<Lane<P>>,
    /// The lane of each pair.
    by_pair: HashMap<u32, u64>,
    /// Names of lanes with news.
    news: News,
    /// Lanes that are being connected.
    connecting: usize,
    batch: Vec<Completion<P>>,
    /// Connections of lanes that were given up meanwhile.
    orphans: Vec<Receiver<Result<Pair<P, Ready>>>>,
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
    /// Slots that were read to their end: of use within a call only.
    read: Vec<Slot<P>>,
}

impl<P: Provider> Adapter<P> {
    /// Opens a device. Where not all can be pinned that the settings want, it does with less.
    ///
    /// # Errors
    ///
    /// What there is, why none of it will do, and what would help.
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
            news: News::default(),
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

    /// Permits a lane's peer more messages, as far as receives are posted.
    fn grant(&mut self, name: u64) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let wanted = lane.wanted() as usize;
        let free = self.posted.saturating_sub(self.promised);
        if wanted > free && self.grow() {
            return self.grant(name);
        }
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let more = wanted.min(free);
        self.promised += more;
        lane.granted = lane.granted.wrapping_add(more as u32);
    }

    /// Sends an acknowledgement alone, if the peer permits it.
    fn tell(&mut self, name: u64) {
        self.grant(name);
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let Stage::Ready(pair) = &lane.stage else {
            return;
        };
        if lane.failed.is_some() || lane.credit() == 0 || lane.building.is_some() {
            // What is being built tells it, too.
            return;
        }
        if lane.credit() == 1 && lane.granted == lane.told_granted {
            // The last one is kept until it permits more. Where both sides use theirs up for less, both wait for ever.
            return;
        }
        let head = lane.head().encode();
        let operation = Operation::Send { immediate: None };
        let posted = if pair.inline() >= HEAD {
            pair.post_inline(&mut self.queue, operation, &head)
        } else {
            // Requests of this device carry nothing themselves.
            let Some(mut slot) = self.sends.take() else {
                return;
            };
            slot.write(0, &head);
            let cookie = u64::from(lane.sent);
            pair.post(&mut self.queue, operation, Local::first(slot, HEAD), cookie)
        };
        match posted {
            Ok(()) => {
                lane.told();
                lane.sent = lane.sent.wrapping_add(1);
                let bytes = Bytes::Copy(Vec::new());
                let at = lane.at;
                lane.kept.push_back(Kept { at, len: 0, bytes });
            }
            Err(refused) if refused.is_full() => {}
            Err(refused) => self.fail(name, refused.error.to_string()),
        }
    }

    fn fail(&mut self, name: u64, reason: String) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.failed.get_or_insert(reason);
            self.news.note(name, lane);
        }
    }

    /// Has the lane that was silent longest give its place, where there are as many as there may be.
    fn make_place(&mut self, now: Instant) -> std::result::Result<(), String> {
        let names = self.lanes.names();
        let mut count = 0;
        let mut oldest: Option<(Instant, u64)> = None;
        for name in names {
            let Some(lane) = self
                .lanes
                .get_mut(name)
                .filter(|lane| lane.failed.is_none())
            else {
                continue;
            };
            count += 1;
            lane.look_at_use(now);
            if lane.is_silent() && oldest.is_none_or(|(used, _)| lane.used < used) {
                oldest = Some((lane.used, name));
            }
        }
        if count < self.settings.lanes_max {
            return Ok(());
        }
        match oldest {
            Some((used, name)) if now >= used + SILENT => {
                self.displaced += 1;
                self.fail(
                    name,
                    "another rank's lane needs its place (ONECOPY_VERBS_LANES)".to_owned(),
                );
                Ok(())
            }
            _ => Err(format!(
                "all {count} lanes that a rank may have are in use; raise ONECOPY_VERBS_LANES"
            )),
        }
    }

    fn fail_all(&mut self, reason: &str) {
        for name in self.lanes.names() {
            self.fail(name, reason.to_owned());
        }
    }

    fn completed(&mut self, done: Completion<P>) {
        let name = self.by_pair.get(&done.pair).copied();
        match done.done {
            Done::Received => {
                self.posted = self.posted.saturating_sub(1);
                let Some(slot) = done.slot else { return };
                match (name, done.outcome) {
                    (Some(name), Ok(())) => self.arrived(name, slot, done.bytes),
                    (name, outcome) => {
                        self.post(slot);
                        if let (Some(name), Err(status)) = (name, outcome) {
                            self.fail(name, status.to_string());
                        }
                    }
                }
            }
            Done::Sent => {
                let Some(name) = name else { return };
                if let Some(lane) = self.lanes.get_mut(name) {
                    lane.ended = lane.ended.wrapping_add(1);
                }
                match (done.slot, done.cookie) {
                    (Some(slot), Some(cookie)) if cookie & reads::READ != 0 => {
                        self.has_come(name, cookie as u32, slot, done.outcome.is_ok());
                    }
                    (Some(slot), Some(cookie)) => self.sent(name, cookie as u32, slot),
                    _ => {}
                }
                if let Err(status) = done.outcome {
                    self.fail(name, status.to_string());
                }
            }
        }
    }

    fn arrived(&mut self, name: u64, slot: Slot<P>, len: usize) {
        let Some(lane) = self.lanes.get_mut(name) else {
            self.post(slot);
            return;
        };
        match lane.arrive(slot, len) {
            Ok((arrived, slot)) => {
                self.promised = self.promised.saturating_sub(1);
                let spare = &mut self.spare;
                lane.forget(|bytes| {
                    if let Bytes::Copy(bytes) = bytes {
                        keep_spare(spare, bytes);
                    }
                });
                if arrived == Arrived::Bytes {
                    self.bytes += (len - HEAD) as u64;
                }
                self.news.note(name, lane);
                if let Some(slot) = slot {
                    self.recycle(slot);
                    // At once: nobody else may be given what is posted for this one.
                    self.grant(name);
                    if self.lanes.get(name).is_some_and(Lane::must_tell) {
                        self.tell(name);
                    }
                }
            }
            Err((what, slot)) => {
                self.post(slot);
                self.fail(name, format!("the peer sent {what}"));
            }
        }
    }

    /// The device has read a message.
    fn sent(&mut self, name: u64, number: u32, slot: Slot<P>) {
        let scarce = self.sends.count() - self.sends.taken() < self.sends.count().div_ceil(4);
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let Some(at) = lane.place_of(number) else {
            return;
        };
        let Some(kept) = lane.kept.get_mut(at).filter(|kept| kept.len > 0) else {
            return;
        };
        kept.bytes = if scarce {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.resize(kept.len, 0);
            slot.read(HEAD, &mut bytes);
            Bytes::Copy(bytes)
        } else {
            Bytes::Slot(slot)
        };
        // Whoever waits for a slot looks again.
        self.news.note(name, lane);
    }

    /// Copies what acknowledged nothing out of the slots that it holds: others need them.
    #[cold]
    fn make_room(&mut self) {
        for name in self.lanes.names() {
            let Some(lane) = self.lanes.get_mut(name) else {
                continue;
            };
            for kept in &mut lane.kept {
                if let Bytes::Slot(slot) = &kept.bytes {
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.resize(kept.len, 0);
                    slot.read(HEAD, &mut bytes);
                    kept.bytes = Bytes::Copy(bytes);
                }
            }
        }
    }

    /// Moves on what is being connected.
    fn look_at_connections(&mut self) -> bool {
        if self.connecting == 0 && self.orphans.is_empty() {
            return false;
        }
        let mut found = false;
        let mut over = Vec::new();
        self.orphans.retain(|orphan| match orphan.try_recv() {
            Ok(Ok(pair)) => {
                over.push(pair);
                false
            }
            Ok(Err(_)) | Err(TryRecvError::Disconnected) => false,
            Err(TryRecvError::Empty) => true,
        });
        for pair in over {
            drop(self.queue.retire(pair));
        }
        for name in self.lanes.names() {
            let Some(lane) = self.lanes.get_mut(name) else {
                continue;
            };
            let Stage::Connecting(coming) = &lane.stage else {
                continue;
            };
            let failed = match coming.try_recv() {
                Ok(Ok(pair)) => {
                    lane.stage = Stage::Ready(pair);
                    None
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => Some("the thread that connects it ended".into()),
            };
            found = true;
            self.connecting -= 1;
            self.news.note(name, lane);
            if let Some(reason) = failed {
                lane.stage = Stage::Over;
                self.fail(name, reason);
            }
        }
        found
    }

    fn take_completions(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let polled = self.queue.poll(|completion| batch.push(completion));
        let found = !batch.is_empty();
        for completion in batch.drain(..) {
            self.completed(completion);
        }
        self.batch = batch;
        if let Err(error) = polled {
            let reason = error.to_string();
            self.fail_all(&reason);
            self.down = Some(reason);
        }
        found
    }
}

/// Buffers for copies that are kept for use again.
const SPARE_MAX: usize = 64;

fn keep_spare(spare: &mut Vec<Vec<u8>>, mut bytes: Vec<u8>) {
    if bytes.capacity() > 0 && spare.len() < SPARE_MAX {
        bytes.clear();
        spare.push(bytes);
    }
}

impl<P: Provider> Lanes for Adapter<P> {
    fn make(&mut self, rank: u32) -> std::result::Result<(u64, Offer), String> {
        self.look_at_port()?;
        self.make_place(Instant::now())?;
        while self.posted < self.promised + GRANT_MIN as usize {
            if !self.grow() {
                return Err(format!(
                    "all {} receives are promised to others; raise ONECOPY_VERBS_RECEIVES_MAX, or the limit on locked \
                     memory (ulimit -l)",
                    self.posted
                ));
            }
        }
        let window = self.settings.window.clamp(GRANT_MIN, WINDOW_MAX);
        let attributes = InitAttributes {
            kind: Kind::Connection,
            receives: self.receives.as_ref(),
            shared: None,
            depths: Depths {
                // Sends that do not complete one by one hold half of it.
                sends: 2 * window + 16,
                receives: 0,
                inline: self.settings.inline.min(INLINE_MAX) as u32,
            },
        };
        let text = |error: Error| error.to_string();
        let pair = Pair::new(&self.domain, &mut self.queue, &attributes).map_err(text)?;
        let pair = pair.prepare(&self.chosen, 0).map_err(text)?;
        // Numbers of packets of an earlier connection are not those of this one.
        self.first = self.first.wrapping_mul(0x9e37_79b1).wrapping_add(1) & NUMBER_MAX;
        let own = pair.reach(&self.chosen, self.first);
        let number = pair.number();
        let mut lane = Lane::new(rank, pair, own);
        lane.granted = GRANT_MIN;
        lane.told_granted = GRANT_MIN;
        let name = self
            .lanes
            .insert(lane)
            .ok_or_else(|| "there are too many lanes".to_owned())?;
        self.promised += GRANT_MIN as usize;
        self.by_pair.insert(number, name);
        let offer = Offer {
            reach: own,
            room: self.settings.slot.next_multiple_of(64) as u32,
            granted: GRANT_MIN,
            mark: None,
        };
        Ok((name, offer))
    }

    fn connect(&mut self, name: u64, peer: &Offer) {
        if peer.mark.is_some() {
            let reason =
                "the peer's lanes are datagrams; set ONECOPY_VERBS_MODE alike on all ranks";
            return self.fail(name, reason.to_owned());
        }
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let stage = std::mem::replace(&mut lane.stage, Stage::Over);
        let Stage::Prepared(pair) = stage else {
            lane.stage = stage;
            return;
        };
        lane.permit(peer);
        let (chosen, own, timing) = (Arc::clone(&self.chosen), lane.own, self.timing);
        let reach = peer.reach;
        let (tell, coming) = sync_channel(1);
        let started = without_signals(|| {
            std::thread::Builder::new()
                .name("onecopy-connect".to_owned())
                .stack_size(128 << 10)
                .spawn(move || {
                    // Whoever waited may have given the lane up.
                    let _ = tell.send(pair.connect(&chosen, &own, &reach, timing));
                })
        });
        match started {
            Ok(_) => {
                lane.stage = Stage::Connecting(coming);
                self.connecting += 1;
            }
            Err(error) => self.fail(name, format!("a thread that connects: {error}")),
        }
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

    fn news(&mut self) -> Option<u32> {
        self.news.next(&mut self.lanes)
    }

    fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    fn has_room(&mut self, name: u64, bytes: usize) -> bool {
        if self.sends.taken() > self.sends.count() / 2 {
            self.make_room();
        }
        let Some(lane) = self.lanes.get(name) else {
            return false;
        };
        if !matches!(lane.stage, Stage::Ready(_)) || lane.failed.is_some() {
            return false;
        }
        let most = lane
            .permitted
            .wrapping_sub(lane.acknowledged)
            .saturating_sub(1) as usize;
        let slots = self.sends.count() - self.sends.taken();
        let now = (lane.credit().saturating_sub(1) as usize).min(slots);
        let each = lane.room.min(self.sends.slot_bytes()) - HEAD;
        now > 0 && now >= bytes.div_ceil(each).min(most.min(self.sends.count()) / 4)
    }

    fn write(&mut self, name: u64, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let Some(lane) = self.lanes.get_mut(name) else {
                break;
            };
            let room = lane.room.min(self.sends.slot_bytes());
            let (slot, len) = match &mut lane.building {
                Some((_, len)) if *len == room => {
                    if !self.push(name) {
                        break;
                    }
                    continue;
                }
                Some((slot, len)) => (slot, len),
                None => {
                    if !lane.may_send() || lane.failed.is_some() {
                        break;
                    }
                    let mut slot = self.sends.take();
                    if slot.is_none() {
                        self.make_room();
                        slot = self.sends.take();
                    }
                    let Some(slot) = slot else { break };
                    let Some(lane) = self.lanes.get_mut(name) else {
                        break;
                    };
                    let (slot, len) = lane.building.insert((slot, HEAD));
                    (slot, len)
                }
            };
            let count = (room - *len).min(bytes.len() - written);
            slot.write(*len, &bytes[written..written + count]);
            *len += count;
            written += count;
        }
        written
    }

    fn push(&mut self, name: u64) -> bool {
        self.grant(name);
        let Some(lane) = self.lanes.get_mut(name) else {
            return true;
        };
        let Some((mut slot, len)) = lane.building.take() else {
            return true;
        };
        let Stage::Ready(pair) = &lane.stage else {
            lane.building = Some((slot, len));
            return false;
        };
        slot.write(0, &lane.head().encode());
        let payload = len - HEAD;
        let operation = Operation::Send { immediate: None };
        let posted = if len <= pair.inline().min(INLINE_MAX) {
            let mut inline = [0; INLINE_MAX];
            slot.read(0, &mut inline[..len]);
            match pair.post_inline(&mut self.queue, operation, &inline[..len]) {
                Ok(()) => Ok(Bytes::Slot(slot)),
                Err(refused) => Err((refused, Some(slot))),
            }
        } else {
            let local = Local::first(slot, len);
            let cookie = u64::from(lane.sent);
            match pair.post(&mut self.queue, operation, local, cookie) {
                Ok(()) => Ok(Bytes::Posted),
                Err(mut refused) => {
                    let local = std::mem::replace(&mut refused.local, Local::Nothing);
                    Err((refused, local.slot()))
                }
            }
        };
        match posted {
            Ok(bytes) => {
                lane.told();
                let at = lane.at;
                lane.kept.push_back(Kept {
                    at,
                    len: payload,
                    bytes,
                });
                lane.sent = lane.sent.wrapping_add(1);
                lane.at += payload as u64;
                true
            }
            Err((refused, slot)) => {
                lane.building = slot.map(|slot| (slot, len));
                if !refused.is_full() {
                    let reason = refused.error.to_string();
                    self.fail(name, reason);
                }
                false
            }
        }
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
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        let mut done = std::mem::take(&mut self.read);
        let count = lane.read(out, |slot| done.push(slot));
        let passed = !done.is_empty();
        for slot in done.drain(..) {
            self.recycle(slot);
        }
        self.read = done;
        if !passed {
            return count;
        }
        let window = self.settings.window.clamp(GRANT_MIN, WINDOW_MAX);
        if let Some(lane) = self.lanes.get_mut(name) {
            let used = lane.taken.wrapping_sub(lane.told_taken) >= lane.window / 2;
            if used && lane.window < window {
                // Whoever uses half of a window before it hears of that can use a larger one.
                lane.window = (2 * lane.window).min(window);
            }
        }
        self.grant(name);
        if self.lanes.get(name).is_some_and(Lane::must_tell) {
            self.tell(name);
        }
        count
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

    fn can_fetch(&mut self, name: u64) -> bool {
        self.is_connected(name) && self.can_read()
    }

    fn fetch(&mut self, name: u64, token: u64, from: (u64, u32), len: u64) -> u64 {
        self.ask_for(name, token, from, len)
    }

    fn fetched(&self, name: u64, token: u64) -> Fetched {
        self.next_of(name, token)
    }

    fn read_fetched(&self, name: u64, token: u64, at: usize, out: &mut [u8]) {
        self.read_next(name, token, at, out);
    }

    fn pass_fetched(&mut self, name: u64, token: u64) {
        self.pass_next(name, token);
    }

    fn stop(&mut self, name: u64) -> u64 {
        // What has come before is taken.
        for _ in 0..FLUSH_ROUNDS {
            if !self.take_completions() {
                break;
            }
        }
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        lane.failed
            .get_or_insert_with(|| "it was given up".to_owned());
        match std::mem::replace(&mut lane.stage, Stage::Over) {
            Stage::Prepared(pair) => drop(self.queue.retire(pair)),
            Stage::Connecting(coming) => {
                self.connecting -= 1;
                self.orphans.push(coming);
            }
            Stage::Ready(pair) => {
                // A pair that cannot fail any more has failed.
                let _ = pair.fail();
                for _ in 0..FLUSH_ROUNDS {
                    let under_way = self.lanes.get(name).is_some_and(|lane| {
                        let mut kept = lane.kept.iter();
                        kept.any(|kept| matches!(kept.bytes, Bytes::Posted))
                    });
                    if !self.take_completions() && !under_way {
                        break;
                    }
                }
                let number = pair.number();
                let slots = self.queue.retire(pair);
                self.by_pair.remove(&number);
                self.take_back(name, slots);
            }
            Stage::Over => {}
        }
        self.by_pair.retain(|_, lane| *lane != name);
        self.lanes.get(name).map_or(0, |lane| lane.next)
    }

    fn left(&mut self, name: u64, received: u64) -> Option<Vec<u8>> {
        let lane = self.lanes.get_mut(name)?;
        let mut left = Vec::new();
        let mut at = lane.kept.front().map_or(lane.at, |kept| kept.at);
        if received < at || received > lane.at {
            return None;
        }
        for kept in &lane.kept {
            let skip = usize::try_from(received.saturating_sub(at))
                .ok()?
                .min(kept.len);
            let count = kept.len - skip;
            match &kept.bytes {
                Bytes::Slot(slot) => {
                    let begin = left.len();
                    left.resize(begin + count, 0);
                    slot.read(HEAD + skip, &mut left[begin..]);
                }
                Bytes::Copy(bytes) => left.extend_from_slice(bytes.get(skip..)?),
                // The device keeps it: its end was not told.
                Bytes::Posted => return None,
            }
            at += kept.len as u64;
        }
        if let Some((slot, len)) = &lane.building {
            let begin = left.len();
            left.resize(begin + len - HEAD, 0);
            slot.read(HEAD, &mut left[begin..]);
        }
        lane.kept.clear();
        lane.building = None;
        Some(left)
    }

    fn close(&mut self, name: u64) {
        self.stop(name);
        let Some(mut lane) = self.lanes.remove(name) else {
            return;
        };
        self.promised -= (lane.granted.wrapping_sub(lane.arrived) as usize).min(self.promised);
        let mut left = Vec::new();
        let mut nobodys = [0; 4096];
        while lane.read(&mut nobodys, |slot| left.push(slot)) > 0 {}
        for slot in left {
            self.recycle(slot);
        }
    }

    fn arm(&mut self) -> bool {
        // What is refused is found by the next poll.
        let _ = self.queue.take_wakes();
        let armed = self.queue.arm().is_ok();
        let found = self.poll();
        armed && !found
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [self.queue.descriptor(), Some(self.chosen.device.events())]
    }

    fn hear_device(&mut self) {
        // A descriptor that stays readable would keep everybody awake.
        let _ = self.queue.take_wakes();
        while let Ok(Some(event)) = self.chosen.device.next_event() {
            match self.chosen.said(event) {
                Said::Down(reason) => {
                    self.fail_all(&reason);
                    self.down = Some(reason);
                }
                Said::Stale => self.is_stale = true,
                Said::PairFailed(number) => {
                    if let Some(&lane) = self.by_pair.get(&number) {
                        let name = self.chosen.device.name();
                        self.fail(lane, format!("{name}: the connection failed"));
                    }
                }
                Said::Nothing => {}
            }
        }
    }

    fn age(&mut self, now: Instant) {
        // A device tells of a peer's silence itself; one that tells nothing keeps nobody waiting for ever.
        let longest = 2 * self.timing.silence() + Duration::from_secs(1);
        for name in self.lanes.names() {
            if let Some(lane) = self.lanes.get_mut(name) {
                let still = lane.still_since(now);
                if still.is_some_and(|since| now > since + longest) {
                    let text =
                        "the device tells nothing of what is under way; see the kernel's log";
                    lane.failed.get_or_insert_with(|| text.to_owned());
                    self.news.note(name, lane);
                }
                if lane.seen == lane.arrived {
                    lane.window = (lane.window / 2).max(GRANT_MIN);
                }
                lane.seen = lane.arrived;
                lane.look_at_use(now);
            }
        }
        self.spare.truncate(SPARE_MAX / 4);
        self.is_full = false;
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

impl<P: Provider> Adapter<P> {
    /// Whether there can be lanes now, by a port that may have been down.
    fn look_at_port(&mut self) -> std::result::Result<(), String> {
        if self.is_stale {
            let Chosen { device, port, .. } = &*self.chosen;
            match look_at(device.clone(), *port, self.settings.address) {
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

    /// Slots of messages whose end the device did not tell: each says itself which message it is.
    fn take_back(&mut self, name: u64, slots: Vec<Slot<P>>) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        // Those of reads go back as they are.
        for slot in slots.into_iter().filter(|slot| self.sends.owns(slot)) {
            let mut raw = [0; HEAD];
            slot.read(0, &mut raw);
            let at = Head::decode(&raw).at;
            let mut kept = lane.kept.iter_mut();
            let found = kept
                .find(|kept| kept.at == at && kept.len > 0 && matches!(kept.bytes, Bytes::Posted));
            if let Some(kept) = found {
                kept.bytes = Bytes::Slot(slot);
            }
        }
    }
}
