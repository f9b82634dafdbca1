// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of MPI's standard ABI, and what is made from them: the C header, the exported symbols, the Rust
//! constants, the coverage.
//!
//! The tables are three text files beside this package's manifest; each says at its head how a row is written.
#![forbid(unsafe_code)]

pub mod coverage;
pub mod edge;
pub mod header;
mod parse;
pub mod wrong;

pub use parse::{TableError, parse_constants, parse_functions};

/// The table of functions.
pub const FUNCTIONS: &str = include_str!("../functions.txt");
/// The table of constants.
pub const CONSTANTS: &str = include_str!("../constants.txt");
/// The table of callback types.
pub const CALLBACKS: &str = include_str!("../callbacks.txt");

/// A part of the standard, implemented in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The file's name.
    pub name: String,
    /// What it is about.
    pub title: String,
    /// Its operations.
    pub operations: Vec<Operation>,
}

/// A row of the table of functions: one C function, or two that differ in the width of their counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The name without `MPI_`.
    pub name: String,
    /// Whether it is implemented.
    pub done: bool,
    /// The return type in C.
    pub returns: String,
    /// The parameters.
    pub parameters: Vec<Parameter>,
}

/// A parameter of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The base type, which may be a word that stands for two.
    pub base: String,
    /// Whether what it points to is not written.
    pub constant: bool,
    /// Pointer levels, an array's included.
    pub depth: usize,
    /// Its name.
    pub name: String,
    /// What follows the name in C.
    pub suffix: String,
}

/// A group of constants of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constants {
    /// The type in C, or one of the words that the table's head explains.
    pub kind: String,
    /// What they are for.
    pub title: String,
    /// The rows.
    pub rows: Vec<Constant>,
}

/// A constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// The name without `MPI_`.
    pub name: String,
    /// Its value as written.
    pub value: String,
    /// A third word.
    pub extra: Option<String>,
}

/// Words that stand for a type in the plain and in the `_c` form.
const POLY: [(&str, &str, &str); 5] = [
    ("COUNT", "int", "MPI_Count"),
    ("DISPL", "int", "MPI_Aint"),
    ("EXTENT", "MPI_Aint", "MPI_Count"),
    ("USER_FUNCTION", "MPI_User_function", "MPI_User_function_c"),
    (
        "CONVERSION_FUNCTION",
        "MPI_Datarep_conversion_function",
        "MPI_Datarep_conversion_function_c",
    ),
];

/// Which of the two functions of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// With `int` counts.
    Plain,
    /// With `MPI_Count` counts; the name ends with `_c`.
    Large,
}

impl Parameter {
    fn stands_for_two(&self) -> bool {
        POLY.iter().any(|(word, _, _)| *word == self.base)
    }

    /// The base type of one form.
    #[must_use]
    pub fn base_in(&self, form: Form) -> &str {
        POLY.iter().find(|(word, _, _)| *word == self.base).map_or(
            self.base.as_str(),
            |(_, plain, large)| match form {
                Form::Plain => plain,
                Form::Large => large,
            },
        )
    }

    /// The declaration in C.
    #[must_use]
    pub fn declaration(&self, form: Form) -> String {
        if self.base == "..." {
            return self.base.clone();
        }
        let constant = if self.constant { "const " } else { "" };
        let arrays = self.suffix.matches('[').count();
        let stars = "*".repeat(self.depth - arrays);
        format!(
            "{constant}{} {stars}{}{}",
            self.base_in(form),
            self.name,
            self.suffix
        )
    }
}

impl Operation {
    /// The forms that exist.
    #[must_use]
    pub fn forms(&self) -> &'static [Form] {
        if self.parameters.iter().any(Parameter::stands_for_two) {
            &[Form::Plain, Form::Large]
        } else {
            &[Form::Plain]
        }
    }

    /// The name of a form without `MPI_`.
    #[must_use]
    pub fn symbol(&self, form: Form) -> String {
        match form {
            Form::Plain => self.name.clone(),
            Form::Large => format!("{}_c", self.name),
        }
    }

    /// The prototype with the given prefix, without the semicolon.
    #[must_use]
    pub fn prototype(&self, form: Form, prefix: &str) -> String {
        let parameters: Vec<String> = self
            .parameters
            .iter()
            .map(|parameter| parameter.declaration(form))
            .collect();
        let parameters = if parameters.is_empty() {
            "void".to_owned()
        } else {
            parameters.join(", ")
        };
        format!(
            "{} {prefix}{}({parameters})",
            self.returns,
            self.symbol(form)
        )
    }
}

/// The sections of the table of functions.
///
/// # Panics
/// Never: a test reads the tables.
#[must_use]
pub fn sections() -> Vec<Section> {
    parse_functions(FUNCTIONS).expect("the table of functions is in order")
}

/// The groups of the table of constants.
///
/// # Panics
/// Never: a test reads the tables.
#[must_use]
pub fn constants() -> Vec<Constants> {
    parse_constants(CONSTANTS).expect("the table of constants is in order")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_tables_can_be_read_and_names_are_unique() {
        let mut names = HashSet::new();
        for section in parse_functions(FUNCTIONS).unwrap() {
            for operation in &section.operations {
                for &form in operation.forms() {
                    let name = operation.symbol(form);
                    assert!(names.insert(name.clone()), "{name} twice");
                }
            }
        }
        assert_eq!(names.len(), 662, "functions in the standard's header");
        for group in parse_constants(CONSTANTS).unwrap() {
            for row in group.rows {
                assert!(names.insert(row.name.clone()), "{} twice", row.name);
            }
        }
        assert!(header::header().contains("int PMPI_Send_c("));
    }

    #[test]
    fn a_bad_row_is_named() {
        let error = parse_functions("[a] A\n* Send(int a)\n").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(parse_functions("+ Send(int a)\n").is_err());
        assert!(parse_constants("[int] A\nONE\n").is_err());
    }
}
