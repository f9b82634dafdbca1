// SPDX-License-Identifier: MIT OR Apache-2.0
//! What transfers really cost between two ranks, learned from the transfers themselves.
//!
//! Whether reading through the kernel or a pipeline of chunks is faster depends on three things. They are where the two
//! processors are, what pages the buffers have, and whether the sender is there to copy at all. All of these change
//! while a job runs. So the receiver times what it does: a rate per way, begun from the cost curves, moved by every
//! announced transfer from [`MIN`] bytes on. Each class of sizes has rates of its own: chunks that fit in a cache are
//! another matter than chunks that do not. So have buffers that their sender rewrites ([`super::rewritten`]). The way
//! that lost is tried again now and then, a few times in a row, as long as it may win. A knob that says where that way
//! begins (`ONECOPY_CMA_MIN`, for instance) is obeyed instead.
//! Attached memory takes no part: it is as cheap as the heap once it is attached, and whether it is attached is decided
//! before.

use super::Thresholds;
use super::rate::Rate;
use onecopy_btl::LayerId;
use onecopy_btl::cost::{Costs, LayerCosts};
use onecopy_btl::registry::{LayerSet, Power};
use onecopy_obs::Knobs;
use std::time::{Duration, Instant};

/// Transfers smaller than this are not timed. They take a few microseconds. Two looks at the clock, and what the peer
/// happens to do, are too large a part of that. Chosen by magnitude.
pub(crate) const MIN: u64 = 32 << 10;
/// At each so many transfers one of the two ways may be tried, in turn. They are tried less often if tries would take
/// more than this part of the time. All these, and those below, are chosen by magnitude: what bounds the cost of tries
/// is the part of the time.
const RETRY: f64 = 64.0;
const TIME_FOR_TRIES: f64 = 0.01;
/// Tries in a row. The first [`COLD`] are not counted, nor are a pair's first transfers by a way. They find nothing
/// where they left it, neither chunks nor the kernel's tables in the caches. All chunks of a peer are used in turn, so
/// two messages may be needed. Two ranks that answer each other then need a third (512 KiB near: 250, 32, 20, 19 us; D,
/// 12-01).
const TRIES: u8 = 6;
const COLD: u8 = 3;
/// So many transfers in chunks that overlap are learned at once, at most. Then it counts little how far the first and
/// the last of them had come. A window of 64 messages has two such groups.
const GROUP: u32 = 32;
/// The other way is not tried if it is known to take more than so many times as long. Between near and far a transfer
/// changed by less (G, 11-27; docs/performance.md, "Answer in the chunks that were read").
const TRY_FACTOR: f64 = 4.0;
/// The first transfers of a class all go one way, the next ones the other. So two ranks that answer each other see each
/// way as it is if both take it. The other way must not be thought to take more than so many times as long. A pair that
/// has seen neither knows little, and other sizes are a better guess. Chosen by magnitude.
const OPENING_FACTOR: f64 = 8.0;
const OPENING_FACTOR_IF_SEEN: f64 = 2.0;
/// What a call of the kernel costs both sides, in parts of what it takes, if the sender rewrites its buffer. The call
/// takes each of the buffer's lines from the sender, and the sender takes each back before it writes it. The receiver
/// sees the first half: 40 of 83 us that 256 KiB take apart (D, 11-30). Of buffers from [`REWRITTEN_MOST`] on the
/// sender's caches hold little: 2 MiB apart took 590 us by calls, and 793 in chunks (D, 12-01). Nor is that so where
/// stores need lines that were asked for: there, chunks are dearer (A, 11-22; `seeds::REWRITTEN_MAX`).
const REWRITTEN: f64 = 2.0;
const REWRITTEN_MOST: u64 = 2 << 20;
/// Classes of sizes: each power of two from [`MIN`] on, and all from 16 MiB on.
const CLASSES: usize = 10;
/// The first transfer of a class by the other way.
const SECOND: u32 = TRIES as u32 + 1;

/// The two ways that compete for plain memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    /// Through the kernel: by a layer that copies by a call.
    Kernel,
    /// In chunks; in a collective, in pieces or as a message.
    Pipeline,
}

/// What is to come, as far as its time depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Source {
    pub(crate) bytes: u64,
    /// The sender has rewritten its buffer since it sent it last.
    pub(crate) rewritten: bool,
}

impl Source {
    /// Bytes that were not rewritten, as far as is known.
    pub(crate) const fn plain(bytes: u64) -> Self {
        Self {
            bytes,
            rewritten: false,
        }
    }

    fn class(self) -> usize {
        let powers = self.bytes.max(MIN).ilog2() - MIN.ilog2();
        (powers as usize).min(CLASSES - 1)
    }
}

