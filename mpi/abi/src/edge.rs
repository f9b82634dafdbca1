// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust side: the exported symbols and the constants.
//!
//! Each function of the table becomes two symbols, `MPI_` and `PMPI_`, of the same body. It wraps the arguments in
//! types that say what may be done with them, and brings both forms of counts to 64 bits. Then it calls the one
//! implementation of the operation.

use crate::{Form, Operation, Parameter, Section, constants, sections};
use std::fmt::Write;

/// Handles that the implementation knows. Others are opaque.
const HANDLES: [(&str, &str); 11] = [
    ("MPI_Comm", "Comm"),
    ("MPI_Datatype", "Datatype"),
    ("MPI_Errhandler", "Errhandler"),
    ("MPI_File", "File"),
    ("MPI_Group", "Group"),
    ("MPI_Info", "Info"),
    ("MPI_Message", "Message"),
    ("MPI_Op", "Op"),
    ("MPI_Request", "Request"),
    ("MPI_Session", "Session"),
    ("MPI_Win", "Win"),
];

fn value_type(base: &str) -> Option<&'static str> {
    if let Some((_, name)) = HANDLES.iter().find(|(c, _)| *c == base) {
        return Some(name);
    }
    match base {
        "int" => Some("i32"),
        "MPI_Aint" | "MPI_Count" | "MPI_Offset" => Some("i64"),
        "double" => Some("f64"),
        "MPI_Status" => Some("Status"),
        "char" => Some("c_char"),
        "void" => Some("c_void"),
        _ => None,
    }
}

fn is_callback(parameter: &Parameter, form: Form) -> bool {
    parameter.depth == 1
        && (parameter.base_in(form).contains("_function")
            || parameter.base_in(form).ends_with("_fn"))
}

/// The parameter's type in the exported function.
fn raw_type(parameter: &Parameter, form: Form) -> String {
    let base = parameter.base_in(form);
    if parameter.depth > 0 && (is_callback(parameter, form) || value_type(base).is_none()) {
        return "*const c_void".to_owned();
    }
    let value = value_type(base).unwrap_or("*const c_void");
    let pointer = if parameter.constant {
        "*const "
    } else {
        "*mut "
    };
    format!("{}{value}", pointer.repeat(parameter.depth))
}

/// The argument as the implementation takes it.
fn argument(parameter: &Parameter, form: Form) -> String {
    let name = variable(&parameter.name);
    if is_callback(parameter, form) {
        return format!("Callback::new({name})");
    }
    if parameter.suffix == "[][3]" {
        return format!("In::new({name}.cast())");
    }
    let counts = matches!(parameter.base.as_str(), "COUNT" | "DISPL");
    match (parameter.depth, counts, parameter.base_in(form)) {
        (0, true, _) => format!("i64::from({name})"),
        (0, false, _) => name,
        (1, true, base) => {
            let kind = if parameter.constant {
                "Ints"
            } else {
                "OutInts"
            };
            let width = if base == "int" { "narrow" } else { "wide" };
            format!("{kind}::{width}({name})")
        }
        (1, false, "void") => format!("Addr::new({name}.cast())"),
        (1, false, "char") if parameter.constant => format!("Text::new({name})"),
        (1, false, "char") => format!("OutText::new({name})"),
        (1, false, _) if parameter.constant => format!("In::new({name})"),
        (1, false, _) => format!("Out::new({name})"),
        (_, _, _) => format!("Addr::new({name}.cast())"),
    }
}

fn variable(name: &str) -> String {
    match name {
        "type" | "in" | "ref" => format!("r#{name}"),
        _ => name.to_owned(),
    }
}

/// The object whose error handler an error of this function goes to.
fn object(operation: &Operation) -> String {
    for parameter in &operation.parameters {
        let name = &parameter.name;
        match (parameter.depth, parameter.base.as_str()) {
            (0, "MPI_Comm") => return format!("ErrorTarget::Comm({name})"),
            (0, "MPI_Win") => return format!("ErrorTarget::Win({name})"),
            (0, "MPI_File") => return format!("ErrorTarget::File({name})"),
            (0, "MPI_Session") => return format!("ErrorTarget::Session({name})"),
            _ => {}
        }
    }
    if operation.name.starts_with("File_") {
        "ErrorTarget::File(c::FILE_NULL)".to_owned()
    } else {
        "ErrorTarget::Nothing".to_owned()
    }
}

