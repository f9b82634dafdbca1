// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocols: how a message's bytes get from one rank to the other.
//!
//! | protocol | file | payload travels |
//! | --- | --- | --- |
//! | any of them, when nothing has to wait | [`direct`] | the same way, without a request |
//! | inline, eager in slots, eager in chunks | [`eager`] | in the ring, or in chunks that the ring names |
//! | rendezvous by map, get and put | [`rendezvous`] | straight between the buffers |
//! | cooperative | [`coop`] | straight between the buffers, copied by both sides |
//! | pipeline | [`pipeline`] | in recycled chunks, on the receiver's request |
//! | within a rank | [`own`] | by one copy |
//!
//! Sending and receiving side of a protocol are in the same file. Sending works on the core and one peer,
//! receiving on the receives, too.

pub(crate) mod broken;
pub(crate) mod coop;
pub(crate) mod deliver;
pub(crate) mod destination;
pub(crate) mod direct;
pub(crate) mod eager;
pub(crate) mod layers;
pub(crate) mod own;
pub(crate) mod pipeline;
pub(crate) mod plan;
pub(crate) mod rendezvous;

use crate::endpoint::{Claim, Endpoint, Part, Record, RecordRoom};
use crate::matching::Envelope;
use crate::peer::{Gone, Peer, charge};
use crate::records::{self, BODY, ChunkBody, Cts, CtsAction, Fin, Kind, Rts};
use crate::request::{RequestId, RequestState, Requests, SendPlan, Status};
use crate::state::transfer::Transfers;
use crate::state::{Core, Message, Receives};
use onecopy_obs::tracepoints;
use onecopy_shm::fault;

/// Gives credit back to the sender: a message was matched.
#[inline]
pub(crate) fn give_credit(core: &Core, peer: &mut Peer, bytes: u64) {
    let (inbound, endpoint) = (&mut peer.inbound, &mut peer.endpoint);
    inbound.give_credit(endpoint, &core.knobs, bytes);
}

/// Which records are taken from a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    /// All, but for what the next receive may be for: see [`drain`]. Messages that no receive waits for are kept.
    All,
    /// All that is there: the peer has ended, or its last record decides what follows.
    LastWords,
    /// Those before the first message that no receive waits for.
    Expected,
}

/// Takes records from the peer's ring, at most a quota of them. An error says what no correct peer would have written.
///
/// Once this call has completed something and no receive is posted, the next message that brings its bytes stays in the
/// ring. The caller may be about to post the receive for it. A caller that goes on waiting calls again.
pub(crate) fn drain(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    which: Drain,
) -> Result<(), String> {
    let mut room = false;
    let completed = core.requests.completed;
    for _ in 0..core.knobs.progress_quota {
        let Some(record) = peer.endpoint.peek().map_err(|bad| bad.to_string())? else {
            break;
        };
        let kind = Kind::try_from(record.kind).map_err(|bad| bad.to_string())?;
        // To keep its bytes for a receive that is about to come would be one copy more.
        let brings_bytes = matches!(kind, Kind::Eager | Kind::EagerSync | Kind::ChunkFirst);
        if which == Drain::All
            && brings_bytes
            && receives.posted.is_empty()
            && core.requests.completed != completed
            && peer.inbound.incoming.is_none()
        {
            break;
        }
        let (context, tag) = records::from_meta(record.meta);
        let envelope = Envelope {
            context,
            source: peer.rank,
            tag,
        };
        if which == Drain::Expected && kind.begins() && !receives.posted.accepts(&envelope) {
            break;
        }
        let chunk = match kind {
            Kind::Eager | Kind::EagerSync => {
                eager::whole(core, receives, peer, &record, envelope, kind)?;
                None
            }
            _ => {
                let body = body(&peer.endpoint, &record, kind)?;
                control(core, receives, peer, envelope, kind, &body)?;
                records::chunk_of(kind, &body)
            }
        };
        room |= peer.endpoint.pass(record, chunk);
    }
    if room {
        notify_room(core, peer);
    }
    Ok(())
}

fn body(from: &Endpoint, record: &Record, kind: Kind) -> Result<[u8; BODY], String> {
    if record.len != BODY {
        return Err(records::BadBody::Length {
            kind,
            len: record.len,
        }
        .to_string());
    }
    let mut body = [0; BODY];
    from.read(record, 0, &mut body);
    Ok(body)
}

