// SPDX-License-Identifier: MIT OR Apache-2.0
//! A long broadcast to several ranks, of memory that the kernel copies. Copies out of one address space hinder each
//! other. So each rank takes a share of its own from the root. Then, beginning behind its own, it takes the others'
//! shares from those that have them by now. Mapped memory is read in place by all.
//!
//! No rank waits for a share: one that no member has yet is taken from the root, too. A rank's second phase says that
//! its share stands in its buffer. From then on it must not give the buffer back before all have read.

use super::ByteRange;
use super::context::{MessageContext, Messenger, StepContext, StepParts};
use super::contribution::{GIVEN, RESULT, Readers, Served, describe};
use super::exchange::{Exchange, ExchangePlan, READ_MAX};
use super::lines::Lines;
use super::member_buffer::{self, CopyTarget, MemberBuffer};
use super::push::WRITTEN;
use super::reader;
use super::state::{CommState, STEP_MAX, Step};
use crate::error::Result;
use onecopy_shm::coll::{Content, INLINE, kind};
use onecopy_shm::layout::PAGE;
use onecopy_shm::loan::{Loan, LoanRange};

/// A member's share of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BroadcastShare {
    owner: usize,
    range: ByteRange,
}

/// The piece under way.
#[derive(Debug, Clone, Copy)]
struct CurrentPiece {
    /// Which of the shares that are still to come begins with it.
    share: usize,
    from: MemberBuffer,
    len: usize,
}

/// What a rank other than the root does. It stays as it is while the broadcast is under way.
struct RelayPlan {
    root: usize,
    recv: Loan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayState {
    /// Waits for the root's line.
    Root,
    /// The root's memory is mapped, or its line holds all: an exchange takes it.
    Direct,
    /// Takes this rank's own share, which others may wait to see, from the root.
    OwnShare,
    /// Takes the others' shares.
    OtherShares,
}

/// A broadcast by shares under way, at a rank other than the root.
pub(crate) struct Relay {
    plan: RelayPlan,
    state: RelayState,
    /// How it goes if the root's memory is mapped.
    direct: Exchange,
    /// What is still to come; the first is this rank's own share until it is there.
    left: Vec<BroadcastShare>,
    now: Option<CurrentPiece>,
    lines: Lines,
}

/// The shares, the one of `me` first, then those behind it.
fn shares(len: usize, size: usize, root: usize, me: usize) -> Vec<BroadcastShare> {
    let ranks = size - 1;
    let each = len.div_ceil(ranks).next_multiple_of(PAGE);
    let index = |place: usize| (place + size - root - 1) % size;
    let mut all: Vec<BroadcastShare> = (0..ranks)
        .map(|step| (index(me) + step) % ranks)
        .map(|index| BroadcastShare {
            owner: (root + 1 + index) % size,
            range: ByteRange::between((index * each).min(len), ((index + 1) * each).min(len)),
        })
        .collect();
    all.retain(|share| share.range.len > 0);
    all
}

impl Relay {
    /// In place of an exchange that takes all from `root`.
    pub(crate) fn new(plan: ExchangePlan, root: usize, recv: Loan, size: usize, me: usize) -> Self {
        Self {
            plan: RelayPlan { root, recv },
            state: RelayState::Root,
            direct: Exchange::new(plan, size, me),
            left: shares(recv.len(), size, root, me),
            now: None,
            lines: Lines::default(),
        }
    }

    /// Says where this rank's share will be.
    pub(crate) fn begin(&self, cx: &mut StepContext<'_>) {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        let piece = LoanRange::whole(self.plan.recv);
        let mut line = [0u8; INLINE];
        describe(&memory.range_of(&piece), &mut line[24..]);
        shared.served[RESULT] = Some(Served::Loan(piece));
        state.publish(seq, kind::NOTHING, &line);
    }

    pub(crate) fn step(&mut self, cx: &mut MessageContext<'_>) -> Result<Step> {
        if self.state == RelayState::Root {
            match self.decide(cx.over_channel())? {
                Some(state) => self.state = state,
                None => return Ok(Step::Idle),
            }
        }
        if self.state == RelayState::Direct {
            return self.direct.step(cx);
        }
        self.take_shares(cx.over_channel())
    }

