// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one of two ranks gives and the other one cannot map goes piece by piece; see [`transfer`]. Where both give, two
//! messages would cross, and each rank would write chunks whose lines the other one has.
//!
//! Each decides so by its own buffer. One that gives pieces reads the other one's buffer if that is mapped.
//!
//! [`transfer`]: super::super::pieces::transfer

use super::super::context::{MessageContext, StepContext, StepParts};
use super::super::member_buffer::CopyTarget;
use super::super::pieces::transfer::{PieceLocation, PieceTransfer};
use super::super::state::{CommState, STEP_MAX};
use super::{Exchange, ExchangePlan};
use crate::error::Result;
use onecopy_btl::LayerId;
use onecopy_shm::coll::Content;
use onecopy_shm::copy::{Kernel, copy_slices};
use onecopy_shm::loan::LoanRange;

impl ExchangePlan {
    /// What goes in pieces between this rank and the other one of two. `given`: what this rank gives so.
    fn transfer(&self, state: &CommState, given: LoanRange) -> PieceTransfer {
        let taken = self.takes.of(1 - state.me).len;
        PieceTransfer::new(given, taken, 1)
    }
}

impl Exchange {
    /// Begins to give `part` in pieces. What one rank alone gives goes so only in a kept buffer whose lines are here. A
    /// message has chunks that return, too. `false`: it does not go so.
    pub(super) fn begin_pieces(
        &mut self,
        cx: &mut StepContext<'_>,
        part: LoanRange,
    ) -> Result<bool> {
        let mut transfer = self.plan.transfer(cx.state, part);
        let begun = match self.pending.is_empty() {
            true => cx.state.bounce.is_at_hand() && transfer.begin_kept(cx)?,
            false => transfer.begin_kept(cx)? || transfer.begin(cx)?,
        };
        if begun {
            self.pieces = Some(Box::new(transfer));
        }
        Ok(begun)
    }

    /// Whether pieces of the other rank's are to be read still, or may be: its line was not read.
    fn takes_pieces(&self, transfer: &PieceTransfer) -> bool {
        !self.pending.is_empty() && transfer.other_gives() != Some(false)
    }

    /// Writes pieces and reads them. Gives the bytes moved.
    pub(super) fn step_pieces(&mut self, cx: &mut StepContext<'_>) -> Result<usize> {
        let mut moved = 0;
        if cx.state.size() != 2 {
            return Ok(0);
        }
        if let Some(transfer) = &self.pieces {
            transfer.check_roots(&mut self.lines, cx.state, cx.seq)?;
        }
        while moved < STEP_MAX {
            let n = self.write_piece(cx)? + self.read_piece(cx)?;
            moved += n;
            let Some(transfer) = self.pieces.as_deref() else {
                break;
            };
            let takes = self.takes_pieces(transfer);
            if !takes && transfer.is_written() {
                break;
            }
            let ready = |state: &CommState, seq| {
                transfer.can_write(state, seq) || takes && transfer.is_there(state, seq)
            };
            // What is there and was not read is asked of its owner.
            if n == 0 && (ready(cx.state, cx.seq) || !PieceTransfer::poll(cx, ready)) {
                break;
            }
        }
        Ok(moved)
    }

    /// What comes in pieces comes as no message.
    pub(super) fn withdraw_for_pieces(&mut self, cx: &mut MessageContext<'_>) {
        let comes = |transfer: &PieceTransfer| transfer.other_gives() == Some(true);
        if let Some(messages) = &mut self.messages
            && self.pieces.as_deref().is_some_and(comes)
        {
            let other = 1 - cx.over_channel().state.me;
            messages.withdraw(&mut cx.by_messages().messenger, other);
        }
    }

    /// Writes the next piece, if there is room. Gives its bytes.
    pub(super) fn write_piece(&mut self, cx: &mut StepContext<'_>) -> Result<usize> {
        let Some(transfer) = &mut self.pieces else {
            return Ok(0);
        };
        // Where there is room depends on how the other rank gives, whether or not this one has read that by now.
        if transfer.lacks_line()
            && let Some(line) = self.lines.get_or_read(cx.state, 1 - cx.state.me, cx.seq)?
        {
            transfer.note(cx.state, line);
        }
        transfer.write(cx)
    }

    /// Reads the next piece, if there is one. Gives its bytes.
    fn read_piece(&mut self, cx: &mut StepContext<'_>) -> Result<usize> {
        let (seq, other) = (cx.seq, 1 - cx.state.me);
        let Some(recv) = self.plan.recv.filter(|_| !self.pending.is_empty()) else {
            return Ok(0);
        };
        let Some(line) = self.lines.get_or_read(cx.state, other, seq)? else {
            return Ok(0);
        };
        let is_in_pieces = line.content == Content::Pieces;
        if self.pieces.is_none() && is_in_pieces {
            // This rank gives nothing so.
            let nothing = LoanRange::first(recv, 0);
            self.pieces = Some(Box::new(self.plan.transfer(cx.state, nothing)));
        }
        let Some(transfer) = &mut self.pieces else {
            return Ok(0);
        };
        if transfer.line().is_none() {
            transfer.note(cx.state, line);
        }
        if !is_in_pieces || !transfer.is_there(cx.state, seq) {
            return Ok(0);
        }
        let to = self.plan.takes.of(other).offset + transfer.read();
        let n = transfer.next_bytes();
        match transfer.read_at(cx.state, seq, &line)? {
            PieceLocation::There(range) => {
                let target = CopyTarget::Loan(recv, to);
                if transfer.fetch(cx, &line, &range, target)? < n {
                    return Ok(0);
                }
            }
            PieceLocation::Here(at) => {
                let StepParts {
                    memory,
                    state,
                    shared,
                    ..
                } = cx.parts();
                let bounce = transfer.here(&state.bounce, shared);
                memory.loans().write(recv.range(to, n), |out| {
                    copy_slices(Kernel::Memcpy, out, &bounce[at..at + n]);
                })?;
                cx.tally.add(cx.state.members[other], LayerId::MAP, n);
            }
        }
        transfer.has_read(cx.state, seq, n)?;
        if transfer.is_read() {
            self.pending.clear();
        }
        Ok(n)
    }

    /// Whether pieces lack what the other rank is to write, or to read; see
    /// [`Operation::awaits`](super::super::op::Operation::awaits).
    pub(super) fn awaits_pieces(&self, state: &CommState, seq: u32) -> bool {
        self.pieces.as_deref().is_some_and(|transfer| {
            !transfer.is_written() && !transfer.has_room(state, seq)
                || self.takes_pieces(transfer) && !transfer.is_there(state, seq)
        })
    }
}
