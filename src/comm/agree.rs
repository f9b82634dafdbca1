// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the members of a communicator come to agree on a new one.

use super::Comm;
use crate::coll::Group;
use crate::coll::Worker;
use crate::coll::agree::{IdShare, NUMBERS, Proposal};
use crate::coll::group::sub_context;
use crate::coll::ids::Turn;
use crate::error::Result;
use crate::handle::Handle;
use std::sync::Arc;

/// With whom a member wants to be, and at which place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coloring {
    /// With those who name the same; none: in no communicator.
    pub(super) color: Option<u32>,
    /// Ordered by this, then by rank.
    pub(super) key: i64,
}

impl Comm {
    /// Forms communicators; `agreement_comm` carries the agreement.
    pub(super) fn form(
        &self,
        agreement_comm: &Self,
        turn: Turn,
        Coloring { color, key }: Coloring,
        group: Option<&Group>,
        share: IdShare,
    ) -> Result<Option<Self>> {
        let handle: &Handle = &self.handle;
        let mut numbers = vec![0u64; NUMBERS * agreement_comm.size()];
        let mut proposal = Proposal::default();
        loop {
            (proposal.color, proposal.key) = (color.map_or(0, |color| u64::from(color) + 1), key);
            let gathered = agreement_comm.allgather(&proposal.encode(), &mut numbers);
            let proposals: Vec<Proposal> = numbers
                .chunks_exact(NUMBERS)
                .map(Proposal::decode)
                .collect();
            let ready = proposals.iter().all(|proposal| proposal.ready != 0);
            if ready || gathered.is_err() {
                let formed =
                    gathered.and_then(|()| self.settle(agreement_comm, &proposals, color, group));
                handle.gate.enter().end_round(turn, true);
                let formed = formed?;
                Self::await_prepared(agreement_comm, formed.as_ref())?;
                return Ok(formed);
            }
            handle.gate.enter().end_round(turn, false);
            std::thread::yield_now();
            proposal = handle.gate.enter().offer_ids(turn, share);
        }
    }

    /// Nobody uses the channel of a new communicator before all have prepared their ends. If one could not, no member
    /// uses it.
    fn await_prepared(agreement_comm: &Self, formed: Option<&Self>) -> Result<()> {
        let index = formed.and_then(|formed| formed.index);
        let mine = index.is_none_or(|index| agreement_comm.handle.gate.enter().is_prepared(index));
        let mut prepared = vec![0u32; agreement_comm.size()];
        agreement_comm.allgather(&[u32::from(mine)], &mut prepared)?;
        let (Some(formed), Some(index)) = (formed, index) else {
            return Ok(());
        };
        let members = formed.members();
        let lacking = (0..agreement_comm.size()).filter(|&place| prepared[place] == 0);
        let mut lacking = lacking.map(|place| agreement_comm.world_rank(place));
        if let Some(rank) = lacking.find(|&rank| members.contains(&(rank as u32))) {
            agreement_comm.handle.gate.enter().give_up_with(index, rank);
        }
        Ok(())
    }

    fn settle(
        &self,
        agreement_comm: &Self,
        proposals: &[Proposal],
        color: Option<u32>,
        group: Option<&Group>,
    ) -> Result<Option<Self>> {
        let members: Arc<[u32]> = match (color, group) {
            (None, _) => Arc::from([]),
            (Some(_), Some(group)) => Arc::clone(&group.0),
            (Some(color), None) => {
                let ours = u64::from(color) + 1;
                let mut chosen: Vec<(i64, usize)> = proposals
                    .iter()
                    .enumerate()
                    .filter(|(_, proposal)| proposal.color == ours)
                    .map(|(place, proposal)| (proposal.key, place))
                    .collect();
                chosen.sort_unstable();
                let rank = |&(_, place): &(i64, usize)| agreement_comm.world_rank(place) as u32;
                chosen.iter().map(rank).collect()
            }
        };
        let mut worker = self.handle.gate.enter();
        // The same on all ranks, also on those that are in no group.
        let largest = worker.engine.nodes_of(&agreement_comm.members()).largest();
        let agreed = Worker::agree(proposals, largest)?;
        let own = worker.engine.core.me;
        let Some(me) = members.iter().position(|&rank| rank == own) else {
            return Ok(None);
        };
        let membership = worker.settle(&agreed, &members, me);
        let (index, context) = (membership.slot, sub_context(membership.id));
        drop(worker);
        Ok(Some(Self {
            handle: self.handle.clone(),
            context,
            membership: Some(Arc::new(membership)),
            index: Some(index),
        }))
    }
}

#[cfg(test)]
mod tests {
    use crate::coll::Group;
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

    /// On rank 0 a thread waits in the agreement that would be the first. It waits for a thread of rank 1 that is still
    /// in one that would be the last. That one is behind a third agreement, in which other threads of both are.
    #[test]
    fn an_agreement_that_waits_for_a_member_keeps_no_other_back() {
        with_threads(2, |rt| {
            let world = rt.world();
            let (both, alone) = (world.group(), Group::of(&[rt.rank()]));
            let [first, second, last] = [10, 20, 30].map(|context| world.with_context(context));
            // Long enough that what is to come first does, on a machine that is not busy; the result does not depend on
            // it.
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
