// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank's device with one pair for datagrams, and a *lane* to each peer over it.
//!
//! What a lane is to its users says [`crate::Lanes`]. Its order, its windows and what it sends again are the rules of
//! `arq.rs`. This gives them a device and a clock.
//!
//! Invariants:
//!
//! - Registered memory is only lent to the device. What goes out is a copy, and what comes is copied out; its slot is
//!   posted again before the next one is looked at. So no peer keeps a slot.
//! - Nothing of a packet is believed before its seal and its sender's pair are those of the lane.
//! - A lane that has something to send is among the *hungry* until the device has room, or its window is full.
//! - A lane that waits for its peer is *watched* until its clock says that something is due.
//! - A way to a port is kept for all lanes that lead there. One that is given up still exists as long as the device
//!   could use it.
//! - A pair that has failed fails all lanes; the next lane begins with a new pair.

mod arq;
mod clock;
mod head;
mod lanes;
mod order;
mod sent;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use crate::adapter::pinned;
use crate::domain::{AddressHandle, Domain};
use crate::error::Result;
use crate::memory::{Local, Region, Slot};
use crate::news::{News, Newsworthy};
use crate::pair::{InitAttributes, Operation, Pair, Ready};
use crate::port::{Chosen, look_at};
use crate::provider::{Depths, Kind, Path, Provider};
use crate::queue::{Completion, DATAGRAM_HEAD, Done, Queue};
use crate::table::Table;
use crate::unmaps::without_signals;
use arq::{Arq, WINDOW_MAX};
use head::{HEAD, Head};

/// Packets of a window at least: fewer cannot be offered.
const WINDOW_MIN: u32 = 4;
/// Bytes that a request itself may carry.
const INLINE_MAX: usize = 512;
/// Sends under way beside those that hold slots.
const INLINE_SENDS: u32 = 64;
/// Ways that were given up and are kept all the same: the device may still use them.
const OLD_MAX: usize = 64;
/// Buffers for packets that are kept for use again.
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
    /// Of a hundred packets that come, so many are thrown away: for tests.
    pub drop: u8,
    /// By what it is decided which.
    pub seed: u64,
}

/// How far a lane has come.
#[derive(Debug)]
enum Stage<P: Provider> {
    /// It waits for the peer's offer.
    Made,
    /// The way to the peer is looked for.
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
    has_news: bool,
    is_touched: bool,
    is_hungry: bool,
    is_watched: bool,
}

impl<P: Provider> Newsworthy for Lane<P> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn has_news(&mut self) -> &mut bool {
        &mut self.has_news
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
    /// Names of lanes with news, of those to which something came, of those that wait for the device, of those that
    /// wait for a time, and the first of these times.
    news: News,
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
    /// Opens a pair on a device. Where not all can be pinned that the settings want, it does with less.
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
            news: News::default(),
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

    /// A number that nobody guesses.
    fn fresh(&self, salt: u32) -> u64 {
        let mut hasher = self.keys.build_hasher();
        hasher.write_u32(salt);
        hasher.finish()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Makes the pair, with all receives posted.
    fn open_pair(&mut self) -> Result<()> {
        let attributes = InitAttributes {
            kind: Kind::Datagrams,
            receives: None,
            shared: None,
            depths: Depths {
                sends: self.sends.count() as u32 + INLINE_SENDS,
                receives: self.receives.count() as u32,
                inline: self.settings.inline.min(INLINE_MAX) as u32,
            },
        };
        // Q_Keys with the highest bit are the kernel's.
        self.qkey = self.fresh(u32::MAX) as u32 & 0x7fff_ffff;
        let pair = Pair::new(&self.domain, &mut self.queue, &attributes)?;
        let pair = pair.prepare(&self.chosen, self.qkey)?.open()?;
        while let Some(slot) = self.receives.take() {
            if pair.receive(&mut self.queue, slot, 0).is_err() {
                break;
            }
        }
        self.pair = Some(pair);
        Ok(())
    }

    /// Whether there can be lanes now, by a port or a pair that may have failed.
    fn look_at_port(&mut self) -> std::result::Result<(), String> {
        if self.is_stale {
            let Chosen { device, port, .. } = &self.chosen;
            match look_at(device.clone(), *port, self.settings.address) {
                Ok(chosen) if chosen.state.packet as usize >= self.room + DATAGRAM_HEAD => {
                    self.chosen = chosen;
                    self.down = None;
                    self.is_stale = false;
                }
                Ok(_) => self.down = Some("the port's packets are shorter than before".to_owned()),
                Err(reason) => self.down = Some(reason),
            }
        }
        if let Some(reason) = &self.down {
            return Err(reason.clone());
        }
        if self.pair.is_none() {
            self.open_pair().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Nothing goes by the pair any more.
    fn fail_pair(&mut self, reason: &str) {
        if let Some(pair) = self.pair.take() {
            drop(self.queue.retire(pair));
        }
        for name in self.lanes.names() {
            self.fail(name, reason.to_owned());
        }
    }

    fn fail(&mut self, name: u64, reason: String) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.failed.get_or_insert(reason);
            self.news.note(name, lane);
        }
    }

    /// Looks for the way to a lane's peer.
    fn find(&mut self, name: u64, path: Path) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        if let Some(ah) = self.handles.get(&path) {
            lane.stage = Stage::Ready(ah.clone());
            return self.news.note(name, lane);
        }
        lane.stage = Stage::Finding;
        if self.finding.contains_key(&path) {
            return;
        }
        let domain = self.domain.clone();
        let (tell, found) = sync_channel(1);
        let started = without_signals(|| {
            std::thread::Builder::new()
                .name("onecopy-ah".to_owned())
                .stack_size(128 << 10)
                .spawn(move || {
                    // Whoever waited may have gone.
                    let _ = tell.send(domain.address_handle(&path));
                })
        });
        match started {
            Ok(_) => drop(self.finding.insert(path, found)),
            Err(error) => self.fail(name, format!("a thread that resolves the address: {error}")),
        }
    }

