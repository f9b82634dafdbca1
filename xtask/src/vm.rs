// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm`: the module and the runtime in virtual machines with other kernels.

mod build;
mod headers;
mod many;
mod payload;
mod report;
mod suite;
mod verbs;

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use onecopy_vm::arch::Arch;
use onecopy_vm::cache::Cache;
use onecopy_vm::catalog::{Catalog, KernelEntry, ProfileEntry, RELEASE};
use onecopy_vm::console::Outcome;
use onecopy_vm::kernel::{self, Kernel};
use onecopy_vm::module::{self, Sources};
use onecopy_vm::progress::Progress;
use onecopy_vm::userland::Userland;
use onecopy_vm::{arch, qemu, rdma, shell, source, toolchain};

use crate::{Failure, root, say};
use build::{Builder, Programs};
pub(crate) use many::ci;
use payload::Payload;
use suite::{Choice, DEFAULT, Suite, Test};
pub(crate) use verbs::ci as verbs_ci;

/// The suite with figures, for which programs are built with all optimisation.
const BENCH: &str = "bench";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the kernels and profiles, and what of them is in the cache
    List,
    /// Fetch a kernel, or all, and build a profile's kernel where one is asked for
    Fetch(FetchArgs),
    /// Boot one kernel and run tests in it, or a shell
    Run(RunArgs),
    /// Run the default suite on the kernels that every change is tested on, or every suite on all
    Test(many::TestArgs),
    /// Compare all mechanisms in a guest, and draw the graphs
    Bench(BenchArgs),
    /// Make random calls on the three devices, most of them hostile, and count them
    Fuzz(many::FuzzArgs),
    /// Test RDMA on the kernel's software device, in beds of one and of two machines
    Verbs(verbs::Args),
    /// Build the module for every kernel of which the mirrors have headers
    Headers(headers::Args),
    /// Remove what was fetched for and left by runs
    Clean {
        /// Kernels and sources too; building a debug kernel again takes ten minutes
        #[arg(long)]
        all: bool,
    },
}

#[derive(Debug, clap::Args)]
struct FetchArgs {
    /// The kernel; all if not given
    #[arg(long, value_name = "K")]
    kernel: Option<String>,
    /// The kernel's architecture: amd64 or arm64
    #[arg(long, value_name = "A", default_value = arch::here().name, value_parser = architecture)]
    arch: &'static Arch,
    /// The profile
    #[arg(long, value_name = "P", default_value = RELEASE)]
    profile: String,
    /// Look for a newer release even if one is in the cache
    #[arg(long)]
    refresh: bool,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// The kernel, as 'list' names it
    #[arg(long, value_name = "K", default_value = "6.1")]
    kernel: String,
    /// The kernel's architecture: amd64 or arm64
    #[arg(long, value_name = "A", default_value = arch::here().name, value_parser = architecture)]
    arch: &'static Arch,
    /// The kernel's profile: the distribution's build, or one that finds mistakes
    #[arg(long, value_name = "P", default_value = RELEASE)]
    profile: String,
    /// An interactive shell instead of tests
    #[arg(long)]
    shell: bool,
    /// Build the programs with optimisation
    #[arg(long)]
    release: bool,
    /// Write what the tests write
    #[arg(long, short)]
    verbose: bool,
    /// Build the module from the sources in this folder
    #[arg(long, value_name = "DIR")]
    module: Option<PathBuf>,
    /// Build another module from the sources in this folder, for the test `speed` to compare with
    #[arg(long, value_name = "DIR")]
    beside: Option<PathBuf>,
    /// A variable for the module's make, such as NO_HMM=1
    #[arg(long, value_name = "NAME=VALUE")]
    make: Vec<String>,
    /// Copy files that the guest sent into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A variable for the tests' commands, such as CHURN_SECONDS=60
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// A further word for the kernel's command line, such as highres=off; may be given several times
    #[arg(long, value_name = "W")]
    word: Vec<String>,
    /// Let each test take so many seconds at least
    #[arg(long, value_name = "N", default_value_t = 0)]
    seconds: u32,
    /// The suite to run
    #[arg(long, value_name = "S", default_value = DEFAULT)]
    suite: String,
    /// The tests to run instead of a suite. `-- '!'` and a name is the default suite without that test
    #[arg(last = true, value_name = "TEST")]
    tests: Vec<String>,
}

impl RunArgs {
    /// The default suite on a kernel.
    fn on(kernel: &str, profile: &str) -> Self {
        Self {
            kernel: kernel.to_owned(),
            arch: arch::here(),
            profile: profile.to_owned(),
            shell: false,
            release: false,
            verbose: false,
            module: None,
            beside: None,
            make: Vec::new(),
            out: None,
            set: Vec::new(),
            word: Vec::new(),
            seconds: 0,
            suite: DEFAULT.to_owned(),
            tests: Vec::new(),
        }
    }

