// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a rank's range of a result goes: who combines for whom, who writes and who reads.

use super::super::ByteRange;
use super::super::context::{StepContext, StepMemory};
use super::super::contribution::{Contribution, RESULT, Readers};
use super::super::exchange::READ_MAX;
use super::super::member_buffer::{CopyTarget, MemberBuffer};
use super::super::push::{WRITTEN, WriteSource, WriteTarget, opened, put_to_all, reaches_all};
use super::super::reader;
use super::super::select::Algorithm;
use super::super::state::{CommState, STEP_MAX, Step};
use super::{EVERYWHERE, Fold, FoldState, mismatch};
use crate::error::Result;
use onecopy_shm::coll::kind;

impl Fold {
    /// Whether this rank reads all lines, to know if there are helpers.
    fn asks_for_help(&self, state: &CommState) -> bool {
        let is_root = self.plan.root == Some(state.me);
        self.plan.has_helpers() && (is_root || self.promises.writes)
    }

    /// Decides whether all combine a range of the result for the root: they do if the root's buffer is open and all
    /// others write. Everyone reads the same flags. `false`: not all have come.
    pub(super) fn share_out(
        &mut self,
        memory: &StepMemory<'_>,
        state: &mut CommState,
        seq: u32,
        shared: &mut Contribution,
    ) -> Result<bool> {
        let Some(root) = self.plan.root.filter(|_| self.plan.has_helpers()) else {
            return Ok(true);
        };
        let me = state.me;
        if !self.asks_for_help(state) {
            shared.readers = Readers::Only(root);
            return Ok(true);
        }
        if !self.find(memory, state, seq, shared)? {
            return Ok(false);
        }
        // Of its own line a rank knows what it has written there.
        let mut helped = me != root || self.promises.open;
        let mut open = None;
        for place in (0..state.size()).filter(|&place| place != me) {
            let Some(line) = self.lines.get_or_read(state, place, seq)? else {
                return Ok(false);
            };
            if place == root {
                open = opened(&line);
                helped &= open.is_some();
            } else {
                helped &= line.has(kind::WRITES);
            }
        }
        if !helped {
            shared.readers = if me == root {
                Readers::Nobody
            } else {
                Readers::Only(root)
            };
            return Ok(true);
        }
        self.share = Some(self.plan.share(state.size(), me));
        if let Some(range) = open {
            let len = self.plan.send.len;
            if range.len != len as u64 || !reaches_all(memory.peers(), state) {
                return Err(mismatch(state, root, range.len, len));
            }
            self.targets = vec![WriteTarget { place: root, range }];
        }
        Ok(true)
    }

    /// See [`super::super::op::Operation::awaits`].
    pub(in super::super) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        let lacks = |phase| state.lacks(place, seq, phase);
        match self.state {
            FoldState::Contributions => {
                let combines = self.combines() && place < self.plan.upto;
                (self.asks_for_help(state) || combines) && lacks(1)
            }
            FoldState::Helped | FoldState::Spread => {
                self.remaining.members.contains(&place) && lacks(WRITTEN)
            }
            // What is asked for is in the copy requests.
            FoldState::Range => false,
        }
    }

    /// Finds out whether the result can be written to where all others need it.
    pub(super) fn find_targets(
        &mut self,
        memory: &StepMemory<'_>,
        state: &CommState,
        seq: u32,
        shared: &Contribution,
    ) -> Result<()> {
        if self.plan.algorithm != Algorithm::Split
            || shared.temp.is_some()
            || !reaches_all(memory.peers(), state)
        {
            return Ok(());
        }
        let mut targets = Vec::with_capacity(state.size());
        for place in (0..state.size()).filter(|&place| place != state.me) {
            let line = self.lines.get_or_read(state, place, seq)?;
            match line.as_ref().and_then(opened) {
                Some(range) if range.len == self.plan.send.len as u64 => {
                    targets.push(WriteTarget { place, range })
                }
                _ => return Ok(()),
            }
        }
        self.targets = targets;
        Ok(())
    }

    /// Writes a fragment of the result to where it is needed: from this rank's own buffer, or from `helped`.
    pub(super) fn put_out(
        &self,
        memory: &mut StepMemory<'_>,
        state: &CommState,
        range: ByteRange,
        helped: &[u8],
    ) -> Result<()> {
        if self.targets.is_empty() {
            return Ok(());
        }
        let source = match self.plan.recv {
            Some(recv) => WriteSource::Loan(recv, range.offset),
            None => WriteSource::Bytes(helped),
        };
        put_to_all(memory, state, &self.targets, range, source)
    }

    /// Takes the others' ranges of the result.
    pub(super) fn spread(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let Some(recv) = self.plan.recv else {
            return Ok(Step::Done);
        };
        let seq = cx.seq;
        let state = &*cx.state;
        let lack = |place| state.lacks(place, seq, EVERYWHERE);
        self.remaining
            .take_written(&self.plan, cx.tally, state, lack);
        let (mut moved, mut index) = (0, 0);
        while index < self.remaining.members.len() && moved < STEP_MAX {
            let place = self.remaining.members[index];
            let state = &*cx.state;
            if state.lacks(place, seq, WRITTEN) {
                index += 1;
                continue;
            }
            let Some(line) = self.lines.get_or_read(state, place, seq)? else {
                index += 1;
                continue;
            };
            let share = self.plan.share(state.size(), place);
            let source = MemberBuffer::of(&line, seq, place, RESULT);
            let wanted = ByteRange {
                offset: share.offset + self.remaining.taken,
                len: (share.len - self.remaining.taken).min(READ_MAX),
            };
            let target = CopyTarget::Loan(recv, wanted.offset);
            let received = reader::fetch(cx, &source, wanted, target)?;
            moved += received;
            self.remaining.taken += received;
            if self.remaining.taken == share.len {
                self.remaining.members.remove(index);
                self.remaining.taken = 0;
            } else {
                self.remaining.members.swap(0, index);
                index = 0;
                if received == 0 {
                    break;
                }
            }
        }
        // What this rank has combined stands everywhere, and what it gave is combined.
        let all = || {
            cx.state
                .channel_ends
                .iter()
                .all(|end| end.phase(seq) >= WRITTEN)
        };
        if self.remaining.members.is_empty() && !self.targets.is_empty() && all() {
            cx.shared.readers = Readers::Nobody;
        }
        Ok(match (self.remaining.members.is_empty(), moved) {
            (true, _) => Step::Done,
            (false, 0) => Step::Idle,
            (false, _) => Step::Moved,
        })
    }
}
