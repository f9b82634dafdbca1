// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short blocking collectives: the [plan](super::plan) on the caller's slices, without a request. A collective that
//! does not complete soon goes on as a request, from where this stopped.

use super::communicator::Communicator;
use super::contribution::Readers;
use super::plan::{Combination, Fault, Find, MemberCall, Plan, PlanForm, Takes, Task};
use super::select::Algorithm;
use super::state::CommState;
use super::worker::Worker;
use super::{ElemType, Op, Parts, PredefinedOp};
use crate::endpoint::Home;
use crate::engine::Engine;
use crate::peer::Peer;
use onecopy_shm::coll::{INLINE, ShortContribution, View, accumulate, combine, kind, precede};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::COLL_SLOT;
use std::ops::Range;

/// How far a short collective has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShortState {
    /// It is over.
    Done,
    /// Nothing has happened.
    Not,
    /// This rank's contribution is published.
    Begun,
}

/// Why a step of a short collective ends before the last contribution is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A contribution has not come yet.
    Awaited,
    /// A contribution is no short one, so that a request has to take it.
    NotShort,
}

/// What is to be done with the others' contributions.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// Nothing but to wait for them.
    Meet,
    /// Copy what the root has for this rank: its bytes from `from` on.
    Copy { root: usize, from: usize },
    /// Copy all, side by side.
    Collect(Collect),
    /// Combine them.
    Combine(Combine),
    /// This rank only gives. It keeps what it has for itself: its bytes from there on.
    Give { keep: Option<usize> },
}

/// How contributions are copied side by side: parts of so many bytes. `mine`: a rank's part of each, not all of it.
/// `own`: where in the send buffer the part begins that this rank takes from itself.
#[derive(Debug, Clone, Copy)]
struct Collect {
    part: usize,
    mine: bool,
    own: usize,
}

impl Collect {
    /// Where in a contribution the part for this rank begins.
    #[inline]
    fn from(self, me: usize) -> usize {
        if self.mine { me * self.part } else { 0 }
    }
}

/// How contributions are combined: those of the places below `upto`, their bytes from `begin` on.
#[derive(Debug, Clone, Copy)]
struct Combine {
    op: PredefinedOp,
    elem: ElemType,
    begin: usize,
    upto: usize,
}

impl Combine {
    /// Whether both of two ranks combine all: each one's own stands where the result goes.
    #[inline(always)]
    fn is_of_two(self, size: usize) -> bool {
        size == 2 && self.upto == 2
    }
}

/// The plan of a short collective, in the few words that registers hold.
pub(crate) struct Short {
    action: Action,
    /// Whether this rank publishes its send buffer; not: nothing, or what stands in the receive buffer.
    gives: bool,
    /// First of the bytes that this rank publishes.
    offset: usize,
    /// Bytes that each rank publishes.
    len: usize,
    /// Bytes of the result.
    result: usize,
}

/// None unless contributions fit into slots, and lines alone describe them. The other path reports what is wrong with a
/// call.
impl<'c> PlanForm<'c> for Option<Short> {
    #[inline(always)]
    fn of(plan: Result<Plan<'c>, Fault<'c>>, call: &MemberCall<'c>) -> Self {
        Short::of(&plan.ok()?, call)
    }
}

impl Short {
    #[inline(always)]
    fn of(plan: &Plan<'_>, call: &MemberCall<'_>) -> Option<Self> {
        let (size, me) = (call.size, call.me);
        let (offer, own) = (plan.offer, plan.own);
        if offer.is_some_and(|offer| offer.table.is_some()) {
            return None;
        }
        let gives = offer.filter(|offer| offer.readers != Readers::Nobody);
        let mut short = match &plan.task {
            Task::Meet => Self::new(Action::Meet, false, 0, 0),
            &Task::Take { takes, find } => match takes {
                Takes::Nothing => {
                    let (keep, result) = match own {
                        Some(own) => (Some(own.from), own.len),
                        None => (None, 0),
                    };
                    Self::new(Action::Give { keep }, true, gives?.len, result)
                }
                Takes::From(root, part) => {
                    let from = find.begin(part, me);
                    let action = Action::Copy { root, from };
                    Self::new(action, false, find.all(part, size), part)
                }
                Takes::Each(&Parts::Equal(part)) => {
                    let mine = find == Find::Index;
                    let own = own.map_or(0, |own| own.from);
                    let (all, action) = (
                        find.all(part, size),
                        Action::Collect(Collect { part, mine, own }),
                    );
                    if gives.is_some_and(|offer| offer.len != all) {
                        return None;
                    }
                    Self::new(action, gives.is_some(), all, part.saturating_mul(size))
                }
                Takes::Each(Parts::Listed(_)) => return None,
            },
            Task::Combine(part) => Self::combining(part, offer?.len)?,
            Task::Swap(_) => return None,
        };
        short.offset = offer.map_or(0, |offer| offer.offset);
        (short.len <= call.slot).then_some(short)
    }

