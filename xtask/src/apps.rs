// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask apps`: real applications, built from their authors' sources with our compiler wrapper and run to their
//! own verification. The same program then runs on MPICH, and both must find the same.

mod fftw;
mod hpcc;
mod lammps;
mod record;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use onecopy_vm::apt::{self, Apt};
use onecopy_vm::cache::Cache;
use onecopy_vm::catalog::Catalog;
use onecopy_vm::program::{gentle, output};
use onecopy_vm::progress::Progress;
use onecopy_vm::pypi;

use crate::recorded::Recorded;
use crate::{Failure, install, root, say};
pub(crate) use record::Record;
use record::{AppResult, AppRun, Outcome};

/// Where the sources are from.
const SUITE: &str = "bookworm";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this one; may be given several times. Nothing is written to the page then
    #[arg(long, value_name = "NAME", value_parser = NAMES)]
    app: Vec<String>,
    /// Numbers of ranks
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u32).range(1..=16))]
    ranks: Vec<u32>,
    /// How long one run may take
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u32,
    /// Write the results to standard output as JSON
    #[arg(long)]
    json: bool,
}

const NAMES: [&str; 3] = ["hpcc", "fftw", "lammps"];

/// An application.
struct App {
    name: &'static str,
    /// Its name for people.
    title: &'static str,
    /// The source package.
    package: &'static str,
    /// What it verifies.
    verifies: &'static str,
    /// Builds it in a folder of its sources; the program.
    build: fn(&Bench, &Path) -> Result<PathBuf, Failure>,
    /// Runs it in an empty folder; what it found.
    run: fn(&Bench, &Launch<'_>) -> Result<Outcome, Failure>,
}

const APPS: [&App; 3] = [&hpcc::APP, &fftw::APP, &lammps::APP];

/// What everything is built and run with.
struct Bench {
    cache: Cache,
    prefix: PathBuf,
    mpich: PathBuf,
    progress: Progress,
    timeout: u32,
}

/// Which library a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Onecopy,
    Mpich,
}

/// One run.
struct Launch<'a> {
    program: &'a Path,
    /// The sources that it was built in.
    source: &'a Path,
    /// Where it runs.
    folder: &'a Path,
    library: Library,
    ranks: u32,
}

fn text(error: onecopy_vm::Error) -> Failure {
    error.to_string()
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let bench = Bench::prepare(args.timeout)?;
    let apps: Vec<&App> = APPS
        .into_iter()
        .filter(|app| args.app.is_empty() || args.app.iter().any(|name| name == app.name))
        .collect();
    let mut record = Record::default();
    for app in apps {
        let (source, version) = bench.source(app)?;
        let program = bench.built(app, &source)?;
        let mut runs = Vec::new();
        for &ranks in &args.ranks {
            runs.push(bench.compare(app, &source, &program, ranks)?);
        }
        record.apps.push(AppResult {
            name: app.title.to_owned(),
            version,
            verifies: app.verifies.to_owned(),
            runs,
        });
    }
    bench.progress.finish();
    if args.app.is_empty() {
        record.write(&root())?;
    }
    if args.json {
        say::line(&record.json()?);
    } else {
        say::line(&record.table());
    }
    match record.failed() {
        failed if failed.is_empty() => Ok(()),
        failed => Err(format!("failed: {}", failed.join(", "))),
    }
}

impl Bench {
    fn prepare(timeout: u32) -> Result<Self, Failure> {
        let cache = pypi::cache().map_err(text)?;
        let progress = Progress::new();
        let prefix = cache.root().join("prefix");
        progress.step("building and installing onecopy (release)");
        install::into(prefix.clone())?;
        let mpich = pypi::MPICH.home(&cache, &progress).map_err(text)?;
        Ok(Self {
            cache,
            prefix,
            mpich,
            progress,
            timeout,
        })
    }

    /// The unpacked sources of an application, and their version.
    fn source(&self, app: &App) -> Result<(PathBuf, String), Failure> {
        let folder = self.cache.root().join("apps").join(app.name);
        let version = folder.join("version");
        let source = folder.join("source");
        if let Ok(version) = fs::read_to_string(&version) {
            return Ok((source, version));
        }
        self.progress.step(&format!("{}: its sources", app.title));
        let archive = self
            .apt()?
            .download_source(app.package, &folder)
            .map_err(text)?;
        let name = archive
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        fresh(&source)?;
        output(
            gentle("tar")
                .args(["--strip-components=1", "-xf"])
                .arg(&archive)
                .arg("-C")
                .arg(&source),
        )
        .map_err(text)?;
        let found = name
            .split_once('_')
            .and_then(|(_, rest)| rest.split_once(".orig"))
            .map_or(name.clone(), |(version, _)| version.to_owned());
        write(&version, &found)?;
        Ok((source, found))
    }

