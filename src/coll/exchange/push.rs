// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an exchange writes into members' receive buffers; see [`super::super::push`].

use super::super::ByteRange;
use super::super::context::{StepContext, StepMemory, StepParts};
use super::super::contribution::{GIVEN, Readers};
use super::super::lines::Lines;
use super::super::plan::{BufferCopy, Takes};
use super::super::push::{
    Gives, PIECE, Promises, WRITTEN, WriteSource, WriteTarget, half, opened, place_of, put_to_all,
    reaches_all,
};
use super::super::reader;
use super::super::select::is_short;
use super::super::state::{CommState, STEP_MAX};
use super::ExchangePlan;
use crate::error::{Error, Result};
use onecopy_shm::coll::{CheckedLine, Content, kind};
use onecopy_shm::loan::{Loan, LoanRange};

/// Steps in which a rank waits for members, before it copies what it takes from itself alone. Together with what goes
/// to a member it would be loaded once for both. A member that is not ready by then may not be for long. Chosen by
/// magnitude: so many steps are some microseconds.
const OWN_COPY_AFTER: u32 = 16;

/// A part of the buffer of the offer on its way.
#[derive(Debug)]
struct PushedPart {
    /// First byte in that buffer.
    from: usize,
    len: usize,
    /// Where it goes in this rank's own buffer.
    own: Option<usize>,
    targets: Vec<WriteTarget>,
    done: usize,
}

/// What is written in an exchange: by this rank into others' buffers, and by others into its own. And what this rank
/// copies for itself.
#[derive(Debug, Default)]
pub(super) struct Push {
    /// Whether members may write into this rank's receive buffer.
    opened: bool,
    /// Whether this rank has published that it writes.
    writes: bool,
    /// Members into whose buffers it may have to write.
    targets: Vec<usize>,
    /// Members for whom it wrote all that they get.
    served: usize,
    part: Option<PushedPart>,
    idle: u32,
    announced: bool,
    /// Whether what this rank takes from itself is taken up.
    own_done: bool,
}

/// How far a step has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct PushProgress {
    /// Bytes that it moved.
    pub(super) moved: usize,
    /// Whether all is copied, and written.
    pub(super) over: bool,
}

impl ExchangePlan {
    /// Whether this rank may write what it gives, by what it can do and what its buffer is.
    fn may_write(&self, memory: &StepMemory<'_>, state: &CommState) -> bool {
        let short = |offer: LoanRange| {
            let mapped = memory.range_of(&offer).heap.is_some();
            is_short(offer.len, mapped, state.slot_bytes())
        };
        self.gives != Gives::Nothing
            && self.table.is_none()
            && !self.offer.is_none_or(short)
            && reaches_all(memory.peers(), state)
    }

    /// What goes to `place`, from the offer to its open buffer of `room` bytes. None: the buffer is not what it should
    /// be.
    fn portion(&self, me: usize, size: usize, place: usize, room: u64) -> Option<BufferCopy> {
        let offered = self.offer.map_or(0, |offer| offer.len);
        let (expected, copy) = match self.gives {
            Gives::Nothing => return None,
            Gives::All => {
                let all = offered.checked_mul(size)?;
                let copy = BufferCopy {
                    from: 0,
                    to: me * offered,
                    len: offered,
                };
                (all, copy)
            }
            Gives::Parts(part) => {
                let all = part.checked_mul(size)?;
                let copy = BufferCopy {
                    from: if self.by_parts { place * part } else { 0 },
                    to: me * part,
                    len: part,
                };
                (all, copy)
            }
            Gives::Half => {
                let front = half(offered);
                let copy = BufferCopy {
                    from: front,
                    to: front,
                    len: offered - front,
                };
                (offered, copy)
            }
        };
        (expected as u64 == room).then_some(copy)
    }
}

impl Push {
    /// Whether the line of `place` is to say where to write.
    pub(super) fn awaits(&self, place: usize) -> bool {
        self.targets.contains(&place)
    }