impl Rival {
    const BOTH: [Self; 2] = [Self::Kernel, Self::Pipeline];

    fn other(self) -> Self {
        match self {
            Self::Kernel => Self::Pipeline,
            Self::Pipeline => Self::Kernel,
        }
    }

    /// By what each costs.
    fn cheaper([call, pipeline]: [f64; 2]) -> Self {
        match call < pipeline {
            true => Self::Kernel,
            false => Self::Pipeline,
        }
    }
}

/// How many times as much the dearer one costs.
fn slower([call, pipeline]: [f64; 2]) -> f64 {
    call.max(pipeline) / call.min(pipeline)
}

/// The way that may be tried for the transfer of this number, which is not zero.
///
/// Two ranks that exchange messages try the same way at the same time, whatever each has seen. While one of them is in
/// the kernel, it fills no chunks for the other. Suppose that each tried what it does not do. Then two that do
/// different things would go on so: neither sees how it is if both do the same. So either way has its turn, whatever
/// the pause.
fn tried(number: u32) -> Rival {
    let turns = number.checked_shr(number.trailing_zeros() + 1).unwrap_or(0);
    if turns.is_multiple_of(2) {
        Rival::Pipeline
    } else {
        Rival::Kernel
    }
}

/// What is known of the two ways between this rank and a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed {
    /// The layer that calls the kernel.
    by: LayerId,
    /// What a transfer takes before its first byte, by way.
    setup_ns: [f64; 2],
    /// By whether the buffer was rewritten.
    seen: [[Seen; CLASSES]; 2],
    /// How many of the next times of each way are not learned.
    cold: [u8; 2],
    /// Whether a call costs the sender of a rewritten buffer as much again.
    costs_sender: bool,
    /// When the last transfer that was timed ended.
    ended: Option<Instant>,
    /// Transfers in chunks that overlapped, whose mean is learned.
    together: Together,
    fixed: bool,
}

/// What is known of one class of sizes.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// By way.
    per_kib_ns: [f32; 2],
    /// Samples that each was learned from, up to [`SETTLED`](super::rate::SETTLED).
    samples: [u8; 2],
    /// How many tries are left, and of which way.
    tries: u8,
    tried: Rival,
    /// Transfers that were decided here; it wraps.
    transfers: u32,
}

/// Transfers that were under way at the same time, and what they took together. Their pieces come in turns, so they
/// also end together: the time from one end to the next says nothing of one of them.
#[derive(Debug, Clone, Copy, Default)]
struct Together {
    /// The first of them.
    source: Source,
    count: u32,
    /// How many of them count.
    counted: u32,
    bytes: u64,
    took: Duration,
}

impl Observed {
    /// What a pair with these layers begins with. The user has decided if a knob says where reading by the kernel
    /// begins, or switched chunks off.
    pub(crate) fn of(knobs: &Knobs, costs: &Costs, proven: LayerSet) -> Self {
        let by = proven.by(Power::Copy).next().unwrap_or(LayerId::CALL);
        let fixed = by.min(knobs).is_some() || !knobs.layers.allows(LayerId::CHUNKS.name());
        Self {
            costs_sender: knobs.writes_strings(),
            ..Self::new(costs, knobs.coop, fixed, by)
        }
    }

    /// The link has lost a layer. Of the one that calls the kernel now, if it is another one, nothing was seen.
    pub(crate) fn adapt(&mut self, knobs: &Knobs, costs: &Costs, proven: LayerSet) {
        let mut fresh = Self::of(knobs, costs, proven);
        if fresh.by == self.by {
            return;
        }
        let all = fresh.seen.as_flattened_mut().iter_mut();
        let way = Rival::Pipeline as usize;
        for (fresh, seen) in all.zip(self.seen.as_flattened()) {
            fresh.per_kib_ns[way] = seen.per_kib_ns[way];
            fresh.samples[way] = seen.samples[way];
            // The peer counts on.
            fresh.transfers = seen.transfers;
        }
        *self = fresh;
    }

    /// Nothing but the curves. `fixed`: the user has decided. `by`: the layer that calls the kernel.
    pub(crate) fn new(costs: &Costs, coop: bool, fixed: bool, by: LayerId) -> Self {
        let LayerCosts {
            one_sided,
            cooperative,
        } = &costs.by[by];
        let curves = [if coop { cooperative } else { one_sided }, &costs.pipeline];
        let unseen = Seen {
            per_kib_ns: curves.map(|curve| curve.per_kib_ns as f32),
            samples: [0; 2],
            tries: 0,
            tried: Rival::Pipeline,
            transfers: 0,
        };
        Self {
            by,
            setup_ns: curves.map(|curve| curve.setup_ns),
            seen: [[unseen; CLASSES]; 2],
            cold: [COLD; 2],
            costs_sender: true,
            ended: None,
            together: Together::default(),
            fixed,
        }
    }

