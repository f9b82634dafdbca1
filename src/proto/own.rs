// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a rank to itself: one copy from buffer to buffer, or through the unexpected store when the receive comes
//! later. If a buffer is staged, the message is a [`Transfer`] that moves by pieces, as devices have them.

use super::control::complete_send;
use super::deliver::{Message, deliver_own};
use super::eager;
use super::layers::{declined, offer, taken_directly};
use crate::error::Error;
use crate::matching::Envelope;
use crate::request::{
    Offer, OfferedBy, RequestId, RequestState, SendPlan, StagedBuf, Taken, UserBuf,
};
use crate::state::UnexpectedMessage;
use crate::state::message::{Announcement, Remote, WholeMessage};
use crate::state::transfer::{Mode, OwnSend, Transfer, Transfers};
use crate::state::{Core, Receives};
use onecopy_obs::Counters;
use onecopy_shm::coop::MessageRange;
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::loan::{LoanRange, LoanTable};
use std::ops::Range;
use std::sync::Arc;

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
    let (len, waits) = (request.len, request.sync || request.buf.staged().is_some());
    if let Some(receive) = receives.match_request(core, &envelope) {
        if let Some(request) = core.requests.get_mut(receive) {
            request.begin_receiving(&envelope);
        }
        move_bytes(core, &mut receives.transfers, envelope, id, receive);
        return;
    }
    let held = core.counters.unexpected_bytes_now;
    if waits
        || len > BUFFERED_MOST.min(core.knobs.eager_credit as u64)
        || held + len > 4 * core.knobs.eager_credit as u64
    {
        receives.keep_unexpected(core, envelope, UnexpectedMessage::Own(id));
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
    receives.keep_unexpected(
        core,
        envelope,
        UnexpectedMessage::Whole(WholeMessage { bytes, sync: None }),
    );
    complete_send(core, id);
}

/// Gives a message of this rank to its receive.
pub(crate) fn accept(
    core: &mut Core,
    transfers: &mut Transfers,
    envelope: Envelope,
    message: UnexpectedMessage,
    receive: RequestId,
) {
    if let Some(request) = core.requests.get_mut(receive) {
        request.begin_receiving(&envelope);
    }
    match message {
        UnexpectedMessage::Whole(WholeMessage { bytes, .. }) => {
            let total = bytes.len() as u64;
            let written = eager::hand_over(core, receive, bytes);
            deliver_own(core, receive, Message { envelope, total }, written);
        }
        UnexpectedMessage::Own(send) => move_bytes(core, transfers, envelope, send, receive),
        UnexpectedMessage::Partial(_) | UnexpectedMessage::Announced(_) => {
            debug_assert!(false, "a rank announces nothing to itself")
        }
    }
}

/// Moves a send to its receive, and completes both, or begins that.
fn move_bytes(
    core: &mut Core,
    transfers: &mut Transfers,
    envelope: Envelope,
    send: RequestId,
    receive: RequestId,
) {
    let (Some(from), Some(to)) = (core.requests.get(send), core.requests.get(receive)) else {
        core.requests.complete(receive, Err(Error::Cancelled));
        return;
    };
    let total = from.len;
    let n = total.min(to.len);
    if from.buf.staged().is_some() || to.buf.staged().is_some() {
        let direct = accept_whole(&mut core.counters, &from.buf, &to.buf, n);
        if direct.is_none() {
            ask(&from.buf, &to.buf, 0..n);
        }
        let announcement = Announcement {
            len: total,
            request: send.0,
            remote: Remote::Unknown,
            coop_id: 0,
            rewritten: false,
        };
        let mode = Mode::Own(OwnSend { send, direct });
        transfers.insert(Transfer {
            mode,
            ..Transfer::new(receive, envelope, announcement, n)
        });
        return;
    }
    let (sources, targets) = (from.buf.pieces(0, n), to.buf.pieces(0, n));
    let written = match copy(&mut core.loans, sources, targets) {
        true => Ok(()),
        false => Err(Error::withdrawn(core.me)),
    };
    core.counters.bytes_sent += total;
    deliver_own(core, receive, Message { envelope, total }, written);
    complete_send(core, send);
}

/// Lets a staged receive take all bytes of a staged send, if it can.
fn accept_whole(
    counters: &mut Counters,
    from: &UserBuf,
    to: &UserBuf,
    len: u64,
) -> Option<Arc<StagedBuf>> {
    let (from, to) = (from.staged()?, to.staged()?);
    let offered = from.offer(true).filter(|_| len > 0)?;
    let offered = Offer {
        by: OfferedBy::Own,
        bytes: &offered,
    };
    let accepted = offer(counters, to, &offered, len);
    accepted.then(|| Arc::clone(to))
}

/// What is staged wakes a thread that sleeps, a transfer does not. An error comes with the first step.
fn ask(from: &UserBuf, to: &UserBuf, range: Range<u64>) {
    if let Some(staged) = from.staged() {
        let _ = staged.ready(range.clone());
    }
    if let Some(staged) = to.staged() {
        let _ = staged.room(range);
    }
}

