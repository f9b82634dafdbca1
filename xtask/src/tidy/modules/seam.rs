// SPDX-License-Identifier: MIT OR Apache-2.0
//! What only endpoints know of how a peer is reached: nothing above them names it, or reaches through them.

use super::super::Findings;
use super::package::Package;

/// What only an endpoint knows: `onecopy_shm::NAME`.
const SEAM: &[&str] = &["segment", "ring", "cells", "pool", "doorbell"];
/// Fields and methods of what only an endpoint knows, or of the endpoint itself, by which one would reach through it.
/// Words that mean something else, too, are not among them.
const SEAM_MEMBERS: &[&str] = &[
    "bitmap_words",
    "consumer",
    "control_handle",
    "geometry",
    "producer",
    "ring_slots",
    "rx",
    "rx_control",
    "segment",
    "tx",
    "tx_control",
];
/// A part in which such a word means something else, and what.
const OTHER_SENSES: &[(&str, &str, &str)] = &[(
    "wireup",
    "segment",
    "the descriptor that a rank hands to its peers",
)];
/// Who stands above the endpoints, with its parts that may know it nevertheless. Those of the library compute the
/// layout of a segment, show its limits and tell its errors. MPI takes atomics, fork and reductions from `onecopy_shm`.
const ABOVE_SEAM: &[(&str, &[&str])] = &[
    ("src/lib.rs", &["endpoint", "error", "machine", "memory"]),
    ("mpi/src/lib.rs", &[]),
];

/// Judges a package by its root file, if it stands above the endpoints.
pub(super) fn judge(root: &str, package: &Package, findings: &mut Findings) {
    if let Some((_, excepted)) = ABOVE_SEAM.iter().find(|(name, _)| *name == root) {
        judge_names(package, excepted, findings);
        judge_members(package, excepted, OTHER_SENSES, findings);
    }
}

/// Finds parts that know how a peer is reached, though they stand above the endpoints.
fn judge_names(package: &Package, excepted: &[&str], findings: &mut Findings) {
    for (name, module) in &package.modules {
        let part = name.split("::").next().unwrap_or_default();
        if excepted.contains(&part) {
            continue;
        }
        for (path, line) in &module.outside {
            if let [package, known, ..] = path.as_slice()
                && package == "onecopy_shm"
                && SEAM.contains(&known.as_str())
            {
                findings.error(
                    format!("{}:{line}", module.file),
                    format!("{part} may not name onecopy_shm::{known}: that is an endpoint's"),
                );
            }
        }
    }
}

/// Finds parts above the endpoints that reach through them by a field or a method.
fn judge_members(
    package: &Package,
    excepted: &[&str],
    senses: &[(&str, &str, &str)],
    findings: &mut Findings,
) {
    for (name, module) in &package.modules {
        let part = name.split("::").next().unwrap_or_default();
        if excepted.contains(&part) {
            continue;
        }
        for (member, line) in &module.members {
            let other = senses
                .iter()
                .any(|(its, word, _)| *its == part && *word == member);
            if SEAM_MEMBERS.contains(&member.as_str()) && !other {
                let place = format!("{}:{line}", module.file);
                let what = format!(
                    "{part} may not use `{member}`: that is an endpoint's; let it offer what is wanted"
                );
                findings.error(place, what);
            }
        }
    }
}

/// Finds words of the tables that nothing uses any more: they would find nothing.
pub(super) fn judge_tables(package: &Package, findings: &mut Findings) {
    let used = |part: &str, word: &str| {
        let of_part = package
            .modules
            .iter()
            .filter(|(name, _)| name.split("::").next() == Some(part));
        let mut members = of_part.flat_map(|(_, module)| &module.members);
        members.any(|(member, _)| member == word)
    };
    for word in SEAM_MEMBERS.iter().filter(|word| !used("endpoint", word)) {
        let what = format!("no endpoint has `{word}`: take it out of SEAM_MEMBERS");
        findings.error("src/endpoint.rs", what);
    }
    for (part, word, _) in OTHER_SENSES
        .iter()
        .filter(|(part, word, _)| !used(part, word))
    {
        let what = format!("{part} does not use `{word}`: take it out of OTHER_SENSES");
        findings.error("xtask/src/tidy/modules/seam.rs", what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_endpoints_know_how_a_peer_is_reached() {
        let files = [
            ("src/lib.rs", "mod endpoint;\nmod proto;"),
            ("src/endpoint.rs", "use onecopy_shm::ring::Consumer;"),
            (
                "src/proto.rs",
                "use onecopy_shm::{fault, ring::Producer};\nfn f(_: &onecopy_shm::segment::PeerSegment) {}",
            ),
        ];
        let package = Package::read("src/lib.rs", &files.into()).expect("sources");
        let mut findings = Findings::default();
        judge_names(&package, &["endpoint"], &mut findings);
        assert_eq!(
            findings.errors,
            [
                "src/proto.rs:1: proto may not name onecopy_shm::ring: that is an endpoint's",
                "src/proto.rs:2: proto may not name onecopy_shm::segment: that is an endpoint's"
            ]
        );
    }

    #[test]
    fn nobody_reaches_through_an_endpoint() {
        let files = [
            ("src/lib.rs", "mod coll;\nmod endpoint;\nmod engine;"),
            ("src/endpoint.rs", "fn f(of: Own) { of.segment.doorbell() }"),
            (
                "src/coll.rs",
                "fn f(load: Load) -> usize { load.segment.len + load.tx }",
            ),
            (
                "src/engine.rs",
                "struct Engine { geometry: G }\nfn f(to: To) { to.segment.open() }\nfn g(to: To) { to.producer() }\n\
                 fn h(to: To) { let To { ring_slots, .. } = to; m!(1, to.rx.x) }\n\
                 fn i(segment: S) { segment.geometry }\n#[cfg(test)]\nmod tests { fn f(to: To) { to.segment } }",
            ),
        ];
        let package = Package::read("src/lib.rs", &files.into()).expect("sources");
        let mut findings = Findings::default();
        judge_members(
            &package,
            &["endpoint"],
            &[("coll", "segment", "")],
            &mut findings,
        );
        let places: Vec<&str> = findings
            .errors
            .iter()
            .filter_map(|error| error.split(": that").next())
            .collect();
        assert_eq!(
            places,
            [
                "src/coll.rs:1: coll may not use `tx`",
                "src/engine.rs:1: engine may not use `geometry`",
                "src/engine.rs:2: engine may not use `segment`",
                "src/engine.rs:3: engine may not use `producer`",
                "src/engine.rs:4: engine may not use `ring_slots`",
                "src/engine.rs:4: engine may not use `rx`",
                "src/engine.rs:5: engine may not use `geometry`",
            ]
        );
    }
}
