// SPDX-License-Identifier: MIT OR Apache-2.0
//! Announced messages: the sender says where the bytes are, the receiver, which knows both sides, decides how they
//! come.
//!
//! A [`Transfer`] keeps the ranges that are still to do and what is being done about the first of them. A layer that
//! fails is given up for the pair, the range goes back on the list, and the next layer takes it. The message is never
//! failed by a layer.

mod announce;
pub(super) mod mapped;
mod offered;
mod rdma_read;

pub(crate) use announce::{announce, announce_at_once, announced};

use super::control::{reply, send_fin};
use super::coop::{self, OnePiece, ReceiveStep};
use super::deliver::{Ended, Message, Receiver, deliver};
use super::layers::{Reading, demote};
use super::own::{self, OwnStep};
use crate::error::Error;
use crate::matching::Envelope;
use crate::peer::{Gone, Peer};
use crate::records::{Cts, CtsAction, Kind};
use crate::request::{RequestId, UserBuf};
use crate::select::ReceiveProtocol;
use crate::select::decide::{Facts, decide};
use crate::select::observed::{self, Rival, Source};
use crate::state::Core;
use crate::state::message::{Announcement, Remote};
use crate::state::statistics::CameBy;
use crate::state::transfer::{Mode, Piped, Receiving, Timed, Transfer, Transfers, Written};
use onecopy_btl::link::Link;
use onecopy_btl::registry::Power;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_obs::tracepoints;
use onecopy_shm::coop::MessageRange;
use onecopy_shm::copy::is_slow_for_strings;
use onecopy_shm::loan::Loan;
use std::time::Instant;

/// Starts to receive an announced message into the request `id`.
pub(crate) fn start(
    core: &mut Core,
    transfers: &mut Transfers,
    peer: &mut Peer,
    envelope: Envelope,
    announcement: Announcement,
    id: RequestId,
) {
    let Some(request) = core.requests.get_mut(id) else {
        send_fin(core, peer, announcement.request);
        return;
    };
    request.begin_receiving(&envelope);
    let len = announcement.len.min(request.len);
    if mapped::receive(core, peer, envelope, &announcement, id) {
        return;
    }
    let from = peer.rank as usize;
    tracepoints::rendezvous_matched(from, from, announcement.request, announcement.len);
    let index = transfers.insert(Transfer::new(id, envelope, announcement, len));
    step(core, transfers, peer, index);
}

/// Moves all transfers on.
pub(crate) fn step_all(
    core: &mut Core,
    transfers: &mut Transfers,
    peers: &mut [Option<Box<Peer>>],
) -> bool {
    let mut moved = false;
    for index in transfers.indices() {
        let rank = match transfers.get_mut(index) {
            // Its chunks move it on when they arrive.
            None
            | Some(Transfer {
                mode: Mode::Pipe(_),
                ..
            }) => continue,
            Some(Transfer {
                mode: Mode::Own(_), ..
            }) => {
                moved |= step_own(core, transfers, index);
                continue;
            }
            Some(transfer) => transfer.peer,
        };
        if let Some(peer) = &mut peers[rank as usize] {
            moved |= step(core, transfers, peer, index);
            if peer.has_output() {
                core.agenda.make_busy(rank);
            }
        }
    }
    moved
}

/// Moves a message of this rank to itself.
#[cold]
fn step_own(core: &mut Core, transfers: &mut Transfers, index: usize) -> bool {
    let Some(transfer) = transfers.get_mut(index) else {
        return false;
    };
    let stepped = own::step(core, transfer);
    if stepped == OwnStep::Over {
        transfers.remove(index);
    }
    stepped != OwnStep::Rests
}

/// All chunks that transfer `number` asked for are received.
pub(crate) fn piped_all(core: &mut Core, transfers: &mut Transfers, peer: &mut Peer, number: u64) {
    if let Some(index) = transfers.index_of(number, peer.rank) {
        step(core, transfers, peer, index);
    }
}

/// Where a step has left a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stepped {
    /// It goes on at once.
    On,
    /// That is all for now.
    Rests { moved: bool },
    /// All has come.
    Over,
}

/// Moves one transfer on by a bounded amount. Says whether anything moved.
fn step(core: &mut Core, transfers: &mut Transfers, peer: &mut Peer, index: usize) -> bool {
    let Some(transfer) = transfers.get_mut(index) else {
        return false;
    };
    let number = Transfers::number(index, transfer);
    let mut moved = false;
    loop {
        match advance(core, peer, number, transfer) {
            Stepped::On => moved = true,
            Stepped::Rests { moved: now } => return moved || now,
            Stepped::Over => {
                finish(core, peer, transfer);
                transfers.remove(index);
                return true;
            }
        }
    }
}