/// Where a step has left a message of this rank to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnStep {
    Moved,
    /// It waits for a device: the sender's device has not copied more to the host, or the receiver's has not taken it.
    Rests,
    Over,
}

/// Moves some bytes of a message of this rank to itself, of which a buffer is staged.
pub(crate) fn step(core: &mut Core, transfer: &mut Transfer) -> OwnStep {
    let receive = transfer.request;
    let Mode::Own(OwnSend { send, direct }) = &mut transfer.mode else {
        return OwnStep::Over;
    };
    let send = *send;
    let (Some(from), Some(to)) = (core.requests.get(send), core.requests.get(receive)) else {
        // One of them was given up.
        let withdrawn = Err(Error::withdrawn(core.me));
        core.requests.complete(receive, withdrawn);
        complete_send(core, send);
        return OwnStep::Over;
    };
    let (from, to) = (from.buf.clone(), to.buf.clone());
    if let Some(buffer) = direct {
        match buffer.taken() {
            Taken::NotYet => return OwnStep::Rests,
            Taken::All => {
                taken_directly(&mut core.counters, transfer.len);
                *direct = None;
                transfer.remaining.clear();
            }
            Taken::Declined(why) => {
                *direct = None;
                declined(&mut core.counters, &why);
                ask(&from, &to, 0..transfer.len);
            }
            Taken::Failed(why) => {
                core.requests.complete(receive, Err(Error::Device(why)));
                complete_send(core, send);
                return OwnStep::Over;
            }
        }
    }
    let Some(left) = transfer.remaining.pop() else {
        core.counters.bytes_sent += transfer.announcement.len;
        deliver_own(core, receive, Message::of_transfer(transfer), Ok(()));
        complete_send(core, send);
        return OwnStep::Over;
    };
    let MessageRange { offset, len } = left;
    let range = offset..offset + len.min(Transfer::STEP);
    let ready = match from.staged().map(|from| from.ready(range.clone())) {
        None => range.end - offset,
        Some(Ok(ready)) => ready as u64,
        Some(Err(reason)) => {
            core.requests.complete(send, Err(Error::Device(reason)));
            let withdrawn = Err(Error::withdrawn(core.me));
            core.requests.complete(receive, withdrawn);
            return OwnStep::Over;
        }
    };
    let room = match to.staged().map(|to| to.room(range)) {
        None => len,
        Some(Ok(room)) => room,
        Some(Err(reason)) => {
            core.requests.complete(receive, Err(Error::Device(reason)));
            complete_send(core, send);
            return OwnStep::Over;
        }
    };
    let n = ready.min(room).min(len);
    if n > 0 && !copy_staged(&mut core.loans, &from, &to, offset, n as usize) {
        let withdrawn = Err(Error::withdrawn(core.me));
        core.requests.complete(receive, withdrawn);
    }
    if n < len {
        transfer.remaining.push(left.skip(n));
    }
    match n {
        0 => OwnStep::Rests,
        _ => OwnStep::Moved,
    }
}

/// Copies bytes between buffers of which one is staged, or both. `false`: some of them are not lent any more.
fn copy_staged(
    loans: &mut LoanTable,
    from: &UserBuf,
    to: &UserBuf,
    offset: u64,
    len: usize,
) -> bool {
    let mut all = true;
    let copied = match (from.staged(), to.staged()) {
        (Some(from), None) => from.show(offset, len, |at, bytes| {
            let into = |start: usize, out: &mut [u8]| {
                copy_slices(Kernel::Memcpy, out, &bytes[start..start + out.len()]);
            };
            all &= to
                .write(loans, offset + at as u64, bytes.len(), into)
                .is_ok();
        }),
        (_, Some(to)) => to.take(offset, len, |at, out| {
            let len = out.len();
            let into = |start: usize, bytes: &[u8]| {
                copy_slices(Kernel::Memcpy, &mut out[start..start + bytes.len()], bytes);
            };
            all &= from.read(loans, offset + at as u64, len, into).is_ok();
        }),
        (None, None) => Ok(()),
    };
    copied.is_ok() && all
}

/// Copies pieces to others of as many bytes. `false`: some of them are not lent any more.
fn copy(loans: &mut LoanTable, sources: Vec<LoanRange>, targets: Vec<LoanRange>) -> bool {
    let mut sources = sources.into_iter();
    let mut source = sources.next();
    let mut all = true;
    for mut to in targets {
        while to.len > 0 {
            let Some(from) = source else {
                break;
            };
            let step = from.len.min(to.len);
            all &= loans.copy(from.part(0, step), to.loan, to.offset).is_ok();
            to = to.part(step, to.len - step);
            source = if step == from.len {
                sources.next()
            } else {
                Some(from.part(step, from.len - step))
            };
        }
    }
    all
}
