// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short collectives of a program that waits: the same steps as the others', on the caller's slices, without a request.
//! What does not come soon is handed over to a request, which takes up where this stopped.

use super::communicator::Communicator;
use super::select::{Algorithm, algorithm};
use super::state::State;
use super::worker::Worker;
use super::{Collective, ElemType, Op, Parts, PredefinedOp};
use crate::engine::Engine;
use onecopy_shm::coll::{Brief, INLINE, View, accumulate, combine, kind, precede};
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::COLL_SLOT;
use std::ops::Range;

/// How far a short collective has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quick {
    /// It is over.
    Done,
    /// Nothing has happened.
    Not,
    /// This rank's contribution is published.
    Begun,
}

/// What is to be done with the others' contributions.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// Nothing but to wait for them.
    Meet,
    /// Copy the root's.
    Copy { root: usize },
    /// Copy all, side by side: parts of so many bytes. `mine`: a rank's part of each, not all of it.
    Collect { part: usize, mine: bool },
    /// Combine bytes from `begin` on.
    Combine {
        op: PredefinedOp,
        elem: ElemType,
        begin: usize,
    },
    /// This rank only gives.
    Nothing,
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
            Action::Collect { part, mine: true } => me * part..(me + 1) * part,
            _ => self.len..self.len,
        };
        let parts = [0..own.start, own.end..self.len];
        parts.into_iter().filter(|part| !part.is_empty())
    }
}

/// The plan for a short collective on `size` ranks; none: it is not short.
#[inline]
pub(crate) fn plan(
    collective: &Collective,
    size: usize,
    me: usize,
    send: Option<usize>,
    recv: Option<usize>,
) -> Option<Short> {
    let short = |action, gives, len, result| {
        (len <= COLL_SLOT && recv.unwrap_or(0) >= result).then_some(Short {
            action,
            gives,
            len,
            result,
        })
    };
    let given = send.or(recv).unwrap_or(0);
    match collective {
        Collective::Barrier => short(Action::Meet, false, 0, 0),
        &Collective::Bcast { root } if root < size => {
            let action = if root == me {
                Action::Nothing
            } else {
                Action::Copy { root }
            };
            short(action, root == me, recv?, recv?)
        }
        &Collective::Allgather {
            parts: Parts::Equal(part),
        } if send == Some(part) => {
            let action = Action::Collect { part, mine: false };
            short(action, true, part, part * size)
        }
        Collective::Alltoall {
            send: Parts::Equal(part),
            recv: Parts::Equal(other),
        } if part == other && send? >= part * size => {
            let action = Action::Collect {
                part: *part,
                mine: true,
            };
            short(action, true, part * size, part * size)
        }
        Collective::Allreduce { elem, op } | Collective::Reduce { elem, op, .. } => {
            let Op::Predefined(op) = *op else { return None };
            let fits = op.accepts(*elem) && given.is_multiple_of(elem.size());
            if !fits || algorithm(collective, given, size) != Some(Algorithm::Flat) {
                return None;
            }
            let combine = Action::Combine {
                op,
                elem: *elem,
                begin: 0,
            };
            match collective {
                Collective::Reduce { root, .. } if *root >= size => None,
                Collective::Reduce { root, .. } if *root != me => {
                    send.and_then(|len| short(Action::Nothing, true, len, 0))
                }
                _ => short(combine, true, given, given),
            }
        }
        Collective::ReduceScatter {
            parts: Parts::Equal(part),
            elem,
            op: Op::Predefined(op),
        } => {
            let fits = op.accepts(*elem) && part.is_multiple_of(elem.size());
            let combine = Action::Combine {
                op: *op,
                elem: *elem,
                begin: part * me,
            };
            (fits && send? >= part * size)
                .then(|| short(combine, true, part * size, *part))
                .flatten()
        }
        _ => None,
    }
}

