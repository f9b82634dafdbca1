// SPDX-License-Identifier: MIT OR Apache-2.0
//! How members agree on a communicator.
//!
//! A communicator has an id that no two communicators with a common member share at a time: its messages' contexts are made of it. Members agree on
//! the smallest id that is free with all of them, on a channel for collectives in the same way, and on a number that tells the channel's
//! users apart. They tell each other what is free with them, in rounds, until one comes in which the ids of all of them are this agreement's.
//!
//! Threads may form several communicators at a time. One agreement holds a rank's ids, for the length of a round: the [`Turn`] that is the
//! lowest of all that wait there. Turns have the same order on all ranks, so the lowest of all of them comes first wherever it waits, and is over
//! after a round or two; nothing else is waited for, because **an agreement waits for its turn only after all its members have come to
//! it**: its first round says nothing but that. Otherwise one that waits for a thread, which on another rank is still busy with an older
//! agreement, would keep back what that one waits for.

use super::group::{CHANNEL_RANKS, Group, Place, sub_context};
use super::state::{Retired, State};
use crate::comm::{Comm, OWN_CONTEXTS};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::runtime::Handle;
use onecopy_shm::coll::line::reached;
use onecopy_shm::layout::ChannelPart;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Ids of communicators at a time, the one of all ranks included.
const IDS: u32 = 2048;
const WORDS: usize = IDS as usize / 64;

/// What agreements are told apart and ordered by, the same on all members: the context of the parent, and the tag of those that only a part
/// of its members takes part in.
pub(super) type Turn = (u32, u32);

/// Ids of communicators.
pub(crate) struct Ids {
    used: [u64; WORDS],
    /// Slot and id of those in use.
    of_slots: Vec<(usize, u32)>,
    /// Where to look for a free one first, so that an id rests before it is used again.
    next: u32,
    /// Users of channels so far.
    users: u32,
    /// Whose agreement holds the ids.
    holder: Option<Turn>,
    waiting: BTreeSet<Turn>,
    pub(super) graves: Arc<Mutex<Vec<usize>>>,
    pub(super) by_context: Vec<(u32, usize)>,
}

impl Default for Ids {
    fn default() -> Self {
        let mut used = [0; WORDS];
        // All ranks.
        used[0] = 1;
        Self {
            used,
            of_slots: Vec::new(),
            next: 1,
            users: 1,
            holder: None,
            waiting: BTreeSet::new(),
            graves: Arc::default(),
            by_context: Vec::new(),
        }
    }
}

/// What a rank says when a communicator is formed.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    /// Whether the ids are this agreement's.
    ready: u64,
    /// Its part, plus one; 0: none.
    color: u64,
    key: i64,
    next: u32,
    users: u32,
    free_channels: u64,
    free: [u64; WORDS],
}

/// Numbers that a word is sent as.
const NUMBERS: usize = 6 + WORDS;

impl Word {
    fn encode(&self) -> Vec<u64> {
        let mut numbers = vec![
            self.ready,
            self.color,
            self.key.cast_unsigned(),
            u64::from(self.next),
            u64::from(self.users),
            self.free_channels,
        ];
        numbers.extend(self.free);
        numbers
    }

    fn decode(numbers: &[u64]) -> Self {
        let mut free = [0; WORDS];
        free.copy_from_slice(&numbers[6..NUMBERS]);
        Self {
            ready: numbers[0],
            color: numbers[1],
            key: numbers[2].cast_signed(),
            next: numbers[3] as u32,
            users: numbers[4] as u32,
            free_channels: numbers[5],
            free,
        }
    }
}

/// How much of what communicators share one more may take: ids, and channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    All,
    /// Half of it stays for others.
    Half,
}

struct Agreed {
    id: u32,
    channel: Option<u32>,
    tag: u64,
}

impl Engine {
    /// What this rank says about its ids to an agreement to which all have come.
    fn offer_ids(&mut self, turn: Turn, share: Share) -> Word {
        self.bury();
        let all = self.geometry.coll_channels;
        let mask = if all >= 64 { u64::MAX } else { (1 << all) - 1 };
        let mut free_channels = mask & !self.colls.channels;
        let ids = &mut self.colls.ids;
        let mut free = ids.used.map(|word| !word);
        if share == Share::Half {
            if free_channels.count_ones() * 2 <= all {
                free_channels = 0;
            }
            if free.iter().map(|word| word.count_ones()).sum::<u32>() * 2 <= IDS {
                free = [0; WORDS];
            }
        }
        ids.waiting.insert(turn);
        let mine = ids.holder.is_none() && ids.waiting.first() == Some(&turn);
        if mine {
            ids.holder = Some(turn);
        }
        Word {
            ready: u64::from(mine),
            color: 0,
            key: 0,
            next: ids.next,
            users: ids.users,
            free_channels,
            free,
        }
    }