    /// What the line promises, by what this rank can do and what its buffers are. What it gives is not written if it
    /// `goes` as a message.
    pub(super) fn promises(
        &mut self,
        plan: &ExchangePlan,
        memory: &StepMemory<'_>,
        state: &CommState,
        blocking: bool,
        goes: bool,
    ) -> Promises {
        let open = plan
            .open()
            .is_some_and(|piece| memory.range_of(&piece).heap.is_some());
        self.opened = open;
        self.writes = blocking && !goes && plan.may_write(memory, state);
        if self.writes {
            self.targets = plan.readers.others(state.size(), state.me).collect();
        }
        // One that gives all members much and takes nothing would copy for all, one after the other.
        let mutual = matches!(plan.takes, Takes::Each(_));
        Promises {
            open,
            writes: self.writes,
            answers: blocking && mutual && state.tuning.asks,
        }
    }

    /// Bytes of `len` from the front that this rank reads itself.
    pub(super) fn reads(&self, plan: &ExchangePlan, line: &CheckedLine, len: usize) -> usize {
        match plan.gives {
            _ if !self.opened || !line.has(kind::WRITES) => len,
            _ if line.content != Content::Buffer => len,
            Gives::Half => half(len),
            _ => 0,
        }
    }

    /// What this rank takes from itself is taken up.
    pub(super) fn skip_own(&mut self) {
        self.own_done = true;
    }

    /// What this rank takes from itself, if it is not taken up yet.
    fn own(&self, plan: &ExchangePlan) -> Option<BufferCopy> {
        plan.own.filter(|_| !self.own_done)
    }

    /// Members that are ready to be written to, each with its open buffer. Those that read for themselves are no
    /// targets any more.
    fn ready(
        &mut self,
        lines: &mut Lines,
        state: &CommState,
        seq: u32,
    ) -> Result<Vec<WriteTarget>> {
        let mut ready = Vec::new();
        let mut bad = Ok(());
        self.targets
            .retain(|&place| match lines.get_or_read(state, place, seq) {
                Ok(None) => true,
                Ok(Some(line)) => {
                    let range = opened(&line);
                    ready.extend(range.map(|range| WriteTarget { place, range }));
                    // A member without an open buffer reads for itself.
                    range.is_some()
                }
                Err(error) => {
                    bad = Err(error);
                    true
                }
            });
        bad.map(|()| ready)
    }

    /// Takes up the next part: what members are ready for, and what this rank takes from itself.
    fn next_part(
        &mut self,
        plan: &ExchangePlan,
        lines: &mut Lines,
        state: &CommState,
        seq: u32,
    ) -> Result<Option<PushedPart>> {
        let ready = self.ready(lines, state, seq)?;
        let own = self.own(plan);
        let has_stragglers = self.targets.len() > ready.len();
        // What all get is read once, for all of them and this rank.
        let fused = plan.gives == Gives::All;
        // A block of its own goes first in every other collective, as pieces do.
        let first = own.is_some() && !fused && seq & 1 == 0;
        let own_turn = first || ready.is_empty() || fused && has_stragglers;
        if !own_turn {
            return self.part_for(plan, state, &ready, fused).map(Some);
        }
        if own.is_none() && ready.is_empty() {
            return Ok(None);
        }
        self.idle += 1;
        if let Some(own) = own {
            let now = first || !has_stragglers || self.idle > OWN_COPY_AFTER;
            self.own_done = now;
            return Ok(now.then(|| PushedPart::own(own)));
        }
        self.part_for(plan, state, &ready, fused).map(Some)
    }

