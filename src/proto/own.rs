// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a rank to itself: one copy from buffer to buffer, or through the unexpected store when the receive comes
//! later.

use super::deliver::deliver_own;
use super::{Message, complete_send, eager};
use crate::error::Error;
use crate::matching::Envelope;
use crate::request::{LoanRange, RequestId, RequestState, SendPlan};
use crate::state::{Core, Receives};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::loan::LoanTable;

/// Longer messages wait for their receive where they are, so that they are copied once. Shorter ones are
/// complete at once, as eager ones to other ranks are. Chosen by magnitude: two copies of so much within a cache take
/// some tens of microseconds. The credit of eager messages is of this order, too.
const BUFFERED_MOST: u64 = 256 << 10;

/// Starts a send to this rank.
pub(crate) fn send(core: &mut Core, receives: &mut Receives, id: RequestId) {
    let Some(request) = core.requests.get_mut(id) else {
        return;
    };
    request.state = RequestState::Awaiting(SendPlan::Slots);
    let envelope = Envelope {
        context: request.context,
        source: core.me,
        tag: request.tag,
    };
    let (len, sync) = (request.len, request.sync);
    if let Some(receive) = receives.match_request(core, &envelope) {
        move_bytes(core, envelope, id, receive);
        return;
    }
    let held = core.counters.unexpected_bytes_now;
    if sync
        || len > BUFFERED_MOST.min(core.knobs.eager_credit as u64)
        || held + len > 4 * core.knobs.eager_credit as u64
    {
        receives.keep_unexpected(core, envelope, Message::Own(id));
    } else {
        buffer(core, receives, envelope, id, len);
    }
}

/// Keeps a copy of a send of `len` bytes until its receive comes, and completes it.
fn buffer(core: &mut Core, receives: &mut Receives, envelope: Envelope, id: RequestId, len: u64) {
    let mut bytes = core.buffers.place_to_hold(len as usize);
    let Some(request) = core.requests.get(id) else {
        return;
    };
    let read = request.buf.read(&core.loans, 0, len as usize, |_, part| {
        if let Some(room) = bytes.extend(part.len()) {
            copy_slices(Kernel::Memcpy, room, part);
        }
    });
    if read.is_err() {
        let withdrawn = Err(Error::withdrawn(core.me));
        core.requests.complete(id, withdrawn);
        return;
    }
    core.counters.hold_unexpected(len);
    core.counters.bytes_sent += len;
    receives.keep_unexpected(core, envelope, Message::Whole { bytes, sync: None });
    complete_send(core, id);
}

/// Gives a message of this rank to its receive.
pub(crate) fn accept(core: &mut Core, envelope: Envelope, message: Message, receive: RequestId) {
    if let Some(request) = core.requests.get_mut(receive) {
        request.begin_receiving(&envelope);
    }
    match message {
        Message::Whole { bytes, .. } => {
            let (len, written) = eager::hand_over(core, receive, bytes);
            deliver_own(core, receive, (envelope, len), written);
        }
        Message::Own(send) => move_bytes(core, envelope, send, receive),
        Message::Partial { .. } | Message::Announced(_) => {
            debug_assert!(false, "a rank announces nothing to itself")
        }
    }
}

/// Moves a send to its receive, and completes both.
fn move_bytes(core: &mut Core, envelope: Envelope, send: RequestId, receive: RequestId) {
    let (Some(from), Some(to)) = (core.requests.get(send), core.requests.get(receive)) else {
        core.requests.complete(receive, Err(Error::Cancelled));
        return;
    };
    let total = from.len;
    let n = total.min(to.len);
    let (sources, targets) = (from.buf.pieces(0, n), to.buf.pieces(0, n));
    let written = match copy(&mut core.loans, sources, targets) {
        true => Ok(()),
        false => Err(Error::withdrawn(core.me)),
    };
    core.counters.bytes_sent += total;
    deliver_own(core, receive, (envelope, total), written);
    complete_send(core, send);
}

/// Copies pieces to others of as many bytes. `false`: some of them are not lent any more.
fn copy(loans: &mut LoanTable, sources: Vec<LoanRange>, targets: Vec<LoanRange>) -> bool {
    let mut sources = sources.into_iter();
    let mut source = sources.next();
    let mut all = true;
    for (target, mut to, mut left) in targets {
        while left > 0 {
            let Some((loan, offset, len)) = source else {
                break;
            };
            let step = len.min(left);
            all &= loans.copy(loan, offset, target, to, step).is_ok();
            (to, left) = (to + step, left - step);
            source = if step == len {
                sources.next()
            } else {
                Some((loan, offset + step, len - step))
            };
        }
    }
    all
}
