// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shortest ways: a blocking call that finds everything ready moves its bytes at once, without a request.
//!
//! They apply only while nothing else could have a claim on what they touch: nothing is queued for the peer (send), no posted receive accepts the
//! message and none is unexpected (receive). A message in several chunks that begins this way and has to wait goes on as a
//! request; that is possible only when no other thread can come in between.

use super::eager::{count_sent, has_credit, take_chunk, warm_chunks};
use super::{charge, give_credit, put_body, send_fin};
use crate::matching::Envelope;
use crate::peer::Peer;
use crate::request::Status;
use crate::select::Path;
use crate::state::Core;
use crate::wire::{self, BODY, ChunkBody, Kind, NONE, Place, Rts};
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::HeapOffset;
use onecopy_shm::ring::{Record, slots_for};
use std::io::IoSliceMut;

/// How far a send came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All of it is sent.
    All,
    /// So many bytes are sent; the rest must follow before anything else goes to this peer.
    Part(u64),
    /// Nothing.
    Nothing,
}

/// A message of which some chunks are received.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) total: u64,
    pub(crate) received: u64,
    pub(crate) envelope: Envelope,
}

/// How far a receive came.
#[derive(Debug)]
pub(crate) enum Received {
    /// It is complete.
    All(Status),
    /// A message has begun to arrive; the rest must be received before anything else from this peer.
    Part(Begun),
    /// Nothing.
    Nothing,
}

/// Sends at once what can be sent.
#[inline(always)]
pub(crate) fn send(core: &mut Core, peer: &mut Peer, context: u32, tag: i32, bytes: &[u8]) -> Sent {
    let len = bytes.len();
    if len > peer.thresholds.fast_max {
        return send_longer(core, peer, context, tag, bytes);
    }
    send_slots(core, peer, context, tag, bytes)
}

#[inline(always)]
fn send_slots(core: &mut Core, peer: &mut Peer, context: u32, tag: i32, bytes: &[u8]) -> Sent {
    let len = bytes.len();
    if peer.has_output() || peer.gone.is_some() || !has_credit(core, peer, charge(len as u64)) {
        return Sent::Nothing;
    }
    let slots = slots_for(len);
    let Some(mut claim) = peer.tx.as_mut().and_then(|tx| tx.claim(slots)) else {
        return Sent::Nothing;
    };
    claim.write(0, bytes);
    claim.publish(Kind::Eager as u8, len, wire::meta(context, tag));
    if peer.notify() {
        core.counters.doorbells_rung += 1;
    }
    peer.credit_used += charge(len as u64);
    count_sent(core, slots, len);
    Sent::All
}

fn send_longer(core: &mut Core, peer: &mut Peer, context: u32, tag: i32, bytes: &[u8]) -> Sent {
    let len = bytes.len();
    let in_heap = core
        .segment
        .heap_offset_of(bytes.as_ptr().addr(), len)
        .is_some();
    match peer.thresholds.send_path(len as u64, 0, in_heap, true) {
        Path::Slots => send_slots(core, peer, context, tag, bytes),
        Path::Chunks => send_chunks(core, peer, context, tag, bytes),
        Path::Announced => {
            // What cannot be sent at once is asked about when it is planned.
            let at_once = core.alone && !peer.has_output() && peer.gone.is_none();
            let minds = peer.thresholds.minds_rewriting(len as u64, in_heap);
            let can = at_once && minds && has_credit(core, peer, charge(len as u64));
            if can && core.rewritten.changed(bytes) {
                send_chunks(core, peer, context, tag, bytes)
            } else {
                Sent::Nothing
            }
        }
    }
}

