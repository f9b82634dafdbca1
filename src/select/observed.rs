// SPDX-License-Identifier: MIT OR Apache-2.0
//! What transfers really cost between two ranks, learned from the transfers themselves.
//!
//! Whether reading through the kernel or a pipeline of chunks is faster depends on three things. They are where the two
//! processors are, what pages the buffers have, and whether the sender is there to copy at all. All of these change
//! while a job runs. So the receiver times what it does: a rate per way, begun from the cost curves, moved by every
//! announced transfer from [`MIN`] bytes on. The way that lost is tried again now and then, a few times in a row, as
//! long as it may win. A knob that says where that way begins (`ONECOPY_CMA_MIN`, for instance) is obeyed instead.
//! Attached memory takes no part: it is as cheap as the heap once it is attached, and whether it is attached is decided
//! before.

use super::Thresholds;
use onecopy_btl::LayerId;
use onecopy_btl::cost::{Costs, Curve, LayerCosts};
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
/// Tries in a row. The first [`COLD`] are not counted: they find nothing where they left it, neither chunks nor
/// the kernel's tables in the caches. All chunks of a peer are used in turn, so two messages may be needed.
const TRIES: u32 = 5;
const COLD: u32 = 2;
/// So many transfers in chunks that overlap are learned at once, at most. Then it counts little how far the first and
/// the last of them had come. A window of 64 messages has two such groups.
const GROUP: u32 = 32;
/// The other way is not tried if it is known to take more than so many times as long. Between near and far a transfer
/// changed by less (G, 11-27; docs/performance.md, "Answer in the chunks that were read").
const TRY_FACTOR: f64 = 4.0;

/// The two ways that compete for plain memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    /// Through the kernel: by a layer that copies by a call.
    Kernel,
    /// In chunks; in a collective, in pieces or as a message.
    Pipeline,
}

impl Rival {
    fn other(self) -> Self {
        match self {
            Self::Kernel => Self::Pipeline,
            Self::Pipeline => Self::Kernel,
        }
    }
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
    call: Rate,
    pipeline: Rate,
    /// Transfers that were decided here; it wraps.
    transfers: u32,
    /// How many tries of the slower way are left.
    tries: u32,
    /// The way whose next times are not learned, and how many of them.
    cold: Option<(Rival, u32)>,
    /// When the last transfer that was timed ended.
    ended: Option<Instant>,
    /// Transfers in chunks that overlapped, whose mean is learned.
    together: Together,
    fixed: bool,
}

/// Transfers that were under way at the same time, and what they took together. Their pieces come in turns, so they
/// also end together: the time from one end to the next says nothing of one of them.
#[derive(Debug, Clone, Copy, Default)]
struct Together {
    count: u32,
    /// How many of them count.
    counted: u32,
    bytes: u64,
    took: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    setup_ns: f64,
    per_kib_ns: f64,
}

impl Rate {
    pub(super) fn new(curve: &Curve) -> Self {
        Self {
            setup_ns: curve.setup_ns,
            per_kib_ns: curve.per_kib_ns,
        }
    }
    /// The same for what is under way already.
    pub(super) fn without_setup(self) -> Self {
        Self {
            setup_ns: 0.0,
            ..self
        }
    }
    pub(super) fn estimate(&self, bytes: u64) -> f64 {
        self.setup_ns + bytes as f64 / 1024.0 * self.per_kib_ns
    }
    /// Faster samples get weight 0.5, slower ones 0.1: a preempted peer must not look like a slow layer. Chosen by
    /// magnitude: two fast samples settle a rate, and ten slow ones change it.
    pub(super) fn learn(&mut self, bytes: u64, took: Duration) {
        let seen = (took.as_nanos() as f64 - self.setup_ns).max(0.0) / (bytes as f64 / 1024.0);
        let weight = if seen < self.per_kib_ns { 0.5 } else { 0.1 };
        // A single outlier must not look like a verdict: one moves the rate by three tenths at most.
        let seen = seen.min(self.per_kib_ns * 4.0);
        self.per_kib_ns += (seen - self.per_kib_ns) * weight;
    }
}

