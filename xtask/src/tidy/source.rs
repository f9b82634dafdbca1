// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules for one source file.

use super::{File, Findings};

const SPDX: &str = "// SPDX-License-Identifier: MIT OR Apache-2.0";
const WARN_LINES: usize = 600;
const FAIL_LINES: usize = 1000;
/// Columns of a comment that stands on lines of its own. A row of a table cannot be broken.
pub(super) const COMMENT_COLUMNS: usize = 120;

/// Files that may name the standard library's atomics.
const ATOMICS: &[&str] = &["btl/shm/src/sync.rs", "btl/obs/"];
/// Roots of packages without unsafe code.
const FORBIDS_UNSAFE: &[&str] = &[
    "src/lib.rs",
    "cli/bench/src/lib.rs",
    "cli/src/lib.rs",
    "cli/src/main.rs",
    "launch/src/lib.rs",
    "btl/obs/src/lib.rs",
    "vm-images/src/lib.rs",
    "xtask/src/main.rs",
];
/// Packages in which a module may opt in to unsafe code.
const MAY_ALLOW_UNSAFE: &[&str] = &[
    "btl/src/",
    "btl/shm/",
    "btl/cuda/",
    "btl/verbs/",
    "ebpf/",
    "heap/",
    "kmod/tests/",
    "mpi/src/",
    "sys/",
    // Dispositions of signals, for all tests.
    LIMIT,
];
/// The one place in which tests start processes.
const LIMIT: &str = "tests/harness/limit.rs";
/// Where tests start processes.
const PROCESS_TESTS: &[&str] = &[
    "tests/",
    "cli/tests/",
    "ebpf/tests/",
    "heap/tests/",
    "mpi/tests/",
];

pub(super) fn check(file: &File, findings: &mut Findings) {
    let path = file.path.as_str();
    if file.text.lines().next() != Some(SPDX) {
        findings.error(path, format!("does not begin with `{SPDX}`"));
    }
    if path.ends_with("/mod.rs") {
        findings.error(path, "mod.rs: name it after its folder, beside the folder");
    }
    let lines = file.text.lines().count();
    if lines > FAIL_LINES {
        findings.error(path, format!("{lines} lines; at most {FAIL_LINES}"));
    } else if lines > WARN_LINES {
        findings.warn(path, format!("{lines} lines; aim at {WARN_LINES}"));
    }
    for number in wide_comments(&file.text) {
        let place = format!("{path}:{number}");
        findings.error(
            place,
            format!("a comment of more than {COMMENT_COLUMNS} columns"),
        );
    }
    limits(file, findings);
    opt_ins(file, findings);
    for (number, code) in code_lines(&file.text) {
        line(path, number, code, findings);
    }
}

/// Whether a file permits unsafe code, or forbids it, as it should.
fn opt_ins(file: &File, findings: &mut Findings) {
    let path = file.path.as_str();
    if FORBIDS_UNSAFE.contains(&path) && !file.text.contains("#![forbid(unsafe_code)]") {
        findings.error(path, "does not forbid unsafe code");
    }
    let opts_in = code_lines(&file.text).any(|(_, code)| {
        code.contains(concat!("allow(", "unsafe_code"))
            || code.contains(concat!("expect(", "unsafe_code"))
    });
    if opts_in {
        if !MAY_ALLOW_UNSAFE
            .iter()
            .any(|allowed| path.starts_with(allowed))
        {
            findings.error(
                path,
                "opts in to unsafe code outside btl/, ebpf/, heap/, mpi/src/, sys/ and kmod/tests/",
            );
        } else if !file.text.contains("# Safety") {
            findings.error(
                path,
                "opts in to unsafe code without a `# Safety` paragraph",
            );
        }
    }
}

fn line(path: &str, number: usize, code: &str, findings: &mut Findings) {
    let place = format!("{path}:{number}");
    if path.starts_with("src/") && has_word(code, "unsafe") {
        findings.error(&place, "unsafe code in src/");
    }
    if code.contains(concat!("#[", "ignore")) {
        findings.error(&place, "an ignored test; a test runs or does not exist");
    }
    if !ATOMICS.iter().any(|allowed| path.starts_with(allowed)) && names_atomics(code) {
        findings.error(
            &place,
            "the standard library's atomics; use onecopy_shm::sync",
        );
    }
}

/// Lines with their numbers, without comments. A `//` in a string cuts the line too, which these rules can bear.
pub(super) fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| {
        let code = line.split_once("//").map_or(line, |(code, _)| code);
        (index + 1, code)
    })
}

fn names_atomics(code: &str) -> bool {
    let dense: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    ["std::sync::", "core::sync::"].iter().any(|root| {
        dense.match_indices(root).any(|(position, _)| {
            let rest = &dense[position + root.len()..];
            rest.starts_with("atomic") || (rest.starts_with('{') && rest.contains("atomic"))
        })
    })
}

/// Whether a word occurs that is no part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(position, _)| {
        !text[..position].ends_with(part) && !text[position + word.len()..].starts_with(part)
    })
}

