// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests: what the engine knows of each send and receive that is under way.

mod staged;

pub use staged::{Activity, OFFER_MAX, Offer, OfferedBy, Staged, Taken};
pub(crate) use staged::{StagedBuf, Stages};

use crate::error::Error;
use crate::matching::{EntryId, Envelope, MatchBits};
use onecopy_btl::lanes::ExposedMemory;
use onecopy_btl::module::Region;
use onecopy_shm::loan::{Loan, LoanError, LoanRange, LoanTable};
use std::sync::Arc;

/// What a completed receive tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The sender.
    pub source: usize,
    /// The tag.
    pub tag: i32,
    /// Bytes of the message.
    pub bytes: usize,
}

/// A buffer of a request: one loan, or several, or one that the processor cannot touch.
#[derive(Debug, Clone)]
pub(crate) enum UserBuf {
    One(Loan),
    Many(Arc<[Loan]>),
    Staged(Arc<StagedBuf>),
}

impl UserBuf {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::One(loan) => loan.len() as u64,
            Self::Many(loans) => loans.iter().map(|l| l.len() as u64).sum(),
            Self::Staged(buffer) => buffer.bytes(),
        }
    }

    /// The buffer, if it is staged.
    #[inline]
    pub(crate) fn staged(&self) -> Option<&Arc<StagedBuf>> {
        match self {
            Self::Staged(buffer) => Some(buffer),
            Self::One(_) | Self::Many(_) => None,
        }
    }

    /// The pieces that bytes `offset..offset + len` lie in; none of a staged buffer.
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> Vec<LoanRange> {
        let mut pieces = Vec::new();
        let (mut skip, mut left) = (offset, len);
        let loans = match self {
            Self::One(loan) => std::slice::from_ref(loan),
            Self::Many(loans) => loans,
            Self::Staged(_) => &[],
        };
        for loan in loans {
            let size = loan.len() as u64;
            if skip >= size {
                skip -= size;
                continue;
            }
            let n = left.min(size - skip);
            if n == 0 {
                break;
            }
            pieces.push(loan.range(skip as usize, n as usize));
            (skip, left) = (0, left - n);
        }
        pieces
    }

    /// Lets `f` write bytes `offset..offset + len`, piece by piece: `f(offset within the range, slice)`.
    #[inline]
    pub(crate) fn write(
        &self,
        loans: &mut LoanTable,
        offset: u64,
        len: usize,
        mut f: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), LoanError> {
        if let Self::One(loan) = self {
            return loans.write(loan.range(offset as usize, len), |out| f(0, out));
        }
        if let Self::Staged(buffer) = self {
            return buffer.take(offset, len, f);
        }
        let mut done = 0;
        for piece in self.pieces(offset, len as u64) {
            loans.write(piece, |out| f(done, out))?;
            done += piece.len;
        }
        Ok(())
    }

    /// Shows bytes `offset..offset + len` to `f`, piece by piece: all of them, or none if one of them is not lent any
    /// more.
    #[inline]
    pub(crate) fn read(
        &self,
        loans: &LoanTable,
        offset: u64,
        len: usize,
        mut f: impl FnMut(usize, &[u8]),
    ) -> Result<(), LoanError> {
        if let Self::One(loan) = self {
            return loans.read(loan.range(offset as usize, len), |bytes| f(0, bytes));
        }
        if let Self::Staged(buffer) = self {
            return buffer.show(offset, len, f);
        }
        let pieces = self.pieces(offset, len as u64);
        for &piece in &pieces {
            loans.read(piece, |_| {})?;
        }
        let mut done = 0;
        for piece in pieces {
            loans.read(piece, |bytes| f(done, bytes))?;
            done += piece.len;
        }
        Ok(())
    }
}

/// Names a request; dead once the request is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// How a send goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendPlan {
    /// In the ring's slots.
    Slots,
    /// In chunks; so many bytes are sent.
    Chunks { sent: u64 },
    /// Announced, or about to be. `coop_id` names it for a cooperative transfer; 0: it has no name,
    /// and its sender copies nothing but chunks that it is asked for.
    Announced { coop_id: u32 },
    /// To be announced for want of credit only, which may be over soon.
    Stalled,
    /// Announced, and the receiver has been promised a range of it in chunks.
    Piped { coop_id: u32 },
}

