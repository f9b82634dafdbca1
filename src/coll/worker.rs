// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker: a rank's engine with the collectives of its communicators, which the gate guards. It moves both; the
//! engine does not know of collectives.

use super::Collective;
use super::communicator::Communicator;
use super::contribution::CallBuffers;
use super::group::CHANNEL_RANKS;
use super::ids::{Ids, InContext};
use super::levels::Levels;
use super::nodes::MembersByNode;
use super::pieces::kept::KeptBounce;
use super::select::{self, PlacementLimits};
use super::spares::Spares;
use super::start::Call;
use super::state::{CommState, Tuning};
use super::tags::Tags;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::matching::OWN_CONTEXTS;
use crate::request::RequestId;
use crate::wireup::Wireup;
use onecopy_btl::cost::Costs;
use onecopy_obs::Knobs;
use onecopy_shm::coll::Channel;
use onecopy_shm::gate::{Guarded, Threads};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A rank's engine and its collectives.
pub(crate) struct Worker {
    pub(crate) engine: Engine,
    pub(crate) collectives: Collectives,
}

/// All communicators of a rank that have collectives, by their slot.
#[derive(Default)]
pub(crate) struct Collectives {
    pub(crate) slots: Vec<Option<Box<Communicator>>>,
    /// What those have besides whose members are on several nodes.
    pub(super) levels: BTreeMap<usize, Levels>,
    /// Slots with collectives under way.
    pub(crate) active: Vec<usize>,
    /// Channels in use by this rank: a bit each.
    pub(crate) channels: u64,
    /// Channels whose communicator is gone here, but may be still in use by a peer.
    pub(crate) retired: Vec<Retired>,
    pub(crate) ids: Ids,
    pub(crate) tuning: Tuning,
}

/// A channel that this rank has left.
pub(crate) struct Retired {
    pub(crate) channel: u32,
    pub(crate) tag: u64,
    /// Up to which its members are to have read.
    pub(crate) seq: u32,
    pub(crate) members: Arc<[u32]>,
    pub(crate) me: usize,
    pub(crate) channel_ends: Vec<Channel>,
    /// Where the other one of two may still read pieces.
    pub(crate) bounce: KeptBounce,
    /// In whose spare slot the other one of two may still write.
    pub(crate) spares: Spares,
}

impl Collectives {
    /// Finds a slot for a communicator.
    pub(crate) fn add(&mut self, state: CommState) -> usize {
        let comm = Some(Box::new(Communicator::new(state)));
        match self.slots.iter().position(Option::is_none) {
            Some(slot) => {
                self.slots[slot] = comm;
                slot
            }
            None => {
                self.slots.push(comm);
                self.slots.len() - 1
            }
        }
    }

    /// As [`Self::add`], on two levels if the members are on several nodes: the channel is that of each node then.
    pub(crate) fn add_on_nodes(&mut self, engine: &Engine, mut state: CommState) -> usize {
        let levels = Levels::new(engine, &state, state.channel, self.tuning);
        if !engine.share_node(&state.members) {
            state.channel = None;
        }
        let slot = self.add(state);
        if let Some(levels) = levels {
            self.levels.insert(slot, levels);
        }
        slot
    }

    /// The slot of a communicator that has a context of its own but no channel, with the members of that in slot `of`.
    pub(crate) fn slot_of(&mut self, context: u32, parent: usize) -> usize {
        let mut found = self.ids.by_context.iter();
        if let Some(known) = found.find(|known| known.context == context && known.parent == parent)
        {
            return known.slot;
        }
        let own = context | OWN_CONTEXTS;
        let (members, me, tags) = match &self.slots[parent] {
            Some(comm) => (
                Arc::clone(&comm.state.members),
                comm.state.me,
                comm.state.tags,
            ),
            None => (Arc::from([]), 0, Tags::of_user(0)),
        };
        let mut state = CommState::new(members, me, own, 0, None, self.tuning);
        state.tags = tags;
        let slot = self.add(state);
        self.ids.by_context.push(InContext {
            context,
            parent,
            slot,
        });
        slot
    }

