// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank has asked of a member by copy requests, and what of it has come.

use super::ByteRange;
use onecopy_shm::layout::COLL_STAGES;

/// What this rank asks of a peer now: one range at a time, so that the stages are in one hand.
#[derive(Default)]
pub(crate) struct CopyRequests {
    pub(super) run: Option<Run>,
    pub(super) ticket: u32,
}

/// A range that was asked for.
pub(super) struct Run {
    pub(super) seq: u32,
    pub(super) place: usize,
    pub(super) buffer: usize,
    pub(super) range: ByteRange,
    /// Bytes of it that were asked for, and that have arrived.
    pub(super) asked: usize,
    pub(super) received: usize,
    /// Tickets and lengths of what is under way, per stage.
    pub(super) stages: [Option<(u32, usize)>; COLL_STAGES],
}

impl CopyRequests {
    /// Whether this rank has asked `place` for something that has not come.
    pub(crate) fn asks(&self, place: usize) -> bool {
        self.run.as_ref().is_some_and(|run| run.place == place)
    }
}
