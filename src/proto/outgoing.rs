// SPDX-License-Identifier: MIT OR Apache-2.0
//! What waits to be written to a peer: control records, sends in their order, and the chunks of pipelines.

use super::control::flush_replies;
use super::{eager, pipeline, plan, rendezvous};
use crate::peer::Peer;
use crate::request::{RequestState, SendPlan};
use crate::state::Core;

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
        let plan = plan::plan_request(core, peer, id, len, plan);
        let begins = !matches!(plan, SendPlan::Chunks { sent: 1.. });
        let asks = sync || matches!(plan, SendPlan::Announced { .. } | SendPlan::Stalled);
        if begins && peer.outbound.must_hold(context, asks) {
            // The receiver need not remember more; its next answer makes room.
            peer.outbound.hold_back(context);
            continue;
        }
        let gone_out = match plan {
            SendPlan::Slots => eager::send_slots(core, peer, id),
            SendPlan::Chunks { sent } => eager::send_chunks(core, peer, id, sent, &mut moved),
            SendPlan::Announced { coop_id } => rendezvous::announce(core, peer, id, coop_id),
            SendPlan::Stalled => rendezvous::announce(core, peer, id, 0),
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
