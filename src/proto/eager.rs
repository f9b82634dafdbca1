// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that are sent before anyone asks for them: in one slot, in several, or in chunks that the ring names.

use super::{Message, charge, claim, complete_send, give_credit, put_body, receipt, send_fin};
use crate::error::{Error, Result};
use crate::matching::Envelope;
use crate::peer::{Incoming, Peer, Target};
use crate::request::{RequestId, SendPlan, State, UserBuf};
use crate::select::Path;
use crate::state::Core;
use crate::state::held::Held;
use crate::state::light::Waiting;
use crate::wire::{self, ChunkBody, Kind, NONE};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::ChunkIndex;
use onecopy_shm::ring::{Record, slots_for};
use onecopy_shm::sync::Ordering;

/// Whether credit for `bytes` more is there. The sender looks at the receiver's line only when what it knows does not suffice.
#[inline(always)]
pub(crate) fn has_credit(core: &Core, peer: &mut Peer, bytes: u64) -> bool {
    peer.credit_used + bytes <= peer.credit_limit || refresh_credit(core, peer, bytes)
}

#[cold]
fn refresh_credit(core: &Core, peer: &mut Peer, bytes: u64) -> bool {
    let back = peer
        .tx_control
        .credit
        .load(Ordering::Relaxed)
        .min(peer.credit_used);
    peer.credit_limit = back + core.knobs.eager_credit as u64;
    peer.credit_used + bytes <= peer.credit_limit
}

#[inline(always)]
pub(crate) fn count_sent(core: &mut Core, slots: usize, len: usize) {
    if slots == 1 {
        core.counters.sends_inline += 1;
    } else {
        core.counters.sends_eager += 1;
    }
    core.counters.bytes_sent += len as u64;
}

/// Decides how the send `id` goes. Called again each time it is tried, as credit may have changed.
pub(crate) fn plan(core: &mut Core, peer: &mut Peer, id: RequestId) -> SendPlan {
    let Some(request) = core.requests.get(id) else {
        return SendPlan::Slots;
    };
    let (len, sync) = (request.len, request.sync);
    let in_heap = matches!(&request.buf, UserBuf::One(loan) if core.segment.heap_offset_of(loan.address(), loan.len()).is_some());
    let extra = if sync { 8 } else { 0 };
    let credit = has_credit(core, peer, charge(len));
    if !credit {
        core.counters.credit_stalls += 1;
    }
    let plan = match peer.thresholds.send_path(len, extra, in_heap, credit) {
        Path::Slots => return SendPlan::Slots,
        Path::Chunks => SendPlan::Chunks { sent: 0 },
        // One that is announced for want of credit only is too short to be shared.
        Path::Announced if len < peer.thresholds.announce_from(in_heap) => {
            SendPlan::Announced { join: 0 }
        }
        Path::Announced if credit && is_rewritten(core, peer, id, in_heap) => {
            SendPlan::Chunks { sent: 0 }
        }
        Path::Announced => {
            let join = peer.next_join;
            peer.next_join = peer.next_join.checked_add(1).unwrap_or(1);
            SendPlan::Announced { join }
        }
    };
    if let Some(request) = core.requests.get_mut(id) {
        request.state = State::Queued(plan);
    }
    plan
}

/// Whether the buffer of a message that would be announced has changed since it was last sent, so that it goes in chunks.
fn is_rewritten(core: &mut Core, peer: &Peer, id: RequestId, in_heap: bool) -> bool {
    let Some(request) = core.requests.get(id) else {
        return false;
    };
    match &request.buf {
        UserBuf::One(loan) if peer.thresholds.minds_rewriting(request.len, in_heap) => {
            let rewritten = &mut core.rewritten;
            let look = |bytes: &[u8]| rewritten.changed(bytes);
            core.loans.read(*loan, 0, loan.len(), look).unwrap_or(false)
        }
        _ => false,
    }
}

/// Sends `id` in slots. `false`: no room yet.
pub(crate) fn send_slots(core: &mut Core, peer: &mut Peer, id: RequestId) -> bool {
    let Some(request) = core.requests.get(id) else {
        return true;
    };
    let (len, sync, meta) = (
        request.len as usize,
        request.sync,
        wire::meta(request.context, request.tag),
    );
    let buf = request.buf.clone();
    let extra = if sync { 8 } else { 0 };
    let slots = slots_for(len + extra);
    let Some(mut slot) = claim(core, peer, slots) else {
        return false;
    };
    if sync {
        slot.write(0, &id.0.to_le_bytes());
    }
    if let Err(error) = buf.read(&core.loans, 0, len, |at, bytes| {
        slot.write(extra + at, bytes)
    }) {
        // The claim publishes a no-op when it is dropped.
        drop(slot);
        let _ = error;
        core.requests.complete(
            id,
            Err(Error::Withdrawn {
                rank: peer.rank as usize,
            }),
        );
        return true;
    }
    slot.publish(
        if sync { Kind::EagerSync } else { Kind::Eager } as u8,
        len + extra,
        meta,
    );
    if peer.notify() {
        core.counters.doorbells_rung += 1;
    }
    peer.credit_used += charge(len as u64);
    count_sent(core, slots, len);
    if sync {
        peer.unanswered += 1;
        if let Some(request) = core.requests.get_mut(id) {
            request.state = State::Awaiting(SendPlan::Slots);
        }
    } else {
        complete_send(core, id);
    }
    true
}

