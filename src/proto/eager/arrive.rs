// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receiving eager messages: into the buffer of the receive that waits for them, or to where they wait for one. A
//! message that comes in chunks is matched when its first chunk comes.

use super::super::deliver::{Ended, Message, Receiver, deliver};
use super::super::destination::{Destination, read_chunk};
use super::super::plan::SYNC_BYTES;
use crate::endpoint::Record;
use crate::error::{Error, Result};
use crate::matching::{Envelope, Unexpected};
use crate::peer::{Incoming, Peer, Target, charge};
use crate::records::{ChunkBody, Kind};
use crate::request::RequestId;
use crate::state::UnexpectedMessage;
use crate::state::lightweight::PostedReceive;
use crate::state::message::{PartialMessage, WholeMessage};
use crate::state::stored::StoredBytes;
use crate::state::{Core, Receives};
use onecopy_shm::coop::MessageRange;
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::layout::OutOfBounds;
use onecopy_shm::loan::{LoanError, LoanTable};

/// A message in slots has arrived.
#[inline]
pub(crate) fn whole(
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
    let len = record.len - skip;
    let whole = MessageRange::whole(len as u64);
    let endpoint = &peer.endpoint;
    let read = |offset: usize, out: &mut [u8]| endpoint.read(record, skip + offset, out);
    if let Some(waiting) = receives.match_posted(core, &envelope) {
        let ended = Ended::eager(len as u64, sync);
        let message = Message {
            envelope,
            total: len as u64,
        };
        if let PostedReceive::Lightweight(slot) = waiting {
            let read = |out: &mut [u8]| {
                read(0, out);
                true
            };
            let filled = receives.lightweight.fill(&mut core.loans, slot, len, read);
            if let Some(phase) = filled {
                let receiver = Receiver::Lightweight(phase);
                deliver(core, peer, receiver, message, Ok(()), ended);
                return Ok(());
            }
        }
        let id = receives.lightweight.as_request(core, waiting, &envelope);
        let (to, receiver) = match id {
            Some(id) => (
                Destination::of_request(&core.requests, id),
                Receiver::Request(id),
            ),
            None => (Destination::Nowhere, Receiver::Gone),
        };
        let written = to.fill(&mut core.loans, whole, read);
        let written = written.map_err(|_| Error::withdrawn(peer.rank));
        deliver(core, peer, receiver, message, written, ended);
        return Ok(());
    }
    peer.inbound.hold(&core.knobs, len as u64)?;
    core.counters.hold_unexpected(len as u64);
    let mut bytes = core.buffers.place_to_hold(len);
    let held = Destination::StoredBytes(&mut bytes).fill(&mut core.loans, whole, read);
    held.map_err(|error| error.to_string())?;
    let message = UnexpectedMessage::Whole(WholeMessage { bytes, sync });
    receives.keep_unexpected(core, envelope, message);
    Ok(())
}

/// The first chunk of a message has arrived.
pub(crate) fn first_chunk(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    envelope: Envelope,
    body: &ChunkBody,
) -> std::result::Result<(), String> {
    if peer.inbound.incoming.is_some() {
        return Err("a message begins within another".into());
    }
    peer.endpoint
        .will_read_chunk(body.chunk, body.begin as usize + body.piece as usize);
    let mut incoming = Incoming::begin(&core.knobs, envelope, body)?;
    let waiting = receives.match_posted(core, &envelope);
    if waiting.is_some() {
        incoming.time(&mut peer.policy, body);
    }
    if let Some(PostedReceive::Lightweight(slot)) = waiting
        && body.piece > 0
        && u64::from(body.piece) == body.total
    {
        let kernel = core.chunks.kernel_out(body.total as usize);
        let len = body.piece as usize;
        let endpoint = &mut peer.endpoint;
        let begin = body.begin as usize;
        let read = |out: &mut [u8]| endpoint.read_chunk(body.chunk, begin, out, kernel).is_ok();
        let filled = receives.lightweight.fill(&mut core.loans, slot, len, read);
        if let Some(phase) = filled {
            let receiver = Receiver::Lightweight(phase);
            let ended = Ended::eager(body.total, incoming.sync);
            let message = Message {
                envelope,
                total: body.total,
            };
            deliver(core, peer, receiver, message, Ok(()), ended);
            return Ok(());
        }
        // As a request it ends with its peer, if that is what is wrong. That is found out below.
    }
    begin(core, receives, peer, incoming, waiting)?;
    next_chunk(core, receives, peer, body)
}