fn advance(core: &mut Core, peer: &mut Peer, number: u64, transfer: &mut Transfer) -> Stepped {
    match &mut transfer.mode {
        Mode::Choose => {
            if let Some(timed) = transfer.timed.take() {
                let observed = &mut peer.policy.observed;
                observed.transferred(timed.rival, timed.source, timed.begun, Instant::now());
                peer.want_announced();
            }
            let Some(&range) = transfer.remaining.last() else {
                return Stepped::Over;
            };
            let Some(range) = with_room(core, peer, transfer, range) else {
                return match (transfer.remaining.is_empty(), &transfer.mode) {
                    (true, _) => Stepped::Over,
                    (false, Mode::Direct(_)) => Stepped::Rests { moved: true },
                    (false, _) => Stepped::Rests { moved: false },
                };
            };
            begin(core, peer, number, transfer, range);
            Stepped::On
        }
        Mode::Get(layer) => {
            let layer = *layer;
            get(core, peer, transfer, layer)
        }
        Mode::RdmaRead(_) => rdma_read::step(core, peer, number, transfer),
        // Its steps are `step_own`.
        Mode::Own(_) => Stepped::Rests { moved: false },
        Mode::Direct(buffer) => {
            let taken = buffer.taken();
            offered::taken(core, transfer, taken)
        }
        Mode::Cooperative(receiving) => {
            let step = receiving.step(core, peer, transfer.request, &transfer.announcement);
            copied_together(core, peer, transfer, step)
        }
        Mode::Pipe(piped) => {
            if piped.next < piped.end {
                return Stepped::Rests { moved: false };
            }
            peer.inbound.end_pipe();
            transfer.remaining.pop();
            transfer.mode = Mode::Choose;
            Stepped::On
        }
    }
}

/// As much of the first range that is left as there is room for now: it becomes a range of its own. `None`: there is
/// none yet, or nothing more comes, as the receive has failed.
fn with_room(
    core: &mut Core,
    peer: &Peer,
    transfer: &mut Transfer,
    range: MessageRange,
) -> Option<MessageRange> {
    let request = core.requests.get(transfer.request);
    let Some(staged) = request.and_then(|request| request.buf.staged()) else {
        return Some(range);
    };
    let process = peer.life.process();
    if let Some(direct) = offered::accept(&mut core.counters, process, transfer, staged) {
        transfer.mode = direct;
        return None;
    }
    match staged.room(range.offset..range.end()) {
        Ok(0) => None,
        Ok(room) if room < range.len => {
            transfer.remaining.pop();
            transfer.remaining.push(range.skip(room));
            transfer.remaining.push(range.first(room));
            Some(range.first(room))
        }
        Ok(_) => Some(range),
        Err(reason) => {
            core.requests
                .complete(transfer.request, Err(Error::Device(reason)));
            transfer.remaining.clear();
            None
        }
    }
}

/// Reads the first of what the range still lacks.
fn get(core: &mut Core, peer: &mut Peer, transfer: &mut Transfer, layer: LayerId) -> Stepped {
    let Some(range) = transfer.remaining.pop() else {
        transfer.mode = Mode::Choose;
        return Stepped::On;
    };
    let n = range.len.min(Transfer::STEP);
    let reading = Reading {
        request: transfer.request,
        remote: &transfer.announcement.remote,
        layer,
    };
    match reading.get(core, peer, range.first(n)) {
        Ok(()) if n < range.len => {
            transfer.remaining.push(range.skip(n));
            Stepped::Rests { moved: true }
        }
        Ok(()) => {
            transfer.mode = Mode::Choose;
            Stepped::On
        }
        Err(error) => {
            transfer.remaining.push(range);
            transfer.mode = Mode::Choose;
            transfer.timed = None;
            demote(core, peer, &error);
            Stepped::On
        }
    }
}

/// What follows from a step of a cooperative transfer.
fn copied_together(
    core: &mut Core,
    peer: &Peer,
    transfer: &mut Transfer,
    step: ReceiveStep,
) -> Stepped {
    match step {
        ReceiveStep::Moved => Stepped::Rests { moved: true },
        ReceiveStep::Waits => Stepped::Rests { moved: false },
        ReceiveStep::Broken(detail) => {
            // The request ends with the peer.
            core.agenda.fail(peer.rank, Gone::Protocol(detail));
            Stepped::Rests { moved: true }
        }
        ReceiveStep::Over { left, written } => {
            transfer.remaining.pop();
            if written > 0 {
                let layer = writer(&peer.link, &ReceiveBuffer::of(core, transfer.request));
                let bytes = written;
                transfer.written = Some(Written { layer, bytes });
            }
            if !left.is_empty() {
                transfer.timed = None;
            }
            transfer.remaining.extend(left);
            transfer.mode = Mode::Choose;
            Stepped::On
        }
    }
}

