// SPDX-License-Identifier: MIT OR Apache-2.0
//! Knobs of copies, waits and shares, whose rules the runtime calls. The numbers were worked out by hand from the
//! documented sentences.

use super::{auto_number, auto_value, of_a_rank, take_from};
use crate::coll::select::{asks, chunks_are_cheaper, relay_min};
use crate::runtime::local_with;
use crate::state::wait_policy::WaitPolicy;
use crate::wireup::Card;
use onecopy_btl::LayerId;
use onecopy_btl::cost::{Costs, Curve};
use onecopy_obs::knobs::auto::{Situation, Value};
use onecopy_obs::{CopyKernel, Knobs, LayerList, WaitSleep};
use onecopy_shm::copy::Kernel;
use std::sync::Mutex;

pub(super) fn copy_kernel() {
    const NEVER: usize = usize::MAX;
    for (kernel, unset, set_to_1_mib) in [
        (CopyKernel::Auto, 32 << 20, 1 << 20),
        (CopyKernel::Memcpy, NEVER, 1 << 20),
        (CopyKernel::NonTemporal, 0, 0),
        (CopyKernel::Rep, NEVER, 1 << 20),
    ] {
        for (nt_min, expected) in [(None, unset), (Some(1 << 20), set_to_1_mib)] {
            let knobs = Knobs {
                copy_kernel: kernel,
                nt_min,
                ..Knobs::default()
            };
            let plan = of_a_rank(&knobs, |rank| {
                rank.handle().gate.enter().engine.permitted.terms.plan
            });
            assert_eq!(plan.nt_min, expected, "{kernel}, {nt_min:?}");
            let by_strings = kernel == CopyKernel::Rep;
            assert_eq!(plan.small == Kernel::RepMovsb, by_strings, "{kernel}");
        }
        let knobs = Knobs {
            copy_kernel: kernel,
            ..Knobs::default()
        };
        let value = auto_value("ONECOPY_NT_MIN", &knobs, Situation::here());
        assert_eq!(value.number(), unset, "{kernel}");
    }
}

/// How a rank waits that shares two processors with so many others.
fn waits_among(knobs: &Knobs, ranks: usize) -> WaitPolicy {
    let card = Card {
        affinity: vec![0, 1],
        ..Card::of_this_process()
    };
    WaitPolicy::new(knobs, &vec![card; ranks], 0)
}

pub(super) fn waiting() {
    let set = Knobs {
        wait_spin: Some(500),
        wait_yield: Some(300),
        ..Knobs::default()
    };
    for (knobs, ranks, threads, spin, yields) in [
        (Knobs::default(), 2, 1, 1000, 4000),
        (Knobs::default(), 2, 2, 16, 200),
        (Knobs::default(), 3, 1, 16, 4),
        (set.clone(), 2, 1, 500, 300),
        (set.clone(), 2, 2, 16, 200),
        (set, 3, 1, 16, 200),
    ] {
        let found = waits_among(&knobs, ranks).among(threads);
        assert_eq!((found.spin, found.yields), (spin, yields), "{ranks} ranks");
    }
    for (ranks, oversubscribed) in [(2, false), (3, true)] {
        let found = waits_among(&Knobs::default(), ranks);
        let number = |name| auto_number(name, &Knobs::default(), Situation::among(oversubscribed));
        assert_eq!(found.oversubscribed, oversubscribed);
        assert_eq!(found.spin as u64, number("ONECOPY_WAIT_SPIN"));
        assert_eq!(found.yields as u64, number("ONECOPY_WAIT_YIELD"));
    }
    let value = auto_value("ONECOPY_WAIT_SLEEP", &Knobs::default(), Situation::here());
    assert_eq!(value, Value::Word("on"));
    for (setting, sleeps) in [
        (WaitSleep::Auto, true),
        (WaitSleep::On, true),
        (WaitSleep::Off, false),
    ] {
        let knobs = Knobs {
            wait_sleep: setting,
            ..Knobs::default()
        };
        assert_eq!(waits_among(&knobs, 2).sleep, sleeps, "{setting}");
    }
}

pub(super) fn broadcasts_by_shares() {
    for (set, with_room, oversubscribed) in [
        (None, 256 << 10, usize::MAX),
        (Some(1 << 20), 1 << 20, 1 << 20),
        // Up to 16 KiB are never shared.
        (Some(0), (16 << 10) + 1, (16 << 10) + 1),
    ] {
        let knobs = Knobs {
            coll_relay_min: set,
            ..Knobs::default()
        };
        assert_eq!(relay_min(&knobs, false), with_room, "{set:?}");
        assert_eq!(relay_min(&knobs, true), oversubscribed, "{set:?}");
    }
    for oversubscribed in [false, true] {
        let knobs = Knobs::default();
        let situation = Situation::among(oversubscribed);
        let value = auto_number("ONECOPY_COLL_RELAY_MIN", &knobs, situation);
        assert_eq!(value, relay_min(&knobs, oversubscribed) as u64);
    }
}

/// A curve of so many nanoseconds, and so many more for each KiB.
fn line(setup_ns: f64, per_kib_ns: f64) -> Curve {
    Curve {
        setup_ns,
        per_kib_ns,
        knee: 0,
        per_kib_far_ns: per_kib_ns,
    }
}

