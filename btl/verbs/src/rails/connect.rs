// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the connections of a lane come and go: those of the offer, and those that are made again.

use std::time::Duration;

use super::Rails;
use super::lane::{Connection, Lane};
use super::note::{Attempt, Note};
use crate::adapter::{LanePlace, Lanes, Offer};
use crate::changed::Listed;
use crate::matching::{MatchedRails, OfferedRail, match_rails};
use crate::provider::Provider;

/// Offers of one connection that come faster than this are refused: each of them makes a queue pair. Half of the
/// shortest pause after which a correct peer makes a connection again (`BACKOFF` in `lane.rs`).
const OFFERS_APART: Duration = Duration::from_millis(500);
/// Notes that wait to go when a peer offers so fast, at most. A correct peer's offers are not so fast, but delays may
/// bring several of them at once. Chosen by magnitude, as for notes that wait to be read: some 12 KiB.
const WAITING_MAX: usize = 256;

impl<P: Provider> Rails<P> {
    /// Makes a queue pair for the peer on each rail, and offers all of them.
    pub(super) fn make_lane(&mut self, rank: u32) -> Result<(u64, Offer), String> {
        let (mut made, mut absent, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        self.note_uses();
        for rail in 0..self.rails.len() {
            match self.prepare_inner(rail, rank, LanePlace::OfSilent) {
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
            .filter_map(|connection| Some((connection.rail, connection.inner?)))
            .collect();
        let mut lane = Lane::new(rank, connections);
        lane.offered = offered;
        let Some(name) = self.lanes.insert(lane) else {
            ends.into_iter()
                .for_each(|(rail, inner)| self.close_inner(rail, inner));
            return Err("there are too many lanes".to_owned());
        };
        for (rail, inner) in ends {
            self.rails[rail].owners.insert(inner, name);
        }
        Ok((name, offer))
    }

    /// Has all connections of a lane count as used when one of them was, or when the peer may be reading. By some only
    /// the peer reads, of which this side sees nothing.
    fn note_uses(&mut self) {
        let now = self.now();
        for name in self.lanes.names() {
            let Some(lane) = self.lanes.get(name) else {
                continue;
            };
            let mut used = lane.shows.is_any().then_some(now);
            for connection in &lane.connections {
                if let Some(inner) = connection.inner {
                    let adapter = &mut self.rails[connection.rail].adapter;
                    used = used.max(adapter.last_use(inner, now));
                }
            }
            let Some(used) = used else { continue };
            for connection in &lane.connections {
                if let Some(inner) = connection.inner {
                    self.rails[connection.rail].adapter.note_use(inner, used);
                }
            }
        }
    }

    /// Makes an inner lane on a rail, which is not connected yet.
    fn prepare_inner(
        &mut self,
        rail: usize,
        rank: u32,
        place: LanePlace,
    ) -> Result<(u64, OfferedRail), String> {
        let (now, index) = (self.now(), rail as u8);
        let rail = &mut self.rails[rail];
        let (inner, found) = rail.adapter.prepare_lane(rank, now, place)?;
        let doubtful = rail.is_doubtful(rank, now);
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
        let matches = match_rails(&lane.offered, &theirs);
        let mut left: Vec<_> = std::mem::take(&mut lane.connections)
            .into_iter()
            .map(Some)
            .collect();
        let (mut begin, mut over) = (Vec::new(), Vec::new());
        for &MatchedRails { own, peer: other } in &matches {
            if let Some(mut connection) = left.get_mut(own).and_then(Option::take) {
                connection.set_peer(&theirs[other], lane.offered[own].speed);
                match connection.inner {
                    Some(inner) if !theirs[other].absent => {
                        begin.push((connection.rail, inner, theirs[other]));
                    }
                    // It is made when both ports are there.
                    Some(inner) if !lane.connections.is_empty() => {
                        connection.inner = None;
                        over.push((connection.rail, inner));
                    }
                    _ => {}
                }
                lane.connections.push(connection);
            }
        }
        lane.is_matched = true;
        if let Some(&MatchedRails { own, peer: other }) = matches.first() {
            lane.leads = lane.offered[own].pair.to_bytes() < theirs[other].pair.to_bytes();
        }
        let unmatched = left.into_iter().flatten();
        over.extend(unmatched.filter_map(|one| Some((one.rail, one.inner?))));
        let first = lane.first();
        for (rail, inner) in over {
            self.close_inner(rail, inner);
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
            self.connect_inner(rail, inner, reached);
        }
    }

    /// Begins to connect an inner lane that carries no stream.
    fn connect_inner(&mut self, rail: usize, inner: u64, peer: OfferedRail) {
        let adapter = &mut self.rails[rail].adapter;
        let offer = Offer {
            granted: 0,
            ..adapter.offer_of(&[peer])
        };
        adapter.start_connecting(inner, &offer);
    }

    /// Closes an inner lane.
    fn close_inner(&mut self, rail: usize, inner: u64) {
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
    pub(super) fn send_note(&mut self, name: u64, note: &Note) {
        if let Some((adapter, inner)) = self.first_mut(name) {
            adapter.add_note(inner, &note.encode());
        }
    }

    /// Moves the connections of a lane on: what the peer says of them, which are ready or have failed, and which
    /// to make again.
    pub(super) fn advance(&mut self, name: u64) {
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
            self.doubt(name, rail, inner);
            return self.fail(name, reason);
        }
        while let Some((adapter, inner)) = self.first_mut(name)
            && let Some(note) = adapter.next_note(inner)
        {
            if !Note::decode(note.bytes()).is_some_and(|note| self.take_note(name, note)) {
                return self.fail(name, "the peer sent a malformed note".to_owned());
            }
        }
        let count = self
            .lanes
            .get(name)
            .map_or(0, |lane| lane.connections.len());
        for index in 1..count {
            self.advance_connection(name, index);
        }
    }

    /// Moves a connection on.
    fn advance_connection(&mut self, name: u64, index: usize) {
        let Some(lane) = self.lanes.get_mut(name).filter(|lane| lane.is_matched) else {
            return;
        };
        let (attempt, leads) = (lane.attempt(index), lane.leads);
        let Some(connection) = lane.connections.get_mut(index) else {
            return;
        };
        let rail = connection.rail;
        let Some(inner) = connection.inner else {
            // By the last time that the engine gave: a poll asks for none.
            if leads && self.clock >= connection.retry_at {
                self.offer_again(name, index);
            }
            return;
        };
        let adapter = &self.rails[rail].adapter;
        if adapter.has_failed(inner) {
            self.doubt(name, rail, inner);
            self.lose_connection(name, index);
            self.send_note(name, &Note::Over(attempt));
        } else if adapter.is_connected(inner) && !connection.is_ready {
            connection.is_ready = true;
            self.send_note(name, &Note::Ready(attempt));
        }
    }

    /// A connection has failed: its rail is to blame, unless another lane needs the place.
    fn doubt(&mut self, name: u64, rail: usize, inner: u64) {
        let now = self.now();
        let rail = &mut self.rails[rail];
        if let Some(lane) = self.lanes.get(name)
            && !rail.adapter.is_displaced(inner)
        {
            rail.doubt(lane.rank(), now);
        }
    }

    /// Offers a connection again that was lost.
    fn offer_again(&mut self, name: u64, index: usize) {
        let renewed = self.renew(name, index);
        let now = self.now();
        let Some(connection) = self.connection_mut(name, index) else {
            return;
        };
        match renewed {
            Some((_, own)) => {
                connection.attempt = connection.attempt.wrapping_add(1);
                let attempt = Attempt {
                    connection: index as u8,
                    number: connection.attempt,
                };
                self.send_note(name, &Note::Offer(attempt, own));
            }
            None => connection.mark_lost(now, false),
        }
    }

    /// Makes an inner lane for a connection that has none. Gives it, and what the peer must know of it; none: it cannot
    /// be had now.
    fn renew(&mut self, name: u64, index: usize) -> Option<(u64, OfferedRail)> {
        let lane = self.lanes.get(name)?;
        let (rail, rank) = (lane.connections.get(index)?.rail, lane.rank());
        let (inner, own) = self.prepare_inner(rail, rank, LanePlace::Free).ok()?;
        self.rails[rail].owners.insert(inner, name);
        if let Some(connection) = self.connection_mut(name, index) {
            connection.inner = Some(inner);
        }
        Some((inner, own))
    }

    fn connection_mut(&mut self, name: u64, index: usize) -> Option<&mut Connection> {
        self.lanes.get_mut(name)?.connections.get_mut(index)
    }

    /// A connection is lost on this side, if there is one.
    fn lose_connection(&mut self, name: u64, index: usize) {
        let now = self.now();
        let Some(connection) = self.connection_mut(name, index) else {
            return;
        };
        let (rail, was_usable) = (connection.rail, connection.usable().is_some());
        let Some(inner) = connection.inner else {
            return;
        };
        let has_read = self.rails[rail].adapter.has_read(inner);
        let Some(connection) = self.connection_mut(name, index) else {
            return;
        };
        connection.mark_lost(now, has_read);
        self.lost += u64::from(was_usable);
        self.close_inner(rail, inner);
        self.lose_stripes(name, index);
    }

    /// Takes what the peer says. `false`: no correct peer would say it.
    fn take_note(&mut self, name: u64, note: Note) -> bool {
        let Some(lane) = self.lanes.get_mut(name).filter(|lane| lane.is_matched) else {
            return false;
        };
        let leads = lane.leads;
        let (attempt, peer) = match note {
            Note::Keys(id, keys) => {
                lane.add_keys(id, keys);
                return true;
            }
            Note::Offer(attempt, peer) | Note::Answer(attempt, peer) => (attempt, Some(peer)),
            Note::Ready(attempt) | Note::Over(attempt) | Note::Up(attempt) => (attempt, None),
        };
        let index = usize::from(attempt.connection);
        let Some(connection) = lane.connections.get_mut(index).filter(|_| index > 0) else {
            return false;
        };
        let speed = self.rails[connection.rail].adapter.speed();
        let is_this = connection.inner.is_some() && connection.attempt == attempt.number;
        match (note, peer) {
            (Note::Offer(..), Some(peer)) if !leads => {
                connection.set_peer(&peer, speed);
                return self.answer_offer(name, attempt, peer);
            }
            (Note::Answer(..), Some(peer)) if leads => {
                if let Some(inner) = connection.inner.filter(|_| is_this) {
                    connection.set_peer(&peer, speed);
                    let rail = connection.rail;
                    self.connect_inner(rail, inner, peer);
                }
            }
            (Note::Ready(_), _) => connection.peer_is_ready |= is_this,
            (Note::Over(_), _) => {
                if is_this {
                    self.lose_connection(name, index);
                }
            }
            (Note::Up(_), _) if leads => {
                if connection.inner.is_none() {
                    let now = self.now();
                    if let Some(connection) = self.connection_mut(name, index) {
                        connection.retry_soon(now);
                    }
                }
            }
            _ => return false,
        }
        true
    }

    /// The leader offers a connection again. `false`: no correct peer would offer as fast.
    fn answer_offer(&mut self, name: u64, attempt: Attempt, peer: OfferedRail) -> bool {
        let (now, index) = (self.now(), usize::from(attempt.connection));
        self.lose_connection(name, index);
        let Some(connection) = self.connection_mut(name, index) else {
            return true;
        };
        let last = connection.offered_at.replace(now);
        connection.attempt = attempt.number;
        let rail = connection.rail;
        if last.is_some_and(|last| now < last + OFFERS_APART) {
            let waiting = self.first(name);
            let waiting = waiting.map_or(0, |(adapter, inner)| adapter.notes_waiting(inner));
            if waiting >= WAITING_MAX {
                return false;
            }
            self.send_note(name, &Note::Over(attempt));
            return true;
        }
        match self.renew(name, index) {
            Some((inner, own)) => {
                self.connect_inner(rail, inner, peer);
                self.send_note(name, &Note::Answer(attempt, own));
            }
            None => self.send_note(name, &Note::Over(attempt)),
        }
        true
    }

    /// The port of a rail came back: connections by it are made again soon.
    pub(super) fn port_came_back(&mut self, rail: usize) {
        let now = self.now();
        for name in self.lanes.names() {
            let Some(lane) = self.lanes.get_mut(name) else {
                continue;
            };
            let mut lost = Vec::new();
            for index in 1..lane.connections.len() {
                let attempt = lane.attempt(index);
                let connection = &mut lane.connections[index];
                if connection.rail == rail && connection.inner.is_none() {
                    connection.retry_soon(now);
                    lost.push(attempt);
                }
            }
            if !lane.leads {
                lost.iter()
                    .for_each(|&attempt| self.send_note(name, &Note::Up(attempt)));
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
            .filter_map(|connection| Some((connection.rail, connection.inner.take()?)))
            .collect();
        for (rail, inner) in others {
            self.close_inner(rail, inner);
        }
        received
    }

    pub(super) fn close_lane(&mut self, name: u64) {
        self.stop_lane(name);
        if let Some((rail, inner)) = self.lanes.get(name).and_then(Lane::first) {
            self.close_inner(rail, inner);
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
        let attempt = |number| Attempt {
            connection: 1,
            number,
        };
        let peer = if leads { offer } else { other }.rails()[1];
        let mut offers = (1..100_000).map(|number| Note::Offer(attempt(number), peer));
        let rogue = offers.position(|note| !side.take_note(name, note));
        // As many as are answered at once are no offence.
        assert!(
            rogue.is_some_and(|count| (200..1000).contains(&count)),
            "{rogue:?}"
        );
    }
}
