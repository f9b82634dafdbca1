// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm headers`: the module built for every kernel of which the mirrors have headers.

use onecopy_vm::arch::{self, Arch};
use onecopy_vm::catalog::DistributionEntry;
use onecopy_vm::headers::{self, Headers};
use onecopy_vm::kernel::Kernel;
use onecopy_vm::module::{self, Sources};

use super::{Bench, text};
use crate::{Failure, root, say};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The release of the distribution; may be given several times; all if not given
    #[arg(long, value_name = "D")]
    distribution: Vec<String>,
    /// The architecture: amd64 or arm64
    #[arg(long, value_name = "A", default_value = arch::here().name, value_parser = super::architecture)]
    arch: &'static Arch,
    /// Only kernels whose release has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Of each series and flavour in a release of the distribution only the newest
    #[arg(long)]
    newest: bool,
    /// List them, and build nothing
    #[arg(long)]
    list: bool,
}

pub(super) fn run(bench: &Bench, args: &Args) -> Result<(), Failure> {
    let wanted = |entry: &&DistributionEntry| {
        args.distribution.is_empty() || args.distribution.contains(&entry.name)
    };
    let entries: Vec<_> = bench.catalog.distributions.iter().filter(wanted).collect();
    if let Some(name) = args
        .distribution
        .iter()
        .find(|name| !entries.iter().any(|entry| &entry.name == *name))
    {
        return Err(format!("kernels.toml has no distribution '{name}'"));
    }
    let (mut built, mut failed, mut missing) = (0, Vec::new(), Vec::new());
    let mut seen = Vec::new();
    for entry in entries {
        let (cache, catalog) = (&bench.cache, &bench.catalog);
        let found = match headers::list(cache, catalog, entry, args.arch, &bench.progress) {
            Ok(found) if !found.is_empty() => found,
            Ok(_) => {
                missing.push(format!("{}: no headers for {}", entry.name, args.arch.name));
                continue;
            }
            // A suite may be on no mirror any more.
            Err(error) => {
                missing.push(format!("{}: {}", entry.name, last_line(&error)));
                continue;
            }
        };
        let found = if args.newest {
            headers::newest(found)
        } else {
            found
        };
        for headers in found {
            let skipped = args
                .only
                .as_ref()
                .is_some_and(|text| !headers.release.contains(text));
            if skipped || seen.contains(&headers.release) {
                continue;
            }
            seen.push(headers.release.clone());
            if args.list {
                say::line(&format!("{:<20} {}", entry.name, headers.release));
                continue;
            }
            let (cache, catalog) = (&bench.cache, &bench.catalog);
            // A list may name what its mirror has withdrawn.
            let kernel = match headers::fetch(cache, catalog, entry, &headers, &bench.progress) {
                Ok(kernel) => kernel,
                Err(error) => {
                    missing.push(format!("{}: {}", headers.release, last_line(&error)));
                    continue;
                }
            };
            let outcome = one(bench, &headers, &kernel);
            headers::forget(cache, &headers).map_err(text)?;
            match outcome {
                Ok(compiler) => {
                    built += 1;
                    say::line(&format!("ok      {} ({compiler})", headers.release));
                }
                Err(why) => {
                    say::line(&format!("FAILED  {}: {why}", headers.release));
                    failed.push(headers.release);
                }
            }
        }
    }
    for missing in &missing {
        say::line(&format!("missing {missing}"));
    }
    if args.list {
        return Ok(());
    }
    say::line(&format!(
        "built for {built} kernels, failed for {}",
        failed.len()
    ));
    if built == 0 {
        return Err("the mirrors have headers of no such kernel".to_owned());
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "the module does not build for {}",
            failed.join(", ")
        ))
    }
}

/// The compiler that built it.
fn one(bench: &Bench, headers: &Headers, kernel: &Kernel) -> Result<String, Failure> {
    let (cache, progress) = (&bench.cache, &bench.progress);
    let run = cache
        .new_run(&format!("headers-{}", headers.release))
        .map_err(text)?;
    let variables = ["CONFIG_ONECOPY_KUNIT=y".to_owned()];
    let sources = Sources::Folder(root().join("kmod"));
    module::build(kernel, &sources, &variables, &run, progress).map_err(text)?;
    Ok(kernel.toolchain.name())
}

fn last_line(error: &onecopy_vm::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().to_owned()
}
