// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which module imports which: no cycle in any package, and in the library only the arrows of a table.
//!
//! A module and those below it are one part of the design. So what a parent takes from its children draws no arrow;
//! what a child takes from its parent does. Tests draw none.

mod reader;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use serde_json::Value;
use syn::visit::Visit;

use super::arrows::{PAGE, rows};
use super::{File, Findings};
use reader::{Module, Reader};

/// The library, whose arrows are a table.
const LIBRARY: &str = "src/lib.rs";

/// Each part of the library with what it may import, from the bottom up.
const ARROWS: &[(&str, &[&str])] = &[
    ("matching", &[]),
    ("endpoint", &["error", "proof"]),
    ("select", &["endpoint"]),
    ("records", &[]),
    ("proof", &[]),
    ("wireup", &["proof"]),
    ("error", &["wireup"]),
    ("machine", &["wireup"]),
    ("memory", &["endpoint", "error"]),
    ("request", &["error", "matching"]),
    ("tune", &["error", "machine"]),
    (
        "peer",
        &[
            "endpoint", "error", "matching", "request", "select", "records", "wireup",
        ],
    ),
    (
        "state",
        &[
            "endpoint", "error", "matching", "memory", "peer", "request", "select", "records",
            "wireup",
        ],
    ),
    (
        "proto",
        &[
            "endpoint", "error", "matching", "peer", "request", "select", "state", "records",
        ],
    ),
    (
        "engine",
        &[
            "endpoint", "error", "machine", "matching", "memory", "peer", "proto", "request",
            "select", "state", "wireup",
        ],
    ),
    (
        "coll",
        &[
            "endpoint", "engine", "error", "matching", "memory", "peer", "proto", "request",
            "state", "wireup",
        ],
    ),
    ("wait", &["coll", "endpoint"]),
    (
        "handle",
        &[
            "coll", "endpoint", "error", "memory", "request", "wait", "wireup",
        ],
    ),
    (
        "comm",
        &[
            "coll", "engine", "error", "handle", "matching", "peer", "proto", "request",
        ],
    ),
    (
        "nonblocking",
        &[
            "coll", "comm", "engine", "error", "handle", "matching", "request", "state",
        ],
    ),
    (
        "runtime",
        &[
            "coll", "comm", "error", "handle", "memory", "select", "tune", "wireup",
        ],
    ),
    (
        "measure",
        &["comm", "error", "machine", "runtime", "tune", "wireup"],
    ),
    (
        "raw",
        &[
            "coll",
            "comm",
            "engine",
            "error",
            "matching",
            "nonblocking",
            "proto",
            "request",
            "state",
        ],
    ),
    ("fuzzing", &["proof", "records", "wireup"]),
];

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
    (LIBRARY, &["endpoint", "error", "machine", "memory"]),
    ("mpi/src/lib.rs", &[]),
];

/// A module's path from the root of its package: `coll::fold`; the root's is empty.
type Name = String;

/// Where an arrow was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: String,
    pub(super) line: usize,
}

/// The modules of one package.
#[derive(Debug, Default)]
struct Package {
    modules: BTreeMap<Name, Module>,
}

/// Arrows from module to module.
pub(super) type Arrows = BTreeMap<Name, BTreeMap<Name, Place>>;

pub(super) fn check(metadata: &Value, root: &Path, files: &[File], findings: &mut Findings) {
    let texts: HashMap<&str, &str> = files
        .iter()
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    for root in roots(metadata, root) {
        match Package::read(&root, &texts) {
            Ok(package) => {
                judge(&root, &package.arrows(), findings);
                if let Some((_, excepted)) = ABOVE_SEAM.iter().find(|(name, _)| *name == root) {
                    package.judge_seam(excepted, findings);
                    package.judge_members(excepted, OTHER_SENSES, findings);
                }
                if root == LIBRARY {
                    package.judge_names(findings);
                }
            }
            Err(why) => findings.error(root, why),
        }
    }
}

/// Compares the table of parts in ARCHITECTURE.md with the arrows: a part may import what stands above it, or beside.
pub(super) fn check_page(page: &str, findings: &mut Findings) {
    judge_page(page, ARROWS, findings);
}

fn judge_page(page: &str, table: &[(&str, &[&str])], findings: &mut Findings) {
    let rows = rows(page, "| part | knows |");
    let row_of = |part: &str| {
        rows.iter().position(|row| {
            let parts = row.first();
            parts.is_some_and(|parts| parts.iter().any(|name| name == part))
        })
    };
    for (part, allowed) in table {
        let Some(row) = row_of(part) else {
            findings.error(PAGE, format!("its table of parts lacks {part}"));
            continue;
        };
        for other in *allowed {
            if row_of(other).is_some_and(|other| other > row) {
                findings.error(
                    PAGE,
                    format!("{part} may import {other}, which stands below it"),
                );
            }
        }
    }
}

