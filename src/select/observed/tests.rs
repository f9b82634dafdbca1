// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a pair learns, from transfers whose times are made up.

use super::*;
use onecopy_obs::ChunkCopy;

fn with_cma() -> Thresholds {
    let proven = [LayerId::MAP, LayerId::CALL].into_iter().collect();
    Thresholds::with_layers(&Knobs::default(), &Costs::default(), proven)
}

impl Observed {
    /// A transfer that was alone took so long.
    fn took(&mut self, rival: Rival, bytes: u64, took: Duration) {
        let begun = self.ended.unwrap_or_else(Instant::now);
        self.transferred(rival, Source::plain(bytes), begun, begun + took);
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
        let decided = observed.decide(&thresholds, Source::plain(bytes));
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
        let ways = ranks
            .each_mut()
            .map(|rank| rank.decide(&thresholds, Source::plain(bytes)));
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
    let source = Source::plain(1 << 20);
    let rates = |observed: &Observed| Rival::BOTH.map(|way| observed.rate(way, source).per_kib_ns);
    let [before, pipeline] = rates(&observed);
    observed.adapt(&knobs, &costs, both);
    assert_eq!(rates(&observed)[0], before, "nothing was lost");
    observed.adapt(&knobs, &costs, [LayerId::Knem].into_iter().collect());
    let fresh = Observed::new(&costs, true, false, LayerId::Knem);
    assert_eq!(rates(&observed)[0], rates(&fresh)[0]);
    assert_eq!(rates(&observed)[1], pipeline, "chunks are as before");
}

#[test]
fn a_way_that_is_slow_only_when_it_is_cold_is_found() {
    let mut observed = Observed::new(&Costs::default(), true, false, LayerId::CALL);
    let (thresholds, bytes) = (with_cma(), 64 << 10);
    let (mut before, mut by_pipeline) = (Rival::Kernel, 0);
    for round in 0..2000 {
        let kernel = observed.decide(&thresholds, Source::plain(bytes)) == Some(Rival::Kernel);
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
    let mut sides = [(); 2].map(|()| Observed::new(&Costs::default(), true, false, LayerId::CALL));
    let (thresholds, bytes) = (with_cma(), 1 << 20);
    let mut in_chunks = 0;
    for round in 0..rounds {
        let ways = sides
            .each_mut()
            .map(|side| side.decide(&thresholds, Source::plain(bytes)) == Some(Rival::Pipeline));
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
            if observed.decide(&thresholds, Source::plain(bytes)) == Some(Rival::Kernel) {
                // Read at once.
                let before = clock;
                clock += Duration::from_micros(kernel_us);
                observed.transferred(Rival::Kernel, Source::plain(bytes), before, clock);
            } else {
                asked += 1;
            }
        }
        in_chunks = asked;
        for _ in 0..asked {
            clock += Duration::from_micros(pipeline_us);
            observed.transferred(Rival::Pipeline, Source::plain(bytes), begun, clock);
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
            if observed.decide(&thresholds, Source::plain(bytes)) == Some(Rival::Kernel) {
                let before = clock;
                clock += Duration::from_micros(25);
                observed.transferred(Rival::Kernel, Source::plain(bytes), before, clock);
                by_kernel += u32::from(round >= 200);
            } else {
                asked += 1;
            }
        }
        // Fifty microseconds each, and all end together.
        clock += Duration::from_micros(50) * asked;
        for _ in 0..asked {
            observed.transferred(Rival::Pipeline, Source::plain(bytes), begun, clock);
        }
    }
    assert!(by_kernel > 200 * WINDOW * 8 / 10, "{by_kernel}");
}

#[test]
fn a_knob_is_obeyed() {
    let mut observed = Observed::new(&Costs::default(), true, true, LayerId::CALL);
    let thresholds = with_cma();
    for _ in 0..100 {
        assert_eq!(observed.decide(&thresholds, Source::plain(1 << 20)), None);
        observed.took(Rival::Kernel, 1 << 20, Duration::from_secs(1));
    }
}

/// What each way takes depends on the size: which one is faster is learned of each class, and soon.
#[test]
fn each_class_of_sizes_finds_its_own_way_within_its_first_transfers() {
    let mut observed = Observed::new(&Costs::default(), true, false, LayerId::CALL);
    let thresholds = with_cma();
    let mut by_kernel = [0, 0];
    for round in 0..60 {
        for (class, (bytes, kernel, pipeline)) in [(512 << 10, 30, 20), (4 << 20, 200, 300)]
            .into_iter()
            .enumerate()
        {
            let way = observed
                .decide(&thresholds, Source::plain(bytes))
                .expect("a way");
            let us = match way {
                Rival::Kernel => kernel,
                Rival::Pipeline => pipeline,
            };
            observed.took(way, bytes, Duration::from_micros(us));
            by_kernel[class] += u32::from(round >= 20 && way == Rival::Kernel);
        }
    }
    assert_eq!(by_kernel, [0, 40]);
}

/// A size that was not seen goes as the nearest one that was.
#[test]
fn other_sizes_are_a_first_guess() {
    let mut observed = Observed::new(&Costs::default(), true, false, LayerId::CALL);
    let mut first = |way: Rival, ns_per_kib: u64| {
        for _ in 0..20 {
            observed.took(way, 1 << 20, Duration::from_nanos(ns_per_kib << 10));
        }
        let sizes = [128 << 10, 8 << 20].map(Source::plain);
        sizes.map(|source| observed.faster(source))
    };
    first(Rival::Kernel, 40);
    assert_eq!(first(Rival::Pipeline, 400), [Rival::Kernel; 2]);
    assert_eq!(first(Rival::Kernel, 4000), [Rival::Pipeline; 2]);
}

/// The kernel reads a rewritten buffer as fast, but its sender has to take the lines back.
#[test]
fn a_call_costs_the_sender_of_a_rewritten_buffer_as_much_again() {
    let faster = |chunk_copy: ChunkCopy, source: Source| {
        let knobs = Knobs {
            chunk_copy,
            ..Knobs::default()
        };
        let calls = [LayerId::CALL].into_iter().collect();
        let mut observed = Observed::of(&knobs, &Costs::default(), calls);
        for (way, us) in [(Rival::Kernel, 60), (Rival::Pipeline, 100)] {
            for _ in 0..20 {
                let begun = observed.ended.unwrap_or_else(Instant::now);
                let ended = begun + Duration::from_micros(us);
                observed.transferred(way, source, begun, ended);
            }
        }
        observed.faster(source)
    };
    for (chunk_copy, rewritten, bytes, expected) in [
        (ChunkCopy::String, true, 1 << 20, Rival::Pipeline),
        (ChunkCopy::String, false, 1 << 20, Rival::Kernel),
        // Its sender's caches hold little of it.
        (ChunkCopy::String, true, 4 << 20, Rival::Kernel),
        (ChunkCopy::Owned, true, 1 << 20, Rival::Kernel),
    ] {
        let source = Source { bytes, rewritten };
        assert_eq!(
            faster(chunk_copy, source),
            expected,
            "{chunk_copy}, {source:?}"
        );
    }
}
