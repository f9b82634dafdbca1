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
    let entries = entries(bench, args)?;
    let mut builds = Builds {
        bench,
        args,
        seen: Vec::new(),
        built: 0,
        failed: Vec::new(),
        missing: Vec::new(),
    };
    for entry in entries {
        for headers in builds.headers_of(entry) {
            if args.list {
                say::line(&format!("{:<20} {}", entry.name, headers.release));
            } else {
                builds.build(entry, headers)?;
            }
        }
    }
    builds.tell()
}

/// The releases of distributions that are asked for.
fn entries<'b>(bench: &'b Bench, args: &Args) -> Result<Vec<&'b DistributionEntry>, Failure> {
    let wanted = |entry: &&DistributionEntry| {
        args.distribution.is_empty() || args.distribution.contains(&entry.name)
    };
    let entries: Vec<_> = bench.catalog.distributions.iter().filter(wanted).collect();
    let unknown = |name: &&String| !entries.iter().any(|entry| &entry.name == *name);
    match args.distribution.iter().find(unknown) {
        Some(name) => Err(format!("kernels.toml has no distribution '{name}'")),
        None => Ok(entries),
    }
}

/// What has come of the kernels so far.
struct Builds<'b> {
    bench: &'b Bench,
    args: &'b Args,
    /// Releases of kernels that have had their turn.
    seen: Vec<String>,
    built: usize,
    failed: Vec<String>,
    /// Distributions and kernels that the mirrors do not have, each with the reason.
    missing: Vec<String>,
}

impl Builds<'_> {
    /// The kernels of a release of a distribution whose turn has not come yet.
    fn headers_of(&mut self, entry: &DistributionEntry) -> Vec<Headers> {
        let (bench, args) = (self.bench, self.args);
        let (cache, catalog) = (&bench.cache, &bench.catalog);
        let mut found = match headers::list(cache, catalog, entry, args.arch, &bench.progress) {
            Ok(found) if !found.is_empty() => found,
            Ok(_) => {
                let why = format!("no headers for {}", args.arch.name);
                self.miss(&entry.name, &why);
                return Vec::new();
            }
            // A suite may be on no mirror any more.
            Err(error) => {
                self.miss(&entry.name, &last_line(&error));
                return Vec::new();
            }
        };
        if args.newest {
            found = headers::newest(found);
        }
        found.retain(|headers| {
            let only = args.only.as_ref();
            let wanted = only.is_none_or(|text| headers.release.contains(text));
            let is_new = wanted && !self.seen.contains(&headers.release);
            if is_new {
                self.seen.push(headers.release.clone());
            }
            is_new
        });
        found
    }

    /// Notes a distribution or a kernel that the mirrors do not have.
    fn miss(&mut self, name: &str, why: &str) {
        self.missing.push(format!("{name}: {why}"));
    }

    /// Builds the module for a kernel.
    fn build(&mut self, entry: &DistributionEntry, headers: Headers) -> Result<(), Failure> {
        let bench = self.bench;
        let (cache, catalog) = (&bench.cache, &bench.catalog);
        let kernel = match headers::fetch(cache, catalog, entry, &headers, &bench.progress) {
            Ok(kernel) => kernel,
            // A list may name what its mirror has withdrawn.
            Err(error) => {
                self.miss(&headers.release, &last_line(&error));
                return Ok(());
            }
        };
        let outcome = one(bench, &headers, &kernel);
        headers::forget(cache, &headers).map_err(text)?;
        match outcome {
            Ok(compiler) => {
                self.built += 1;
                say::line(&format!("ok      {} ({compiler})", headers.release));
            }
            Err(why) => {
                say::line(&format!("FAILED  {}: {why}", headers.release));
                self.failed.push(headers.release);
            }
        }
        Ok(())
    }

    /// Says what has come of all.
    fn tell(&self) -> Result<(), Failure> {
        for entry in &self.missing {
            say::line(&format!("missing {entry}"));
        }
        if self.args.list {
            return Ok(());
        }
        let (built, failed) = (self.built, self.failed.len());
        say::line(&format!("built for {built} kernels, failed for {failed}"));
        if built == 0 {
            return Err("the mirrors have headers of no such kernel".to_owned());
        }
        if self.failed.is_empty() {
            Ok(())
        } else {
            let failed = self.failed.join(", ");
            Err(format!("the module does not build for {failed}"))
        }
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