    /// The slots of those that share the members of the communicator in slot `of`.
    pub(super) fn slots_beside(&self, parent: usize) -> Vec<usize> {
        let known = self.ids.by_context.iter();
        known
            .filter(|known| known.parent == parent)
            .map(|known| known.slot)
            .collect()
    }

    /// Moves all collectives that can move.
    #[cold]
    fn step(&mut self, engine: &mut Engine) -> bool {
        if self.end_if_fatal(engine) {
            return true;
        }
        let Self {
            slots,
            levels,
            active,
            ..
        } = self;
        let mut moved = false;
        active.retain(|&slot| {
            let Some(comm) = &mut slots[slot] else {
                return false;
            };
            moved |= comm.step(engine);
            let mut busy = !comm.ops.is_empty();
            if let Some(levels) = levels.get_mut(&slot) {
                moved |= levels.step(engine, comm);
                busy |= levels.is_busy();
            }
            busy
        });
        moved
    }

    /// Looks whether a communicator with collectives under way has failed at a member, or has lost one.
    #[cold]
    fn check(&mut self, engine: &mut Engine) {
        if self.end_if_fatal(engine) {
            return;
        }
        for (slot, comm) in self.slots.iter_mut().enumerate() {
            let Some(comm) = comm else { continue };
            comm.check(engine);
            if let Some(levels) = self.levels.get_mut(&slot) {
                levels.check(engine, comm);
            }
        }
    }

    /// Ends all collectives under way if every wait has to end: the program gets its buffers back. Whether it has.
    fn end_if_fatal(&mut self, engine: &mut Engine) -> bool {
        let Some(fatal) = engine.lives.fatal().cloned() else {
            return false;
        };
        for (slot, comm) in self.slots.iter_mut().enumerate() {
            let Some(comm) = comm else { continue };
            match self.levels.get_mut(&slot) {
                Some(levels) if levels.is_busy() => levels.fail(engine, comm, &fatal),
                _ if !comm.ops.is_empty() => comm.fail(engine, &fatal),
                _ => {}
            }
        }
        self.active.clear();
        true
    }
}

impl Worker {
    /// Joins the job: see [`Engine::start`].
    pub(crate) fn start(
        knobs: Knobs,
        costs: Costs,
        threads: Threads,
        wireup: Box<dyn Wireup>,
    ) -> Result<Self> {
        let size = wireup.size();
        let mut channel = None;
        let largest = MembersByNode::of((0..size).map(|rank| wireup.node(rank))).largest();
        let engine = Engine::start(knobs, costs, threads, wireup, |home| {
            channel = (home.channels() > 0 && largest <= CHANNEL_RANKS).then_some(0);
            if let Some(end) = channel.and_then(|channel| home.channel(channel)) {
                end.open(1, 0);
            }
        })?;
        let core = &engine.core;
        let oversubscribed = engine.waits.policy.oversubscribed;
        let tuning = Tuning {
            limits: PlacementLimits::new(&core.knobs, &core.costs, size),
            relay_min: select::relay_min(&core.knobs, oversubscribed),
            asks: select::asks(&core.knobs, &core.costs, oversubscribed),
        };
        let mut collectives = Collectives {
            channels: u64::from(channel.is_some()),
            tuning,
            ..Collectives::default()
        };
        let (all, me) = ((0..core.size).collect(), core.me as usize);
        let state = CommState::new(all, me, OWN_CONTEXTS, 1, channel, tuning);
        collectives.add_on_nodes(&engine, state);
        Ok(Self {
            engine,
            collectives,
        })
    }

    /// Moves everything that can move; see [`Engine::progress_messages`].
    #[inline]
    pub(crate) fn progress(&mut self, waiting: bool) -> bool {
        let mut moved = self.engine.progress_messages(waiting);
        if !self.collectives.active.is_empty() {
            moved |= self.collectives.step(&mut self.engine);
        }
        if self.engine.lives.is_due() {
            self.check_liveness();
        }
        moved
    }