/// The root files of all libraries and programs; those of tests, examples and benchmarks are no design.
fn roots(metadata: &Value, root: &Path) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_design = |target: &Value| {
        let kinds = list(&target["kind"]);
        kinds
            .iter()
            .any(|kind| matches!(kind.as_str(), Some("lib" | "rlib" | "bin")))
    };
    let packages = list(&metadata["packages"]);
    packages
        .iter()
        .flat_map(|package| list(&package["targets"]))
        .filter(is_design)
        .filter_map(|target| {
            let path = Path::new(target["src_path"].as_str()?);
            Some(path.strip_prefix(root).ok()?.to_str()?.to_owned())
        })
        .collect()
}

fn judge(root: &str, arrows: &Arrows, findings: &mut Findings) {
    for text in cycle_texts(arrows) {
        findings.error(root, format!("import cycle: {text}"));
    }
    if root == LIBRARY {
        judge_table(ARROWS, arrows, findings);
    }
}

fn judge_table(table: &[(&str, &[&str])], arrows: &Arrows, findings: &mut Findings) {
    let part = |name: &str| name.split("::").next().unwrap_or_default().to_owned();
    for (from, targets) in arrows {
        let own = part(from);
        let Some((_, allowed)) = table.iter().find(|(name, _)| *name == own) else {
            // The root shows what others have.
            if !own.is_empty() {
                findings.error(own, "is not in the table of arrows between modules");
            }
            continue;
        };
        for (to, place) in targets {
            let other = part(to);
            if other != own && !allowed.contains(&other.as_str()) {
                findings.error(
                    format!("{}:{}", place.file, place.line),
                    format!("{own} may not import {other}"),
                );
            }
        }
    }
}