/// Chunks of 100 ns a KiB take 6400 ns for 64 KiB and 102400 for 1 MiB: calls have to take more than 9600 and 153600.
pub(super) fn owners_that_are_asked() {
    for (chunks_ns, call_ns, per_kib, cheaper) in [
        (0.0, 0.0, 151.0, true),
        (0.0, 0.0, 150.0, false),
        // 19536 and 162576.
        (0.0, 10_000.0, 149.0, true),
        // 18960 and 153360: short ones alone are cheaper.
        (0.0, 10_000.0, 140.0, false),
        // 10240 and 163840, against 11100 and 155100: long ones alone are.
        (1000.0, 0.0, 160.0, false),
    ] {
        let mut costs = Costs {
            eager: line(chunks_ns, 100.0),
            ..Costs::default()
        };
        *costs.named("get").expect("a curve") = line(call_ns, per_kib);
        assert_eq!(chunks_are_cheaper(&costs), cheaper, "{call_ns}, {per_kib}");
        for oversubscribed in [false, true] {
            let knobs = Knobs::default();
            assert_eq!(
                asks(&knobs, &costs, oversubscribed),
                cheaper && !oversubscribed
            );
            let situation = Situation {
                copies: Some(costs.asked_copies()),
                ..Situation::among(oversubscribed)
            };
            let value = auto_value("ONECOPY_COLL_ASK", &knobs, situation);
            let is_on = value == Value::Word("on");
            assert_eq!(is_on, cheaper && !oversubscribed, "{call_ns}, {per_kib}");
            for set in [false, true] {
                let knobs = Knobs {
                    coll_ask: Some(set),
                    ..Knobs::default()
                };
                assert_eq!(asks(&knobs, &costs, oversubscribed), set);
            }
        }
    }
}

/// How many chunks both sides take of a message of `len` bytes; 0 where the layer is refused.
fn shared_chunks(layer: LayerId, len: usize, coop_chunk: Option<usize>) -> usize {
    let mut knobs = Knobs {
        layers: LayerList::Only(vec![LayerId::CHUNKS.name(), layer.name()]),
        coop_min: Some(0),
        coop_chunk,
        ..Knobs::default()
    };
    for layer in [LayerId::MAP, LayerId::CALL] {
        take_from(&mut knobs, layer, "0");
    }
    let chunks = Mutex::new(0);
    local_with(2, &knobs, |rank| {
        let world = rank.world();
        let mut bytes = rank.alloc(len).expect("memory");
        let mut plain = vec![0; len];
        let bytes: &mut [u8] = if layer == LayerId::MAP {
            &mut bytes
        } else {
            &mut plain
        };
        match world.rank() {
            0 => world.send(bytes, 1, 0).expect("sent"),
            _ => drop(world.recv(bytes, 0, 0).expect("received")),
        }
        let counters = rank.counters();
        let mine = counters.coop_chunks_receiver + counters.coop_chunks_sender;
        *chunks.lock().expect("no rank panics") += mine as usize;
    });
    chunks.into_inner().expect("no rank panics")
}

/// What takes too long to send is asked of the rule alone.
pub(super) fn coop_chunk() {
    const K: usize = 1 << 10;
    const M: usize = 1 << 20;
    const G: usize = 1 << 30;
    // Without a setting, and with one of 8 KiB.
    for (mapped, len, unset, set) in [
        (true, 48 * K, 16 * K, 8 * K),
        (true, 256 * K + 1, 32 * K, 8 * K),
        (true, 5 * M, 256 * K, 8 * K),
        (true, 32 * M, 256 * K, 8 * K),
        (true, 64 * G, 2 * M, 2 * M),
        (true, 64 * G + 1, 2 * M + 4 * K, 2 * M + 1),
        (false, 5 * K, 4 * K, 8 * K),
        (false, 50 * K, 28 * K, 8 * K),
        (false, 254 * K, 128 * K, 8 * K),
        (false, M, 128 * K, 8 * K),
        (false, 3 * M, 256 * K, 8 * K),
        (false, 32 * M, 512 * K, 8 * K),
        (false, 64 * G, 2 * M, 2 * M),
    ] {
        let layer = if mapped { LayerId::MAP } else { LayerId::CALL };
        let situation = Situation {
            mapped,
            len,
            ..Situation::here()
        };
        let rule = auto_number("ONECOPY_COOP_CHUNK", &Knobs::default(), situation);
        assert_eq!(rule, unset as u64, "{layer}, {len}");
        for (setting, chunk) in [(None, unset), (Some(8 * K), set)] {
            let knobs = Knobs {
                coop_chunk: setting,
                ..Knobs::default()
            };
            assert_eq!(knobs.coop_step(mapped, len), chunk, "{layer}, {len}");
            if len > 32 * M {
                continue;
            }
            let taken = shared_chunks(layer, len, setting);
            // Where the layer is refused nothing is shared.
            if mapped || taken > 0 {
                assert_eq!(taken, len.div_ceil(chunk), "{layer}, {len}");
            }
        }
    }
}
