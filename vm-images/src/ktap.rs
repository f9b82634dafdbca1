// SPDX-License-Identifier: MIT OR Apache-2.0
//! KTAP, in which KUnit says how its tests went.

/// What a log says of KUnit's tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ktap {
    /// Cases that passed.
    pub passed: u32,
    /// Cases that were left out.
    pub skipped: u32,
    /// Cases that failed.
    pub failed: Vec<String>,
}

impl Ktap {
    /// Reads the lines of a kernel log; other lines in between do not matter.
    ///
    /// A suite's own line repeats what its cases said, so only lines deeper than the outermost count.
    #[must_use]
    pub fn parse(log: &str) -> Self {
        let mut ktap = Self::default();
        for line in log.lines() {
            let text = without_stamp(line);
            let depth = text.len() - text.trim_start_matches(' ').len();
            let text = text.trim();
            if depth == 0 {
                continue;
            }
            let (good, rest) = match (text.strip_prefix("ok "), text.strip_prefix("not ok ")) {
                (Some(rest), _) => (true, rest),
                (_, Some(rest)) => (false, rest),
                _ => continue,
            };
            let Some((number, name)) = rest.split_once(' ') else {
                continue;
            };
            if number.parse::<u32>().is_err() {
                continue;
            }
            let name = name.trim_start_matches("- ");
            match (good, name.contains("# SKIP")) {
                (true, true) => ktap.skipped += 1,
                (true, false) => ktap.passed += 1,
                (false, _) => ktap.failed.push(name.to_owned()),
            }
        }
        ktap
    }
}

/// A line without the kernel's time stamp.
fn without_stamp(line: &str) -> &str {
    let line = line.trim_end_matches(['\r', '\n']);
    let Some(rest) = line.trim_start().strip_prefix('[') else {
        return line;
    };
    match rest.split_once("] ") {
        Some((stamp, text)) if stamp.trim().starts_with(|c: char| c.is_ascii_digit()) => text,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_counted_and_suites_are_not() {
        let log = "[   17.1]     # Subtest: onecopy_ids\n\
            [   17.100000]     1..3\n\
            [   17.200000]     ok 1 - ids_are_positive\n\
            onecopy: something else\n\
            [   17.300000]     not ok 2 - ids_differ\n\
            [   17.300000]     ok 3 - ids_wrap # SKIP no room\n\
            [   17.400000] not ok 1 - onecopy_ids\n";
        assert_eq!(
            Ktap::parse(log),
            Ktap {
                passed: 1,
                skipped: 1,
                failed: vec!["ids_differ".to_owned()]
            }
        );
    }

    #[test]
    fn the_newer_form_without_dashes_is_read() {
        let log = "KTAP version 1\n1..1\n    KTAP version 1\n    ok 1 a\n    ok 2 b\nok 1 suite\n";
        assert_eq!(Ktap::parse(log).passed, 2);
    }

    #[test]
    fn other_words_do_not_count() {
        assert_eq!(
            Ktap::parse("  ok then\n  ok 1\nok 1 - suite\n"),
            Ktap::default()
        );
    }
}
