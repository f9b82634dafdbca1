// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lightweight receives: into one buffer, known by a number, which is all that a front keeps of them. Programs post and
//! complete them by the million, and most get one short message. So they are no requests: what has to be known of one
//! fits in a cache line. One that gets a longer message, or has to be an operation of the front, becomes a request,
//! which its number leads to.

use super::Core;
use crate::error::Error;
use crate::matching::{EntryId, Envelope};
use crate::request::{Request, RequestId, RequestState, Requests, Status, UserBuf};
use onecopy_shm::loan::{LoanTable, Span};
use std::collections::HashMap;

/// Bits of a number that say which slot; those above say which of its receives. A front has as many for handles of its
/// own (`mpi/src/handle.rs`).
const SLOT_BITS: u32 = 22;
/// Bits of a number. A front has four more for the kind, of an `int` that is positive.
pub(crate) const NUMBER_BITS: u32 = 27;
const GENERATIONS: u32 = (1 << (NUMBER_BITS - SLOT_BITS)) - 1;

/// A receive that is posted, as matching keeps it.
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
    /// It has failed, and its buffer is the program's again. The error stands beside the slots.
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

    /// Why the receive of a number failed, which no call asks for again.
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

impl LightweightReceives {
    /// A receive that is posted no more, as a request for the message that `envelope` says.
    pub(crate) fn as_request(
        &mut self,
        core: &mut Core,
        waiting: PostedReceive,
        envelope: &Envelope,
    ) -> Option<RequestId> {
        match waiting {
            PostedReceive::Request(id) => Some(id),
            PostedReceive::Lightweight(slot) => {
                let (phase, span) = self.posted(slot)?;
                let buf = UserBuf::One(core.loans.lend_span(span));
                let (context, tag) = (envelope.context, envelope.tag);
                let request = Request::receive(RequestState::Receiving, context, tag, buf);
                let id = core.requests.insert(request);
                *phase = Phase::Request(id);
                Some(id)
            }
        }
    }

    /// Ends a receive that is posted no more, and whose message does not come.
    pub(crate) fn fail(&mut self, requests: &mut Requests, waiting: PostedReceive, error: Error) {
        let slot = match waiting {
            PostedReceive::Request(id) => return requests.complete(id, Err(error)),
            PostedReceive::Lightweight(slot) => slot,
        };
        if let Some((phase, _)) = self.posted(slot) {
            *phase = Phase::Failed;
            self.errors.insert(slot, error);
            requests.count_completed();
        }
    }

    /// Fills the buffer of the receive of a slot, which is posted no more, with a whole message of `len` bytes. `read`
    /// does so. Gives the phase of the receive, which is complete now. `None`: the message does not fit, its buffer was
    /// withdrawn, or `read` could not. Then the receive is one for [`Self::as_request`].
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        loans: &mut LoanTable,
        slot: u32,
        len: usize,
        read: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<&mut Phase> {
        let (phase, span) = self.posted(slot)?;
        let out = loans.span_mut(span, len).ok()?;
        read(out).then_some(phase)
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