fn send_chunks(core: &mut Core, peer: &mut Peer, context: u32, tag: i32, bytes: &[u8]) -> Sent {
    let total = bytes.len() as u64;
    let step = core.chunks.step_of(total);
    if peer.has_output()
        || peer.gone.is_some()
        || (total > step && !core.alone)
        || !has_credit(core, peer, charge(total))
    {
        return Sent::Nothing;
    }
    let share = core.chunks.share;
    let meta = wire::meta(context, tag);
    let mut sent = 0;
    while sent < total {
        let piece = step.min(total - sent);
        if !send_piece(core, peer, meta, bytes, sent, piece as usize, share) {
            break;
        }
        sent += piece;
    }
    if sent == 0 {
        return Sent::Nothing;
    }
    peer.credit_used += charge(total);
    if sent < total {
        return Sent::Part(sent);
    }
    warm_chunks(core, peer, total, step);
    core.counters.sends_chunk += 1;
    core.counters.bytes_sent += total;
    Sent::All
}

fn send_piece(
    core: &mut Core,
    peer: &mut Peer,
    meta: u64,
    bytes: &[u8],
    sent: u64,
    piece: usize,
    share: usize,
) -> bool {
    if !peer.tx.as_mut().is_some_and(|tx| tx.claim_would_fit(1)) {
        return false;
    }
    let Some(chunk) = take_chunk(core, peer, share) else {
        return false;
    };
    let part = &bytes[sent as usize..sent as usize + piece];
    let kind = if sent == 0 {
        Kind::ChunkFirst
    } else {
        Kind::ChunkNext
    };
    let body = ChunkBody {
        total: bytes.len() as u64,
        offset: sent,
        chunk,
        piece: piece as u32,
        number: NONE,
    };
    let written = core
        .segment
        .write_chunk(chunk, 0, part, core.chunks.kernel(piece))
        .is_ok();
    if !written || !put_body(core, peer, kind, meta, &body.encode(kind)) {
        core.pool.give(chunk);
        return false;
    }
    let position = peer
        .tx
        .as_ref()
        .map_or(0, onecopy_shm::ring::Producer::position);
    peer.outstanding.push(position, chunk);
    true
}

/// Which messages a receive may take at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// Any, also in parts: the caller goes on with it.
    Parts,
    /// What is there as a whole.
    Whole,
}

/// Receives at once what is there.
#[inline(always)]
pub(crate) fn receive(
    core: &mut Core,
    peer: &mut Peer,
    context: u32,
    tag: Option<i32>,
    out: &mut [u8],
    take: Take,
) -> Received {
    if peer.rx.is_empty() || !core.unexpected.is_empty() || peer.gone.is_some() {
        return Received::Nothing;
    }
    let Ok(Some(record)) = peer.rx.peek() else {
        return Received::Nothing;
    };
    let (of_context, of_tag) = wire::from_meta(record.meta);
    if of_context != context || tag.is_some_and(|t| t != of_tag) {
        return Received::Nothing;
    }
    if !core.posted.is_empty() {
        let envelope = Envelope {
            context,
            source: peer.rank,
            tag: of_tag,
        };
        if core.posted.accepts(&envelope) {
            return Received::Nothing;
        }
    }
    if record.kind != Kind::Eager as u8 {
        return receive_longer(
            core,
            peer,
            record,
            Envelope {
                context,
                source: peer.rank,
                tag: of_tag,
            },
            out,
            take,
        );
    }
    if record.len > out.len() {
        return Received::Nothing;
    }
    peer.rx.read(&record, 0, &mut out[..record.len]);
    if peer.rx.advance(record) && peer.notify_room() {
        core.counters.doorbells_rung += 1;
    }
    received(core, peer, of_tag, record.len, true)
}

#[inline(always)]
fn received(core: &mut Core, peer: &mut Peer, tag: i32, bytes: usize, charged: bool) -> Received {
    peer.idle_polls = 0;
    if charged {
        give_credit(core, peer, charge(bytes as u64));
    }
    core.counters.recv_expected += 1;
    core.counters.bytes_received += bytes as u64;
    Received::All(Status {
        source: peer.rank as usize,
        tag,
        bytes,
    })
}

