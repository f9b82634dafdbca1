// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes by several *rails*: ports by which a rank reaches its peers. The stream of a lane goes by one of them. Long
//! messages are read in *stripes* by all of them.
//!
//! Each rail is an [`Adapter`]. A lane has a *connection* by each rail that leads to the peer: a lane of that rail's
//! adapter, here called the *inner* lane. The first is an ordinary one. The others carry nothing but reads.
//!
//! Invariants:
//!
//! - Both sides find the same connections in the same order (`matching.rs`). The first carries the stream, and what the
//!   sides send each other about the others (`rails/note.rs`). When it fails the lane is over, and the next lane's
//!   stream goes by a rail that did not fail lately between the two.
//! - A side reads by a connection once both have reported that they are connected.
//! - Another connection that is lost ends nothing: what it had under way is read by others. One side, the *leader*,
//!   makes it again: soon when a port came back, else ever more seldom.
//! - Where a rank has as many connections by a rail as it may have, a new lane replaces one that was silent,
//!   by each rail. A connection that is made again takes none. So no two take each other's.
//! - A stripe is read by the rail that has the fewest bytes outstanding for its speed. So a slow one takes less.
//! - A registration names pages in one domain. So memory that a peer may read is registered in each domain, and each
//!   rail reads it by its own key. One cache with one bound has them all.
//! - What streams need is pinned on a rail only when one goes by it.
//!
//! # Safety
//!
//! The program's memory is registered for peers to read, and nothing else. See [`Rails::show`].
#![allow(unsafe_code, reason = "registers memory of the program")]

mod connect;
mod lane;
mod note;
mod stripes;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::adapter::{
    Adapter, ExposedMemory, Figures, Lanes, Offer, ReadState, RemoteAddress, Settings,
};
use crate::cache::{Cache, RegistrationSpec};
use crate::changed::Changed;
use crate::error::Result;
use crate::matching::RAILS_MAX;
use crate::port::{Chosen, Search};
use crate::provider::{Access, Provider};
use crate::table::Table;
use lane::{Lane, RailKey};
use note::Note;

/// How long a rail by which a lane to a peer failed carries no new stream to it, where another one can. Chosen by
/// magnitude: longer than any try to reach a peer by it takes.
const DOUBT: Duration = Duration::from_secs(60);

/// A rail.
#[derive(Debug)]
struct Rail<P: Provider> {
    adapter: Adapter<P>,
    /// The lanes here, by the names of their inner lanes.
    owners: HashMap<u64, u64>,
    /// When a lane by it failed last, by the rank that it led to. It may have been that rank which failed.
    failures: HashMap<u32, Instant>,
}

impl<P: Provider> Rail<P> {
    fn is_doubtful(&self, rank: u32, now: Instant) -> bool {
        let failed = self.failures.get(&rank);
        failed.is_some_and(|&failed_at| now < failed_at + DOUBT)
    }

    /// A lane to that rank has failed.
    fn doubt(&mut self, rank: u32, now: Instant) {
        self.failures
            .retain(|_, failed_at| now < *failed_at + DOUBT);
        self.failures.insert(rank, now);
    }
}

/// A rank's lanes by several rails.
#[derive(Debug)]
pub struct Rails<P: Provider> {
    settings: Settings,
    rails: Vec<Rail<P>>,
    lanes: Table<Lane>,
    changed: Changed,
    /// Lanes with stripes whose connection was lost.
    waiting: Vec<u64>,
    cache: Option<Cache<P>>,
    /// The latest time that the engine gave.
    clock: Instant,
    striped: u64,
    lost: u64,
    stripes_again: u64,
}

impl<P: Provider> Rails<P> {
    /// Opens all ports that the settings permit.
    ///
    /// # Errors
    ///
    /// Which devices there are, why none of them will do, and what would help.
    pub fn open(provider: &P, settings: Settings) -> Result<Self> {
        let device = settings.device.as_deref();
        let most = settings.rails.min(RAILS_MAX);
        let mut search = Search::new(provider, device, settings.port, settings.address)?;
        let first = search.first()?;
        let chosen = search.rails(first, most);
        Self::on(chosen, settings)
    }

