// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives of a communicator whose members are on several nodes. They go inside of each node by a channel, and
//! between the nodes by messages of one member each.
//!
//! A collective is cut into fragments ([`fragments`]). What is done of one, on its node and on the wire, is a
//! collective of the *node group* or of the *leaders* ([`work`]). Several fragments are under way at a time
//! ([`spanning`]), each at another step ([`flight`]). So a node works on one while the wire carries another.
//!
//! **All members of a node begin the steps of their group in the same order**, whatever comes first over the wire.
//! Otherwise the lines of a channel would mean different steps to them.

mod flight;
mod fragments;
mod pack;
mod position;
mod spanning;
mod work;

use super::Collective;
use super::communicator::Communicator;
use super::contribution::CallBuffers;
use super::nodes::MembersByNode;
use super::select::levels::{bytes, scheme};
use super::start::{Call, request};
use super::state::{CommState, Tuning};
use super::tags;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::{RequestId, Status};
use flight::LevelCommunicators;
use position::Position;
use spanning::{Spanning, SpanningStart, work_of};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a communicator has besides if its members are on several nodes.
pub(crate) struct Levels {
    place: Position,
    /// The members on this rank's node; none: it is alone there.
    group: Option<Communicator>,
    /// One member of each node. It may be another member in each step.
    wire: Communicator,
    ops: VecDeque<Spanning>,
    /// The number of the next step over the wire.
    number: u32,
}

impl Levels {
    /// The levels of the communicator `of`, whose node groups use `channel`. None: its members share a node, or there
    /// is no channel for a node that has several.
    pub(crate) fn new(
        engine: &Engine,
        parent: &CommState,
        channel: Option<u32>,
        tuning: Tuning,
    ) -> Option<Self> {
        let place = Position {
            nodes: engine.nodes_of(&parent.members),
            members: Arc::clone(&parent.members),
            me: parent.me,
        };
        let grouped = place.nodes.largest() > 1;
        if place.nodes.count() < 2 || grouped && channel.is_none() {
            return None;
        }
        let comm = |members, me, channel, level| {
            let mut state =
                CommState::new(members, me, parent.context, parent.tag, channel, tuning);
            state.tags = parent.tags.of_level(level);
            Communicator::new(state)
        };
        let group = (!place.is_alone()).then(|| {
            let members = place.group().iter().map(|&member| place.members[member]);
            let within = place.group().iter().position(|&member| member == place.me);
            let me = within.unwrap_or(0);
            comm(members.collect(), me, channel, tags::GROUP)
        });
        let leaders = place.wire(None, false);
        let wire = comm(leaders.ranks, leaders.me, None, tags::WIRE);
        Some(Self {
            place,
            group,
            wire,
            ops: VecDeque::new(),
            number: 1,
        })
    }

    /// The state of the node group, which has a channel, when the communicator is gone.
    pub(crate) fn into_group(self) -> Option<CommState> {
        self.group.map(|group| group.state)
    }

    /// Whether collectives are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Starts a collective of `comm`: on two levels, or from member to member.
    pub(crate) fn start(
        &mut self,
        engine: &mut Engine,
        comm: &mut Communicator,
        collective: &Collective,
        buffers: CallBuffers,
        call: Call,
    ) -> Result<RequestId> {
        let opened = self
            .group
            .as_mut()
            .map_or(Ok(()), |group| group.open(engine));
        let admitted = comm.admit(engine, opened);
        self.follow(engine, comm);
        admitted?;
        let scheduler = comm.scheduler(collective, buffers);
        // An error of the call is found before other members wait for this rank.
        let vector = scheduler.given()?;
        let payload = match (collective, vector) {
            (Collective::Bcast { .. }, _) => buffers.recv.map_or(0, |recv| recv.len()),
            (_, vector) => vector.map_or(0, |vector| vector.len),
        };
        let nodes = &self.place.nodes;
        let scheme = bytes(collective, nodes.ranks(), payload)
            .and_then(|bytes| scheme(collective, bytes, nodes));
        let work =
            scheme.and_then(|scheme| work_of(scheme, collective, &self.place, vector, buffers));
        let Some(work) = work else {
            return comm.start(engine, collective, buffers, call, Ok(()));
        };
        let id = request(engine, comm.state.context);
        let start = SpanningStart {
            id,
            call,
            number: self.number,
        };
        let op = Spanning::new(work, collective, &self.place, buffers, start);
        engine.core.counters.collectives += 1;
        engine.core.counters.coll_two_level += 1;
        self.number = self.number.wrapping_add(op.crossings());
        self.ops.push_back(op);
        Ok(id)
    }