/// Chunks whose lines are asked for ahead, at most.
const WARM_MAX: usize = 32;

/// Asks for the lines of the chunks that a message like the one just sent, of `total` bytes in steps, would be written to. Whoever read them last has
/// copies of them, and to own them takes as long as to read them: while the receiver copies out and answers, that costs nobody anything.
#[inline]
pub(crate) fn warm_chunks(core: &mut Core, peer: &mut Peer, total: u64, step: u64) {
    let pieces = (total.div_ceil(step.max(1)) as usize).min(WARM_MAX);
    if core.pool.free() < pieces {
        peer.collect_chunks(&mut core.pool);
    }
    let piece = step.min(total) as usize;
    if !core.chunks.owned_ahead(piece) {
        return;
    }
    for chunk in core.pool.coming().take(pieces) {
        core.segment.will_write_chunk(chunk, piece);
    }
}

/// Takes a chunk for the peer, within its share. `None`: it must give one back first, or memory is short for the moment.
pub(crate) fn take_chunk(core: &mut Core, peer: &mut Peer, share: usize) -> Option<ChunkIndex> {
    // The receiver's tail is looked at only when chunks are short: its line travels for that.
    if peer.outstanding.len() >= share.max(1)
        || (core.pool.next().is_none() && !peer.outstanding.is_empty())
    {
        peer.collect_chunks(&mut core.pool);
    }
    if peer.outstanding.len() >= share.max(1) {
        return None;
    }
    let segment = &core.segment;
    let taken = core
        .pool
        .take(|first, count| segment.reserve_chunks(first, count));
    core.counters.pool_chunks = u64::from(core.pool.reserved());
    // When no more memory can be had, the chunks that are there are waited for.
    let chunk = taken.unwrap_or(None);
    core.starved |= chunk.is_none();
    chunk
}

/// Copies bytes of a request into a chunk and publishes it under `kind`. `false`: no room yet; the chunk is back in the pool.
pub(crate) fn send_chunk(
    core: &mut Core,
    peer: &mut Peer,
    buf: &UserBuf,
    chunk: ChunkIndex,
    kind: Kind,
    meta: u64,
    body: &ChunkBody,
) -> Result<bool> {
    let room = match &mut peer.tx {
        Some(tx) => tx.claim_would_fit(1),
        None => true,
    };
    if !room {
        core.pool.give(chunk);
        return Ok(false);
    }
    let segment = &core.segment;
    let kernel = core.chunks.kernel(body.piece as usize);
    let mut bad = false;
    let read = buf.read(
        &core.loans,
        body.offset,
        body.piece as usize,
        |at, bytes| {
            bad |= segment.write_chunk(chunk, at, bytes, kernel).is_err();
        },
    );
    if read.is_err() || bad {
        core.pool.give(chunk);
        return Err(Error::Withdrawn {
            rank: peer.rank as usize,
        });
    }
    if !put_body(core, peer, kind, meta, &body.encode(kind)) {
        core.pool.give(chunk);
        return Ok(false);
    }
    let position = peer
        .tx
        .as_ref()
        .map_or(0, onecopy_shm::ring::Producer::position);
    peer.outstanding.push(position, chunk);
    Ok(true)
}