fn control(
    core: &mut Core,
    receives: &mut Receives,
    peer: &mut Peer,
    envelope: Envelope,
    kind: Kind,
    body: &[u8; BODY],
) -> Result<(), String> {
    let text = |bad: records::BadBody| bad.to_string();
    match kind {
        Kind::ChunkFirst | Kind::ChunkNext | Kind::Data => {
            let whole = ChunkBody::decode(kind, body).map_err(text)?;
            let body = shown(peer.endpoint.part(), whole)?;
            match kind {
                Kind::Data => pipeline::arrive(core, &mut receives.transfers, peer, &body),
                Kind::ChunkFirst if body.offset == whole.offset => {
                    eager::first_chunk(core, receives, peer, envelope, &body)
                }
                _ => eager::next_chunk(core, receives, peer, &body),
            }
        }
        Kind::Rts => {
            let rts = Rts::decode(body).map_err(text)?;
            rendezvous::announced(core, receives, peer, envelope, rts)
        }
        Kind::Cts => clear_to_send(core, peer, Cts::decode(body).map_err(text)?),
        Kind::Fin => finished(core, peer, Fin::decode(body).map_err(text)?),
        Kind::BreakOff => {
            let break_off = records::BreakOff::decode(body).map_err(text)?;
            broken::broken_off(core, receives, peer, break_off)
        }
        Kind::Eager | Kind::EagerSync => Ok(()),
    }
}

/// What a record says of as much of its chunk as has come.
#[inline]
fn shown(part: Option<Part>, whole: ChunkBody) -> Result<ChunkBody, String> {
    let Some(part) = part else {
        return Ok(whole);
    };
    if part.whole != whole.piece {
        return Err(format!(
            "a chunk of {} bytes that has {}",
            whole.piece, part.whole
        ));
    }
    Ok(ChunkBody {
        offset: whole.offset + part.offset,
        piece: part.len,
        ..whole
    })
}

/// The announced send that the peer talks of; none: it was given up here. `last`: the peer does not name it again.
fn awaiting(
    requests: &mut Requests,
    rank: u32,
    request: u64,
    last: bool,
) -> Result<Option<RequestId>, String> {
    let id = RequestId(request);
    let is_waiting = requests.get(id).is_some_and(|found| {
        found.peer == rank && matches!(found.state, RequestState::Awaiting(_))
    });
    if is_waiting {
        Ok(Some(id))
    } else if requests.is_abandoned(id, rank, last) {
        Ok(None)
    } else {
        Err(format!(
            "it names request {request:#x}, which does not wait for it"
        ))
    }
}

fn clear_to_send(core: &mut Core, peer: &mut Peer, cts: Cts) -> Result<(), String> {
    let Some(id) = awaiting(&mut core.requests, peer.rank, cts.request, false)? else {
        broken::break_off_announced(core, peer, cts.transfer);
        return Ok(());
    };
    match cts.wanted {
        CtsAction::Chunks { offset, len } => {
            pipeline::wanted(core, peer, id, cts.transfer, offset, len)
        }
        CtsAction::Join => {
            if let Some(announced) = peer.outbound.announced.iter_mut().find(|a| a.request == id) {
                announced.asked_by = Some(cts.transfer);
            }
            Ok(())
        }
    }
}

fn finished(core: &mut Core, peer: &mut Peer, fin: Fin) -> Result<(), String> {
    let waiting = awaiting(&mut core.requests, peer.rank, fin.request, true)?;
    let id = RequestId(fin.request);
    if waiting.is_some() && is_announced(core, id) {
        let (by, me) = (peer.rank as usize, core.me as usize);
        tracepoints::rendezvous_finished(by, me, fin.request);
    }
    peer.outbound.answered(id);
    if waiting.is_some() {
        complete_send(core, id);
    }
    Ok(())
}

/// Whether a send is an announced one, not a synchronous one that went out whole.
fn is_announced(core: &Core, id: RequestId) -> bool {
    let request = core.requests.get(id);
    request.is_some_and(|request| {
        matches!(
            request.state,
            RequestState::Awaiting(SendPlan::Announced { .. } | SendPlan::Piped { .. })
        )
    })
}

/// A send is complete.
#[inline]
pub(crate) fn complete_send(core: &mut Core, id: RequestId) {
    if let Some(request) = core.requests.get(id) {
        let status = Status {
            source: core.me as usize,
            tag: request.tag,
            bytes: request.len as usize,
        };
        core.requests.complete(id, Ok(status));
    }
}

