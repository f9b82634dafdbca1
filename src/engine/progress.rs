// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving everything on: which rings are polled, and what is taken from them.

use super::Engine;
use crate::endpoint::slots_for;
use crate::error::Error;
use crate::peer::Gone;
use crate::proto;
use crate::proto::incoming::{Drain, drain};
use crate::request::RequestId;
use std::time::{Duration, Instant};

/// Receives of messages of a few slots that are posted between two polls of their sender's ring: see
/// [`Engine::catch_up`], and docs/performance.md, "MPI". Measured on B (11-22 and 11-23): windows of 64 bytes near 27 →
/// 31 million a second, far 10.5 → 9.6. A poll at every 16th receive, or more often, gains nothing near or far.
const POSTS_PER_POLL: usize = 32;
/// Polls in vain of a ring after which its chunks are given back, unless they are kept for an answer. Chosen by
/// magnitude, not by a measurement: so many polls are a microsecond or two, longer than a hand-off of a line.
const IDLE: u32 = 64;
/// Polls in vain after which chunks that are kept for an answer are given back, too: the peer may wait for them. An
/// answer comes within some ten microseconds. Chosen by magnitude.
const LONG_IDLE: u32 = 1024;
/// Periods of `ONECOPY_LIVENESS_PERIOD` between two looks at the peers' lives of a rank that does not wait for long.
/// Such a rank talks all the time, or asks again and again whether a request is complete. A look takes some
/// microseconds, and tens of them in a job of hundreds of ranks. Chosen by magnitude: at 10 ms for each, a death is
/// noticed within a tenth of a second.
const BUSY_PERIODS: u32 = 10;
/// How long this rank tries to reach one that has sent something, once in each look at the peers' lives. Chosen by
/// magnitude: a shortage of descriptors or memory that lasts longer is no passing one.
const TRIES_LAST: Duration = Duration::from_millis(500);

/// Slots of the messages that are polled for seldom: of these a reader close behind the sender was seen to steal lines.
/// With a poll at each receive, 64 bytes (two slots) lost a third far. 256 bytes (five) gained, near 22 → 28 million a
/// second (B, 11-22; docs/performance.md, "MPI"). Where exactly between them it turns was not measured.
const FEW_SLOTS: std::ops::RangeInclusive<usize> = 2..=4;

impl Engine {
    /// A round of progress; see [`Engine::progress_messages`].
    #[inline]
    pub(super) fn move_messages(&mut self, waiting: bool) -> bool {
        let mut moved = false;
        if self.polling.next_round() {
            let ages = self.polling.ages();
            moved |= self.poll_rare_sources(ages);
        }
        for word in 0..self.core.home.active_words() {
            let active = self.core.home.take_active(word);
            if active != 0 {
                self.activate(word, active);
                moved = true;
            }
        }
        let mut index = 0;
        while index < self.polling.ranks.len() {
            let rank = self.polling.ranks[index];
            index += 1;
            let Some(peer) = &mut self.peers[rank as usize] else {
                continue;
            };
            if peer.endpoint.is_empty() {
                peer.idle_polls = peer.idle_polls.saturating_add(1);
                match peer.idle_polls {
                    IDLE => peer.endpoint.give_back_unneeded(),
                    // The peer may wait for the chunks that were kept for an answer.
                    LONG_IDLE => peer.endpoint.give_back(),
                    _ => {}
                }
                continue;
            }
            moved = true;
            self.take_from(rank, Drain::All);
        }
        if !self.core.agenda.busy.is_empty() {
            moved |= self.look_after_busy(waiting);
        }
        if !self.receives.transfers.is_empty() {
            moved |= proto::rendezvous::step_all(
                &mut self.core,
                &mut self.receives.transfers,
                &mut self.peers,
            );
        }
        moved
    }

    /// Polls what is not polled in each round: cold buffers, and the hub of the wires.
    #[cold]
    fn poll_rare_sources(&mut self, ages: bool) -> bool {
        let now = Instant::now();
        if ages {
            self.age(now);
        }
        self.look_at_wires(now)
    }

    /// Polls what is not polled in each round, whatever round this is, if time has passed. Says whether it has.
    #[inline]
    pub(crate) fn keep_time(&mut self) -> bool {
        let passed = self.polling.time_has_passed();
        if passed {
            self.poll_rare_sources(true);
        }
        passed
    }

