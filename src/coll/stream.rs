// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prefix reductions of long vectors: each rank takes the prefix of the one before it, piece by piece through halves of its slot, adds its own
//! vector and hands on the result.

use super::op::{Piece, kind};
use super::state::{State, Step};
use super::{ElemType, Op};
use crate::engine::Engine;
use crate::error::Result;
use onecopy_shm::coll::{View, precede};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::COLL_SLOT;
use onecopy_shm::loan::Loan;

const HALF: usize = COLL_SLOT / 2;

/// A prefix reduction under way.
pub(crate) struct Stream {
    pub(crate) op: Op,
    pub(crate) elem: ElemType,
    pub(crate) exclusive: bool,
    pub(crate) send: Piece,
    pub(crate) recv: (Loan, usize),
    /// Pieces handed on.
    pub(crate) passed: usize,
}

/// Memory for one piece, aligned for every element.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Piecewise([u8; HALF]);

impl Stream {
    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        state: &mut State,
        seq: u32,
    ) -> Result<Step> {
        let size = self.elem.size();
        let unit = HALF / size * size;
        let (me, last) = (state.me, state.size() - 1);
        let mut result = Step::Idle;
        let mut before = Piecewise([0; HALF]);
        let mut with = Piecewise([0; HALF]);
        loop {
            let begin = self.passed * unit;
            if begin >= self.send.len {
                return Ok(Step::Done);
            }
            let len = unit.min(self.send.len - begin);
            let (before, with) = (&mut before.0[..len], &mut with.0[..len]);
            let phase = self.passed as u32 + 1;
            let half = self.passed % 2 * HALF;
            let come = me == 0 || state.ends[me - 1].look(seq) >= phase;
            // The half was read by the next rank when it held the piece before the last.
            let free = me == last || phase <= 2 || state.ends[me + 1].ack(seq) >= phase - 2;
            if !come || !free {
                return Ok(result);
            }
            engine
                .core
                .loans
                .read(self.send.loan, self.send.at + begin, len, |bytes| {
                    with.copy_from_slice(bytes);
                })?;
            if me > 0 {
                let view = state.ends[me - 1].slot(seq).part(half, len);
                view.copy_to(before, Kernel::Memcpy);
                match &self.op {
                    Op::Predefined(op) => precede(*op, self.elem, with, View::of(before)),
                    Op::User(function) => function(before, with),
                }
            }
            if me < last {
                state.own().write_slot(seq, half, with);
                if phase == 1 {
                    state.publish(&engine.peers, seq, kind::SLOT, &[]);
                } else {
                    state.advance(&engine.peers, seq, phase);
                }
            }
            let (loan, at) = self.recv;
            if !self.exclusive || me > 0 {
                let out_of = if self.exclusive { &*before } else { &*with };
                engine
                    .core
                    .loans
                    .write(loan, at + begin, len, |out| out.copy_from_slice(out_of))?;
            }
            if me > 0 {
                state.own().set_ack(seq, phase);
                state.wake(&engine.peers);
            }
            self.passed += 1;
            result = Step::Moved;
        }
    }
}
