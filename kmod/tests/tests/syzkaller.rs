// SPDX-License-Identifier: MIT OR Apache-2.0
//! The syzlang descriptions name what the C headers declare, and nothing that they do not.

use std::collections::BTreeMap;
use std::path::Path;

/// Structures with the names of their members.
type Structures = BTreeMap<String, Vec<String>>;

/// What the module maps for readers; no call takes it.
const NOT_AN_ARGUMENT: &[&str] = &["onecopy_generation"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The structures of a C header, and its ioctl commands.
fn of_header(text: &str) -> (Structures, Vec<String>) {
    let mut structures = Structures::new();
    let mut commands = Vec::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&current, words.as_slice()) {
            (None, ["struct", name, "{"]) => {
                structures.insert((*name).to_owned(), Vec::new());
                current = Some((*name).to_owned());
            }
            (Some(_), ["};", ..]) => current = None,
            (Some(name), [kind, member, ..]) if kind.starts_with("__") || kind.ends_with("_t") => {
                let member = member.split([';', '[']).next().unwrap_or(member);
                structures
                    .entry(name.clone())
                    .or_default()
                    .push(member.to_owned());
            }
            (None, ["#define", name, value, ..]) if value.starts_with("_IO") => {
                commands.push((*name).to_owned())
            }
            _ => {}
        }
    }
    (structures, commands)
}

/// The structures of a description.
fn of_description(text: &str) -> Structures {
    let mut structures = Structures::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&current, words.as_slice()) {
            (None, [name, "{"]) => {
                structures.insert((*name).to_owned(), Vec::new());
                current = Some((*name).to_owned());
            }
            (Some(_), ["}"]) => current = None,
            (Some(name), [member, ..]) => {
                structures
                    .entry(name.clone())
                    .or_default()
                    .push((*member).to_owned());
            }
            _ => {}
        }
    }
    structures
}

#[test]
fn the_descriptions_are_whole() {
    for device in ["onecopy", "xpmem", "knem"] {
        let (structures, commands) = of_header(&read(&format!("../include/uapi/{device}.h")));
        let text = read(&format!("syzkaller/dev_{device}.txt"));
        let described = of_description(&text);
        assert!(commands.len() >= 8, "{device}: {commands:?}");
        for command in &commands {
            let call = format!("const[{command}]");
            assert!(text.contains(&call), "{device}: no call of {command}");
        }
        for (name, members) in &structures {
            if NOT_AN_ARGUMENT.contains(&name.as_str()) {
                continue;
            }
            assert_eq!(described.get(name), Some(members), "{device}: {name}");
        }
        for (name, members) in &described {
            let known = structures.get(name).or_else(|| {
                // A variant of a structure: the same members with other values.
                let base = structures
                    .keys()
                    .find(|other| name.starts_with(&format!("{other}_")))?;
                structures.get(base)
            });
            assert_eq!(
                known,
                Some(members),
                "{device}: {name} is not in the header"
            );
        }
    }
}
