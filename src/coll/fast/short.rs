// SPDX-License-Identifier: MIT OR Apache-2.0
//! What decides how a short collective goes: the plan in few words, and where this rank's contribution stands.

use super::super::contribution::Readers;
use super::super::exchange::READ_MAPPED;
use super::super::plan::{
    BufferCopy, Combination, Fault, Find, MemberCall, Plan, PlanForm, Takes, Task,
};
use super::super::select::{Algorithm, FLAT};
use super::super::state::CommState;
use super::super::{ByteRange, ElemType, Op, Parts, PredefinedOp};
use crate::endpoint::Home;
use crate::engine::Engine;
use crate::state::Statistics;
use onecopy_btl::LayerId;
use onecopy_shm::coll::INLINE;
use onecopy_shm::layout::{COLL_SLOT, COLL_SLOT_LONG, HeapOffset};
use std::ops::Range;

/// What is to be done with the others' contributions.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
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
pub(super) struct Collect {
    pub(super) part: usize,
    pub(super) mine: bool,
    pub(super) own: usize,
}

impl Collect {
    /// Where in a contribution the part for this rank begins.
    #[inline]
    pub(super) fn from(self, me: usize) -> usize {
        if self.mine { me * self.part } else { 0 }
    }
}

/// How contributions are combined: those of the places below `upto`, their bytes from `begin` on. Of two ranks that
/// both combine each gives the other one's bytes alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Combine {
    pub(super) op: PredefinedOp,
    pub(super) elem: ElemType,
    pub(super) begin: usize,
    pub(super) upto: usize,
}

impl Combine {
    /// Whether a rank combines what two give. Its own stands where the result goes, unless it is
    /// [long](Short::combines_own_in_place).
    #[inline(always)]
    pub(super) fn is_of_two(self, size: usize) -> bool {
        size == 2 && self.upto == 2
    }
}

/// The plan of a short collective, in the few words that registers hold.
pub(crate) struct Short {
    pub(super) action: Action,
    /// Whether this rank publishes something.
    pub(super) gives: bool,
    /// Who reads that in an exchange.
    pub(super) readers: Readers,
    /// Of the bytes that this rank publishes the first, and how many they are.
    offset: usize,
    given: usize,
    /// Bytes that each of the others publishes.
    pub(super) len: usize,
    /// Bytes of the result.
    pub(super) result: usize,
}

/// Bytes of the longest contribution to an exchange that is read in place, out of mapped memory: as many as a request
/// reads at once. Longer ones hide what a request costs.
pub(super) const MAPPED_MAX: usize = READ_MAPPED;
/// The same for a gather, whose root copies a part of its own. Of longer ones both ends copy at once: the request of
/// a member writes into the buffer of the root's. 64 KiB took 4.2 us in place, 3.7 by a request (A,
/// apart, 11-30).
pub(super) const GATHERED_MAX: usize = MAPPED_MAX / 2;