impl Worker {
    /// Publishes this rank's contribution, if that is possible now, and moves what it has for itself. Gives the
    /// collective's number.
    #[inline]
    pub(crate) fn begin_short(
        &mut self,
        slot: usize,
        short: &Short,
        send: Option<&[u8]>,
        recv: &mut [u8],
    ) -> Option<u32> {
        let Self {
            engine,
            collectives,
        } = self;
        let Engine { core, peers, .. } = engine;
        let Communicator { state, ops } = collectives.slots.get_mut(slot)?.as_deref_mut()?;
        let seq = state.seq.wrapping_add(1);
        let ready = state.has_channel()
            && ops.is_empty()
            && state.failed.is_none()
            && (short.len <= INLINE || state.has_slots)
            && core.fatal.is_none()
            && state.has_room(seq);
        if !ready {
            return None;
        }
        state.seq = seq;
        core.counters.collectives += 1;
        let (size, me) = (state.size(), state.me);
        if short.gives {
            let bytes = &send.unwrap_or(recv)[..short.len];
            if short.len <= INLINE {
                state.publish(peers, seq, kind::INLINE, bytes);
            } else {
                let filled = short.filled(me);
                let own = state.own();
                for part in filled.clone() {
                    own.write_slot(seq, part.start, &bytes[part]);
                }
                let len = (short.len as u64).to_le_bytes();
                state.publish(peers, seq, kind::SLOT, &len);
                for part in filled.clone() {
                    own.hand_over_slot(seq, part);
                }
                own.hand_over(seq);
                // The lines of the next contribution come back while this rank waits for the others'.
                let next = seq.wrapping_add(1);
                own.will_publish(next);
                for part in filled {
                    own.will_fill_slot(next, part);
                }
            }
        } else if matches!(short.action, Action::Meet) {
            state.publish(peers, seq, kind::NOTHING, &[]);
        }
        // From the program's memory: the lines that were just published are on their way to others.
        let own = match short.action {
            Action::Collect { part, mine } => {
                Some((if mine { me * part } else { 0 }, me * part, part))
            }
            Action::Combine { begin, .. } if size == 2 => Some((begin, 0, short.result)),
            _ => None,
        };
        if let (Some((from, to, len)), Some(send)) = (own, send) {
            // The plan has seen that both buffers are long enough.
            if let Some(view) = View::of(send).part(from, len) {
                view.copy_to(&mut recv[to..][..len], Kernel::Memcpy);
            }
        }
        Some(seq)
    }

    /// Takes what has come. `true`: that was all; none: it is no short collective after all.
    #[inline]
    pub(crate) fn step_short(
        &mut self,
        slot: usize,
        seq: u32,
        short: &Short,
        recv: &mut [u8],
        next: &mut usize,
        polls: usize,
    ) -> Option<bool> {
        let state = &mut self.collectives.slots[slot].as_deref_mut()?.state;
        let (size, me) = (state.size(), state.me);
        let recv = &mut recv[..short.result];
        match short.action {
            Action::Nothing => {}
            Action::Meet => {
                while *next < size {
                    if *next != me && poll_line(state, *next, seq, polls).is_none() {
                        return Some(false);
                    }
                    *next += 1;
                }
            }
            Action::Copy { root } => {
                let Some(brief) = poll_line(state, root, seq, polls) else {
                    return Some(false);
                };
                let view = state.ends[root].brief_bytes(seq, brief, short.len)?;
                view.copy_to(recv, Kernel::Memcpy);
            }
            Action::Collect { part, mine } => {
                while *next < size - 1 {
                    let place = (me + 1 + *next) % size;
                    let Some(brief) = poll_line(state, place, seq, polls) else {
                        return Some(false);
                    };
                    let from = if mine { me * part } else { 0 };
                    let all = state.ends[place].brief_bytes(seq, brief, short.len)?;
                    let view = all.part(from, part)?;
                    view.copy_to(&mut recv[place * part..][..part], Kernel::Memcpy);
                    *next += 1;
                }
            }
            Action::Combine { op, elem, begin } if size == 2 => {
                // This rank's own stands where the result goes already.
                let Some(brief) = poll_line(state, 1 - me, seq, polls) else {
                    return Some(false);
                };
                let all = state.ends[1 - me].brief_bytes(seq, brief, short.len)?;
                let other = all.part(begin, short.result)?;
                if me == 0 {
                    accumulate(op, elem, recv, other);
                } else {
                    precede(op, elem, recv, other);
                }
            }
            Action::Combine { op, elem, begin } => {
                while *next < size {
                    // The first two at once.
                    let last = if *next == 0 && size > 1 { 1 } else { *next };
                    let mut briefs = [None; 2];
                    for (brief, place) in briefs.iter_mut().zip(*next..=last) {
                        *brief = if place == me {
                            Some(state.ends[me].brief(seq))
                        } else {
                            poll_line(state, place, seq, polls)
                        };
                        if brief.is_none() {
                            return Some(false);
                        }
                    }
                    let one = |index: usize| -> Option<View<'_>> {
                        let end = &state.ends[*next + index];
                        let all = end.brief_bytes(seq, briefs[index]?, short.len)?;
                        all.part(begin, short.result)
                    };
                    if last > *next {
                        combine(op, elem, recv, one(0)?, one(1)?);
                    } else if *next == 0 {
                        one(0)?.copy_to(recv, Kernel::Memcpy);
                    } else {
                        accumulate(op, elem, recv, one(0)?);
                    }
                    *next = last + 1;
                }
            }
        }
        state.set_done(seq);
        state.wake(&self.engine.peers);
        // The next contribution's line comes back meanwhile.
        state.own().will_publish(seq.wrapping_add(1));
        Some(true)
    }
}

/// Polls a line for a while. Gives what it says, which may be that it has no short contribution.
#[inline]
fn poll_line(state: &mut State, place: usize, seq: u32, mut polls: usize) -> Option<Brief> {
    while state.ends[place].look(seq) == 0 {
        polls -= 1;
        if polls == 0 {
            return None;
        }
        onecopy_shm::sync::spin_hint();
    }
    let brief = state.ends[place].brief(seq);
    state.note_done(place, brief.done);
    Some(brief)
}
