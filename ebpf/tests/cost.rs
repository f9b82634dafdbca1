// SPDX-License-Identifier: MIT OR Apache-2.0
//! What observing costs is measured, and is of the order that it should be.
#![allow(clippy::print_stdout, reason = "figures are told")]

use onecopy_trace::bpf::{Calibration, Detail, Options, calibrate};

/// Measures a few times in turns; `TEST_ROUNDS` asks for more.
fn measured(detail: Detail, events: bool) -> Option<Calibration> {
    let rounds = std::env::var("TEST_ROUNDS").ok();
    let rounds = rounds.map_or(3, |text| text.parse().expect("TEST_ROUNDS"));
    let options = Options {
        detail,
        events,
        ..Options::default()
    };
    match calibrate(&options, rounds) {
        Ok((calibration, _)) => {
            let (before, after) = (calibration.before, calibration.after);
            println!(
                "{detail:?}, events {events}: 4 KiB {:.0} -> {:.0} ns ({:.2}), 64 KiB {:.0} -> {:.0} ns ({:.2}), \
                getppid {:.0} -> {:.0} ns",
                before.small_ns,
                after.small_ns,
                after.small_ns / before.small_ns,
                before.large_ns,
                after.large_ns,
                after.large_ns / before.large_ns,
                before.other_ns,
                after.other_ns,
            );
            Some(calibration)
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn each_detail_has_its_cost() {
    for (detail, events) in [
        (Detail::Counts, false),
        (Detail::Latencies, false),
        (Detail::Causes, false),
        (Detail::Causes, true),
    ] {
        let Some(found) = measured(detail, events) else {
            return;
        };
        // How long they take is for the reader: a busy machine may say anything.
        for times in [found.before, found.after] {
            for time in [times.small_ns, times.large_ns, times.other_ns] {
                assert!(time.is_finite() && time > 0.0, "{found:?}");
            }
        }
    }
}