    /// Takes what has come from a peer for receives that wait, before one of `len` bytes is posted, which may find its
    /// message behind that. Says whether it should look.
    ///
    /// A reader that follows the sender closely steals its cache lines. Between distant processors that costs more than
    /// it gains for messages of a few lines. So their sender is polled less often, and one that writes chunks not at
    /// all.
    #[inline]
    pub(super) fn take_expected(&mut self, rank: u32, len: usize) -> bool {
        if FEW_SLOTS.contains(&slots_for(len))
            && !self.receives.posted.in_run().is_multiple_of(POSTS_PER_POLL)
        {
            return false;
        }
        let peer = self.peers.get_mut(rank as usize).and_then(Option::as_mut);
        if !peer.is_some_and(|peer| {
            len <= peer.policy.thresholds.slots_limit && !peer.endpoint.is_empty()
        }) {
            return false;
        }
        self.take_from(rank, Drain::Expected);
        true
    }

    /// Takes the answer to the send `id` if it comes next from a peer, or what comes before it.
    #[inline]
    pub(super) fn take_fin_or_all(&mut self, rank: u32, id: RequestId) {
        let Self { core, peers, .. } = self;
        let Some(Some(peer)) = peers.get_mut(rank as usize) else {
            return;
        };
        if !proto::incoming::take_fin(core, peer, id) {
            self.take_from(rank, Drain::All);
        } else if peer.has_output() {
            core.agenda.make_busy(rank);
        }
    }

    /// Takes all that a peer on this node has sent so far.
    pub(super) fn take_all_from(&mut self, rank: u32) {
        let peer = self.peers[rank as usize].as_ref();
        // One that goes on writing does not keep this rank here.
        let most = peer.map_or(0, |peer| peer.endpoint.looks_at_most());
        for _ in 0..most {
            let peer = self.peers[rank as usize].as_mut();
            let has_more = peer.is_some_and(|peer| {
                !peer.life.is_gone() && peer.endpoint.shares_memory() && !peer.endpoint.is_empty()
            });
            if !has_more || !self.take_from(rank, Drain::Final) {
                return;
            }
        }
    }

    /// Takes records from a peer's ring. `false`: it is talked with no more.
    fn take_from(&mut self, rank: u32, which: Drain) -> bool {
        let Self {
            core,
            receives,
            peers,
            ..
        } = self;
        let Some(peer) = &mut peers[rank as usize] else {
            return false;
        };
        peer.idle_polls = 0;
        if let Err(detail) = drain(core, receives, peer, which) {
            let wire = peer.endpoint.wire();
            let network = wire.and_then(|wire| wire.reading_failed());
            let gone = network.map_or(Gone::Protocol(detail), Gone::Unreachable);
            core.agenda.fail(rank, gone);
            return false;
        }
        if peer.has_output() {
            core.agenda.make_busy(rank);
        }
        true
    }

    /// Does what is due by the clock: gives back to the system what has not been needed for a while, and tells lanes
    /// the time. Notes when a look at the peers' lives is due.
    #[cold]
    pub(crate) fn age(&mut self, now: Instant) {
        self.lives
            .note_time(now, BUSY_PERIODS * self.waits.policy.period);
        self.age_lanes(now);
        if !self.core.buffers.pool.tick(now) {
            return;
        }
        let Self { core, peers, .. } = self;
        for peer in peers.iter_mut().flatten() {
            peer.endpoint.collect_chunks(&mut core.home);
        }
        if core.home.shrink() {
            core.counters.pool_chunks = u64::from(core.home.chunks_reserved());
        }
    }

    fn look_after_busy(&mut self, waiting: bool) -> bool {
        let mut moved = false;
        let Self { core, peers, .. } = self;
        if core.agenda.take_starved() {
            for peer in peers.iter_mut().flatten() {
                peer.endpoint.collect_chunks(&mut core.home);
            }
        }
        let mut index = 0;
        while index < core.agenda.busy.len() {
            let rank = core.agenda.busy[index];
            let Some(peer) = &mut peers[rank as usize] else {
                core.agenda.busy.swap_remove(index);
                continue;
            };
            moved |= proto::outgoing::flush(core, peer);
            if !peer.outbound.announced.is_empty() {
                moved |= proto::coop::join(core, peer, waiting);
            }
            if peer.has_output() || !peer.outbound.announced.is_empty() {
                index += 1;
            } else {
                core.agenda.busy.swap_remove(index);
            }
        }
        moved
    }

    /// Takes up the rings of senders that became active.
    #[cold]
    pub(super) fn activate(&mut self, word: usize, mut bits: u64) {
        while bits != 0 {
            let rank = (word * 64) as u32 + bits.trailing_zeros();
            bits &= bits - 1;
            if rank >= self.core.size || rank == self.core.me || self.lives.is_gone(rank) {
                self.polling.settled(rank);
                continue;
            }
            if self.peers[rank as usize].is_none()
                && let Err(error) = self.connect(rank)
            {
                self.fail_to_reach(rank, error);
                continue;
            }
            self.polling.settled(rank);
            let Some(peer) = &mut self.peers[rank as usize] else {
                continue;
            };
            if peer.endpoint.has_given_up() {
                self.core.agenda.fail(rank, Gone::given_up());
                continue;
            }
            self.polling.poll(peer);
        }
    }

