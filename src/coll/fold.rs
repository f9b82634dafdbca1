// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reductions. Each rank combines what all contributed to its range of the vector, in the order of the ranks. Where it
//! can, it writes the result into the buffers that need it.

mod attach;
pub(super) mod fragment;
mod range;
mod spread;

use super::context::{StepContext, StepMemory, StepParts};
use super::contribution::{Contribution, GIVEN, Readers, Scratch, behind};
use super::exchange::{GivenPiece, give};
use super::lines::{self, Lines};
use super::member_buffer::REMEDY;
use super::push::{Promises, WRITTEN, WriteTarget, reaches_all};
use super::select::{Algorithm, NodeScheme, share};
use super::state::{CommState, STEP_MAX, Step};
use super::tally::Tally;
use super::{ByteRange, ElemType, Op};
use crate::error::{Error, Result};
use crate::peer::Peer;
use onecopy_btl::{LayerId, RemoteRange};
use onecopy_shm::coll::{Content, INLINE};
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::loan::{Loan, LoanRange, LoanTable};

/// A share of the result is combined, and stands in the buffer of its rank: [`WRITTEN`]; it stands in those of all
/// others, too.
const EVERYWHERE: u32 = WRITTEN + 1;

/// Where a member's contribution is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// It is this rank's own.
    Own,
    Inline,
    Slot,
    /// In the spare slot of the end of this place.
    Spare(usize),
    Buffer(RemoteRange),
    /// In a buffer that the kernel module attaches.
    Attached(RemoteRange),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoldState {
    /// Waits for the contributions to its range.
    Contributions,
    Range,
    /// Takes the others' ranges of the result.
    Spread,
    /// At a root that has helpers: waits for their ranges.
    Helped,
}

/// Members whose ranges of the result are not here yet.
#[derive(Default)]
struct Remaining {
    members: Vec<usize>,
    /// Bytes that this rank has taken of the first one's range.
    taken: usize,
}

impl Remaining {
    /// Takes out those that no longer `lack`: they have written their shares here.
    fn take_written(
        &mut self,
        plan: &FoldPlan,
        tally: &mut Tally,
        state: &CommState,
        lack: impl Fn(usize) -> bool,
    ) {
        self.members.retain(|&place| {
            let lacks = lack(place);
            if !lacks {
                let share = plan.share(state.size(), place);
                let rank = state.members[place];
                tally.add(rank, LayerId::MAP, share.len);
            }
            lacks
        });
    }
}

/// What a reduction does: the [plan](super::plan) on lent buffers. It stays as it is while the reduction is under way.
pub(crate) struct FoldPlan {
    pub(crate) op: Op,
    pub(crate) elem: ElemType,
    pub(crate) algorithm: Algorithm,
    pub(crate) send: LoanRange,
    /// Of two ranks, each of which gives no more than the other one combines: that part of the vector.
    pub(crate) part_given: Option<LoanRange>,
    /// Where the result goes.
    pub(crate) recv: Option<Loan>,
    /// The range of the vector that this rank combines; empty: none.
    pub(crate) range: ByteRange,
    /// Members below this place contribute to the range.
    pub(crate) upto: usize,
    /// Whether the vector lies where the result goes.
    pub(crate) in_place: bool,
    pub(crate) readers: Readers,
    /// Whether the range, which lies in the receive buffer, comes to its front at the end.
    pub(crate) to_front: bool,
    /// Who gets the result, if it is only one.
    pub(crate) root: Option<usize>,
}

/// A reduction under way.
pub(crate) struct Fold {
    pub(super) plan: FoldPlan,
    /// This rank's share of the result, if all combine one for the root.
    share: Option<ByteRange>,
    /// Members into whose buffers this rank writes its range of the result.
    targets: Vec<WriteTarget>,
    state: FoldState,
    locations: Vec<Location>,
    /// Bytes of the range that are combined.
    folded: usize,
    /// What cannot be read in place, of the fragment under way: members done, and bytes of the next one.
    fetched: usize,
    remaining: Remaining,
    pub(super) lines: Lines,
    /// What this rank's own line promises.
    promises: Promises,
}

impl FoldPlan {
    /// Whether members may combine ranges of the result for the root.
    fn has_helpers(&self) -> bool {
        self.algorithm == Algorithm::Helped
    }

    /// Whether the result replaces bytes of this rank's vector that others read: they combine all of it themselves, at
    /// their own time. Such a vector fits into a slot.
    fn is_replaced(&self) -> bool {
        self.in_place
            && self.algorithm == Algorithm::Flat
            && self.readers != Readers::Nobody
            && self.recv.is_some()
            && self.gives_all()
            && self.range == ByteRange::first(self.send.len)
    }

