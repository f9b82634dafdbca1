// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fragment under way: how far it has come on this rank.

use super::super::communicator::Communicator;
use super::super::contribution::CallBuffers;
use super::super::start::Call;
use super::position::Position;
use super::work::{Load, StepCall, Work};
use crate::engine::Engine;
use crate::error::Result;
use crate::request::RequestId;
use onecopy_shm::loan::{Loan, LoanRange};

/// Steps over the wire that a fragment has at most. A reduce-scatter and an allgather are two.
pub(super) const CROSSINGS: u32 = 2;

/// A step of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    Waits,
    Runs(RequestId),
    Over,
}

impl StepState {
    /// Looks whether it is over now. Says whether it has come to that.
    fn poll(&mut self, engine: &mut Engine) -> Result<bool> {
        let Self::Runs(id) = *self else {
            return Ok(false);
        };
        let Some(result) = engine.take_result(id) else {
            return Ok(false);
        };
        *self = Self::Over;
        result.map(|_| true)
    }

    fn is_over(self) -> bool {
        self == Self::Over
    }
}

/// What a fragment is moved with: the communicators of both levels.
pub(super) struct LevelCommunicators<'l> {
    pub(super) place: &'l Position,
    /// None: this rank is alone on its node.
    pub(super) group: Option<&'l mut Communicator>,
    pub(super) wire: &'l mut Communicator,
    /// How the program called.
    pub(super) call: Call,
}

/// A fragment under way.
pub(super) struct Flight {
    pub(super) load: Load,
    /// The number of its first step over the wire.
    number: u32,
    leads: bool,
    up: StepState,
    across: StepState,
    second: StepState,
    down: StepState,
    /// Parts of buffers that are lent to its steps.
    parts: Vec<Loan>,
}

impl Flight {
    pub(super) fn new(
        engine: &mut Engine,
        work: &Work,
        place: &Position,
        load: Load,
        number: u32,
    ) -> Result<Self> {
        let leads = place.leads(load.fragment.root);
        let stage = |has: bool| {
            if has {
                StepState::Waits
            } else {
                StepState::Over
            }
        };
        let alone = place.is_alone();
        if alone {
            work.up_alone(engine, place, &load)?;
        }
        Ok(Self {
            load,
            number,
            leads,
            up: stage(work.goes_up() && !alone),
            across: stage(leads),
            second: stage(leads),
            down: stage(work.comes_down() && !alone),
            parts: Vec::new(),
        })
    }

    /// Takes note of steps that are over. Says whether there were any.
    pub(super) fn poll(&mut self, engine: &mut Engine) -> Result<bool> {
        let mut moved = self.up.poll(engine)?;
        moved |= self.across.poll(engine)?;
        moved |= self.second.poll(engine)?;
        moved |= self.down.poll(engine)?;
        Ok(moved)
    }

    /// Goes on over the wire, if it can.
    pub(super) fn cross(
        &mut self,
        engine: &mut Engine,
        work: &Work,
        levels: &mut LevelCommunicators<'_>,
    ) -> Result<bool> {
        let place = levels.place;
        if self.across == StepState::Waits && self.up.is_over() {
            let step_call = work.across(engine, place, &self.load)?;
            self.across = self.start_on_wire(engine, work, levels, 0, step_call)?;
            return Ok(true);
        }
        if self.across.is_over() && self.second == StepState::Waits {
            self.second = match work.turn(engine, place, &self.load)? {
                Some(step_call) => self.start_on_wire(engine, work, levels, 1, step_call)?,
                None => StepState::Over,
            };
            return Ok(true);
        }
        Ok(false)
    }

    fn start_on_wire(
        &mut self,
        engine: &mut Engine,
        work: &Work,
        levels: &mut LevelCommunicators<'_>,
        step: u32,
        step_call: StepCall,
    ) -> Result<StepState> {
        let (place, fragment) = (levels.place, &self.load.fragment);
        let last = work.root_is_last(place, fragment.len);
        let state = &mut levels.wire.state;
        // Both ends of a message count it as the first step.
        let step = if step_call.pair.is_some() { 0 } else { step };
        let leaders = match &step_call.pair {
            Some(pair) => pair.clone(),
            None => place.wire(fragment.root, last),
        };
        (state.members, state.me) = (leaders.ranks, leaders.me);
        // All leaders count alike, also past the steps that one has no part in.
        state.seq = self.number.wrapping_add(step).wrapping_sub(1);
        start(engine, levels.wire, step_call, levels.call, &mut self.parts)
    }

    /// Begins the way up on the node.
    pub(super) fn go_up(
        &mut self,
        engine: &mut Engine,
        work: &Work,
        levels: &mut LevelCommunicators<'_>,
    ) -> Result<()> {
        let step_call = work.up(levels.place, &self.load);
        if let Some(group) = levels.group.as_deref_mut() {
            self.up = start(engine, group, step_call, levels.call, &mut self.parts)?;
        }
        Ok(())
    }

    /// Whether the way down can begin here: what a leader passes on is there.
    pub(super) fn can_go_down(&self, work: &Work, place: &Position) -> bool {
        let arrived = self.across.is_over() && (self.second.is_over() || work.is_there_at_once());
        !self.leads || arrived || self.load.fragment.root == Some(place.me)
    }

    /// Begins the way down on the node.
    pub(super) fn go_down(
        &mut self,
        engine: &mut Engine,
        work: &Work,
        levels: &mut LevelCommunicators<'_>,
    ) -> Result<()> {
        let step_call = work.down(levels.place, &self.load);
        if let Some(group) = levels.group.as_deref_mut() {
            self.down = start(engine, group, step_call, levels.call, &mut self.parts)?;
        }
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        let stages = [self.up, self.across, self.second, self.down];
        stages.into_iter().all(StepState::is_over)
    }

    /// Gives back what was lent to its steps, which are over or have failed. Gives its temporary buffers.
    pub(super) fn end(&mut self, engine: &mut Engine) -> Vec<Loan> {
        for stage in [self.up, self.across, self.second, self.down] {
            if let StepState::Runs(id) = stage {
                engine.abandon(id);
            }
        }
        for part in self.parts.drain(..) {
            engine.core.loans.release(part);
        }
        std::mem::take(&mut self.load.rooms)
    }
}

/// Starts a step of a fragment.
fn start(
    engine: &mut Engine,
    comm: &mut Communicator,
    step_call: StepCall,
    call: Call,
    parts: &mut Vec<Loan>,
) -> Result<StepState> {
    let mut lend = |piece: Option<LoanRange>| -> Result<Option<Loan>> {
        let Some(piece) = piece else { return Ok(None) };
        let part = engine.core.loans.part(piece)?;
        parts.push(part);
        Ok(Some(part))
    };
    let buffers = CallBuffers {
        send: lend(step_call.send)?,
        recv: lend(step_call.recv)?,
    };
    let opened = comm.open(engine);
    let id = comm.start_step(engine, &step_call.what, buffers, call, opened)?;
    Ok(StepState::Runs(id))
}
