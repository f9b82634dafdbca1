// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code that is compiled for each medium: it looks once at what leads to a peer, not with each call.
//!
//! A call on an [`Endpoint`] looks at its medium, and what it returns has one form for all of them. Between the calls
//! of one short message that costs more than its instructions: the forms go through memory. So what sends and receives
//! such a message is a [`MediumOp`], and [`Endpoint::medium`] says for which medium it is to run.

use super::{BadRecord, ChunkName, Endpoint, Part, Record};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::OutOfBounds;

/// Room for one record. Dropping it publishes nothing that the peer sees.
pub(crate) trait RecordRoom {
    /// Writes payload bytes at `offset`.
    fn write(&mut self, offset: usize, bytes: &[u8]);

    /// Publishes the record with `len` bytes of payload.
    fn publish(self, kind: u8, len: usize, meta: u64);
}

/// What leads to a peer: what [`Endpoint`] calls for a short message, and says what it means.
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

    /// Polls until a record is there, at most `polls` times.
    #[inline(always)]
    fn comes_within(&mut self, polls: usize) -> bool {
        for _ in 0..polls {
            if !self.is_empty() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn read(&self, record: &Record, offset: usize, out: &mut [u8]);
    fn notify_room(&self) -> bool;
    fn part(&self) -> Option<Part>;
    fn read_chunk(
        &mut self,
        chunk: ChunkName,
        offset: usize,
        out: &mut [u8],
        kernel: Kernel,
    ) -> Result<(), OutOfBounds>;
    fn pass(&mut self, record: Record, chunk: Option<ChunkName>) -> bool;
}

/// What is to be done by way of an endpoint, whatever its medium.
pub(crate) trait MediumOp {
    type Outcome;

    fn run_on<M: Medium>(self) -> Self::Outcome;
}