    fn apt(&self) -> Result<Apt, Failure> {
        let catalog = Catalog::load().map_err(text)?;
        let suites = [SUITE.to_owned()];
        let apt = Apt::with_sources(&self.cache, &catalog, &suites).map_err(text)?;
        self.progress.step("lists of packages");
        apt.update(false).map_err(text)?;
        Ok(apt)
    }

    /// A library of the distribution that an application needs, beside the host's: the folder that it is unpacked in.
    fn package(&self, name: &str) -> Result<PathBuf, Failure> {
        let home = self.cache.root().join("debs").join(name);
        if home.join("done").exists() {
            return Ok(home);
        }
        let apt = self.apt()?;
        self.progress.step(name);
        let found = apt.show(&[name.to_owned()]).map_err(text)?;
        fresh(&home)?;
        for deb in apt.download(&found, &home).map_err(text)? {
            apt::unpack(&deb, &home).map_err(text)?;
        }
        write(&home.join("done"), "")?;
        Ok(home)
    }

    /// The program, built where it is not yet, or was with another header or wrapper.
    fn built(&self, app: &App, source: &Path) -> Result<PathBuf, Failure> {
        let stamp = source.with_file_name("built");
        let mut made_with = read(&self.prefix.join("include/mpi.h"))?;
        made_with += &read(&self.prefix.join("bin/onecopy-mpicc"))?;
        made_with += &self.prefix.display().to_string();
        if let Ok(known) = fs::read_to_string(&stamp)
            && let Some((program, with)) = known.split_once('\n')
            && with == made_with
        {
            return Ok(PathBuf::from(program));
        }
        self.progress.step(&format!("{}: building", app.title));
        let program = (app.build)(self, source)?;
        write(&stamp, &format!("{}\n{made_with}", program.display()))?;
        Ok(program)
    }

    /// Runs a program on both libraries.
    fn compare(
        &self,
        app: &App,
        source: &Path,
        program: &Path,
        ranks: u32,
    ) -> Result<AppRun, Failure> {
        let mut outcomes = Vec::new();
        for library in [Library::Onecopy, Library::Mpich] {
            let name = format!("run-{ranks}-{library:?}");
            let folder = source.with_file_name(name.to_lowercase());
            fresh(&folder)?;
            self.progress
                .step(&format!("{}: {ranks} ranks on {library:?}", app.title));
            let launch = Launch {
                program,
                source,
                folder: &folder,
                library,
                ranks,
            };
            let started = Instant::now();
            let outcome = (app.run)(self, &launch).unwrap_or_else(Outcome::failed);
            let seconds = started.elapsed().as_secs_f64();
            self.progress.note(&format!(
                "{}, {ranks} ranks on {library:?}: {} ({seconds:.0} s)",
                app.title, outcome.verdict
            ));
            outcomes.push(outcome);
        }
        let mpich = outcomes.pop().unwrap_or_default();
        let onecopy = outcomes.pop().unwrap_or_default();
        Ok(AppRun::of(ranks, onecopy, mpich))
    }

    /// The command that starts `ranks` of what is appended to it.
    fn launcher(&self, launch: &Launch<'_>) -> Command {
        let ranks = launch.ranks.to_string();
        let (mut command, library) = match launch.library {
            Library::Onecopy => {
                let mut command = Command::new(self.prefix.join("bin/onecopy"));
                command.args(["run", "-n", &ranks]);
                (command, &self.prefix)
            }
            Library::Mpich => {
                let mut command = Command::new(self.mpich.join("bin/mpiexec"));
                command.args(["-n", &ranks]);
                (command, &self.mpich)
            }
        };
        command
            .current_dir(launch.folder)
            .env("LD_LIBRARY_PATH", library.join("lib"));
        command
    }

    /// Runs a program with a limit to its time; what it wrote.
    fn finish(&self, command: &Command) -> Result<String, Failure> {
        let mut limited = Command::new("timeout");
        limited.arg(self.timeout.to_string());
        limited.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                limited.env(name, value);
            }
        }
        if let Some(folder) = command.get_current_dir() {
            limited.current_dir(folder);
        }
        output(&mut limited).map_err(text)
    }
}

/// An empty folder.
fn fresh(folder: &Path) -> Result<(), Failure> {
    let at = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(at)?;
    }
    fs::create_dir_all(folder).map_err(at)
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// `make`, gently, two at a time.
fn make(folder: &Path, arguments: &[String]) -> Result<(), Failure> {
    let mut make = gentle("make");
    make.arg("-j2").args(arguments).current_dir(folder);
    output(&mut make).map(drop).map_err(text)
}
