// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sending in chunks: a message is cut into pieces, each of which goes in a chunk of the sender's that a record names.

use super::super::broken;
use super::super::control::{notify, open, sent};
use super::{EagerSend, Payload, sent_all};
use crate::endpoint::{Naming, Pack, Put};
use crate::error::Error;
use crate::peer::{Peer, charge};
use crate::records::{ChunkBody, Kind, NONE};
use crate::request::{RequestId, RequestState, SendPlan};
use crate::select::chunks::{Cut, CutPiece};
use crate::state::Core;
use onecopy_shm::layout::LINE;
use onecopy_shm::loan::{LoanError, LoanTable};

/// Chunks whose lines are asked for ahead, at most. Where stores need lines they are half of what messages to one peer
/// may occupy (`ONECOPY_POOL_PER_PEER`). Chosen by magnitude: a message and the next one find room.
const WARM_MAX: usize = 32;

/// Asks for the lines of the chunks that a message like the one just sent, of `total` bytes in steps, would be written
/// to. Their last reader has copies of them, and to own them takes as long as to read them. While the receiver
/// copies out and answers, that costs neither side anything.
#[inline]
pub(crate) fn warm_chunks(core: &mut Core, peer: &mut Peer, total: u64, cut: Cut) {
    if !peer.endpoint.shares_memory() || peer.endpoint.sent_warm() {
        return;
    }
    let pieces = (cut.pieces(total) as usize).min(WARM_MAX);
    if core.home.chunks_free() < pieces {
        peer.endpoint.collect_chunks(&mut core.home);
    }
    let first = cut.piece(0, total);
    let piece = (first.begin + first.len) as usize;
    if core.chunks.owned_ahead(total as usize) {
        // A rank that waits for an answer asks only once the message is out: it has the time. One that sends message
        // after message has no such time, so it asks at once.
        let after = peer.endpoint.began_in_turn();
        core.home.will_write_chunks(pieces, piece, after);
    }
}

/// What became of a chunk that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunked {
    /// It is out.
    Sent,
    /// There is no room for it yet.
    NoRoom,
    /// There is no memory for any chunk: nothing would make room. [`refusal`] says why.
    Refused,
    /// Its bytes are the program's again.
    Withdrawn,
}

/// A piece of a message that travels in a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkSource {
    pub(crate) kind: Kind,
    pub(crate) meta: u64,
    /// Bytes of the message.
    pub(crate) total: u64,
    /// Where in it the piece begins.
    pub(crate) offset: u64,
    /// Its bytes, and where in the chunk they begin.
    pub(crate) piece: CutPiece,
    /// The request or the transfer that it is about, or [`NONE`].
    pub(crate) number: u64,
}

/// A piece of a payload, to be shown.
struct PayloadPiece<'a, P: ?Sized> {
    loans: &'a LoanTable,
    from: &'a P,
    offset: u64,
    len: usize,
}

impl<P: Payload + ?Sized> Pack for PayloadPiece<'_, P> {
    #[inline(always)]
    fn show(&self, to: impl FnMut(usize, &[u8])) -> Result<(), LoanError> {
        self.from.read(self.loans, self.offset, self.len, to)
    }
}

/// Sends a piece in a chunk, of which `share` may be out.
#[inline]
pub(crate) fn send_chunk(
    core: &mut Core,
    peer: &mut Peer,
    share: usize,
    source: ChunkSource,
    from: &(impl Payload + ?Sized),
) -> Chunked {
    if !peer.endpoint.is_open() && !open(core, peer) {
        return Chunked::NoRoom;
    }
    let len = source.piece.len as usize;
    let naming = Naming {
        kind: source.kind as u8,
        meta: source.meta,
        begin: source.piece.begin as usize,
        len,
        total: source.total as usize,
        kernel: core.chunks.kernel(source.total as usize),
        share,
    };
    let shown = PayloadPiece {
        loans: &core.loans,
        from,
        offset: source.offset,
        len,
    };
    let body = |chunk| {
        let body = ChunkBody {
            total: source.total,
            offset: source.offset,
            chunk,
            begin: source.piece.begin as u32,
            piece: len as u32,
            number: source.number,
        };
        body.encode(source.kind)
    };
    let put = peer
        .endpoint
        .put_chunk(&mut core.home, naming, body, &shown);
    named(core, peer, source.kind, put)
}