impl Observed {
    /// What a pair with these layers begins with. The user has decided if a knob says where reading by the kernel
    /// begins, or switched chunks off.
    pub(crate) fn of(knobs: &Knobs, costs: &Costs, proven: LayerSet) -> Self {
        let by = proven.by(Power::Copy).next().unwrap_or(LayerId::CALL);
        let fixed = by.min(knobs).is_some() || !knobs.layers.allows(LayerId::CHUNKS.name());
        Self::new(costs, knobs.coop, fixed, by)
    }

    /// The link has lost a layer. Of the one that calls the kernel now, if it is another one, nothing was seen.
    pub(crate) fn adapt(&mut self, knobs: &Knobs, costs: &Costs, proven: LayerSet) {
        let fresh = Self::of(knobs, costs, proven);
        if fresh.by != self.by {
            *self = Self {
                pipeline: self.pipeline,
                // The peer counts on.
                transfers: self.transfers,
                ..fresh
            };
        }
    }

    /// Nothing but the curves. `fixed`: the user has decided. `by`: the layer that calls the kernel.
    pub(crate) fn new(costs: &Costs, coop: bool, fixed: bool, by: LayerId) -> Self {
        let LayerCosts {
            one_sided,
            cooperative,
        } = &costs.by[by];
        Self {
            by,
            call: Rate::new(if coop { cooperative } else { one_sided }),
            pipeline: Rate::new(&costs.pipeline),
            transfers: 0,
            tries: 0,
            cold: None,
            ended: None,
            together: Together::default(),
            fixed,
        }
    }

    /// The same, but one of the two looks a little cheaper than the other at first. Its first times do not count: they
    /// find nothing in the caches, and pages that nobody has touched.
    pub(crate) fn beginning_with(mut self, first: Rival) -> Self {
        let slightly_dearer = |rate: Rate| Rate {
            per_kib_ns: rate.per_kib_ns * 1.05,
            ..rate
        };
        match first {
            Rival::Kernel => self.pipeline = slightly_dearer(self.call),
            Rival::Pipeline => self.call = slightly_dearer(self.pipeline),
        }
        self.cold = Some((first, COLD));
        self
    }

    /// Whether the user has decided, so that nothing is learned.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Which of the two ways a transfer of `bytes` goes, by what was seen; none: as the thresholds say.
    pub(crate) fn decide(&mut self, thresholds: &Thresholds, bytes: u64) -> Option<Rival> {
        if self.fixed || bytes < MIN || thresholds.call_min() == 0 {
            return None;
        }
        let (call, pipeline) = (self.call.estimate(bytes), self.pipeline.estimate(bytes));
        self.transfers = self.transfers.wrapping_add(1);
        let slower = call.max(pipeline) / call.min(pipeline);
        let pause = f64::from(TRIES) * (slower.min(TRY_FACTOR) - 1.0) / TIME_FOR_TRIES;
        let turn = (pause.max(RETRY) as u32).next_power_of_two();
        let faster = self.faster(bytes);
        let tried = tried(self.transfers);
        if self.transfers.is_multiple_of(turn) && slower < TRY_FACTOR && tried != faster {
            self.tries = TRIES;
            self.cold = Some((tried, COLD));
        }
        let retry = self.tries > 0;
        self.tries = self.tries.saturating_sub(1);
        Some(if retry { faster.other() } else { faster })
    }

    /// What is known of one of the two ways.
    pub(super) fn rate(&self, rival: Rival) -> Rate {
        match rival {
            Rival::Kernel => self.call,
            Rival::Pipeline => self.pipeline,
        }
    }

    /// What a transfer of `bytes` takes by one of the two ways, in ns, by what was seen.
    pub(super) fn estimate(&self, rival: Rival, bytes: u64) -> f64 {
        self.rate(rival).estimate(bytes)
    }

    /// A transfer that was not decided here, but might have been.
    pub(crate) fn count(&mut self) {
        self.transfers = self.transfers.wrapping_add(1);
    }