/// What a test starts must have a limit that ends it, and the signals that it would have in a terminal.
fn limits(file: &File, findings: &mut Findings) {
    let path = file.path.as_str();
    if path == LIMIT || !PROCESS_TESTS.iter().any(|tests| path.starts_with(tests)) {
        return;
    }
    let commands = file.text.contains("Command");
    for (number, code) in code_lines(&file.text) {
        let starts = [concat!(".spa", "wn()"), concat!(".out", "put()")]
            .iter()
            .any(|call| code.contains(call));
        if starts || commands && code.contains(concat!(".sta", "tus()")) {
            let place = format!("{path}:{number}");
            findings.error(
                place,
                "starts a process without a limit; see tests/harness/limit.rs",
            );
        }
    }
    let jobs = file.text.matches(concat!("Job::", "new(")).count();
    for needed in [".timeout(", "usual_signals()"] {
        if file.text.matches(needed).count() < jobs {
            findings.error(
                path,
                format!("a job without `{needed}`; see tests/harness/limit.rs"),
            );
        }
    }
}

/// Numbers of the lines that hold nothing but a comment, and too much of it.
fn wide_comments(text: &str) -> impl Iterator<Item = usize> {
    let lines = text.lines().enumerate();
    lines.filter_map(|(index, line)| {
        let words = line.trim_start().strip_prefix("//")?;
        let words = words.trim_start_matches(['/', '!', ' ']);
        (line.chars().count() > COMMENT_COLUMNS && !words.starts_with('|')).then_some(index + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_comment_is_found_and_a_row_of_a_table_is_not() {
        let words = "word ".repeat(30);
        let text = format!(
            "//! {words}\nlet a = 1; // {words}\n    /// | {words}\n// short\n  // {words}\n"
        );
        assert_eq!(wide_comments(&text).collect::<Vec<_>>(), [1, 5]);
    }

    fn findings(path: &str, body: &str) -> Vec<String> {
        let mut findings = Findings::default();
        let file = File {
            path: path.to_owned(),
            text: format!("{SPDX}\n{body}"),
        };
        check(&file, &mut findings);
        findings.errors
    }

    #[test]
    fn a_plain_file_is_in_order() {
        assert_eq!(
            findings("src/a.rs", "// unsafe\n#![deny(unsafe_code)]\n"),
            [""; 0]
        );
    }

    #[test]
    fn unsafe_is_found_in_src_only() {
        let code = "fn f() { unsafe { g() } }\n";
        assert_eq!(
            findings("src/a.rs", code),
            ["src/a.rs:2: unsafe code in src/"]
        );
        assert_eq!(findings("btl/shm/src/a.rs", code), [""; 0]);
    }

    #[test]
    fn opting_in_needs_a_reason_and_a_place() {
        let code = concat!("#![allow(", "unsafe_code, reason = \"r\")]\n");
        assert_eq!(findings("btl/shm/src/a.rs", code).len(), 1);
        assert_eq!(findings("xtask/src/a.rs", code).len(), 1);
        let argued = format!("//! # Safety\n{code}");
        assert_eq!(findings("btl/shm/src/a.rs", &argued), [""; 0]);
    }

    #[test]
    fn a_test_that_starts_a_process_limits_it() {
        let spawns = concat!("let child = Command::new(\"x\").spa", "wn();\n");
        assert_eq!(findings("tests/a.rs", spawns).len(), 1);
        assert_eq!(findings("heap/tests/a.rs", spawns).len(), 1);
        assert_eq!(findings("src/a.rs", spawns), [""; 0]);
        assert_eq!(findings(LIMIT, spawns), [""; 0]);
        assert_eq!(
            findings("tests/a.rs", "let seen = request.status();\n"),
            [""; 0]
        );
        let job = concat!("let job = Job::", "new(\"x\", 2);\n");
        assert_eq!(findings("tests/a.rs", job).len(), 2);
        let limited = format!("usual_signals();\n{job}let job = job.timeout(limit());\n");
        assert_eq!(findings("tests/a.rs", &limited), [""; 0]);
    }

    #[test]
    fn atomics_are_found_however_they_are_written() {
        for code in [
            concat!("use std::sync::", "atomic::AtomicU32;\n"),
            concat!("use core :: sync :: ", "atomic;\n"),
            concat!("use std::", "sync::{Arc, atomic::Ordering};\n"),
        ] {
            assert_eq!(findings("src/a.rs", code).len(), 1, "{code}");
            assert_eq!(findings("btl/shm/src/sync.rs", code), [""; 0]);
        }
        assert_eq!(
            findings("src/a.rs", "use std::sync::{Arc, Mutex};\n"),
            [""; 0]
        );
        assert_eq!(
            findings("src/a.rs", "use onecopy_shm::sync::AtomicU32;\n"),
            [""; 0]
        );
    }

    #[test]
    fn headers_lengths_and_names_are_checked() {
        let mut found = Findings::default();
        let file = File {
            path: "src/a/mod.rs".to_owned(),
            text: "\n".repeat(1001),
        };
        check(&file, &mut found);
        assert_eq!(found.errors.len(), 3, "{:?}", found.errors);
        assert_eq!(findings("src/a.rs", concat!("#[", "ignore]\n")).len(), 1);
        assert_eq!(findings("src/lib.rs", "").len(), 1);
    }
}