/// None unless contributions fit into slots or may be mapped, and lines alone describe them. The other path reports
/// what is wrong with a call.
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
            Task::Combine(part) => Self::combining(part, offer?.len, call.slot)?,
            Task::Swap(_) => return None,
        };
        if let Some(offer) = offer {
            short.offset += offer.offset;
            short.readers = offer.readers;
        }
        let both_copy = match short.action {
            // The root of a gather copies its own part, too.
            Action::Collect(_) => !short.gives,
            Action::Give { .. } => {
                matches!(short.readers, Readers::Only(_)) && !matches!(plan.task, Task::Combine(_))
            }
            Action::Meet | Action::Copy { .. } | Action::Combine(_) => false,
        };
        let mapped = if both_copy { GATHERED_MAX } else { MAPPED_MAX };
        let most = match &plan.task {
            // More than two read their own vector, too, out of the channel.
            Task::Combine(_) if size > 2 => call.slot,
            _ => mapped.max(call.slot),
        };
        (short.len <= most).then_some(short)
    }

    /// A reduction of vectors of so many bytes.
    #[inline(always)]
    fn combining(part: &Combination<'_>, vector: usize, slot: usize) -> Option<Self> {
        let &Combination {
            op: &Op::Predefined(op),
            elem,
            algorithm: Algorithm::Flat,
            range,
            upto,
            to_front: false,
            ..
        } = part
        else {
            return None;
        };
        let (given, len) = match part.part_given {
            Some(given) => (given, range.len),
            None => (ByteRange::first(vector), vector),
        };
        if len != given.len && len.max(given.len) > slot {
            return None;
        }
        let action = if part.result.is_some() {
            Action::Combine(Combine {
                op,
                elem,
                begin: range.offset,
                upto,
            })
        } else {
            Action::Give { keep: None }
        };
        // One of more than two that combine reads its own contribution out of its line, too.
        Some(Self {
            offset: given.offset,
            given: given.len,
            ..Self::new(action, true, len, range.len)
        })
    }

    #[inline(always)]
    fn new(action: Action, gives: bool, len: usize, result: usize) -> Self {
        Self {
            action,
            gives,
            readers: Readers::Nobody,
            offset: 0,
            given: len,
            len,
            result,
        }
    }

    /// What of its slot a rank fills: all that it gives, but its own part if everyone takes only theirs.
    #[inline]
    pub(super) fn filled(&self, me: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let own = match self.action {
            Action::Collect(Collect {
                part, mine: true, ..
            }) => me * part..(me + 1) * part,
            Action::Give { keep: Some(from) } => {
                let at = |place: usize| place.saturating_sub(self.offset).min(self.given);
                at(from)..at(from + self.result)
            }
            _ => self.given..self.given,
        };
        let parts = [0..own.start, own.end..self.given];
        parts.into_iter().filter(|part| !part.is_empty())
    }

    /// Whether this is one of two ranks and reads nothing of what it gives out of the channel. The first one of a scan
    /// does.
    #[inline(always)]
    pub(super) fn reads_none_of_own(&self, size: usize) -> bool {
        size == 2
            && match self.action {
                Action::Combine(combine) => combine.is_of_two(size),
                Action::Collect(_) | Action::Give { .. } => true,
                Action::Meet | Action::Copy { .. } => false,
            }
    }

    /// What a rank takes from its own send buffer to the result.
    #[inline]
    pub(super) fn own(&self, size: usize, me: usize) -> Option<BufferCopy> {
        let to_front = |from| BufferCopy {
            from,
            to: 0,
            len: self.result,
        };
        match self.action {
            Action::Collect(collect) => Some(BufferCopy {
                from: collect.own,
                to: me * collect.part,
                len: collect.part,
            }),
            Action::Combine(combine) if combine.is_of_two(size) => Some(to_front(combine.begin)),
            Action::Give { keep } => keep.map(to_front),
            _ => None,
        }
    }

    /// Whether a vector of this rank, which two combine, is combined where it stands. Others are copied first, while
    /// the other rank's comes.
    #[inline(always)]
    pub(super) fn combines_own_in_place(&self) -> bool {
        self.result > COLL_SLOT_LONG && matches!(self.action, Action::Combine(_))
    }

    /// What this rank publishes of its send buffer, or of what stands in the receive buffer.
    #[inline(always)]
    pub(super) fn given<'b>(&self, send: Option<&'b [u8]>, recv: &'b [u8]) -> &'b [u8] {
        &send.unwrap_or(recv)[self.offset..][..self.given]
    }

    /// Where what this rank gives stands. None: a request has to see to it.
    #[inline(always)]
    pub(super) fn place(
        &self,
        state: &CommState,
        home: &Home,
        send: Option<&[u8]>,
        recv: &[u8],
    ) -> Option<GivenPlace> {
        if self.given > COLL_SLOT {
            return self.place_of_long(state, home, send, recv);
        }
        (self.given <= INLINE || state.has_slots).then_some(GivenPlace::Channel)
    }

    /// The same of what has no room in a short slot. It is read in place where peers map it. A vector that the result
    /// replaces is not: they may read it later.
    #[inline(never)]
    fn place_of_long(
        &self,
        state: &CommState,
        home: &Home,
        send: Option<&[u8]>,
        recv: &[u8],
    ) -> Option<GivenPlace> {
        let combine = match self.action {
            Action::Combine(combine) => Some(combine),
            _ => None,
        };
        let mapped = match combine.is_some() && send.is_none() {
            true => None,
            false => home.heap_offset_of_bytes(self.given(send, recv)),
        };
        match mapped {
            Some(heap) => {
                // More than two read their own vector, too, out of the channel.
                let can = combine.is_none_or(|combine| combine.is_of_two(state.size()));
                (can && self.is_read_by_all(state)).then_some(GivenPlace::Mapped(heap))
            }
            None => {
                let in_slot = state.has_slots && self.given <= state.slot_bytes();
                in_slot.then_some(GivenPlace::Channel)
            }
        }
    }

    /// Whether a rank that only takes may find it without a request. It cannot see its giver's buffer, and guesses from
    /// its own. What has no room in a slot is in the heap, as a rule, where `recv` is.
    #[inline(always)]
    pub(super) fn can_take(&self, state: &CommState, home: &Home, recv: &[u8]) -> bool {
        self.len <= state.slot_bytes()
            || self.is_read_by_all(state) && home.heap_offset_of_bytes(recv).is_some()
    }

    /// Whether each member reads for itself what is longer than a slot. Receivers of a long broadcast take shares of it
    /// from each other.
    fn is_read_by_all(&self, state: &CommState) -> bool {
        let is_bcast = match self.action {
            Action::Copy { .. } => self.len == self.result,
            Action::Give { keep: None } => self.readers == Readers::Everyone,
            _ => false,
        };
        !is_bcast || state.size() == 2 || self.len < state.tuning.relay_min
    }

    /// Counts what came from the others, all of which is there. `mapped`: the places whose bytes were read in place.
    #[inline(always)]
    pub(super) fn count(&self, engine: &mut Engine, state: &CommState, mapped: Places) {
        let (from, bytes) = match self.action {
            Action::Give { .. } | Action::Meet => return,
            Action::Copy { root, .. } => (root..root + 1, self.result),
            Action::Collect(Collect { part, .. }) => (0..state.size(), part),
            Action::Combine(Combine { upto, .. }) => (0..upto, self.result),
        };
        if bytes == 0 {
            return;
        }
        let counters = &mut engine.core.counters;
        let mut count = |place: usize| {
            let rank = state.members[place];
            if mapped.has(place) {
                self.count_mapped(counters, rank, bytes);
            } else {
                counters.count_contribution(rank, LayerId::CHUNKS, bytes);
            }
        };
        // Of two there is one other.
        if state.size() == 2 {
            let other = 1 - state.me;
            if from.contains(&other) {
                count(other);
            }
        } else {
            from.filter(|&place| place != state.me).for_each(count);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_mapped(&self, counters: &mut Statistics, rank: u32, bytes: usize) {
        // What is combined where it stands is not copied.
        if !matches!(self.action, Action::Combine(_)) {
            LayerId::MAP.count(counters, bytes as u64);
        }
        counters.count_contribution(rank, LayerId::MAP, bytes);
    }
}

/// Where a rank's contribution to a short collective stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenPlace {
    /// In its line, or in a slot that it has.
    Channel,
    /// Where the program has it, in the heap.
    Mapped(HeapOffset),
}

/// A set of members of a short collective, by place.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Places(u8);

// A bit for each.
const _: () = assert!(FLAT <= u8::BITS as usize);

impl Places {
    #[inline(always)]
    pub(super) fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    #[inline(always)]
    pub(super) fn has(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }
}
