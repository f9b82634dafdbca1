// SPDX-License-Identifier: MIT OR Apache-2.0
//! A collective under way on two levels: its fragments follow one another through them.

use super::super::select::levels::{Scheme, fragment, passes_on};
use super::super::start::Call;
use super::super::{ByteRange, Collective, ElemType, Op, Parts};
use super::flight::{CROSSINGS, Flight, LevelCommunicators};
use super::fragments::{Fragment, Fragments};
use super::position::Position;
use super::work::{Load, Vector, Work};
use crate::coll::contribution::CallBuffers;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::RequestId;
use onecopy_shm::layout::COLL_DEPTH;
use onecopy_shm::loan::{Loan, LoanRange};
use std::collections::VecDeque;

/// Fragments under way at a time, of collectives that only come down on a node, and of those that go up. The steps on
/// the node are collectives of its group, and a step for which its channel has no line would only wait. A fragment that
/// comes down has one step, one that goes up may have two. It has temporary buffers besides. Chosen by magnitude, too:
/// four fragments of 128 KiB keep a wire of 10 GB/s busy for 50 µs, longer than its latency.
const WINDOW_DOWN: usize = COLL_DEPTH;
const WINDOW_UP: usize = COLL_DEPTH / 2;
/// How many ways up are begun ahead of the ways down. With one, the node would stand still while a fragment is on the
/// wire; each further one is a fragment that the wire carries meanwhile. Chosen by magnitude.
const LEAD: usize = 3;

/// A collective under way.
pub(super) struct Spanning {
    pub(super) id: RequestId,
    pub(super) call: Call,
    work: Work,
    send: Option<Loan>,
    recv: Option<Loan>,
    fragments: Fragments,
    count: usize,
    /// The number of its first step over the wire.
    number: u32,
    flights: VecDeque<Flight>,
    /// Fragments that are over.
    over: usize,
    /// Ways up, and down, that have begun.
    ups: usize,
    downs: usize,
    /// Temporary buffers that no fragment uses now.
    spare: Vec<Loan>,
    /// At the end: bytes of the receive buffer that come to its front.
    to_front: Option<ByteRange>,
    /// It is in [`Self::step`]; after that, a function of the program has panicked there.
    stepping: bool,
}

/// How a collective on two levels begins.
pub(super) struct SpanningStart {
    pub(super) id: RequestId,
    pub(super) call: Call,
    /// The number of its first step over the wire.
    pub(super) number: u32,
}

/// What a collective on two levels is made of, and how it is cut.
pub(super) struct CutWork {
    work: Work,
    fragments: Fragments,
}

impl CutWork {
    fn new(work: Work, fragments: Fragments) -> Self {
        Self { work, fragments }
    }
}

