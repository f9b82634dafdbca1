// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the model carries operations out.
//!
//! # Safety
//!
//! Bytes are copied from and to pieces that [`State::may`] has found in a registered range. See [`super`].
#![allow(unsafe_code, reason = "implements a device")]

use std::time::Duration;

use super::state::{Datagram, Receive, Registration, Send, Stage, State, Target};
use crate::provider::{Event, Finished, Kind, Piece, Remote};
use crate::queue::DATAGRAM_HEAD;
use crate::status::{SUCCESS, Status};

/// What became of an operation that was tried.
enum Outcome {
    /// It is over.
    Done,
    /// No peer answers.
    Silent,
    /// The peer has no receive.
    Full,
    /// It has failed.
    Failed(Status),
}

impl State {
    /// Carries out what can be: until nothing moves any more.
    pub(super) fn run(&mut self) {
        loop {
            let numbers: Vec<u32> = self.pairs.keys().copied().collect();
            let moved = numbers
                .into_iter()
                .filter(|&number| self.step(number))
                .count();
            if moved == 0 {
                return;
            }
        }
    }

    /// Tries a pair's next operation; whether something changed.
    fn step(&mut self, number: u32) -> bool {
        let now = self.now;
        let Some(pair) = self
            .pairs
            .get_mut(&number)
            .filter(|pair| pair.stage == Stage::Ready)
        else {
            return false;
        };
        let alive = self.ports.get(pair.port).is_some_and(|port| port.alive);
        if !alive {
            return false;
        }
        let fault = if pair.waiting.is_empty() {
            None
        } else {
            pair.fault.take()
        };
        let Some(mut send) = pair.waiting.pop_front() else {
            return false;
        };
        let timing = pair.timing;
        let since = *send.since.get_or_insert(now);
        let outcome = match fault {
            Some(status) => Outcome::Failed(status),
            None => self.carry(number, &mut send),
        };
        let waited = now - since;
        match outcome {
            Outcome::Done => self.sent(number, &send, SUCCESS),
            Outcome::Failed(status) => self.fail(number, Some((send, status))),
            Outcome::Silent if waited >= timing.silence() => {
                self.fail(number, Some((send, Status::PEER_SILENT)))
            }
            Outcome::Full if waited >= retry_time(timing.full_retries()) => {
                self.fail(number, Some((send, Status::PEER_FULL)));
            }
            Outcome::Silent | Outcome::Full => {
                if let Some(pair) = self.pairs.get_mut(&number) {
                    pair.waiting.push_front(send);
                }
                return false;
            }
        }
        true
    }

    fn sent(&mut self, number: u32, send: &Send, status: u32) {
        let Some(queue) = self.pairs.get(&number).map(|pair| pair.queue) else {
            return;
        };
        if send.signaled || status != SUCCESS {
            self.complete(
                queue,
                Finished {
                    id: send.id,
                    status,
                    pair: number,
                    ..Finished::default()
                },
            );
        }
    }

