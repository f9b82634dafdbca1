// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sentences of pages and comments have few words. Tables, headings and blocks of code are no sentences.

use super::{File, Findings};

/// Words that a sentence may have.
const MOST: usize = 25;
/// Words that end with a point and end no sentence.
const SHORT: &[&str] = &["e.g.", "i.e.", "etc.", "cf.", "vs.", "no."];

pub(super) fn check(file: &File, findings: &mut Findings) {
    for (first, text) in texts(file) {
        for (line, paragraph) in paragraphs(&text) {
            for (count, begin) in long(&paragraph) {
                findings.error(
                    format!("{}:{}", file.path, first + line - 1),
                    format!("a sentence of {count} words, more than {MOST}: '{begin} …'"),
                );
            }
        }
    }
}

/// What a file says in words: each text with the line on which it begins.
fn texts(file: &File) -> Vec<(usize, String)> {
    match file.path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("md") => vec![(1, file.text.clone())],
        Some("rs") => vec![(1, comments(&file.text))],
        Some("c" | "h") => c_comments(&file.text),
        _ => Vec::new(),
    }
}

/// What the comments of a source file say, each line where it stands; the code is left out.
fn comments(source: &str) -> String {
    let text = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
        let text = comment.strip_prefix(['/', '!']).unwrap_or(comment);
        format!("{}\n", without_licence(text))
    };
    source.lines().map(text).collect()
}

/// The line of the licence is no sentence.
fn without_licence(line: &str) -> &str {
    if line.contains("SPDX-") { "" } else { line }
}

/// The comments of a source file in C, each with the line on which it begins. Lines that have nothing but a comment
/// behind `//` are one comment together.
fn c_comments(source: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut rest, mut line, mut is_alone) = (source, 1, true);
    // The line on which a comment behind `//` would belong to the last one.
    let mut goes_on = 0;
    while !rest.is_empty() {
        let length = if let Some(comment) = rest.strip_prefix("//") {
            let text = comment.lines().next().unwrap_or_default();
            match found.last_mut() {
                Some((_, before)) if is_alone && goes_on == line => {
                    before.push('\n');
                    before.push_str(without_licence(text));
                }
                _ => found.push((line, without_licence(text).to_owned())),
            }
            goes_on = if is_alone { line + 1 } else { 0 };
            2 + text.len()
        } else if let Some(comment) = rest.strip_prefix("/*") {
            let length = comment.find("*/").unwrap_or(comment.len());
            found.push((line, unframed(&comment[..length])));
            rest.len().min(length + 4)
        } else if rest.starts_with(['"', '\'']) {
            literal(rest)
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        let passed;
        (passed, rest) = rest.split_at(length);
        line += passed.matches('\n').count();
        let last = passed.rsplit('\n').next().unwrap_or_default();
        is_alone = (is_alone || passed.contains('\n')) && last.trim().is_empty();
    }
    found
}

/// What a comment between `/*` and `*/` says, without the asterisks at the beginnings of its lines.
fn unframed(comment: &str) -> String {
    let lines = comment.lines().map(|line| {
        let text = line.trim_start().trim_start_matches('*');
        without_licence(text)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// How long the string or character is with which a text begins. None goes beyond its line.
fn literal(text: &str) -> usize {
    let mut escaped = false;
    for (position, c) in text.char_indices().skip(1) {
        if c == '\n' {
            return position;
        }
        if !escaped && text.starts_with(c) {
            return position + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
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

/// What stands behind the mark of an item, or behind the name of a member or parameter in a comment for kernel-doc.
fn item(text: &str) -> Option<&str> {
    let (mark, rest) = text.split_once(char::is_whitespace)?;
    let number = mark.strip_suffix('.').is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let member = mark.starts_with('@') && mark.ends_with(':');
    (matches!(mark, "-" | "*") || number || member).then_some(rest)
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
        errors_in("docs/a.md", page)
    }

    fn errors_in(path: &str, text: &str) -> Vec<String> {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
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
        let found = errors_in("src/a.rs", &source);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("src/a.rs:4: a sentence of 26"));
    }

    #[test]
    fn comments_of_a_source_in_c_are_judged_where_they_begin() {
        let (fits, long) = (sentence(25), sentence(26));
        for (text, line) in [
            (format!("/* {long} */"), 1),
            (format!("int a;\n\n/*\n * {fits}\n *\n * {long}\n */\n"), 6),
            (format!("\tint a; /* {long} */\n"), 1),
            (format!("int a;\n// {long}\n"), 2),
            (format!("// a,\n// {fits}\n"), 1),
            (format!("/*\n * a,\n * {fits}\n */\n"), 2),
            (format!("/**\n * @a: b\n * @c: {long}\n */\n"), 3),
            (format!("char a = '\"';\n/* {long} */"), 2),
            (format!("char *a = \"\\\\\"; // {long}"), 1),
            (format!("#error don't\n/* {long} */"), 2),
            // A comment that does not end.
            (format!("/* {long}"), 1),
        ] {
            for path in ["a.c", "a.h", "a.bpf.c"] {
                let found = errors_in(path, &text);
                assert_eq!(found.len(), 1, "{text}: {found:?}");
                let place = format!("{path}:{line}: a sentence of 26");
                assert!(found[0].starts_with(&place), "{text}: {found:?}");
            }
        }
    }

    #[test]
    fn each_comment_of_a_source_in_c_is_a_paragraph_of_its_own() {
        let fits = "word ".repeat(20);
        let members = format!("/**\n * struct a - {fits}\n * @b: {fits}\n * @c:\t{fits}\n");
        for text in [
            format!("// SPDX-License-Identifier: MIT {fits}\n// {fits}\n"),
            format!("/* SPDX-License-Identifier: MIT {fits} */\n/* {fits} */\n"),
            format!("/* {fits} */\n/* {fits} */\n"),
            format!("int a; /* {fits} */\nint b; /* {fits} */\n"),
            format!("int a; // {fits}\nint b; // {fits}\n"),
            format!("int a; // {fits}\n// {fits}\n"),
            format!("// {fits}\n\n// {fits}\n"),
            format!("{members} *\n * Return: {fits}\n */\n"),
            format!("/*\n * {fits}\n * - {fits}\n * - {fits}\n */\n"),
            format!("\"/* {fits} {fits} */\";"),
            format!("\"\\\"// {fits} {fits}\";"),
            format!("int a = {};", "b + ".repeat(30)),
            String::new(),
        ] {
            assert_eq!(errors_in("kmod/a.h", &text), [""; 0], "{text}");
        }
        assert_eq!(errors_in("a.txt", &sentence(26)), [""; 0]);
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