/// The work of a collective that goes by `scheme`; none: that scheme is not for it.
pub(super) fn work_of(
    scheme: Scheme,
    collective: &Collective,
    place: &Position,
    vector: Option<LoanRange>,
    buffers: CallBuffers,
) -> Option<CutWork> {
    let (ranks, in_place) = (place.nodes.ranks(), buffers.send.is_none());
    let of = |elem: &ElemType, op: &Op| {
        let (elem, op) = (*elem, op.clone());
        vector.map(|piece| Vector { elem, op, piece })
    };
    Some(match (scheme, collective) {
        (Scheme::Meet, _) => CutWork::new(Work::Meet, Fragments::of(None, 1, 1)),
        (Scheme::Move, Collective::Bcast { root }) => {
            let len = buffers.recv.map_or(0, |recv| recv.len());
            let work = match passes_on(collective, len, place.nodes.count()) {
                true => Work::PassOn,
                false => Work::Move,
            };
            CutWork::new(work, Fragments::of(Some(*root), len, fragment(1)))
        }
        (Scheme::Move, Collective::Allgather { parts }) => {
            let parts = parts.clone();
            let fragments = Fragments::of_parts(parts, &place.nodes, true, fragment(1));
            CutWork::new(Work::Move, fragments)
        }
        (Scheme::Collect, Collective::Allgather { parts }) => {
            let len = (0..ranks).map(|member| parts.of(member).len).sum();
            CutWork::new(Work::Collect(parts.clone()), Fragments::uncut(len))
        }
        (
            Scheme::Transpose,
            Collective::Alltoall {
                recv: Parts::Equal(part),
                ..
            },
        ) => CutWork::new(Work::Transpose(*part), Fragments::uncut(part * ranks)),
        (Scheme::Combine, Collective::Reduce { root, elem, op }) => {
            let vector = of(elem, op)?;
            let fragments = Fragments::of(Some(*root), vector.piece.len, fragment(elem.size()));
            CutWork::new(Work::Combine(vector), fragments)
        }
        (Scheme::Combine, Collective::ReduceScatter { parts, elem, op }) => {
            let unit = fragment(elem.size());
            let fragments = Fragments::of_parts(parts.clone(), &place.nodes, in_place, unit);
            CutWork::new(Work::Combine(of(elem, op)?), fragments)
        }
        (Scheme::All, Collective::Allreduce { elem, op }) => {
            let vector = of(elem, op)?;
            let fragments = Fragments::of(None, vector.piece.len, fragment(elem.size()));
            CutWork::new(Work::All(vector), fragments)
        }
        (Scheme::ShareOut, Collective::ReduceScatter { parts, elem, op }) => {
            let vector = of(elem, op)?;
            let len = vector.piece.len;
            let work = Work::ShareOut(vector, parts.clone());
            CutWork::new(work, Fragments::uncut(len))
        }
        _ => return None,
    })
}

impl Spanning {
    /// A collective that is to begin.
    pub(super) fn new(
        CutWork { work, fragments }: CutWork,
        collective: &Collective,
        place: &Position,
        buffers: CallBuffers,
        SpanningStart { id, call, number }: SpanningStart,
    ) -> Self {
        let to_front = match (collective, &work) {
            (Collective::ReduceScatter { parts, .. }, Work::Combine(_)) => {
                buffers.send.is_none().then(|| parts.of(place.me))
            }
            _ => None,
        };
        Self {
            id,
            call,
            work,
            send: buffers.send,
            recv: buffers.recv,
            count: fragments.how_many(),
            fragments,
            number,
            flights: VecDeque::new(),
            over: 0,
            ups: 0,
            downs: 0,
            spare: Vec::new(),
            to_front,
            stepping: false,
        }
    }

    /// Steps over the wire that it has at most.
    pub(super) fn crossings(&self) -> u32 {
        (self.count as u32).wrapping_mul(CROSSINGS)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over == self.count
    }

    /// Whether all its steps in the node group have begun: then those of the next collective may.
    pub(super) fn has_begun(&self, place: &Position) -> bool {
        let begun = |has: bool, begun| !has || begun == self.count;
        place.is_alone()
            || begun(self.work.goes_up(), self.ups) && begun(self.work.comes_down(), self.downs)
    }

    /// Moves on as far as possible. If a function of the program panics, what it was called for is left half done: the
    /// next step is an error.
    pub(super) fn step(
        &mut self,
        engine: &mut Engine,
        levels: &mut LevelCommunicators<'_>,
    ) -> Result<bool> {
        if std::mem::replace(&mut self.stepping, true) {
            return Err(Error::Collective {
                reason: "a function of the program panicked in it".into(),
            });
        }
        let step = self.go_on(engine, levels);
        self.stepping = false;
        step
    }