fn returns_value(operation: &Operation) -> bool {
    operation.returns != "int" || operation.name.ends_with("_toint")
}

fn exported(
    out: &mut String,
    section: &Section,
    operation: &Operation,
    form: Form,
) -> std::fmt::Result {
    let symbol = operation.symbol(form);
    // What follows a variable list's dots is nobody's business: the callee of the C ABI need not know.
    let named = || operation.parameters.iter().filter(|p| p.base != "...");
    let parameters: Vec<String> = named()
        .map(|p| format!("{}: {}", variable(&p.name), raw_type(p, form)))
        .collect();
    let parameters = parameters.join(", ");
    let returns = value_type(&operation.returns).unwrap_or("i32");
    let object = object(operation);
    for prefix in ["MPI_", "PMPI_"] {
        writeln!(
            out,
            "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {prefix}{symbol}({parameters}) -> {returns} {{"
        )?;
        if operation.done {
            let arguments = named().map(|parameter| argument(parameter, form));
            // A datatype remembers how it was made.
            let wide = (matches!(section.name.as_str(), "datatype" | "op")
                && operation.forms().len() == 2)
                .then(|| (form == Form::Large).to_string());
            let arguments: Vec<String> = wide.into_iter().chain(arguments).collect();
            let call = format!(
                "crate::{}::{}({})",
                section.name.replace('/', "::"),
                operation.name.to_lowercase(),
                arguments.join(", ")
            );
            if returns_value(operation) {
                writeln!(out, "    unsafe {{ {call} }}")?;
            } else {
                writeln!(
                    out,
                    "    outcome(\"MPI_{symbol}\", {object}, unsafe {{ {call} }})"
                )?;
            }
        } else if returns_value(operation) {
            writeln!(
                out,
                "    unsupported(\"MPI_{symbol}\", {object});\n    Default::default()"
            )?;
        } else {
            writeln!(out, "    unsupported(\"MPI_{symbol}\", {object})")?;
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

/// The exported functions, to be included in a module that has the names it uses in scope.
///
/// # Panics
/// Never: a string takes any text.
#[must_use]
pub fn functions() -> String {
    let mut out = String::new();
    for section in sections() {
        for operation in &section.operations {
            for &form in operation.forms() {
                exported(&mut out, &section, operation, form).expect("a string takes any text");
            }
        }
    }
    out
}

/// The constants, to be included in a module that has the handle types in scope.
///
/// # Panics
/// Never: a string takes any text.
#[must_use]
pub fn rust_constants() -> String {
    let mut out = String::new();
    write_constants(&mut out).expect("a string takes any text");
    out
}

fn write_constants(out: &mut String) -> std::fmt::Result {
    let groups = constants();
    for group in &groups {
        let handle = HANDLES.iter().find(|(c, _)| *c == group.kind);
        for row in &group.rows {
            let (name, value) = (rust_name(&row.name), &row.value);
            match (group.kind.as_str(), handle) {
                (_, Some((_, kind))) => {
                    writeln!(out, "pub const {name}: {kind} = {kind}({value});")?;
                }
                ("int" | "define" | "MPI_T_cb_safety" | "MPI_T_source_order", _) => {
                    writeln!(out, "pub const {name}: i32 = {value};")?;
                }
                ("MPI_Offset", _) => writeln!(out, "pub const {name}: i64 = {value};")?,
                ("alias", _) => {}
                _ => writeln!(out, "pub const {name}: usize = {value};")?,
            }
        }
    }
    for (kind, list) in [("MPI_Datatype", "DATATYPES"), ("MPI_Op", "OPS")] {
        let rows: Vec<_> = groups
            .iter()
            .filter(|group| group.kind == kind)
            .flat_map(|group| &group.rows)
            .collect();
        writeln!(
            out,
            "pub const {list}: [(&str, usize, &str); {}] = [",
            rows.len()
        )?;
        for row in rows {
            let extra = row.extra.as_deref().unwrap_or_default();
            writeln!(
                out,
                "    (\"MPI_{}\", {}, \"{extra}\"),",
                row.name, row.value
            )?;
        }
        writeln!(out, "];")?;
    }
    Ok(())
}

fn rust_name(name: &str) -> String {
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("TWO{}", &name[1..])
    } else {
        name.to_owned()
    }
}
