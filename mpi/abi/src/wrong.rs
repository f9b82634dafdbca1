// SPDX-License-Identifier: MIT OR Apache-2.0
//! A C program that calls every function of the table with each argument wrong in turn.
//!
//! What a wrong argument is stands in `wrong.txt`, by kinds of parameters. So a new function of the
//! table is called with wrong arguments as soon as it is implemented. One whose parameters are of
//! no known kind stops the generator.

use crate::{Form, Operation, Parameter, Section, TableError, sections};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

#[derive(Debug, Clone, Default)]
struct Kind {
    name: String,
    patterns: Vec<Pattern>,
    valid: String,
    wrong: Vec<WrongArgument>,
}

#[derive(Debug, Clone, Default)]
struct Pattern {
    constant: bool,
    kind: String,
    names: Vec<String>,
    sections: Vec<String>,
    beside: Option<String>,
}

/// An argument that is not as it should be, and the classes of which it must raise one; none if it
/// may as well do.
#[derive(Debug, Clone)]
struct WrongArgument {
    value: String,
    classes: Vec<String>,
}

#[derive(Debug, Clone, Default)]
struct Special {
    before: Vec<String>,
    after: Vec<String>,
    valid: BTreeMap<String, String>,
    kinds: BTreeMap<String, String>,
    wrong: Vec<(String, WrongArgument)>,
    refused: Vec<String>,
    keeps: bool,
    skip: Option<String>,
}

#[derive(Debug, Default)]
struct Rules {
    kinds: Vec<Kind>,
    calls: BTreeMap<String, Special>,
}

/// The program, and what it tries.
#[derive(Debug, Default)]
pub struct Program {
    /// The text in C.
    pub text: String,
    /// Functions that it calls.
    pub functions: usize,
    /// Their parameters.
    pub parameters: usize,
    /// Calls, those with valid arguments only included.
    pub calls: usize,
    /// Implemented functions that it leaves out, and why.
    pub excused: Vec<(String, String)>,
}

fn wrong_of(text: &str, must: bool) -> Option<WrongArgument> {
    if !must {
        return Some(WrongArgument {
            value: text.trim().to_owned(),
            classes: Vec::new(),
        });
    }
    let (value, classes) = text.rsplit_once(" : ")?;
    Some(WrongArgument {
        value: value.trim().to_owned(),
        classes: classes.split_whitespace().map(str::to_owned).collect(),
    })
}

fn pattern(text: &str) -> Option<Pattern> {
    let mut words = text.split_whitespace();
    let kind = words.next()?;
    let mut pattern = Pattern {
        constant: kind.starts_with("const"),
        kind: kind.trim_start_matches("const").to_owned(),
        ..Pattern::default()
    };
    for word in words {
        if let Some(section) = word.strip_prefix('@') {
            pattern.sections.push(section.to_owned());
        } else if let Some(name) = word.strip_prefix('&') {
            pattern.beside = Some(name.to_owned());
        } else {
            pattern.names.push(word.to_owned());
        }
    }
    Some(pattern)
}

impl Special {
    fn item(&mut self, item: &str) -> Option<()> {
        if let Some(statement) = item.strip_prefix("+ ") {
            self.before.push(statement.to_owned());
        } else if let Some(statement) = item.strip_prefix("- ") {
            self.after.push(statement.to_owned());
        } else if let Some(reason) = item.strip_prefix("skip ") {
            self.skip = Some(reason.to_owned());
        } else if item == "keeps" {
            self.keeps = true;
        } else if let Some(classes) = item.strip_prefix("refused ") {
            self.refused = classes.split_whitespace().map(str::to_owned).collect();
        } else {
            let (name, rest) = item.split_once(' ')?;
            let (sign, rest) = rest.split_once(' ')?;
            let name = name.to_owned();
            match sign {
                "=" => drop(self.valid.insert(name, rest.to_owned())),
                ":" => drop(self.kinds.insert(name, rest.to_owned())),
                "!" | "?" => self.wrong.push((name, wrong_of(rest, sign == "!")?)),
                _ => return None,
            }
        }
        Some(())
    }
}