/// Queues a control record for the peer and writes it if there is room.
pub(crate) fn reply(core: &mut Core, peer: &mut Peer, kind: Kind, body: [u8; BODY]) {
    if peer.life.is_gone() {
        return;
    }
    if let Err(why) = peer.outbound.reply(&core.knobs, kind, body) {
        core.agenda.fail(peer.rank, why);
        return;
    }
    flush_replies(core, peer);
    if peer.has_output() {
        core.agenda.make_busy(peer.rank);
    }
}

/// Tells the sender that its announced or synchronous message was received.
pub(crate) fn send_fin(core: &mut Core, peer: &mut Peer, request: u64) {
    reply(core, peer, Kind::Fin, Fin { request }.encode());
}

/// Claims room for a record to the peer, whose endpoint is opened now if this is the first one.
#[inline]
pub(crate) fn claim<'p>(core: &mut Core, peer: &'p mut Peer, slots: usize) -> Option<Claim<'p>> {
    if !peer.endpoint.is_open() && !open(core, peer) {
        return None;
    }
    let claim = peer.endpoint.claim(slots);
    if claim.is_none() {
        core.counters.ring_full += 1;
    }
    claim
}

#[cold]
fn open(core: &mut Core, peer: &mut Peer) -> bool {
    match peer.endpoint.open() {
        Ok(()) => true,
        Err(error) => {
            // Nothing can go to this peer: everything queued for it fails with the reason.
            if !peer.outbound.replies.is_empty() || !peer.outbound.pipes.is_empty() {
                // It waits for these: it is told that nothing will come.
                let gone = Gone::Unreachable(error.to_string());
                core.agenda.fail(peer.rank, gone);
            }
            for id in peer.outbound.outbox.drain(..) {
                core.requests.complete(id, Err(error.clone()));
            }
            peer.outbound.replies.clear();
            peer.outbound.pipes.clear();
            false
        }
    }
}

fn flush_replies(core: &mut Core, peer: &mut Peer) -> bool {
    let mut moved = false;
    while let Some(&(kind, body)) = peer.outbound.replies.front() {
        if !put_body(core, peer, kind, 0, &body) {
            break;
        }
        peer.outbound.replies.pop_front();
        moved = true;
    }
    moved
}

/// A control record was published.
#[inline(always)]
fn sent(kind: Kind) {
    match kind {
        Kind::Rts => fault::point("rts.sent"),
        Kind::Cts => fault::point("cts.sent"),
        Kind::Data => fault::point("data.sent"),
        Kind::Fin => fault::point("fin.sent"),
        _ => {}
    }
}

/// Wakes the peer, if it sleeps, for what was published.
#[inline(always)]
fn notify(core: &mut Core, peer: &mut Peer) {
    if peer.endpoint.notify() {
        core.counters.doorbells_rung += 1;
    }
}

/// Wakes the peer, if it waits for room in its ring or pool: there is some now.
#[inline(always)]
fn notify_room(core: &mut Core, peer: &mut Peer) {
    if peer.endpoint.notify_room() {
        core.counters.doorbells_rung += 1;
    }
}

/// Publishes one control record. `false`: the ring is full.
pub(crate) fn put_body(
    core: &mut Core,
    peer: &mut Peer,
    kind: Kind,
    meta: u64,
    body: &[u8; BODY],
) -> bool {
    let Some(mut claim) = claim(core, peer, 1) else {
        return false;
    };
    claim.write(0, body);
    claim.publish(kind as u8, BODY, meta);
    sent(kind);
    notify(core, peer);
    true
}

/// Writes to the peer what can be written: replies first, then sends in their order, then chunks of pipelines.
pub(crate) fn flush(core: &mut Core, peer: &mut Peer) -> bool {
    peer.endpoint.push_out();
    let mut moved = flush_replies(core, peer);
    moved |= flush_outbox(core, peer);
    if !peer.outbound.pipes.is_empty() {
        moved |= pipeline::send(core, peer);
    }
    moved
}

/// Writes sends that fit, in their order.
fn flush_outbox(core: &mut Core, peer: &mut Peer) -> bool {
    let mut moved = false;
    // The end of a message that was broken off comes before the next one begins.
    while peer.outbound.replies.is_empty() {
        peer.outbound.resume(&core.requests);
        let Some(&id) = peer.outbound.outbox.front() else {
            break;
        };
        let Some(request) = core.requests.get(id) else {
            peer.outbound.pop_outbox();
            continue;
        };
        let RequestState::Queued(plan) = request.state else {
            peer.outbound.pop_outbox();
            continue;
        };
        let (sync, context, len) = (request.sync, request.context, request.len);
        let plan = plan::plan_request(core, peer, (id, len), plan);
        let begins = !matches!(plan, SendPlan::Chunks { sent: 1.. });
        let asks = sync || matches!(plan, SendPlan::Announced { .. });
        if begins && peer.outbound.must_hold(context, asks) {
            // The receiver need not remember more; its next answer makes room.
            peer.outbound.hold_back(context);
            continue;
        }
        let gone_out = match plan {
            SendPlan::Slots => eager::send_slots(core, peer, id),
            SendPlan::Chunks { sent } => eager::send_chunks(core, peer, id, sent, &mut moved),
            SendPlan::Announced { coop_id } => rendezvous::announce(core, peer, id, coop_id),
            // Nothing that is queued was announced before.
            SendPlan::Piped { .. } => true,
        };
        if !gone_out {
            break;
        }
        moved = true;
        peer.outbound.went_out(context, asks);
    }
    moved
}