/// Where a request is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// A send in its peer's outbox; none: how it goes is to be decided when its turn comes.
    Queued(Option<SendPlan>),
    /// A send that waits for the receiver: announced, or synchronous.
    Awaiting(SendPlan),
    /// A receive that no message has matched yet.
    Posted(EntryId),
    /// A receive that a message has matched.
    Receiving,
    /// Its inserter completes it, whatever happens: what its buffers are used for is not the engine's.
    External,
    /// Over; the result is there.
    Done,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) state: RequestState,
    /// The peer of a send; of a receive, the peer once it is matched.
    pub(crate) peer: u32,
    pub(crate) context: u32,
    pub(crate) tag: i32,
    pub(crate) buf: UserBuf,
    pub(crate) len: u64,
    /// A send that is complete only when it is matched.
    pub(crate) sync: bool,
    /// Errors are boxed, so that a request is short.
    pub(crate) result: Option<Result<Status, Box<Error>>>,
}

impl Request {
    /// By what a send is told apart.
    #[inline(always)]
    pub(crate) fn match_bits(&self) -> MatchBits {
        MatchBits {
            context: self.context,
            tag: self.tag,
        }
    }

    /// A receive whose sender is not known yet.
    pub(crate) fn receive(state: RequestState, context: u32, tag: i32, buf: UserBuf) -> Self {
        Self {
            state,
            peer: u32::MAX,
            context,
            tag,
            len: buf.len(),
            buf,
            sync: false,
            result: None,
        }
    }

    /// A message has matched this receive.
    pub(crate) fn begin_receiving(&mut self, message: &Envelope) {
        self.state = RequestState::Receiving;
        self.peer = message.source;
        self.tag = message.tag;
    }

    /// A receive that is over and whose buffer is the program's again.
    pub(crate) fn over(result: Result<Status, Box<Error>>) -> Self {
        let buf = UserBuf::Many(Arc::default());
        Self {
            result: Some(result),
            ..Self::receive(RequestState::Done, 0, 0, buf)
        }
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    request: Option<Request>,
}

/// How the memory of a send is exposed to its receiver.
#[derive(Debug)]
enum Exposed {
    /// As a region of the kernel module.
    Region(Region),
    /// To a device of the receiver's.
    Memory(ExposedMemory),
}

/// All requests of an engine.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// How sends are exposed, until they are complete.
    regions: std::collections::HashMap<RequestId, Exposed>,
    /// Announced sends that were given up, with their peer: it has their name and may still answer.
    abandoned: std::collections::HashMap<RequestId, u32>,
    /// Requests that were completed so far; it wraps.
    pub(crate) completed: u32,
}

