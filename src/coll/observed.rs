// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which way plain memory goes in large collectives of two ranks, learned from the collectives themselves.
//!
//! What a rank gives is read by the other one's calls of the kernel. Or it goes in pieces, in a reduction, and else as
//! a message, which the pair carries as it has learned. Which is faster changes with the machine, and with the distance
//! of the two processors. Apart, an allreduce of 256 KiB took 55 µs in pieces and 44 by calls (A, 11-30). So a rank
//! times blocking collectives in which it gives something, as it times transfers ([`Observed`]). The members need not
//! agree: each decides by itself how its bytes go, and its line says so. Where both give, they try at the same time, as
//! they count the same collectives. Where owners are asked to copy (`ONECOPY_COLL_ASK`), they do so in place of calls.

use super::Collective;
use super::select::PlacementLimits;
use crate::engine::Engine;
use crate::select::observed::{Observed, Rival, Source};
use onecopy_btl::registry::Power;
use std::mem::{Discriminant, discriminant};
use std::time::Instant;

/// Bytes of the shortest vector that is timed. Shorter ones take some microseconds, of which the clock and the other
/// rank's arrival are too large a part. Chosen by magnitude: of 64 KiB both ways took the same (A, 11-30).
pub(super) const MIN: usize = 64 << 10;

/// Whether so many bytes go in one of the two ways. What would stand in a temporary copy is not read by the kernel, so
/// that what calls take says nothing about it.
pub(super) fn has_rivals(bytes: usize, limits: &PlacementLimits) -> bool {
    bytes >= MIN && bytes > limits.temp_max
}

/// A collective that is timed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    kind: Discriminant<Collective>,
    /// What this rank gives.
    source: Source,
    /// When its line was free for that; none: it was not yet.
    pub(super) begun: Option<Instant>,
    /// The way that was chosen for that.
    pub(super) rival: Rival,
    /// Whether it need not be timed: the way is the usual one, of which others are.
    pub(super) is_usual: bool,
}

/// Of so many collectives in the usual way one is timed, where a rank has to wait for that. Chosen by magnitude.
const TIMED: u32 = 8;

/// What was seen of each kind of collective, from its first long one on.
#[derive(Debug, Default)]
pub(super) struct ObservedKinds(Vec<(Discriminant<Collective>, Observed)>);

impl ObservedKinds {
    /// Chooses the way of the `bytes` bytes that this rank gives to the rank `other` in a blocking collective. None:
    /// sizes decide.
    #[inline]
    pub(super) fn choose(
        &mut self,
        engine: &Engine,
        other: u32,
        collective: &Collective,
        bytes: usize,
        limits: &PlacementLimits,
    ) -> Option<Timed> {
        if !has_rivals(bytes, limits) {
            return None;
        }
        let peer = engine.peers[other as usize].as_deref()?;
        let proven = peer.link.proven();
        proven.by(Power::Copy).next()?;
        let (kind, source) = (discriminant(collective), Source::plain(bytes as u64));
        let index = match self.0.iter().position(|(known, _)| *known == kind) {
            Some(index) => index,
            None => {
                let core = &engine.core;
                let observed = Observed::of(&core.knobs, &core.costs, proven);
                let first = if limits.over_calls {
                    Rival::Pipeline
                } else {
                    Rival::Kernel
                };
                self.0.push((kind, observed.beginning_with(first)));
                self.0.len() - 1
            }
        };
        let observed = &mut self.0[index].1;
        let rival = observed.decide(&peer.policy.thresholds, source)?;
        let is_try = rival != observed.faster(source);
        let is_counted =
            observed.transfers(source).is_multiple_of(TIMED) || observed.begins(source);
        let is_usual = !is_try && !is_counted;
        Some(Timed {
            kind,
            source,
            begun: None,
            rival,
            is_usual,
        })
    }

    /// The way in which a rank that only takes expects `bytes` bytes: as it would give them. None: sizes decide.
    #[inline]
    pub(super) fn expected(
        &self,
        collective: &Collective,
        bytes: usize,
        limits: &PlacementLimits,
    ) -> Option<Rival> {
        if !has_rivals(bytes, limits) {
            return None;
        }
        let kind = discriminant(collective);
        let mut kinds = self.0.iter();
        let (_, observed) = kinds.find(|(known, _)| *known == kind)?;
        (!observed.is_fixed()).then(|| observed.faster(Source::plain(bytes as u64)))
    }

