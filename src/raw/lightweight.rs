// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives that the engine keeps for its front, which knows them by a number ([`crate::state::lightweight`]).

use super::{LentBuffers, Operation, Poll};
use crate::coll::Worker;
use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::matching::{Source, Tag};
use crate::request::{RequestId, RequestState, Status, UserBuf};
use crate::state::lightweight::{Phase, PostedReceive};
use onecopy_shm::failing;
use onecopy_shm::gate::Pass;
use onecopy_shm::loan::Span;

/// Bits that the number of a receive has.
pub const NUMBER_BITS: u32 = crate::state::lightweight::NUMBER_BITS;

/// What became of a receive.
#[derive(Debug)]
pub enum ReceiveOutcome {
    /// There is none of that number.
    Unknown,
    /// It is under way.
    Active,
    /// It was complete, and its number means nothing any more. The sender is named by its rank in the job.
    Over(Result<Status, Box<Error>>),
}

impl Poll<'_> {
    /// The result of a receive, if it is complete.
    #[inline]
    pub fn take_lightweight(&mut self, number: u32) -> ReceiveOutcome {
        let lightweight = &mut self.0.engine.receives.lightweight;
        match lightweight.get(number) {
            Phase::Free => ReceiveOutcome::Unknown,
            Phase::Posted { .. } => ReceiveOutcome::Active,
            Phase::Over(status) => {
                lightweight.free(number);
                ReceiveOutcome::Over(Ok(status))
            }
            Phase::Failed => {
                let error = lightweight.take_error(number);
                lightweight.free(number);
                ReceiveOutcome::Over(Err(Box::new(error)))
            }
            Phase::Request(id) => self.take_request(number, id),
        }
    }

    /// Ends a receive that is complete without an error and of which nobody asks what it got. Says whether it was one.
    #[inline(always)]
    pub fn forget_lightweight(&mut self, number: u32) -> bool {
        self.0.engine.receives.lightweight.forget(number)
    }

    fn take_request(&mut self, number: u32, id: RequestId) -> ReceiveOutcome {
        let Engine { core, receives, .. } = &mut self.0.engine;
        let mut lent = None;
        if let Some(request) = core.requests.get(id) {
            if request.state != RequestState::Done {
                return ReceiveOutcome::Active;
            }
            lent = Some(LentBuffers::Message(request.buf.clone()));
        }
        receives.lightweight.free(number);
        let result = core.requests.finish(id).unwrap_or(Err(Error::Cancelled));
        if let Some(lent) = lent {
            self.0.engine.end(&lent);
        }
        ReceiveOutcome::Over(result.map_err(Box::new))
    }

    /// The result of a receive, which stays; `Some(None)` while it is under way, `None` if there is none of that
    /// number.
    #[must_use]
    pub fn look_at_lightweight(
        &mut self,
        number: u32,
    ) -> Option<Option<std::result::Result<Status, &Error>>> {
        let Engine { core, receives, .. } = &mut self.0.engine;
        Some(match receives.lightweight.get(number) {
            Phase::Free => return None,
            Phase::Posted { .. } => None,
            Phase::Over(status) => Some(Ok(status)),
            Phase::Failed => receives.lightweight.error(number).map(Err),
            Phase::Request(id) => match &core.requests.get(id)?.result {
                None => None,
                Some(Ok(status)) => Some(Ok(*status)),
                Some(Err(error)) => Some(Err(error)),
            },
        })
    }

    /// As [`Self::cancel`].
    pub fn cancel_lightweight(&mut self, number: u32) -> bool {
        let Engine { core, receives, .. } = &mut self.0.engine;
        let Phase::Posted { entry, .. } = receives.lightweight.get(number) else {
            return false;
        };
        let waiting = receives.posted.cancel(entry);
        let lightweight = &mut receives.lightweight;
        lightweight.fail(&mut core.requests, waiting, Error::Cancelled);
        true
    }

    /// The receive as an operation; its number means nothing any more.
    pub fn adopt(&mut self, number: u32) -> Option<Operation> {
        let Engine { core, receives, .. } = &mut self.0.engine;
        let id = receives.adopt_lightweight(core, number)?;
        let lent = LentBuffers::Message(core.requests.get(id)?.buf.clone());
        Some(Operation { id, lent })
    }
}

impl Engine {
    /// Starts a lightweight receive and gives its number. `None`: there are too many for a number, and nothing was
    /// started.
    #[inline(always)]
    fn receive_lightweight(
        &mut self,
        span: Span,
        source: Option<usize>,
        context: u32,
        tag: Option<i32>,
    ) -> Result<Option<u32>> {
        let pattern = self.check_receive(source, context, tag)?;
        let lightweight = failing::attempt("receive.number").ok();
        let Some(slot) = lightweight.and_then(|()| self.receives.lightweight.reserve()) else {
            return Ok(None);
        };
        // A message that came before is given to a request, whatever it is.
        let phase = if self.receives.unexpected.find(&pattern).is_some() {
            let loan = self.core.loans.lend_span(span);
            Phase::Request(self.receive_as(pattern, UserBuf::One(loan)))
        } else {
            let entry = self
                .receives
                .posted
                .post(pattern, PostedReceive::Lightweight(slot));
            Phase::Posted { entry, span }
        };
        Ok(Some(self.receives.lightweight.start(slot, phase)))
    }
}

/// The worker, to start a receive that has a number.
pub struct Starting<'c> {
    worker: Pass<'c, Worker>,
    comm: &'c Comm,
}

impl Starting<'_> {
    /// As [`Comm::receive_at_once`]; the status is had by the number of the receive.
    #[inline(always)]
    #[must_use]
    pub fn at_once(&mut self, bytes: &mut [u8], source: usize, tag: Tag) -> Option<u32> {
        let (engine, comm) = (&mut self.worker.engine, self.comm);
        // A front that has too many for a number finds that out before anything is received.
        if bytes.len() > engine.core.chunks.step as usize || engine.receives.lightweight.is_full() {
            return None;
        }
        let source = u32::try_from(comm.world_rank(source)).ok()?;
        let status = comm.receive_into(engine, bytes, source, tag)?;
        engine.receives.lightweight.insert(Phase::Over(status))
    }

    /// Starts a receive into a span and gives its number. `None`: there are too many for a number, and nothing was
    /// started.
    #[inline(always)]
    pub fn receive(&mut self, span: Span, source: Source, tag: Tag) -> Result<Option<u32>> {
        let source = source.rank().map(|rank| self.comm.world_rank(rank));
        self.worker
            .engine
            .receive_lightweight(span, source, self.comm.context, tag.tag())
    }
}

impl Comm {
    /// Enters the worker, to start a receive that has a number.
    #[inline(always)]
    #[must_use]
    pub fn start_lightweight(&self) -> Starting<'_> {
        Starting {
            worker: self.handle.gate.enter(),
            comm: self,
        }
    }
}
