// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sentences of pages and comments have few words. Tables, headings and blocks of code are no sentences.

use std::borrow::Cow;

use super::{File, Findings};

/// Words that a sentence may have.
const MOST: usize = 25;
/// Words that end with a point and end no sentence.
const SHORT: &[&str] = &["e.g.", "i.e.", "etc.", "cf.", "vs.", "no."];

pub(super) fn check(file: &File, findings: &mut Findings) {
    let page = if file.path.ends_with(".md") {
        Cow::Borrowed(&file.text)
    } else if file.path.ends_with(".rs") {
        Cow::Owned(comments(&file.text))
    } else {
        return;
    };
    for (line, text) in paragraphs(&page) {
        for (count, begin) in long(&text) {
            findings.error(
                format!("{}:{line}", file.path),
                format!("a sentence of {count} words, more than {MOST}: '{begin} …'"),
            );
        }
    }
}

/// What the comments of a source file say, each line where it stands; the code is left out.
fn comments(source: &str) -> String {
    let text = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
        // The line of the licence is no sentence.
        let comment = if comment.contains("SPDX-") {
            ""
        } else {
            comment
        };
        let text = comment.strip_prefix(['/', '!']).unwrap_or(comment);
        format!("{text}\n")
    };
    source.lines().map(text).collect()
}

/// The paragraphs and the items of lists, each with the line on which it begins.
fn paragraphs(page: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut in_comment, mut goes_on) = (false, false, false);
    for (number, line) in (1..).zip(page.lines()) {
        let text = line.trim();
        let fence = text.starts_with("```");
        in_comment |= text.starts_with("<!--");
        let apart = fence || in_code || in_comment || text.is_empty();
        let apart = apart || text.starts_with(['|', '#']);
        in_code ^= fence;
        in_comment &= !text.contains("-->");
        if apart {
            goes_on = false;
            continue;
        }
        let item = item(text);
        match found.last_mut() {
            Some((_, before)) if goes_on && item.is_none() => {
                before.push(' ');
                before.push_str(text);
            }
            _ => found.push((number, item.unwrap_or(text).to_owned())),
        }
        goes_on = true;
    }
    found
}

/// What stands behind the mark of an item.
fn item(text: &str) -> Option<&str> {
    let (mark, rest) = text.split_once(' ')?;
    let number = mark.strip_suffix('.').is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    (matches!(mark, "-" | "*") || number).then_some(rest)
}

/// The sentences of a paragraph that are too long: how many words, and the first ones.
fn long(paragraph: &str) -> Vec<(usize, String)> {
    let text = plain(paragraph);
    let mut found = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    let mut end = |words: &mut Vec<&str>| {
        if words.len() > MOST {
            found.push((words.len(), words[..6].join(" ")));
        }
        words.clear();
    };
    for word in text.split_whitespace() {
        // Figures and names of functions are no words, nor are dashes.
        let is_name = word.contains('_') && !word.starts_with('_');
        let first = word.chars().find(|c| c.is_alphanumeric());
        if first.is_some_and(char::is_alphabetic) && !is_name {
            words.push(word);
        }
        let bare = word.trim_end_matches(['"', '\'', ')', '*', '_', '†']);
        if bare.ends_with(['.', '!', '?']) && !SHORT.contains(&bare) {
            end(&mut words);
        }
    }
    end(&mut words);
    found
}

/// The text with one word for each piece of code, and without the targets of links.
fn plain(paragraph: &str) -> String {
    let mut text = String::new();
    for (position, part) in paragraph.split('`').enumerate() {
        text.push_str(if position % 2 == 0 { part } else { "code" });
    }
    while let Some(begin) = text.find("](") {
        let end = text[begin..]
            .find(')')
            .map_or(text.len(), |end| begin + end + 1);
        text.replace_range(begin..end, "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(page: &str) -> Vec<String> {
        let file = File {
            path: "docs/a.md".to_owned(),
            text: page.to_owned(),
        };
        let mut findings = Findings::default();
        check(&file, &mut findings);
        findings.errors
    }

    fn sentence(words: usize) -> String {
        "word ".repeat(words - 1) + "end."
    }

    #[test]
    fn comments_of_a_source_are_judged_and_its_code_is_not() {
        let source = format!(
            "// SPDX-License-Identifier: MIT\n//! {}\nlet a = {};\n    /// {}\n",
            sentence(25),
            "b + ".repeat(30),
            sentence(26)
        );
        let file = File {
            path: "src/a.rs".to_owned(),
            text: source,
        };
        let mut findings = Findings::default();
        check(&file, &mut findings);
        assert_eq!(findings.errors.len(), 1);
        assert!(findings.errors[0].starts_with("src/a.rs:4: a sentence of 26"));
    }

    #[test]
    fn a_long_sentence_is_found_where_its_paragraph_begins() {
        let page = format!(
            "# Title\n\n{} {}\n",
            sentence(3),
            sentence(26).replace("word word", "word\nword")
        );
        let found = errors(&page);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("docs/a.md:3: a sentence of 26 words"),
            "{found:?}"
        );
        assert_eq!(errors(&format!("- {}", sentence(26))).len(), 1);
        assert_eq!(errors(&format!("7. {}", sentence(26))).len(), 1);
    }

    #[test]
    fn tables_code_comments_and_names_do_not_count() {
        let long = sentence(30);
        for page in [
            format!("{} {}", sentence(25), sentence(25)),
            format!("- {}\n- {}", sentence(20), sentence(20)),
            format!("{}\n\n{}", "word ".repeat(20), "word ".repeat(20)),
            format!("| {long} |"),
            format!("```text\n{long}\n```"),
            format!("<!-- {long}\n{long} -->"),
            format!("`{long}`, and [{}]({long})", "word ".repeat(10)),
            "MPI_Send, MPI_Recv, ".repeat(20),
            "4 KiB 0.8 (1.2), ".repeat(20),
            format!("({}) {}", sentence(20), sentence(20)),
        ] {
            assert_eq!(errors(&page), [""; 0], "{page}");
        }
        assert_eq!(
            errors(&format!(
                "{} e.g. {}",
                "word ".repeat(15),
                "word ".repeat(15)
            ))
            .len(),
            1
        );
    }
}
