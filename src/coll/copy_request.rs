// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy requests. A member that cannot read a peer's buffer asks the peer to copy it. The peer copies piece by piece
//! into a stage of the asking member's end of the channel.

use super::ByteRange;
use super::context::{StepContext, StepParts};
use super::member_buffer::{CopyTarget, MemberBuffer, part};
use super::requested_copies::{CopyRequests, Run};
use super::state::CommState;
use crate::error::Result;
use onecopy_btl::LayerId;
use onecopy_shm::coll::{Channel, CopyRequest};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::{COLL_STAGE, COLL_STAGES};
use onecopy_shm::loan::LoanTable;

/// Whether this very range was asked for, and has not all come. It comes so, whatever else could read it meanwhile: its
/// place is free for other requests only then.
pub(crate) fn is_under_way(state: &CommState, source: &MemberBuffer, range: ByteRange) -> bool {
    let run = state.copy_requests.run.as_ref();
    run.is_some_and(|run| run.is_of(source, range))
}

/// As [`super::reader::fetch`], by copy requests. All bytes come at once as far as the caller sees: it calls again
/// until it gets `Ok` with all of them.
pub(crate) fn fetch(
    cx: &mut StepContext<'_>,
    source: &MemberBuffer,
    range: ByteRange,
    mut target: CopyTarget<'_>,
) -> Result<usize> {
    let StepParts {
        memory,
        state,
        tally,
        ..
    } = cx.parts();
    part(state, source, range)?;
    state.need_stages(memory.home())?;
    let own = &state.channel_ends[state.me];
    let CopyRequests { run: runs, ticket } = &mut state.copy_requests;
    let run = runs.get_or_insert_with(|| Run::of(source, range));
    if !run.is_of(source, range) {
        // It is the turn of someone else.
        return Ok(0);
    }
    let taken = run.take(own, memory.loans(), &mut target);
    if taken.is_err() || run.received == range.len {
        let (rank, bytes) = (state.members[run.place], run.received);
        *runs = None;
        tally.add(rank, LayerId::CHUNKS, bytes);
        return taken.and_then(|()| state.failure_of(source.place).map_or(Ok(range.len), Err));
    }
    let theirs = &state.channel_ends[run.place];
    if run.ask(own, theirs, state.me, ticket) {
        state.wake();
    }
    Ok(0)
}

impl Run {
    /// Bytes of a member's buffer, of which nothing was asked for yet.
    fn of(source: &MemberBuffer, range: ByteRange) -> Self {
        Self {
            seq: source.seq,
            place: source.place,
            buffer: source.buffer,
            range,
            asked: 0,
            received: 0,
            stages: [None; COLL_STAGES],
        }
    }

    fn is_of(&self, source: &MemberBuffer, range: ByteRange) -> bool {
        (self.seq, self.place, self.buffer, self.range)
            == (source.seq, source.place, source.buffer, range)
    }

    /// Takes what has come out of the stages. What was asked for first comes first: pieces go round the stages.
    fn take(
        &mut self,
        own: &Channel,
        loans: &mut LoanTable,
        target: &mut CopyTarget<'_>,
    ) -> Result<()> {
        loop {
            let stage = self.received / COLL_STAGE % COLL_STAGES;
            let Some((ticket, bytes)) = self.stages[stage] else {
                return Ok(());
            };
            if !own.is_answered(self.seq, stage, ticket) {
                return Ok(());
            }
            let Some(view) = own.stage(stage, bytes) else {
                return Ok(());
            };
            target.write(loans, self.received, bytes, |out| {
                view.copy_to(out, Kernel::Memcpy);
            })?;
            self.received += bytes;
            self.stages[stage] = None;
        }
    }

    /// Asks for as many pieces as there are free stages. Says whether it asked for any.
    fn ask(&mut self, own: &Channel, theirs: &Channel, me: usize, last: &mut u32) -> bool {
        let before = self.asked;
        while self.asked < self.range.len {
            let stage = self.asked / COLL_STAGE % COLL_STAGES;
            if self.stages[stage].is_some() {
                break;
            }
            let bytes = (self.range.len - self.asked).min(COLL_STAGE);
            *last = last.wrapping_add(1).max(1);
            let request = CopyRequest {
                seq: self.seq,
                ticket: *last,
                owner: self.place as u32,
                buffer: self.buffer as u32,
                offset: (self.range.offset + self.asked) as u64,
                len: bytes as u32,
            };
            own.ask(theirs, me, stage, request);
            self.stages[stage] = Some((request.ticket, bytes));
            self.asked += bytes;
        }
        self.asked > before
    }
}
