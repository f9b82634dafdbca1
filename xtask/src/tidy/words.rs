// SPDX-License-Identifier: MIT OR Apache-2.0
//! What no file of the repository may mention: places and papers that only those who write it have. And words that
//! leave open who acts.

use super::{File, Findings};

/// Patterns, in pieces so that this file does not contain them. Upper and lower case are the same.
const FORBIDDEN: &[(&[&str], &str)] = &[
    (&["../", "shared"], "a folder outside the repository"),
    (&["/wo", "rk/"], "a folder of one machine"),
    (&["DESIGN", ".md"], "a page that is not here"),
    (&["design/", "style"], "a page that is not here"),
    (&["facts/", "performance"], "a page that is not here"),
    (&["seed ", "document"], "a page that is not here"),
    (&["this ", "session"], "how the text was written"),
    (&["previous ", "session"], "how the text was written"),
    (&["earlier ", "session"], "how the text was written"),
    (&["next ", "session"], "how the text was written"),
    (&["another ", "session"], "how the text was written"),
    (&["sub", "agent"], "how the text was written"),
    (&["sub-", "agent"], "how the text was written"),
    (&["ai ", "agent"], "how the text was written"),
    (&["coding ", "agent"], "how the text was written"),
    (&["language ", "model"], "how the text was written"),
    (&["an", "thropic"], "how the text was written"),
    (&["cl", "aude"], "how the text was written"),
    (&["chat", "gpt"], "how the text was written"),
    (&["the ", "brief says"], "how the text was written"),
    (&["issue ", "#"], "a number that means nothing here"),
    (&["arti", "factory"], "a registry"),
    (&["index.crates", ".io"], "a registry"),
    (&["static.crates", ".io"], "a registry"),
    (&["[source", "."], "a registry"),
];

/// Words that make the reader guess a subject, which the sentence can name. Pages that record the past may have them.
const VAGUE: &[(&[&str], &str)] = &[(&["who", "ever"], "name the task, the rank or the caller")];

/// Pages that record the past, and keep its words.
const RECORDS: &[&str] = &["CHANGELOG.md", "docs/performance.md"];

/// Hosts that a link may point to.
const HOSTS: &[&str] = &[
    "apache.org",
    "doc.rust-lang.org",
    "docs.kernel.org",
    "docs.rs",
    "git.kernel.org",
    "github.com",
    "lwn.net",
    "man7.org",
    "opensource.org",
    "rustup.rs",
    "spdx.org",
    "www.apache.org",
    "www.kernel.org",
    "www.mpi-forum.org",
    "www.w3.org",
];

pub(super) fn check(file: &File, findings: &mut Findings) {
    if file.path == "Cargo.lock" {
        return;
    }
    let vague = match RECORDS.contains(&file.path.as_str()) {
        true => &[],
        false => VAGUE,
    };
    for (index, line) in file.text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (pieces, what) in FORBIDDEN.iter().chain(vague) {
            let pattern = pieces.concat().to_lowercase();
            if contains(&lower, &pattern) {
                let place = format!("{}:{}", file.path, index + 1);
                findings.error(place, format!("'{pattern}': {what}"));
            }
        }
        for host in hosts(&lower) {
            // `.example` is nobody's, for examples.
            if !HOSTS.contains(&host) && !host.ends_with(".example") {
                let place = format!("{}:{}", file.path, index + 1);
                findings.error(place, format!("a link to {host}, which is not in the list"));
            }
        }
    }
}

/// Whether the pattern occurs; one that begins with a letter must begin a word.
fn contains(line: &str, pattern: &str) -> bool {
    let starts_with_letter = pattern.starts_with(char::is_alphabetic);
    line.match_indices(pattern).any(|(position, _)| {
        !starts_with_letter
            || !line[..position].ends_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

/// The hosts of the links in a line.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("://").filter_map(|(position, mark)| {
        if !line[..position].ends_with("http") && !line[..position].ends_with("https") {
            return None;
        }
        let rest = &line[position + mark.len()..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-'))
            .unwrap_or(rest.len());
        let host = rest[..end].trim_end_matches('.');
        (!host.is_empty()).then_some(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> usize {
        errors_in("a.md", text)
    }

    fn errors_in(path: &str, text: &str) -> usize {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut findings = Findings::default();
        check(&file, &mut findings);
        findings.errors.len()
    }

    #[test]
    fn each_pattern_is_found() {
        for (pieces, _) in FORBIDDEN.iter().chain(VAGUE) {
            let pattern = pieces.concat();
            assert_eq!(errors(&format!("see {pattern}1 now")), 1, "{pattern}");
        }
    }

    #[test]
    fn records_of_the_past_keep_their_words() {
        let vague = VAGUE[0].0.concat();
        for path in RECORDS {
            assert_eq!(errors_in(path, &vague), 0, "{path}");
            assert_eq!(errors_in(path, &FORBIDDEN[0].0.concat()), 1, "{path}");
        }
    }

    #[test]
    fn what_only_looks_alike_is_not() {
        for text in [
            "the session leader calls setsid",
            "ssh-agent",
            "a useragent",
            "network/work",
            "issue a fence",
            "shared memory",
        ] {
            assert_eq!(errors(text), 0, "{text}");
        }
    }

    #[test]
    fn links_point_to_known_places() {
        assert_eq!(
            errors("see https://docs.kernel.org/x and http://www.w3.org/2000/svg"),
            0
        );
        assert_eq!(errors(concat!("see https", "://example.com/x")), 1);
    }
}