/// What follows from an attempt to send a chunk.
#[inline]
pub(crate) fn named(core: &mut Core, peer: &mut Peer, kind: Kind, put: Put) -> Chunked {
    core.counters.pool_chunks = u64::from(core.home.chunks_reserved());
    match put {
        Put::Sent | Put::Returned => {
            core.counters.chunks_returned += u64::from(put == Put::Returned);
            sent(kind);
            notify(core, peer);
            Chunked::Sent
        }
        Put::NoRoom => Chunked::NoRoom,
        Put::NoChunk => {
            core.agenda.starve();
            if core.home.has_refusal() {
                Chunked::Refused
            } else {
                Chunked::NoRoom
            }
        }
        Put::Withdrawn => Chunked::Withdrawn,
    }
}

/// Why there is no memory for any chunk for this peer.
#[cold]
pub(crate) fn refusal(core: &mut Core, peer: &Peer) -> Error {
    let unknown = || Error::Unreachable {
        rank: peer.rank as usize,
        reason: "there is no memory for a chunk".into(),
    };
    core.home.take_refusal().unwrap_or_else(unknown)
}

/// How an eager message of `len` bytes is cut, of which so many are out.
#[inline]
pub(crate) fn cut_of(
    core: &Core,
    peer: &Peer,
    len: u64,
    sent: u64,
    from: &(impl Payload + ?Sized),
) -> Cut {
    let in_turn = if sent == 0 {
        peer.endpoint.is_in_turn()
    } else {
        peer.endpoint.began_in_turn()
    };
    // Among threads a message in several pieces needs a request.
    let alone = in_turn && core.single_threaded;
    peer.policy.chunks.cut(len, alone, begin_of(peer, from))
}

/// How far behind a cache line a payload begins, where its chunks lie in memory.
#[inline]
pub(crate) fn begin_of(peer: &Peer, from: &(impl Payload + ?Sized)) -> usize {
    match peer.endpoint.shares_memory() {
        true => from.address().map_or(0, |address| address % LINE),
        false => 0,
    }
}

/// How far a message is out that is sent in chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkProgress {
    /// Its bytes that are out.
    pub(crate) sent: u64,
    /// What became of the last chunk that was tried.
    pub(crate) last: Chunked,
}

/// Sends a message in chunks, from `sent` on, as far as there is room.
#[inline]
pub(crate) fn put_chunks(
    core: &mut Core,
    peer: &mut Peer,
    message: EagerSend,
    mut sent: u64,
    from: &(impl Payload + ?Sized),
) -> ChunkProgress {
    let len = message.len as u64;
    let cut = cut_of(core, peer, len, sent, from);
    let share = peer.policy.chunks.share;
    while sent < len {
        let first = sent == 0;
        let source = ChunkSource {
            kind: if first {
                Kind::ChunkFirst
            } else {
                Kind::ChunkNext
            },
            meta: message.meta,
            total: len,
            offset: sent,
            piece: cut.piece(sent, len),
            number: message.sync.filter(|_| first).map_or(NONE, |id| id.0),
        };
        match send_chunk(core, peer, share, source, from) {
            Chunked::Sent => {}
            last => return ChunkProgress { sent, last },
        }
        if first {
            peer.outbound.credit.spend(charge(len));
            peer.endpoint.began_chunks(message.len);
        }
        sent += source.piece.len;
    }
    peer.endpoint.ended_chunks();
    warm_chunks(core, peer, len, cut);
    core.counters.sends_chunk += 1;
    core.counters.bytes_sent += len;
    let last = Chunked::Sent;
    ChunkProgress { sent, last }
}

/// Sends what can be sent of `id` in chunks. `true`: all of it is sent.
pub(crate) fn send_chunks(
    core: &mut Core,
    peer: &mut Peer,
    id: RequestId,
    before: u64,
    moved: &mut bool,
) -> bool {
    let Some(request) = core.requests.get(id) else {
        return true;
    };
    let message = EagerSend::of_request(id, request);
    let buf = request.buf.clone();
    let ChunkProgress { sent, last } = put_chunks(core, peer, message, before, &buf);
    *moved |= sent > before;
    let plan = SendPlan::Chunks { sent };
    match last {
        Chunked::Sent => sent_all(core, peer, id, plan),
        Chunked::NoRoom => {
            // It may be over: nothing can go to the peer.
            if let Some(request) = core.requests.get_mut(id)
                && matches!(request.state, RequestState::Queued(_))
            {
                request.state = RequestState::Queued(Some(plan));
            }
            return false;
        }
        // Nothing of it is out: there never was a chunk.
        Chunked::Refused => {
            let error = refusal(core, peer);
            core.requests.complete(id, Err(error));
        }
        Chunked::Withdrawn => {
            core.requests.complete(id, Err(Error::withdrawn(peer.rank)));
            if sent > 0 {
                broken::break_off(core, peer);
            }
        }
    }
    true
}
