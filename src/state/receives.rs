// SPDX-License-Identifier: MIT OR Apache-2.0
//! What waits to be received, and what has come and waits for its receive.

use super::lightweight::{LightweightReceives, Phase, PostedReceive};
use super::transfer::Transfers;
use super::{Core, UnexpectedMessage};
use crate::matching::{EntryId, Envelope, Posted, Unexpected};
use crate::request::{Request, RequestId, RequestState, UserBuf};

/// The receives of a rank. Nothing that only sends borrows them; nor does a transfer that makes a step, which is one of
/// them.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    pub(crate) lightweight: LightweightReceives,
    pub(crate) posted: Posted<PostedReceive>,
    pub(crate) unexpected: Unexpected<UnexpectedMessage>,
    pub(crate) transfers: Transfers,
}

impl Receives {
    /// Whether none waits, and nothing waits for one.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty() && self.unexpected.is_empty() && self.transfers.is_empty()
    }

    /// The oldest posted receive that accepts the message that `envelope` says: it is posted no more.
    #[inline(always)]
    pub(crate) fn match_posted(
        &mut self,
        core: &mut Core,
        envelope: &Envelope,
    ) -> Option<PostedReceive> {
        let waiting = self.posted.take(envelope)?;
        core.counters.count_expected();
        Some(waiting)
    }

    /// As [`Self::match_posted`], as a request.
    pub(crate) fn match_request(
        &mut self,
        core: &mut Core,
        envelope: &Envelope,
    ) -> Option<RequestId> {
        let waiting = self.match_posted(core, envelope)?;
        self.lightweight.as_request(core, waiting, envelope)
    }

    /// Keeps a message that no receive waits for.
    pub(crate) fn keep_unexpected(
        &mut self,
        core: &mut Core,
        envelope: Envelope,
        message: UnexpectedMessage,
    ) -> EntryId {
        core.counters.recv_unexpected += 1;
        self.unexpected.keep(envelope, message)
    }

    /// Makes a request of a lightweight receive, which has a number no more. `None`: there is none of that number.
    pub(crate) fn adopt_lightweight(&mut self, core: &mut Core, number: u32) -> Option<RequestId> {
        let id = match self.lightweight.get(number) {
            Phase::Free => return None,
            Phase::Request(id) => id,
            Phase::Posted { entry, span } => {
                let buf = UserBuf::One(core.loans.lend_span(span));
                let pattern = self.posted.pattern(entry);
                let (context, tag) = (pattern.context, pattern.tag.unwrap_or(0));
                let request = Request::receive(RequestState::Posted(entry), context, tag, buf);
                let id = core.requests.insert(request);
                self.posted.replace(entry, PostedReceive::Request(id));
                id
            }
            Phase::Over(status) => core.requests.insert(Request::over(Ok(status))),
            Phase::Failed => {
                let error = self.lightweight.take_error(number);
                core.requests.insert(Request::over(Err(Box::new(error))))
            }
        };
        self.lightweight.free(number);
        Some(id)
    }
}