/// Sends what can be sent of `id` in chunks. `true`: all of it is sent.
pub(crate) fn send_chunks(
    core: &mut Core,
    peer: &mut Peer,
    id: RequestId,
    mut sent: u64,
    moved: &mut bool,
) -> bool {
    let Some(request) = core.requests.get(id) else {
        return true;
    };
    let (len, sync, meta, buf) = (
        request.len,
        request.sync,
        wire::meta(request.context, request.tag),
        request.buf.clone(),
    );
    let step = core.chunks.step_of(len);
    let share = core.chunks.share;
    while sent < len {
        let Some(chunk) = take_chunk(core, peer, share) else {
            break;
        };
        let piece = step.min(len - sent) as u32;
        let (kind, number) = if sent == 0 {
            (Kind::ChunkFirst, if sync { id.0 } else { NONE })
        } else {
            (Kind::ChunkNext, NONE)
        };
        let body = ChunkBody {
            total: len,
            offset: sent,
            chunk,
            piece,
            number,
        };
        match send_chunk(core, peer, &buf, chunk, kind, meta, &body) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                core.requests.complete(id, Err(error));
                if sent > 0 {
                    super::broken::break_off(core, peer);
                }
                return true;
            }
        }
        *moved = true;
        if sent == 0 {
            peer.credit_used += charge(len);
        }
        sent += u64::from(piece);
    }
    if sent < len {
        if let Some(request) = core.requests.get_mut(id) {
            request.state = State::Queued(SendPlan::Chunks { sent });
        }
        return false;
    }
    warm_chunks(core, peer, len, step);
    core.counters.sends_chunk += 1;
    core.counters.bytes_sent += len;
    if sync {
        peer.unanswered += 1;
        if let Some(request) = core.requests.get_mut(id) {
            request.state = State::Awaiting(SendPlan::Chunks { sent });
        }
    } else {
        complete_send(core, id);
    }
    true
}

/// A message in slots has arrived.
#[inline]
pub(crate) fn arrive(
    core: &mut Core,
    peer: &mut Peer,
    record: &Record,
    envelope: Envelope,
    kind: Kind,
) -> Result<(), String> {
    if peer.incoming.is_some() {
        return Err("a message begins within another".into());
    }
    let mut sync = None;
    let mut skip = 0;
    if kind == Kind::EagerSync {
        if record.len < 8 {
            return Err("a synchronous message without a request".into());
        }
        let mut raw = [0; 8];
        peer.rx.read(record, 0, &mut raw);
        sync = Some(u64::from_le_bytes(raw));
        skip = 8;
    }
    let len = record.len - skip;
    if let Some(receive) = core.posted.take(&envelope) {
        core.land(receive, envelope, len, &peer.rx, record, skip);
        give_credit(core, peer, charge(len as u64));
        if let Some(request) = sync {
            send_fin(core, peer, request);
        }
        return Ok(());
    }
    hold(core, peer, len as u64)?;
    core.counters.recv_unexpected += 1;
    core.counters.hold_unexpected(len as u64);
    let mut bytes = core.place_to_hold(len);
    if let Some(room) = bytes.extend(len) {
        peer.rx.read(record, skip, room);
    }
    core.unexpected
        .keep(envelope, Message::Whole { bytes, sync });
    Ok(())
}

/// Charges the peer for `len` bytes that are kept until a receive takes them.
pub(crate) fn hold(core: &Core, peer: &mut Peer, len: u64) -> Result<(), String> {
    let unmatched = peer.unexpected_bytes.saturating_add(len).saturating_add(64);
    if unmatched > 2 * core.knobs.eager_credit as u64 {
        return Err(format!(
            "it has {unmatched} bytes of eager messages and lists unmatched, more than its credit"
        ));
    }
    peer.unexpected_bytes += charge(len);
    Ok(())
}

/// Copies a whole unexpected message to its receive.
pub(crate) fn accept_whole(core: &mut Core, envelope: Envelope, bytes: &[u8], id: RequestId) {
    let result =
        copy_to(core, id, 0, bytes).and_then(|()| receipt(core, id, envelope, bytes.len() as u64));
    core.counters.bytes_received += bytes.len() as u64;
    if matches!(result, Err(Error::Truncated { .. })) {
        core.counters.truncations += 1;
    }
    core.requests.complete(id, result);
}

/// Copies as many of `bytes` as fit to a receive, from `offset` on.
fn copy_to(core: &mut Core, id: RequestId, offset: u64, bytes: &[u8]) -> Result<()> {
    let Some(request) = core.requests.get(id) else {
        return Ok(());
    };
    let n = bytes.len().min(request.len.saturating_sub(offset) as usize);
    request
        .buf
        .write(&mut core.loans, offset, n, |at, out| {
            out.copy_from_slice(&bytes[at..at + out.len()])
        })
        .map_err(|_| Error::Withdrawn {
            rank: request.peer as usize,
        })
}

