// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which file of the kernel module takes what from which: no cycle between files.
//!
//! An arrow is drawn from a file that names a function or a variable to the file that defines it. A callback that a
//! lower file gets as an argument, or in a table, has no name there and draws none. Nor does what headers do inline.

use std::collections::{BTreeMap, HashMap};

use super::cycles::{self, ArrowSite, Arrows};
use super::{File, Findings};

/// The folder of the module. Folders below it are programs and libraries of their own.
const FOLDER: &str = "kmod/";

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let sources = files.iter().filter_map(|file| {
        let name = file.path.strip_prefix(FOLDER)?;
        let is_source = name.ends_with(".c") && !name.contains('/');
        is_source.then_some((name, file.text.as_str()))
    });
    for text in cycles::texts(&arrows(sources)) {
        findings.error(FOLDER, format!("call cycle: {text}"));
    }
}

/// A word or a sign of a source, with its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

impl Token<'_> {
    fn is_word(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    }
}

fn arrows<'a>(sources: impl Iterator<Item = (&'a str, &'a str)>) -> Arrows {
    let sources: Vec<(&str, Vec<Token<'_>>)> =
        sources.map(|(name, text)| (name, tokens(text))).collect();
    let mut home: HashMap<&str, &str> = HashMap::new();
    for (file, tokens) in &sources {
        for name in defined(tokens) {
            home.insert(name, file);
        }
    }
    let mut arrows = Arrows::new();
    for (file, tokens) in &sources {
        let targets: &mut BTreeMap<_, _> = arrows.entry((*file).to_owned()).or_default();
        for (name, line) in used(tokens) {
            let Some(target) = home.get(name).filter(|target| *target != file) else {
                continue;
            };
            targets
                .entry((*target).to_owned())
                .or_insert_with(|| ArrowSite {
                    file: format!("{FOLDER}{file}, {name}"),
                    line,
                });
        }
    }
    arrows
}

/// Words and signs, without comments, strings and what is for the preprocessor alone.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut position, mut line, mut is_first) = (0, 1, true);
    while position < bytes.len() {
        let start = position;
        match bytes[position] {
            b'\n' => position += 1,
            byte if byte.is_ascii_whitespace() => {
                position += 1;
                continue;
            }
            b'#' if is_first => position = end_of_line(bytes, position),
            b'/' if bytes.get(position + 1) == Some(&b'/') => {
                position = end_of_line(bytes, position)
            }
            b'/' if bytes.get(position + 1) == Some(&b'*') => {
                position = text[position + 2..]
                    .find("*/")
                    .map_or(bytes.len(), |length| position + length + 4);
            }
            quote @ (b'"' | b'\'') => {
                position += 1;
                while position < bytes.len() && bytes[position] != quote {
                    position += 1 + usize::from(bytes[position] == b'\\');
                }
                position += 1;
            }
            byte if byte.is_ascii_alphanumeric() || byte == b'_' => {
                while position < bytes.len()
                    && (bytes[position].is_ascii_alphanumeric() || bytes[position] == b'_')
                {
                    position += 1;
                }
                let text = &text[start..position];
                found.push(Token { text, line });
            }
            b'-' if bytes.get(position + 1) == Some(&b'>') => {
                position += 2;
                let text = &text[start..position];
                found.push(Token { text, line });
            }
            byte => {
                position += 1;
                if byte.is_ascii() {
                    let text = &text[start..position];
                    found.push(Token { text, line });
                }
            }
        }
        position = position.min(bytes.len());
        let lines = bytes[start..position]
            .iter()
            .filter(|&&b| b == b'\n')
            .count();
        line += lines;
        is_first = bytes[position - 1] == b'\n';
    }
    found
}

/// The end of a line, which goes on after a `\` at its end.
fn end_of_line(bytes: &[u8], mut position: usize) -> usize {
    while position < bytes.len() && (bytes[position] != b'\n' || bytes[position - 1] == b'\\') {
        position += 1;
    }
    (position + 1).min(bytes.len())
}

/// The functions and variables that a source defines for others, too.
fn defined<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut head: Vec<Token<'a>> = Vec::new();
    let mut rest = tokens.iter().copied();
    while let Some(token) = rest.next() {
        match token.text {
            "{" => {
                skip_block(&mut rest);
                if let Some(name) = function(&head) {
                    found.push(name);
                    head.clear();
                } else if head.iter().any(|token| token.text == "(") {
                    // A function of the file's own.
                    head.clear();
                }
            }
            "=" => {
                found.extend(variable(&head));
                head.clear();
                // Up to the end of the value.
                while let Some(token) = rest.next() {
                    match token.text {
                        "{" => skip_block(&mut rest),
                        ";" => break,
                        _ => {}
                    }
                }
            }
            ";" => {
                found.extend(variable(&head));
                head.clear();
            }
            _ => head.push(token),
        }
    }
    found
}

