// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was called, and what came of it.

use std::time::Duration;

use nix::errno::Errno;

use crate::runner::say;

use super::calls::CALLS;
use super::table::{RESULTS, Table};

/// Of a call that was made so often some must have succeeded, or it tests nothing.
const OFTEN: u64 = 500;
/// Calls of all kinds after which each kind was made. Fewer may miss one that needs what others have made.
const EVERY_KIND: u64 = 100_000;
/// The least share of successes, in percent.
const SHARE: u64 = 1;

/// How many had which result, the most frequent ones first; success is not told.
fn errors(counts: &[u64], most: usize) -> String {
    let mut errors: Vec<(u64, usize)> = counts
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, count)| **count > 0)
        .map(|(result, count)| (*count, result))
        .collect();
    errors.sort_unstable_by(|left, right| right.cmp(left));
    let name = |result: usize| match Errno::from_raw(result as i32) {
        Errno::UnknownErrno => "another".to_owned(),
        known => format!("{known:?}"),
    };
    let errors: Vec<String> = errors
        .iter()
        .take(most)
        .map(|(count, result)| format!("{} {count}", name(*result)))
        .collect();
    errors.join(", ")
}

/// Prints a line per call, and one of all on the devices. What is wrong with them.
pub(super) fn print(table: &Table, time: Duration) -> Vec<String> {
    let mut problems = Vec::new();
    let mut all = vec![0; RESULTS];
    for (call, entry) in CALLS.iter().enumerate() {
        let counts: Vec<u64> = (0..RESULTS)
            .map(|result| table.results(call, result))
            .collect();
        let total: u64 = counts.iter().sum();
        let good = counts[0];
        if total == 0 && !entry.device {
            continue;
        }
        if entry.device {
            for (sum, count) in all.iter_mut().zip(&counts) {
                *sum += count;
            }
        }
        say(&format!(
            "  {:28} {total:9} calls, {:7.1} s, {:3} % good; {}",
            entry.name,
            table.spent(call).as_secs_f64(),
            good * 100 / total.max(1),
            errors(&counts, 6)
        ));
        if entry.device && total >= OFTEN && good * 100 < total * SHARE {
            problems.push(format!("{}: {good} of {total} calls succeeded", entry.name));
        }
        if entry.device && total == 0 && table.calls() >= EVERY_KIND {
            problems.push(format!("{} was never called", entry.name));
        }
    }
    say(&format!(
        "results: success {}, {}",
        all[0],
        errors(&all, RESULTS)
    ));
    let calls = table.calls();
    say(&format!(
        "fuzz: {calls} calls on the devices in {:.0} s, {:.0} per second",
        time.as_secs_f64(),
        calls as f64 / time.as_secs_f64()
    ));
    problems
}
