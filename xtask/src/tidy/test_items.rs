// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands behind `#[cfg(test)]`: rules for the library do not hold there.

use std::iter::Peekable;
use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Words by which an item begins, as opposed to a field, a variant or an arm.
const ITEMS: [&str; 13] = [
    "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct", "trait", "type",
    "union", "use",
];

/// The lines of what is there for tests alone, each with its attribute.
pub(super) fn lines(text: &str) -> Result<Vec<RangeInclusive<usize>>, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
    let mut found = Vec::new();
    collect(tokens, &mut found);
    Ok(found)
}

fn collect(tokens: TokenStream, found: &mut Vec<RangeInclusive<usize>>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                if let Some(end) = skip_attribute(&mut tokens) {
                    found.push(mark.span().start().line..=end);
                }
            }
            TokenTree::Group(group) => collect(group.stream(), found),
            _ => {}
        }
    }
}

/// Passes over the attribute whose `#` was read. Where it says that what follows is for tests alone, passes over that,
/// too, and gives its last line.
pub(super) fn skip_attribute(
    tokens: &mut Peekable<impl Iterator<Item = TokenTree>>,
) -> Option<usize> {
    let is_inner = |next: &TokenTree| matches!(next, TokenTree::Punct(_));
    let inner = tokens.next_if(is_inner);
    let attribute = tokens.next_if(|next| matches!(next, TokenTree::Group(_)))?;
    let TokenTree::Group(attribute) = attribute else {
        return None;
    };
    let meta = syn::parse2(attribute.stream());
    let is_test = inner.is_none() && meta.is_ok_and(|meta| is_test(&meta));
    is_test.then(|| skip_item(tokens, attribute.span_close().end().line))
}

/// Whether an attribute says that what follows is for tests alone: `cfg(test)`, or that and more.
pub(super) fn is_test(meta: &syn::Meta) -> bool {
    type All = syn::punctuated::Punctuated<syn::Meta, syn::Token![,]>;
    fn asks(meta: &syn::Meta) -> bool {
        meta.path().is_ident("test")
            || matches!(meta, syn::Meta::List(list) if list.path.is_ident("all")
                && list.parse_args_with(All::parse_terminated).is_ok_and(|all| all.iter().any(asks)))
    }
    matches!(meta, syn::Meta::List(list) if list.path.is_ident("cfg")
        && list.parse_args::<syn::Meta>().is_ok_and(|meta| asks(&meta)))
}

/// Passes over an item, or over a field, a variant or an arm; its last line.
fn skip_item(tokens: impl Iterator<Item = TokenTree>, mut line: usize) -> usize {
    let (mut is_item, mut has_type) = (false, false);
    for token in tokens {
        line = token.span().end().line;
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            TokenTree::Punct(mark) if mark.as_char() == ';' => break,
            TokenTree::Punct(mark) if mark.as_char() == ',' && !is_item => break,
            // In a field's type such words begin no item.
            TokenTree::Punct(mark) if mark.as_char() == ':' => has_type = true,
            TokenTree::Ident(word) if !has_type => is_item |= ITEMS.contains(&&*word.to_string()),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_tests_ends_where_it_ends() {
        for (text, expected) in [
            ("a();\n#[cfg(test)]\nmod tests {\n}\nb();", vec![2..=4]),
            ("#[cfg(test)]\nuse a::B;\nb();", vec![1..=2]),
            (
                "#[cfg(test)]\n#[inline]\nfn f<A, B>(\n) {\n}\nb();",
                vec![1..=5],
            ),
            (
                "impl A {\n#[cfg(test)]\nfn f() {}\nfn g() {}\n}",
                vec![2..=3],
            ),
            ("struct A {\n#[cfg(test)]\na: u8,\nb: u8,\n}", vec![2..=3]),
            (
                "struct A {\n#[cfg(test)]\na: &'static str,\nb: fn(u8),\n}",
                vec![2..=3],
            ),
            ("#[cfg(all(test, unix))]\nfn f() {}\nb();", vec![1..=2]),
            (
                "#[cfg(not(test))]\nfn f() {}\n// #[cfg(test)]\nfn g() {}",
                vec![],
            ),
            (
                "#[cfg(test)] fn f() {}\n#[cfg(test)] fn g() {}",
                vec![1..=1, 2..=2],
            ),
        ] {
            assert_eq!(lines(text).as_deref(), Ok(&*expected), "{text}");
        }
        assert!(lines("fn f() {").is_err());
    }
}