    /// Decides by the root's line how it goes; none: the line is not there.
    fn decide(&mut self, cx: &StepContext<'_>) -> Result<Option<RelayState>> {
        let (root, seq) = (self.plan.root, cx.seq);
        let Some(line) = self.lines.get_or_read(cx.state, root, seq)? else {
            return Ok(None);
        };
        let range = MemberBuffer::of(&line, seq, root, GIVEN).range;
        let first = range.part(0, range.len.min(1));
        let is_direct = line.content != Content::Buffer
            || reader::view(cx.memory.peers(), cx.state, root, &first).is_some();
        let me = cx.state.me;
        Ok(Some(if is_direct {
            RelayState::Direct
        } else if self.left.first().is_some_and(|share| share.owner == me) {
            RelayState::OwnShare
        } else {
            // The payload has fewer pages than there are receivers.
            RelayState::OtherShares
        }))
    }

    /// Takes pieces of shares, up to as many as one step may.
    fn take_shares(&mut self, cx: &mut StepContext<'_>) -> Result<Step> {
        let (recv, seq) = (self.plan.recv, cx.seq);
        let mut moved = 0;
        while moved < STEP_MAX {
            let now = match self.now {
                Some(now) => now,
                None => match self.next(cx.state, seq)? {
                    Some(next) => next,
                    None => return Ok(Step::Done),
                },
            };
            self.now = Some(now);
            let len = recv.len();
            if now.from.range.len != len as u64 {
                let (place, given) = (now.from.place, now.from.range.len);
                return Err(member_buffer::mismatch(cx.state, place, given, len));
            }
            let left = self.left[now.share].range;
            let wanted = ByteRange {
                len: now.len,
                ..left
            };
            let target = CopyTarget::Loan(recv, wanted.offset);
            if reader::fetch(cx, &now.from, wanted, target)? < now.len {
                break;
            }
            self.now = None;
            moved += now.len;
            self.left[now.share].range = left.skip(now.len);
            if now.len == left.len {
                self.left.remove(now.share);
                if self.state == RelayState::OwnShare {
                    self.state = RelayState::OtherShares;
                    cx.shared.readers = Readers::Everyone;
                    cx.state.advance(seq, WRITTEN);
                }
            }
        }
        Ok(if moved > 0 { Step::Moved } else { Step::Idle })
    }

    /// Gives back what it holds; it will not go on.
    pub(crate) fn abandon(&mut self, messenger: &mut Messenger<'_>) {
        self.direct.abandon(messenger);
    }

    /// See [`super::op::Operation::awaits`]. Nobody waits for a share, and what is asked for is in the copy requests.
    pub(crate) fn awaits(&self, state: &CommState, seq: u32, place: usize) -> bool {
        match self.state {
            RelayState::Root => place == self.plan.root && state.lacks(place, seq, 1),
            RelayState::Direct => self.direct.awaits(state, seq, place),
            RelayState::OwnShare | RelayState::OtherShares => false,
        }
    }

    /// What comes next, and from whom.
    fn next(&mut self, state: &CommState, seq: u32) -> Result<Option<CurrentPiece>> {
        let has = |share: &BroadcastShare| {
            self.state == RelayState::OtherShares
                && state.channel_ends[share.owner].phase(seq) >= WRITTEN
        };
        let there = self.left.iter().position(has);
        let share = there.unwrap_or(0);
        let Some(next) = self.left.get(share).copied() else {
            return Ok(None);
        };
        let (place, buffer) = match there {
            Some(_) => (next.owner, RESULT),
            None => (self.plan.root, GIVEN),
        };
        let line = self.lines.get_or_read(state, place, seq)?;
        Ok(line.map(|line| CurrentPiece {
            share,
            from: MemberBuffer::of(&line, seq, place, buffer),
            len: next.range.len.min(READ_MAX),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_payload_and_begin_with_each_ranks_own() {
        for size in 3..9 {
            for root in 0..size {
                for len in [PAGE, 300_000, 1 << 20] {
                    let of = |me| shares(len, size, root, me);
                    let members: Vec<_> = (0..size).filter(|&me| me != root).collect();
                    let mut sorted = of(members[0]);
                    sorted.sort_by_key(|share| share.range.offset);
                    let mut next = 0;
                    for BroadcastShare { owner, range } in &sorted {
                        assert!(range.offset == next && range.len > 0 && *owner != root);
                        next = range.end();
                    }
                    assert_eq!(next, len);
                    for &me in &members {
                        let mut own = of(me);
                        let has_one = sorted.iter().any(|share| share.owner == me);
                        assert!(!has_one || own[0].owner == me);
                        own.sort_by_key(|share| share.range.offset);
                        assert_eq!(own, sorted);
                    }
                }
            }
        }
    }
}