impl Package {
    /// Finds parts that know how a peer is reached, though they stand above the endpoints.
    fn judge_seam(&self, excepted: &[&str], findings: &mut Findings) {
        for (name, module) in &self.modules {
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
        &self,
        excepted: &[&str],
        senses: &[(&str, &str, &str)],
        findings: &mut Findings,
    ) {
        for (name, module) in &self.modules {
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
    fn judge_names(&self, findings: &mut Findings) {
        let used = |part: &str, word: &str| {
            let of_part = self
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
            findings.error("xtask/src/tidy/modules.rs", what);
        }
    }

    /// Reads a package's modules, beginning with its root file.
    fn read(root: &str, texts: &HashMap<&str, &str>) -> Result<Self, String> {
        let mut package = Self::default();
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        package.read_module(String::new(), root, folder, texts)?;
        Ok(package)
    }

    fn read_module(
        &mut self,
        name: Name,
        file: &str,
        folder: &str,
        texts: &HashMap<&str, &str>,
    ) -> Result<(), String> {
        let text = texts
            .get(file)
            .ok_or_else(|| format!("{file} does not exist"))?;
        let parsed = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
        let mut reader = Reader {
            here: segments(&name),
            module: Module {
                file: file.to_owned(),
                ..Module::default()
            },
            children: Vec::new(),
        };
        reader.visit_file(&parsed);
        let Reader {
            module, children, ..
        } = reader;
        self.modules.insert(name.clone(), module);
        for (child, path) in children {
            let below = if name.is_empty() {
                child.clone()
            } else {
                format!("{name}::{child}")
            };
            let file = path.map_or_else(
                || format!("{folder}/{}.rs", below.replace("::", "/")),
                |path| format!("{folder}/{path}"),
            );
            // One that is made by the build has no file here.
            if texts.contains_key(file.as_str()) {
                self.read_module(below, &file, folder, texts)?;
            }
        }
        Ok(())
    }

    /// The module that a path leads to, through what others show.
    fn resolve(&self, path: &[String]) -> Option<Name> {
        let mut path = path.to_vec();
        for _ in 0..8 {
            let (name, module) = (0..=path.len()).rev().find_map(|len| {
                let name = path[..len].join("::");
                Some((name.clone(), self.modules.get(&name)?))
            })?;
            let depth = segments(&name).len();
            let shown = path.get(depth).and_then(|next| module.shows.get(next));
            let Some(shown) = shown else {
                return Some(name);
            };
            let rest = path[depth + 1..].to_vec();
            path = shown.iter().cloned().chain(rest).collect();
        }
        None
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (name, module) in &self.modules {
            let targets = arrows.entry(name.clone()).or_default();
            for (path, line) in &module.paths {
                let Some(target) = self.resolve(path) else {
                    continue;
                };
                let is_below =
                    target == *name || name.is_empty() || target.starts_with(&format!("{name}::"));
                // The root only shows what others have, and is above all of them.
                if is_below || target.is_empty() {
                    continue;
                }
                targets.entry(target).or_insert_with(|| Place {
                    file: module.file.clone(),
                    line: *line,
                });
            }
        }
        arrows
    }
}

fn segments(name: &str) -> Vec<String> {
    name.split("::")
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The cycles that [`cycles`] finds, with the place where each arrow is drawn.
pub(super) fn cycle_texts(arrows: &Arrows) -> Vec<String> {
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
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for start in arrows.keys() {
        if told.contains(start.as_str()) {
            continue;
        }
        if let Some(cycle) = shortest(arrows, start) {
            // What leads to this cycle and back is the same tangle: once is enough.
            for name in arrows.keys() {
                if reaches(arrows, start, name) && reaches(arrows, name, start) {
                    told.insert(name);
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
                    let mut at = name;
                    while at != start {
                        cycle.push(at.to_owned());
                        at = came_from[at];
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

    fn arrows(files: &[(&str, &str)]) -> Arrows {
        let texts: HashMap<&str, &str> = files.iter().copied().collect();
        let package = Package::read("src/lib.rs", &texts).expect("sources");
        package.arrows()
    }

    fn errors(files: &[(&str, &str)]) -> Vec<String> {
        let mut findings = Findings::default();
        judge("other/src/lib.rs", &arrows(files), &mut findings);
        findings.errors
    }

    #[test]
    fn a_cycle_is_told_with_its_places() {
        let found = errors(&[
            ("src/lib.rs", "mod a;\nmod b;\nmod c;"),
            ("src/a.rs", "use crate::b::B;"),
            ("src/b.rs", "\nfn f() { super::c::g() }"),
            (
                "src/c.rs",
                "macro_rules! m { () => {} }\nm!(x, crate::a::A);",
            ),
        ]);
        assert_eq!(
            found,
            [
                "other/src/lib.rs: import cycle: a -> b (src/a.rs:1) -> c (src/b.rs:2) -> a (src/c.rs:2)"
            ]
        );
    }

    #[test]
    fn what_a_parent_takes_from_its_children_is_no_arrow() {
        let files = [
            ("src/lib.rs", "mod a;"),
            (
                "src/a.rs",
                "mod b;\nuse b::B;\nuse self::b::C;\npub struct A;",
            ),
            ("src/a/b.rs", "use super::A;\npub struct B;"),
        ];
        assert_eq!(errors(&files), [""; 0]);
        assert!(arrows(&files)["a::b"].contains_key("a"));
    }

    #[test]
    fn tests_and_visibilities_import_nothing() {
        let found = errors(&[
            ("src/lib.rs", "mod a;\nmod b;"),
            (
                "src/a.rs",
                "#[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(all(test, unix))]\nuse crate::b::C;\n\
                 pub(in crate::b) struct A;",
            ),
            ("src/b.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn what_is_shown_elsewhere_leads_to_where_it_is() {
        let found = errors(&[
            ("src/lib.rs", "mod a;\nmod b;\npub use b::B;"),
            ("src/a.rs", "fn f(_: crate::B) {}"),
            ("src/b.rs", "mod deep { use super::super::a::f; }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a -> b"), "{found:?}");
    }

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
        let texts: HashMap<&str, &str> = files.into_iter().collect();
        let package = Package::read("src/lib.rs", &texts).expect("sources");
        let mut findings = Findings::default();
        package.judge_seam(&["endpoint"], &mut findings);
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
            ("src/endpoint.rs", "fn f(of: Own) { of.segment.bell() }"),
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
        let texts: HashMap<&str, &str> = files.into_iter().collect();
        let package = Package::read("src/lib.rs", &texts).expect("sources");
        let mut findings = Findings::default();
        package.judge_members(&["endpoint"], &[("coll", "segment", "")], &mut findings);
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

    #[test]
    fn the_page_has_a_part_below_what_it_imports() {
        let page = "| part | knows | never knows |\n| --- | --- | --- |\n| `a`, `b` | x | `c` |\n| `c` | y | - |\n";
        let found = |table: &[(&str, &[&str])]| {
            let mut findings = Findings::default();
            judge_page(page, table, &mut findings);
            findings.errors
        };
        assert_eq!(
            found(&[("a", &["b"]), ("b", &["a"]), ("c", &["a"])]),
            [""; 0]
        );
        assert_eq!(found(&[("a", &["c"])]).len(), 1);
        assert_eq!(found(&[("d", &[])]).len(), 1);
    }

    #[test]
    fn an_arrow_that_is_not_in_the_table_is_told() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;\nmod c;"),
            ("src/a.rs", "use crate::b::B;\nuse crate::c::C;"),
            ("src/b.rs", ""),
            ("src/c.rs", ""),
        ];
        let mut findings = Findings::default();
        let table: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &[])];
        judge_table(table, &arrows(&files), &mut findings);
        assert_eq!(
            findings.errors,
            [
                "src/a.rs:2: a may not import c",
                "c: is not in the table of arrows between modules"
            ]
        );
    }
}