impl Requests {
    pub(crate) fn insert(&mut self, request: Request) -> RequestId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                request: None,
            });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests at once")
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.request = Some(request);
        RequestId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    #[inline]
    pub(crate) fn get(&self, id: RequestId) -> Option<&Request> {
        let slot = self.slots.get(id.0 as u32 as usize)?;
        if slot.generation == (id.0 >> 32) as u32 {
            slot.request.as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let slot = self.slots.get_mut(id.0 as u32 as usize)?;
        if slot.generation == (id.0 >> 32) as u32 {
            slot.request.as_mut()
        } else {
            None
        }
    }

    /// Completes a request, unless it is complete already.
    pub(crate) fn complete(&mut self, id: RequestId, result: Result<Status, Error>) {
        if let Some(request) = self.get_mut(id)
            && request.state != RequestState::Done
        {
            request.state = RequestState::Done;
            request.result = Some(result.map_err(Box::new));
            self.count_completed();
            self.end_region(id);
        }
    }

    /// A thread may wait for what was completed just now.
    #[inline]
    pub(crate) fn count_completed(&mut self) {
        self.completed = self.completed.wrapping_add(1);
    }

    /// Keeps the region in which a send is exposed until it is complete.
    pub(crate) fn keep_region(&mut self, id: RequestId, region: Region) {
        self.regions.insert(id, Exposed::Region(region));
    }

    /// The region in which a send is exposed.
    pub(crate) fn region(&self, id: RequestId) -> Option<&Region> {
        match self.regions.get(&id) {
            Some(Exposed::Region(region)) => Some(region),
            Some(Exposed::Memory(_)) | None => None,
        }
    }

    /// Keeps memory of a send shown until it is complete.
    pub(crate) fn keep_shown(&mut self, id: RequestId, shown: ExposedMemory) {
        self.regions.insert(id, Exposed::Memory(shown));
    }

    /// The memory of a send that is shown.
    pub(crate) fn shown(&self, id: RequestId) -> Option<&ExposedMemory> {
        match self.regions.get(&id) {
            Some(Exposed::Memory(shown)) => Some(shown),
            Some(Exposed::Region(_)) | None => None,
        }
    }

    fn end_region(&mut self, id: RequestId) {
        if !self.regions.is_empty() {
            self.regions.remove(&id);
        }
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Request> {
        let slot = self.slots.get_mut(id.0 as u32 as usize)?;
        if slot.generation != (id.0 >> 32) as u32 {
            return None;
        }
        let request = slot.request.take()?;
        self.free.push(id.0 as u32);
        self.end_region(id);
        Some(request)
    }

    /// Gives up a request whose end no call waits for any more, and gives it.
    pub(crate) fn abandon(&mut self, id: RequestId) -> Option<Request> {
        let request = self.remove(id)?;
        if matches!(request.state, RequestState::Awaiting(_)) {
            self.abandoned.insert(id, request.peer);
        }
        Some(request)
    }

    /// Ends an announced send to `peer` with an error. The peer has its name and answers all the same.
    pub(crate) fn fail_announced(&mut self, id: RequestId, peer: u32, error: Error) {
        self.complete(id, Err(error));
        self.abandoned.insert(id, peer);
    }

    /// Whether no peer has the name of a send that was given up.
    #[cfg(test)]
    pub(crate) fn none_abandoned(&self) -> bool {
        self.abandoned.is_empty()
    }

    /// Whether this is a send to `peer` that was given up. `last`: the peer will not name it again.
    pub(crate) fn is_abandoned(&mut self, id: RequestId, peer: u32, last: bool) -> bool {
        let known = self.abandoned.get(&id) == Some(&peer);
        if known && last {
            self.abandoned.remove(&id);
        }
        known
    }

    /// The peer is gone and answers nothing.
    pub(crate) fn forget_abandoned(&mut self, peer: u32) {
        self.abandoned.retain(|_, owner| *owner != peer);
    }

    /// Frees a request where it lies and gives its result.
    #[inline]
    pub(crate) fn finish(&mut self, id: RequestId) -> Option<Result<Status, Error>> {
        let slot = self.slots.get_mut(id.0 as u32 as usize)?;
        if slot.generation != (id.0 >> 32) as u32 {
            return None;
        }
        let result = slot.request.as_mut()?.result.take();
        slot.request = None;
        self.free.push(id.0 as u32);
        self.end_region(id);
        result.map(|result| result.map_err(|error| *error))
    }

    /// Requests for which `which` holds.
    pub(crate) fn ids_where(&self, mut which: impl FnMut(&Request) -> bool) -> Vec<RequestId> {
        let found = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.request.as_ref().is_some_and(&mut which));
        found
            .map(|(index, slot)| RequestId(u64::from(slot.generation) << 32 | index as u64))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_shown_as_a_whole_or_not_at_all() {
        let mut loans = LoanTable::default();
        let parts = [loans.keep(vec![1; 10]), loans.keep(vec![2; 10])];
        let buf = UserBuf::Many(Arc::new(parts));
        let mut shown = Vec::new();
        let read = buf.read(&loans, 5, 10, |offset, bytes| {
            shown.push((offset, bytes.to_vec()))
        });
        assert_eq!(read, Ok(()));
        assert_eq!(shown, [(0, vec![1; 5]), (5, vec![2; 5])]);
        loans.release(parts[1]);
        let read = buf.read(&loans, 5, 10, |_, _| panic!("a part is shown"));
        assert_eq!(read, Err(LoanError::Ended));
    }

    #[test]
    fn an_answer_to_a_send_that_was_given_up_is_known() {
        let mut requests = Requests::default();
        let send = |state| Request {
            state,
            peer: 3,
            context: 0,
            tag: 0,
            buf: UserBuf::Many(Arc::new([])),
            len: 0,
            sync: false,
            result: None,
        };
        let announced = requests.insert(send(RequestState::Awaiting(SendPlan::Slots)));
        let queued = requests.insert(send(RequestState::Queued(None)));
        requests.abandon(announced);
        requests.abandon(queued);
        assert!(requests.get(announced).is_none() && requests.get(queued).is_none());
        assert!(
            !requests.is_abandoned(queued, 3, true),
            "the peer was not told of it"
        );
        assert!(!requests.is_abandoned(announced, 2, true), "another's send");
        assert!(requests.is_abandoned(announced, 3, false));
        assert!(requests.is_abandoned(announced, 3, true));
        assert!(
            !requests.is_abandoned(announced, 3, true),
            "the last answer has come"
        );
        let again = requests.insert(send(RequestState::Awaiting(SendPlan::Slots)));
        requests.abandon(again);
        requests.forget_abandoned(3);
        assert!(!requests.is_abandoned(again, 3, false));
    }
}
