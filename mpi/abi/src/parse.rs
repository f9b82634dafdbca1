// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the tables are written.

use crate::{Constant, Constants, Operation, Parameter, Section};

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text:?}: {reason}")]
pub struct TableError {
    /// Its line.
    pub line: usize,
    /// The row.
    pub text: String,
    /// What is wrong.
    pub reason: &'static str,
}

fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn heading(row: &str) -> Option<(&str, &str)> {
    let (name, title) = row.strip_prefix('[')?.split_once(']')?;
    Some((name, title.trim()))
}

/// Reads a table of functions.
pub fn parse_functions(text: &str) -> Result<Vec<Section>, TableError> {
    let mut sections: Vec<Section> = Vec::new();
    for (line, row) in rows(text) {
        let error = |reason| TableError {
            line,
            text: row.to_owned(),
            reason,
        };
        if let Some((name, title)) = heading(row) {
            sections.push(Section {
                name: name.to_owned(),
                title: title.to_owned(),
                operations: Vec::new(),
            });
            continue;
        }
        let done = match row.as_bytes()[0] {
            b'+' => true,
            b'-' => false,
            _ => return Err(error("a row begins with + or -")),
        };
        let operation =
            signature(row[1..].trim(), done).ok_or_else(|| error("no `Name(parameters)`"))?;
        sections
            .last_mut()
            .ok_or_else(|| error("a row before the first section"))?
            .operations
            .push(operation);
    }
    Ok(sections)
}

/// Reads `Name(parameters)` or `Name(parameters) -> type`.
pub(crate) fn signature(text: &str, done: bool) -> Option<Operation> {
    let (name, rest) = text.split_once('(')?;
    let (inside, after) = rest.rsplit_once(')')?;
    let returns = after.trim().strip_prefix("->").map_or("int", str::trim);
    let parameters = inside
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(parameter)
        .collect::<Option<Vec<_>>>()?;
    Some(Operation {
        name: name.trim().to_owned(),
        done,
        returns: returns.to_owned(),
        parameters,
    })
}

fn parameter(text: &str) -> Option<Parameter> {
    if text == "..." {
        return Some(Parameter {
            base: "...".to_owned(),
            constant: false,
            depth: 0,
            name: String::new(),
            suffix: String::new(),
        });
    }
    let (constant, text) = text
        .strip_prefix("const ")
        .map_or((false, text), |rest| (true, rest));
    let (front, suffix) = text.find('[').map_or((text, ""), |at| text.split_at(at));
    let index = front.rfind(|c: char| !c.is_alphanumeric() && c != '_')?;
    let (kind, name) = front.split_at(index + 1);
    let stars = kind.matches('*').count();
    Some(Parameter {
        base: kind.trim_end_matches(['*', ' ']).trim().to_owned(),
        constant,
        depth: stars + suffix.matches('[').count(),
        name: name.to_owned(),
        suffix: suffix.to_owned(),
    })
}

/// Reads a table of constants.
pub fn parse_constants(text: &str) -> Result<Vec<Constants>, TableError> {
    let mut groups: Vec<Constants> = Vec::new();
    for (line, row) in rows(text) {
        let error = |reason| TableError {
            line,
            text: row.to_owned(),
            reason,
        };
        if let Some((kind, title)) = heading(row) {
            groups.push(Constants {
                kind: kind.to_owned(),
                title: title.to_owned(),
                rows: Vec::new(),
            });
            continue;
        }
        let mut words = row.split_whitespace();
        let (Some(name), Some(value)) = (words.next(), words.next()) else {
            return Err(error("no `NAME value`"));
        };
        groups
            .last_mut()
            .ok_or_else(|| error("a row before the first section"))?
            .rows
            .push(Constant {
                name: name.to_owned(),
                value: value.to_owned(),
                extra: words.next().map(str::to_owned),
            });
    }
    Ok(groups)
}

/// A callback type: its signature, or the name that it stands for.
pub(crate) enum Callback {
    Function(Operation),
    Second { name: String, first: String },
}

pub(crate) fn callbacks(text: &str) -> Result<Vec<Callback>, TableError> {
    rows(text)
        .map(|(line, row)| {
            let parsed = match row.split_once(" = ") {
                Some((name, first)) => Some(Callback::Second {
                    name: name.to_owned(),
                    first: first.to_owned(),
                }),
                None => signature(row, true).map(Callback::Function),
            };
            parsed.ok_or(TableError {
                line,
                text: row.to_owned(),
                reason: "no `Name(parameters) -> type`",
            })
        })
        .collect()
}
