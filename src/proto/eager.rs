// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that are sent before anyone asks for them: in one slot, in several, or in chunks that the ring names
//! ([`chunks`]).
//!
//! A message is sent and received by the same code, whether a request keeps it or a call that found everything ready
//! ([`super::direct`]). Where its bytes come from is a [`Payload`].

mod chunks;

pub(crate) use chunks::{
    ChunkSource, Chunked, adopt, first_chunk, named, next_chunk, put_chunks, refusal, send_chunk,
    send_chunks, step_of, warm_chunks,
};

use super::deliver::{Ended, deliver, end};
use super::plan::SYNC_BYTES;
use super::{Message, charge, claim, complete_send};
use crate::endpoint::{Record, RecordRoom, slots_for};
use crate::error::{Error, Result};
use crate::matching::Envelope;
use crate::peer::Peer;
use crate::records::{self, Kind};
use crate::request::{RequestId, RequestState, SendPlan, UserBuf};
use crate::state::held::Held;
use crate::state::lightweight::Arrived;
use crate::state::{Core, Receives};
use onecopy_shm::loan::{LoanError, LoanTable};

/// Where the bytes of a message come from.
pub(crate) trait Payload {
    /// Shows `len` bytes from `at` on to `to`, piece by piece, each with its place in the range.
    fn read(
        &self,
        loans: &LoanTable,
        at: u64,
        len: usize,
        to: impl FnMut(usize, &[u8]),
    ) -> std::result::Result<(), LoanError>;

    /// Writes the first `len` bytes to `room`, from `skip` on.
    #[inline]
    fn write(
        &self,
        loans: &LoanTable,
        len: usize,
        room: &mut impl RecordRoom,
        skip: usize,
    ) -> std::result::Result<(), LoanError> {
        self.read(loans, 0, len, |at, bytes| room.write(skip + at, bytes))
    }
}

impl Payload for [u8] {
    // In place: a closure with all of a copy in it becomes a call.
    #[inline(always)]
    fn write(
        &self,
        _: &LoanTable,
        len: usize,
        room: &mut impl RecordRoom,
        skip: usize,
    ) -> std::result::Result<(), LoanError> {
        room.write(skip, &self[..len]);
        Ok(())
    }

    #[inline(always)]
    fn read(
        &self,
        _: &LoanTable,
        at: u64,
        len: usize,
        mut to: impl FnMut(usize, &[u8]),
    ) -> std::result::Result<(), LoanError> {
        to(0, &self[at as usize..at as usize + len]);
        Ok(())
    }
}

impl Payload for UserBuf {
    #[inline]
    fn read(
        &self,
        loans: &LoanTable,
        at: u64,
        len: usize,
        to: impl FnMut(usize, &[u8]),
    ) -> std::result::Result<(), LoanError> {
        UserBuf::read(self, loans, at, len, to)
    }
}

/// Slots of a message of `len` bytes.
#[inline(always)]
pub(crate) fn slots_of(len: usize, sync: bool) -> usize {
    slots_for(len + if sync { SYNC_BYTES } else { 0 })
}

/// Writes a message of `len` bytes to the slots that were claimed for it, and publishes it. If its buffer was
/// withdrawn, nothing is published.
#[inline(always)]
pub(crate) fn write_slots(
    loans: &LoanTable,
    mut room: impl RecordRoom,
    sync: Option<RequestId>,
    meta: u64,
    len: usize,
    from: &(impl Payload + ?Sized),
) -> std::result::Result<(), LoanError> {
    let (kind, skip) = match sync {
        Some(id) => {
            room.write(0, &id.0.to_le_bytes());
            (Kind::EagerSync, SYNC_BYTES)
        }
        None => (Kind::Eager, 0),
    };
    from.write(loans, len, &mut room, skip)?;
    room.publish(kind as u8, skip + len, meta);
    Ok(())
}

/// A message in slots was published, and woke the peer or not.
#[inline(always)]
pub(crate) fn sent_slots(core: &mut Core, peer: &mut Peer, slots: usize, len: usize, woke: bool) {
    if woke {
        core.counters.doorbells_rung += 1;
    }
    peer.outbound.credit.spend(charge(len as u64));
    if slots == 1 {
        core.counters.sends_inline += 1;
    } else {
        core.counters.sends_slots += 1;
    }
    core.counters.bytes_sent += len as u64;
}

