// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short collectives of a program that waits: the same steps as the others', on the caller's slices, without a request.
//! What does not come soon is handed over to a request, which takes up where this stopped.

use super::communicator::Communicator;
use super::select::{Algorithm, algorithm};
use super::state::CommState;
use super::worker::Worker;
use super::{Collective, ElemType, Op, Parts, PredefinedOp};
use crate::engine::Engine;
use crate::peer::Peer;
use onecopy_shm::coll::{Brief, INLINE, View, accumulate, combine, kind, precede};
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
#[derive(Debug, Clone, Copy)]
struct Collect {
    part: usize,
    mine: bool,
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

/// A short collective, planned.
pub(crate) struct Short {
    action: Action,
    /// Whether this rank publishes its send buffer; not: nothing, or what stands in the receive buffer.
    gives: bool,
    /// Bytes that each rank publishes.
    len: usize,
    /// Bytes of the result.
    result: usize,
}

impl Short {
    /// What of its slot a rank fills: all that it gives, but its own part if everyone takes only theirs.
    #[inline]
    fn filled(&self, me: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let own = match self.action {
            Action::Collect(Collect { part, mine: true }) => me * part..(me + 1) * part,
            Action::Give { keep: Some(from) } => from..from + self.result,
            _ => self.len..self.len,
        };
        let parts = [0..own.start, own.end..self.len];
        parts.into_iter().filter(|part| !part.is_empty())
    }

    /// What a rank takes from its own send buffer: from where, to where in the result, and how many bytes.
    #[inline]
    fn own(&self, size: usize, me: usize) -> Option<(usize, usize, usize)> {
        match self.action {
            Action::Collect(collect) => Some((collect.from(me), me * collect.part, collect.part)),
            Action::Combine(combine) if combine.is_of_two(size) => {
                Some((combine.begin, 0, self.result))
            }
            Action::Give { keep } => keep.map(|from| (from, 0, self.result)),
            _ => None,
        }
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

/// A collective of `size` ranks as the rank `me` calls it, with the bytes of its buffers.
pub(crate) struct ShortCall<'c> {
    pub(crate) collective: &'c Collective,
    pub(crate) size: usize,
    pub(crate) me: usize,
    pub(crate) send: Option<usize>,
    pub(crate) recv: Option<usize>,
}

// Inlined by force, here and in `ShortLines`: the compiler alone passes plans in memory, for 8 % more instructions.
impl ShortCall<'_> {
    /// The plan for it; none: it is not short.
    #[inline(always)]
    pub(crate) fn plan(&self) -> Option<Short> {
        match self.collective {
            Collective::Barrier => self.short(Action::Meet, false, 0, 0),
            &Collective::Bcast { root } if root < self.size => self.bcast(root),
            &Collective::Gather { root, ref parts } if root < self.size => self.gather(root, parts),
            &Collective::Scatter { root, ref parts } if root < self.size => {
                self.scatter(root, parts)
            }
            &Collective::Allgather {
                parts: Parts::Equal(part),
            } => self.allgather(part),
            Collective::Alltoall {
                send: Parts::Equal(part),
                recv: Parts::Equal(other),
            } if part == other => self.alltoall(*part),
            Collective::Allreduce { elem, op } => self.reduce(self.me, *elem, op),
            Collective::Scan { elem, op } => self.prefix(self.me + 1, *elem, op),
            Collective::Exscan { elem, op } => self.prefix(self.me, *elem, op),
            Collective::Reduce { root, elem, op } => self.reduce(*root, *elem, op),
            Collective::ReduceScatter {
                parts: Parts::Equal(part),
                elem,
                op: Op::Predefined(op),
            } => self.reduce_scatter(*part, *elem, *op),
            _ => None,
        }
    }

    /// A plan whose contributions of `len` bytes fit a slot, and whose result fits the receive buffer.
    #[inline(always)]
    fn short(&self, action: Action, gives: bool, len: usize, result: usize) -> Option<Short> {
        (len <= COLL_SLOT && self.recv.unwrap_or(0) >= result).then_some(Short {
            action,
            gives,
            len,
            result,
        })
    }

    #[inline(always)]
    fn bcast(&self, root: usize) -> Option<Short> {
        let len = self.recv?;
        if root == self.me {
            return self.short(Action::Give { keep: None }, true, len, len);
        }
        self.short(Action::Copy { root, from: 0 }, false, len, len)
    }

    #[inline(always)]
    fn gather(&self, root: usize, parts: &Parts) -> Option<Short> {
        if root != self.me {
            return self.short(Action::Give { keep: None }, true, self.send?, 0);
        }
        let &Parts::Equal(part) = parts else {
            return None;
        };
        let collect = Action::Collect(Collect { part, mine: false });
        (self.send.is_none_or(|len| len == part))
            .then(|| self.short(collect, false, part, part.checked_mul(self.size)?))
            .flatten()
    }