fn rules(text: &str) -> Result<Rules, TableError> {
    let mut rules = Rules::default();
    let mut in_calls = false;
    for (index, line) in text.lines().enumerate() {
        let row = line.trim();
        if row.is_empty() || row.starts_with('#') {
            continue;
        }
        let error = |reason| TableError {
            line: index + 1,
            text: row.to_owned(),
            reason,
        };
        if row == "[calls]" {
            in_calls = true;
        } else if let Some(name) = row.strip_prefix("[kind ") {
            rules.kinds.push(Kind {
                name: name.trim_end_matches(']').to_owned(),
                ..Kind::default()
            });
        } else if in_calls {
            let mut parts = row.split(" | ").map(str::trim);
            let name = parts.next().unwrap_or_default();
            let special = rules.calls.entry(name.to_owned()).or_default();
            for part in parts {
                special.item(part).ok_or_else(|| error("no such item"))?;
            }
        } else {
            let kind = rules.kinds.last_mut();
            let kind = kind.ok_or_else(|| error("a row before the first kind"))?;
            let (sign, rest) = row.split_once(' ').ok_or_else(|| error("no `SIGN text`"))?;
            match sign {
                "for" => kind
                    .patterns
                    .push(pattern(rest).ok_or_else(|| error("no type"))?),
                "=" => rest.clone_into(&mut kind.valid),
                "!" | "?" => {
                    let wrong = wrong_of(rest, sign == "!");
                    kind.wrong.push(wrong.ok_or_else(|| error("no classes"))?);
                }
                _ => return Err(error("a row begins with for, =, ! or ?")),
            }
        }
    }
    Ok(rules)
}

impl Rules {
    fn kind(&self, section: &str, operation: &Operation, parameter: &Parameter) -> Option<&Kind> {
        let special = self.calls.get(&operation.name);
        if let Some(name) = special.and_then(|special| special.kinds.get(&parameter.name)) {
            return self.kinds.iter().find(|kind| kind.name == *name);
        }
        let stars = "*".repeat(parameter.depth);
        let spelled = format!("{}{stars}", parameter.base);
        let is_match = |pattern: &Pattern| {
            let names = &pattern.names;
            let sections = &pattern.sections;
            pattern.kind == spelled
                && (!pattern.constant || parameter.constant)
                && (names.is_empty() || names.contains(&parameter.name))
                && (sections.is_empty() || sections.iter().any(|name| name == section))
                && pattern.beside.as_ref().is_none_or(|beside| {
                    operation
                        .parameters
                        .iter()
                        .any(|other| other.name == *beside)
                })
        };
        self.kinds
            .iter()
            .find(|kind| kind.patterns.iter().any(is_match))
    }
}

fn classes(names: &[String]) -> String {
    if names.is_empty() {
        return "0".to_owned();
    }
    let bits: Vec<String> = names.iter().map(|name| format!("CLASS({name})")).collect();
    bits.join(" | ")
}

fn into(result: std::fmt::Result) -> Result<(), String> {
    result.map_err(|error| error.to_string())
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// Which of the two objects of a name is of a parameter's type.
fn width(parameter: &Parameter, form: Form) -> &'static str {
    match parameter.base_in(form) {
        "int" | "MPI_User_function" => "_i",
        _ => "_l",
    }
}

/// The declaration of a variable that can be the argument.
fn variable(parameter: &Parameter, form: Form) -> String {
    if parameter.suffix == "[][3]" {
        return format!("int (*{})[3]", parameter.name);
    }
    let plain = Parameter {
        suffix: String::new(),
        ..parameter.clone()
    };
    plain.declaration(form)
}

/// A function of the standard, in one of its forms.
struct Signature<'c> {
    operation: &'c Operation,
    form: Form,
    special: &'c Special,
    /// Whether it returns an error class; others have none to return.
    returns_class: bool,
}

impl Signature<'_> {
    fn name(&self) -> String {
        format!("MPI_{}", self.operation.symbol(self.form))
    }

    /// Declares the arguments, valid, and sets one of them to a wrong value in each case. Gives the number of calls.
    fn write_arguments(
        &self,
        rules: &Rules,
        section: &Section,
        setup: &mut String,
        cases: &mut String,
    ) -> Result<usize, String> {
        let &Self {
            operation,
            form,
            special,
            returns_class,
        } = self;
        let name = self.name();
        let mut count = 1;
        for parameter in &operation.parameters {
            let kind = rules.kind(&section.name, operation, parameter);
            let kind = kind.ok_or_else(|| {
                format!(
                    "{name}: the parameter {} {}{} is of no kind in mpi/abi/wrong.txt",
                    parameter.name,
                    parameter.base,
                    "*".repeat(parameter.depth)
                )
            })?;
            let form_of = |text: &str| text.replace('$', width(parameter, form));
            let valid = special.valid.get(&parameter.name).unwrap_or(&kind.valid);
            into(writeln!(
                setup,
                "    {} = {};",
                variable(parameter, form),
                form_of(valid)
            ))?;
            let more = special.wrong.iter();
            let more = more
                .filter(|(name, _)| *name == parameter.name)
                .map(|(_, w)| w);
            let mut tried = BTreeSet::new();
            for wrong in more.chain(&kind.wrong) {
                if !tried.insert(&wrong.value) {
                    continue;
                }
                into(writeln!(
                    cases,
                    "    case {count}:\n        {p} = {value};\n        want(\"{p}\", \"{shown}\", {classes});\n        break;",
                    p = parameter.name,
                    value = form_of(&wrong.value),
                    shown = quoted(&wrong.value),
                    classes = if returns_class {
                        classes(&wrong.classes)
                    } else {
                        "0".to_owned()
                    },
                ))?;
                count += 1;
            }
        }
        Ok(count)
    }
}