    /// A pair fails: the cause first, then all that waits.
    pub(super) fn fail(&mut self, number: u32, cause: Option<(Send, Status)>) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.stage = Stage::Failed;
        let queue = pair.queue;
        let waiting = std::mem::take(&mut pair.waiting);
        let own = std::mem::take(&mut pair.own);
        if let Some((send, status)) = cause {
            self.sent(number, &send, status.0);
        }
        for send in waiting {
            self.sent(number, &send, Status::FLUSHED.0);
        }
        for receive in own {
            let status = Status::FLUSHED.0;
            self.complete(
                queue,
                Finished {
                    id: receive.id,
                    status,
                    pair: number,
                    ..Finished::default()
                },
            );
        }
    }

    fn carry(&mut self, number: u32, send: &mut Send) -> Outcome {
        let Some(pair) = self.pairs.get(&number) else {
            return Outcome::Silent;
        };
        let (domain, port) = (pair.domain, pair.port);
        if !self.ports[port].active {
            return Outcome::Failed(Status::OWN_PAIR);
        }
        if send.inline.is_none() && !send.pieces.iter().all(|piece| self.may(domain, piece)) {
            return Outcome::Failed(Status::OWN_MEMORY);
        }
        let Some(peer) = pair.peer else {
            return Outcome::Failed(Status::OWN_PAIR);
        };
        let lost = pair.answers_lost;
        let there = self.port_at(&peer.path.to);
        let answers =
            there.is_some_and(|there| self.ports[there].alive && self.ports[there].active);
        let open = self.pairs.get(&peer.number).filter(|other| {
            Some(other.port) == there && matches!(other.stage, Stage::Receiving | Stage::Ready)
        });
        let reached = self.shares_network(port, &peer.path.to);
        if !reached || !answers || open.is_none() || send.delivered {
            return Outcome::Silent;
        }
        let outcome = match send.target {
            Target::Peer => self.deliver(number, peer.number, None, send),
            Target::Shared(receives) => self.deliver(number, peer.number, Some(receives), send),
            Target::Write(to) => self.write(number, peer.number, to, send),
            Target::Read(from) => self.read(peer.number, None, from, send),
            Target::ReadShared(from, receives) => {
                self.read(peer.number, Some(receives), from, send)
            }
        };
        if lost && matches!(outcome, Outcome::Done) {
            send.delivered = true;
            return Outcome::Silent;
        }
        outcome
    }

    /// The bytes of a send whose memory is registered in the domain.
    pub(super) fn gather(&self, domain: u64, send: &Send) -> Option<Vec<u8>> {
        let known =
            send.inline.is_some() || send.pieces.iter().all(|piece| self.may(domain, piece));
        known.then(|| self.bytes(send))
    }

    fn bytes(&self, send: &Send) -> Vec<u8> {
        match &send.inline {
            Some(bytes) => bytes.clone(),
            None => send.pieces.iter().flat_map(load).collect(),
        }
    }

    fn deliver(&mut self, number: u32, peer: u32, shared: Option<u32>, send: &Send) -> Outcome {
        let bytes = self.bytes(send);
        if shared.is_some_and(|receives| self.domain_of(peer, receives).is_none()) {
            return Outcome::Failed(Status::INVALID_REQUEST);
        }
        let Some((receive, queue)) = self.take_receive(peer, shared) else {
            return Outcome::Full;
        };
        let room: usize = receive
            .pieces
            .iter()
            .map(|piece| piece.length as usize)
            .sum();
        if room < bytes.len() {
            let status = Status::TOO_LONG.0;
            self.complete(
                queue,
                Finished {
                    id: receive.id,
                    status,
                    pair: peer,
                    ..Finished::default()
                },
            );
            self.fail(peer, None);
            return Outcome::Failed(Status::INVALID_REQUEST);
        }
        store(&receive.pieces, 0, &bytes);
        let finished = send.finished(receive.id, peer, number);
        self.received(queue, bytes.len(), finished);
        Outcome::Done
    }

    /// A message of so many bytes has come in the receive that `finished` names.
    fn received(&mut self, queue: u32, bytes: usize, finished: Finished) {
        let finished = Finished {
            status: SUCCESS,
            received: true,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            ..finished
        };
        self.complete(queue, finished);
    }

    /// The domain of the receives that a message names which comes by a pair; none if they are not of its domain.
    fn domain_of(&self, pair: u32, receives: u32) -> Option<u64> {
        let shared = self.pairs.get(&pair)?.shared?;
        let receives = self.receives.get(&receives)?;
        (receives.shared?.0 == shared).then_some(receives.domain)
    }

    /// The next receive of a pair, or of a shared queue that its peer named, and where it completes.
    fn take_receive(&mut self, pair: u32, named: Option<u32>) -> Option<(Receive, u32)> {
        let state = self.pairs.get_mut(&pair)?;
        let queue = state.queue;
        let (number, queue) = match (named, state.receives) {
            (Some(named), _) => {
                let (shared, queue) = self.receives.get(&named)?.shared?;
                if state.shared != Some(shared) {
                    return None;
                }
                (named, queue)
            }
            (None, Some(receives)) => (receives, queue),
            (None, None) => return Some((state.own.pop_front()?, queue)),
        };
        let receives = self.receives.get_mut(&number)?;
        let receive = receives.posted.pop_front()?;
        let low = receives.limit > 0 && receives.posted.len() < receives.limit as usize;
        if low {
            receives.limit = 0;
            let device = receives.device;
            self.report(device, Event::ReceivesLow);
        }
        Some((receive, queue))
    }

    fn write(&mut self, number: u32, peer: u32, to: Remote, send: &Send) -> Outcome {
        let bytes = self.bytes(send);
        let domain = self.pairs.get(&peer).map(|pair| pair.domain);
        let Some(piece) = domain.and_then(|domain| self.remote(domain, to, bytes.len(), true))
        else {
            self.report_access(peer);
            return Outcome::Failed(Status::PEER_ACCESS);
        };
        if send.immediate.is_some() {
            let Some((receive, queue)) = self.take_receive(peer, None) else {
                return Outcome::Full;
            };
            store(&[piece], 0, &bytes);
            let finished = send.finished(receive.id, peer, number);
            self.received(queue, bytes.len(), finished);
        } else {
            store(&[piece], 0, &bytes);
        }
        Outcome::Done
    }

    /// Reads memory of the peer's domain, or of that of the receives that are named.
    fn read(&mut self, peer: u32, named: Option<u32>, from: Remote, send: &Send) -> Outcome {
        let length: usize = send.pieces.iter().map(|piece| piece.length as usize).sum();
        let domain = match named {
            Some(receives) => self.domain_of(peer, receives),
            None => self.pairs.get(&peer).map(|pair| pair.domain),
        };
        let Some(piece) = domain.and_then(|domain| self.remote(domain, from, length, false)) else {
            self.report_access(peer);
            return Outcome::Failed(Status::PEER_ACCESS);
        };
        store(&send.pieces, 0, &load(&piece));
        Outcome::Done
    }

    fn report_access(&mut self, pair: u32) {
        if let Some(device) = self.pairs.get(&pair).map(|pair| pair.port) {
            self.report(device, Event::PairFailed(pair));
        }
    }

    /// A range of a peer's memory, if it may be touched so.
    fn remote(&self, domain: u64, at: Remote, length: usize, write: bool) -> Option<Piece> {
        let piece = Piece {
            address: at.address,
            length: u32::try_from(length).ok()?,
            key: at.key,
        };
        let memory = self.registration(domain, &piece)?;
        let allowed = if write {
            memory.access.remote_write
        } else {
            memory.access.remote_read
        };
        allowed.then_some(piece)
    }

    /// Whether a piece of a domain is registered.
    fn may(&self, domain: u64, piece: &Piece) -> bool {
        piece.length == 0 || self.registration(domain, piece).is_some()
    }

    fn registration(&self, domain: u64, piece: &Piece) -> Option<&Registration> {
        let memory = self
            .memories
            .get(&piece.key)
            .filter(|memory| memory.domain == domain)?;
        let end = piece.address.checked_add(u64::from(piece.length))?;
        let inside = piece.address >= memory.start && end <= memory.start + memory.length as u64;
        inside.then_some(memory)
    }

    /// Sends a datagram: whatever becomes of it, the sender is done.
    pub(super) fn send_datagram(&mut self, pair: u32, send: &Send, datagram: Datagram) {
        let port = self.pairs.get(&pair).map_or(0, |pair| pair.port);
        if !self.ports[port].active {
            return self.sent(pair, send, Status::OWN_PAIR.0);
        }
        self.sent(pair, send, SUCCESS);
        let impairment = self.impairment;
        if self.happens(impairment.loss) {
            return;
        }
        let twice = self.happens(impairment.duplicate);
        if self.happens(impairment.reorder) {
            self.late.push(datagram);
            return;
        }
        if twice {
            self.arrive(&datagram);
        }
        self.arrive(&datagram);
        self.release_late();
    }

    /// Delivers what was held back.
    pub(super) fn release_late(&mut self) {
        for datagram in std::mem::take(&mut self.late) {
            self.arrive(&datagram);
        }
    }

    fn arrive(&mut self, datagram: &Datagram) {
        let there = self.port_at(&datagram.to);
        let reached =
            there.is_some_and(|there| self.ports[there].alive && self.ports[there].active);
        let open = self.pairs.get(&datagram.pair).filter(|pair| {
            Some(pair.port) == there
                && pair.kind == Kind::Datagrams
                && pair.qkey == datagram.qkey
                && matches!(pair.stage, Stage::Receiving | Stage::Ready)
        });
        if !reached || open.is_none() {
            self.dropped += 1;
            return;
        }
        let Some((receive, queue)) = self.take_receive(datagram.pair, None) else {
            self.dropped += 1;
            return;
        };
        let room: usize = receive
            .pieces
            .iter()
            .map(|piece| piece.length as usize)
            .sum();
        let length = DATAGRAM_HEAD + datagram.bytes.len();
        if room < length {
            let status = Status::TOO_LONG.0;
            let pair = datagram.pair;
            self.complete(
                queue,
                Finished {
                    id: receive.id,
                    status,
                    pair,
                    ..Finished::default()
                },
            );
            return;
        }
        store(&receive.pieces, DATAGRAM_HEAD, &datagram.bytes);
        let finished = Finished {
            id: receive.id,
            pair: datagram.pair,
            source: datagram.source,
            immediate: datagram.immediate,
            ..Finished::default()
        };
        self.received(queue, length, finished);
    }
}

/// How long a sender waits for a receive. The model's retries are 10 ms apart.
fn retry_time(retries: u8) -> Duration {
    Duration::from_millis(10) * u32::from(retries)
}

/// The bytes of a piece that was found registered, or that is its sender's for the length of the call.
pub(super) fn load(piece: &Piece) -> Vec<u8> {
    let length = piece.length as usize;
    let mut bytes = vec![0; length];
    let from = std::ptr::with_exposed_provenance::<u8>(piece.address as usize);
    // SAFETY: the piece lies in a range that its owner keeps; others may write to it, so it is copied raw.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), length) };
    bytes
}

/// Writes into pieces that were found registered, after so many of their bytes.
fn store(pieces: &[Piece], mut skip: usize, mut bytes: &[u8]) {
    for piece in pieces {
        let length = piece.length as usize;
        if skip >= length {
            skip -= length;
            continue;
        }
        let now = bytes.len().min(length - skip);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(piece.address as usize + skip);
        // SAFETY: as for loading; no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, now) };
        bytes = &bytes[now..];
        skip = 0;
    }
}