    /// The others know the parts by their own: they are equal, or the root's line says that they are not.
    #[inline(always)]
    fn scatter(&self, root: usize, parts: &Parts) -> Option<Short> {
        let part = match parts {
            _ if root != self.me => self.recv?,
            Parts::Equal(part) => *part,
            Parts::Listed(_) => return None,
        };
        let (len, from) = (part.checked_mul(self.size)?, part * self.me);
        if root != self.me {
            return self.short(Action::Copy { root, from }, false, len, part);
        }
        let keep = self.recv.map(|_| from);
        let result = keep.map_or(0, |_| part);
        (self.send? >= len)
            .then(|| self.short(Action::Give { keep }, true, len, result))
            .flatten()
    }

    #[inline(always)]
    fn allgather(&self, part: usize) -> Option<Short> {
        let collect = Action::Collect(Collect { part, mine: false });
        (self.send == Some(part))
            .then(|| self.short(collect, true, part, part.checked_mul(self.size)?))
            .flatten()
    }

    #[inline(always)]
    fn alltoall(&self, part: usize) -> Option<Short> {
        let collect = Action::Collect(Collect { part, mine: true });
        let len = part.checked_mul(self.size)?;
        (self.send? >= len)
            .then(|| self.short(collect, true, len, len))
            .flatten()
    }

    /// A reduce that its root combines alone, or an allreduce: of that every rank is a root.
    #[inline(always)]
    fn reduce(&self, root: usize, elem: ElemType, op: &Op) -> Option<Short> {
        let Op::Predefined(op) = *op else { return None };
        let given = self.given();
        let fits = op.accepts(elem) && given.is_multiple_of(elem.size());
        if !fits || algorithm(self.collective, given, self.size) != Some(Algorithm::Flat) {
            return None;
        }
        if root == self.me {
            return self.combine(op, elem, self.size);
        }
        let len = self.send.filter(|_| root < self.size)?;
        self.short(Action::Give { keep: None }, true, len, 0)
    }

    /// The combination of all below `upto`. Nobody waits for those behind.
    #[inline(always)]
    fn prefix(&self, upto: usize, elem: ElemType, op: &Op) -> Option<Short> {
        let Op::Predefined(op) = *op else { return None };
        let fits = op.accepts(elem) && self.given().is_multiple_of(elem.size());
        fits.then(|| self.combine(op, elem, upto)).flatten()
    }

    #[inline(always)]
    fn combine(&self, op: PredefinedOp, elem: ElemType, upto: usize) -> Option<Short> {
        let given = self.given();
        let combine = Combine {
            op,
            elem,
            begin: 0,
            upto,
        };
        self.short(Action::Combine(combine), true, given, given)
    }

    #[inline(always)]
    fn reduce_scatter(&self, part: usize, elem: ElemType, op: PredefinedOp) -> Option<Short> {
        let fits = op.accepts(elem) && part.is_multiple_of(elem.size());
        let len = part.checked_mul(self.size)?;
        let begin = part * self.me;
        let combine = Action::Combine(Combine {
            op,
            elem,
            begin,
            upto: self.size,
        });
        (fits && self.send? >= len)
            .then(|| self.short(combine, true, len, part))
            .flatten()
    }

    /// Bytes of this rank's vector, which stands in the receive buffer if there is no other.
    #[inline(always)]
    fn given(&self) -> usize {
        self.send.or(self.recv).unwrap_or(0)
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
            && (!short.gives || short.len <= INLINE || state.has_slots)
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
            let bytes = &send.unwrap_or(recv)[..short.len];
            state.publish_short(peers, seq, bytes, || short.filled(state.me));
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
    fn poll(&mut self, place: usize) -> Result<Brief, Stop> {
        poll_line(self.state, place, self.seq, self.polls)
    }

    /// The bytes of a contribution that has come.
    #[inline(always)]
    fn bytes(&self, place: usize, brief: Brief) -> Result<View<'_>, Stop> {
        let bytes = self.state.ends[place].brief_bytes(self.seq, brief, self.len);
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
        let brief = self.poll(root)?;
        let all = self.bytes(root, brief)?;
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
            let brief = self.poll(place)?;
            let all = self.bytes(place, brief)?;
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
        let brief = self.poll(1 - me)?;
        let all = self.bytes(1 - me, brief)?;
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
            let part = |place, brief| {
                let all = self.bytes(place, brief)?;
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
    fn poll_or_own(&mut self, place: usize) -> Result<Brief, Stop> {
        if place == self.state.me {
            Ok(self.state.ends[place].brief(self.seq))
        } else {
            self.poll(place)
        }
    }
}

/// Polls a line for a while. Gives what it says, which may be that it has no short contribution.
#[inline]
fn poll_line(
    state: &mut CommState,
    place: usize,
    seq: u32,
    mut polls: usize,
) -> Result<Brief, Stop> {
    while state.ends[place].look(seq) == 0 {
        polls -= 1;
        if polls == 0 {
            return Err(Stop::Awaited);
        }
        onecopy_shm::sync::spin_hint();
    }
    let brief = state.ends[place].brief(seq);
    state.note_done(place, brief.done);
    Ok(brief)
}
