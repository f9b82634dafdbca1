// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pipeline: an announced message in chunks, on the receiver's request. The sender fills chunks while the receiver
//! empties earlier ones. A few chunks are recycled, so that the memory of a transfer is bounded whatever its size.

use super::destination::{Destination, read_chunk};
use super::eager::{ChunkSource, Chunked, begin_of, refusal, send_chunk, warm_chunks};
use super::{broken, rendezvous};
use crate::error::Error;
use crate::peer::{Peer, PipeOut};
use crate::records::{ChunkBody, Kind};
use crate::request::{RequestId, RequestState, SendPlan};
use crate::state::Core;
use crate::state::transfer::{Mode, Transfer, Transfers};
use onecopy_shm::coop::MessageRange;

/// The receiver wants a range of an announced message.
pub(crate) fn wanted(
    core: &mut Core,
    peer: &mut Peer,
    id: RequestId,
    transfer: u64,
    range: MessageRange,
) -> Result<(), String> {
    let Some(request) = core.requests.get_mut(id) else {
        return Ok(());
    };
    let total = request.len;
    let MessageRange { offset, len } = range;
    let end = offset
        .checked_add(len)
        .filter(|&end| end <= total && len > 0);
    let Some(end) = end else {
        return Err(format!("it wants {len} bytes at {offset} of {total}"));
    };
    // One range at a time: so no more wait here than there are messages announced.
    let RequestState::Awaiting(SendPlan::Announced { coop_id }) = request.state else {
        return Err(format!(
            "it wants chunks of request {:#x}, which was not announced, or of which others are on their way",
            id.0
        ));
    };
    request.state = RequestState::Awaiting(SendPlan::Piped { coop_id });
    peer.outbound.pipes.push_back(PipeOut {
        request: id,
        transfer,
        offset,
        end,
        total,
        begun: false,
    });
    core.agenda.make_busy(peer.rank);
    Ok(())
}

/// What became of a try to send the next chunk of the first pipe.
enum Try {
    /// It went out, or the pipe has ended with an error.
    Moved,
    /// The send is over, and the pipe with it.
    Over,
    /// A device has not brought the bytes yet: the pipe stands behind all others now.
    NotReady,
    /// There is no pipe, or no room.
    Stuck,
}

/// Sends chunks of the pipes to a peer, in turn.
pub(crate) fn send(core: &mut Core, peer: &mut Peer) -> bool {
    let mut moved = false;
    // Pipes that are not ready, one after the other.
    let mut not_ready = 0;
    for _ in 0..core.knobs.progress_quota {
        if not_ready > 0 && not_ready >= peer.outbound.pipes.len() {
            break;
        }
        match send_next(core, peer) {
            Try::Moved => (moved, not_ready) = (true, 0),
            Try::Over => {}
            Try::NotReady => not_ready += 1,
            Try::Stuck => break,
        }
    }
    moved
}

/// Sends the next chunk of the first pipe.
fn send_next(core: &mut Core, peer: &mut Peer) -> Try {
    let Some(pipe) = peer.outbound.pipes.front() else {
        return Try::Stuck;
    };
    let (number, total, offset, begun) = (pipe.transfer, pipe.total, pipe.offset, pipe.begun);
    let Some(request) = core.requests.get(pipe.request) else {
        peer.outbound.pipes.pop_front();
        return Try::Over;
    };
    let buf = request.buf.clone();
    let cut = peer.policy.chunks.cut_whole(begin_of(peer, &buf));
    let mut piece = cut.piece(offset, pipe.end);
    if let Some(staged) = buf.staged() {
        // All up to the end is wanted: what comes now is here when the receiver asks for it.
        match staged.ready(offset..total) {
            Ok(0) => {
                peer.outbound.pipes.rotate_left(1);
                return Try::NotReady;
            }
            Ok(ready) => piece.len = piece.len.min(ready as u64),
            Err(reason) => return fail_first(core, peer, Error::Device(reason)),
        }
    }
    let source = ChunkSource {
        kind: Kind::Data,
        meta: 0,
        total,
        offset,
        piece,
        number,
    };
    match send_chunk(core, peer, peer.policy.chunks.depth, source, &buf) {
        Chunked::Sent => {
            core.counters.pipeline_bytes += piece.len;
            if !begun {
                peer.endpoint.began_chunks(total as usize);
            }
            advance_first(core, peer, piece.len);
            Try::Moved
        }
        Chunked::NoRoom => Try::Stuck,
        Chunked::Refused => {
            let error = refusal(core, peer);
            fail_first(core, peer, error)
        }
        Chunked::Withdrawn => {
            let error = Error::withdrawn(peer.rank);
            fail_first(core, peer, error)
        }
    }
}

/// A chunk of the first pipe has gone out. Behind its last one its send waits for the receiver again.
fn advance_first(core: &mut Core, peer: &mut Peer, len: u64) {
    let Some(pipe) = peer.outbound.pipes.front_mut() else {
        return;
    };
    pipe.offset += len;
    pipe.begun = true;
    if pipe.offset < pipe.end {
        return;
    }
    let (id, total) = (pipe.request, pipe.total);
    peer.outbound.pipes.pop_front();
    peer.endpoint.ended_chunks();
    let Some(request) = core.requests.get_mut(id) else {
        return;
    };
    if let RequestState::Awaiting(SendPlan::Piped { coop_id }) = request.state {
        request.state = RequestState::Awaiting(SendPlan::Announced { coop_id });
    }
    if request.buf.staged().is_none() {
        let cut = peer.policy.chunks.cut_whole(0);
        warm_chunks(core, peer, total, cut);
    }
}

/// Ends the first pipe to a peer and the send that it is of, whose receiver waits for more.
#[cold]
fn fail_first(core: &mut Core, peer: &mut Peer, error: Error) -> Try {
    if let Some(pipe) = peer.outbound.pipes.pop_front() {
        core.requests.fail_announced(pipe.request, peer.rank, error);
        broken::break_off_announced(core, peer, pipe.transfer);
    }
    Try::Moved
}

/// A chunk has arrived.
pub(crate) fn arrive(
    core: &mut Core,
    transfers: &mut Transfers,
    peer: &mut Peer,
    body: &ChunkBody,
) -> Result<(), String> {
    let Some(Transfer {
        request,
        mode: Mode::Pipe(piped),
        ..
    }) = transfers.find_mut(body.number, peer.rank)
    else {
        return Err(format!(
            "a chunk for transfer {:#x}, which expects none",
            body.number
        ));
    };
    if body.offset != piped.next
        || u64::from(body.piece) > piped.end - piped.next
        || body.piece == 0
    {
        return Err(format!(
            "a chunk of {} bytes at {}, expected at {} up to {}",
            body.piece, body.offset, piped.next, piped.end
        ));
    }
    let request = *request;
    piped.next += u64::from(body.piece);
    let last = piped.next == piped.end;
    let to = Destination::of_request(&core.requests, request);
    let endpoint = &mut peer.endpoint;
    let kernel = core.chunks.kernel_out(body.total as usize);
    let from = |offset: usize, out: &mut [u8]| endpoint.read_chunk(body.chunk, offset, out, kernel);
    let written = read_chunk(&mut core.loans, from, body, to)?;
    if written.is_err() {
        let withdrawn = Err(Error::withdrawn(peer.rank));
        core.requests.complete(request, withdrawn);
    }
    if last {
        rendezvous::piped_all(core, transfers, peer, body.number);
    }
    Ok(())
}