    /// Takes up rings that are not polled and have something all the same. Their sender saw them polled last, which it
    /// can only if the fence before the last look missed its processor (docs/memory-model.md).
    #[cold]
    pub(super) fn look_at_retired(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            let shares_memory = peer.endpoint.shares_memory();
            if shares_memory && !peer.polled && !peer.life.is_gone() && !peer.endpoint.is_empty() {
                self.polling.poll(peer);
            }
        }
    }

    /// A rank has sent something and could not be connected with. A shortage is tried again with each look at the
    /// peers' lives. Otherwise this rank gives the pair up, and the other one learns of that.
    #[cold]
    fn fail_to_reach(&mut self, rank: u32, error: Error) {
        let lasts = self.polling.failed_to_reach(rank, Instant::now());
        if error.is_temporary() && lasts.is_none_or(|lasts| lasts < TRIES_LAST) {
            if lasts.is_none() {
                tracing::warn!(
                    "rank {rank} has sent something, but cannot be reached yet: {error}"
                );
            }
            return;
        }
        self.polling.settled(rank);
        let reason = match error {
            Error::Unreachable { reason, .. } => reason,
            other => other.to_string(),
        };
        tracing::warn!("rank {rank} has sent something, but cannot be reached: {reason}");
        // What broke the protocol is on the agenda already, for that reason.
        self.core.agenda.fail(rank, Gone::Unreachable(reason));
    }

    /// Tries again to reach those who have sent something.
    #[cold]
    pub(super) fn try_again(&mut self) {
        for rank in self.polling.unreached() {
            self.activate(rank as usize / 64, 1 << (rank % 64));
        }
    }

    /// As if a peer had been silent for long.
    #[cfg(test)]
    pub(super) fn retire(&mut self, rank: usize) {
        let peer = self.peers[rank].as_mut().expect("connected");
        peer.endpoint.set_polling(false);
        peer.polled = false;
        self.polling.ranks.retain(|&polled| polled != peer.rank);
    }

    /// Stops polling rings that have been idle for long, so that a poll does not grow with the ranks that once sent
    /// something.
    #[cold]
    pub(crate) fn retire_idle(&mut self) {
        // Polls in vain: some ten microseconds. To be polled again costs its sender a bit in the bitmap, and this rank
        // a fence, so a peer that sends more often stays. Chosen by magnitude. Tests retire as soon as chunks are given
        // back, so that all of them meet retired peers.
        const RETIRED: u32 = if cfg!(feature = "fault-points") {
            LONG_IDLE
        } else {
            4 * LONG_IDLE
        };
        // To look at a wire is a call of the kernel.
        if self.polling.ranks.len() <= 2 && self.other_nodes.wires().is_none() {
            return;
        }
        let few = self.polling.ranks.len() <= 2;
        let peers = &mut self.peers;
        let mut retired = Vec::new();
        self.polling.ranks.retain(|&rank| {
            let Some(peer) = &mut peers[rank as usize] else {
                return false;
            };
            let keeps = few && peer.endpoint.shares_memory();
            // What waits in an endpoint goes out with a look.
            let idle = peer.idle_polls > RETIRED && !keeps && !peer.endpoint.has_output();
            if idle {
                peer.endpoint.set_polling(false);
                peer.polled = false;
                retired.push(rank);
            }
            !idle
        });
        if retired.is_empty() {
            return;
        }
        self.core.home.fence();
        for rank in retired {
            if let Some(peer) = &mut self.peers[rank as usize]
                && (peer.endpoint.has_output() || !peer.endpoint.is_empty())
            {
                self.polling.poll(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::runtime::local_with;
    use crate::{Source, Tag};
    use onecopy_obs::Knobs;

    /// As if the sender had seen the ring polled last, while its receiver had seen nothing in it.
    #[test]
    fn a_message_in_a_retired_ring_is_found() {
        local_with(2, &Knobs::default(), |rt| {
            let world = rt.world();
            let mut got = [0u8];
            if rt.rank() == 0 {
                world.send(&[1u8], 1, 1).expect("send");
                world.recv(&mut got, 1, 2).expect("the word");
                world.send(&[3u8], 1, 3).expect("send");
            } else {
                world.recv(&mut got, 0, 1).expect("the first");
                {
                    let mut worker = rt.handle().gate.enter();
                    worker.engine.retire(0);
                    // Its sender still sees it polled.
                    let peer = worker.engine.peers[0].as_mut().expect("connected");
                    peer.endpoint.set_polling(true);
                }
                world.send(&[2u8], 0, 2).expect("the word");
                world.recv(&mut got, Source::Any, Tag::Any).expect("found");
                assert_eq!(got, [3]);
            }
            rt.finalize().expect("finalize");
        });
    }
}
