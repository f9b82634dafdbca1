// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy requests: a member that cannot read a peer's buffer has the peer copy it, piece by piece, into its own
//! end of the channel.

use super::asked::Run;
use super::source::{Source, Target, part};
use super::state::CommState;
use crate::engine::Engine;
use crate::error::Result;
use onecopy_shm::coll::CopyRequest;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::{COLL_STAGE, COLL_STAGES};

/// As [`super::reader::fetch`], by copy requests. All bytes come at once as far as the caller sees: it calls again
/// until `Ok(len)`.
pub(crate) fn fetch(
    engine: &mut Engine,
    state: &mut CommState,
    source: &Source,
    at: u64,
    len: usize,
    mut target: Target<'_>,
) -> Result<usize> {
    part(state, source, at, len)?;
    state.need_stages(&engine.core.home)?;
    let is_this = |run: &Run| {
        (run.seq, run.place, run.buffer, run.begin, run.len)
            == (source.seq, source.place, source.buffer, at, len)
    };
    let mut run = match state.copy_requests.run.take() {
        Some(run) if is_this(&run) => run,
        Some(other) => {
            // Someone else's turn.
            state.copy_requests.run = Some(other);
            return Ok(0);
        }
        None => Run {
            seq: source.seq,
            place: source.place,
            buffer: source.buffer,
            begin: at,
            asked: 0,
            came: 0,
            len,
            stages: [None; COLL_STAGES],
        },
    };
    // What was asked for first comes first: pieces go round the stages.
    loop {
        let stage = run.came / COLL_STAGE % COLL_STAGES;
        let Some((ticket, bytes)) = run.stages[stage] else {
            break;
        };
        if !state.own().is_answered(run.seq, stage, ticket) {
            break;
        }
        let Some(view) = state.own().stage(stage, bytes) else {
            break;
        };
        target.write(&mut engine.core.loans, run.came, bytes, |out| {
            view.copy_to(out, Kernel::Memcpy);
        })?;
        run.came += bytes;
        run.stages[stage] = None;
    }
    if run.came == run.len {
        return state.failure_of(source.place).map_or(Ok(len), Err);
    }
    let mut asks = false;
    while run.asked < run.len {
        let stage = run.asked / COLL_STAGE % COLL_STAGES;
        if run.stages[stage].is_some() {
            break;
        }
        let bytes = (run.len - run.asked).min(COLL_STAGE);
        state.copy_requests.ticket = state.copy_requests.ticket.wrapping_add(1).max(1);
        let request = CopyRequest {
            seq: run.seq,
            ticket: state.copy_requests.ticket,
            owner: run.place as u32,
            buffer: run.buffer as u32,
            offset: run.begin + run.asked as u64,
            len: bytes as u32,
        };
        state
            .own()
            .ask(&state.ends[run.place], state.me, stage, request);
        run.stages[stage] = Some((request.ticket, bytes));
        run.asked += bytes;
        asks = true;
    }
    if asks {
        state.wake(&engine.peers);
    }
    state.copy_requests.run = Some(run);
    Ok(0)
}
