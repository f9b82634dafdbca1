// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library names no single layer: what it has to know of one, it asks the registry by capability.
//!
//! Tests may name layers, and comments too. The names are read from the registry, so that a new row is covered at once.

use proc_macro2::{TokenStream, TokenTree};

use super::{File, Findings, test_items};

/// The one place that names the layers.
const REGISTRY: &str = "btl/src/registry.rs";
/// Where nothing else does.
const LIBRARY: &str = "src/";

/// Names of layers that are words of their own, each with what else it means. They are found where they stand alone in
/// a text, and in the names of the layer's knobs. Those are what its row has, and what begins so.
const AMBIGUOUS: &[(&str, &str, &[&str])] = &[
    ("heap", "the memory that `alloc` gives", &[]),
    ("self", "the value of a method", &[]),
    ("tcp", "the protocol of sockets between nodes", &["tcp_"]),
];
/// What knobs begin with where they are variables of the environment.
const PREFIX: &str = "ONECOPY_";

/// Files that name a layer all the same, the word, and why: a format of a file, for instance. None does.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// The layers of the registry.
struct Names {
    variants: Vec<String>,
    names: Vec<String>,
    /// The knobs in their rows, as fields are called.
    knobs: Vec<String>,
}

pub(super) fn check(files: &[File], findings: &mut Findings) {
    let Some(registry) = files.iter().find(|file| file.path == REGISTRY) else {
        return findings.error(REGISTRY, "is not there: the layers have no registry");
    };
    let names = Names::read(&registry.text);
    if names.names.is_empty() || names.names.len() != names.variants.len() {
        return findings.error(REGISTRY, "has no rows that can be read");
    }
    let tests = tests(files);
    for file in files {
        let is_test = tests.iter().any(|test| is_within(&file.path, test));
        if file.path.starts_with(LIBRARY) && file.path.ends_with(".rs") && !is_test {
            match names.found(&file.text) {
                Ok(found) => report(file, found, findings),
                Err(why) => findings.error(&file.path, why),
            }
        }
    }
    for (path, word, _) in EXCEPTIONS {
        let needed = files.iter().any(|file| {
            file.path == *path
                && names
                    .found(&file.text)
                    .is_ok_and(|found| found.iter().any(|(_, named)| named == word))
        });
        if !needed {
            findings.error(path, format!("does not name {word}: it is no exception"));
        }
    }
}

fn report(file: &File, found: Vec<(usize, String)>, findings: &mut Findings) {
    for (line, word) in found {
        let excepted = |(path, named, _): &(&str, &str, &str)| *path == file.path && *named == word;
        if !EXCEPTIONS.iter().any(excepted) {
            let place = format!("{}:{line}", file.path);
            findings.error(
                place,
                format!("names the layer {word}; ask {REGISTRY} for what it can do"),
            );
        }
    }
}

