// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that are sent before anyone asks for them: in one slot, in several, or in chunks that the ring names
//! ([`chunks`]). Where the bytes of a message come from is a [`Payload`].
//!
//! Progress receives messages by [`arrive`]. A blocking call that finds everything ready sends and receives without a
//! request ([`super::direct`]). It writes slots, and sends and takes chunks, by the code of this module. But it reads a
//! message in slots itself: its buffer is at hand.

mod arrive;
mod chunks;

pub(crate) use arrive::{
    accept_whole, adopt, first_chunk, hand_over, next_chunk, take_chunk, whole,
};
pub(crate) use chunks::{
    ChunkSource, Chunked, begin_of, cut_of, named, put_chunks, refusal, send_chunk, send_chunks,
    warm_chunks,
};

use super::control::{claim, complete_send};
use super::plan::SYNC_BYTES;
use crate::endpoint::{RecordRoom, slots_for};
use crate::error::Error;
use crate::matching::MatchBits;
use crate::peer::{Peer, charge};
use crate::records::Kind;
use crate::request::{Request, RequestId, RequestState, SendPlan, UserBuf};
use crate::state::Core;
use onecopy_shm::loan::{LoanError, LoanTable};

/// Where the bytes of a message come from.
pub(crate) trait Payload {
    /// Where its bytes lie, if they lie together.
    fn address(&self) -> Option<usize>;

    /// Shows `len` bytes from `offset` on to `to`, piece by piece, each with its place in the range.
    fn read(
        &self,
        loans: &LoanTable,
        offset: u64,
        len: usize,
        to: impl FnMut(usize, &[u8]),
    ) -> Result<(), LoanError>;

    /// Writes the first `len` bytes to `room`, from `skip` on.
    #[inline]
    fn write(
        &self,
        loans: &LoanTable,
        len: usize,
        room: &mut impl RecordRoom,
        skip: usize,
    ) -> Result<(), LoanError> {
        self.read(loans, 0, len, |offset, bytes| {
            room.write(skip + offset, bytes)
        })
    }
}

impl Payload for [u8] {
    #[inline(always)]
    fn address(&self) -> Option<usize> {
        Some(self.as_ptr().addr())
    }

    // In place: a closure with all of a copy in it becomes a call.
    #[inline(always)]
    fn write(
        &self,
        _: &LoanTable,
        len: usize,
        room: &mut impl RecordRoom,
        skip: usize,
    ) -> Result<(), LoanError> {
        room.write(skip, &self[..len]);
        Ok(())
    }

    #[inline(always)]
    fn read(
        &self,
        _: &LoanTable,
        offset: u64,
        len: usize,
        mut to: impl FnMut(usize, &[u8]),
    ) -> Result<(), LoanError> {
        to(0, &self[offset as usize..offset as usize + len]);
        Ok(())
    }
}

impl Payload for UserBuf {
    #[inline]
    fn address(&self) -> Option<usize> {
        match self {
            Self::One(loan) => Some(loan.address()),
            Self::Many(_) | Self::Staged(_) => None,
        }
    }

    #[inline]
    fn read(
        &self,
        loans: &LoanTable,
        offset: u64,
        len: usize,
        to: impl FnMut(usize, &[u8]),
    ) -> Result<(), LoanError> {
        UserBuf::read(self, loans, offset, len, to)
    }
}

/// A message that is sent in slots or in chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EagerSend {
    pub(crate) meta: u64,
    /// Its bytes.
    pub(crate) len: usize,
    /// The request that waits to hear of its match.
    pub(crate) sync: Option<RequestId>,
}

impl EagerSend {
    /// A message of `len` bytes that no request waits for.
    #[inline(always)]
    pub(crate) fn new(bits: MatchBits, len: usize) -> Self {
        Self {
            meta: bits.word(),
            len,
            sync: None,
        }
    }

    /// The message of the request `id`.
    #[inline]
    fn of_request(id: RequestId, request: &Request) -> Self {
        Self {
            meta: request.match_bits().word(),
            len: request.len as usize,
            sync: request.sync.then_some(id),
        }
    }

    /// How many slots it takes.
    #[inline(always)]
    pub(crate) fn slots(&self) -> usize {
        slots_for(self.len + if self.sync.is_some() { SYNC_BYTES } else { 0 })
    }

    /// Writes it to the slots that were claimed for it, and publishes it. If its buffer was withdrawn, nothing is
    /// published.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        loans: &LoanTable,
        mut room: impl RecordRoom,
        from: &(impl Payload + ?Sized),
    ) -> Result<(), LoanError> {
        let (kind, skip) = match self.sync {
            Some(id) => {
                room.write(0, &id.0.to_le_bytes());
                (Kind::EagerSync, SYNC_BYTES)
            }
            None => (Kind::Eager, 0),
        };
        from.write(loans, self.len, &mut room, skip)?;
        room.publish(kind as u8, skip + self.len, self.meta);
        Ok(())
    }
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
    let message = EagerSend::of_request(id, request);
    let buf = request.buf.clone();
    let slots = message.slots();
    let Some(claim) = claim(core, peer, slots) else {
        return false;
    };
    if message.write(&core.loans, claim, &buf).is_err() {
        core.requests.complete(id, Err(Error::withdrawn(peer.rank)));
        return true;
    }
    let woke = peer.endpoint.notify();
    sent_slots(core, peer, slots, message.len, woke);
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