    /// Takes ways that were found.
    fn take_ways(&mut self) -> bool {
        let mut over = Vec::new();
        for (path, found) in &self.finding {
            match found.try_recv() {
                Ok(Ok(ah)) => over.push((*path, Ok(ah))),
                Ok(Err(error)) => over.push((*path, Err(error.to_string()))),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    over.push((
                        *path,
                        Err("the thread that resolves the address ended".to_owned()),
                    ));
                }
            }
        }
        let found = !over.is_empty();
        for (path, ah) in over {
            self.finding.remove(&path);
            for name in self.lanes.names() {
                let Some(lane) = self.lanes.get_mut(name) else {
                    continue;
                };
                let waits = matches!(lane.stage, Stage::Finding);
                if !waits || lane.peer.is_none_or(|peer| peer.path != path) {
                    continue;
                }
                match &ah {
                    Ok(ah) => {
                        lane.stage = Stage::Ready(ah.clone());
                        self.news.note(name, lane);
                    }
                    Err(reason) => self.fail(name, reason.clone()),
                }
            }
            if let Ok(ah) = ah {
                self.handles.insert(path, ah);
            }
        }
        found
    }

    /// Sends what a lane has to send, as far as the device has room.
    fn go_out(&mut self, name: u64) {
        let now = self.now();
        loop {
            let (Some(lane), Some(pair)) = (self.lanes.get_mut(name), &self.pair) else {
                return;
            };
            let (Stage::Ready(ah), Some(peer), None) = (&lane.stage, lane.peer, &lane.failed)
            else {
                return;
            };
            let Some(out) = lane.arq.next() else { break };
            let head = lane.arq.head(peer.mark, out).encode(peer.key);
            let bytes = lane.arq.bytes(out);
            let len = HEAD + bytes.len();
            let to = Operation::SendTo {
                ah,
                pair: peer.pair,
                qkey: peer.qkey,
                immediate: None,
            };
            let posted = if len <= pair.inline().min(INLINE_MAX) {
                let mut inline = [0; INLINE_MAX];
                inline[..HEAD].copy_from_slice(&head);
                inline[HEAD..len].copy_from_slice(bytes);
                pair.post_inline(&mut self.queue, to, &inline[..len])
            } else if let Some(mut slot) = self.sends.take() {
                slot.write(0, &head);
                slot.write(HEAD, bytes);
                pair.post(&mut self.queue, to, Local::first(slot, len), 0)
            } else {
                self.hunger(name);
                break;
            };
            match posted {
                Ok(()) => lane.arq.went(out, now),
                Err(refused) if refused.is_full() => {
                    drop(refused);
                    self.hunger(name);
                    break;
                }
                Err(refused) => {
                    let reason = refused.error.to_string();
                    drop(refused);
                    return self.fail_pair(&reason);
                }
            }
        }
        self.watch(name);
    }

    /// A lane waits for the device.
    fn hunger(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name)
            && !std::mem::replace(&mut lane.is_hungry, true)
        {
            self.hungry.push(name);
        }
    }

    /// A lane waits for a time.
    fn watch(&mut self, name: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            self.again += lane.arq.take_again();
            if let Some(due) = lane.arq.due() {
                self.due = self.due.min(due);
                if !std::mem::replace(&mut lane.is_watched, true) {
                    self.watched.push(name);
                }
            }
        }
    }

    /// Does what is due by the clock.
    fn tend(&mut self) {
        if self.watched.is_empty() {
            return;
        }
        let now = self.now();
        if now < self.due {
            return;
        }
        self.due = Duration::MAX;
        for name in std::mem::take(&mut self.watched) {
            let Some(lane) = self.lanes.get_mut(name) else {
                continue;
            };
            lane.is_watched = false;
            if lane.failed.is_some() {
                continue;
            }
            match lane.arq.tend(now) {
                Ok(()) => self.go_out(name),
                Err(reason) => {
                    let path = lane.peer.map(|peer| peer.path);
                    let limit = self.settings.silence;
                    self.fail(name, format!("{reason} for {limit:?}"));
                    // It may lead somewhere else by now.
                    if self.old.len() < OLD_MAX
                        && let Some(ah) = path.and_then(|path| self.handles.remove(&path))
                    {
                        self.old.push(ah);
                    }
                }
            }
        }
    }

    fn take_completions(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let polled = self.queue.poll(|completion| batch.push(completion));
        let found = !batch.is_empty();
        let mut failed = None;
        let mut sent = false;
        for Completion {
            done,
            outcome,
            pair,
            source,
            bytes,
            slot,
            ..
        } in batch.drain(..)
        {
            match (done, outcome) {
                (Done::Received, outcome) => {
                    let Some(slot) = slot else { continue };
                    if outcome.is_ok() && !self.is_dropped() {
                        let known = self.take_in(&slot, bytes, source);
                        self.aliens += u64::from(!known);
                    }
                    if let Some(pair) = &self.pair {
                        // What is refused goes back to the region, and is posted with the next pair.
                        drop(pair.receive(&mut self.queue, slot, 0));
                    }
                }
                (Done::Sent, Ok(())) => sent = true,
                (Done::Sent, Err(status)) => {
                    let own = self.pair.as_ref().map(Pair::number);
                    if own == Some(pair) {
                        failed.get_or_insert(status);
                    }
                }
            }
        }
        self.batch = batch;
        if let Some(status) = failed {
            self.fail_pair(&status.to_string());
        }
        if let Err(error) = polled {
            let reason = error.to_string();
            self.fail_pair(&reason);
            self.down = Some(reason);
        }
        for name in std::mem::take(&mut self.touched) {
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.is_touched = false;
                self.go_out(name);
            }
        }
        if sent && !self.hungry.is_empty() {
            for name in std::mem::take(&mut self.hungry) {
                if let Some(lane) = self.lanes.get_mut(name) {
                    lane.is_hungry = false;
                    self.go_out(name);
                }
            }
        }
        self.spare.truncate(SPARE_MAX);
        found
    }

    /// Whether a packet is to be thrown away: for tests.
    fn is_dropped(&mut self) -> bool {
        if self.settings.drop == 0 {
            return false;
        }
        // splitmix64.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.dice;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let drops = (word ^ word >> 31) % 100 < u64::from(self.settings.drop);
        self.dropped += u64::from(drops);
        drops
    }

    /// Takes a packet that came in a slot. `false`: it is of no lane.
    fn take_in(&mut self, slot: &Slot<P>, bytes: usize, source: u32) -> bool {
        const BEGIN: usize = DATAGRAM_HEAD + HEAD;
        if bytes < BEGIN || bytes > slot.len() {
            return false;
        }
        let mut raw = [0; HEAD];
        slot.read(DATAGRAM_HEAD, &mut raw);
        let Some(&name) = self.by_mark.get(&Head::mark(&raw)) else {
            return false;
        };
        let Some(lane) = self.lanes.get_mut(name) else {
            return false;
        };
        if lane.peer.is_none_or(|peer| peer.pair != source) {
            return false;
        }
        let Some(head) = Head::open(&raw, lane.key) else {
            return false;
        };
        if usize::from(head.len) != bytes - BEGIN {
            return false;
        }
        if lane.failed.is_some() {
            return true;
        }
        let now = self.epoch.elapsed();
        let received = lane.arq.received();
        let fill = |body: &mut Vec<u8>| {
            body.resize(head.len.into(), 0);
            slot.read(BEGIN, body);
        };
        let heard = lane.arq.hear(&head, fill, now, &mut self.spare);
        self.bytes += lane.arq.received() - received;
        match heard {
            Ok(heard) => {
                if heard.bytes || heard.room {
                    self.news.note(name, lane);
                }
                if !std::mem::replace(&mut lane.is_touched, true) {
                    self.touched.push(name);
                }
            }
            Err(what) => self.fail(name, format!("the peer sent {what}")),
        }
        true
    }
}

impl<P: Provider> Drop for Datagrams<P> {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            drop(self.queue.retire(pair));
        }
    }
}