    /// Whole elements that have `most` bytes at most, but for one that has more.
    pub(super) fn whole_elements(&self, most: usize) -> usize {
        let size = self.elem.size();
        (most / size * size).max(size)
    }

    /// Whether this rank, and so each, gives all of its vector.
    pub(super) fn gives_all(&self) -> bool {
        self.part_given.is_none()
    }

    /// What of its vector this rank gives.
    pub(super) fn given(&self) -> LoanRange {
        self.part_given.unwrap_or(self.send)
    }

    /// What of the vector the others give.
    pub(super) fn taken(&self) -> ByteRange {
        match self.part_given {
            Some(_) => self.range,
            None => ByteRange::first(self.send.len),
        }
    }

    /// The share of a member, where each combines one.
    fn share(&self, size: usize, place: usize) -> ByteRange {
        share(self.send.len, self.elem, size, place)
    }
}

impl Fold {
    pub(crate) fn new(plan: FoldPlan) -> Self {
        Self {
            plan,
            share: None,
            targets: Vec::new(),
            state: FoldState::Contributions,
            locations: Vec::new(),
            folded: 0,
            fetched: 0,
            remaining: Remaining::default(),
            lines: Lines::default(),
            promises: Promises::default(),
        }
    }

    /// The range of the vector that this rank combines; empty: none.
    fn range(&self) -> ByteRange {
        self.share.unwrap_or(self.plan.range)
    }

    pub(crate) fn begin(&mut self, cx: &mut StepContext<'_>) -> Result<()> {
        let StepParts {
            memory,
            state,
            shared,
            ..
        } = cx.parts();
        let plan = &self.plan;
        let split = plan.algorithm == Algorithm::Split;
        let has_helpers = plan.has_helpers();
        let result = plan.recv.filter(|_| split || has_helpers);
        let result = result.map(|recv| LoanRange::first(recv, plan.send.len));
        self.promises = Promises {
            open: result.is_some_and(|piece| memory.range_of(&piece).heap.is_some()),
            writes: has_helpers && shared.blocking && reaches_all(memory.peers(), state),
            answers: shared.blocking && state.tuning.asks,
        };
        // A member that combines a range for the root reads everyone's contribution.
        let readers = if has_helpers {
            Readers::Everyone
        } else {
            plan.readers
        };
        shared.shares = split;
        let scheme = NodeScheme::Combine {
            algorithm: plan.algorithm,
            in_pieces: false,
            at_once: false,
        };
        let given = GivenPiece {
            unread: 0..0,
            piece: plan.given(),
            is_replaced: plan.is_replaced(),
            readers,
            result,
            flags: self.promises.flags(),
        };
        give(cx, scheme, given)
    }