    /// Chunks are as slow as this, as others were seen to be.
    pub(super) fn assume_pipeline(&mut self, seen: Rate) {
        self.pipeline.per_kib_ns = seen.per_kib_ns;
    }

    /// Transfers that were decided here; it wraps.
    pub(crate) fn transfers(&self) -> u32 {
        self.transfers
    }

    /// Which of the two ways is the faster one for `bytes`, by what was seen.
    pub(crate) fn faster(&self, bytes: u64) -> Rival {
        match self.call.estimate(bytes) < self.pipeline.estimate(bytes) {
            true => Rival::Kernel,
            false => Rival::Pipeline,
        }
    }

    /// From which size on the other way is the cheaper one, by what is known; none if the same is everywhere.
    pub(crate) fn crossing(&self) -> Option<u64> {
        let setup = self.call.setup_ns - self.pipeline.setup_ns;
        let slope = self.pipeline.per_kib_ns - self.call.per_kib_ns;
        let bytes = setup / slope * 1024.0;
        // Beyond that nobody measures, and sizes stop being exact.
        (1.0..1e15).contains(&bytes).then(|| {
            let near = bytes as u64;
            let first = self.faster(near);
            let differs = |size: &u64| self.faster(*size) != first;
            (near..near + 3).find(differs).unwrap_or(near)
        })
    }

    /// A transfer of `bytes` began and ended. Those of a window are asked for together, and served one after the other
    /// or in turns. What one waited for the others is not its own time, and only their mean is learned.
    pub(crate) fn transferred(&mut self, rival: Rival, bytes: u64, begun: Instant, ended: Instant) {
        let before = self.ended.replace(ended);
        let served = before.map_or(begun, |before| before.max(begun));
        let took = ended.saturating_duration_since(served);
        let overlaps = before.is_some_and(|before| begun < before);
        if rival == Rival::Kernel || !overlaps || self.together.count == GROUP {
            self.learn_together();
        }
        let is_cold = self.is_cold(rival);
        if rival == Rival::Kernel {
            if !is_cold {
                self.learn(rival, bytes, took);
            }
            return;
        }
        let together = &mut self.together;
        together.count += 1;
        together.counted += u32::from(!is_cold);
        together.bytes += bytes;
        together.took += took;
    }

    /// Learns what transfers that overlapped took on average. One that does not count has done part of the others'
    /// work, so it is left out only if it was alone.
    fn learn_together(&mut self) {
        let Together {
            count,
            counted,
            bytes,
            took,
        } = std::mem::take(&mut self.together);
        if counted > 0 {
            self.learn(Rival::Pipeline, bytes / u64::from(count), took / count);
        }
    }