    /// A reduction of vectors of `len` bytes.
    #[inline(always)]
    fn combining(part: &Combination<'_>, len: usize) -> Option<Self> {
        let &Combination {
            op: &Op::Predefined(op),
            elem,
            algorithm: Algorithm::Flat,
            begin,
            upto,
            to_front: false,
            ..
        } = part
        else {
            return None;
        };
        // A member that combines reads its own contribution out of its line, too.
        let action = if part.result.is_some() {
            Action::Combine(Combine {
                op,
                elem,
                begin,
                upto,
            })
        } else {
            Action::Give { keep: None }
        };
        Some(Self::new(action, true, len, part.end - begin))
    }

    #[inline(always)]
    fn new(action: Action, gives: bool, len: usize, result: usize) -> Self {
        Self {
            action,
            gives,
            offset: 0,
            len,
            result,
        }
    }

    /// What of its slot a rank fills: all that it gives, but its own part if everyone takes only theirs.
    #[inline]
    fn filled(&self, me: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let own = match self.action {
            Action::Collect(Collect {
                part, mine: true, ..
            }) => me * part..(me + 1) * part,
            Action::Give { keep: Some(from) } => {
                let at = |place: usize| place.saturating_sub(self.offset).min(self.len);
                at(from)..at(from + self.result)
            }
            _ => self.len..self.len,
        };
        let parts = [0..own.start, own.end..self.len];
        parts.into_iter().filter(|part| !part.is_empty())
    }

    /// What a rank takes from its own send buffer: from where, to where in the result, and how many bytes.
    #[inline]
    fn own(&self, size: usize, me: usize) -> Option<(usize, usize, usize)> {
        match self.action {
            Action::Collect(collect) => Some((collect.own, me * collect.part, collect.part)),
            Action::Combine(combine) if combine.is_of_two(size) => {
                Some((combine.begin, 0, self.result))
            }
            Action::Give { keep } => keep.map(|from| (from, 0, self.result)),
            _ => None,
        }
    }

    /// Whether what this rank gives has a place in its line, or in a slot that it has. A vector that the result
    /// replaces stands there, too, where peers map it: they may read it later.
    #[inline(always)]
    fn has_place(&self, state: &CommState, home: &Home, send: Option<&[u8]>, recv: &[u8]) -> bool {
        let is_replaced = send.is_none() && matches!(self.action, Action::Combine(_));
        let mapped = || {
            let bytes = send.unwrap_or(recv);
            let (address, len) = (bytes.as_ptr().addr(), bytes.len());
            !is_replaced && home.heap_offset_of(address, len).is_some()
        };
        // No short contribution is longer than a slot.
        self.len <= INLINE || state.has_slots && (self.len <= COLL_SLOT || !mapped())
    }

    /// Whether the payload has no room in a short slot, and `recv` lies in memory that peers map. A rank that only
    /// takes makes its request first then: as a rule its giver's memory is mapped, too, and is read in place.
    #[inline(always)]
    fn takes_mapped(&self, home: &Home, recv: &[u8]) -> bool {
        self.len > COLL_SLOT
            && home
                .heap_offset_of(recv.as_ptr().addr(), recv.len())
                .is_some()
    }

    /// Counts what came from the others, all of which is there.
    #[inline(always)]
    fn count(&self, engine: &mut Engine, state: &CommState) {
        let (from, bytes) = match self.action {
            Action::Give { .. } | Action::Meet => return,
            Action::Copy { root, .. } => (root..root + 1, self.result),
            Action::Collect(Collect { part, .. }) => (0..state.size(), part),
            Action::Combine(Combine { upto, .. }) => (0..upto, self.result),
        };
        if bytes > 0 {
            for place in from.filter(|&place| place != state.me) {
                engine
                    .core
                    .counters
                    .count_short(state.members[place], bytes);
            }
        }
    }
}

/// Why a short collective does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unready {
    /// Its line has not been read by all: this rank is a whole channel ahead of someone.
    Full,
    /// A request has to do it.
    NotShort,
}

/// A short collective under way: this rank's contribution is published.
pub(crate) struct Running<'r> {
    slot: usize,
    seq: u32,
    short: &'r Short,
    recv: &'r mut [u8],
    /// How many contributions are taken.
    taken: usize,
}