    /// A collective that is timed is over.
    pub(super) fn learn(&mut self, timed: Timed) {
        let observed = self.0.iter_mut().find(|(kind, _)| *kind == timed.kind);
        if let (Some((_, observed)), Some(begun)) = (observed, timed.begun) {
            observed.transferred(timed.rival, timed.source, begun, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coll::{ElemType, Parts, PredefinedOp};
    use crate::runtime::{Runtime, local_with};
    use onecopy_obs::Knobs;

    /// More than stand in a temporary copy.
    const WORDS: usize = 32 << 10;
    const BYTES: usize = 8 * WORDS;

    /// Lets a rank give in a collective in this way first. Says whether there is another one.
    fn begin_with(rt: &Runtime, collective: &Collective, first: Rival) -> bool {
        let worker = &mut *rt.handle().gate.enter();
        let Some(peer) = &worker.engine.peers[1 - rt.rank()] else {
            return false;
        };
        let (core, proven) = (&worker.engine.core, peer.link.proven());
        let observed = Observed::of(&core.knobs, &core.costs, proven).beginning_with(first);
        let comm = worker.collectives.slots[0].as_mut().expect("the world");
        comm.state.observed.0 = vec![(discriminant(collective), observed)];
        proven.by(Power::Copy).next().is_some()
    }

    fn bytes(words: &[u64]) -> &[u8] {
        bytemuck::cast_slice(words)
    }

    /// Each rank decides by itself how its bytes go, and whatever the other one decides, they are right.
    #[test]
    fn members_may_give_in_different_ways() {
        let ways = [Rival::Kernel, Rival::Pipeline];
        for firsts in ways.iter().flat_map(|&one| ways.map(|other| [one, other])) {
            local_with(2, &Knobs::default(), |rt| {
                let (world, me) = (rt.world(), rt.rank());
                world.barrier().expect("the channel is open");
                let send: Vec<u64> = (0..WORDS).map(|word| (word * 3 + me) as u64).collect();
                let sum = |word: usize| 2 * (word * 3) as u64 + 1;
                let op = || PredefinedOp::Sum.into();
                let elem = ElemType::U64;
                let run = |what: &Collective, send: &[u64], recv: &mut [u64]| {
                    let is_one_of_two = begin_with(&rt, what, firsts[me]);
                    let before = rt.counters();
                    let recv = bytemuck::cast_slice_mut(recv);
                    world.run(what, Some(bytes(send)), Some(recv)).expect("run");
                    let in_pieces = rt.counters().coll_in_pieces - before.coll_in_pieces;
                    let chosen = u64::from(firsts[me] == Rival::Pipeline);
                    (in_pieces, is_one_of_two.then_some(chosen))
                };
                let mut all = vec![0; WORDS];
                let (in_pieces, chosen) =
                    run(&Collective::Allreduce { elem, op: op() }, &send, &mut all);
                assert!(
                    chosen.is_none_or(|chosen| in_pieces == chosen),
                    "{firsts:?}"
                );
                assert!(
                    all.iter().enumerate().all(|(word, &got)| got == sum(word)),
                    "{firsts:?}"
                );
                let parts = Parts::Equal(BYTES / 2);
                let mut half = vec![0; WORDS / 2];
                let scattered = Collective::ReduceScatter {
                    parts,
                    elem,
                    op: op(),
                };
                run(&scattered, &send, &mut half);
                let first = me * WORDS / 2;
                let expected = (first..).map(sum);
                assert!(
                    half.iter().copied().eq(expected.take(WORDS / 2)),
                    "{firsts:?}"
                );
                let mut both = vec![0; 2 * WORDS];
                run(
                    &Collective::Allgather {
                        parts: Parts::Equal(BYTES),
                    },
                    &send,
                    &mut both,
                );
                let of = |place: usize| (0..WORDS).map(move |word| (word * 3 + place) as u64);
                assert!(both.iter().copied().eq(of(0).chain(of(1))), "{firsts:?}");
                rt.finalize().expect("finalize");
            });
        }
    }

    /// Rooted collectives: the giver alone is timed, and the taker goes by what it sees.
    #[test]
    fn a_giver_decides_alone() {
        for (first, root) in [Rival::Kernel, Rival::Pipeline]
            .into_iter()
            .flat_map(|first| [(first, 0), (first, 1)])
        {
            local_with(2, &Knobs::default(), |rt| {
                let (world, me) = (rt.world(), rt.rank());
                world.barrier().expect("the channel is open");
                let send: Vec<u64> = (0..WORDS as u64).map(|word| word * 5).collect();
                let bcast = Collective::Bcast { root };
                for _ in 0..3 {
                    let is_one_of_two = begin_with(&rt, &bcast, first);
                    let before = rt.counters();
                    let mut got = if me == root {
                        send.clone()
                    } else {
                        vec![0; WORDS]
                    };
                    world
                        .run(&bcast, None, Some(bytemuck::cast_slice_mut(&mut got)))
                        .expect("bcast");
                    assert!(got == send, "{first:?} from {root}");
                    let now = rt.counters();
                    let in_pieces = now.coll_in_pieces - before.coll_in_pieces;
                    let sent = now.bytes_sent - before.bytes_sent;
                    let given = in_pieces * BYTES as u64 + sent;
                    let chosen = me == root && first == Rival::Pipeline;
                    assert!(!is_one_of_two || given == u64::from(chosen) * BYTES as u64);
                }
                rt.finalize().expect("finalize");
            });
        }
    }

    /// Short vectors, other groups, and memory that the other rank maps.
    #[test]
    fn what_has_no_two_ways_is_not_timed() {
        for ranks in [2, 3] {
            local_with(ranks, &Knobs::default(), |rt| {
                let world = rt.world();
                world.barrier().expect("the channel is open");
                let bcast = Collective::Bcast { root: 0 };
                let long = if ranks == 2 { MIN - 1 } else { MIN };
                for _ in 0..2 {
                    let recv = &mut vec![1u8; long];
                    world.run(&bcast, None, Some(recv)).expect("bcast");
                }
                let mut heap = rt.alloc(2 * MIN).expect("alloc");
                world.run(&bcast, None, Some(&mut heap[..])).expect("bcast");
                let worker = &mut *rt.handle().gate.enter();
                let comm = worker.collectives.slots[0].as_mut().expect("the world");
                assert!(comm.state.observed.0.is_empty());
            });
        }
    }
}