    fn go_on(&mut self, engine: &mut Engine, levels: &mut LevelCommunicators<'_>) -> Result<bool> {
        let mut moved = self.begin(engine, levels.place)?;
        for flight in &mut self.flights {
            moved |= flight.poll(engine)?;
            while flight.cross(engine, &self.work, levels)? {
                moved = true;
            }
        }
        while self.begin_in_group(engine, levels)? {
            moved = true;
        }
        while self.flights.front().is_some_and(Flight::is_over) {
            if let Some(mut flight) = self.flights.pop_front() {
                self.work.finish(engine, levels.place, &flight.load)?;
                self.spare.extend(flight.end(engine));
                self.over += 1;
                moved = true;
            }
        }
        if self.is_over() {
            if let (Some(part), Some(recv)) = (self.to_front.take(), self.recv) {
                engine
                    .core
                    .loans
                    .copy(recv.range(part.offset, part.len), recv, 0)?;
            }
            self.end(engine);
        }
        Ok(moved)
    }

    /// Takes up fragments, as many as may be under way.
    fn begin(&mut self, engine: &mut Engine, place: &Position) -> Result<bool> {
        if self.over == 0 && self.flights.is_empty() {
            self.copy_own(engine, place)?;
        }
        let mut moved = false;
        let window = match self.work.goes_up() {
            true => WINDOW_UP,
            false => WINDOW_DOWN,
        };
        while self.flights.len() < window
            && let Some(fragment) = self.fragments.next()
        {
            let rooms = self.take_rooms(engine, place, &fragment);
            let load = Load {
                fragment,
                send: self.send,
                recv: self.recv,
                rooms,
            };
            let index = (self.over + self.flights.len()) as u32;
            let number = self.number.wrapping_add(index.wrapping_mul(CROSSINGS));
            let flight = Flight::new(engine, &self.work, place, load, number)?;
            self.flights.push_back(flight);
            moved = true;
        }
        Ok(moved)
    }

    /// What this rank gives to an allgather stands where all receive it from.
    fn copy_own(&self, engine: &mut Engine, place: &Position) -> Result<()> {
        if let (Work::Move, Some(send), Some(recv)) = (&self.work, self.send, self.recv) {
            let ByteRange { offset, len } = self.fragments.part_of(place.me);
            engine
                .core
                .loans
                .copy(LoanRange::first(send, len), recv, offset)?;
        }
        Ok(())
    }

    fn take_rooms(
        &mut self,
        engine: &mut Engine,
        place: &Position,
        fragment: &Fragment,
    ) -> Vec<Loan> {
        let lengths = self.work.rooms(place, fragment);
        let mut take = |len: usize| {
            let large_enough = self.spare.iter().position(|spare| spare.len() >= len);
            match large_enough {
                Some(index) => self.spare.swap_remove(index),
                None => engine.core.loans.keep(vec![0; len]),
            }
        };
        lengths.into_iter().map(&mut take).collect()
    }

    /// Begins the next step in the node group, if it is its turn. All members have the same turns.
    fn begin_in_group(
        &mut self,
        engine: &mut Engine,
        levels: &mut LevelCommunicators<'_>,
    ) -> Result<bool> {
        if levels.place.is_alone() {
            return Ok(false);
        }
        let (ups, downs) = (self.work.goes_up(), self.work.comes_down());
        let (work, over, count) = (&self.work, self.over, self.count);
        let ahead = !downs || self.ups < self.downs + LEAD;
        if ups && self.ups < count && ahead {
            let Some(flight) = self.flights.get_mut(self.ups - over) else {
                return Ok(false);
            };
            flight.go_up(engine, work, levels)?;
            self.ups += 1;
            return Ok(true);
        }
        if !downs || self.downs == count {
            return Ok(false);
        }
        match self.flights.get_mut(self.downs - over) {
            Some(flight) if flight.can_go_down(work, levels.place) => {
                flight.go_down(engine, work, levels)?;
                self.downs += 1;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Gives back what it holds; its steps are over or have failed.
    pub(super) fn end(&mut self, engine: &mut Engine) {
        for mut flight in self.flights.drain(..) {
            self.spare.extend(flight.end(engine));
        }
        for room in self.spare.drain(..) {
            engine.core.loans.release(room);
        }
    }
}
