// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mpi4py`: mpi4py's own tests, on a mpi4py that was built from its source package with our compiler
//! wrapper.

mod record;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use onecopy_vm::cache::Cache;
use onecopy_vm::program::{gentle, output};
use onecopy_vm::progress::Progress;
use onecopy_vm::pypi::{self, Environment};

use crate::recorded::Recorded;
use crate::{Failure, install, root, say};
pub(crate) use record::Record;
use record::{Module, ModuleRun};

/// The version, whose source package has the tests.
const VERSION: &str = "4.1.2";

/// Modules that must pass, whatever else does.
const REQUIRED: [&str; 25] = [
    "address",
    "cco_buf",
    "cco_nb_buf",
    "cco_nb_vec",
    "cco_ngh_buf",
    "cco_obj",
    "cco_pr_buf",
    "cco_pr_vec",
    "cco_vec",
    "datatype",
    "environ",
    "errorcode",
    "group",
    "msgspec",
    "msgzero",
    "op",
    "p2p_buf",
    "p2p_buf_matched",
    "p2p_obj",
    "pack",
    "pickle",
    "request",
    "status",
    "threads",
    "toplevel",
];

/// Test classes that a module is run without: they need another part of the standard.
const LEFT_OUT: [(&str, &str); 1] = [("msgspec", "TestMessageRMA")];

fn left_out(module: &str) -> Option<&'static str> {
    let found = LEFT_OUT.iter().find(|(name, _)| *name == module);
    found.map(|&(_, class)| class)
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of ranks
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,3", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,
    /// Only these modules (cco_buf, say); may be given several times. Nothing is written to the page then
    #[arg(long, value_name = "NAME")]
    module: Vec<String>,
    /// Only the modules that must pass
    #[arg(long)]
    required: bool,
    /// How long one module may run
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
    /// Write the results to standard output as JSON
    #[arg(long)]
    json: bool,
}

/// What the tests are run with.
struct Bench {
    prefix: PathBuf,
    python: PathBuf,
    tests: PathBuf,
    logs: PathBuf,
    progress: Progress,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let bench = Bench::prepare()?;
    let modules = bench.modules(args)?;
    let total = modules.len() * args.ranks.len();
    let started = Instant::now();
    let mut record = Record {
        version: VERSION.to_owned(),
        ranks: args.ranks.clone(),
        modules: Vec::new(),
    };
    let mut done = 0;
    for name in modules {
        let mut results = Vec::new();
        for &ranks in &args.ranks {
            done += 1;
            let seconds = started.elapsed().as_secs();
            bench.progress.step(&format!(
                "[{done}/{total}] {name}, {ranks} ranks ({seconds} s so far)"
            ));
            let ran = bench.module(&name, ranks, args.timeout)?;
            if !ran.passed() {
                bench
                    .progress
                    .note(&format!("{name}, {ranks} ranks: {ran}"));
            }
            results.push(ran);
        }
        let required = REQUIRED.contains(&name.as_str());
        record.modules.push(Module {
            left_out: left_out(&name).map(str::to_owned),
            name,
            required,
            results,
        });
    }
    bench.progress.finish();
    if args.module.is_empty() && !args.required {
        record.write(&root())?;
    }
    if args.json {
        say::line(&record.json()?);
    } else {
        say::line(&record.table());
        say::line(&format!("logs: {}", bench.logs.display()));
    }
    let failed: Vec<&str> = record
        .modules
        .iter()
        .filter(|module| module.required && !module.results.iter().all(ModuleRun::passed))
        .map(|module| module.name.as_str())
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("must pass and does not: {}", failed.join(", ")))
    }
}

impl Bench {
    /// Builds the library, and with it mpi4py where that is missing.
    fn prepare() -> Result<Self, Failure> {
        let cache = pypi::cache().map_err(text)?;
        let progress = Progress::new();
        let prefix = cache.root().join("prefix");
        progress.step("building and installing onecopy (release)");
        install::into(prefix.clone())?;
        let home = environment(&prefix).home(&cache, &progress).map_err(text)?;
        let tests = sources(&cache, &home, &progress)?.join("test");
        Ok(Self {
            prefix,
            python: home.join("bin/python"),
            tests,
            logs: cache.new_run("mpi4py").map_err(text)?,
            progress,
        })
    }

