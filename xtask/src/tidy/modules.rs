// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which module imports which: no cycle in any package, and in the library only the arrows of a table.
//!
//! A module and those below it are one part of the design. So what a parent takes from its children draws no arrow;
//! what a child takes from its parent does. A call of a method that another module gives to the same type draws one,
//! too. Tests draw none.

mod package;
mod parts;
mod reader;
mod seam;

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::cycles::{self, Arrows};
use super::{File, Findings};
use package::Package;
pub(super) use parts::check_page;

/// The library, whose arrows are a table.
const LIBRARY: &str = "src/lib.rs";

pub(super) fn check(metadata: &Value, root: &Path, files: &[File], findings: &mut Findings) {
    let texts: HashMap<&str, &str> = files
        .iter()
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    for root in roots(metadata, root) {
        match Package::read(&root, &texts) {
            Ok(package) => {
                let arrows = package.arrows();
                judge_cycles(&root, &arrows, findings);
                seam::judge(&root, &package, findings);
                if root == LIBRARY {
                    parts::judge(&arrows, findings);
                    seam::judge_tables(&package, findings);
                }
            }
            Err(why) => findings.error(root, why),
        }
    }
}

fn judge_cycles(root: &str, arrows: &Arrows, findings: &mut Findings) {
    for text in cycles::texts(arrows) {
        findings.error(root, format!("cycle of modules: {text}"));
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
        judge_cycles("other/src/lib.rs", &arrows(files), &mut findings);
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
                "other/src/lib.rs: cycle of modules: a -> b (src/a.rs:1) -> c (src/b.rs:2) -> a (src/c.rs:2)"
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
    fn methods_of_one_type_draw_arrows_between_their_modules() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;\nmod t;"),
            ("src/t.rs", "pub struct T;\nimpl T { pub fn t(&self) {} }"),
            (
                "src/a.rs",
                "use crate::t::T;\nimpl T {\npub fn a(&self) { self.b() }\n}",
            ),
            (
                "src/b.rs",
                "use crate::t::T;\nimpl T {\npub fn b(&self) { self.t() }\nfn c() { Self::a() }\n}",
            ),
        ];
        assert_eq!(
            errors(&files),
            ["other/src/lib.rs: cycle of modules: a -> b (src/a.rs:3) -> a (src/b.rs:4)"]
        );
        // What two types of one name have is not told apart.
        let mut twice = files.to_vec();
        twice.push(("src/t/u.rs", "struct T;\nimpl T { fn a(&self) {} }"));
        twice[1].1 = "mod u;\npub struct T;";
        assert_eq!(errors(&twice), [""; 0]);
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
}