/// What is known of a range of a transfer.
struct TransferFacts<'t> {
    link: &'t Link,
    /// No other message of the pair uses the block.
    block_free: bool,
    transfer: &'t Transfer,
    range: MessageRange,
    /// A device of this rank can read it.
    is_shown: bool,
    /// The buffer of the receive is in one piece, and lies in this rank's heap.
    in_one_piece: bool,
    in_heap: bool,
    /// A call of the kernel would copy between these addresses slowly, and the user has not decided.
    calls_are_slow: bool,
}

impl TransferFacts<'_> {
    fn reaches(&self, layer: LayerId) -> bool {
        let can_get = |range| self.link.can_get(layer, range);
        let remote = &self.transfer.announcement.remote;
        match remote {
            Remote::One(range) => can_get(range),
            Remote::Many(_) => remote.ranges(self.range).iter().all(can_get),
            Remote::Unknown | Remote::Offered(_) => false,
        }
    }
}

impl Facts for TransferFacts<'_> {
    fn is_shown(&self) -> bool {
        self.is_shown
    }

    fn is_read_by(&self, layer: LayerId) -> bool {
        self.reaches(layer)
            && match layer.power() {
                Power::Attach => has_earned(self.link, layer, self.transfer, self.range),
                Power::Copy => !self.calls_are_slow,
                _ => true,
            }
    }

    fn is_rewritten(&self) -> bool {
        self.transfer.announcement.rewritten
    }

    fn sender_maps(&self) -> bool {
        self.in_heap && !self.transfer.asked && self.link.has(LayerId::MAP)
    }

    fn block_free(&self) -> bool {
        self.in_one_piece
            && self.block_free
            && self.transfer.announcement.coop_id != 0
            && self.range == MessageRange::whole(self.transfer.len)
    }
}

/// Begins what is chosen for a range of a transfer.
fn begin(
    core: &mut Core,
    peer: &mut Peer,
    number: u64,
    transfer: &mut Transfer,
    range: MessageRange,
) {
    let MessageRange { offset, len } = range;
    let reading = rdma_read::begin(&peer.endpoint, transfer, range);
    let into = ReceiveBuffer::of(core, transfer.request);
    let protocol = choose(peer, transfer, range, &into, reading.is_some());
    let from = peer.rank as usize;
    let message = transfer.announcement.request;
    tracepoints::rendezvous_start(from, from, message, len, protocol.name());
    // A device's times say nothing of the two ways.
    transfer.timed = rival(protocol)
        .filter(|_| len >= observed::MIN && !into.is_staged)
        .map(|rival| Timed {
            rival,
            source: Source {
                bytes: len,
                rewritten: transfer.announcement.rewritten,
            },
            begun: Instant::now(),
        });
    transfer.by = layer_of(protocol, &peer.link, &into).into();
    let ask = CtsRoute {
        request: message,
        transfer: number,
    };
    transfer.mode = match (protocol, into.place, reading) {
        (ReceiveProtocol::Read, _, Some(reading)) => {
            core.counters.lane_reads += u64::from(offset == 0);
            Mode::RdmaRead(reading)
        }
        (ReceiveProtocol::Get(layer), ..) => Mode::Get(layer),
        (ReceiveProtocol::Cooperative { reader, ask: asks }, Some(place), _) => {
            transfer.asked = true;
            let id = transfer.announcement.coop_id;
            let block = coop::block(&core.knobs, id, place, len, reader);
            let receiving = Receiving::open(peer, block, reader);
            if asks {
                ask.send(core, peer, CtsAction::Join);
            }
            Mode::Cooperative(receiving)
        }
        (
            ReceiveProtocol::Cooperative { .. } | ReceiveProtocol::Pipeline | ReceiveProtocol::Read,
            ..,
        ) => {
            // One after the other without an answer in between: chunks that were kept would be missed.
            if !peer.inbound.begin_pipe() {
                peer.endpoint.expect_no_answer();
            }
            ask.send(core, peer, CtsAction::Chunks(range));
            Mode::Pipe(Piped {
                next: offset,
                end: range.end(),
            })
        }
    };
}

/// Chooses what to do about a range. `is_shown`: a device of this rank can read it.
fn choose(
    peer: &mut Peer,
    transfer: &Transfer,
    range: MessageRange,
    into: &ReceiveBuffer,
    is_shown: bool,
) -> ReceiveProtocol {
    let facts = TransferFacts {
        link: &peer.link,
        block_free: peer.inbound.coop_in_use.is_none() && peer.endpoint.shares_memory(),
        transfer,
        range,
        is_shown,
        in_one_piece: into.place.is_some(),
        in_heap: into.place.is_some_and(|place| place.heap.is_some()),
        calls_are_slow: !peer.policy.observed.is_fixed()
            && into.is_slow_for_strings(&transfer.announcement.remote),
    };
    decide(
        range.len,
        &facts,
        &peer.policy.thresholds,
        &mut peer.policy.observed,
    )
}