    /// Counts a call that may find at once what it wants. `true`: it is to look at everything else, too. That is so
    /// once in a while, and as long as collectives are under way.
    #[inline(always)]
    pub(crate) fn is_to_look_around(&mut self) -> bool {
        self.engine.polling.counts_call() || !self.collectives.active.is_empty()
    }

    /// Does what is due by the clock, and moves everything on.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_around(&mut self) {
        self.engine.keep_time();
        self.progress(false);
    }

    /// As [`Self::progress`], of a call that only asks. Where nothing moves, what is due by the clock is done.
    #[inline]
    pub(crate) fn progress_once(&mut self) -> bool {
        let moved = self.progress(false);
        if moved || !self.engine.keep_time() {
            return moved;
        }
        self.progress(false)
    }

    /// Looks whether all peers live; see [`Engine::check_peers`].
    #[cold]
    pub(crate) fn check_liveness(&mut self) {
        self.engine.check_peers();
        if !self.collectives.active.is_empty() {
            self.collectives.check(&mut self.engine);
        }
    }

    /// Tells everyone that this rank polls nothing from now on, and looks once more; see [`Engine::stop_polling`].
    #[cold]
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let nothing = self.engine.stop_polling();
        // A collective that can move does so now; then there is no reason to sleep.
        let moved = !self.collectives.active.is_empty() && self.collectives.step(&mut self.engine);
        nothing && !moved
    }

    /// Whether a thread is in a short collective of the communicator in `slot`.
    pub(crate) fn is_in_short(&self, slot: usize) -> bool {
        let slots = &self.collectives.slots;
        slots[slot].as_ref().is_some_and(|comm| comm.state.in_short)
    }

    /// Whether the collective under way in `slot` is all that can move: none of its members sends it a message.
    #[inline]
    pub(crate) fn may_step_alone(&self, slot: usize) -> bool {
        let Self {
            engine,
            collectives,
        } = self;
        let comm = collectives.slots.get(slot);
        let has_channel = |comm: &Communicator| comm.state.has_channel();
        comm.and_then(Option::as_deref).is_some_and(has_channel)
            && collectives.active == [slot]
            && collectives.levels.is_empty()
            && engine.receives.is_empty()
            && engine.core.agenda.busy.is_empty()
    }

    /// Moves the collective in `slot`, and nothing else. Says whether it moved.
    pub(crate) fn step_alone(&mut self, slot: usize) -> bool {
        let Self {
            engine,
            collectives,
        } = self;
        let Some(comm) = &mut collectives.slots[slot] else {
            return false;
        };
        let moved = comm.step(engine);
        if comm.ops.is_empty() {
            collectives.active.clear();
        }
        moved
    }

    /// Starts a collective of the communicator in `slot`.
    pub(crate) fn start_collective(
        &mut self,
        slot: usize,
        collective: &Collective,
        buffers: CallBuffers,
        call: Call,
    ) -> Result<RequestId> {
        let Self {
            engine,
            collectives,
        } = self;
        let Some(comm) = &mut collectives.slots[slot] else {
            return Err(Error::Collective {
                reason: "the communicator is gone".into(),
            });
        };
        // Its thread has come with it, whatever becomes of it: nobody waits for that any more.
        comm.state.in_short &= call != Call::Begun;
        let started = engine.lives.check().and_then(|()| {
            let Some(levels) = collectives.levels.get_mut(&slot) else {
                let opened = comm.open(engine);
                let started = comm.start(engine, collective, buffers, call, opened)?;
                comm.begin_ops(engine);
                return Ok(started);
            };
            levels.start(engine, comm, collective, buffers, call)
        });
        let started = started.inspect_err(|error| {
            if call == Call::Begun {
                // Its buffer goes back to the program.
                comm.fail_if_still_read(engine, error);
            }
        })?;
        if !collectives.active.contains(&slot) {
            collectives.active.push(slot);
        }
        Ok(started)
    }
}

impl Guarded for Worker {
    #[inline]
    fn leave(&mut self) {
        self.engine.notify();
    }
}
