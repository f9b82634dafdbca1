// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a message that was received ends: counted, credited, acknowledged, and its receive completed. What was broken
//! off ends in `broken.rs`, and a message of a rank to itself, which has no credit, in `own.rs`.

use super::{charge, give_credit, send_fin};
use crate::error::Result;
use crate::matching::Envelope;
use crate::peer::Peer;
use crate::request::RequestId;
use crate::state::Core;
use onecopy_btl::LayerId;

/// What a message leaves to be done when all of its bytes have come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ended {
    /// Bytes of it that came.
    pub(crate) bytes: u64,
    /// Credit that goes back to its sender.
    pub(crate) credit: u64,
    /// The sender's request that waits to hear of it.
    pub(crate) fin: Option<u64>,
    /// The layer by which its last bytes came; none: what carries records.
    pub(crate) layer: Option<LayerId>,
}

impl Ended {
    /// Of an eager message of `bytes` bytes: its credit goes back, and the sender's request `fin` hears of it.
    #[inline(always)]
    pub(crate) fn eager(bytes: u64, fin: Option<u64>) -> Self {
        Self {
            bytes,
            credit: charge(bytes),
            fin,
            layer: None,
        }
    }
}

/// Ends a message whose receive is complete.
#[inline(always)]
pub(crate) fn end(core: &mut Core, peer: &mut Peer, ended: Ended) {
    let layer = ended.layer.unwrap_or_else(|| peer.endpoint.carrier());
    core.counters.count_from(peer.rank, layer, ended.bytes);
    give_credit(core, peer, ended.credit);
    if let Some(request) = ended.fin {
        send_fin(core, peer, request);
    }
}

/// Completes the receive of a message of `total` bytes, and ends the message. `written`: whether the bytes that fit are
/// in the buffer.
pub(crate) fn deliver(
    core: &mut Core,
    peer: &mut Peer,
    receive: RequestId,
    (envelope, total): (Envelope, u64),
    written: Result<()>,
    ended: Ended,
) {
    // Its sender waits for a word of it.
    end(core, peer, ended);
    core.complete_receive(receive, envelope, total, written);
}