    fn sources(&self) -> Sources {
        let own = || root().join("kmod");
        Sources::Folder(self.module.clone().unwrap_or_else(own))
    }

    fn machine(&self, kernel: &Kernel, initramfs: PathBuf) -> qemu::Machine {
        let mut machine = qemu::Machine::new(kernel, initramfs);
        let own = Some(machine.words.as_str()).filter(|words| !words.is_empty());
        let words: Vec<&str> = own
            .into_iter()
            .chain(self.word.iter().map(String::as_str))
            .collect();
        machine.words = words.join(" ");
        machine
    }

    /// What make is told: the module's own tests are built too.
    fn variables(&self) -> Vec<String> {
        let mut variables = vec!["CONFIG_ONECOPY_KUNIT=y".to_owned()];
        variables.extend_from_slice(&self.make);
        variables
    }
}

#[derive(Debug, clap::Args)]
struct BenchArgs {
    /// The kernel, as 'list' names it
    #[arg(long, value_name = "K", default_value = "6.1")]
    kernel: String,
    /// The folder for the graphs and the figures
    #[arg(long, value_name = "DIR", default_value = "bench-out")]
    out: PathBuf,
}

/// What every action works with.
struct Bench {
    cache: Cache,
    catalog: Catalog,
    progress: Progress,
}

impl Bench {
    fn open() -> Result<Self, Failure> {
        Ok(Self {
            cache: Cache::open().map_err(text)?,
            catalog: Catalog::load().map_err(text)?,
            progress: Progress::new(),
        })
    }

    /// The kernel, fetched or built first where it is missing.
    fn kernel(
        &self,
        name: &str,
        arch: &'static Arch,
        profile: &str,
        refresh: bool,
    ) -> Result<Kernel, Failure> {
        let entry = self.catalog.kernel_for(name, arch).map_err(text)?;
        let profile = self.catalog.profile_for(profile, name, arch);
        match profile.map_err(text)? {
            None => kernel::fetch(&self.cache, &self.catalog, entry, refresh, &self.progress),
            Some(profile) => source::build(&self.cache, &self.catalog, profile, &self.progress),
        }
        .map_err(text)
    }
}

/// Fetches the kernels that every change is tested on, and what the beds for RDMA have. It does so in a thread, for it
/// waits for a network and needs no processor. What fails is tried again by the step that needs it, which says why.
pub(crate) fn fetch_ahead() -> JoinHandle<()> {
    std::thread::spawn(|| {
        let Ok(Bench { cache, catalog, .. }) = Bench::open() else {
            return;
        };
        // The one of the opened bench has ended: nothing is drawn among other steps.
        let bench = Bench {
            cache,
            catalog,
            progress: Progress::hidden(),
        };
        let kernels = bench.catalog.kernels_for(arch::here());
        for entry in kernels.filter(|entry| entry.ci) {
            drop(bench.kernel(&entry.name, entry.arch, RELEASE, false));
        }
        for bed in &bench.catalog.beds {
            drop(rdma::prepare(
                &bench.cache,
                &bench.catalog,
                &bed.name,
                &bench.progress,
            ));
        }
    })
}

fn text(error: onecopy_vm::Error) -> Failure {
    error.to_string()
}

/// An architecture by any of its names.
fn architecture(name: &str) -> Result<&'static Arch, Failure> {
    arch::named(name).map_err(text)
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let bench = Bench::open()?;
    match &args.action {
        Action::List => list(&bench),
        Action::Fetch(args) => fetch(&bench, args),
        Action::Run(args) => one(&bench, args),
        Action::Test(args) => many::test(&bench, args),
        Action::Bench(args) => compare(&bench, args),
        Action::Fuzz(args) => many::fuzz(&bench, args),
        Action::Headers(args) => headers::run(&bench, args),
        Action::Verbs(args) => verbs::run(&bench, args),
        Action::Clean { all } => bench.cache.clean(*all).map_err(text),
    }
}