impl Worker {
    /// Polls for room in the channel, up to so many times.
    #[cold]
    pub(crate) fn poll_room(&mut self, slot: usize, polls: usize) {
        let comm = self.collectives.slots.get_mut(slot);
        let Some(Communicator { state, .. }) = comm.and_then(Option::as_deref_mut) else {
            return;
        };
        let seq = state.seq.wrapping_add(1);
        for _ in 0..polls {
            if state.has_room(seq) {
                return;
            }
            onecopy_shm::sync::spin_hint();
        }
    }

    /// Publishes this rank's contribution, if that is possible now, and moves what it has for itself.
    #[inline]
    pub(crate) fn begin_short<'r>(
        &mut self,
        slot: usize,
        short: &'r Short,
        send: Option<&[u8]>,
        recv: &'r mut [u8],
    ) -> Result<Running<'r>, Unready> {
        let Self {
            engine,
            collectives,
        } = self;
        let Engine {
            core, lives, peers, ..
        } = engine;
        let comm = collectives.slots.get_mut(slot);
        let Some(Communicator { state, ops, .. }) = comm.and_then(Option::as_deref_mut) else {
            return Err(Unready::NotShort);
        };
        let seq = state.seq.wrapping_add(1);
        let ready = state.has_channel()
            && ops.is_empty()
            && !state.in_short
            && state.failed.is_none()
            && match short.gives {
                true => short.has_place(state, &core.home, send, recv),
                false => !short.takes_mapped(&core.home, recv),
            }
            && lives.fatal().is_none();
        if !ready {
            return Err(Unready::NotShort);
        }
        if !state.has_room(seq) {
            return Err(Unready::Full);
        }
        (state.seq, state.in_short) = (seq, true);
        core.counters.collectives += 1;
        if short.gives {
            let bytes = &send.unwrap_or(recv)[short.offset..][..short.len];
            let me = state.me;
            state.publish_short(peers, seq, bytes, || short.filled(me));
        } else if matches!(short.action, Action::Meet) {
            state.publish(peers, seq, kind::NOTHING, &[]);
        }
        // From the program's memory: the lines that were just published are on their way to others.
        let own = short.own(state.size(), state.me);
        if let (Some((from, to, len)), Some(send)) = (own, send) {
            // The plan has seen that both buffers are long enough.
            if let Some(view) = View::of(send).part(from, len) {
                view.copy_to(&mut recv[to..][..len], Kernel::Memcpy);
            }
        }
        Ok(Running {
            slot,
            seq,
            short,
            recv,
            taken: 0,
        })
    }

    /// Takes what has come, and polls each line up to `polls` times.
    #[inline]
    pub(crate) fn step_short(
        &mut self,
        running: &mut Running<'_>,
        polls: usize,
    ) -> Result<(), Stop> {
        let Running {
            slot,
            seq,
            short,
            ref mut recv,
            ref mut taken,
        } = *running;
        let comm = self.collectives.slots[slot].as_deref_mut();
        let state = &mut comm.ok_or(Stop::NotShort)?.state;
        let recv = &mut recv[..short.result];
        let size = state.size();
        let mut lines = ShortLines {
            state,
            seq,
            len: short.len,
            polls,
            taken,
        };
        match short.action {
            Action::Give { .. } => {}
            Action::Meet => lines.meet()?,
            Action::Copy { root, from } => lines.copy(root, from, recv)?,
            Action::Collect(collect) => lines.collect(collect, recv)?,
            Action::Combine(combine) if combine.is_of_two(size) => {
                lines.combine_two(combine, recv)?;
            }
            Action::Combine(combine) => lines.combine_all(combine, recv)?,
        }
        short.count(&mut self.engine, state);
        state.end_short(&self.engine.peers);
        // The next contribution's line comes back meanwhile.
        state.own().will_publish(seq.wrapping_add(1));
        Ok(())
    }
}

impl Worker {
    /// The thread of the short collective in `slot` unwinds: it takes nothing more, and nobody waits for it.
    #[cold]
    pub(crate) fn leave_short(&mut self, slot: usize) {
        let comm = self.collectives.slots.get_mut(slot);
        if let Some(Communicator { state, .. }) = comm.and_then(Option::as_deref_mut)
            && state.in_short
        {
            state.end_short(&self.engine.peers);
        }
    }
}

impl CommState {
    /// This rank needs nothing more of its short collective.
    #[inline(always)]
    fn end_short(&mut self, peers: &[Option<Box<Peer>>]) {
        self.in_short = false;
        self.set_done(self.seq);
        self.wake(peers);
    }
}

