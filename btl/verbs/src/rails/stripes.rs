// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long messages in stripes: by which connection each is read, and what is read again when one is lost.

use super::Rails;
use super::lane::{RailKey, Stripe};
use crate::adapter::{Lanes, ReadState, RemoteAddress};
use crate::provider::{Provider, Remote};

/// What became of a stripe whose read was to be posted.
enum Posted {
    Stripe(Stripe),
    /// Not yet: the connection that would bring it first has no room. None: there is no other one either.
    NoRoom(Option<usize>),
    /// No rail has a key for it.
    Unreadable,
}

/// A connection that can read a stripe.
struct Candidate {
    /// Its index among those of the lane.
    index: usize,
    rail: usize,
    /// The inner lane.
    inner: u64,
    /// The key of the peer's memory there.
    key: u32,
    /// Bytes that it would have outstanding.
    load: u64,
    speed: u32,
}

impl Candidate {
    /// Whether its bytes would be there before another's. Compared as fractions.
    fn is_sooner(&self, other: &Self) -> bool {
        let product = |load: u64, speed: u32| u128::from(load) * u128::from(speed);
        product(self.load, other.speed) < product(other.load, self.speed)
    }
}

impl<P: Provider> Rails<P> {
    /// Posts reads of a peer's memory, in stripes. Gives of how many bytes.
    pub(super) fn post_stripes(
        &mut self,
        name: u64,
        token: u64,
        from: RemoteAddress,
        len: u64,
    ) -> u64 {
        // What was lost comes first: it may hold up all that is behind it.
        self.post_waiting();
        if let Some(lane) = self.lanes.get(name)
            && lane.unreadable.contains(&token)
        {
            // Stripes of it are gone: what comes next would come in their place.
            return 0;
        }
        let key = RailKey::from_bits(from.key);
        let mut posted = 0;
        while posted < len {
            let Some(lane) = self.lanes.get_mut(name).filter(|lane| !lane.is_waiting) else {
                break;
            };
            let stripe = Stripe {
                token,
                inner_token: lane.next_inner_token,
                from: from.offset_by(posted).address,
                key,
                len: (len - posted).min(self.settings.stripe as u64),
                connection: None,
            };
            lane.next_inner_token += 1;
            let stripe = match self.post_stripe(name, stripe, 0) {
                Posted::Stripe(stripe) => stripe,
                Posted::NoRoom(_) => break,
                Posted::Unreadable => {
                    self.fail_reads(name, token);
                    break;
                }
            };
            posted += stripe.len;
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.stripes.push_back(stripe);
            }
        }
        posted
    }

    /// Posts the read of a stripe by the connection that [`Self::choose_connection`] names.
    fn post_stripe(&mut self, name: u64, stripe: Stripe, full: u32) -> Posted {
        loop {
            let chosen = match self.choose_connection(name, &stripe, full) {
                Ok(chosen) => chosen,
                Err(posted) => return posted,
            };
            let Some(rail) = self.rails.get_mut(chosen.rail) else {
                return Posted::NoRoom(None);
            };
            let adapter = &mut rail.adapter;
            let len = stripe.len.min(adapter.largest_read(chosen.inner));
            let from = Remote {
                address: stripe.from,
                key: chosen.key,
            };
            let len = adapter.post_reads(chosen.inner, stripe.inner_token, from, len);
            if len == 0 {
                if adapter.lacks_slots() {
                    // It has just run out of slots: the next best is tried.
                    continue;
                }
                return Posted::NoRoom(Some(chosen.index));
            }
            if chosen.index > 0 {
                self.striped += len;
            }
            return Posted::Stripe(Stripe {
                len,
                connection: Some(chosen.index),
                ..stripe
            });
        }
    }

    /// The connection that has the fewest bytes outstanding for its speed. Where that has no room, another one would be
    /// slower to bring the stripe. A rail that has no memory to read into is left out, and so are the connections in
    /// `full`, a bit for each. The error says what becomes of the stripe instead.
    fn choose_connection(
        &self,
        name: u64,
        stripe: &Stripe,
        full: u32,
    ) -> Result<Candidate, Posted> {
        let Some(lane) = self.lanes.get(name).filter(|lane| lane.failed.is_none()) else {
            return Err(Posted::NoRoom(None));
        };
        let mut must_wait = full != 0;
        let mut best: Option<Candidate> = None;
        for (index, connection) in lane.connections.iter().enumerate() {
            let usable = lane.usable(index);
            let Some((inner, key)) = usable.zip(lane.key(connection, stripe.key)) else {
                continue;
            };
            let Some(rail) = self.rails.get(connection.rail) else {
                continue;
            };
            if full & 1 << index != 0
                || !rail.adapter.is_connected(inner)
                || rail.adapter.lacks_slots()
            {
                continue;
            }
            // A new connection may carry nothing, so that its stripes come late. One stripe probes it first.
            let under_way = rail.adapter.reads_under_way(inner);
            if index > 0 && under_way > 0 && !rail.adapter.has_read(inner) {
                must_wait = true;
                continue;
            }
            let this = Candidate {
                index,
                rail: connection.rail,
                inner,
                key,
                load: under_way + stripe.len,
                speed: connection.speed,
            };
            if best.as_ref().is_none_or(|best| this.is_sooner(best)) {
                best = Some(this);
            }
        }
        best.ok_or(match must_wait {
            true => Posted::NoRoom(None),
            // The lane is connected, for it was asked whether it can read.
            false => Posted::Unreadable,
        })
    }

    /// No rail can read what was asked for: the reads of the token fail, and their reader gets that state.
    fn fail_reads(&mut self, name: u64, token: u64) {
        while self
            .lanes
            .get(name)
            .is_some_and(|lane| lane.next_stripe(token).is_some())
        {
            self.release_stripe(name, token);
        }
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.unreadable.push(token);
        }
    }

    /// Posts the stripes again whose connection was lost.
    pub(super) fn post_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for name in std::mem::take(&mut self.waiting) {
            if !self.post_again(name) {
                self.waiting.push(name);
            }
        }
    }

    /// Posts a lane's stripes again whose connection was lost. `false`: some are left.
    fn post_again(&mut self, name: u64) -> bool {
        // Connections that have no room, and nothing to give back.
        let mut full = 0;
        loop {
            let Some(lane) = self.lanes.get_mut(name) else {
                return true;
            };
            let mut stripes = lane.stripes.iter().enumerate();
            let lost = stripes.find(|(_, stripe)| stripe.connection.is_none());
            let Some((index, &stripe)) = lost.filter(|_| lane.failed.is_none()) else {
                lane.is_waiting = false;
                return true;
            };
            let posted = match self.post_stripe(name, stripe, full) {
                Posted::Stripe(posted) => posted,
                Posted::NoRoom(Some(connection)) => {
                    if !self.give_back_behind(name, index, connection) {
                        full |= 1 << connection;
                    }
                    continue;
                }
                Posted::NoRoom(None) => return false,
                Posted::Unreadable => {
                    self.fail_reads(name, stripe.token);
                    continue;
                }
            };
            let Some(lane) = self.lanes.get_mut(name) else {
                return true;
            };
            let rest = Stripe {
                from: stripe.from.wrapping_add(posted.len),
                len: stripe.len - posted.len,
                inner_token: lane.next_inner_token,
                ..stripe
            };
            if let Some(stripe) = lane.stripes.get_mut(index) {
                *stripe = posted;
            }
            if rest.len > 0 {
                lane.next_inner_token += 1;
                lane.stripes.insert(index + 1, rest);
            }
        }
    }

    /// Gives back the slot of the last stripe behind that index whose bytes are here by a connection. The stripe at
    /// that index can have it. Else those behind, which nobody may read yet, could keep all slots for ever.
    fn give_back_behind(&mut self, name: u64, index: usize, connection: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(name) else {
            return false;
        };
        for later in (index + 1..lane.stripes.len()).rev() {
            let stripe = lane.stripes[later];
            if stripe.connection != Some(connection) {
                continue;
            }
            let Some((rail, inner)) = lane.connection_of(&stripe) else {
                continue;
            };
            let Some(rail) = self.rails.get_mut(rail) else {
                continue;
            };
            if matches!(
                rail.adapter.next_read(inner, stripe.inner_token),
                ReadState::Bytes(_)
            ) {
                rail.adapter.release_next_read(inner, stripe.inner_token);
                lane.stripes[later].connection = None;
                self.stripes_again += 1;
                return true;
            }
        }
        false
    }

    /// A connection is lost: the stripes that it had under way are to be read by others.
    pub(super) fn lose_stripes(&mut self, name: u64, connection: usize) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let mut lost = false;
        for stripe in &mut lane.stripes {
            if stripe.connection == Some(connection) {
                stripe.connection = None;
                self.stripes_again += 1;
                lost = true;
            }
        }
        if lost && !std::mem::replace(&mut lane.is_waiting, true) {
            self.waiting.push(name);
        }
    }

    /// Whether the next stripe of a token is here.
    pub(super) fn stripe_state(&self, name: u64, token: u64) -> ReadState {
        let Some(lane) = self.lanes.get(name).filter(|lane| lane.failed.is_none()) else {
            return ReadState::Failed;
        };
        if lane.unreadable.contains(&token) {
            return ReadState::Failed;
        }
        if let Some(stripe) = lane.next_stripe(token)
            && let Some((rail, inner)) = lane.connection_of(stripe)
            && let Some(rail) = self.rails.get(rail)
            && let ReadState::Bytes(count) = rail.adapter.next_read(inner, stripe.inner_token)
        {
            return ReadState::Bytes(count);
        }
        // Where the rail failed, another one reads it.
        ReadState::Nothing
    }

    /// Copies a part of the next stripe of a token.
    pub(super) fn copy_stripe(&self, name: u64, token: u64, offset: usize, out: &mut [u8]) {
        if let Some(lane) = self.lanes.get(name)
            && let Some(stripe) = lane.next_stripe(token)
            && let Some((rail, inner)) = lane.connection_of(stripe)
            && let Some(rail) = self.rails.get(rail)
        {
            rail.adapter
                .copy_next_read(inner, stripe.inner_token, offset, out);
        }
    }

    /// The next stripe of a token is of no more use. Or there is none any more, and who reads knows that by now.
    pub(super) fn release_stripe(&mut self, name: u64, token: u64) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        lane.unreadable.retain(|&unreadable| unreadable != token);
        let mut stripes = lane.stripes.iter();
        let Some(index) = stripes.position(|stripe| stripe.token == token) else {
            return;
        };
        if let Some(stripe) = lane.stripes.remove(index)
            && let Some((rail, inner)) = lane.connection_of(&stripe)
            && let Some(rail) = self.rails.get_mut(rail)
        {
            rail.adapter.release_next_read(inner, stripe.inner_token);
        }
    }
}
