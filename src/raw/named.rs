// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives that the engine keeps for its front, which knows them by a number: programs start and complete them by the million, so they have no
//! object of their own.

use super::{AT_ONCE, Lent, Operation, Poll};
use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::matching::{Source, Tag};
use crate::request::{Named, Request, State, Status, UserBuf};
use onecopy_shm::loan::Span;
use std::sync::Arc;

/// Bits that the number of a receive has.
pub const NAME_BITS: u32 = crate::request::NAME_BITS;

/// What became of a receive.
#[derive(Debug)]
pub enum Taken {
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
    pub fn take_named(&mut self, name: u32) -> Taken {
        match self.0.core.requests.finish_named(name) {
            Named::Unknown => Taken::Unknown,
            Named::Active => Taken::Active,
            Named::Over(result, loan) => {
                if let Some(loan) = loan {
                    self.0.core.loans.take_back(loan);
                }
                Taken::Over(result)
            }
        }
    }

    /// The result of a receive, which stays; `Some(None)` while it is under way, `None` if there is none of that number.
    #[must_use]
    pub fn look_at_named(&self, name: u32) -> Option<Option<&Result<Status, Box<Error>>>> {
        let requests = &self.0.core.requests;
        let request = requests.get(requests.named(name)?)?;
        Some(request.result.as_ref())
    }

    /// As [`Self::cancel`].
    pub fn cancel_named(&mut self, name: u32) -> bool {
        match self.0.core.requests.named(name) {
            Some(id) => self.0.cancel(id),
            None => false,
        }
    }

    /// The receive as an operation; its number means nothing any more.
    pub fn adopt(&mut self, name: u32) -> Option<Operation> {
        let requests = &mut self.0.core.requests;
        let id = requests.named(name)?;
        requests.unname(id);
        let lent = Lent::Message(requests.get(id)?.buf.clone());
        Some(Operation { id, lent })
    }
}

impl Engine {
    /// Keeps the result of a receive that was over at once.
    fn keep_received(&mut self, context: u32, status: Status) -> Option<u32> {
        let requests = &mut self.core.requests;
        let id = requests.insert(Request {
            state: State::Done,
            peer: u32::MAX,
            context,
            tag: status.tag,
            buf: UserBuf::Many(Arc::default()),
            len: 0,
            sync: false,
            result: Some(Ok(status)),
        });
        let name = requests.name(id);
        if name.is_none() {
            requests.remove(id);
        }
        name
    }
}

impl Comm {
    /// As [`Self::receive_at_once`]; the status is had by the number of the receive.
    #[inline]
    #[must_use]
    pub fn receive_named_at_once(&self, bytes: &mut [u8], source: usize, tag: Tag) -> Option<u32> {
        if bytes.len() > AT_ONCE {
            return None;
        }
        let mut engine = self.handle.gate.enter();
        // An earlier receive comes first. Who has too many requests for a number finds that out before anything is received.
        if !engine.core.posted.is_empty() || engine.core.requests.has_no_names() {
            return None;
        }
        let source = u32::try_from(self.world_rank(source)).ok()?;
        let status = self.receive_into(&mut engine, bytes, source, tag)?;
        engine.keep_received(self.context, status)
    }

    /// Starts a receive into a span and gives its number. `None`: there are too many for a number, and nothing was started.
    pub fn receive_named(&self, span: Span, source: Source, tag: Tag) -> Result<Option<u32>> {
        let source = source.rank().map(|rank| self.world_rank(rank));
        let mut engine = self.handle.gate.enter();
        if engine.core.requests.has_no_names() {
            return Ok(None);
        }
        let loan = engine.core.loans.lend_span(span);
        match engine.receive(source, self.context, tag.tag(), UserBuf::One(loan)) {
            Ok(id) => Ok(engine.core.requests.name(id)),
            Err(error) => {
                engine.core.loans.take_back(loan);
                Err(error)
            }
        }
    }
}
