// SPDX-License-Identifier: MIT OR Apache-2.0
//! Labels of synchronisation: each is released at one place and acquired somewhere.
//!
//! The form is `// SYNC` + `(ring.publish): release what it publishes`, and the same label with `acquire` at the other
//! end.

use std::collections::BTreeMap;

use super::{File, Findings};

const MARK: &str = concat!("// ", "SYNC(");

#[derive(Default)]
struct Sites {
    release: Vec<String>,
    acquire: Vec<String>,
}

pub(super) fn check<'a>(files: impl Iterator<Item = &'a File>, findings: &mut Findings) {
    let mut labels: BTreeMap<&str, Sites> = BTreeMap::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let place = format!("{}:{}", file.path, index + 1);
            let Some((_, rest)) = line.split_once(MARK) else {
                continue;
            };
            let Some((label, role)) = rest.split_once("):") else {
                findings.error(place, "a SYNC label without `):`");
                continue;
            };
            if label.is_empty() || !label.chars().all(is_label) {
                findings.error(place, format!("'{label}' is no label: a-z, 0-9, '.', '_'"));
                continue;
            }
            let sites = labels.entry(label).or_default();
            let role = role.trim_start();
            match role.split(|c: char| !c.is_alphanumeric()).next() {
                Some("release") => sites.release.push(place),
                Some("acquire") => sites.acquire.push(place),
                _ => findings.error(place, "a SYNC label is followed by release or acquire"),
            }
        }
    }
    for (label, sites) in labels {
        let first = sites.release.first().or(sites.acquire.first());
        let place = first.map_or("", String::as_str);
        match sites.release.len() {
            0 => findings.error(
                place,
                format!("SYNC label {label} is acquired, never released"),
            ),
            1 => {}
            _ => {
                let places = sites.release.join(", ");
                findings.error(place, format!("SYNC label {label} is released at {places}"));
            }
        }
        if sites.acquire.is_empty() && !sites.release.is_empty() {
            findings.error(
                place,
                format!("SYNC label {label} is released, never acquired"),
            );
        }
    }
}

fn is_label(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(lines: &[&str]) -> Vec<String> {
        let text: Vec<String> = lines
            .iter()
            .map(|line| format!("    x(); {MARK}{line}"))
            .collect();
        let file = File {
            path: "a.rs".to_owned(),
            text: text.join("\n"),
        };
        let mut findings = Findings::default();
        check(std::iter::once(&file), &mut findings);
        findings.errors
    }

    #[test]
    fn a_pair_is_in_order() {
        assert_eq!(
            errors(&[
                "a.b): release the slot",
                "a.b): acquire it",
                "a.b): acquire"
            ]),
            [""; 0]
        );
    }

    #[test]
    fn each_end_is_needed_and_release_is_unique() {
        assert_eq!(
            errors(&["a): release"]),
            ["a.rs:1: SYNC label a is released, never acquired"]
        );
        assert_eq!(
            errors(&["a): acquire"]),
            ["a.rs:1: SYNC label a is acquired, never released"]
        );
        assert_eq!(
            errors(&["a): release", "a): release", "a): acquire"]),
            ["a.rs:1: SYNC label a is released at a.rs:1, a.rs:2"]
        );
    }

    #[test]
    fn malformed_labels_are_named() {
        assert_eq!(errors(&["a: release"]).len(), 1);
        assert_eq!(errors(&["A b): release"]).len(), 1);
        assert_eq!(
            errors(&["a): fence", "a): release", "a): acquire"]).len(),
            1
        );
    }
}