    fn end_round(&mut self, turn: Turn, over: bool) {
        let ids = &mut self.colls.ids;
        if ids.holder == Some(turn) {
            ids.holder = None;
        }
        if over {
            ids.waiting.remove(&turn);
        }
    }

    /// What all words together say.
    fn agree(words: &[Word], ranks: usize) -> Result<Agreed> {
        let mut free = [u64::MAX; WORDS];
        let mut free_channels = u64::MAX;
        let (mut next, mut users) = (0, 0);
        for word in words {
            free.iter_mut()
                .zip(word.free)
                .for_each(|(all, one)| *all &= one);
            free_channels &= word.free_channels;
            next = next.max(word.next);
            users = users.max(word.users);
        }
        let is_free = |id: &u32| free[*id as usize / 64] & 1 << (id % 64) != 0;
        let id = (0..IDS)
            .map(|step| (next % IDS + step) % IDS)
            .find(is_free)
            .ok_or_else(|| Error::Collective {
                reason: format!("{IDS} communicators at a time; drop some"),
            })?;
        let channel =
            (free_channels != 0 && ranks <= CHANNEL_RANKS).then(|| free_channels.trailing_zeros());
        Ok(Agreed {
            id,
            channel,
            tag: u64::from(users.wrapping_add(1)) << 32 | u64::from(id),
        })
    }

    /// Makes the state of a communicator that this rank is a member of.
    fn settle(&mut self, agreed: &Agreed, members: &Arc<[u32]>, me: usize) -> Place {
        let ids = &mut self.colls.ids;
        ids.used[agreed.id as usize / 64] |= 1 << (agreed.id % 64);
        ids.next = (agreed.id + 1) % IDS;
        ids.users = (agreed.tag >> 32) as u32;
        let context = sub_context(agreed.id) | OWN_CONTEXTS;
        let channel = agreed.channel;
        if let Some(channel) = channel {
            self.colls.channels |= 1 << channel;
        }
        let reserved = channel.map_or(Ok(()), |channel| {
            self.core
                .segment
                .reserve_channel(channel, ChannelPart::Lines)
        });
        if let (Ok(()), Some(channel)) = (&reserved, channel)
            && let Some(end) = self.core.segment.channel(channel)
        {
            end.open(agreed.tag, 0);
        }
        let mut state = State::new(Arc::clone(members), me, context, agreed.tag, channel);
        // Without memory for it every collective of the communicator fails here.
        state.failed = reserved.err().map(Error::from);
        let slot = self.colls.add(state);
        self.colls.ids.of_slots.push((slot, agreed.id));
        Place {
            members: Arc::clone(members),
            me,
            id: agreed.id,
            slot,
            graves: Arc::clone(&self.colls.ids.graves),
        }
    }

    /// Takes back ids and channels of communicators that are gone.
    fn bury(&mut self) {
        let graves = Arc::clone(&self.colls.ids.graves);
        let mut graves = graves.lock().unwrap_or_else(PoisonError::into_inner);
        graves.retain(|&slot| {
            let Some(state) = &self.colls.slots[slot] else {
                return false;
            };
            if !state.ops.is_empty() {
                // Requests that outlive the communicator still go on.
                return true;
            }
            let Some(state) = self.colls.slots[slot].take() else {
                return false;
            };
            if let Some(channel) = state.channel {
                self.colls.retired.push(Retired {
                    channel,
                    tag: state.tag,
                    seq: state.seq,
                    members: Arc::clone(&state.members),
                    ends: state.ends,
                });
            }
            let ids = &mut self.colls.ids;
            if let Some(index) = ids.of_slots.iter().position(|&(other, _)| other == slot) {
                let (_, id) = ids.of_slots.swap_remove(index);
                ids.used[id as usize / 64] &= !(1 << (id % 64));
            }
            false
        });
        let gone = &self.gone;
        let channels = &mut self.colls.channels;
        self.colls.retired.retain(|retired| {
            let left = retired
                .ends
                .iter()
                .zip(&*retired.members)
                .all(|(end, &rank)| {
                    gone[rank as usize].is_some()
                        || end.tag() != retired.tag
                        || reached(end.done(), retired.seq)
                });
            if left {
                *channels &= !(1 << retired.channel);
            }
            !left
        });
    }
}

