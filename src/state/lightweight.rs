// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lightweight receives: into one buffer, known by a number, which is all that a front keeps of them. Programs post and
//! complete them by the million, and most get one short message. So they are no requests: what has to be known of one
//! fits in a cache line. One that gets a longer message, or has to be an operation of the front, becomes a request,
//! which its number leads to.

use super::Core;
use super::message::receipt_for;
use crate::endpoint::{Endpoint, Record};
use crate::error::{Error, Result};
use crate::matching::{EntryId, Envelope};
use crate::records::ChunkBody;
use crate::request::{Request, RequestId, RequestState, Status, UserBuf};
use onecopy_shm::loan::Span;
use std::collections::HashMap;

/// Bits of a number that say which slot; those above say which of its receives.
const SLOT_BITS: u32 = 22;
/// Bits of a number.
pub(crate) const NUMBER_BITS: u32 = 27;
const GENERATIONS: u32 = (1 << (NUMBER_BITS - SLOT_BITS)) - 1;

/// Who is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PostedReceive {
    Request(RequestId),
    /// By its slot.
    Lightweight(u32),
}

/// Where a lightweight receive is in its life.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// There is none.
    Free,
    /// No message has matched it.
    Posted { entry: EntryId, span: Span },
    /// It became a request, of one loan.
    Request(RequestId),
    /// Its buffer is the program's again.
    Over(Status),
    /// So, too; the error is beside the slots.
    Failed,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    phase: Phase,
}

/// The lightweight receives of an engine.
#[derive(Debug, Default)]
pub(crate) struct LightweightReceives {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Of those that failed.
    errors: HashMap<u32, Error>,
}

impl LightweightReceives {
    /// Whether the next one may be without a number.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >> SLOT_BITS != 0
    }

    #[cold]
    fn new_slot(&mut self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        self.slots.push(Slot {
            generation: 0,
            phase: Phase::Free,
        });
        Some(self.slots.len() as u32 - 1)
    }

    /// Takes a slot for a receive, unless there is none.
    #[inline(always)]
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        match self.free.pop() {
            Some(slot) => Some(slot),
            None => self.new_slot(),
        }
    }

    /// Makes a receive of a slot and gives its number.
    #[inline(always)]
    pub(crate) fn start(&mut self, index: u32, phase: Phase) -> u32 {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.phase = phase;
        (slot.generation & GENERATIONS) << SLOT_BITS | index
    }

    /// Makes a receive and gives its number; `None`: there are too many.
    #[inline]
    pub(crate) fn insert(&mut self, phase: Phase) -> Option<u32> {
        let slot = self.reserve()?;
        Some(self.start(slot, phase))
    }

    #[inline(always)]
    fn find(&mut self, number: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(slot_of(number) as usize)?;
        (slot.generation & GENERATIONS == number >> SLOT_BITS).then_some(slot)
    }

    /// Where the receive of a number is.
    #[inline(always)]
    pub(crate) fn get(&mut self, number: u32) -> Phase {
        self.find(number).map_or(Phase::Free, |slot| slot.phase)
    }

    /// Frees the slot of a receive that is there; its number names nothing any more.
    #[inline(always)]
    pub(crate) fn free(&mut self, number: u32) {
        self.slots[slot_of(number) as usize].phase = Phase::Free;
        self.free.push(slot_of(number));
    }

    /// Ends the receive of a number if it is over without an error.
    #[inline(always)]
    pub(crate) fn forget(&mut self, number: u32) -> bool {
        let over = matches!(self.get(number), Phase::Over(_));
        if over {
            self.free(number);
        }
        over
    }

    /// The receive of a slot, which is posted.
    #[inline(always)]
    fn posted(&mut self, slot: u32) -> Option<(&mut Phase, Span)> {
        let phase = &mut self.slots.get_mut(slot as usize)?.phase;
        match *phase {
            Phase::Posted { span, .. } => Some((phase, span)),
            _ => None,
        }
    }

    /// Why the receive of a number failed.
    pub(crate) fn error(&self, number: u32) -> Option<&Error> {
        self.errors.get(&slot_of(number))
    }

    /// Why the receive of a number failed, which nobody asks for again.
    pub(crate) fn take_error(&mut self, number: u32) -> Error {
        self.errors
            .remove(&slot_of(number))
            .unwrap_or(Error::Cancelled)
    }
}

