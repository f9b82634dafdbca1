// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long messages in stripes: which rail is asked for which, and what is asked for again when a rail is lost.

use super::Rails;
use super::lane::Stripe;
use crate::adapter::{Lanes, ReadState};
use crate::provider::Provider;

/// What became of a stripe that was to be asked for.
enum Asked {
    Of(Stripe),
    /// Not yet: the connection that would bring it first has no room. None: there is no other one either.
    NoRoom(Option<usize>),
    /// No rail has a key for it.
    Hopeless,
}

impl<P: Provider> Rails<P> {
    /// Asks for bytes of a peer's memory, in stripes.
    pub(super) fn ask(&mut self, name: u64, token: u64, (from, key): (u64, u64), len: u64) -> u64 {
        // What was asked for before comes first: it may hold up all that is behind it.
        self.ask_waiting();
        if let Some(lane) = self.lanes.get(name)
            && lane.hopeless.contains(&token)
        {
            // Stripes of it are gone: what comes next would come in their place.
            return 0;
        }
        let mut asked = 0;
        while asked < len {
            let Some(lane) = self.lanes.get_mut(name).filter(|lane| !lane.is_waiting) else {
                break;
            };
            let stripe = Stripe {
                token,
                name: lane.next_name,
                from: from.wrapping_add(asked),
                key,
                len: (len - asked).min(self.settings.stripe as u64),
                connection: None,
            };
            lane.next_name += 1;
            let stripe = match self.ask_for(name, stripe, 0) {
                Asked::Of(stripe) => stripe,
                Asked::NoRoom(_) => break,
                Asked::Hopeless => {
                    self.despair(name, token);
                    break;
                }
            };
            asked += stripe.len;
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.stripes.push_back(stripe);
            }
        }
        asked
    }

    /// Asks the rail for a stripe that has the fewest bytes outstanding for its speed. Where that has no room, another
    /// one would be slower to bring it. A rail that has no memory to read into is left out, and so are the connections
    /// in `passed`, a bit for each.
    fn ask_for(&mut self, name: u64, stripe: Stripe, passed: u32) -> Asked {
        loop {
            let Some(lane) = self.lanes.get(name).filter(|lane| lane.failed.is_none()) else {
                return Asked::NoRoom(None);
            };
            let mut waits = passed != 0;
            let mut best: Option<(u128, u128, usize, u64, u32)> = None;
            for (at, connection) in lane.connections.iter().enumerate() {
                let usable = match at {
                    0 => connection.lane,
                    _ => connection.usable(),
                };
                let Some((inner, key)) = usable.zip(lane.key(connection, stripe.key)) else {
                    continue;
                };
                let Some(rail) = self.rails.get(connection.rail) else {
                    continue;
                };
                if passed & 1 << at != 0
                    || !rail.adapter.is_connected(inner)
                    || rail.adapter.lacks_slots()
                {
                    continue;
                }
                // A new connection may carry nothing, so that its stripes come late. One finds that out.
                let under_way = rail.adapter.reads_under_way(inner);
                if at > 0 && under_way > 0 && !rail.adapter.has_read(inner) {
                    waits = true;
                    continue;
                }
                let load = u128::from(under_way + stripe.len);
                let speed = u128::from(connection.speed);
                // Compared as fractions.
                let is_less = best.is_none_or(|(least, of, ..)| load * of < least * speed);
                if is_less {
                    best = Some((load, speed, at, inner, key));
                }
            }
            let Some((.., at, inner, key)) = best else {
                // The lane is connected, for it was asked whether it can read.
                return match waits {
                    false => Asked::Hopeless,
                    true => Asked::NoRoom(None),
                };
            };
            let Some(rail) = self.rails.get_mut(lane.connections[at].rail) else {
                return Asked::NoRoom(None);
            };
            let len = stripe.len.min(rail.adapter.largest_read(inner));
            let from = (stripe.from, key);
            let len = rail.adapter.ask_for(inner, stripe.name, from, len);
            if len == 0 {
                if rail.adapter.lacks_slots() {
                    // This was found out just now: the next best is asked.
                    continue;
                }
                return Asked::NoRoom(Some(at));
            }
            if at > 0 {
                self.striped += len;
            }
            return Asked::Of(Stripe {
                len,
                connection: Some(at),
                ..stripe
            });
        }
    }

    /// No rail can read what was asked for. Who asked finds that out.
    fn despair(&mut self, name: u64, token: u64) {
        while self
            .lanes
            .get(name)
            .is_some_and(|lane| lane.next_of(token).is_some())
        {
            self.release(name, token);
        }
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.hopeless.push(token);
        }
    }

    /// Asks again for stripes whose rail was lost.
    pub(super) fn ask_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for name in std::mem::take(&mut self.waiting) {
            if !self.ask_again(name) {
                self.waiting.push(name);
            }
        }
    }

    /// Asks for a lane's stripes that no rail was asked for. `false`: some are left.
    fn ask_again(&mut self, name: u64) -> bool {
        // Connections that have no room, and nothing to give back.
        let mut full = 0;
        loop {
            let Some(lane) = self.lanes.get_mut(name) else {
                return true;
            };
            let mut stripes = lane.stripes.iter().enumerate();
            let lost = stripes.find(|(_, stripe)| stripe.connection.is_none());
            let Some((at, &stripe)) = lost.filter(|_| lane.failed.is_none()) else {
                lane.is_waiting = false;
                return true;
            };
            let asked = match self.ask_for(name, stripe, full) {
                Asked::Of(asked) => asked,
                Asked::NoRoom(Some(of)) => {
                    if !self.give_back_behind(name, at, of) {
                        full |= 1 << of;
                    }
                    continue;
                }
                Asked::NoRoom(None) => return false,
                Asked::Hopeless => {
                    self.despair(name, stripe.token);
                    continue;
                }
            };
            let Some(lane) = self.lanes.get_mut(name) else {
                return true;
            };
            let rest = Stripe {
                from: stripe.from.wrapping_add(asked.len),
                len: stripe.len - asked.len,
                name: lane.next_name,
                ..stripe
            };
            if let Some(place) = lane.stripes.get_mut(at) {
                *place = asked;
            }
            if rest.len > 0 {
                lane.next_name += 1;
                lane.stripes.insert(at + 1, rest);
            }
        }
    }

    /// Gives back the slot of the last stripe behind that place whose bytes are here by a connection, so that it can be
    /// asked for the one at that place. Else those behind it, which nobody may read yet, could keep all slots for ever.
    fn give_back_behind(&mut self, name: u64, at: usize, of: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(name) else {
            return false;
        };
        for index in (at + 1..lane.stripes.len()).rev() {
            let stripe = lane.stripes[index];
            if stripe.connection != Some(of) {
                continue;
            }
            let Some((rail, inner)) = lane.asked(&stripe) else {
                continue;
            };
            let Some(rail) = self.rails.get_mut(rail) else {
                continue;
            };
            if matches!(
                rail.adapter.next_of(inner, stripe.name),
                ReadState::Bytes(_)
            ) {
                rail.adapter.pass_next(inner, stripe.name);
                lane.stripes[index].connection = None;
                self.stripes_again += 1;
                return true;
            }
        }
        false
    }

    /// A connection is over: what was asked of it is to be asked of others.
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
    pub(super) fn state_of(&self, name: u64, token: u64) -> ReadState {
        let Some(lane) = self.lanes.get(name).filter(|lane| lane.failed.is_none()) else {
            return ReadState::Failed;
        };
        if lane.hopeless.contains(&token) {
            return ReadState::Failed;
        }
        let stripe = lane.next_of(token);
        let Some((rail, inner)) = stripe.and_then(|stripe| lane.asked(stripe)) else {
            return ReadState::Nothing;
        };
        let name = stripe.map_or(0, |stripe| stripe.name);
        match self
            .rails
            .get(rail)
            .map(|rail| rail.adapter.next_of(inner, name))
        {
            Some(ReadState::Bytes(count)) => ReadState::Bytes(count),
            // Where the rail failed, it is asked for again.
            _ => ReadState::Nothing,
        }
    }

    /// Copies a part of the next stripe of a token.
    pub(super) fn copy(&self, name: u64, token: u64, at: usize, out: &mut [u8]) {
        if let Some(lane) = self.lanes.get(name)
            && let Some(stripe) = lane.next_of(token)
            && let Some((rail, inner)) = lane.asked(stripe)
            && let Some(rail) = self.rails.get(rail)
        {
            rail.adapter.read_next(inner, stripe.name, at, out);
        }
    }

    /// The next stripe of a token is of no more use. Or there is none any more, and who reads knows that by now.
    pub(super) fn release(&mut self, name: u64, token: u64) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        lane.hopeless.retain(|&hopeless| hopeless != token);
        let mut stripes = lane.stripes.iter();
        let Some(at) = stripes.position(|stripe| stripe.token == token) else {
            return;
        };
        if let Some(stripe) = lane.stripes.remove(at)
            && let Some((rail, inner)) = lane.asked(&stripe)
            && let Some(rail) = self.rails.get_mut(rail)
        {
            rail.adapter.pass_next(inner, stripe.name);
        }
    }
}