impl Program {
    fn call(
        &mut self,
        rules: &Rules,
        section: &Section,
        operation: &Operation,
        form: Form,
    ) -> Result<(), String> {
        let none = Special::default();
        let special = rules.calls.get(&operation.name).unwrap_or(&none);
        let returns_class = operation.returns == "int" && !operation.name.ends_with("_toint");
        let signature = Signature {
            operation,
            form,
            special,
            returns_class,
        };
        let name = signature.name();
        let (mut setup, mut cases) = (String::new(), String::new());
        let count = signature.write_arguments(rules, section, &mut setup, &mut cases)?;
        self.parameters += operation.parameters.len();
        let before: String = special
            .before
            .iter()
            .map(|s| format!("    {s};\n"))
            .collect();
        let after: String = special
            .after
            .iter()
            .map(|s| format!("    {s};\n"))
            .collect();
        let arguments: Vec<&str> = operation.parameters.iter().map(|p| &*p.name).collect();
        let arguments = arguments.join(", ");
        let call = if !returns_class {
            format!("(void){name}({arguments}), MPI_SUCCESS")
        } else {
            format!("{name}({arguments})")
        };
        let valid = if special.refused.is_empty() {
            "VALID".to_owned()
        } else {
            classes(&special.refused)
        };
        into(writeln!(
            self.text,
            "static void do_{name}(int which) {{\n    made();\n{before}{setup}    switch (which) {{\n{cases}    default:\n        \
             want(\"\", \"as it should be\", {valid});\n    }}\n    begun();\n    int code = ({call});\n    \
             finished(code, {});\n{after}    ended();\n}}\n",
            i32::from(!special.keeps),
        ))?;
        self.functions += 1;
        self.calls += count;
        Ok(())
    }

    fn section(
        &mut self,
        rules: &Rules,
        section: &Section,
        list: &mut String,
    ) -> Result<(), String> {
        for operation in section.operations.iter().filter(|operation| operation.done) {
            let skip = rules.calls.get(&operation.name);
            let skip = skip.and_then(|special| special.skip.as_ref());
            for &form in operation.forms() {
                let name = format!("MPI_{}", operation.symbol(form));
                if let Some(reason) = skip {
                    self.excused.push((name, reason.clone()));
                    continue;
                }
                let before = self.calls;
                self.call(rules, section, operation, form)?;
                writeln!(
                    list,
                    "    {{\"{name}\", do_{name}, {}}},",
                    self.calls - before
                )
                .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// Makes the program of the table of wrong arguments: `head` comes first and defines what the
/// expressions of the table name; `tail` uses `calls`.
pub fn program(wrong: &str, head: &str, tail: &str) -> Result<Program, String> {
    let rules = rules(wrong).map_err(|error| format!("mpi/abi/wrong.txt: {error}"))?;
    let sections = sections();
    let known = |name: &String| {
        let mut operations = sections.iter().flat_map(|section| &section.operations);
        operations.any(|operation| operation.done && operation.name == *name)
    };
    if let Some(name) = rules.calls.keys().find(|name| !known(name)) {
        return Err(format!(
            "mpi/abi/wrong.txt: no implemented function is called {name}"
        ));
    }
    let mut program = Program {
        text: format!("#include \"{head}\"\n\n"),
        ..Program::default()
    };
    let mut list = String::new();
    for section in &sections {
        program.section(&rules, section, &mut list)?;
    }
    program.text.push_str(&format!(
        "static const struct call calls[] = {{\n{list}}};\n\n#include \"{tail}\"\n"
    ));
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_implemented_function_is_called_or_excused() {
        let made = program(include_str!("../wrong.txt"), "head.h", "tail.h").unwrap();
        let implemented: usize = sections()
            .iter()
            .flat_map(|section| &section.operations)
            .filter(|operation| operation.done)
            .map(|operation| operation.forms().len())
            .sum();
        assert_eq!(made.functions + made.excused.len(), implemented);
        assert!(made.excused.iter().all(|(_, reason)| !reason.is_empty()));
        assert!(made.calls > 3 * made.parameters, "{}", made.calls);
    }

    #[test]
    fn a_bad_row_is_named() {
        for text in ["= 1\n", "[kind a]\n! NULL\n", "[calls]\nSend | strange\n"] {
            assert!(rules(text).is_err(), "{text}");
        }
    }
}