fn receive_longer(
    core: &mut Core,
    peer: &mut Peer,
    record: Record,
    envelope: Envelope,
    out: &mut [u8],
    take: Take,
) -> Received {
    let mut raw = [0; BODY];
    if record.len != BODY || peer.incoming.is_some() {
        return Received::Nothing;
    }
    peer.rx.read(&record, 0, &mut raw);
    match Kind::try_from(record.kind) {
        Ok(Kind::ChunkFirst) => receive_chunks(core, peer, record, envelope, &raw, out, take),
        Ok(Kind::Rts) => receive_mapped(core, peer, record, envelope, &raw, out),
        _ => Received::Nothing,
    }
}

fn receive_chunks(
    core: &mut Core,
    peer: &mut Peer,
    record: Record,
    envelope: Envelope,
    raw: &[u8; BODY],
    out: &mut [u8],
    take: Take,
) -> Received {
    let Ok(first) = ChunkBody::decode(Kind::ChunkFirst, raw) else {
        return Received::Nothing;
    };
    let total = first.total;
    if total > out.len() as u64 || first.number != NONE || first.offset != 0 || first.piece == 0 {
        return Received::Nothing;
    }
    if u64::from(first.piece) < total && (take == Take::Whole || !core.alone) {
        return Received::Nothing;
    }
    let Ok(()) = peer.segment.read_chunk(
        first.chunk,
        0,
        &mut out[..first.piece as usize],
        Kernel::Memcpy,
    ) else {
        return Received::Nothing;
    };
    pass(core, peer, record);
    let mut at = u64::from(first.piece);
    let mut idle = 0;
    while at < total {
        // Anything odd is left to the long way, which reports it.
        let next = match peer.rx.peek() {
            Ok(Some(record)) if record.kind == Kind::ChunkNext as u8 && record.len == BODY => {
                record
            }
            Ok(None) if idle < 2000 => {
                idle += 1;
                std::hint::spin_loop();
                continue;
            }
            _ => break,
        };
        let mut raw = [0; BODY];
        peer.rx.read(&next, 0, &mut raw);
        let Ok(body) = ChunkBody::decode(Kind::ChunkNext, &raw) else {
            break;
        };
        if body.total != total || body.offset != at || body.piece == 0 {
            break;
        }
        let part = &mut out[at as usize..(at + u64::from(body.piece)) as usize];
        if peer
            .segment
            .read_chunk(body.chunk, 0, part, Kernel::Memcpy)
            .is_err()
        {
            break;
        }
        pass(core, peer, next);
        at += u64::from(body.piece);
        idle = 0;
    }
    if at < total {
        return Received::Part(Begun {
            total,
            received: at,
            envelope,
        });
    }
    received(core, peer, envelope.tag, total as usize, true)
}

#[inline]
fn pass(core: &mut Core, peer: &mut Peer, record: Record) {
    if (peer.rx.advance(record) | peer.passed_chunk()) && peer.notify_room() {
        core.counters.doorbells_rung += 1;
    }
}

/// A message that lies in the peer's heap, short enough that the receiver alone copies it.
fn receive_mapped(
    core: &mut Core,
    peer: &mut Peer,
    record: Record,
    envelope: Envelope,
    raw: &[u8; BODY],
    out: &mut [u8],
) -> Received {
    let Ok(Rts {
        len,
        request,
        place: Place::One {
            address,
            heap: Some(heap),
        },
        ..
    }) = Rts::decode(raw)
    else {
        return Received::Nothing;
    };
    if len > out.len() as u64
        || len >= peer.thresholds.coop_heap_min
        || peer.link.heap.layer().is_none()
    {
        return Received::Nothing;
    }
    let range = [RemoteRange {
        address,
        heap: Some(HeapOffset(heap)),
        region: None,
        len,
    }];
    let out = &mut out[..len as usize];
    if peer
        .link
        .get(
            LayerId::Heap,
            &peer.segment,
            &range,
            &mut [IoSliceMut::new(out)],
        )
        .is_err()
    {
        return Received::Nothing;
    }
    core.counters.map_bytes += len;
    if peer.rx.advance(record) && peer.notify_room() {
        core.counters.doorbells_rung += 1;
    }
    send_fin(core, peer, request);
    received(core, peer, envelope.tag, len as usize, false)
}