#[inline(always)]
fn slot_of(number: u32) -> u32 {
    number & ((1 << SLOT_BITS) - 1)
}

impl Core {
    /// The oldest posted receive that accepts the message that `envelope` says: it is posted no more.
    #[inline(always)]
    pub(crate) fn match_posted(&mut self, envelope: &Envelope) -> Option<PostedReceive> {
        let waiting = self.posted.take(envelope)?;
        self.counters.recv_expected += 1;
        Some(waiting)
    }

    /// As [`Self::match_posted`], as a request.
    pub(crate) fn match_request(&mut self, envelope: &Envelope) -> Option<RequestId> {
        let waiting = self.match_posted(envelope)?;
        self.as_request(waiting, envelope)
    }

    /// A receive that is posted no more, as a request for the message that `envelope` says.
    pub(crate) fn as_request(
        &mut self,
        waiting: PostedReceive,
        envelope: &Envelope,
    ) -> Option<RequestId> {
        match waiting {
            PostedReceive::Request(id) => Some(id),
            PostedReceive::Lightweight(slot) => {
                let (phase, span) = self.lightweight.posted(slot)?;
                let buf = UserBuf::One(self.loans.lend_span(span));
                let (context, tag) = (envelope.context, envelope.tag);
                let request = Request::receive(RequestState::Receiving, context, tag, buf);
                let id = self.requests.insert(request);
                *phase = Phase::Request(id);
                Some(id)
            }
        }
    }

    /// Completes a receive that is posted no more.
    pub(crate) fn complete_posted(&mut self, waiting: PostedReceive, result: Result<Status>) {
        match waiting {
            PostedReceive::Request(id) => self.requests.complete(id, result),
            PostedReceive::Lightweight(slot) => self.complete_lightweight(slot, result),
        }
    }

    fn complete_lightweight(&mut self, slot: u32, result: Result<Status>) {
        if let Some((phase, _)) = self.lightweight.posted(slot) {
            match result {
                Ok(status) => *phase = Phase::Over(status),
                Err(error) => {
                    *phase = Phase::Failed;
                    self.lightweight.errors.insert(slot, error);
                }
            }
            self.requests.count_completed();
        }
    }

    /// Gives a whole message that `envelope` says, the `len` bytes of `record` behind `skip`, to a receive that is
    /// posted no more.
    #[inline(always)]
    pub(crate) fn deliver_record(
        &mut self,
        waiting: PostedReceive,
        envelope: Envelope,
        len: usize,
        from: &Endpoint,
        record: &Record,
        skip: usize,
    ) {
        if let PostedReceive::Lightweight(slot) = waiting
            && let Some((phase, span)) = self.lightweight.posted(slot)
            && let Ok(out) = self.loans.span_mut(span, len)
        {
            from.read(record, skip, out);
            *phase = Phase::Over(Status {
                source: envelope.source as usize,
                tag: envelope.tag,
                bytes: len,
            });
            self.requests.count_completed();
            return;
        }
        self.deliver_slowly(waiting, envelope, len, |at, out| {
            from.read(record, skip + at, out);
        });
    }

    /// Gives a message of one chunk to the receive of a slot, which is posted no more. `false`: it has more chunks, or
    /// something is wrong with it or with the buffer, and nothing was done.
    pub(crate) fn deliver_chunk(
        &mut self,
        slot: u32,
        envelope: Envelope,
        from: &mut Endpoint,
        body: &ChunkBody,
    ) -> bool {
        let len = body.piece as usize;
        if len as u64 == body.total
            && let Some((phase, span)) = self.lightweight.posted(slot)
            && let Ok(out) = self.loans.span_mut(span, len)
            && from.read_chunk(body.chunk, 0, out).is_ok()
        {
            *phase = Phase::Over(Status {
                source: envelope.source as usize,
                tag: envelope.tag,
                bytes: len,
            });
            self.requests.count_completed();
            return true;
        }
        false
    }