fn skip_block<'a>(rest: &mut impl Iterator<Item = Token<'a>>) {
    let mut depth = 1;
    while depth > 0 {
        match rest.next().map(|token| token.text) {
            Some("{") => depth += 1,
            Some("}") => depth -= 1,
            Some(_) => {}
            None => return,
        }
    }
}

/// The words that make a definition the file's own affair, or none.
const PRIVATE: &[&str] = &["static", "extern", "typedef"];

fn is_private(head: &[Token<'_>]) -> bool {
    head.iter().any(|token| PRIVATE.contains(&token.text))
}

/// Of `int f(int a)` the name; of `m(a, b)`, which uses a macro, none.
fn function<'a>(head: &[Token<'a>]) -> Option<&'a str> {
    let open = head.iter().position(|token| token.text == "(")?;
    let name = head.get(open.checked_sub(1)?)?;
    (open > 1 && name.is_word() && !is_private(head)).then_some(name.text)
}

/// Of `const struct s v`, `int *v` and `int v[N]` the name; of `struct s` and of prototypes none.
fn variable<'a>(head: &[Token<'a>]) -> Option<&'a str> {
    let end = head
        .iter()
        .position(|token| token.text == "[")
        .unwrap_or(head.len());
    let head = &head[..end];
    let words = head.iter().filter(|token| token.is_word()).count();
    let tag = matches!(head.first()?.text, "struct" | "union" | "enum");
    let calls = head.iter().any(|token| token.text == "(");
    let name = head.last()?;
    (!calls && !is_private(head) && name.is_word() && words > 1 + usize::from(tag))
        .then_some(name.text)
}

/// The names that a source has, without members and tags.
fn used<'a>(tokens: &[Token<'a>]) -> impl Iterator<Item = (&'a str, usize)> {
    let before = std::iter::once("").chain(tokens.iter().map(|token| token.text));
    before
        .zip(tokens)
        .filter(|(before, token)| {
            token.is_word() && !matches!(*before, "." | "->" | "struct" | "union" | "enum")
        })
        .map(|(_, token)| (token.text, token.line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        cycles::texts(&arrows(files.iter().copied()))
    }

    fn names(text: &str) -> Vec<&str> {
        defined(&tokens(text))
    }

    #[test]
    fn a_cycle_is_told_with_its_names_and_places() {
        let found = cycles(&[
            ("a.c", "int a(void)\n{\n\treturn b();\n}\n"),
            ("b.c", "int b(void)\n{\n\treturn c[0];\n}\n"),
            (
                "c.c",
                "const int c[2] = { 1, 2 };\n\nlong d(void)\n{\n\treturn a();\n}\n",
            ),
        ]);
        assert_eq!(
            found,
            ["a.c -> b.c (kmod/a.c, b:3) -> c.c (kmod/b.c, c:3) -> a.c (kmod/c.c, a:5)"]
        );
    }

    #[test]
    fn what_is_static_a_member_a_tag_or_told_in_words_draws_no_arrow() {
        let found = cycles(&[
            (
                "a.c",
                "static int helper(void)\n{\n\treturn 0;\n}\nint a(void)\n{\n\treturn b();\n}\n",
            ),
            (
                "b.c",
                "/* calls a() */\n#include \"a\"\n#define X \\\n\ta()\nint b(void)\n{\n\tstruct a x;\n\treturn helper() + x.a + y->a + f(\"a\\\"\", 'a');\n}\n",
            ),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn definitions_are_told_from_declarations() {
        let text = "struct s;\nstruct s { int member; };\nenum { ONE };\nextern int e;\nint prototype(int a);\n\
                    struct s *made(int a)\n{\n\tint local = 1;\n\tif (a) {\n\t}\n\treturn 0;\n}\n\
                    static const struct s own = { .member = 1 };\nbool flag = true;\nlong gauge[ONE];\n\
                    const struct s table = {\n\t.member = 2,\n};\nmodule_param(flag, bool, 0644);\nstruct s *pointer;\n";
        assert_eq!(names(text), ["made", "flag", "gauge", "table", "pointer"]);
    }

    #[test]
    fn a_callback_draws_no_arrow() {
        let found = cycles(&[
            ("low.c", "void each(void (*show)(int))\n{\n\tshow(1);\n}\n"),
            (
                "high.c",
                "void show_one(int n)\n{\n}\nvoid all(void)\n{\n\teach(show_one);\n}\n",
            ),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