/// A message begins that is not taken at once: for the receive that has matched it, or to be kept. Out of line, so that
/// a message in one chunk has the registers.
#[inline(never)]
fn begin(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    mut incoming: Incoming,
    waiting: Option<PostedReceive>,
) -> std::result::Result<(), String> {
    let (envelope, total) = (incoming.envelope, incoming.total);
    incoming.target = match waiting {
        Some(waiting) => {
            let id = receives.lightweight.as_request(core, waiting, &envelope);
            match id.and_then(|id| Some((id, core.requests.get_mut(id)?))) {
                Some((id, request)) => {
                    request.begin_receiving(&envelope);
                    Target::Request(id)
                }
                None => Target::Nowhere,
            }
        }
        None => {
            peer.inbound.hold(&core.knobs, total)?;
            core.counters.hold_unexpected(total);
            let bytes = core.buffers.place_to_hold(total as usize);
            let message = UnexpectedMessage::Partial(PartialMessage { bytes, total });
            Target::Entry(receives.keep_unexpected(core, envelope, message))
        }
    };
    peer.inbound.incoming = Some(incoming);
    Ok(())
}

/// What became of a chunk that was received.
#[derive(Debug)]
pub(crate) struct TakenChunk {
    /// Whether its bytes are in the buffer, as far as they fit.
    pub(crate) written: std::result::Result<(), LoanError>,
    /// Whether it was the last one of its message.
    pub(crate) last: bool,
}

/// Takes the next chunk of a message, or as much of it as has come. `from` copies bytes of the chunk. An error says
/// what no correct peer would have sent.
#[inline(always)]
pub(crate) fn take_chunk(
    loans: &mut LoanTable,
    from: impl FnMut(usize, &mut [u8]) -> std::result::Result<(), OutOfBounds>,
    incoming: &mut Incoming,
    body: &ChunkBody,
    to: Destination<'_>,
) -> std::result::Result<TakenChunk, String> {
    incoming.check(body)?;
    let written = read_chunk(loans, from, body, to)?;
    let last = incoming.came(body);
    Ok(TakenChunk { written, last })
}

/// A chunk of the message that is under way has arrived.
pub(crate) fn next_chunk(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    body: &ChunkBody,
) -> std::result::Result<(), String> {
    let Some(incoming) = &mut peer.inbound.incoming else {
        return Err("a chunk of no message".into());
    };
    let to = match incoming.target {
        Target::Request(id) => Destination::of_request(&core.requests, id),
        Target::Entry(entry) => match receives.unexpected.get_mut(entry) {
            UnexpectedMessage::Partial(partial) => Destination::StoredBytes(&mut partial.bytes),
            _ => Destination::Nowhere,
        },
        Target::Nowhere => Destination::Nowhere,
    };
    let endpoint = &mut peer.endpoint;
    let kernel = core.chunks.kernel_out(body.total as usize);
    let from = |offset: usize, out: &mut [u8]| endpoint.read_chunk(body.chunk, offset, out, kernel);
    let TakenChunk { written, last } = take_chunk(&mut core.loans, from, incoming, body, to)?;
    match (incoming.target, &written) {
        (Target::Request(id), Err(_)) => {
            core.requests.complete(id, Err(Error::withdrawn(peer.rank)));
        }
        (Target::Entry(_), Err(error)) => return Err(error.to_string()),
        _ => {}
    }
    if last && let Some(incoming) = peer.inbound.incoming.take() {
        all_came(core, &mut receives.unexpected, peer, &incoming);
    }
    Ok(())
}