    fn deliver_slowly(
        &mut self,
        waiting: PostedReceive,
        envelope: Envelope,
        len: usize,
        read: impl Fn(usize, &mut [u8]),
    ) {
        let written = match waiting {
            PostedReceive::Lightweight(slot) => {
                let Some((_, span)) = self.lightweight.posted(slot) else {
                    return;
                };
                let n = len.min(span.len());
                self.loans.span_mut(span, n).map(|out| read(0, out))
            }
            PostedReceive::Request(id) => {
                let Some(request) = self.requests.get_mut(id) else {
                    return;
                };
                request.peer = envelope.source;
                let n = len.min(request.len as usize);
                request.buf.write(&mut self.loans, 0, n, read)
            }
        };
        let written = written.map_err(|_| Error::withdrawn(envelope.source));
        self.complete_receive(waiting, envelope, len as u64, written);
    }

    /// Completes the receive of a message of `total` bytes, of which those that fit were `written`.
    pub(crate) fn complete_receive(
        &mut self,
        waiting: PostedReceive,
        envelope: Envelope,
        total: u64,
        written: Result<()>,
    ) {
        let room = match waiting {
            PostedReceive::Lightweight(slot) => self
                .lightweight
                .posted(slot)
                .map(|(_, span)| span.len() as u64),
            PostedReceive::Request(id) => self.requests.get(id).map(|request| request.len),
        };
        let Some(room) = room else { return };
        let result = written.and_then(|()| receipt_for(room, envelope, total));
        if matches!(result, Err(Error::Truncated { .. })) {
            self.counters.truncations += 1;
        }
        self.complete_posted(waiting, result);
    }

    /// Makes a request of a lightweight receive, which has a number no more. `None`: there is none of that number.
    pub(crate) fn adopt_lightweight(&mut self, number: u32) -> Option<RequestId> {
        let id = match self.lightweight.get(number) {
            Phase::Free => return None,
            Phase::Request(id) => id,
            Phase::Posted { entry, span } => {
                let buf = UserBuf::One(self.loans.lend_span(span));
                let pattern = self.posted.pattern(entry);
                let (context, tag) = (pattern.context, pattern.tag.unwrap_or(0));
                let request = Request::receive(RequestState::Posted(entry), context, tag, buf);
                let id = self.requests.insert(request);
                self.posted.replace(entry, PostedReceive::Request(id));
                id
            }
            Phase::Over(status) => self.requests.insert(Request::over(Ok(status))),
            Phase::Failed => {
                let error = self.lightweight.take_error(number);
                self.requests.insert(Request::over(Err(Box::new(error))))
            }
        };
        self.lightweight.free(number);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_receive() {
        let mut lightweight = LightweightReceives::default();
        let status = Status {
            source: 0,
            tag: 0,
            bytes: 0,
        };
        let over = Phase::Over(status);
        let other = lightweight.insert(over).expect("few receives");
        for round in 0..100 {
            let number = lightweight.insert(over).expect("few receives");
            assert!(
                number >> NUMBER_BITS == 0 && number != other,
                "round {round}"
            );
            assert!(matches!(lightweight.get(number), Phase::Over(_)));
            assert!(lightweight.forget(number) && !lightweight.forget(number));
            assert!(matches!(lightweight.get(number), Phase::Free));
            let failed = lightweight.insert(Phase::Failed).expect("few receives");
            assert!(!lightweight.forget(failed), "there is an error to report");
            lightweight.free(failed);
        }
        assert!(matches!(lightweight.get(other), Phase::Over(_)));
        assert!(matches!(
            lightweight.get((1 << NUMBER_BITS) - 1),
            Phase::Free
        ));
        let slot = size_of::<Slot>();
        assert!(slot <= 64, "{slot} bytes: more than a cache line");
    }

    #[test]
    fn there_are_only_so_many_numbers() {
        let mut lightweight = LightweightReceives::default();
        for _ in 0..1 << SLOT_BITS {
            assert!(lightweight.insert(Phase::Failed).is_some());
        }
        assert!(lightweight.is_full() && lightweight.insert(Phase::Failed).is_none());
        lightweight.free(7 | 1 << SLOT_BITS);
        assert!(!lightweight.is_full());
        let number = lightweight.insert(Phase::Failed).expect("a free slot");
        assert_eq!(slot_of(number), 7);
    }
}