    /// Whether a transfer is one of those that are not counted.
    fn is_cold(&mut self, rival: Rival) -> bool {
        match &mut self.cold {
            Some((cold, left)) if *cold == rival && *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// A transfer of `bytes` took so long.
    fn learn(&mut self, rival: Rival, bytes: u64, took: Duration) {
        match rival {
            Rival::Kernel => self.call.learn(bytes, took),
            Rival::Pipeline => self.pipeline.learn(bytes, took),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cma() -> Thresholds {
        let proven = [LayerId::MAP, LayerId::CALL].into_iter().collect();
        Thresholds::with_layers(&Knobs::default(), &Costs::default(), proven)
    }

    impl Observed {
        /// A transfer that was alone took so long.
        fn took(&mut self, rival: Rival, bytes: u64, took: Duration) {
            let begun = self.ended.unwrap_or_else(Instant::now);
            self.transferred(rival, bytes, begun, begun + took);
        }
    }

    fn run(
        observed: &mut Observed,
        cma_ns_per_kib: u64,
        pipeline_ns_per_kib: u64,
        rounds: usize,
    ) -> usize {
        let thresholds = with_cma();
        let bytes = 1 << 20;
        let mut by_cma = 0;
        for _ in 0..rounds {
            let decided = observed.decide(&thresholds, bytes);
            let (rival, ns) = if decided == Some(Rival::Kernel) {
                by_cma += 1;
                (Rival::Kernel, cma_ns_per_kib)
            } else {
                (Rival::Pipeline, pipeline_ns_per_kib)
            };
            observed.took(rival, bytes, Duration::from_nanos(ns * 1024 + 1000));
        }
        by_cma
    }

    #[test]
    fn the_faster_way_is_found_and_a_change_is_noticed() {
        let mut observed = Observed::new(&Costs::default(), true, false, LayerId::CALL);
        run(&mut observed, 30, 90, 300);
        assert!(run(&mut observed, 30, 90, 320) >= 300);
        run(&mut observed, 120, 40, 600);
        assert!(run(&mut observed, 120, 40, 320) <= 20);
    }

    /// Two ranks that give each other something at the same time do different things. Together they are slower so than
    /// if both read by the kernel.
    #[test]
    fn two_that_do_different_things_find_what_both_should_do() {
        let (thresholds, bytes) = (with_cma(), 1 << 20);
        let mut ranks = [Rival::Kernel, Rival::Pipeline].map(|first| {
            Observed::new(&Costs::default(), true, false, LayerId::CALL).beginning_with(first)
        });
        let mut both = 0;
        for round in 0..2000 {
            let ways = ranks.each_mut().map(|rank| rank.decide(&thresholds, bytes));
            let took = match ways {
                [Some(Rival::Kernel), Some(Rival::Kernel)] => 50,
                [Some(Rival::Pipeline), Some(Rival::Pipeline)] => 60,
                _ => 55,
            };
            both += u32::from(took == 50 && round >= 1000);
            for (rank, way) in ranks.iter_mut().zip(ways) {
                let took = Duration::from_nanos(took << 10);
                rank.took(way.expect("a way"), bytes, took);
            }
        }
        assert!(both > 900, "{both} of the last 1000");
    }

    #[test]
    fn another_layer_begins_with_its_own_curve() {
        let (knobs, costs) = (Knobs::default(), Costs::default());
        let both = [LayerId::CALL, LayerId::Knem].into_iter().collect();
        let mut observed = Observed::of(&knobs, &costs, both);
        run(&mut observed, 400, 10, 300);
        let (pipeline, before) = (observed.pipeline.per_kib_ns, observed.call.per_kib_ns);
        observed.adapt(&knobs, &costs, both);
        assert_eq!(observed.call.per_kib_ns, before, "nothing was lost");
        observed.adapt(&knobs, &costs, [LayerId::Knem].into_iter().collect());
        let fresh = Observed::new(&costs, true, false, LayerId::Knem);
        assert_eq!(observed.call.per_kib_ns, fresh.call.per_kib_ns);
        assert_eq!(
            observed.pipeline.per_kib_ns, pipeline,
            "chunks are as before"
        );
    }

    #[test]
    fn a_way_that_is_slow_only_when_it_is_cold_is_found() {
        let mut observed = Observed::new(&Costs::default(), true, false, LayerId::CALL);
        let (thresholds, bytes) = (with_cma(), 64 << 10);
        let (mut before, mut by_pipeline) = (Rival::Kernel, 0);
        for round in 0..2000 {
            let kernel = observed.decide(&thresholds, bytes) == Some(Rival::Kernel);
            let rival = if kernel {
                Rival::Kernel
            } else {
                Rival::Pipeline
            };
            let us = match (rival, before) {
                (Rival::Kernel, _) => 7,
                (Rival::Pipeline, Rival::Kernel) => 12,
                (Rival::Pipeline, Rival::Pipeline) => 5,
            };
            observed.took(rival, bytes, Duration::from_micros(us));
            by_pipeline += usize::from(round >= 1000 && !kernel);
            before = rival;
        }
        assert!(by_pipeline > 950, "{by_pipeline}");
    }

    /// Two ranks exchange messages. Each way is fastest if both take it, and one of them sees all a little slower.
    fn exchange(both: [u64; 2], mixed: [u64; 2], rounds: usize) -> usize {
        let mut sides =
            [(); 2].map(|()| Observed::new(&Costs::default(), true, false, LayerId::CALL));
        let (thresholds, bytes) = (with_cma(), 1 << 20);
        let mut in_chunks = 0;
        for round in 0..rounds {
            let ways = sides
                .each_mut()
                .map(|side| side.decide(&thresholds, bytes) == Some(Rival::Pipeline));
            for (side, observed) in sides.iter_mut().enumerate() {
                let (mine, its) = (ways[side], ways[1 - side]);
                let us = if mine == its { both } else { mixed }[usize::from(mine)];
                let rival = if mine { Rival::Pipeline } else { Rival::Kernel };
                let took = Duration::from_nanos(us * (1000 + 150 * side as u64));
                observed.took(rival, bytes, took);
            }
            in_chunks += usize::from(round >= rounds / 2 && ways == [true, true]);
        }
        in_chunks
    }

    #[test]
    fn ranks_that_exchange_find_the_way_that_is_fast_if_both_take_it() {
        let found = exchange([100, 70], [90, 130], 4000);
        assert!(found > 1900, "{found}");
        let found = exchange([50, 70], [90, 130], 4000);
        assert!(found < 100, "{found}");
    }

    /// Windows of transfers that are all asked for at their window's beginning. How many of the last window went in
    /// chunks.
    fn windows(observed: &mut Observed, kernel_us: u64, pipeline_us: u64, count: usize) -> usize {
        const WINDOW: usize = 64;
        let (thresholds, bytes) = (with_cma(), 128 << 10);
        let mut clock = Instant::now();
        let mut in_chunks = 0;
        for _ in 0..count {
            let begun = clock;
            let mut asked = 0;
            for _ in 0..WINDOW {
                if observed.decide(&thresholds, bytes) == Some(Rival::Kernel) {
                    // Read at once.
                    let before = clock;
                    clock += Duration::from_micros(kernel_us);
                    observed.transferred(Rival::Kernel, bytes, before, clock);
                } else {
                    asked += 1;
                }
            }
            in_chunks = asked;
            for _ in 0..asked {
                clock += Duration::from_micros(pipeline_us);
                observed.transferred(Rival::Pipeline, bytes, begun, clock);
            }
        }
        in_chunks
    }

    #[test]
    fn what_a_transfer_waits_for_others_of_its_window_is_not_its_own_time() {
        let mut observed = Observed::new(&Costs::default(), true, false, LayerId::CALL);
        assert!(windows(&mut observed, 12, 4, 100) > 48);
        assert!(windows(&mut observed, 4, 12, 100) < 16);
        assert!(windows(&mut observed, 12, 4, 100) > 48);
    }

    /// Transfers in chunks, all of whose pieces come in turns: several end at once.
    #[test]
    fn transfers_that_end_together_count_as_their_mean() {
        const WINDOW: u32 = 16;
        let mut observed = Observed::new(&Costs::default(), true, false, LayerId::CALL);
        let (thresholds, bytes) = (with_cma(), 256 << 10);
        let (mut clock, mut by_kernel) = (Instant::now(), 0);
        for round in 0..400 {
            let begun = clock;
            let mut asked = 0;
            for _ in 0..WINDOW {
                if observed.decide(&thresholds, bytes) == Some(Rival::Kernel) {
                    let before = clock;
                    clock += Duration::from_micros(25);
                    observed.transferred(Rival::Kernel, bytes, before, clock);
                    by_kernel += u32::from(round >= 200);
                } else {
                    asked += 1;
                }
            }
            // Fifty microseconds each, and all end together.
            clock += Duration::from_micros(50) * asked;
            for _ in 0..asked {
                observed.transferred(Rival::Pipeline, bytes, begun, clock);
            }
        }
        assert!(by_kernel > 200 * WINDOW * 8 / 10, "{by_kernel}");
    }

    #[test]
    fn a_knob_is_obeyed() {
        let mut observed = Observed::new(&Costs::default(), true, true, LayerId::CALL);
        let thresholds = with_cma();
        for _ in 0..100 {
            assert_eq!(observed.decide(&thresholds, 1 << 20), None);
            observed.took(Rival::Kernel, 1 << 20, Duration::from_secs(1));
        }
    }
}