    fn status(&self) -> Status {
        Status {
            source: self.place.me,
            tag: 0,
            bytes: 0,
        }
    }

    /// Moves its collectives.
    pub(crate) fn step(&mut self, engine: &mut Engine, comm: &mut Communicator) -> bool {
        if self.follow(engine, comm) || self.ops.is_empty() {
            return false;
        }
        let mut moved = self.step_levels(engine);
        match self.step_ops(engine) {
            Ok(stepped) => moved |= stepped,
            Err(error) => {
                self.fail(engine, comm, &error);
                return true;
            }
        }
        if moved {
            // What was begun just now need not wait for the next call.
            self.step_levels(engine);
        }
        moved
    }

    fn step_levels(&mut self, engine: &mut Engine) -> bool {
        let mut moved = false;
        for level in self.group.iter_mut().chain([&mut self.wire]) {
            moved |= !level.ops.is_empty() && level.step(engine);
        }
        moved
    }

    fn step_ops(&mut self, engine: &mut Engine) -> Result<bool> {
        let status = self.status();
        let Self {
            place,
            group,
            wire,
            ops,
            ..
        } = self;
        let mut moved = false;
        for op in ops.iter_mut() {
            let call = op.call;
            let mut levels = LevelCommunicators {
                place,
                group: group.as_mut(),
                wire,
                call,
            };
            moved |= op.step(engine, &mut levels)?;
            if !op.has_begun(place) {
                break;
            }
        }
        while let Some(op) = ops.front()
            && op.is_over()
        {
            engine.core.requests.complete(op.id, Ok(status));
            ops.pop_front();
        }
        Ok(moved)
    }

    /// Looks whether a level has failed or has lost a member, or `comm` has.
    pub(crate) fn check(&mut self, engine: &mut Engine, comm: &mut Communicator) {
        if self.follow(engine, comm) || self.ops.is_empty() {
            return;
        }
        for level in self.group.iter_mut().chain([&mut self.wire]) {
            level.check(engine);
        }
        if comm.loss_by_messages(engine).is_none() {
            return;
        }
        while self.step(engine, comm) {}
        if self.ops.is_empty() {
            return;
        }
        if let Some(error) = comm.loss_by_messages(engine) {
            self.fail(engine, comm, &error);
        }
    }

    /// Ends its collectives if `comm` has failed. Says whether it has.
    pub(crate) fn follow(&mut self, engine: &mut Engine, comm: &mut Communicator) -> bool {
        let failed = comm.state.failed.clone();
        if let Some(error) = &failed
            && self.wire.state.failed.is_none()
        {
            self.fail(engine, comm, error);
        }
        failed.is_some()
    }

    /// Ends its collectives, those under way and all later ones, and tells the members.
    #[cold]
    pub(crate) fn fail(&mut self, engine: &mut Engine, comm: &mut Communicator, error: &Error) {
        // The members hear of it from the whole communicator.
        self.wire.state.failed.get_or_insert(error.clone());
        if let Some(group) = &mut self.group
            && !group.state.has_channel()
        {
            group.state.failed.get_or_insert(error.clone());
        }
        for level in self.group.iter_mut().chain([&mut self.wire]) {
            level.fail(engine, error);
        }
        comm.fail(engine, error);
        for mut op in self.ops.drain(..) {
            op.end(engine);
            engine.core.requests.complete(op.id, Err(error.clone()));
        }
    }
}

impl Engine {
    /// The nodes of these ranks.
    pub(crate) fn nodes_of(&self, ranks: &[u32]) -> MembersByNode {
        MembersByNode::of(ranks.iter().map(|&rank| self.node(rank)))
    }
}
