// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each message that was received ends: it is counted, credited and acknowledged, and its receive is completed.
//! Receives that fail because their message does not come end where that is found out.

use super::control::{give_credit, send_fin};
use crate::error::{Error, Result};
use crate::matching::Envelope;
use crate::peer::{Peer, charge};
use crate::request::{RequestId, Status};
use crate::state::Core;
use crate::state::lightweight::Phase;
use crate::state::statistics::CameBy;
use crate::state::transfer::Transfer;
use onecopy_btl::LayerId;

/// Who receives a message.
#[derive(Debug)]
pub(crate) enum Receiver<'r> {
    /// The call that runs. It has all of the message, and reports to its caller.
    Call,
    /// A lightweight receive, by its phase. It has all of the message.
    Lightweight(&'r mut Phase),
    /// A request.
    Request(RequestId),
    /// None any more: the receive is over.
    Gone,
}

/// A message that was received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) envelope: Envelope,
    /// Its bytes. The receive may have room for fewer.
    pub(crate) total: u64,
}

impl Message {
    /// The message that a transfer receives.
    pub(crate) fn of_transfer(transfer: &Transfer) -> Self {
        Self {
            envelope: transfer.envelope,
            total: transfer.announcement.len,
        }
    }

    /// What its receive says of it.
    #[inline(always)]
    pub(crate) fn status(self) -> Status {
        Status {
            source: self.envelope.source as usize,
            tag: self.envelope.tag,
            bytes: self.total as usize,
        }
    }
}

/// What a message leaves to be done when all of its bytes have come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ended {
    /// Bytes of it that came.
    pub(crate) bytes: u64,
    /// Credit that goes back to its sender.
    pub(crate) credit: u64,
    /// The sender's request that waits to hear of it.
    pub(crate) fin: Option<u64>,
    /// By what its last bytes came.
    pub(crate) by: CameBy,
}

impl Ended {
    /// Of an eager message of `bytes` bytes: its credit goes back, and the sender's request `fin` hears of it.
    #[inline(always)]
    pub(crate) fn eager(bytes: u64, fin: Option<u64>) -> Self {
        Self {
            bytes,
            credit: charge(bytes),
            fin,
            by: CameBy::Carrier,
        }
    }
}

/// Ends a message, and completes its receive. `written`: whether the bytes that fit are in the buffer.
#[inline(always)]
pub(crate) fn deliver(
    core: &mut Core,
    peer: &mut Peer,
    receiver: Receiver<'_>,
    message: Message,
    written: Result<()>,
    ended: Ended,
) {
    let (counters, rank, bytes) = (&mut core.counters, peer.rank, ended.bytes);
    match ended.by {
        CameBy::Carrier => counters.count_from(rank, peer.endpoint.carrier(), bytes),
        CameBy::Layer(layer) => counters.count_from(rank, layer, bytes),
        CameBy::Device => counters.count_device(rank, bytes),
    }
    give_credit(core, peer, ended.credit);
    // FIN goes first: the sender may be blocked on it.
    if let Some(request) = ended.fin {
        send_fin(core, peer, request);
    }
    complete(core, receiver, message, written);
}

/// As [`deliver`], of a message of this rank to itself, which has no credit.
pub(crate) fn deliver_own(
    core: &mut Core,
    receive: RequestId,
    message: Message,
    written: Result<()>,
) {
    core.counters
        .count_from(core.me, LayerId::OWN, message.total);
    complete(core, Receiver::Request(receive), message, written);
}

/// Completes the receive of a message, of which the bytes that fit were `written`.
#[inline(always)]
fn complete(core: &mut Core, receiver: Receiver<'_>, message: Message, written: Result<()>) {
    match receiver {
        Receiver::Lightweight(phase) => {
            *phase = Phase::Over(message.status());
            core.requests.count_completed();
        }
        Receiver::Request(id) => complete_request(core, id, message, written),
        Receiver::Call | Receiver::Gone => {}
    }
}

/// Out of line: short messages of calls and of lightweight receives are the hot ones.
#[inline(never)]
fn complete_request(core: &mut Core, id: RequestId, message: Message, written: Result<()>) {
    let Some(room) = core.requests.get(id).map(|request| request.len) else {
        return;
    };
    let result = match written {
        Ok(()) if message.total > room => {
            core.counters.truncations += 1;
            Err(Error::Truncated {
                rank: message.envelope.source as usize,
                tag: message.envelope.tag,
                message: message.total,
                buffer: room,
            })
        }
        written => written.map(|()| message.status()),
    };
    core.requests.complete(id, result);
}
