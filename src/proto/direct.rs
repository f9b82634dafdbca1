// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fast path: a blocking call that finds everything ready moves its bytes at once, without a request.
//!
//! It applies only while nothing else could have a claim on what it touches. For a send nothing is queued for the peer.
//! For a receive no posted receive accepts the message and none is unexpected. A message in several chunks that begins
//! this way and has to wait goes on as a request. That is possible only when no other thread can come in between. How
//! bytes travel is the protocols' business ([`eager`]).

use super::control::pass;
use super::deliver::{Ended, Message, Receiver, deliver};
use super::destination::{Destination, shown};
use super::eager::{self, Chunked, EagerSend};
use super::plan::{Outgoing, has_credit, plan, still_right};
use super::rendezvous::mapped;
use crate::endpoint::{ChunkDemand, Medium, MediumOp, Record};
use crate::matching::{Envelope, MatchBits, Pattern};
use crate::peer::{Incoming, Peer, charge};
use crate::records::{BODY, ChunkBody, Kind, Rts, SourceLayout};
use crate::request::{SendPlan, Status};
use crate::state::{Core, Receives};
use onecopy_btl::RemoteRange;
use onecopy_shm::layout::HeapOffset;

/// Which messages a call may send or receive at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtOnce {
    /// Any, also in parts: the caller goes on with the rest.
    Parts,
    /// What can go, or is there, as a whole.
    Whole,
}

/// How far a send came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendProgress {
    /// All of it is sent.
    All,
    /// So many bytes are sent; the rest must follow before anything else goes to this peer.
    Part(u64),
    /// Nothing; it will go so, if that is decided.
    Later(Option<SendPlan>),
}

/// How far a receive came.
#[derive(Debug)]
pub(crate) enum ReceiveProgress {
    /// It is complete.
    All(Status),
    /// A message has begun to arrive; the rest must be received before anything else from this peer.
    Part(Incoming),
    /// Nothing.
    Nothing,
}

/// Sends at once what can be sent, as it was `decided`.
#[inline(always)]
pub(crate) fn send(
    core: &mut Core,
    peer: &mut Peer,
    bits: MatchBits,
    bytes: &[u8],
    at_once: AtOnce,
    decided: Option<SendPlan>,
) -> SendProgress {
    let len = bytes.len();
    let thresholds = &peer.policy.thresholds;
    if len > thresholds.fast_max {
        if len > thresholds.fast_limit || peer.endpoint.is_answered() {
            return send_longer(core, peer, bits, bytes, at_once, decided);
        }
        peer.endpoint.begins_in_slots();
    }
    if !may_send(peer) || !has_credit(core, peer, charge(len as u64)) {
        return SendProgress::Later(None);
    }
    send_slots(core, peer, bits, bytes)
}

/// Whether nothing that is queued for the peer comes first.
#[inline(always)]
fn may_send(peer: &Peer) -> bool {
    !peer.has_output() && !peer.life.is_gone()
}

#[inline(always)]
fn send_slots(core: &mut Core, peer: &mut Peer, bits: MatchBits, bytes: &[u8]) -> SendProgress {
    let medium = peer.endpoint.medium();
    medium.run(|| Slots {
        core,
        peer,
        message: EagerSend::new(bits, bytes.len()),
        bytes,
    })
}

/// A send in slots.
struct Slots<'a> {
    core: &'a mut Core,
    peer: &'a mut Peer,
    message: EagerSend,
    bytes: &'a [u8],
}

impl MediumOp for Slots<'_> {
    type Outcome = SendProgress;

    #[inline(always)]
    fn run_on<M: Medium>(self) -> SendProgress {
        let Self {
            core,
            peer,
            message,
            bytes,
        } = self;
        let slots = message.slots();
        let Some(to) = M::of(&mut peer.endpoint) else {
            return SendProgress::Later(None);
        };
        let Some(room) = to.claim(slots) else {
            return SendProgress::Later(Some(SendPlan::Slots));
        };
        // Bytes that the call itself has cannot be withdrawn.
        let _ = message.write(&core.loans, room, bytes);
        let woke = to.notify();
        eager::sent_slots(core, peer, slots, message.len, woke);
        SendProgress::All
    }
}