    /// As [`Self::open`], on ports that were chosen, the fastest first: at most [`RAILS_MAX`].
    ///
    /// # Errors
    ///
    /// Those of the first device. Another one that cannot be opened is left out.
    pub fn on(chosen: Vec<Chosen<P>>, settings: Settings) -> Result<Self> {
        let mut rails = Vec::new();
        for chosen in chosen.into_iter().take(RAILS_MAX) {
            match Adapter::for_rail(chosen, settings.clone()) {
                Ok(adapter) => rails.push(Rail {
                    adapter,
                    owners: HashMap::new(),
                    failures: HashMap::new(),
                }),
                Err(error) if rails.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Self {
            settings,
            rails,
            lanes: Table::default(),
            changed: Changed::default(),
            waiting: Vec::new(),
            cache: None,
            clock: Instant::now(),
            striped: 0,
            lost: 0,
            stripes_again: 0,
        })
    }

    /// The adapter of a lane's stream, and the inner lane.
    fn first(&self, name: u64) -> Option<(&Adapter<P>, u64)> {
        let (rail, inner) = self.lanes.get(name)?.first()?;
        Some((&self.rails.get(rail)?.adapter, inner))
    }

    fn first_mut(&mut self, name: u64) -> Option<(&mut Adapter<P>, u64)> {
        let (rail, inner) = self.lanes.get(name)?.first()?;
        Some((&mut self.rails.get_mut(rail)?.adapter, inner))
    }

    /// Now, or the last time that the engine gave, if that is later.
    fn now(&self) -> Instant {
        Instant::now().max(self.clock)
    }

    /// Moves all lanes on of which an adapter has news.
    fn advance_changed(&mut self) {
        for rail in 0..self.rails.len() {
            while let Some(inner) = self.rails[rail].adapter.next_changed_lane() {
                let Some(&name) = self.rails[rail].owners.get(&inner) else {
                    continue;
                };
                self.advance(name);
                if let Some(lane) = self.lanes.get_mut(name) {
                    self.changed.add(name, lane);
                }
            }
        }
        self.post_waiting();
    }

    /// Registers memory of the program for a lane's peer to read, by all rails that lead there. Tells the peer the
    /// keys, where it has more than one.
    fn show_by_rails(&mut self, name: u64, bytes: &[u8]) -> Option<ExposedMemory> {
        let shows = |rail: &Rail<P>| {
            let device = rail.adapter.domain().device();
            self.settings.shows_by(device.limits(), bytes)
        };
        // Each stripe may be read by way of any rail.
        if !self.rails.iter().all(shows) {
            return None;
        }
        let lane = self.lanes.get(name).filter(|lane| lane.is_matched)?;
        let (first, _) = lane.first()?;
        let is_striped = bytes.len() > self.settings.stripe && lane.connections.len() > 1;
        let mut domains = 1u32 << first;
        if is_striped {
            let others = lane.connections.iter().map(|connection| connection.rail);
            domains = others.fold(domains, |domains, rail| domains | 1 << rail);
        }
        let bounds = self.settings.cache;
        let rails = &self.rails;
        let cache = self.cache.get_or_insert_with(|| {
            let domains = rails.iter().map(|rail| rail.adapter.domain().clone());
            Cache::of(domains.collect(), bounds)
        });
        let start = NonNull::from(bytes).cast::<u8>();
        let wanted = RegistrationSpec {
            access: Access {
                remote_read: true,
                remote_write: false,
            },
            domains,
            first,
        };
        // SAFETY: nothing is posted with it, and peers only read: what they read are bytes, whichever thread changes
        // them. The kernel keeps the pages while they are registered, mapped or not. So a peer never reads a page that
        // another owner has by now. The cache finds out when they are mapped no more.
        let found = unsafe { cache.get_in(start, bytes.len(), wanted) };
        let (memories, offset) = found.ok()?;
        let shown = memories.in_domain(first)?.remote(offset);
        // Never 0, which is known by no note.
        let registration = memories.id() % 0x00ff_ffff + 1;
        if is_striped {
            let mut keys = [None; RAILS_MAX];
            for (rail, key) in keys.iter_mut().enumerate() {
                *key = memories
                    .in_domain(rail)
                    .map(|memory| memory.remote(offset).key);
            }
            let note = Note::Keys(registration, keys);
            self.send_note(name, &note);
        }
        let key = RailKey {
            key: shown.key,
            rail: first,
            registration,
        };
        Some(ExposedMemory {
            address: shown.address,
            key: key.to_bits(),
            hold: self.lanes.get(name)?.shows.hold(memories),
        })
    }
}

impl<P: Provider> Lanes for Rails<P> {
    fn make(&mut self, rank: u32) -> std::result::Result<(u64, Offer), String> {
        self.make_lane(rank)
    }

    fn connect(&mut self, name: u64, peer: &Offer) {
        self.connect_lane(name, peer);
    }

    fn is_connected(&self, name: u64) -> bool {
        let is_matched = self.lanes.get(name).is_some_and(|lane| lane.is_matched);
        let first = self.first(name).filter(|_| is_matched);
        first.is_some_and(|(adapter, inner)| adapter.is_connected(inner))
    }

    fn has_failed(&self, name: u64) -> bool {
        let is_over = self
            .lanes
            .get(name)
            .is_none_or(|lane| lane.failed.is_some());
        let first = self.first(name);
        is_over || first.is_none_or(|(adapter, inner)| adapter.has_failed(inner))
    }

    fn failure(&self, name: u64) -> Option<String> {
        let failed = self.lanes.get(name).and_then(|lane| lane.failed.clone());
        failed.or_else(|| match self.first(name) {
            Some((adapter, inner)) => adapter.failure(inner),
            None => Some("the lane is over".to_owned()),
        })
    }

    fn poll(&mut self) -> bool {
        let mut found = false;
        for rail in &mut self.rails {
            found |= rail.adapter.poll();
        }
        self.advance_changed();
        found
    }