fn list(bench: &Bench) -> Result<(), Failure> {
    let head = [
        "kernel",
        "arch",
        "profile",
        "release",
        "in the cache",
        "compiler",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for entry in &bench.catalog.kernels {
        let compiler = bench.catalog.toolchain_for(&entry.toolchain, entry.arch);
        let compiler = compiler.map(|c| format!("{} ({})", c.program(), c.name));
        rows.push(kernel_row(bench, entry, "image, headers", compiler));
        let profiles = bench.catalog.profiles.iter();
        let own = profiles.filter(|p| p.kernel == entry.name && entry.arch.is_here());
        rows.extend(own.map(|profile| profile_row(bench, entry, profile)));
    }
    let beds = bench.catalog.beds.iter();
    rows.extend(beds.map(|entry| kernel_row(bench, entry, "image, modules", None)));
    report::table(&rows);
    let suite = Suite::load(&root())?;
    say::line(&format!("suites: {}", suite.names().join(", ")));
    say::line(&format!("cache: {}", bench.cache.root().display()));
    Ok(())
}

/// A row of the list of kernels.
type Row = [String; 6];

/// A kernel as the distribution built it. `parts`: what the cache has of it, once it is fetched.
fn kernel_row(bench: &Bench, entry: &KernelEntry, parts: &str, compiler: Option<String>) -> Row {
    let fetched = kernel::fetched(&bench.cache, &entry.name, entry.arch);
    let cached = if fetched.is_some() { parts } else { "no" };
    let dash = || "-".to_owned();
    [
        entry.name.clone(),
        entry.arch.name.to_owned(),
        RELEASE.to_owned(),
        fetched.map_or_else(dash, |fetched| fetched.release),
        cached.to_owned(),
        compiler.unwrap_or_else(dash),
    ]
}

/// A kernel that is built here.
fn profile_row(bench: &Bench, entry: &KernelEntry, profile: &ProfileEntry) -> Row {
    let built = source::is_built(&bench.cache, profile);
    [
        entry.name.clone(),
        entry.arch.name.to_owned(),
        profile.name.clone(),
        source::package_name(profile),
        if built { "built" } else { "no" }.to_owned(),
        source::COMPILER.to_owned(),
    ]
}

fn fetch(bench: &Bench, args: &FetchArgs) -> Result<(), Failure> {
    if let Some(bed) = args
        .kernel
        .as_deref()
        .filter(|name| name.starts_with("rdma-"))
    {
        let (cache, catalog) = (&bench.cache, &bench.catalog);
        let (kernel, _) = rdma::prepare(cache, catalog, bed, &bench.progress).map_err(text)?;
        say::line(&format!("{}: {}", kernel.name, kernel.release));
        return Ok(());
    }
    let names: Vec<&str> = match &args.kernel {
        Some(name) => vec![name],
        None => bench
            .catalog
            .kernels_for(args.arch)
            .map(|k| k.name.as_str())
            .filter(|name| {
                let profile = bench.catalog.profile_for(&args.profile, name, args.arch);
                profile.is_ok()
            })
            .collect(),
    };
    for name in names {
        let kernel = bench.kernel(name, args.arch, &args.profile, args.refresh)?;
        say::line(&format!(
            "{}: {}, modules by {}",
            kernel.name,
            kernel.release,
            kernel.toolchain.name()
        ));
    }
    Ok(())
}

fn one(bench: &Bench, args: &RunArgs) -> Result<(), Failure> {
    if args.shell {
        return interactive(bench, args);
    }
    let suite = Suite::load(&root())?;
    let choice = if args.tests.is_empty() {
        Choice::Suite(&args.suite)
    } else {
        Choice::Named(&args.tests)
    };
    let verdict = on(bench, &suite, args, &choice)?;
    report::verdict(&verdict, args.verbose);
    if let Some(out) = &args.out {
        report::copy(&verdict, out)?;
    }
    match verdict.report.outcome {
        Outcome::Passed => Ok(()),
        other => Err(format!("{}: {other}", verdict.kernel)),
    }
}

/// A run and what it was on.
pub(crate) struct Verdict {
    kernel: String,
    suite: String,
    release: String,
    report: qemu::Report,
    left_out: Vec<String>,
}

fn on(
    bench: &Bench,
    suite: &Suite,
    args: &RunArgs,
    choice: &Choice<'_>,
) -> Result<Verdict, Failure> {
    let kernel = bench.kernel(&args.kernel, args.arch, &args.profile, false)?;
    let (mut tests, left_out) = suite.choose(&kernel, &args.profile, choice)?;
    for test in &mut tests {
        test.seconds = test
            .seconds
            .max(args.seconds.div_ceil(kernel.slower.max(1)));
    }
    let run = bench.cache.new_run(&kernel.name).map_err(text)?;
    let objects = objects(bench, args, &kernel, &run)?;
    let userland = userland(bench, args.arch)?;
    let builder = Builder::new(args.release, userland.as_ref());
    let programs = programs(bench, args, &kernel, suite, &tests, builder)?;
    let slower = kernel.slower * qemu::crowd();
    let payload = Payload {
        userland: userland.as_ref(),
        objects: &objects,
        programs: &programs,
        tests: &tests,
        slower,
        variables: &args.set,
    };
    let initramfs = payload.pack(&run)?;
    let machine = args.machine(&kernel, initramfs);
    let seconds: u32 = tests.iter().map(|test| test.seconds * slower).sum();
    let limit = Duration::from_secs(u64::from(seconds) + u64::from(slower) * 120);
    let report = qemu::run(
        &bench.cache,
        &machine,
        limit,
        &run,
        &kernel.name,
        &bench.progress,
    )
    .map_err(text)?;
    let suite = match choice {
        Choice::Suite(name) => (*name).to_owned(),
        Choice::Named(names) => names.join(" "),
    };
    Ok(Verdict {
        kernel: kernel.name,
        suite,
        release: kernel.release,
        report: payload::judge(report, &tests),
        left_out,
    })
}

/// The modules of a run.
fn objects(
    bench: &Bench,
    args: &RunArgs,
    kernel: &Kernel,
    run: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    let sources = args.sources();
    let built = module::build(kernel, &sources, &args.variables(), run, &bench.progress);
    let mut objects = built.map_err(text)?;
    if let Some(beside) = &args.beside {
        objects.push(another(bench, kernel, beside, &args.make, run)?);
    }
    Ok(objects)
}

/// The programs of a run's tests.
fn programs(
    bench: &Bench,
    args: &RunArgs,
    kernel: &Kernel,
    suite: &Suite,
    tests: &[Test],
    builder: Builder<'_>,
) -> Result<Programs, Failure> {
    let progress = &bench.progress;
    progress.step(&format!("{}: building programs", kernel.name));
    let plant = |packages: &[String]| {
        let entry = bench.catalog.kernel_for(&args.kernel, args.arch);
        let entry = entry.map_err(text)?;
        let (cache, catalog) = (&bench.cache, &bench.catalog);
        toolchain::distribution(cache, catalog, entry, &kernel.release, packages, progress)
            .map_err(text)
    };
    Programs::build(suite, tests, builder, plant)
}

/// Another module, under a name of its own.
fn another(
    bench: &Bench,
    kernel: &Kernel,
    from: &Path,
    variables: &[String],
    run: &Path,
) -> Result<PathBuf, Failure> {
    let folder = run.join("other");
    let sources = Sources::Folder(from.to_owned());
    let built = module::build(kernel, &sources, variables, &folder, &bench.progress);
    let built = built.map_err(text)?;
    let is_module = |object: &&PathBuf| object.file_name().is_some_and(|name| name == "onecopy.ko");
    let object = built.iter().find(is_module);
    let object = object.ok_or_else(|| format!("{}: no onecopy.ko was built", from.display()))?;
    let place = run.join("other.ko");
    std::fs::copy(object, &place).map_err(|error| format!("{}: {error}", place.display()))?;
    Ok(place)
}

/// What guests of an architecture have beside the kernel. Its compilers see the repository and what cargo has fetched.
fn userland(bench: &Bench, arch: &'static Arch) -> Result<Option<Userland>, Failure> {
    if arch.is_here() {
        return Ok(None);
    }
    let seen = [root(), build::cargo_home()?];
    Userland::prepare(&bench.cache, &bench.catalog, arch, &seen, &bench.progress).map_err(text)
}

fn interactive(bench: &Bench, args: &RunArgs) -> Result<(), Failure> {
    let kernel = bench.kernel(&args.kernel, args.arch, &args.profile, false)?;
    let suite = Suite::load(&root())?;
    let run = bench.cache.new_run(&kernel.name).map_err(text)?;
    let sources = args.sources();
    let objects =
        module::build(&kernel, &sources, &args.variables(), &run, &bench.progress).map_err(text)?;
    bench.progress.step("building programs");
    let userland = userland(bench, args.arch)?;
    let builder = Builder::new(args.release, userland.as_ref());
    let programs = Programs::build_all(&suite, builder)?;
    let payload = Payload {
        userland: userland.as_ref(),
        objects: &objects,
        programs: &programs,
        tests: &[],
        slower: kernel.slower,
        variables: &args.set,
    };
    let initramfs = payload.pack(&run)?;
    let machine = args.machine(&kernel, initramfs);
    let status = shell::run(
        &bench.cache,
        &machine,
        &run.join("console.log"),
        &bench.progress,
    );
    let status = status.map_err(text)?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("QEMU: {status}"))
    }
}

/// One kernel's figures of all mechanisms.
fn compare(bench: &Bench, args: &BenchArgs) -> Result<(), Failure> {
    let args = RunArgs {
        release: true,
        verbose: true,
        out: Some(args.out.clone()),
        suite: BENCH.to_owned(),
        ..RunArgs::on(&args.kernel, RELEASE)
    };
    one(bench, &args)
}
