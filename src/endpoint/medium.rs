// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code that is compiled for each medium: it looks once at what leads to a peer, not with each call.
//!
//! A call on an [`Endpoint`] looks at its medium, and what it returns has one form for all of them. Between the calls
//! of one short message that costs more than its instructions: the forms go through memory. So what sends and receives
//! such a message is a [`MediumOp`], and [`Endpoint::medium`] says for which medium it is to run.

use super::{BadRecord, Claim, Endpoint, Record, SharedMemory, Socket, socket};
use onecopy_shm::cells::MappedCells;
use onecopy_shm::ring;

/// Room for one record. Dropping it publishes nothing that the peer sees.
pub(crate) trait RecordRoom {
    /// Writes payload bytes at `offset`.
    fn write(&mut self, offset: usize, bytes: &[u8]);

    /// Publishes the record with `len` bytes of payload.
    fn publish(self, kind: u8, len: usize, meta: u64);
}

/// What leads to a peer. The calls are those of [`Endpoint`].
pub(crate) trait Medium: Sized {
    type Room<'e>: RecordRoom
    where
        Self: 'e;

    /// The endpoint, if it is of this medium.
    fn of(endpoint: &mut Endpoint) -> Option<&mut Self>;

    fn claim(&mut self, slots: usize) -> Option<Self::Room<'_>>;
    fn notify(&mut self) -> bool;
    fn is_empty(&mut self) -> bool;
    fn peek(&mut self) -> Result<Option<Record>, BadRecord>;
    fn read(&self, record: &Record, out: &mut [u8]);
    fn advance(&mut self, record: Record) -> bool;
    fn notify_room(&self) -> bool;
}

/// What is to be done by way of an endpoint, whatever its medium.
pub(crate) trait MediumOp {
    type Outcome;

    fn run_on<M: Medium>(self) -> Self::Outcome;
}

/// Which medium an endpoint has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MediumKind {
    SharedMemory,
    Socket,
}

impl MediumKind {
    /// Does what is to be done by way of an endpoint of this medium. It is put together for each, where it is used.
    #[inline(always)]
    pub(crate) fn run<U: MediumOp>(self, what: impl FnOnce() -> U) -> U::Outcome {
        match self {
            Self::SharedMemory => what().run_on::<SharedMemory>(),
            Self::Socket => by_socket(what()),
        }
    }
}

/// Apart, so that the code for shared memory is in one piece.
#[inline(never)]
fn by_socket<U: MediumOp>(what: U) -> U::Outcome {
    what.run_on::<Socket>()
}

impl Endpoint {
    #[inline(always)]
    pub(crate) fn medium(&self) -> MediumKind {
        match self {
            Self::SharedMemory(_) => MediumKind::SharedMemory,
            Self::Socket(_) => MediumKind::Socket,
        }
    }
}

impl RecordRoom for ring::Claim<'_, MappedCells> {
    #[inline(always)]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        ring::Claim::write(self, offset, bytes);
    }

    #[inline(always)]
    fn publish(self, kind: u8, len: usize, meta: u64) {
        ring::Claim::publish(self, kind, len, meta);
    }
}

impl RecordRoom for socket::Frame<'_> {
    #[inline]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        socket::Frame::write(self, offset, bytes);
    }

    #[inline]
    fn publish(self, kind: u8, len: usize, meta: u64) {
        socket::Frame::publish(self, kind, len, meta);
    }
}

impl RecordRoom for Claim<'_> {
    #[inline]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        Claim::write(self, offset, bytes);
    }

    #[inline]
    fn publish(self, kind: u8, len: usize, meta: u64) {
        Claim::publish(self, kind, len, meta);
    }
}

impl Medium for SharedMemory {
    type Room<'e> = ring::Claim<'e, MappedCells>;

    #[inline(always)]
    fn of(endpoint: &mut Endpoint) -> Option<&mut Self> {
        match endpoint {
            Endpoint::SharedMemory(own) => Some(own),
            Endpoint::Socket(_) => None,
        }
    }

    #[inline(always)]
    fn claim(&mut self, slots: usize) -> Option<Self::Room<'_>> {
        self.claim_slots(slots)
    }

    #[inline(always)]
    fn notify(&mut self) -> bool {
        SharedMemory::notify(self)
    }

    #[inline(always)]
    fn is_empty(&mut self) -> bool {
        SharedMemory::is_empty(self)
    }

    #[inline(always)]
    fn peek(&mut self) -> Result<Option<Record>, BadRecord> {
        SharedMemory::peek(self)
    }

    #[inline(always)]
    fn read(&self, record: &Record, out: &mut [u8]) {
        SharedMemory::read(self, record, 0, out);
    }

    #[inline(always)]
    fn advance(&mut self, record: Record) -> bool {
        SharedMemory::advance(self, record)
    }

    #[inline(always)]
    fn notify_room(&self) -> bool {
        SharedMemory::notify_room(self)
    }
}

impl Medium for Socket {
    type Room<'e> = socket::Frame<'e>;

    #[inline]
    fn of(endpoint: &mut Endpoint) -> Option<&mut Self> {
        endpoint.wire()
    }

    #[inline]
    fn claim(&mut self, _: usize) -> Option<Self::Room<'_>> {
        self.frame()
    }

    #[inline]
    fn notify(&mut self) -> bool {
        Socket::notify(self)
    }

    #[inline]
    fn is_empty(&mut self) -> bool {
        Socket::is_empty(self)
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<Record>, BadRecord> {
        Socket::peek(self)
    }

    #[inline]
    fn read(&self, _: &Record, out: &mut [u8]) {
        Socket::read(self, 0, out);
    }

    #[inline]
    fn advance(&mut self, _: Record) -> bool {
        Socket::advance(self)
    }

    #[inline]
    fn notify_room(&self) -> bool {
        false
    }
}
