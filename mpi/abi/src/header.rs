// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C header.

use crate::parse::{Callback, callbacks};
use crate::{CALLBACKS, Constants, Form, constants, sections};
use std::fmt::Write;

const TOP: &str = "\
/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The C binding of MPI 5.0 in its standard ABI. Generated from the tables in mpi/abi by `cargo xtask docs`. */
#ifndef ONECOPY_MPI_H
#define ONECOPY_MPI_H

#include <stdint.h>

#if defined(__cplusplus)
extern \"C\" {
#endif

typedef intptr_t MPI_Aint;
typedef int64_t MPI_Offset;
typedef int64_t MPI_Count;

typedef struct {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int MPI_internal[5];
} MPI_Status;
";

const BOTTOM: &str = "
#if defined(__cplusplus)
}
#endif

#endif /* ONECOPY_MPI_H */
";

/// Types that are pointers to structs which nobody sees.
const OPAQUE: [&str; 17] = [
    "MPI_Comm",
    "MPI_Datatype",
    "MPI_Errhandler",
    "MPI_File",
    "MPI_Group",
    "MPI_Info",
    "MPI_Message",
    "MPI_Op",
    "MPI_Request",
    "MPI_Session",
    "MPI_Win",
    "MPI_T_cvar_handle",
    "MPI_T_enum",
    "MPI_T_event_instance",
    "MPI_T_event_registration",
    "MPI_T_pvar_handle",
    "MPI_T_pvar_session",
];

/// Enumerations that have a name.
const NAMED_ENUMS: [&str; 2] = ["MPI_T_cb_safety", "MPI_T_source_order"];

/// The whole header.
///
/// # Panics
/// Never: a test makes it.
#[must_use]
pub fn header() -> String {
    let mut out = TOP.to_owned();
    write_header(&mut out).expect("a string takes any text");
    out.push_str(BOTTOM);
    out
}

fn write_header(out: &mut String) -> std::fmt::Result {
    writeln!(out)?;
    for name in OPAQUE {
        let tag = name.replacen("MPI_", "MPI_ABI_", 1);
        writeln!(out, "typedef struct {tag} *{name};")?;
    }
    let groups = constants();
    write_constants(out, &groups)?;
    write_callbacks(out, &groups)?;
    for prefix in ["MPI_", "PMPI_"] {
        for section in sections() {
            writeln!(out, "\n/* {} */", section.title)?;
            for operation in &section.operations {
                for &form in operation.forms() {
                    writeln!(out, "{};", operation.prototype(form, prefix))?;
                }
            }
        }
    }
    Ok(())
}

fn write_constants(out: &mut String, groups: &[Constants]) -> std::fmt::Result {
    for group in groups.iter().filter(|group| group.kind != "callback") {
        writeln!(out, "\n/* {} */", group.title)?;
        let kind = group.kind.as_str();
        if kind == "int" || NAMED_ENUMS.contains(&kind) {
            let (open, close) = if kind == "int" {
                ("enum {".to_owned(), "};".to_owned())
            } else {
                (format!("typedef enum {kind} {{"), format!("}} {kind};"))
            };
            writeln!(out, "{open}")?;
            for (index, row) in group.rows.iter().enumerate() {
                let comma = if index + 1 < group.rows.len() {
                    ","
                } else {
                    ""
                };
                writeln!(out, "    MPI_{} = {}{comma}", row.name, row.value)?;
            }
            writeln!(out, "{close}")?;
            continue;
        }
        for row in &group.rows {
            match kind {
                "define" => writeln!(out, "#define MPI_{} {}", row.name, row.value)?,
                "alias" => writeln!(out, "#define MPI_{} MPI_{}", row.name, row.value)?,
                _ => writeln!(out, "#define MPI_{} (({kind}){})", row.name, row.value)?,
            }
        }
    }
    Ok(())
}

fn write_callbacks(out: &mut String, groups: &[Constants]) -> std::fmt::Result {
    writeln!(out, "\n/* Callbacks */")?;
    for callback in callbacks(CALLBACKS).expect("the table of callbacks is in order") {
        match callback {
            Callback::Function(function) => {
                let parameters: Vec<String> = function
                    .parameters
                    .iter()
                    .map(|parameter| parameter.declaration(Form::Plain))
                    .collect();
                writeln!(
                    out,
                    "typedef {} (MPI_{})({});",
                    function.returns,
                    function.name,
                    parameters.join(", ")
                )?;
            }
            Callback::Second { name, first } => writeln!(out, "typedef MPI_{first} MPI_{name};")?,
        }
    }
    for group in groups.iter().filter(|group| group.kind == "callback") {
        writeln!(out, "\n/* {} */", group.title)?;
        for row in &group.rows {
            let kind = row.extra.as_deref().unwrap_or("void");
            writeln!(out, "#define MPI_{} (({kind} *){})", row.name, row.value)?;
        }
    }
    Ok(())
}