fn send_longer(
    core: &mut Core,
    peer: &mut Peer,
    bits: MatchBits,
    bytes: &[u8],
    at_once: AtOnce,
    decided: Option<SendPlan>,
) -> SendProgress {
    let len = bytes.len();
    if !may_send(peer) {
        return SendProgress::Later(decided);
    }
    let in_heap = core.home.heap_offset_of(bytes.as_ptr().addr(), len);
    let out = Outgoing {
        len: len as u64,
        in_heap: in_heap.is_some(),
        sync: false,
    };
    let decided = decided.filter(|&decided| still_right(core, peer, out.len, decided));
    let plan = match decided {
        Some(decided) => decided,
        None => plan(core, peer, out, |core| core.rewritten.changed(bytes)),
    };
    match plan {
        SendPlan::Slots => send_slots(core, peer, bits, bytes),
        SendPlan::Chunks { .. } => match send_chunks(core, peer, bits, bytes, at_once) {
            // No chunk is free, but perhaps there is room in the ring.
            SendProgress::Later(_) if len <= peer.policy.thresholds.slots_limit => {
                send_slots(core, peer, bits, bytes)
            }
            progress => progress,
        },
        SendPlan::Announced { .. } | SendPlan::Stalled | SendPlan::Piped { .. } => {
            SendProgress::Later(Some(plan))
        }
    }
}

fn send_chunks(
    core: &mut Core,
    peer: &mut Peer,
    bits: MatchBits,
    bytes: &[u8],
    at_once: AtOnce,
) -> SendProgress {
    let total = bytes.len() as u64;
    let later = SendProgress::Later(Some(SendPlan::Chunks { sent: 0 }));
    let cut = eager::cut_of(core, peer, total, 0, bytes);
    let pieces = cut.pieces(total);
    if pieces > 1 {
        if !core.single_threaded {
            return later;
        }
        if at_once == AtOnce::Whole {
            let demand = ChunkDemand {
                total: total as usize,
                step: cut.step as usize,
                chunks: pieces as usize,
                share: peer.policy.chunks.share,
            };
            if !peer.endpoint.has_room_for(&mut core.home, demand) {
                return later;
            }
        }
    }
    let message = EagerSend::new(bits, bytes.len());
    let progress = eager::put_chunks(core, peer, message, 0, bytes);
    match (progress.last, progress.sent) {
        (Chunked::Sent, _) => SendProgress::All,
        (_, 0) => later,
        (_, sent) => SendProgress::Part(sent),
    }
}

/// How a call looks for its message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) at_once: AtOnce,
    /// Polls for it at most, before it is taken in.
    pub(crate) polls: usize,
}

/// Receives at once what is there, or comes while it is looked for, if it is what is `wanted` of this peer.
#[inline(always)]
pub(crate) fn receive(
    core: &mut Core,
    receives: &Receives,
    peer: &mut Peer,
    wanted: Pattern,
    out: &mut [u8],
    look: Look,
) -> ReceiveProgress {
    let medium = peer.endpoint.medium();
    medium.run(|| NextReceive {
        core,
        receives,
        peer,
        wanted,
        out,
        look,
    })
}

/// A receive of the message that comes next.
struct NextReceive<'a> {
    core: &'a mut Core,
    receives: &'a Receives,
    peer: &'a mut Peer,
    wanted: Pattern,
    out: &'a mut [u8],
    look: Look,
}