/// What a receiver asks a sender, for a transfer that has begun.
struct CtsRoute {
    /// The sender's request.
    request: u64,
    /// The receiver's number of the transfer.
    transfer: u64,
}

impl CtsRoute {
    fn send(self, core: &mut Core, peer: &mut Peer, wanted: CtsAction) {
        let cts = Cts {
            request: self.request,
            transfer: self.transfer,
            wanted,
        };
        reply(core, peer, Kind::Cts, cts.encode());
    }
}

/// The buffer of a receive.
struct ReceiveBuffer {
    /// Where it is, if it is in one piece.
    place: Option<OnePiece>,
    /// Whether its bytes are staged.
    is_staged: bool,
}

impl ReceiveBuffer {
    fn of(core: &Core, request: RequestId) -> Self {
        let request = core.requests.get(request);
        let loan = match request.map(|request| &request.buf) {
            Some(UserBuf::One(loan)) => Some(*loan),
            _ => None,
        };
        let place = |loan: Loan| OnePiece {
            loan,
            heap: core.home.heap_offset_of(loan.address(), loan.len()),
        };
        Self {
            place: loan.map(place),
            is_staged: request.is_some_and(|request| request.buf.staged().is_some()),
        }
    }

    /// Whether the string instruction, by which the kernel copies, is slow between the message and this buffer.
    fn is_slow_for_strings(&self, remote: &Remote) -> bool {
        match (self.place, remote) {
            (Some(to), Remote::One(from)) => {
                is_slow_for_strings(to.loan.address(), from.address as usize)
            }
            _ => false,
        }
    }
}

/// The layer by which a sender that copies writes here: the same by which this rank would write there.
fn writer(link: &Link, into: &ReceiveBuffer) -> LayerId {
    let range = into.place.map(|place| RemoteRange {
        address: place.loan.address() as u64,
        heap: place.heap,
        region: None,
        len: place.loan.len() as u64,
    });
    let by = range.and_then(|range| link.putter(&range));
    by.unwrap_or(LayerId::CALL)
}

/// The layer by which bytes come; none: what carries records.
fn layer_of(protocol: ReceiveProtocol, link: &Link, into: &ReceiveBuffer) -> Option<LayerId> {
    match protocol {
        ReceiveProtocol::Get(layer) => Some(layer),
        ReceiveProtocol::Cooperative { reader, .. } => into
            .place
            .map(|_| reader.unwrap_or_else(|| writer(link, into))),
        ReceiveProtocol::Pipeline | ReceiveProtocol::Read => None,
    }
}

/// Which of the two that a pair compares a transfer is, if it is one.
fn rival(protocol: ReceiveProtocol) -> Option<Rival> {
    match protocol {
        ReceiveProtocol::Get(by)
        | ReceiveProtocol::Cooperative {
            reader: Some(by),
            ask: false,
        } if by.power() == Power::Copy => Some(Rival::Kernel),
        ReceiveProtocol::Pipeline => Some(Rival::Pipeline),
        _ => None,
    }
}

/// Whether what is left of a transfer has earned to be attached. If so, it is attached now, in as few windows as
/// possible.
fn has_earned(link: &Link, layer: LayerId, transfer: &Transfer, range: MessageRange) -> bool {
    let Some(attaching) = link.attaching(layer) else {
        return false;
    };
    let ranges = transfer.announcement.remote.ranges(range);
    let mut all = ranges.iter();
    let earned = all.all(|range| attaching.earned(range, transfer.len));
    if earned {
        ranges.iter().for_each(|range| attaching.reserve(range));
    }
    earned
}

fn finish(core: &mut Core, peer: &mut Peer, transfer: &Transfer) {
    // How much this rank took itself.
    let written = transfer.written;
    let taken = transfer
        .len
        .saturating_sub(written.map_or(0, |by_peer| by_peer.bytes));
    let ended = Ended {
        bytes: taken,
        credit: 0,
        fin: Some(transfer.announcement.request),
        by: match written {
            Some(by_peer) if taken == 0 => CameBy::Layer(by_peer.layer),
            _ => transfer.by,
        },
    };
    if let Some(Written { layer, bytes }) = written {
        core.counters.count_part(peer.rank, layer, bytes);
    }
    let from = peer.rank as usize;
    let number = transfer.announcement.request;
    tracepoints::rendezvous_done(from, from, number, transfer.len);
    let receiver = Receiver::Request(transfer.request);
    let message = Message::of_transfer(transfer);
    deliver(core, peer, receiver, message, Ok(()), ended);
}
