// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which part of the library may import which, and the table in ARCHITECTURE.md that says so.

use super::super::Findings;
use super::super::arrows::{PAGE, rows};
use super::super::cycles::Arrows;

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
            "select", "state", "wireup",
        ],
    ),
    ("wait", &["coll", "endpoint", "request"]),
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
            "coll", "comm", "error", "handle", "machine", "memory", "select", "tune", "wireup",
        ],
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
    ("fuzzing", &["matching", "proof", "records", "wireup"]),
];

/// Compares the table of parts in ARCHITECTURE.md with the arrows: a part may import what stands above it, or beside.
pub(in crate::tidy) fn check_page(page: &str, findings: &mut Findings) {
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

/// Finds arrows that are not in the table.
pub(super) fn judge(arrows: &Arrows, findings: &mut Findings) {
    judge_table(ARROWS, arrows, findings);
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

#[cfg(test)]
mod tests {
    use super::super::package::Package;
    use super::*;

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
        let package = Package::read("src/lib.rs", &files.into()).expect("sources");
        let mut findings = Findings::default();
        let table: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &[])];
        judge_table(table, &package.arrows(), &mut findings);
        assert_eq!(
            findings.errors,
            [
                "src/a.rs:2: a may not import c",
                "c: is not in the table of arrows between modules"
            ]
        );
    }
}