    /// The same, but one of the two looks a little cheaper than the other at first.
    pub(crate) fn beginning_with(mut self, first: Rival) -> Self {
        let (first, other) = (first as usize, first.other() as usize);
        self.setup_ns[other] = self.setup_ns[first];
        for seen in self.seen.as_flattened_mut() {
            seen.per_kib_ns[other] = seen.per_kib_ns[first] * 1.05;
        }
        self
    }

    /// Whether the user has decided, so that nothing is learned.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    fn seen(&self, source: Source) -> &Seen {
        let class = source.class();
        &self.seen[usize::from(source.rewritten)][class]
    }

    fn seen_mut(&mut self, source: Source) -> &mut Seen {
        let class = source.class();
        &mut self.seen[usize::from(source.rewritten)][class]
    }

    /// Which of the two ways a transfer goes, by what was seen; none: as the thresholds say.
    pub(crate) fn decide(&mut self, thresholds: &Thresholds, source: Source) -> Option<Rival> {
        if self.fixed || source.bytes < MIN || thresholds.call_min() == 0 {
            return None;
        }
        let costs = self.costs(source);
        let (faster, slower) = (Rival::cheaper(costs), slower(costs));
        let pause = f64::from(TRIES) * (slower.min(TRY_FACTOR) - 1.0) / TIME_FOR_TRIES;
        let turn = (pause.max(RETRY) as u32).next_power_of_two();
        self.count(source);
        let seen = self.seen(source);
        let begun = match seen.transfers {
            1 => Some(faster),
            SECOND => {
                let other = seen.tried.other();
                let bound = match self.was_seen(other) {
                    true => OPENING_FACTOR_IF_SEEN,
                    false => OPENING_FACTOR,
                };
                (slower < bound).then_some(other)
            }
            number => {
                let tried = tried(number);
                let is_due = number.is_multiple_of(turn) && slower < TRY_FACTOR;
                (is_due && tried != faster).then_some(tried)
            }
        };
        if let Some(way) = begun {
            self.cold[way as usize] = COLD;
        }
        let seen = self.seen_mut(source);
        if let Some(way) = begun {
            (seen.tries, seen.tried) = (TRIES, way);
        }
        let tried = (seen.tries > 0).then_some(seen.tried);
        seen.tries = seen.tries.saturating_sub(1);
        Some(tried.unwrap_or(faster))
    }

    /// What is known of one of the two ways.
    pub(super) fn rate(&self, way: Rival, source: Source) -> Rate {
        let (seen, way) = (self.seen(source), way as usize);
        Rate {
            setup_ns: self.setup_ns[way],
            per_kib_ns: f64::from(seen.per_kib_ns[way]),
            samples: seen.samples[way],
        }
    }

    /// What a transfer costs by one of the two ways, in ns, by what was seen.
    pub(super) fn estimate(&self, way: Rival, source: Source) -> f64 {
        let takes = self.rate(way, source).estimate(source.bytes);
        let is_costly = way == Rival::Kernel && source.rewritten && self.costs_sender;
        match is_costly && source.bytes < REWRITTEN_MOST {
            true => takes * REWRITTEN,
            false => takes,
        }
    }

    /// A transfer that was not decided here, but might have been.
    pub(crate) fn count(&mut self, source: Source) {
        let seen = self.seen_mut(source);
        seen.transfers = seen.transfers.wrapping_add(1);
    }

    /// Chunks are as slow as this, as others of these sizes were seen to be.
    pub(super) fn assume_pipeline(&mut self, rate: Rate, sizes: [u64; 2]) {
        let [first, last] = sizes.map(|bytes| Source::plain(bytes).class());
        for seen in &mut self.seen[0][first..=last] {
            seen.per_kib_ns[Rival::Pipeline as usize] = rate.per_kib_ns as f32;
        }
    }

    /// Transfers of this class that were decided here; it wraps.
    pub(crate) fn transfers(&self, source: Source) -> u32 {
        self.seen(source).transfers
    }

    /// Which of the two ways is the faster one, by what was seen.
    pub(crate) fn faster(&self, source: Source) -> Rival {
        Rival::cheaper(self.costs(source))
    }

    /// What a transfer costs by each way.
    pub(super) fn costs(&self, source: Source) -> [f64; 2] {
        Rival::BOTH.map(|way| self.estimate(way, source))
    }

    /// Whether any time of a way was learned.
    fn was_seen(&self, way: Rival) -> bool {
        let mut all = self.seen.as_flattened().iter();
        all.any(|seen| seen.samples[way as usize] > 0)
    }

    /// From which size on the other way is the cheaper one, before anything was seen; none if the same is everywhere.
    pub(crate) fn crossing(&self) -> Option<u64> {
        let [call, pipeline] = Rival::BOTH.map(|way| self.rate(way, Source::plain(MIN)));
        let setup = call.setup_ns - pipeline.setup_ns;
        let slope = pipeline.per_kib_ns - call.per_kib_ns;
        let bytes = setup / slope * 1024.0;
        // Beyond that nobody measures, and sizes stop being exact.
        (1.0..1e15).contains(&bytes).then(|| {
            let near = bytes as u64;
            let first = self.faster(Source::plain(near));
            let differs = |size: &u64| self.faster(Source::plain(*size)) != first;
            (near..near + 3).find(differs).unwrap_or(near)
        })
    }

    /// A transfer began and ended. Those of a window are asked for together, and served one after the other or in
    /// turns. What one waited for the others is not its own time, and only their mean is learned.
    pub(crate) fn transferred(
        &mut self,
        way: Rival,
        source: Source,
        begun: Instant,
        ended: Instant,
    ) {
        let before = self.ended.replace(ended);
        let served = before.map_or(begun, |before| before.max(begun));
        let took = ended.saturating_duration_since(served);
        let overlaps = before.is_some_and(|before| begun < before);
        let Together {
            source: of, count, ..
        } = self.together;
        let alike = (of.class(), of.rewritten) == (source.class(), source.rewritten);
        if way == Rival::Kernel || !overlaps || !alike || count == GROUP {
            self.learn_together();
        }
        let is_cold = self.is_cold(way);
        if way == Rival::Kernel {
            if !is_cold {
                self.learn(way, source, took);
            }
            return;
        }
        let together = &mut self.together;
        if together.count == 0 {
            together.source = source;
        }
        together.count += 1;
        together.counted += u32::from(!is_cold);
        together.bytes += source.bytes;
        together.took += took;
    }

    /// Learns what transfers that overlapped took on average. One that does not count has done part of the others'
    /// work, so it is left out only if it was alone.
    fn learn_together(&mut self) {
        let Together {
            source,
            count,
            counted,
            bytes,
            took,
        } = std::mem::take(&mut self.together);
        if counted > 0 {
            let mean = Source {
                bytes: bytes / u64::from(count),
                ..source
            };
            self.learn(Rival::Pipeline, mean, took / count);
        }
    }

    /// Whether a transfer is one of those that are not counted.
    fn is_cold(&mut self, way: Rival) -> bool {
        let left = &mut self.cold[way as usize];
        let is_cold = *left > 0;
        *left = left.saturating_sub(1);
        is_cold
    }

    /// A transfer took so long. Classes beside its own of which nothing was seen are thought to be like it. So are all
    /// of the other kind, while nothing at all was seen of that.
    fn learn(&mut self, way: Rival, source: Source, took: Duration) {
        let mut rate = self.rate(way, source);
        rate.learn(source.bytes, took);
        let (way, per_kib_ns) = (way as usize, rate.per_kib_ns as f32);
        let here = self.seen_mut(source);
        (here.per_kib_ns[way], here.samples[way]) = (per_kib_ns, rate.samples);
        let unseen = |seen: &&mut Seen| seen.samples[way] == 0;
        let (kind, class) = (usize::from(source.rewritten), source.class());
        let (below, above) = self.seen[kind].split_at_mut(class);
        let (below, above) = (below.iter_mut().rev(), above.iter_mut().skip(1));
        for like in below.take_while(unseen).chain(above.take_while(unseen)) {
            like.per_kib_ns[way] = per_kib_ns;
        }
        let other = &mut self.seen[1 - kind];
        if other.iter().all(|seen| seen.samples[way] == 0) {
            let all = other.iter_mut();
            all.for_each(|like| like.per_kib_ns[way] = per_kib_ns);
        }
        self.end_tries(source);
    }

    /// A try that was seen to take far longer was one too many.
    fn end_tries(&mut self, source: Source) {
        let tried = self.seen(source).tried;
        let [is, other] = [tried, tried.other()].map(|way| self.estimate(way, source));
        if is > TRY_FACTOR * other {
            self.seen_mut(source).tries = 0;
        }
    }

    /// Whether this class is still in its first transfers by each way.
    pub(crate) fn begins(&self, source: Source) -> bool {
        self.seen(source).transfers < SECOND + u32::from(TRIES)
    }
}

#[cfg(test)]
mod tests;