/// The modules of the library that are for tests as a whole, each by its path without `.rs`.
fn tests(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(LIBRARY)) {
        let Some(path) = file.path.strip_suffix(".rs") else {
            continue;
        };
        let folder = path.strip_suffix("/lib").unwrap_or(path);
        let mut lines = file.text.lines().peekable();
        while let Some(line) = lines.next() {
            let next = lines.peek().and_then(|next| next.strip_suffix(';'));
            let module = next.and_then(|next| next.rsplit_once("mod "));
            if line == "#[cfg(test)]"
                && let Some((_, name)) = module
            {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    found
}

/// Whether a file is this module, or below it.
fn is_within(path: &str, module: &str) -> bool {
    let rest = path.strip_prefix(module);
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

impl Names {
    /// Reads the rows: `id: LayerId::X` and `name: "x"` in each.
    fn read(text: &str) -> Self {
        let after = |key: &str, end: &str| -> Vec<String> {
            let values = text.lines().filter_map(|line| {
                let value = line.strip_prefix("        ")?.strip_prefix(key)?;
                Some(value.strip_suffix(end)?.to_owned())
            });
            values.collect()
        };
        let knobs = text.match_indices("\"ONECOPY_").map(|(position, quote)| {
            let name = &text[position + quote.len()..];
            name.split('"').next().unwrap_or_default().to_lowercase()
        });
        Self {
            variants: after("id: LayerId::", ","),
            names: after("name: \"", "\","),
            knobs: knobs.collect(),
        }
    }

    /// The lines in which code names a layer, and which.
    fn found(&self, text: &str) -> Result<Vec<(usize, String)>, String> {
        let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
        let mut found = Vec::new();
        self.walk(tokens, &mut found);
        Ok(found)
    }

    fn walk(&self, tokens: TokenStream, found: &mut Vec<(usize, String)>) {
        let mut tokens = tokens.into_iter().peekable();
        // The last words of a path: `LayerId`, `:`, `:`.
        let mut path = 0;
        while let Some(token) = tokens.next() {
            let line = token.span().start().line;
            match token {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    // Among attributes are comments for documentation.
                    test_items::skip_attribute(&mut tokens);
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && path > 0 => path += 1,
                TokenTree::Ident(ident) => {
                    let ident = ident.to_string();
                    if path == 3 && self.variants.contains(&ident) {
                        found.push((line, ident.clone()));
                    } else if let Some(name) = self.in_words(&ident, true) {
                        found.push((line, name));
                    }
                    path = usize::from(ident == "LayerId");
                }
                TokenTree::Literal(literal) => {
                    path = 0;
                    let text = literal.to_string();
                    if let Some(name) = self.in_text(&text) {
                        found.push((line, name));
                    }
                }
                TokenTree::Group(group) => {
                    path = 0;
                    self.walk(group.stream(), found);
                }
                TokenTree::Punct(_) => path = 0,
            }
        }
    }

    /// The layer that is one of the words of a name, if it is no other word, or whose knob it names.
    fn in_words(&self, text: &str, is_field: bool) -> Option<String> {
        if let Some(knob) = self.knob_in(text, is_field) {
            return Some(knob);
        }
        let mut words = Vec::new();
        for part in text.split(|c: char| !c.is_alphanumeric()) {
            let mut word = String::new();
            for c in part.chars() {
                // `HeapLayer` has two words, `ONECOPY_CMA_MIN` three.
                if c.is_uppercase() && word.chars().any(char::is_lowercase) {
                    words.push(std::mem::take(&mut word));
                }
                word.push(c);
            }
            words.push(word);
        }
        let known = |word: &String| {
            let word = word.to_lowercase();
            let other = AMBIGUOUS.iter().any(|(name, ..)| *name == word);
            self.names.iter().find(|&name| *name == word && !other)
        };
        words.iter().find_map(known).cloned()
    }

    /// The knob of a layer that a text names: a field, or a variable of the environment.
    fn knob_in(&self, text: &str, is_field: bool) -> Option<String> {
        let mut begins = AMBIGUOUS.iter().flat_map(|(_, _, begins)| *begins);
        let mut is_knob = |name: &str| {
            self.knobs.iter().any(|knob| knob == name)
                || begins.any(|begin| name.starts_with(begin))
        };
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty());
        let found = words.find(|word| match word.strip_prefix(PREFIX) {
            Some(variable) => is_knob(&variable.to_lowercase()),
            None => is_field && is_knob(word),
        });
        found.map(str::to_owned)
    }

    /// The layer that a literal names.
    fn in_text(&self, literal: &str) -> Option<String> {
        let text = literal.trim_matches('"');
        let is_list = |text: &str| {
            text.split([',', '^'])
                .any(|name| self.names.contains(&name.to_owned()))
        };
        if literal.starts_with('"') && is_list(text) {
            return Some(text.to_owned());
        }
        self.in_words(text, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "pub const LAYERS: &[Layer] = &[\n    Layer {\n        id: LayerId::Own,\n        name: \"self\",\n    },\n    \
        Layer {\n        id: LayerId::Heap,\n        name: \"heap\",\n        min: knob(\"ONECOPY_HEAP_MIN\"),\n    },\n    Layer {\n        id: LayerId::Cma,\n        name: \"cma\",\n    },\n];\n";

    fn errors(body: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut findings = Findings::default();
        check(
            &[file(REGISTRY, ROWS), file("src/a.rs", body)],
            &mut findings,
        );
        findings.errors
    }

    #[test]
    fn a_layer_that_is_named_is_found() {
        for (body, word) in [
            ("fn f() { g(LayerId::Heap) }", "Heap"),
            ("fn f() -> u64 { t.cma_min }", "cma"),
            ("use onecopy_btl::cma::permit;", "cma"),
            ("struct CmaLink;", "cma"),
            ("fn f() -> bool { layers.allows(\"heap\") }", "heap"),
            ("const L: &str = \"heap,cma\";", "heap,cma"),
            ("const K: &str = \"ONECOPY_CMA_MIN\";", "cma"),
            ("fn f() {\n    h!(x.cma)\n}", "cma"),
            ("fn f() -> u64 { knobs.heap_min }", "heap_min"),
            (
                "const K: &str = \"set ONECOPY_HEAP_MIN\";",
                "ONECOPY_HEAP_MIN",
            ),
            ("fn f() -> u64 { knobs.tcp_piece }", "tcp_piece"),
            (
                "const K: &str = \"ONECOPY_TCP_PIECE\";",
                "ONECOPY_TCP_PIECE",
            ),
        ] {
            let found = errors(body);
            let what = format!("names the layer {word};");
            assert!(
                found.len() == 1 && found[0].contains(&what),
                "{body}: {found:?}"
            );
        }
    }

    #[test]
    fn capabilities_memory_comments_and_tests_are_in_order() {
        for body in [
            "fn f() { g(LayerId::MAP, LayerId::SINGLE) }",
            "fn f(&self) -> Option<HeapOffset> { self.range.heap }",
            "//! Like cma.\n/// As cma does.\nfn f() {} // cma",
            "const T: &str = \"a heap of memory\";",
            "fn f(s: TcpStream) -> u64 { knobs.heap_size }",
            "const T: &str = \"/proc/sys/net/ipv4/tcp_rmem and ONECOPY_HEAP_SIZE\";",
            "fn f() -> u64 { most(\"tcp_wmem\") }",
            "#[cfg(test)]\nmod tests {\n    fn f() { g(LayerId::Cma) }\n}",
            "#[cfg(test)]\nuse onecopy_btl::cma;\nfn schema() {}",
        ] {
            assert_eq!(errors(body), [""; 0], "{body}");
        }
    }

    #[test]
    fn a_module_that_is_for_tests_may_name_layers() {
        let found = |declared: &str, path: &str| {
            let file = |path: &str, text: &str| File {
                path: path.to_owned(),
                text: text.to_owned(),
            };
            let mut findings = Findings::default();
            let files = [
                file(REGISTRY, ROWS),
                file("src/lib.rs", declared),
                file(path, "fn f() { g(LayerId::Cma) }"),
            ];
            check(&files, &mut findings);
            findings.errors.len()
        };
        assert_eq!(found("#[cfg(test)]\nmod a;", "src/a.rs"), 0);
        assert_eq!(found("#[cfg(test)]\npub(crate) mod a;", "src/a/b.rs"), 0);
        assert_eq!(found("#[cfg(test)]\nmod a;", "src/ab.rs"), 1);
        assert_eq!(found("mod a;", "src/a.rs"), 1);
    }

    #[test]
    fn a_registry_that_cannot_be_read_is_an_error() {
        let mut findings = Findings::default();
        check(&[], &mut findings);
        assert_eq!(findings.errors.len(), 1);
    }
}
