// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the connections of a lane come and go: those of the offer, and those that are made again.

use std::time::Duration;

use super::Rails;
use super::lane::{Connection, Lane};
use super::note::{Note, Place};
use crate::adapter::{Lanes, Offer};
use crate::changed::Listed;
use crate::matching::{self, OfferedRail};
use crate::provider::Provider;

/// Offers of one connection that come faster than this are refused: each of them makes a pair.
const OFFERS_APART: Duration = Duration::from_millis(500);
/// Notes that wait to go when a peer offers so fast, at most. A correct peer's offers are not so fast, but delays may
/// bring several of them at once.
const WAITING_MAX: usize = 256;

impl<P: Provider> Rails<P> {
    /// Makes a pair for the peer on each rail, and offers all of them.
    pub(super) fn make_lane(&mut self, rank: u32) -> Result<(u64, Offer), String> {
        let (mut made, mut absent, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for rail in 0..self.rails.len() {
            match self.prepare(rail, rank) {
                Ok((inner, found)) => made.push((Connection::new(rail, Some(inner)), found)),
                Err(reason) => {
                    let found = OfferedRail {
                        index: rail as u8,
                        ..self.rails[rail].adapter.absent_rail()
                    };
                    absent.push((Connection::new(rail, None), found));
                    refused.push(reason);
                }
            }
        }
        let Some((first, _)) = made.first() else {
            return Err(refused.join("; "));
        };
        let first = first.rail;
        let (connections, offered): (Vec<_>, Vec<_>) = made.into_iter().chain(absent).unzip();
        let offer = self.rails[first].adapter.offer_of(&offered);
        let ends: Vec<_> = connections
            .iter()
            .filter_map(|connection| Some((connection.rail, connection.lane?)))
            .collect();
        let mut lane = Lane::new(rank, connections);
        lane.offered = offered;
        let Some(name) = self.lanes.insert(lane) else {
            ends.into_iter()
                .for_each(|(rail, inner)| self.end(rail, inner));
            return Err("there are too many lanes".to_owned());
        };
        for (rail, inner) in ends {
            self.rails[rail].owners.insert(inner, name);
        }
        Ok((name, offer))
    }

    /// Makes a pair on a rail.
    fn prepare(&mut self, rail: usize, rank: u32) -> Result<(u64, OfferedRail), String> {
        let (now, index) = (self.now(), rail as u8);
        let rail = &mut self.rails[rail];
        let (inner, found) = rail.adapter.prepare_lane(rank)?;
        let doubtful = rail.is_doubtful(now);
        let found = OfferedRail {
            doubtful,
            index,
            ..found
        };
        Ok((inner, found))
    }

    /// Connects the queue pairs of both offers, as both sides match them.
    pub(super) fn connect_lane(&mut self, name: u64, peer: &Offer) {
        let Some(lane) = self.lanes.get_mut(name).filter(|lane| !lane.is_matched) else {
            return;
        };
        let theirs = peer.rails();
        let matches = matching::match_rails(&lane.offered, &theirs);
        let mut left: Vec<_> = std::mem::take(&mut lane.connections)
            .into_iter()
            .map(Some)
            .collect();
        let (mut begin, mut over) = (Vec::new(), Vec::new());
        for &(own, to) in &matches {
            if let Some(mut connection) = left.get_mut(own).and_then(Option::take) {
                connection.goes_to(&theirs[to], lane.offered[own].speed);
                match connection.lane {
                    Some(inner) if !theirs[to].absent => {
                        begin.push((connection.rail, inner, theirs[to]));
                    }
                    // It is made when both ports are there.
                    Some(inner) if !lane.connections.is_empty() => {
                        connection.lane = None;
                        over.push((connection.rail, inner));
                    }
                    _ => {}
                }
                lane.connections.push(connection);
            }
        }
        lane.is_matched = true;
        if let Some(&(own, to)) = matches.first() {
            lane.leads = lane.offered[own].reach.to_bytes() < theirs[to].reach.to_bytes();
        }
        let unmatched = left.into_iter().flatten();
        over.extend(unmatched.filter_map(|one| Some((one.rail, one.lane?))));
        let first = lane.first();
        for (rail, inner) in over {
            self.end(rail, inner);
        }
        let is_first = |&(rail, inner, _): &(usize, u64, OfferedRail)| Some((rail, inner)) == first;
        if !begin.first().is_some_and(is_first) {
            let reason = "no port of this rank that has a link leads to one of the peer that has";
            return self.fail(name, reason.to_owned());
        }
        let mut begin = begin.into_iter();
        if let Some((rail, inner, reached)) = begin.next() {
            if let Err(reason) = self.rails[rail].adapter.begin_stream(inner) {
                return self.fail(name, reason);
            }
            let offer = Offer {
                rail: reached,
                more: Default::default(),
                ..*peer
            };
            self.rails[rail].adapter.start_connecting(inner, &offer);
        }
        for (rail, inner, reached) in begin {
            self.start(rail, inner, reached);
        }
    }

    /// Begins to connect a pair that carries no stream.
    fn start(&mut self, rail: usize, inner: u64, peer: OfferedRail) {
        let adapter = &mut self.rails[rail].adapter;
        let offer = Offer {
            granted: 0,
            ..adapter.offer_of(&[peer])
        };
        adapter.start_connecting(inner, &offer);
    }

    /// Forgets a lane of a rail.
    fn end(&mut self, rail: usize, inner: u64) {
        let rail = &mut self.rails[rail];
        rail.owners.remove(&inner);
        rail.adapter.close_lane(inner);
    }

    fn fail(&mut self, name: u64, reason: String) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.failed.get_or_insert(reason);
            self.changed.add(name, lane);
        }
    }

    /// Tells the peer something beside the stream.
    pub(super) fn say(&mut self, name: u64, note: &Note) {
        if let Some((adapter, inner)) = self.first_mut(name) {
            adapter.add_note(inner, &note.encode());
        }
    }

    /// Sees to the connections of a lane: what the peer says of them, which have come, which have failed, and which are
    /// to be made again.
    pub(super) fn tend(&mut self, name: u64) {
        let is_over = |lane: &Lane| lane.failed.is_some();
        if self.lanes.get(name).is_none_or(is_over) {
            return;
        }
        let Some((adapter, inner)) = self.first(name) else {
            return;
        };
        if let Some(reason) = adapter.failure(inner) {
            // Its reads fail. What is left of the stream is asked of it.
            let Some((rail, _)) = self.lanes.get(name).and_then(Lane::first) else {
                return;
            };
            self.rails[rail].failed_at = Some(self.now());
            return self.fail(name, reason);
        }
        while let Some((adapter, inner)) = self.first_mut(name)
            && let Some(note) = adapter.next_note(inner)
        {
            if !Note::decode(note.bytes()).is_some_and(|note| self.hear_note(name, note)) {
                return self.fail(name, "the peer sent a note that makes no sense".to_owned());
            }
        }
        let count = self
            .lanes
            .get(name)
            .map_or(0, |lane| lane.connections.len());
        for at in 1..count {
            self.look_at(name, at);
        }
    }

    /// Moves a connection on.
    fn look_at(&mut self, name: u64, at: usize) {
        let Some(lane) = self.lanes.get_mut(name).filter(|lane| lane.is_matched) else {
            return;
        };
        let (place, leads) = (lane.place(at), lane.leads);
        let Some(connection) = lane.connections.get_mut(at) else {
            return;
        };
        let rail = connection.rail;
        let Some(inner) = connection.lane else {
            // By the time that this was told of: a poll asks for none.
            if leads && self.clock >= connection.again_at {
                self.offer_again(name, at);
            }
            return;
        };
        let adapter = &self.rails[rail].adapter;
        if adapter.has_failed(inner) {
            self.rails[rail].failed_at = Some(self.now());
            self.lose(name, at);
            self.say(name, &Note::Over(place));
        } else if adapter.is_connected(inner) && !connection.said_ready {
            connection.said_ready = true;
            self.say(name, &Note::Ready(place));
        }
    }

    /// Offers a connection again that was lost.
    fn offer_again(&mut self, name: u64, at: usize) {
        let renewed = self.renew(name, at);
        let now = self.now();
        let Some(connection) = self.connection(name, at) else {
            return;
        };
        match renewed {
            Ok((_, own)) => {
                connection.attempt = connection.attempt.wrapping_add(1);
                let place = Place {
                    connection: at as u8,
                    attempt: connection.attempt,
                };
                self.say(name, &Note::Offer(place, own));
            }
            Err(_) => connection.ends(now, false),
        }
    }

    /// Makes a pair for a connection that has none: the lane on its rail, and what the peer must know of it.
    fn renew(&mut self, name: u64, at: usize) -> Result<(u64, OfferedRail), String> {
        let lane = self.lanes.get(name).ok_or("the lane is over")?;
        let connection = lane
            .connections
            .get(at)
            .ok_or("there is no such connection")?;
        let (rail, rank) = (connection.rail, lane.rank());
        let (inner, own) = self.prepare(rail, rank)?;
        self.rails[rail].owners.insert(inner, name);
        if let Some(connection) = self.connection(name, at) {
            connection.lane = Some(inner);
        }
        Ok((inner, own))
    }

    fn connection(&mut self, name: u64, at: usize) -> Option<&mut Connection> {
        self.lanes.get_mut(name)?.connections.get_mut(at)
    }

    /// A connection is over on this side, if there is one.
    fn lose(&mut self, name: u64, at: usize) {
        let now = self.now();
        let Some(connection) = self.connection(name, at) else {
            return;
        };
        let (rail, was_usable) = (connection.rail, connection.usable().is_some());
        let Some(inner) = connection.lane else {
            return;
        };
        let has_read = self.rails[rail].adapter.has_read(inner);
        let Some(connection) = self.connection(name, at) else {
            return;
        };
        connection.ends(now, has_read);
        self.lost += u64::from(was_usable);
        self.end(rail, inner);
        self.lose_stripes(name, at);
    }

    /// Takes what the peer says. `false`: no correct peer would say it.
    fn hear_note(&mut self, name: u64, note: Note) -> bool {
        let Some(lane) = self.lanes.get_mut(name).filter(|lane| lane.is_matched) else {
            return false;
        };
        let leads = lane.leads;
        let (place, peer) = match note {
            Note::Keys(id, keys) => {
                lane.learn(id, keys);
                return true;
            }
            Note::Offer(place, peer) | Note::Answer(place, peer) => (place, Some(peer)),
            Note::Ready(place) | Note::Over(place) | Note::Up(place) => (place, None),
        };
        let at = usize::from(place.connection);
        let Some(connection) = lane.connections.get_mut(at).filter(|_| at > 0) else {
            return false;
        };
        let speed = self.rails[connection.rail].adapter.speed();
        let is_this = connection.lane.is_some() && connection.attempt == place.attempt;
        match (note, peer) {
            (Note::Offer(..), Some(peer)) if !leads => {
                connection.goes_to(&peer, speed);
                return self.answer(name, place, peer);
            }
            (Note::Answer(..), Some(peer)) if leads => {
                if let Some(inner) = connection.lane.filter(|_| is_this) {
                    connection.goes_to(&peer, speed);
                    let rail = connection.rail;
                    self.start(rail, inner, peer);
                }
            }
            (Note::Ready(_), _) => connection.heard_ready |= is_this,
            (Note::Over(_), _) => {
                if is_this {
                    self.lose(name, at);
                }
            }
            (Note::Up(_), _) if leads => {
                if connection.lane.is_none() {
                    let now = self.now();
                    if let Some(connection) = self.connection(name, at) {
                        connection.comes_back(now);
                    }
                }
            }
            _ => return false,
        }
        true
    }

    /// The leader offers a connection again. `false`: no correct peer would offer as fast.
    fn answer(&mut self, name: u64, place: Place, peer: OfferedRail) -> bool {
        let (now, at) = (self.now(), usize::from(place.connection));
        self.lose(name, at);
        let Some(connection) = self.connection(name, at) else {
            return true;
        };
        let last = connection.offered.replace(now);
        connection.attempt = place.attempt;
        let rail = connection.rail;
        if last.is_some_and(|last| now < last + OFFERS_APART) {
            let waiting = self.first(name);
            let waiting = waiting.map_or(0, |(adapter, inner)| adapter.notes_waiting(inner));
            if waiting >= WAITING_MAX {
                return false;
            }
            self.say(name, &Note::Over(place));
            return true;
        }
        match self.renew(name, at) {
            Ok((inner, own)) => {
                self.start(rail, inner, peer);
                self.say(name, &Note::Answer(place, own));
            }
            Err(_) => self.say(name, &Note::Over(place)),
        }
        true
    }

    /// The port of a rail came back: connections by it are made again soon.
    pub(super) fn greet(&mut self, rail: usize) {
        let now = self.now();
        for name in self.lanes.names() {
            let Some(lane) = self.lanes.get_mut(name) else {
                continue;
            };
            let mut lost = Vec::new();
            for at in 1..lane.connections.len() {
                let place = lane.place(at);
                let connection = &mut lane.connections[at];
                if connection.rail == rail && connection.lane.is_none() {
                    connection.comes_back(now);
                    lost.push(place);
                }
            }
            if !lane.leads {
                lost.iter()
                    .for_each(|&place| self.say(name, &Note::Up(place)));
            }
        }
    }

    /// A lane carries nothing any more.
    pub(super) fn stop_lane(&mut self, name: u64) -> u64 {
        let received = match self.first_mut(name) {
            Some((adapter, inner)) => adapter.stop_lane(inner),
            None => 0,
        };
        let Some(lane) = self.lanes.get_mut(name) else {
            return 0;
        };
        lane.failed
            .get_or_insert_with(|| "it was given up".to_owned());
        lane.stripes.clear();
        let others = lane.connections.iter_mut().skip(1);
        let others: Vec<_> = others
            .filter_map(|connection| Some((connection.rail, connection.lane.take()?)))
            .collect();
        for (rail, inner) in others {
            self.end(rail, inner);
        }
        received
    }

    pub(super) fn close_lane(&mut self, name: u64) {
        self.stop_lane(name);
        if let Some((rail, inner)) = self.lanes.get(name).and_then(Lane::first) {
            self.end(rail, inner);
        }
        self.lanes.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Settings;
    use crate::model::{Fabric, usual_limits, usual_settings};

    fn rails(fabric: &Fabric, host: &str) -> Rails<Fabric> {
        let settings = Settings {
            device: Some(format!("{host}0,{host}1")),
            rails: 4,
            ..usual_settings()
        };
        Rails::open(fabric, settings).expect("devices")
    }

    /// A peer that offers without a pause, and takes no answer.
    #[test]
    fn offers_without_a_pause_end_the_lane() {
        let fabric = Fabric::new(&[]);
        for (name, network) in [("a0", 0), ("a1", 1), ("b0", 0), ("b1", 1)] {
            fabric.add_in(name, usual_limits(), network, 25_000);
        }
        let (mut a, mut b) = (rails(&fabric, "a"), rails(&fabric, "b"));
        let (to_b, offer) = a.make(1).expect("a lane");
        let (to_a, other) = b.make(0).expect("a lane");
        a.connect(to_b, &other);
        b.connect(to_a, &offer);
        while !a.is_connected(to_b) || !b.is_connected(to_a) {
            a.poll();
            b.poll();
        }
        let leads = a.lanes.get(to_b).is_some_and(|lane| lane.leads);
        let (mut side, name) = if leads { (b, to_a) } else { (a, to_b) };
        let place = |attempt| Place {
            connection: 1,
            attempt,
        };
        let peer = if leads { offer } else { other }.rails()[1];
        let mut offers = (1..100_000).map(|attempt| Note::Offer(place(attempt), peer));
        let rogue = offers.position(|note| !side.hear_note(name, note));
        // As many as are answered at once are no offence.
        assert!(
            rogue.is_some_and(|count| (200..1000).contains(&count)),
            "{rogue:?}"
        );
    }
}