    pub(crate) fn step(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<Step> {
        let mut result = Step::Idle;
        loop {
            let before = self.state;
            let step = match before {
                FoldState::Contributions => self.await_contributions(cx)?,
                FoldState::Range => self.combine_range(cx, scratch)?,
                FoldState::Helped => self.await_helpers(cx),
                FoldState::Spread => self.spread(cx)?,
            };
            match step {
                Step::Idle => return Ok(result),
                // On to the next state.
                Step::Moved if self.state != before => result = Step::Moved,
                Step::Moved | Step::Done => return Ok(step),
            }
        }
    }

    /// Whether this rank combines anything.
    fn combines(&self) -> bool {
        self.range().len > 0 && self.plan.upto > 0
    }

    /// Whether what this rank combines is a share of the result.
    fn shares_result(&self) -> bool {
        self.plan.algorithm == Algorithm::Split || self.share.is_some()
    }

    /// Waits until it is known what this rank combines and where that is.
    fn await_contributions(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        if !self.share_out(memory, state, seq, shared)? {
            return Ok(Step::Idle);
        }
        if !self.combines() {
            if !self.shares_result() {
                return Ok(Step::Done);
            }
        } else {
            if !self.find(memory, state, seq, shared)? {
                return Ok(Step::Idle);
            }
            self.find_targets(memory, state, seq, shared)?;
        }
        self.state = FoldState::Range;
        Ok(Step::Moved)
    }

    /// Combines fragments of the range, up to as many as one step may.
    fn combine_range(&mut self, cx: &mut StepContext<'_>, scratch: &mut Scratch) -> Result<Step> {
        let all = self.range().len;
        let mut bytes = 0;
        while self.folded < all && self.plan.upto > 0 {
            let n = self.fragment(cx, scratch)?;
            bytes += n;
            match (n, bytes) {
                (0, 0) => return Ok(Step::Idle),
                (0, _) | (_, STEP_MAX..) => return Ok(Step::Moved),
                _ => {}
            }
        }
        scratch.give_back();
        if !self.shares_result() {
            return Ok(Step::Done);
        }
        self.hand_on(cx)
    }

    /// Says that this rank's share of the result is there, and turns to the others' shares.
    fn hand_on(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        let (plan, helps) = (&self.plan, self.share.is_some());
        let split = plan.algorithm == Algorithm::Split;
        let everywhere = split && !self.targets.is_empty();
        let phase = if everywhere { EVERYWHERE } else { WRITTEN };
        state.advance(seq, phase);
        if helps && plan.root != Some(state.me) {
            return Ok(Step::Done);
        }
        self.remaining.members = behind(state.size(), state.me)
            .filter(|&place| plan.share(state.size(), place).len > 0)
            .collect();
        // The result of a split reduction stands in the stage; a root's holds what it gave.
        if split && let (Some(temp), Some(recv)) = (&shared.temp, plan.recv) {
            let ByteRange { offset, len } = plan.range;
            let loans = memory.loans();
            loans.write(recv.range(offset, len), |out| {
                copy_slices(Kernel::Memcpy, out, &temp[offset..][..len]);
            })?;
        }
        self.state = if helps {
            FoldState::Helped
        } else {
            FoldState::Spread
        };
        Ok(Step::Moved)
    }

    /// At a root: waits until its helpers have written their shares.
    fn await_helpers(&mut self, cx: &mut StepContext<'_>) -> Step {
        let (state, seq) = (&*cx.state, cx.seq);
        let lack = |place| state.lacks(place, seq, WRITTEN);
        self.remaining
            .take_written(&self.plan, cx.tally, state, lack);
        if self.remaining.members.is_empty() {
            Step::Done
        } else {
            Step::Idle
        }
    }

    /// Finds out where all contributions are, once they are there.
    fn find(
        &mut self,
        memory: &StepMemory<'_>,
        state: &mut CommState,
        seq: u32,
        shared: &Contribution,
    ) -> Result<bool> {
        let expected = self.plan.taken().len;
        while self.locations.len() < self.plan.upto {
            let place = self.locations.len();
            if place == state.me {
                let is_own = shared.served[GIVEN].is_some() || !self.plan.gives_all();
                self.locations.push(if is_own {
                    Location::Own
                } else if expected <= INLINE {
                    Location::Inline
                } else {
                    Location::Slot
                });
                continue;
            }
            let Some(line) = self.lines.get_or_read(state, place, seq)? else {
                return Ok(false);
            };
            // No longer than line or slot: the bytes are taken by this rank's length, which is the same.
            let (location, len) = match line.content {
                Content::Inline(len) => (Location::Inline, len as u64),
                Content::Slot(len) => (Location::Slot, len as u64),
                Content::Spare(of, len) => match state.place_of_spare(place, of) {
                    Some(end) => (Location::Spare(end), len as u64),
                    None => return Err(mismatch(state, place, 0, expected)),
                },
                Content::Nothing | Content::Message | Content::Pieces => (Location::Inline, 0),
                Content::Buffer => {
                    let range = lines::range(line.given);
                    (reach(memory, state, place, range), range.len)
                }
            };
            if len != expected as u64 {
                return Err(mismatch(state, place, len, expected));
            }
            self.locations.push(location);
        }
        Ok(true)
    }

    /// What is left to do once nobody needs this rank's buffers.
    pub(crate) fn finish(&mut self, loans: &mut LoanTable) -> Result<()> {
        if let (true, Some(recv)) = (self.plan.to_front, self.plan.recv) {
            let ByteRange { offset, len } = self.plan.range;
            loans.copy(recv.range(offset, len), recv, 0)?;
        }
        Ok(())
    }
}

/// How the bytes of a member's buffer are combined: in place, if a layer maps them; asked once per collective.
fn reach(memory: &StepMemory<'_>, state: &CommState, place: usize, range: RemoteRange) -> Location {
    let peer = memory.peers()[state.members[place] as usize].as_ref();
    let attaches = |peer: &Peer| {
        let first = range.part(0, range.len.min(1));
        peer.link.view(&first).is_none() && peer.link.attaches(&range, range.len)
    };
    match peer {
        Some(peer) if attaches(peer) => Location::Attached(range),
        _ => Location::Buffer(range),
    }
}

pub(super) fn mismatch(state: &CommState, place: usize, there: u64, len: usize) -> Error {
    Error::Collective {
        reason: format!(
            "rank {} gave a vector of {there} bytes where {len} were expected; {REMEDY}",
            state.members[place]
        ),
    }
}
