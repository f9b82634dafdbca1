// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two reports beside each other. Process ids change from run to run: pairs are found by ranks and commands.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::observed::Mechanism;
use crate::report::{NamedProcess, Pair, Report};

/// Two reports, pair by pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// Most bytes first.
    pub changes: Vec<Change>,
}

/// What one report says of a pair, and the other one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Whose memory was read; without ids, which differ.
    pub source: NamedProcess,
    /// Whose memory was written.
    pub sink: NamedProcess,
    /// How.
    pub mechanism: Mechanism,
    /// In the first report, if it is there.
    pub a: Option<Pair>,
    /// In the second one.
    pub b: Option<Pair>,
}

type Key = (NamedProcess, NamedProcess, &'static str, usize);

/// Ranks that only one process has in each report: these are found again whatever their commands are called.
struct Unique(BTreeSet<u32>);

impl Unique {
    fn of(reports: [&Report; 2]) -> Self {
        let mut several = BTreeSet::new();
        let mut all = BTreeSet::new();
        for report in reports {
            let mut found: BTreeMap<u32, (Option<u32>, &Option<String>)> = BTreeMap::new();
            for who in report
                .pairs
                .iter()
                .flat_map(|pair| [&pair.source, &pair.sink])
            {
                let Some(rank) = who.rank else { continue };
                let is = (who.pid, &who.job);
                if *found.entry(rank).or_insert(is) != is {
                    several.insert(rank);
                }
                all.insert(rank);
            }
        }
        Self(all.difference(&several).copied().collect())
    }

    /// What stays the same from run to run: the rank, if it is unique, else rank and command.
    fn stable(&self, who: &NamedProcess) -> NamedProcess {
        let is_unique = who.rank.is_some_and(|rank| self.0.contains(&rank));
        NamedProcess {
            rank: who.rank,
            comm: who.comm.clone().filter(|_| !is_unique),
            ..NamedProcess::default()
        }
    }
}

/// Pairs that cannot be told apart are numbered, most bytes first, as reports have them.
fn by_key<'a>(report: &'a Report, unique: &Unique) -> BTreeMap<Key, &'a Pair> {
    let mut found = BTreeMap::new();
    let mut numbers: BTreeMap<_, usize> = BTreeMap::new();
    for pair in &report.pairs {
        let (source, sink) = (unique.stable(&pair.source), unique.stable(&pair.sink));
        let mechanism = pair.mechanism.name();
        let next = numbers
            .entry((source.clone(), sink.clone(), mechanism))
            .or_default();
        found.insert((source, sink, mechanism, *next), pair);
        *next += 1;
    }
    found
}

/// Compares two reports.
#[must_use]
pub fn diff(a: &Report, b: &Report) -> Diff {
    let unique = Unique::of([a, b]);
    let (before, mut after) = (by_key(a, &unique), by_key(b, &unique));
    let mut changes: Vec<Change> = Vec::new();
    for (key, pair) in before {
        let other = after.remove(&key);
        changes.push(Change {
            source: key.0,
            sink: key.1,
            mechanism: pair.mechanism,
            a: Some(pair.clone()),
            b: other.cloned(),
        });
    }
    for (key, pair) in after {
        changes.push(Change {
            source: key.0,
            sink: key.1,
            mechanism: pair.mechanism,
            a: None,
            b: Some(pair.clone()),
        });
    }
    let bytes = |change: &Change| {
        let pair_bytes = |pair: &Option<Pair>| pair.as_ref().map_or(0, |pair| pair.bytes);
        pair_bytes(&change.a).max(pair_bytes(&change.b))
    };
    changes.sort_by_key(|change| std::cmp::Reverse(bytes(change)));
    Diff { changes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(pid: u32, rank: u32, mechanism: Mechanism, bytes: u64) -> Pair {
        let who = |pid, rank| NamedProcess {
            pid: Some(pid),
            rank: Some(rank),
            comm: Some("prog".to_owned()),
            ..NamedProcess::default()
        };
        Pair {
            source: who(pid, rank),
            sink: who(pid + 1, rank + 1),
            mechanism,
            calls: 1,
            bytes,
            errors: BTreeMap::new(),
            latency_us: None,
            gb_per_s: None,
            copy_gb_per_s: None,
            sizes: Vec::new(),
            faults: 0,
            wait_us: 0.0,
            flushes: 0,
        }
    }

    #[test]
    fn pairs_are_found_again_under_other_ids() {
        let report = |pairs| Report {
            pairs,
            ..Report::default()
        };
        let a = report(vec![
            pair(10, 0, Mechanism::CmaRead, 100),
            pair(10, 0, Mechanism::Cico, 7),
        ]);
        let mut b = report(vec![
            pair(90, 0, Mechanism::CmaRead, 200),
            pair(90, 4, Mechanism::Heap, 5),
        ]);
        // Another build of it has another name.
        for pair in &mut b.pairs {
            pair.source.comm = Some("prog-2".to_owned());
        }
        let changes = diff(&a, &b).changes;
        let summary = |change: &Change| {
            let bytes = |pair: &Option<Pair>| pair.as_ref().map(|pair| pair.bytes);
            (change.mechanism, bytes(&change.a), bytes(&change.b))
        };
        assert_eq!(
            summary(&changes[0]),
            (Mechanism::CmaRead, Some(100), Some(200))
        );
        assert_eq!(summary(&changes[1]), (Mechanism::Cico, Some(7), None));
        assert_eq!(summary(&changes[2]), (Mechanism::Heap, None, Some(5)));
    }

    /// Two jobs have the same ranks: their commands tell them apart.
    #[test]
    fn ranks_of_several_jobs_are_not_taken_for_each_other() {
        let pair_of = |job: &str, pid, bytes| {
            let mut pair = pair(pid, 0, Mechanism::CmaRead, bytes);
            for who in [&mut pair.source, &mut pair.sink] {
                who.comm = Some(job.to_owned());
                who.job = Some(job.to_owned());
            }
            pair
        };
        let report = |pairs| Report {
            pairs,
            ..Report::default()
        };
        let a = report(vec![pair_of("alpha", 10, 100), pair_of("beta", 20, 50)]);
        let b = report(vec![pair_of("beta", 30, 50), pair_of("alpha", 40, 40)]);
        let changes = diff(&a, &b).changes;
        let bytes = |pair: &Option<Pair>| pair.as_ref().map(|pair| pair.bytes);
        let found: Vec<_> = changes
            .iter()
            .map(|change| {
                (
                    change.source.comm.as_deref(),
                    bytes(&change.a),
                    bytes(&change.b),
                )
            })
            .collect();
        let expected = [
            (Some("alpha"), Some(100), Some(40)),
            (Some("beta"), Some(50), Some(50)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn pairs_that_look_alike_stay_apart() {
        let report = Report {
            pairs: vec![
                pair(10, 0, Mechanism::CmaRead, 9),
                pair(20, 0, Mechanism::CmaRead, 5),
            ],
            ..Report::default()
        };
        let changes = diff(&report, &report).changes;
        assert_eq!(changes.len(), 2);
        assert!(changes.iter().all(|change| change.a == change.b));
    }
}