/// The first chunk of a message has arrived.
pub(crate) fn first_chunk(
    core: &mut Core,
    peer: &mut Peer,
    envelope: Envelope,
    body: &ChunkBody,
) -> Result<(), String> {
    if peer.incoming.is_some() || body.offset != 0 {
        return Err("a message begins within another".into());
    }
    // Only what the credit covers is sent before it is asked for.
    if body.total > core.knobs.eager_credit as u64 {
        return Err(format!(
            "an eager message of {} bytes, more than its credit",
            body.total
        ));
    }
    let sync = (body.number != NONE).then_some(body.number);
    let waiting = core.posted.take(&envelope);
    if let Some(Waiting::Light(slot)) = waiting
        && sync.is_none()
        && core.land_chunk(slot, envelope, &peer.segment, body)
    {
        give_credit(core, peer, charge(body.total));
        return Ok(());
    }
    let target = match waiting.and_then(|waiting| core.as_request(waiting, &envelope)) {
        Some(id) => {
            if let Some(request) = core.requests.get_mut(id) {
                request.state = State::Receiving;
                request.peer = peer.rank;
                request.tag = envelope.tag;
            }
            core.counters.recv_expected += 1;
            Target::Request(id)
        }
        None => {
            hold(core, peer, body.total)?;
            core.counters.recv_unexpected += 1;
            core.counters.hold_unexpected(body.total);
            let bytes = core.place_to_hold(body.total as usize);
            Target::Entry(core.unexpected.keep(
                envelope,
                Message::Partial {
                    bytes,
                    total: body.total,
                },
            ))
        }
    };
    peer.incoming = Some(Incoming {
        target,
        total: body.total,
        received: 0,
        envelope,
        sync,
    });
    next_chunk(core, peer, body)
}

/// A chunk of the message that is under way has arrived.
pub(crate) fn next_chunk(core: &mut Core, peer: &mut Peer, body: &ChunkBody) -> Result<(), String> {
    let Some(mut incoming) = peer.incoming.take() else {
        return Err("a chunk of no message".into());
    };
    if body.total != incoming.total || body.offset != incoming.received || body.piece == 0 {
        return Err(format!(
            "a chunk of {} bytes at {} of {}, expected at {} of {}",
            body.piece, body.offset, body.total, incoming.received, incoming.total
        ));
    }
    let mut failed = None;
    match incoming.target {
        Target::Request(id) => {
            if let Some(request) = core.requests.get(id) {
                let n = u64::from(body.piece).min(request.len.saturating_sub(body.offset)) as usize;
                let segment = &peer.segment;
                // Behind the end of a buffer that is too short there is nothing to write.
                let written = n == 0
                    || request
                        .buf
                        .write(&mut core.loans, body.offset, n, |at, out| {
                            if let Err(error) =
                                segment.read_chunk(body.chunk, at, out, Kernel::Memcpy)
                            {
                                failed = Some(error.to_string());
                            }
                        })
                        .is_ok();
                if !written {
                    core.requests.complete(
                        id,
                        Err(Error::Withdrawn {
                            rank: peer.rank as usize,
                        }),
                    );
                }
            }
        }
        Target::Entry(entry) => {
            if let Message::Partial { bytes, .. } = core.unexpected.get_mut(entry) {
                let Some(room) = bytes.extend(body.piece as usize) else {
                    return Err(format!("more than the {} bytes of a message", body.total));
                };
                if let Err(error) = peer.segment.read_chunk(body.chunk, 0, room, Kernel::Memcpy) {
                    failed = Some(error.to_string());
                }
            }
        }
    }
    if let Some(failed) = failed {
        return Err(failed);
    }
    incoming.received += u64::from(body.piece);
    if incoming.received < incoming.total {
        peer.incoming = Some(incoming);
        return Ok(());
    }
    match incoming.target {
        Target::Request(id) => {
            let result = receipt(core, id, incoming.envelope, incoming.total);
            core.counters.bytes_received += incoming.total;
            if result.is_err() {
                core.counters.truncations += 1;
            }
            core.requests.complete(id, result);
            give_credit(core, peer, charge(incoming.total));
            if let Some(request) = incoming.sync {
                send_fin(core, peer, request);
            }
        }
        Target::Entry(entry) => {
            let message = core.unexpected.get_mut(entry);
            if let Message::Partial { bytes, .. } = message {
                let bytes = std::mem::replace(bytes, Held::Short(Vec::new()));
                *message = Message::Whole {
                    bytes,
                    sync: incoming.sync,
                };
                core.unexpected.count();
            }
        }
    }
    Ok(())
}

/// A receive takes over a message of which some chunks are still to come.
pub(crate) fn adopt(
    core: &mut Core,
    peer: &mut Peer,
    envelope: Envelope,
    id: RequestId,
    bytes: Held,
    total: u64,
) {
    if let Some(request) = core.requests.get_mut(id) {
        request.state = State::Receiving;
        request.peer = peer.rank;
        request.tag = envelope.tag;
    }
    if let Err(error) = copy_to(core, id, 0, &bytes) {
        core.requests.complete(id, Err(error));
    }
    peer.unexpected_bytes = peer.unexpected_bytes.saturating_sub(charge(total));
    core.counters.release_unexpected(total);
    core.give_back(bytes);
    if let Some(incoming) = &mut peer.incoming {
        incoming.target = Target::Request(id);
    }
}