impl MediumOp for NextReceive<'_> {
    type Outcome = ReceiveProgress;

    #[inline(always)]
    fn run_on<M: Medium>(self) -> ReceiveProgress {
        let Self {
            core,
            receives,
            peer,
            wanted,
            out,
            look: Look { at_once, polls },
        } = self;
        let Some(from) = M::of(&mut peer.endpoint) else {
            return ReceiveProgress::Nothing;
        };
        if !receives.unexpected.is_empty() || peer.life.is_gone() {
            return ReceiveProgress::Nothing;
        }
        // Here, so that nothing is looked at twice once the message is there.
        from.comes_within(polls);
        let Ok(Some(record)) = from.peek() else {
            return ReceiveProgress::Nothing;
        };
        let MatchBits { context, tag } = MatchBits::of_word(record.meta);
        if context != wanted.context || wanted.tag.is_some_and(|wanted| wanted != tag) {
            return ReceiveProgress::Nothing;
        }
        let envelope = Envelope {
            context,
            source: peer.rank,
            tag,
        };
        if !receives.posted.is_empty() && receives.posted.accepts(&envelope) {
            return ReceiveProgress::Nothing;
        }
        if record.kind != Kind::Eager as u8 {
            return receive_longer::<M>(core, peer, record, envelope, out, at_once);
        }
        if record.len > out.len() {
            return ReceiveProgress::Nothing;
        }
        from.read(&record, 0, &mut out[..record.len]);
        pass(core, from, record, None);
        received(core, peer, envelope, Ended::eager(record.len as u64, None))
    }
}

/// The caller's own receive was for the message, and has it.
#[inline(always)]
fn received(core: &mut Core, peer: &mut Peer, envelope: Envelope, ended: Ended) -> ReceiveProgress {
    peer.idle_polls = 0;
    core.counters.count_expected();
    let message = Message {
        envelope,
        total: ended.bytes,
    };
    deliver(core, peer, Receiver::Call, message, Ok(()), ended);
    ReceiveProgress::All(message.status())
}

/// Out of line: the registers are the short message's.
#[inline(never)]
fn receive_longer<M: Medium>(
    core: &mut Core,
    peer: &mut Peer,
    record: Record,
    envelope: Envelope,
    out: &mut [u8],
    at_once: AtOnce,
) -> ReceiveProgress {
    let mut raw = [0; BODY];
    if record.len != BODY || peer.inbound.incoming.is_some() {
        return ReceiveProgress::Nothing;
    }
    let Some(from) = M::of(&mut peer.endpoint) else {
        return ReceiveProgress::Nothing;
    };
    from.read(&record, 0, &mut raw);
    let begun = EnvelopeRecord {
        record,
        envelope,
        body: &raw,
    };
    match Kind::try_from(record.kind) {
        Ok(Kind::ChunkFirst) => receive_chunks::<M>(core, peer, begun, out, at_once),
        Ok(Kind::Rts) => receive_mapped::<M>(core, peer, begun, out),
        _ => ReceiveProgress::Nothing,
    }
}

/// A message of which a record brings no bytes.
struct EnvelopeRecord<'r> {
    record: Record,
    envelope: Envelope,
    body: &'r [u8; BODY],
}

/// Polls for the next chunk of a message before the receive becomes a request: tens of microseconds. A sender that is
/// at it needs no more than a few for a chunk. Chosen by magnitude.
const CHUNK_POLLS: usize = 2000;
/// The same where each poll is a call of the kernel, which takes as long as ten polls and more.
const CHUNK_CALLS: usize = 200;