    /// What goes to members that are ready: to all of them and this rank at once if it is `fused`, or to the first one.
    fn part_for(
        &mut self,
        plan: &ExchangePlan,
        state: &CommState,
        ready: &[WriteTarget],
        fused: bool,
    ) -> Result<PushedPart> {
        let own = self.own(plan).filter(|_| fused);
        self.own_done |= fused;
        let mut part = PushedPart {
            from: 0,
            len: 0,
            own: own.map(|own| own.to),
            targets: Vec::new(),
            done: 0,
        };
        let at_once = if fused { ready.len() } else { 1 };
        for &WriteTarget { place, range } in ready.iter().take(at_once) {
            let (size, me) = (state.size(), state.me);
            let Some(copy) = plan.portion(me, size, place, range.len) else {
                return Err(Error::Collective {
                    reason: format!(
                        "rank {} receives into {} bytes, which is not what this rank gives",
                        state.members[place], range.len
                    ),
                });
            };
            self.targets.retain(|&other| other != place);
            self.served += usize::from(plan.gives != Gives::Half);
            let offset = plan.offer.map_or(0, |offer| offer.offset);
            (part.from, part.len) = (offset + copy.from, copy.len);
            part.targets.push(WriteTarget {
                place,
                range: range.part(copy.to as u64, copy.len as u64),
            });
        }
        Ok(part)
    }

    /// Copies what this rank takes from itself, and what it writes into members' buffers.
    pub(super) fn step(
        &mut self,
        plan: &ExchangePlan,
        lines: &mut Lines,
        cx: &mut StepContext<'_>,
    ) -> Result<PushProgress> {
        let StepParts {
            memory,
            state,
            seq,
            shared,
            ..
        } = cx.parts();
        let mut moved = 0;
        while moved < STEP_MAX {
            if self.part.is_none() {
                if self.is_over(plan) {
                    break;
                }
                self.part = self.next_part(plan, lines, state, seq)?;
            }
            let (Some(part), Some(offer)) = (&mut self.part, plan.offer) else {
                return Ok(PushProgress { moved, over: false });
            };
            let n = PIECE.min(part.len - part.done);
            let offset = place_of(seq, part.len, part.done, n);
            part.done += n;
            moved += n;
            let piece = ByteRange { offset, len: n };
            part.copy(memory, state, offer.loan, plan.recv, piece)?;
            if part.done == part.len {
                self.part = None;
            }
        }
        let over = self.is_over(plan);
        if over && self.writes && !self.announced {
            self.announced = true;
            state.advance(seq, WRITTEN);
            if self.served == plan.readers.others(state.size(), state.me).count() {
                shared.readers = Readers::Nobody;
                shared.served[GIVEN] = None;
            }
        }
        Ok(PushProgress { moved, over })
    }

    /// Whether all is copied, and written.
    fn is_over(&self, plan: &ExchangePlan) -> bool {
        self.part.is_none() && self.own(plan).is_none() && self.targets.is_empty()
    }
}

impl PushedPart {
    /// What a rank takes from itself.
    fn own(BufferCopy { from, to, len }: BufferCopy) -> Self {
        Self {
            from,
            len,
            own: Some(to),
            targets: Vec::new(),
            done: 0,
        }
    }

    /// Copies a piece of what it is about, from the buffer `loan` of the offer.
    fn copy(
        &self,
        memory: &mut StepMemory<'_>,
        state: &CommState,
        loan: Loan,
        recv: Option<Loan>,
        piece: ByteRange,
    ) -> Result<()> {
        let ByteRange { offset, len } = piece;
        let from = self.from + offset;
        if let (Some(to), Some(recv)) = (self.own, recv) {
            let loans = memory.loans();
            loans.copy(loan.range(from, len), recv, to + offset)?;
        }
        if self.targets.is_empty() {
            return Ok(());
        }
        if self.done == len {
            // The page tables for all of it are filled in one call.
            for &WriteTarget { place, range } in &self.targets {
                let _ = reader::view(memory.peers(), state, place, &range);
            }
        }
        let source = WriteSource::Loan(loan, from);
        put_to_all(memory, state, &self.targets, piece, source)
    }
}