/// The lines of a short collective, from which a step takes what has come.
struct ShortLines<'l> {
    state: &'l mut CommState,
    seq: u32,
    /// Bytes of each contribution.
    len: usize,
    polls: usize,
    /// How many of them are done with: what the next step need not look at again.
    taken: &'l mut usize,
}

impl ShortLines<'_> {
    #[inline(always)]
    fn poll(&mut self, place: usize) -> Result<ShortContribution, Stop> {
        poll_line(self.state, place, self.seq, self.polls)
    }

    /// The bytes of a contribution that has come.
    #[inline(always)]
    fn bytes(&self, place: usize, short: ShortContribution) -> Result<View<'_>, Stop> {
        let bytes = self.state.channel_ends[place].short_bytes(self.seq, short, self.len);
        bytes.ok_or(Stop::NotShort)
    }

    #[inline(always)]
    fn meet(&mut self) -> Result<(), Stop> {
        while *self.taken < self.state.size() {
            if *self.taken != self.state.me {
                self.poll(*self.taken)?;
            }
            *self.taken += 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn copy(&mut self, root: usize, from: usize, recv: &mut [u8]) -> Result<(), Stop> {
        let short = self.poll(root)?;
        let all = self.bytes(root, short)?;
        let mine = all.part(from, recv.len()).ok_or(Stop::NotShort)?;
        mine.copy_to(recv, Kernel::Memcpy);
        Ok(())
    }

    #[inline(always)]
    fn collect(&mut self, collect: Collect, recv: &mut [u8]) -> Result<(), Stop> {
        let (size, me) = (self.state.size(), self.state.me);
        let Collect { part, .. } = collect;
        while *self.taken < size - 1 {
            let place = (me + 1 + *self.taken) % size;
            let short = self.poll(place)?;
            let all = self.bytes(place, short)?;
            let view = all.part(collect.from(me), part).ok_or(Stop::NotShort)?;
            view.copy_to(&mut recv[place * part..][..part], Kernel::Memcpy);
            *self.taken += 1;
        }
        Ok(())
    }

    /// Of two ranks: this rank's own stands where the result goes already.
    #[inline(always)]
    fn combine_two(&mut self, combine: Combine, recv: &mut [u8]) -> Result<(), Stop> {
        let Combine {
            op, elem, begin, ..
        } = combine;
        let me = self.state.me;
        let short = self.poll(1 - me)?;
        let all = self.bytes(1 - me, short)?;
        let other = all.part(begin, recv.len()).ok_or(Stop::NotShort)?;
        if me == 0 {
            accumulate(op, elem, recv, other);
        } else {
            precede(op, elem, recv, other);
        }
        Ok(())
    }

    #[inline(always)]
    fn combine_all(&mut self, combined: Combine, recv: &mut [u8]) -> Result<(), Stop> {
        let Combine {
            op,
            elem,
            begin,
            upto,
        } = combined;
        while *self.taken < upto {
            let place = *self.taken;
            // The first two at once.
            let pair = place == 0 && upto > 1;
            let first = self.poll_or_own(place)?;
            let second = if pair {
                Some(self.poll_or_own(place + 1)?)
            } else {
                None
            };
            let part = |place, short| {
                let all = self.bytes(place, short)?;
                all.part(begin, recv.len()).ok_or(Stop::NotShort)
            };
            let view = part(place, first)?;
            if let Some(second) = second {
                let next = part(place + 1, second)?;
                combine(op, elem, recv, view, next);
            } else if place == 0 {
                view.copy_to(recv, Kernel::Memcpy);
            } else {
                accumulate(op, elem, recv, view);
            }
            *self.taken += 1 + usize::from(pair);
        }
        Ok(())
    }

    /// As [`Self::poll`], where `place` may be this rank's own.
    #[inline(always)]
    fn poll_or_own(&mut self, place: usize) -> Result<ShortContribution, Stop> {
        if place == self.state.me {
            Ok(self.state.channel_ends[place].read_short(self.seq))
        } else {
            self.poll(place)
        }
    }
}

/// Polls a line for a while, and reads it. It may hold no short contribution.
#[inline]
fn poll_line(
    state: &mut CommState,
    place: usize,
    seq: u32,
    mut polls: usize,
) -> Result<ShortContribution, Stop> {
    while state.channel_ends[place].phase(seq) == 0 {
        polls -= 1;
        if polls == 0 {
            return Err(Stop::Awaited);
        }
        onecopy_shm::sync::spin_hint();
    }
    let short = state.channel_ends[place].read_short(seq);
    state.note_done(place, short.done);
    Ok(short)
}

#[cfg(test)]
mod tests;