/// Gives a whole or announced message to a receive.
pub(crate) fn accept(
    core: &mut Core,
    transfers: &mut Transfers,
    peer: &mut Peer,
    envelope: Envelope,
    message: Message,
    id: RequestId,
) {
    if let Some(request) = core.requests.get_mut(id) {
        request.begin_receiving(&envelope);
    }
    match message {
        Message::Whole { bytes, sync } => {
            eager::accept_whole(core, peer, envelope, (bytes, sync), id);
        }
        Message::Announced(announcement) => {
            let list = announcement.list_charge();
            peer.inbound.matched(list);
            give_credit(core, peer, list);
            rendezvous::start(core, transfers, peer, envelope, announcement, id)
        }
        Message::Partial { .. } | Message::Own(_) => debug_assert!(false, "handled by the callers"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Drain, drain};
    use crate::engine::Engine;
    use crate::runtime::local_with;
    use onecopy_obs::Knobs;
    use std::sync::Barrier;

    /// What completes something does not end them, as it ends a look.
    #[test]
    fn last_words_are_taken_whatever_they_complete() {
        for (which, all) in [(Drain::All, false), (Drain::LastWords, true)] {
            let outside = Barrier::new(2);
            local_with(2, &Knobs::default(), |rt| {
                let world = rt.world();
                if rt.rank() == 0 {
                    let first = world.issend(vec![1u8; 8], 1, 0).expect("issend");
                    world.recv(&mut [0u8; 8], 1, 1).expect("received");
                    outside.wait();
                    outside.wait();
                    {
                        let mut worker = rt.handle().gate.enter();
                        let Engine {
                            core,
                            receives,
                            peers,
                            ..
                        } = &mut worker.engine;
                        let peer = peers[1].as_mut().expect("connected");
                        drain(core, receives, peer, which).expect("no rogue");
                        assert_eq!(peer.endpoint.is_empty(), all, "{which:?}");
                    }
                    first.wait().expect("sent");
                    world.recv(&mut [0u8; 5000], 1, 2).expect("received");
                } else {
                    world.send(&[2u8; 8], 0, 1).expect("send");
                    outside.wait();
                    // Its sender hears of the match, and more comes behind.
                    world.recv(&mut [0u8; 8], 0, 0).expect("received");
                    world.send(&[3u8; 5000], 0, 2).expect("send");
                    outside.wait();
                }
            });
        }
    }

    /// Whatever brings its bytes: in slots, in one chunk and in several, and with a request of its sender's.
    #[test]
    fn what_comes_behind_the_last_receive_waits_for_its_own() {
        // On every machine: some announce such a message, others do not.
        let knobs = Knobs::from_iter([("ONECOPY_EAGER_MAX", "64K")])
            .expect("a knob")
            .0;
        for (len, sync) in [(8, false), (8, true), (5000, false), (40_000, false)] {
            let outside = Barrier::new(2);
            local_with(2, &knobs, |rt| {
                let world = rt.world();
                if rt.rank() == 0 {
                    let send = |byte: u8| world.isend(vec![byte; len], 1, 0).expect("isend");
                    let first = send(1);
                    let second = match sync {
                        true => world.issend(vec![2u8; len], 1, 0).expect("issend"),
                        false => send(2),
                    };
                    outside.wait();
                    first.wait().expect("sent");
                    second.wait().expect("sent");
                } else {
                    outside.wait();
                    for byte in [1, 2] {
                        let receive = world.irecv(vec![0u8; len], 0, 0).expect("irecv");
                        let (got, _) = receive.wait().expect("received");
                        assert!(got.iter().all(|&found| found == byte), "{len} bytes");
                    }
                    let counters = rt.counters();
                    assert_eq!(counters.recv_unexpected, 0, "{len} bytes, {sync}");
                }
            });
        }
    }
}
