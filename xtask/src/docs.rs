// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask docs`: the pages that come from tables.

use std::fs;
use std::path::Path;

use crate::recorded::page_of;
use crate::{Failure, apps, mpi4py, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only say whether the pages are up to date
    #[arg(long)]
    check: bool,
}

fn pages(root: &Path) -> Vec<(&'static str, String)> {
    let mut pages = vec![
        ("docs/knobs.md", onecopy_obs::docs::knobs_page()),
        ("docs/counters.md", onecopy_obs::docs::counters_page()),
        ("docs/mpi.md", onecopy_mpi_abi::coverage::page()),
        ("mpi/include/mpi.h", onecopy_mpi_abi::header::header()),
    ];
    // What a recorded run has found.
    pages.extend(page_of::<mpi4py::Record>(root));
    pages.extend(page_of::<apps::Record>(root));
    pages
}

/// The pages that differ from what the tables say.
pub(crate) fn stale(root: &Path) -> Vec<&'static str> {
    pages(root)
        .into_iter()
        .filter(|(path, text)| fs::read_to_string(root.join(path)).ok().as_ref() != Some(text))
        .map(|(path, _)| path)
        .collect()
}

pub(crate) fn run(args: &Args, root: &Path) -> Result<(), Failure> {
    let stale = stale(root);
    if args.check {
        return if stale.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{}: stale; run `cargo xtask docs`",
                stale.join(", ")
            ))
        };
    }
    for (path, text) in pages(root).iter().filter(|(path, _)| stale.contains(path)) {
        let file = root.join(path);
        file.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&file, text))
            .map_err(|error| format!("{path}: {error}"))?;
        say::line(&format!("wrote {path}"));
    }
    Ok(())
}