#[inline(always)]
fn receive_chunks<M: Medium>(
    core: &mut Core,
    peer: &mut Peer,
    begun: EnvelopeRecord<'_>,
    out: &mut [u8],
    at_once: AtOnce,
) -> ReceiveProgress {
    let EnvelopeRecord {
        record, envelope, ..
    } = begun;
    let Some(from) = M::of(&mut peer.endpoint) else {
        return ReceiveProgress::Nothing;
    };
    let Some(first) = ChunkBody::decode(Kind::ChunkFirst, begun.body)
        .ok()
        .and_then(|body| shown(from.part(), body).ok())
    else {
        return ReceiveProgress::Nothing;
    };
    // Anything odd is left to the long way, which reports it. Until the message has to wait it has no request.
    let Ok(mut incoming) = Incoming::begin(&core.knobs, envelope, &first) else {
        return ReceiveProgress::Nothing;
    };
    if incoming.total > out.len() as u64 || incoming.sync.is_some() {
        return ReceiveProgress::Nothing;
    }
    if u64::from(first.piece) < incoming.total
        && (at_once == AtOnce::Whole || !core.single_threaded)
    {
        return ReceiveProgress::Nothing;
    }
    incoming.time(&mut peer.policy, &first);
    let polls = match from.part() {
        None => CHUNK_POLLS,
        Some(_) => CHUNK_CALLS,
    };
    let kernel = core.chunks.kernel_out(first.total as usize);
    let mut next = ChunkRecord {
        record,
        body: first,
    };
    loop {
        let ChunkRecord { record, body } = next;
        let read = |offset: usize, out: &mut [u8]| from.read_chunk(body.chunk, offset, out, kernel);
        let to = Destination::Call(out);
        let loans = &mut core.loans;
        let Ok(taken) = eager::take_chunk(loans, read, &mut incoming, &body, to) else {
            break;
        };
        pass(core, from, record, Some(body.chunk));
        if taken.last {
            peer.came_unasked(&incoming);
            return received(
                core,
                peer,
                envelope,
                Ended::eager(incoming.total, incoming.sync),
            );
        }
        let Some(found) = next_chunk(from, polls) else {
            break;
        };
        next = found;
    }
    if incoming.received == 0 {
        return ReceiveProgress::Nothing;
    }
    ReceiveProgress::Part(incoming)
}

/// A record that names a chunk.
struct ChunkRecord {
    record: Record,
    body: ChunkBody,
}

/// Polls for the next chunk of a message. None: it does not come soon, or something else does.
fn next_chunk<M: Medium>(from: &mut M, polls: usize) -> Option<ChunkRecord> {
    for _ in 0..polls {
        if let Some(record) = from.peek().ok()? {
            return chunk_of(from, record).map(|body| ChunkRecord { record, body });
        }
        std::hint::spin_loop();
    }
    None
}

/// What a record says of the next chunk of a message, if that is what it is.
fn chunk_of<M: Medium>(from: &M, record: Record) -> Option<ChunkBody> {
    let kind = Kind::try_from(record.kind).ok()?;
    // Of the first chunk, too, a part may be left.
    let goes_on = kind == Kind::ChunkNext || from.part().is_some_and(|part| part.offset > 0);
    if !goes_on || record.len != BODY {
        return None;
    }
    let mut raw = [0; BODY];
    from.read(&record, 0, &mut raw);
    shown(from.part(), ChunkBody::decode(kind, &raw).ok()?).ok()
}

/// A message that lies in the peer's heap, short enough that the receiver alone copies it.
fn receive_mapped<M: Medium>(
    core: &mut Core,
    peer: &mut Peer,
    begun: EnvelopeRecord<'_>,
    out: &mut [u8],
) -> ReceiveProgress {
    let Ok(Rts {
        len,
        request,
        layout: SourceLayout::One {
            address,
            heap: Some(heap),
        },
        ..
    }) = Rts::decode(begun.body)
    else {
        return ReceiveProgress::Nothing;
    };
    let Some(out) = out.get_mut(..len as usize) else {
        return ReceiveProgress::Nothing;
    };
    let range = RemoteRange {
        address,
        heap: Some(HeapOffset(heap)),
        region: None,
        len,
    };
    // A layer that fails is given up by the long way, which matches the message anew.
    if !mapped::is_copied_alone(peer, len)
        || !mapped::copy(&mut core.counters, peer, request, range, out)
    {
        return ReceiveProgress::Nothing;
    }
    let Some(from) = M::of(&mut peer.endpoint) else {
        return ReceiveProgress::Nothing;
    };
    pass(core, from, begun.record, None);
    received(core, peer, begun.envelope, mapped::ended(request, len))
}