impl Comm {
    /// Forms communicators; `lane` carries what is said.
    pub(super) fn form(
        &self,
        lane: &Self,
        turn: Turn,
        (color, key): (Option<u32>, i64),
        group: Option<&Group>,
        share: Share,
    ) -> Result<Option<Self>> {
        let handle: &Handle = &self.handle;
        let mut numbers = vec![0u64; NUMBERS * lane.size()];
        let mut word = Word::default();
        loop {
            (word.color, word.key) = (color.map_or(0, |color| u64::from(color) + 1), key);
            let said = lane.allgather(&word.encode(), &mut numbers);
            let words: Vec<Word> = numbers.chunks_exact(NUMBERS).map(Word::decode).collect();
            let ready = words.iter().all(|word| word.ready != 0);
            if ready || said.is_err() {
                let formed = said.and_then(|()| self.settle(lane, &words, color, group));
                handle.gate.enter().end_round(turn, true);
                let formed = formed?;
                // Nobody uses the channel before all have prepared their ends.
                lane.barrier()?;
                return Ok(formed);
            }
            handle.gate.enter().end_round(turn, false);
            std::thread::yield_now();
            word = handle.gate.enter().offer_ids(turn, share);
        }
    }

    fn settle(
        &self,
        lane: &Self,
        words: &[Word],
        color: Option<u32>,
        group: Option<&Group>,
    ) -> Result<Option<Self>> {
        let members: Arc<[u32]> = match (color, group) {
            (None, _) => Arc::from([]),
            (Some(_), Some(group)) => Arc::clone(&group.0),
            (Some(color), None) => {
                let ours = u64::from(color) + 1;
                let mut chosen: Vec<(i64, usize)> = words
                    .iter()
                    .enumerate()
                    .filter(|(_, word)| word.color == ours)
                    .map(|(place, word)| (word.key, place))
                    .collect();
                chosen.sort_unstable();
                let rank = |&(_, place): &(i64, usize)| lane.world_rank(place) as u32;
                chosen.iter().map(rank).collect()
            }
        };
        let mut engine = self.handle.gate.enter();
        // The same on all ranks, also on those that are in no group.
        let agreed = Engine::agree(words, words.len())?;
        let own = engine.core.me;
        let Some(me) = members.iter().position(|&rank| rank == own) else {
            return Ok(None);
        };
        let place = engine.settle(&agreed, &members, me);
        let (slot, context) = (place.slot, sub_context(place.id));
        drop(engine);
        Ok(Some(Self {
            handle: self.handle.clone(),
            context,
            place: Some(Arc::new(place)),
            slot: Some(slot),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Runtime, Threads, local_of};
    use onecopy_obs::Knobs;
    use std::time::Duration;

    /// Calls `body` on ranks that many threads use.
    fn with_threads(ranks: usize, body: impl Fn(&Runtime) + Sync) {
        local_of(ranks, &Knobs::default(), Threads::Multiple, |rt| {
            body(&rt);
            rt.finalize().expect("finalize");
        });
    }

    /// On rank 0 a thread waits in the agreement that would be the first, for a thread of rank 1 that is still in one that would be the last; that
    /// one is behind a third agreement, in which other threads of both are.
    #[test]
    fn an_agreement_that_waits_for_a_member_keeps_no_other_back() {
        with_threads(2, |rt| {
            let world = rt.world();
            let (both, alone) = (world.group(), Group::of(&[rt.rank()]));
            let [first, second, last] = [10, 20, 30].map(|context| world.with_context(context));
            // Long enough that what is to come first does, on a machine that is not busy; the result does not depend on it.
            let later = || std::thread::sleep(Duration::from_millis(30));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if rt.rank() == 1 {
                        later();
                        later();
                        let own = last.create_from_group(&alone, 0).expect("alone");
                        assert_eq!(own.size(), 1);
                    }
                    let made = first.create_from_group(&both, 0).expect("the first");
                    made.barrier().expect("barrier");
                });
                scope.spawn(|| {
                    later();
                    let made = second.create_from_group(&both, 0).expect("the second");
                    made.barrier().expect("barrier");
                });
            });
        });
    }

    #[test]
    fn agreements_of_one_parent_are_told_apart_by_their_tags() {
        with_threads(3, |rt| {
            let world = rt.world();
            let members = world.group();
            std::thread::scope(|scope| {
                for thread in 0..4u32 {
                    let (world, members) = (&world, &members);
                    scope.spawn(move || {
                        for _ in 0..50 {
                            let made = world.create_from_group(members, thread).expect("create");
                            let mut sum = [0];
                            let one = [u64::from(thread)];
                            made.allreduce(&one, &mut sum, crate::coll::PredefinedOp::Sum)
                                .expect("allreduce");
                            assert_eq!(sum, [3 * u64::from(thread)]);
                        }
                    });
                }
            });
        });
    }
}
