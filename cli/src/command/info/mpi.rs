// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info mpi`: what the MPI library implements.

use std::process::ExitCode;

use onecopy_mpi_abi::coverage::{Coverage, coverage};
use serde::Serialize;
use tabled::settings::Style;

use super::super::{CliError, print};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name every function that is not implemented
    #[arg(long)]
    missing: bool,
}

#[derive(Serialize)]
struct MpiSection {
    title: String,
    implemented: Vec<String>,
    missing: Vec<String>,
}

impl From<Coverage> for MpiSection {
    fn from(coverage: Coverage) -> Self {
        Self {
            title: coverage.title,
            implemented: coverage.done,
            missing: coverage.missing,
        }
    }
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, CliError> {
    let parts: Vec<MpiSection> = coverage().into_iter().map(MpiSection::from).collect();
    if json {
        let text =
            serde_json::to_string_pretty(&parts).map_err(|error| CliError::Failed(error.into()))?;
        print(|out| writeln!(out, "{text}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = tabled::builder::Builder::default();
    rows.push_record(["section", "implemented", "of"]);
    let (mut done, mut all) = (0, 0);
    for part in &parts {
        let implemented = part.implemented.len();
        let functions = implemented + part.missing.len();
        rows.push_record([
            part.title.clone(),
            implemented.to_string(),
            functions.to_string(),
        ]);
        (done, all) = (done + implemented, all + functions);
    }
    rows.push_record(["all".to_owned(), done.to_string(), all.to_string()]);
    let table = rows.build().with(Style::blank()).to_string();
    let mut text = format!("Functions of MPI 5.0's C binding in libmpi_abi.so.1\n\n{table}\n");
    if args.missing {
        for part in parts.iter().filter(|part| !part.missing.is_empty()) {
            text.push_str(&format!("\n{}: {}\n", part.title, part.missing.join(", ")));
        }
    }
    print(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}
