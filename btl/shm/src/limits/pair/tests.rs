// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the limits, with threads for sides.

use super::super::{Arena, Batch, Flow, Limit, LimitError, Mode, Pair};

fn both(pool: usize, body: impl Fn(&mut Pair) -> Result<(), LimitError> + Sync) {
    let arena = Arena::create(pool).unwrap();
    let mut sides = [
        Pair::new(arena.again().unwrap(), 0),
        Pair::new(arena.again().unwrap(), 1),
    ];
    std::thread::scope(|scope| {
        let handles: Vec<_> = sides
            .iter_mut()
            .map(|pair| scope.spawn(|| body(pair)))
            .collect();
        for handle in handles {
            handle.join().unwrap().unwrap();
        }
    });
}

#[test]
fn every_limit_runs_in_every_flow_and_mode() {
    both(1 << 20, |pair| {
        for limit in Limit::all() {
            for flow in [
                Flow::PingPong,
                Flow::OneWay(4),
                Flow::TwoWay(1),
                Flow::TwoWay(4),
            ] {
                for mode in [Mode::Same, Mode::OffCache, Mode::Rewrite] {
                    for size in [0, 8, 56, 64, 4096, 65_536] {
                        if !limit.carries(size) {
                            continue;
                        }
                        let batch = Batch {
                            limit,
                            flow,
                            mode,
                            size,
                            iterations: 3,
                        };
                        let seconds = match pair.run(&batch) {
                            Err(LimitError::Refused { .. }) => continue,
                            other => other?,
                        };
                        assert!(seconds > 0.0 && seconds < 1.0, "{batch:?}: {seconds}");
                    }
                }
            }
        }
        Ok(())
    });
}

#[test]
fn probes_are_positive_and_end() {
    both(1 << 20, |pair| {
        assert!(pair.probe(100)? > 0.0);
        Ok(())
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    both(1 << 20, |pair| {
        let batch = Batch {
            limit: Limit::Direct(super::super::CopyKernel::Memcpy),
            flow: Flow::PingPong,
            mode: Mode::Same,
            size: 2 << 20,
            iterations: 1,
        };
        assert!(matches!(pair.run(&batch), Err(LimitError::TooLarge { .. })));
        Ok(())
    });
}

#[test]
fn a_stopped_arena_ends_a_wait() {
    let arena = Arena::create(1 << 20).unwrap();
    arena.stop();
    let mut pair = Pair::new(arena, 1);
    assert!(matches!(pair.barrier(), Err(LimitError::Stopped)));
}

#[test]
fn what_is_not_an_arena_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Arena::open(file.into()).is_err());
}
