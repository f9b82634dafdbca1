// SPDX-License-Identifier: MIT OR Apache-2.0
//! Announced messages: the sender says where the bytes are, the receiver, which knows both sides, decides how they
//! come.
//!
//! A [`Transfer`] keeps the ranges that are still to do and what is being done about the first of them. A layer that
//! fails is given up for the pair, the range goes back on the list, and the next layer takes it: the message is never
//! failed by a layer.

mod announce;

pub(crate) use announce::{announce, announced};

use super::deliver::{Ended, deliver};
use super::layers::{demote, get_range};
use super::{coop, reply, send_fin};
use crate::matching::Envelope;
use crate::peer::{Gone, Peer};
use crate::request::{RequestId, RequestState, UserBuf};
use crate::select::ReceiveProtocol;
use crate::select::decide::{Facts, decide};
use crate::select::observed::{self, Rival};
use crate::state::Core;
use crate::state::message::{Announcement, Remote};
use crate::state::numbered::Waiting;
use crate::state::transfer::{Mode, Piped, Receiving, Transfer, Transfers};
use crate::wire::{Cts, Kind, Wanted};
use onecopy_btl::link::Link;
use onecopy_btl::registry::Power;
use onecopy_btl::{CopyError, LayerId};
use std::time::Instant;

/// Bytes that one step of one transfer copies at most, so that a large message does not keep out the others.
const STEP: u64 = 1 << 20;

/// Starts to receive an announced message into the request `id`.
pub(crate) fn start(
    core: &mut Core,
    peer: &mut Peer,
    envelope: Envelope,
    announcement: Announcement,
    id: RequestId,
) {
    let Some(request) = core.requests.get_mut(id) else {
        send_fin(core, peer, announcement.request);
        return;
    };
    request.state = RequestState::Receiving;
    request.peer = peer.rank;
    request.tag = envelope.tag;
    let len = announcement.len.min(request.len);
    let remaining = if len == 0 { Vec::new() } else { vec![(0, len)] };
    let transfer = Transfer {
        request: id,
        peer: peer.rank,
        envelope,
        announcement,
        len,
        remaining,
        mode: Mode::Choose,
        timed: None,
        asked: false,
        generation: 0,
    };
    let index = core.transfers.insert(transfer);
    step(core, peer, index);
}

/// Moves all transfers on.
pub(crate) fn step_all(core: &mut Core, peers: &mut [Option<Box<Peer>>]) -> bool {
    let mut moved = false;
    for index in 0..core.transfers.slots.len() {
        let rank = match &core.transfers.slots[index] {
            // Its chunks move it on when they arrive.
            None
            | Some(Transfer {
                mode: Mode::Pipe(_),
                ..
            }) => continue,
            Some(transfer) => transfer.peer,
        };
        if let Some(peer) = &mut peers[rank as usize] {
            moved |= step(core, peer, index);
            if peer.has_output() {
                core.make_busy(rank);
            }
        }
    }
    moved
}

/// All chunks that transfer `number` asked for are received.
pub(crate) fn piped_all(core: &mut Core, peer: &mut Peer, number: u64) {
    if let Some(index) = core.transfers.index_of(number, peer.rank) {
        step(core, peer, index);
    }
}

/// Moves one transfer on by a bounded amount. Says whether anything moved.
fn step(core: &mut Core, peer: &mut Peer, index: usize) -> bool {
    let Some(mut transfer) = core.transfers.take(index) else {
        return false;
    };
    let mut moved = false;
    loop {
        match &mut transfer.mode {
            Mode::Choose => {
                if let Some((rival, bytes, begun)) = transfer.timed.take() {
                    let now = Instant::now();
                    peer.observed.transferred(rival, bytes, begun, now);
                }
                match transfer.remaining.last().copied() {
                    None => {
                        finish(core, peer, &transfer);
                        return true;
                    }
                    Some((offset, len)) => {
                        moved = true;
                        choose(core, peer, index, &mut transfer, offset, len);
                    }
                }
            }
            Mode::Get(layer) => {
                let layer = *layer;
                let Some((offset, len)) = transfer.remaining.pop() else {
                    transfer.mode = Mode::Choose;
                    continue;
                };
                let n = len.min(STEP);
                match get(core, peer, &transfer, layer, offset, n) {
                    Ok(()) => {
                        if n < len {
                            transfer.remaining.push((offset + n, len - n));
                            core.transfers.put_back(index, transfer);
                            return true;
                        }
                        transfer.mode = Mode::Choose;
                    }
                    Err(error) => {
                        transfer.remaining.push((offset, len));
                        transfer.mode = Mode::Choose;
                        transfer.timed = None;
                        demote(core, peer, &error);
                    }
                }
                moved = true;
            }
            Mode::Coop(receiving) => {
                let request = transfer.request;
                match receiving.step(core, peer, request, &transfer.announcement) {
                    coop::Step::Moved => {
                        core.transfers.put_back(index, transfer);
                        return true;
                    }
                    coop::Step::Waits => {
                        core.transfers.put_back(index, transfer);
                        return moved;
                    }
                    coop::Step::Broken(detail) => {
                        // The request ends with the peer.
                        core.broken.push((peer.rank, Gone::Protocol(detail)));
                        core.transfers.put_back(index, transfer);
                        return true;
                    }
                    coop::Step::Over { left } => {
                        transfer.remaining.pop();
                        if !left.is_empty() {
                            transfer.timed = None;
                        }
                        transfer.remaining.extend(left);
                        transfer.mode = Mode::Choose;
                        moved = true;
                    }
                }
            }
            Mode::Pipe(piped) => {
                if piped.at < piped.end {
                    core.transfers.put_back(index, transfer);
                    return moved;
                }
                transfer.remaining.pop();
                transfer.mode = Mode::Choose;
                moved = true;
            }
        }
    }
}