/// Sends `id` in slots. `false`: no room yet.
pub(crate) fn send_slots(core: &mut Core, peer: &mut Peer, id: RequestId) -> bool {
    let Some(request) = core.requests.get(id) else {
        return true;
    };
    let (len, sync, meta) = (
        request.len as usize,
        request.sync,
        records::meta(request.context, request.tag),
    );
    let buf = request.buf.clone();
    let slots = slots_of(len, sync);
    let Some(claim) = claim(core, peer, slots) else {
        return false;
    };
    if write_slots(&core.loans, claim, sync.then_some(id), meta, len, &buf).is_err() {
        core.requests.complete(id, Err(Error::withdrawn(peer.rank)));
        return true;
    }
    let woke = peer.endpoint.notify();
    sent_slots(core, peer, slots, len, woke);
    sent_all(core, peer, id, SendPlan::Slots);
    true
}

/// All of a send is out: it is complete, unless it waits to hear of its match.
fn sent_all(core: &mut Core, peer: &mut Peer, id: RequestId, plan: SendPlan) {
    match core.requests.get_mut(id) {
        Some(request) if request.sync => {
            request.state = RequestState::Awaiting(plan);
            peer.outbound.asked();
        }
        _ => complete_send(core, id),
    }
}

/// A message in slots has arrived.
#[inline]
pub(crate) fn arrive(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    record: &Record,
    envelope: Envelope,
    kind: Kind,
) -> std::result::Result<(), String> {
    if peer.inbound.incoming.is_some() {
        return Err("a message begins within another".into());
    }
    let mut sync = None;
    let mut skip = 0;
    if kind == Kind::EagerSync {
        if record.len < SYNC_BYTES {
            return Err("a synchronous message without a request".into());
        }
        let mut raw = [0; SYNC_BYTES];
        peer.endpoint.read(record, 0, &mut raw);
        sync = Some(u64::from_le_bytes(raw));
        skip = SYNC_BYTES;
    }
    let message = Arrived {
        envelope,
        record,
        skip,
    };
    let len = message.len();
    if let Some(receive) = receives.match_posted(core, &envelope) {
        let lightweight = &mut receives.lightweight;
        lightweight.deliver_record(core, receive, &message, &peer.endpoint);
        end(core, peer, Ended::eager(len as u64, sync));
        return Ok(());
    }
    peer.inbound.hold(&core.knobs, len as u64)?;
    core.counters.hold_unexpected(len as u64);
    let mut bytes = core.buffers.place_to_hold(len);
    if let Some(room) = bytes.extend(len) {
        peer.endpoint.read(record, skip, room);
    }
    receives.keep_unexpected(core, envelope, Message::Whole { bytes, sync });
    Ok(())
}

/// Gives a whole unexpected message to its receive.
pub(crate) fn accept_whole(
    core: &mut Core,
    peer: &mut Peer,
    envelope: Envelope,
    (bytes, sync): (Held, Option<u64>),
    id: RequestId,
) {
    let (len, written) = hand_over(core, id, bytes);
    peer.inbound.release(charge(len));
    let ended = Ended::eager(len, sync);
    deliver(core, peer, id, (envelope, len), written, ended);
}

/// Copies a whole message that was kept to its receive, and gives its place back. Gives its length, and whether the
/// bytes that fit are in the buffer.
pub(crate) fn hand_over(core: &mut Core, id: RequestId, bytes: Held) -> (u64, Result<()>) {
    let written = copy_to(core, id, 0, &bytes);
    let len = bytes.len() as u64;
    core.counters.release_unexpected(len);
    core.buffers.give_back(bytes);
    (len, written)
}

/// Copies as many of `bytes` as fit to a receive, from `offset` on.
pub(crate) fn copy_to(core: &mut Core, id: RequestId, offset: u64, bytes: &[u8]) -> Result<()> {
    let Some(request) = core.requests.get(id) else {
        return Ok(());
    };
    let n = bytes.len().min(request.len.saturating_sub(offset) as usize);
    request
        .buf
        .write(&mut core.loans, offset, n, |at, out| {
            out.copy_from_slice(&bytes[at..at + out.len()])
        })
        .map_err(|_| Error::withdrawn(request.peer))
}
