// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that pages and comments name are there.
//!
//! A name in backticks with the ending of a source file names a file here, if it holds a slash or is one of Rust. It
//! begins at the root or at any folder below it. `proto/plan.rs` is found as `src/proto/plan.rs`. Names with capitals
//! stand for any, as `src/NAME.rs`.

use super::{File, Findings};

/// How names of files end that pages speak of.
const ENDINGS: [&str; 7] = [".rs", ".c", ".h", ".md", ".toml", ".txt", ".sh"];

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let there = |name: &str| {
        let below = format!("/{name}");
        files
            .iter()
            .any(|file| file.path == name || file.path.ends_with(&below))
    };
    for file in files {
        let is_page = file.path.ends_with(".md");
        if !is_page && !file.path.ends_with(".rs") {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            let text = match line.trim_start().strip_prefix("//") {
                Some(comment) => comment,
                None if is_page => line,
                None => continue,
            };
            for name in names(text).filter(|name| !there(name)) {
                let place = format!("{}:{}", file.path, number + 1);
                findings.error(place, format!("names {name}, which is not there"));
            }
        }
    }
}

/// The names of files in a line of text, `{a,b}` spelt out.
fn names(text: &str) -> impl Iterator<Item = String> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| is_file(name)).flat_map(spelt_out)
}

fn is_file(name: &str) -> bool {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "/._-{},".contains(c);
    (name.contains('/') || name.ends_with(".rs"))
        && !name.starts_with(['/', '.'])
        && ENDINGS.iter().any(|ending| name.ends_with(ending))
        && name.chars().all(known)
}

fn spelt_out(name: &str) -> Vec<String> {
    let parts = name
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (choices, after))) => choices
            .split(',')
            .map(|choice| format!("{before}{choice}{after}"))
            .collect(),
        None => vec![name.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_found_in_text() {
        let text = "see `src/{wait,wire}.rs` and `proto/plan.rs`, `a.rs`, not `src/NAME.rs`, `/dev/x.c`, `a.c` or `b/c`";
        let found: Vec<_> = names(text).collect();
        assert_eq!(
            found,
            ["src/wait.rs", "src/wire.rs", "proto/plan.rs", "a.rs"]
        );
    }

    #[test]
    fn a_name_without_a_file_is_an_error() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file(
                "src/proto/plan.rs",
                "//! `proto/gone.rs`\nlet a = \"`x/y.rs`\";\n",
            ),
            file("README.md", "`proto/plan.rs`\n`plans/plan.rs`\n"),
        ];
        let mut findings = Findings::default();
        check(&files, &mut findings);
        let errors = findings.errors.join("\n");
        assert_eq!(
            errors,
            "src/proto/plan.rs:1: names proto/gone.rs, which is not there\n\
             README.md:2: names plans/plan.rs, which is not there"
        );
    }
}
