// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control records to a peer, and what goes with them: the peer is woken, gets credit back, or a send is complete.
//! Every protocol uses these, so they know none.

use crate::endpoint::{ChunkName, Claim, Medium, MediumOp, Record, RecordRoom};
use crate::peer::{Gone, Peer};
use crate::records::{BODY, Fin, Kind};
use crate::request::{RequestId, Status};
use crate::state::Core;
use onecopy_shm::fault;

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
pub(super) fn open(core: &mut Core, peer: &mut Peer) -> bool {
    match peer.endpoint.open() {
        Ok(()) => true,
        Err(error) => {
            // Nothing can go to this peer: everything queued for it fails with the reason.
            if !peer.outbound.replies.is_empty() || !peer.outbound.pipes.is_empty() {
                // It waits for these: it is notified that nothing will come.
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

/// Publishes one control record. `false`: the ring is full.
pub(crate) fn put_body(
    core: &mut Core,
    peer: &mut Peer,
    kind: Kind,
    meta: u64,
    body: &[u8; BODY],
) -> bool {
    if !peer.endpoint.is_open() && !open(core, peer) {
        return false;
    }
    let medium = peer.endpoint.medium();
    medium.run(|| ControlRecord {
        core,
        peer,
        kind,
        meta,
        body,
    })
}

/// A record that is put into the ring or the stream of a peer.
struct ControlRecord<'a> {
    core: &'a mut Core,
    peer: &'a mut Peer,
    kind: Kind,
    meta: u64,
    body: &'a [u8; BODY],
}

impl MediumOp for ControlRecord<'_> {
    type Outcome = bool;

    #[inline(always)]
    fn run_on<M: Medium>(self) -> bool {
        let Some(to) = M::of(&mut self.peer.endpoint) else {
            return false;
        };
        let Some(mut room) = to.claim(1) else {
            self.core.counters.ring_full += 1;
            return false;
        };
        room.write(0, self.body);
        room.publish(self.kind as u8, BODY, self.meta);
        sent(self.kind);
        if to.notify() {
            self.core.counters.doorbells_rung += 1;
        }
        true
    }
}

/// A control record was published.
#[inline(always)]
pub(super) fn sent(kind: Kind) {
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
pub(super) fn notify(core: &mut Core, peer: &mut Peer) {
    if peer.endpoint.notify() {
        core.counters.doorbells_rung += 1;
    }
}

/// Wakes the peer, if it waits for room in its ring or pool: there is some now.
#[inline(always)]
pub(super) fn notify_room(core: &mut Core, peer: &mut Peer) {
    if peer.endpoint.notify_room() {
        core.counters.doorbells_rung += 1;
    }
}

/// Passes a record, and the chunk that it names if there is one. Wakes the peer, if it waits for the room.
#[inline(always)]
pub(super) fn pass<M: Medium>(
    core: &mut Core,
    from: &mut M,
    record: Record,
    chunk: Option<ChunkName>,
) {
    if from.pass(record, chunk) && from.notify_room() {
        core.counters.doorbells_rung += 1;
    }
}

/// Queues a control record for the peer and writes it if there is room.
pub(crate) fn reply(core: &mut Core, peer: &mut Peer, kind: Kind, body: [u8; BODY]) {
    if peer.life.is_gone() {
        return;
    }
    // An endpoint that is not open yet may fail to be opened: what is queued then is failed, too.
    let at_once = peer.outbound.replies.is_empty() && peer.endpoint.is_open();
    if !at_once || !put_body(core, peer, kind, 0, &body) {
        if let Err(why) = peer.outbound.reply(&core.knobs, kind, body) {
            core.agenda.fail(peer.rank, why);
            return;
        }
        if !at_once {
            flush_replies(core, peer);
        }
    }
    // A stream may have taken only a part.
    if peer.has_output() {
        core.agenda.make_busy(peer.rank);
    }
}

/// Tells the sender that its announced or synchronous message was received.
pub(crate) fn send_fin(core: &mut Core, peer: &mut Peer, request: u64) {
    reply(core, peer, Kind::Fin, Fin { request }.encode());
}

/// Writes control records that wait, in their order.
pub(super) fn flush_replies(core: &mut Core, peer: &mut Peer) -> bool {
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

/// Gives credit back to the sender: a message was matched.
#[inline]
pub(crate) fn give_credit(core: &Core, peer: &mut Peer, bytes: u64) {
    let (inbound, endpoint) = (&mut peer.inbound, &mut peer.endpoint);
    inbound.give_credit(endpoint, &core.knobs, bytes);
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