    /// The modules to run.
    fn modules(&self, args: &Args) -> Result<Vec<String>, Failure> {
        let at = |error| format!("{}: {error}", self.tests.display());
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.tests).map_err(at)? {
            let name = entry.map_err(at)?.file_name();
            let name = name.to_string_lossy();
            let name = name.strip_prefix("test_");
            if let Some(name) = name.and_then(|name| name.strip_suffix(".py")) {
                all.push(name.to_owned());
            }
        }
        all.sort();
        if let Some(unknown) = args.module.iter().find(|name| !all.contains(name)) {
            return Err(format!(
                "mpi4py has no test module {unknown}; it has {}",
                all.join(", ")
            ));
        }
        if !args.module.is_empty() {
            all.retain(|name| args.module.contains(name));
        } else if args.required {
            all.retain(|name| REQUIRED.contains(&name.as_str()));
        }
        Ok(all)
    }

    /// Runs a module's tests.
    fn module(&self, name: &str, ranks: u32, timeout: u32) -> Result<ModuleRun, Failure> {
        let started = Instant::now();
        let log = self.logs.join(format!("{name}-{ranks}.txt"));
        let at = |error| format!("{}: {error}", log.display());
        let file = fs::File::create(&log).map_err(at)?;
        let status = Command::new(self.prefix.join("bin/onecopy"))
            .args(["run", "--tag-output", "--timeout", &timeout.to_string()])
            .args(["-n", &ranks.to_string()])
            .arg(&self.python)
            .arg(self.tests.join("main.py"))
            .args(["-v", "-i", &format!("^test_{name}\\.py$")])
            .args(left_out(name).iter().flat_map(|class| ["-x", class]))
            .env("LD_LIBRARY_PATH", self.prefix.join("lib"))
            .env("PYTHONFAULTHANDLER", "1")
            .stdin(std::process::Stdio::null())
            .stdout(file.try_clone().map_err(at)?)
            .stderr(file)
            .status()
            .map_err(|error| format!("onecopy run: {error}"))?;
        let text = fs::read(&log).map_err(at)?;
        let text = String::from_utf8_lossy(&text);
        let seconds = started.elapsed().as_secs_f64();
        Ok(ModuleRun::of(ranks, &text, status, seconds))
    }
}

fn text(error: onecopy_vm::Error) -> Failure {
    error.to_string()
}

/// mpi4py, built with our compiler wrapper.
fn environment(prefix: &Path) -> Environment {
    Environment {
        name: "mpi4py",
        installs: &[
            &["setuptools>=77", "cython>=3.1", "wheel"],
            &[
                "--no-build-isolation",
                "--no-deps",
                "--no-binary",
                "mpi4py",
                "mpi4py==4.1.2",
            ],
        ],
        variables: vec![
            (
                "MPICC",
                prefix.join("bin/onecopy-mpicc").display().to_string(),
            ),
            // What is tested is not the speed of Python.
            ("CFLAGS", "-O0".to_owned()),
        ],
    }
}

/// The unpacked source package.
fn sources(cache: &Cache, home: &Path, progress: &Progress) -> Result<PathBuf, Failure> {
    let name = format!("mpi4py-{VERSION}");
    let folder = cache.folder("sources").map_err(text)?;
    let unpacked = folder.join(&name);
    if unpacked.join("test/main.py").exists() {
        return Ok(unpacked);
    }
    progress.step(&format!("{name}: its source package"));
    output(
        gentle(home.join("bin/python"))
            .args(["-m", "pip", "download", "--quiet", "--no-deps"])
            .args(["--no-build-isolation", "--no-binary", ":all:", "--dest"])
            .arg(&folder)
            .arg(format!("mpi4py=={VERSION}")),
    )
    .map_err(text)?;
    output(
        Command::new("tar")
            .arg("xzf")
            .arg(folder.join(format!("{name}.tar.gz")))
            .arg("-C")
            .arg(&folder),
    )
    .map_err(text)?;
    Ok(unpacked)
}
