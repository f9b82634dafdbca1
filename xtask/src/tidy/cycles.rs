// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arrows between modules or files, and the cycles among them.

use std::collections::{BTreeMap, BTreeSet};

/// What an arrow leads from or to: a module's path, or a file.
pub(super) type Name = String;

/// Where an arrow was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArrowSite {
    pub(super) file: String,
    pub(super) line: usize,
}

impl ArrowSite {
    pub(super) fn new(file: &str, line: usize) -> Self {
        let file = file.to_owned();
        Self { file, line }
    }
}

/// Arrows by where they begin and end.
pub(super) type Arrows = BTreeMap<Name, BTreeMap<Name, ArrowSite>>;

/// The cycles that [`cycles`] finds, with the place where each arrow is drawn.
pub(super) fn texts(arrows: &Arrows) -> Vec<String> {
    let text = |cycle: Vec<Name>| {
        let mut text = cycle[0].clone();
        for pair in cycle.windows(2) {
            let place = &arrows[&pair[0]][&pair[1]];
            text.push_str(&format!(" -> {} ({}:{})", pair[1], place.file, place.line));
        }
        text
    };
    cycles(arrows).into_iter().map(text).collect()
}

/// One shortest cycle of each set of modules that lead to one another; the first module is the last one, too.
fn cycles(arrows: &Arrows) -> Vec<Vec<Name>> {
    let mut found = Vec::new();
    let mut tangled: BTreeSet<&str> = BTreeSet::new();
    for start in arrows.keys() {
        if tangled.contains(start.as_str()) {
            continue;
        }
        if let Some(cycle) = shortest(arrows, start) {
            // What leads to this cycle and back is the same tangle: once is enough.
            for name in arrows.keys() {
                if reaches(arrows, start, name) && reaches(arrows, name, start) {
                    tangled.insert(name);
                }
            }
            found.push(cycle);
        }
    }
    found
}

fn reaches(arrows: &Arrows, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(name) = next.pop() {
        if name == to {
            return true;
        }
        let targets = arrows.get(name).into_iter().flat_map(BTreeMap::keys);
        next.extend(
            targets
                .map(String::as_str)
                .filter(|target| seen.insert(target)),
        );
    }
    false
}

/// The shortest way from a module back to itself.
fn shortest(arrows: &Arrows, start: &str) -> Option<Vec<Name>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut level = vec![start];
    while !level.is_empty() {
        let mut next = Vec::new();
        for name in level {
            for target in arrows.get(name).into_iter().flat_map(BTreeMap::keys) {
                if target == start {
                    let mut cycle = vec![start.to_owned()];
                    let mut step = name;
                    while step != start {
                        cycle.push(step.to_owned());
                        step = came_from[step];
                    }
                    cycle.push(start.to_owned());
                    cycle.reverse();
                    return Some(cycle);
                }
                if !came_from.contains_key(target.as_str()) {
                    came_from.insert(target, name);
                    next.push(target.as_str());
                }
            }
        }
        level = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(pairs: &[(&str, &str)]) -> Arrows {
        let mut arrows = Arrows::new();
        for &(from, to) in pairs {
            let place = ArrowSite {
                file: from.to_owned(),
                line: 1,
            };
            arrows.entry(to.to_owned()).or_default();
            let targets = arrows.entry(from.to_owned()).or_default();
            targets.insert(to.to_owned(), place);
        }
        arrows
    }

    #[test]
    fn each_tangle_is_told_once_by_its_shortest_cycle() {
        let tangles = [
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("b", "a"),
            ("d", "e"),
            ("e", "d"),
            ("c", "d"),
        ];
        assert_eq!(
            texts(&arrows(&tangles)),
            ["a -> b (a:1) -> a (b:1)", "d -> e (d:1) -> d (e:1)"]
        );
        assert_eq!(
            texts(&arrows(&[("a", "b"), ("b", "c"), ("a", "c")])),
            [""; 0]
        );
    }
}
