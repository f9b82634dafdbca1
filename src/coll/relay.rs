// SPDX-License-Identifier: MIT OR Apache-2.0
//! A long broadcast to several ranks, of memory that the kernel copies. Copies out of one address space hinder each
//! other. So each rank takes a share of its own from the root. Then, beginning behind its own, it takes the others'
//! shares from those that have them by now. Mapped memory is read in place by all.
//!
//! No rank waits for a share: one that no member has yet is taken from the root, too. A rank's second phase says that
//! its share stands in its buffer. From then on it must not give the buffer back before all have read.

use super::context::{MessageContext, Messenger, StepContext};
use super::contribution::{GIVEN, LoanRange, RESULT, Readers, Served, describe};
use super::exchange::{Exchange, ExchangePlan, READ_MAX};
use super::lines::Lines;
use super::member_buffer::{self, CopyTarget, MemberBuffer};
use super::push::WRITTEN;
use super::reader;
use super::state::{CommState, STEP_MAX, Step};
use crate::error::Result;
use onecopy_shm::coll::{Content, INLINE, kind};
use onecopy_shm::layout::PAGE;
use onecopy_shm::loan::Loan;

/// A member's share of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BroadcastShare {
    owner: usize,
    begin: usize,
    end: usize,
}

/// The piece that is on its way.
#[derive(Debug, Clone, Copy)]
struct Piecemeal {
    part: usize,
    from: MemberBuffer,
    len: usize,
}

/// What a rank other than the root does.
pub(crate) struct Relay {
    root: usize,
    recv: Loan,
    /// How it goes if the root's memory is mapped.
    direct: Exchange,
    /// What is still to come; the first is this rank's own share until it is there.
    left: Vec<BroadcastShare>,
    own: bool,
    now: Option<Piecemeal>,
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
            begin: (index * each).min(len),
            end: ((index + 1) * each).min(len),
        })
        .collect();
    all.retain(|part| part.begin < part.end);
    all
}

impl Relay {
    /// In place of an exchange that takes all from `root`.
    pub(crate) fn new(plan: ExchangePlan, root: usize, recv: Loan, size: usize, me: usize) -> Self {
        let mut direct = Exchange::new(plan);
        direct.order(size, me);
        let left = shares(recv.len(), size, root, me);
        let own = left.first().is_some_and(|part| part.owner == me);
        Self {
            root,
            recv,
            direct,
            left,
            own,
            now: None,
            lines: Lines::default(),
        }
    }

    /// Says where this rank's share will be.
    pub(crate) fn begin(&self, cx: &mut StepContext<'_>) {
        let (memory, state, seq, shared) = cx.parts();
        let piece = LoanRange::whole(self.recv);
        let mut line = [0u8; INLINE];
        describe(&memory.range_of(&piece), &mut line[24..]);
        shared.served[RESULT] = Some(Served::Loan(piece));
        state.publish(seq, kind::NOTHING, &line);
    }

    pub(crate) fn step(&mut self, cx: &mut MessageContext<'_>) -> Result<Step> {
        let channel = cx.over_channel();
        let seq = channel.seq;
        let Some(line) = self.lines.get_or_read(channel.state, self.root, seq)? else {
            return Ok(Step::Idle);
        };
        let range = MemberBuffer::of(&line, seq, self.root, GIVEN).range;
        let first = range.part(0, range.len.min(1));
        if line.content != Content::Buffer
            || reader::view(channel.memory.peers(), channel.state, self.root, &first).is_some()
        {
            return self.direct.step(cx);
        }
        let mut moved = 0;
        while moved < STEP_MAX {
            let now = match self.now {
                Some(now) => now,
                None => match self.next(channel.state, seq)? {
                    Some(next) => next,
                    None => return Ok(Step::Done),
                },
            };
            self.now = Some(now);
            let len = self.recv.len();
            if now.from.range.len != len as u64 {
                let (place, given) = (now.from.place, now.from.range.len);
                return Err(member_buffer::mismatch(channel.state, place, given, len));
            }
            let begin = self.left[now.part].begin;
            let target = CopyTarget::Loan(self.recv, begin);
            if reader::fetch(channel, &now.from, (begin as u64, now.len), target)? < now.len {
                break;
            }
            self.now = None;
            moved += now.len;
            self.left[now.part].begin += now.len;
            if self.left[now.part].begin == self.left[now.part].end {
                self.left.remove(now.part);
                if std::mem::take(&mut self.own) {
                    channel.shared.readers = Readers::Everyone;
                    channel.state.advance(seq, WRITTEN);
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
        place == self.root && state.lacks(place, seq, 1) || self.direct.awaits(state, seq, place)
    }

    /// What comes next, and from whom.
    fn next(&mut self, state: &CommState, seq: u32) -> Result<Option<Piecemeal>> {
        let has = |part: &BroadcastShare| {
            !self.own && state.channel_ends[part.owner].phase(seq) >= WRITTEN
        };
        let there = self.left.iter().position(has);
        let part = there.unwrap_or(0);
        let Some(next) = self.left.get(part).copied() else {
            return Ok(None);
        };
        let (place, buffer) = match there {
            Some(_) => (next.owner, RESULT),
            None => (self.root, GIVEN),
        };
        let line = self.lines.get_or_read(state, place, seq)?;
        Ok(line.map(|line| Piecemeal {
            part,
            from: MemberBuffer::of(&line, seq, place, buffer),
            len: (next.end - next.begin).min(READ_MAX),
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
                    sorted.sort_by_key(|part| part.begin);
                    let mut next = 0;
                    for part in &sorted {
                        assert!(part.begin == next && part.end > next && part.owner != root);
                        next = part.end;
                    }
                    assert_eq!(next, len);
                    for &me in &members {
                        let mut own = of(me);
                        let has_one = sorted.iter().any(|part| part.owner == me);
                        assert!(!has_one || own[0].owner == me);
                        own.sort_by_key(|part| part.begin);
                        assert_eq!(own, sorted);
                    }
                }
            }
        }
    }
}