    fn next_changed(&mut self) -> Option<u32> {
        self.advance_changed();
        self.changed.next(&mut self.lanes)
    }

    fn has_changed(&self) -> bool {
        let mut rails = self.rails.iter();
        !self.changed.is_empty() || rails.any(|rail| rail.adapter.has_changed())
    }

    fn has_room(&mut self, name: u64, bytes: usize) -> bool {
        let first = self.first_mut(name);
        first.is_some_and(|(adapter, inner)| adapter.has_room(inner, bytes))
    }

    fn write(&mut self, name: u64, bytes: &[u8]) -> usize {
        let first = self.first_mut(name);
        first.map_or(0, |(adapter, inner)| adapter.write(inner, bytes))
    }

    fn push(&mut self, name: u64) -> bool {
        let first = self.first_mut(name);
        first.is_none_or(|(adapter, inner)| adapter.push(inner))
    }

    fn is_taken(&self, name: u64) -> bool {
        let first = self.first(name);
        first.is_none_or(|(adapter, inner)| adapter.is_taken(inner))
    }

    fn unread(&self, name: u64) -> usize {
        let first = self.first(name);
        first.map_or(0, |(adapter, inner)| adapter.unread(inner))
    }

    fn read(&mut self, name: u64, out: &mut [u8]) -> usize {
        let first = self.first_mut(name);
        first.map_or(0, |(adapter, inner)| adapter.read(inner, out))
    }

    fn acknowledge(&mut self, name: u64) {
        if let Some((adapter, inner)) = self.first_mut(name) {
            adapter.acknowledge(inner);
        }
    }

    fn show(&mut self, name: u64, bytes: &[u8]) -> Option<ExposedMemory> {
        self.show_by_rails(name, bytes)
    }

    fn can_post_reads(&mut self, name: u64) -> bool {
        if !self.is_connected(name) {
            return false;
        }
        let Some(lane) = self.lanes.get(name) else {
            return false;
        };
        let mut connections = lane.connections.iter().enumerate();
        connections.any(|(index, connection)| {
            let rail = self.rails.get_mut(connection.rail);
            let usable = rail.zip(lane.usable(index));
            usable.is_some_and(|(rail, inner)| rail.adapter.can_post_reads(inner))
        })
    }

    fn post_read(&mut self, name: u64, token: u64, from: RemoteAddress, len: u64) -> u64 {
        self.post_stripes(name, token, from, len)
    }

    fn read_state(&self, name: u64, token: u64) -> ReadState {
        self.stripe_state(name, token)
    }

    fn copy_read(&self, name: u64, token: u64, offset: usize, out: &mut [u8]) {
        self.copy_stripe(name, token, offset, out);
    }

    fn release_read(&mut self, name: u64, token: u64) {
        self.release_stripe(name, token);
    }

    fn stop(&mut self, name: u64) -> u64 {
        self.stop_lane(name)
    }

    fn left(&mut self, name: u64, received: u64) -> Option<Vec<u8>> {
        let (adapter, inner) = self.first_mut(name)?;
        adapter.left(inner, received)
    }

    fn close(&mut self, name: u64) {
        self.close_lane(name);
    }

    fn arm(&mut self) -> bool {
        let mut armed = true;
        for rail in &mut self.rails {
            armed &= rail.adapter.arm();
        }
        self.advance_changed();
        armed
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let rails = self.rails.iter();
        rails.flat_map(|rail| rail.adapter.descriptors()).collect()
    }

    fn rails(&self, name: u64) -> Vec<String> {
        let Some(lane) = self.lanes.get(name) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for connection in lane.connections.iter().filter(|_| lane.is_matched) {
            if let Some(rail) = self.rails.get(connection.rail)
                && let Some(inner) = connection.inner
                && rail.adapter.is_connected(inner)
            {
                found.push(rail.adapter.port_name());
            }
        }
        found
    }

    fn hear_device(&mut self) {
        for rail in 0..self.rails.len() {
            self.rails[rail].adapter.hear_device();
            if self.rails[rail].adapter.take_came_back() {
                self.rails[rail].failures.clear();
                self.port_came_back(rail);
            }
        }
        self.advance_changed();
    }

    fn age(&mut self, now: Instant) {
        self.clock = now;
        for rail in &mut self.rails {
            rail.adapter.age(now);
        }
        self.advance_changed();
        for name in self.lanes.names() {
            self.advance(name);
        }
        self.advance_changed();
    }

    fn figures(&self) -> Figures {
        let registered = self.cache.as_ref().map_or(0, Cache::bytes) as u64;
        let mut sum = Figures {
            registered,
            striped: self.striped,
            rails_lost: self.lost,
            stripes_again: self.stripes_again,
            ..Figures::default()
        };
        for rail in &self.rails {
            let figures = rail.adapter.figures();
            sum.pinned += figures.pinned;
            sum.bytes += figures.bytes;
            sum.receives += figures.receives;
            sum.displaced += figures.displaced;
        }
        sum
    }
}