/// Copies `len` bytes from `offset` on into the request's buffer.
pub(crate) fn get(
    core: &mut Core,
    peer: &Peer,
    transfer: &Transfer,
    layer: LayerId,
    offset: u64,
    len: u64,
) -> Result<(), CopyError> {
    get_range(
        core,
        peer,
        transfer.request,
        &transfer.announcement.remote,
        layer,
        offset,
        len,
    )
}

/// What is known of a range of a transfer.
struct Known<'t> {
    link: &'t Link,
    /// No other message of the pair uses the block.
    block_free: bool,
    transfer: &'t Transfer,
    offset: u64,
    len: u64,
    /// The buffer of the receive is in one piece, and lies in this rank's heap.
    in_one_piece: bool,
    in_heap: bool,
}

impl Known<'_> {
    fn reaches(&self, layer: LayerId) -> bool {
        let can_get = |range| self.link.can_get(layer, range);
        match &self.transfer.announcement.remote {
            Remote::One(range) => can_get(range),
            Remote::Many(_) => {
                let remote = &self.transfer.announcement.remote;
                remote.ranges(self.offset, self.len).iter().all(can_get)
            }
            Remote::Unknown => false,
        }
    }
}

impl Facts for Known<'_> {
    fn is_read_by(&self, layer: LayerId) -> bool {
        self.reaches(layer)
            && (layer.power() != Power::Attach
                || has_earned(self.link, layer, self.transfer, self.offset, self.len))
    }

    fn sender_maps(&self) -> bool {
        self.in_heap && !self.transfer.asked && self.link.has(LayerId::MAP)
    }

    fn block_free(&self) -> bool {
        self.in_one_piece
            && self.block_free
            && self.transfer.announcement.coop_id != 0
            && self.offset == 0
            && self.len == self.transfer.len
    }
}

/// Chooses what to do about the range `offset..offset + len`.
fn choose(
    core: &mut Core,
    peer: &mut Peer,
    index: usize,
    transfer: &mut Transfer,
    offset: u64,
    len: u64,
) {
    let request = core.requests.get(transfer.request);
    let loan = match request.map(|request| &request.buf) {
        Some(UserBuf::One(loan)) => Some(*loan),
        _ => None,
    };
    let in_heap = loan.and_then(|loan| core.home.heap_offset_of(loan.address(), loan.len()));
    let facts = Known {
        link: &peer.link,
        block_free: peer.coop_in_use.is_none() && peer.endpoint.shares_memory(),
        transfer,
        offset,
        len,
        in_one_piece: loan.is_some(),
        in_heap: in_heap.is_some(),
    };
    let receive_protocol = decide(len, &facts, &peer.thresholds, &mut peer.observed);
    let rival = match receive_protocol {
        ReceiveProtocol::Get(by)
        | ReceiveProtocol::Together {
            reader: Some(by),
            ask: false,
        } if by.power() == Power::Copy => Some(Rival::Kernel),
        ReceiveProtocol::Pipeline => Some(Rival::Pipeline),
        _ => None,
    };
    transfer.timed = rival
        .filter(|_| len >= observed::MIN)
        .map(|rival| (rival, len, Instant::now()));
    match (receive_protocol, loan) {
        (ReceiveProtocol::Get(layer), _) => {
            transfer.mode = Mode::Get(layer);
            return;
        }
        (ReceiveProtocol::Together { reader, ask }, Some(loan)) => {
            transfer.asked = true;
            let number = Transfers::number(index, transfer);
            transfer.mode = Mode::Coop(Receiving::open(
                core,
                peer,
                &transfer.announcement,
                loan,
                in_heap,
                len,
                reader,
            ));
            if ask {
                let cts = Cts {
                    request: transfer.announcement.request,
                    transfer: number,
                    wanted: Wanted::Join,
                };
                reply(core, peer, Kind::Cts, cts.encode());
            }
            return;
        }
        (ReceiveProtocol::Together { .. } | ReceiveProtocol::Pipeline, _) => {}
    }
    let number = Transfers::number(index, transfer);
    transfer.mode = Mode::Pipe(Piped {
        at: offset,
        end: offset + len,
    });
    let cts = Cts {
        request: transfer.announcement.request,
        transfer: number,
        wanted: Wanted::Chunks { offset, len },
    };
    reply(core, peer, Kind::Cts, cts.encode());
}

/// Whether what is left of a transfer has earned to be attached. If so, it is attached now, in as few windows as
/// possible.
fn has_earned(link: &Link, layer: LayerId, transfer: &Transfer, offset: u64, len: u64) -> bool {
    let Some(attaching) = link.attaching(layer) else {
        return false;
    };
    let ranges = transfer.announcement.remote.ranges(offset, len);
    let mut all = ranges.iter();
    let earned = all.all(|range| attaching.earned(range, transfer.len));
    if earned {
        ranges.iter().for_each(|range| attaching.reserve(range));
    }
    earned
}

fn finish(core: &mut Core, peer: &mut Peer, transfer: &Transfer) {
    let ended = Ended {
        bytes: transfer.len,
        credit: 0,
        fin: Some(transfer.announcement.request),
    };
    let message = (transfer.envelope, transfer.announcement.len);
    let receive = Waiting::Request(transfer.request);
    deliver(core, peer, receive, message, Ok(()), ended);
}
