// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares what a Rust crate declares with what its C header declares. Included by the crates' tests.
//!
//! The header is read for its names, and a C compiler says what they mean. So a name that is in one of the two
//! languages only is found as well as one that differs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;

#[path = "c_program.rs"]
mod c_program;

/// Everything declared: what it is, and its value or place.
#[derive(Default)]
pub(crate) struct Abi(pub(crate) BTreeMap<String, String>);

/// A constant's value in the form that the C side prints.
pub(crate) trait Value {
    fn text(&self) -> String;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
numbers!(u8, u32, u64, i32);

impl Value for &str {
    fn text(&self) -> String {
        format!("\"{self}\"")
    }
}

/// Constants by name.
macro_rules! constants {
    ($abi:ident: $($name:ident),* $(,)?) => {$(
        $abi.0.insert(concat!("constant ", stringify!($name)).to_owned(), layout::Value::text(&$name));
    )*};
}
pub(crate) use constants;

/// Other names of types.
#[allow(unused_macros, reason = "a header need not have any")]
macro_rules! aliases {
    ($abi:ident: $($name:ident),* $(,)?) => {$(
        let kind = layout::kind(std::any::type_name::<$name>());
        $abi.0.insert(concat!("type ", stringify!($name)).to_owned(), kind);
    )*};
}
#[allow(unused_imports, reason = "a header need not have any")]
pub(crate) use aliases;

/// Structures with all their members.
macro_rules! structs {
    ($abi:ident: $($name:ident { $($member:ident),* $(,)? })*) => {$(
        let value = $name::default();
        $abi.0.insert(
            concat!("struct ", stringify!($name)).to_owned(),
            format!("size {} align {}", size_of::<$name>(), align_of::<$name>()),
        );
        $(
            $abi.0.insert(
                concat!("member ", stringify!($name), ".", stringify!($member)).to_owned(),
                format!(
                    "offset {} size {} {}",
                    std::mem::offset_of!($name, $member),
                    size_of_val(&value.$member),
                    layout::kind(std::any::type_name_of_val(&value.$member)),
                ),
            );
        )*
        // Names every member, so that one which the list above lacks does not compile.
        let $name { $($member: _),* } = value;
    )*};
}
pub(crate) use structs;

/// A Rust type's name in the form that the C side prints: of arrays only what they are made of.
pub(crate) fn kind(name: &str) -> String {
    match name.strip_prefix('[').and_then(|rest| rest.split_once(';')) {
        Some((element, _)) => format!("{element}*"),
        None => name.to_owned(),
    }
}

/// Fails with a list of all differences between the crate and `kmod/include/uapi/NAME`.
pub(crate) fn compare(name: &str, rust: &Abi) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kmod/include/uapi");
    let header = std::fs::read_to_string(folder.join(name)).expect("the header can be read");
    let program = program(name, &header);
    let flags = ["-std=c11", "-Wall", "-Werror", "-I"].map(OsStr::new);
    let flags: Vec<&OsStr> = flags.into_iter().chain([folder.as_os_str()]).collect();
    let printed = c_program::output_of(name, &program, &flags);
    let c: BTreeMap<String, String> = printed
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(what, is)| (what.to_owned(), is.to_owned()))
        .collect();
    assert!(
        c.len() > 10,
        "only {} declarations found in {name}",
        c.len()
    );
    let mut differences = String::new();
    for (what, is) in &c {
        match rust.0.get(what) {
            None => writeln!(differences, "{what} is not in the crate"),
            Some(ours) if ours != is => {
                writeln!(differences, "{what}: {is} in C, {ours} in Rust")
            }
            Some(_) => Ok(()),
        }
        .expect("a string takes text");
    }
    for what in rust.0.keys().filter(|what| !c.contains_key(*what)) {
        writeln!(differences, "{what} is not in the header").expect("a string takes text");
    }
    assert!(differences.is_empty(), "{name}:\n{differences}");
}

/// A C program that prints everything the header declares.
fn program(name: &str, header: &str) -> String {
    // A definition may go on in the next line.
    let text = without_comments(header).replace("\\\n", " ");
    let mut prints = String::new();
    let mut structure: Option<String> = None;
    for line in text.lines().map(str::trim) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let printed = match (&structure, words.as_slice()) {
            (_, ["#define", guard]) if guard.ends_with("_H") => continue,
            (_, ["#define", constant, _, ..]) => {
                assert!(!constant.contains('('), "teach this test: {line}");
                format!("CONSTANT({constant});")
            }
            (None, ["typedef", .., alias]) => format!("ALIAS({});", alias.trim_end_matches(';')),
            (None, ["struct", tag, "{"]) => {
                structure = Some((*tag).to_owned());
                format!("STRUCT({tag});")
            }
            (Some(_), ["};"]) => {
                structure = None;
                continue;
            }
            (Some(tag), [_, member]) => {
                let member = member.trim_end_matches(';');
                let member = member.split('[').next().unwrap_or(member);
                format!("MEMBER({tag}, {member});")
            }
            (None, [] | ["#ifndef" | "#endif" | "#include", ..]) | (Some(_), []) => continue,
            _ => panic!("teach this test: {line}"),
        };
        writeln!(prints, "\t{printed}").expect("a string takes text");
    }
    assert!(structure.is_none(), "{name}: a struct without its end");
    format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{name}\"\n{PRINTERS}int main(void)\n{{\n{prints}\treturn 0;\n}}\n"
    )
}

const PRINTERS: &str = r#"
static void text(const char *name, const char *value) { printf("constant %s = \"%s\"\n", name, value); }
static void number(const char *name, unsigned long long value) { printf("constant %s = %llu\n", name, value); }
#define KIND(x) _Generic((x), __u8: "u8", __s8: "i8", __u16: "u16", __s16: "i16", __u32: "u32", __s32: "i32", __u64: "u64", \
	__s64: "i64", __u8 *: "u8*", __u32 *: "u32*", __u64 *: "u64*", default: "a type that this test does not know")
#define CONSTANT(x) _Generic((x), char *: text, default: number)(#x, x)
#define ALIAS(x) printf("type " #x " = %s\n", KIND((x)0))
#define STRUCT(s) printf("struct " #s " = size %zu align %zu\n", sizeof(struct s), _Alignof(struct s))
#define MEMBER(s, m) printf("member " #s "." #m " = offset %zu size %zu %s\n", offsetof(struct s, m), \
	sizeof(((struct s *)0)->m), KIND(((struct s *)0)->m))
"#;

fn without_comments(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, after)) = rest.split_once("/*") {
        text.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    text
}