/// Whether the bytes go to a device, whose times say nothing of other buffers.
#[cold]
fn goes_to_device(core: &Core, target: Target) -> bool {
    match target {
        Target::Request(id) => {
            let request = core.requests.get(id);
            request.is_some_and(|request| request.buf.staged().is_some())
        }
        Target::Entry(_) | Target::Nowhere => false,
    }
}

/// The last chunk of a message has arrived.
fn all_came(
    core: &mut Core,
    unexpected: &mut Unexpected<UnexpectedMessage>,
    peer: &mut Peer,
    incoming: &Incoming,
) {
    let message = Message {
        envelope: incoming.envelope,
        total: incoming.total,
    };
    let ended = Ended::eager(incoming.total, incoming.sync);
    if incoming.timed.is_some() && !goes_to_device(core, incoming.target) {
        peer.came_unasked(incoming);
    }
    match incoming.target {
        // If its buffer was withdrawn, it is complete already.
        Target::Request(id) => {
            let receiver = Receiver::Request(id);
            deliver(core, peer, receiver, message, Ok(()), ended);
        }
        Target::Entry(entry) => {
            let message = unexpected.get_mut(entry);
            if let UnexpectedMessage::Partial(partial) = message {
                let bytes = std::mem::replace(&mut partial.bytes, StoredBytes::Short(Vec::new()));
                *message = UnexpectedMessage::Whole(WholeMessage {
                    bytes,
                    sync: incoming.sync,
                });
                unexpected.count();
            }
        }
        Target::Nowhere => deliver(core, peer, Receiver::Gone, message, Ok(()), ended),
    }
}

/// A receive takes over a message of which some chunks are still to come.
pub(crate) fn adopt(
    core: &mut Core,
    peer: &mut Peer,
    envelope: Envelope,
    id: RequestId,
    partial: PartialMessage,
) {
    if let Some(request) = core.requests.get_mut(id) {
        request.begin_receiving(&envelope);
    }
    if let Err(error) = copy_held(core, id, &partial.bytes) {
        core.requests.complete(id, Err(error));
    }
    peer.inbound.release(charge(partial.total));
    core.release_stored(partial.bytes, partial.total);
    if let Some(incoming) = &mut peer.inbound.incoming {
        incoming.target = Target::Request(id);
    }
}

/// Gives a whole unexpected message to its receive.
pub(crate) fn accept_whole(
    core: &mut Core,
    peer: &mut Peer,
    envelope: Envelope,
    whole: WholeMessage,
    id: RequestId,
) {
    let total = whole.bytes.len() as u64;
    let written = hand_over(core, id, whole.bytes);
    peer.inbound.release(charge(total));
    let ended = Ended::eager(total, whole.sync);
    let message = Message { envelope, total };
    deliver(core, peer, Receiver::Request(id), message, written, ended);
}

/// Copies a whole message that was kept to its receive, and gives its place back. An error: the buffer was withdrawn.
pub(crate) fn hand_over(core: &mut Core, id: RequestId, bytes: StoredBytes) -> Result<()> {
    let written = copy_held(core, id, &bytes);
    let total = bytes.len() as u64;
    core.release_stored(bytes, total);
    written
}

/// Copies the first bytes of a message, as many as fit, to its receive.
fn copy_held(core: &mut Core, id: RequestId, bytes: &[u8]) -> Result<()> {
    let Some(request) = core.requests.get(id) else {
        return Ok(());
    };
    let whole = MessageRange::whole(bytes.len() as u64);
    Destination::Request(request)
        .fill(&mut core.loans, whole, |offset, out| {
            copy_slices(Kernel::Memcpy, out, &bytes[offset..offset + out.len()]);
        })
        .map_err(|_| Error::withdrawn(request.peer))
}
