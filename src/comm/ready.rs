// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a call finds ready: whether it may look at one ring alone, and which messages have come.

use crate::engine::Engine;
use crate::error::Result;
use crate::matching::Pattern;
use crate::request::{Request, RequestId, RequestState, Status};

impl Engine {
    /// Whether polling the source's ring alone makes sense.
    #[inline(always)]
    pub(crate) fn may_receive_now(&mut self, source: u32) -> bool {
        self.receives.is_empty()
            && self.core.agenda.busy.is_empty()
            && self
                .peers
                .get_mut(source as usize)
                .and_then(Option::as_mut)
                .is_some_and(|peer| peer.endpoint.is_empty() && !peer.life.is_gone())
    }

    /// Polls the source's ring until something is there, at most `polls` times.
    #[inline(always)]
    pub(super) fn poll_ring(&mut self, source: u32, polls: usize) -> bool {
        let peer = self.peers.get_mut(source as usize);
        peer.and_then(Option::as_mut)
            .is_some_and(|peer| peer.endpoint.comes_within(polls))
    }

    /// Whether to poll the ring of `dest` alone for its answer to the send `id`: no peer is busy, and no transfer is
    /// under way.
    #[inline]
    pub(super) fn may_await_answer(&self, id: RequestId, dest: u32) -> bool {
        let awaits = |request: &Request| matches!(request.state, RequestState::Awaiting(_));
        self.core.requests.get(id).is_some_and(awaits)
            && self.core.agenda.busy.is_empty()
            && self.receives.transfers.is_empty()
            && self.lives.is_there(dest as usize)
    }

    /// The next unexpected message that `pattern` accepts; an error if none can ever come.
    pub(crate) fn probe(&mut self, pattern: &Pattern) -> Result<Option<Status>> {
        if let Some(entry) = self.receives.unexpected.find(pattern) {
            let envelope = self.receives.unexpected.envelope(entry);
            let bytes = self.receives.unexpected.get(entry).len(&self.core.requests) as usize;
            return Ok(Some(Status {
                source: envelope.source as usize,
                tag: envelope.tag,
                bytes,
            }));
        }
        self.lives.check()?;
        self.lives.unmatchable(pattern).map_or(Ok(None), Err)
    }
}
