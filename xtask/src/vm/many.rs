// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several machines, one after another: `cargo xtask vm test` and `cargo xtask vm fuzz`.

use onecopy_vm::arch::{self, Arch};
use onecopy_vm::catalog::{KernelEntry, RELEASE};
use onecopy_vm::console::Outcome;

use super::suite::{Choice, DEFAULT, Suite};
use super::{BENCH, Bench, RunArgs, architecture, on, report, text};
use crate::steps::{Tally, explained};
use crate::{Failure, root, say};

/// The suite with random calls.
const FUZZ: &str = "fuzz";
/// How guests of the fuzzer keep time: a tick, and no timer that is set anew for each event. Since 7.3 the scheduler
/// does that at every switch. Each time a translated guest leaves what was translated and waits for QEMU's lock. On a
/// busy host that is a fifth of all its time, and more for a process that waits for such a processor.
const CLOCK: [&str; 2] = ["highres=off", "nohz=off"];

#[derive(Debug, clap::Args)]
pub(super) struct TestArgs {
    /// Every suite on every kernel, and on every profile those that have a test for it
    #[arg(long)]
    all: bool,
    /// Only this kernel; may be given several times. All of another architecture if not given
    #[arg(long, value_name = "K")]
    kernel: Vec<String>,
    /// The kernels' architecture: amd64 or arm64
    #[arg(long, value_name = "A", default_value = arch::here().name, value_parser = architecture)]
    arch: &'static Arch,
    /// Only this suite; may be given several times
    #[arg(long, value_name = "S")]
    suite: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct FuzzArgs {
    /// Calls on the devices, on each kernel
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    calls: u64,
    /// A kernel, as 'list' names it; may be given several times. Those that every change is tested on if not given
    #[arg(long, value_name = "K")]
    kernel: Vec<String>,
    /// A profile; may be given several times. All that find mistakes, and the distribution's build where there is none,
    /// if not given
    #[arg(long, value_name = "P")]
    profile: Vec<String>,
    /// What the dice begin with
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Minutes after which it is a failure that the calls are not done
    #[arg(long, value_name = "N", default_value_t = 720)]
    minutes: u32,
}

/// The fuzzer on each kernel and profile, one after another; all of them, though one fails.
pub(super) fn fuzz(bench: &Bench, args: &FuzzArgs) -> Result<(), Failure> {
    let suite = Suite::load(&root())?;
    let wanted = |kernel: &&KernelEntry| {
        kernel.ci && args.kernel.is_empty() || args.kernel.contains(&kernel.name)
    };
    let mut runs = Vec::new();
    for entry in bench.catalog.kernels_for(arch::here()).filter(wanted) {
        let mut profiles = args.profile.clone();
        if profiles.is_empty() {
            let all = bench.catalog.profiles.iter();
            let finds = all.filter(|p| p.kernel == entry.name && suite.has_any(FUZZ, &p.name));
            profiles.extend(finds.map(|p| p.name.clone()));
        }
        if profiles.is_empty() {
            profiles.push(RELEASE.to_owned());
        }
        runs.extend(profiles.into_iter().map(|p| RunArgs::on(&entry.name, &p)));
    }
    if runs.is_empty() {
        return Err(format!("no kernel {}", args.kernel.join(", ")));
    }
    let mut failed = Vec::new();
    for run in runs {
        let run = RunArgs {
            release: true,
            suite: FUZZ.to_owned(),
            seconds: args.minutes * 60 + 300,
            set: vec![
                format!("FUZZ_CALLS={}", args.calls),
                format!("FUZZ_MINUTES={}", args.minutes),
                format!("FUZZ_SEED={}", args.seed),
            ],
            word: CLOCK.map(str::to_owned).to_vec(),
            ..run
        };
        let verdict = on(bench, &suite, &run, &Choice::Suite(&run.suite))?;
        report::verdict(&verdict, true);
        let splats = verdict.report.console.splats().len();
        say::line(&format!(
            "{}: {} calls asked for, {splats} complaints of the kernel",
            verdict.kernel, args.calls
        ));
        if verdict.report.outcome != Outcome::Passed {
            failed.push(format!("{}: {}", verdict.kernel, verdict.report.outcome));
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; "))
    }
}

/// `cargo xtask vm test`.
pub(super) fn test(bench: &Bench, args: &TestArgs) -> Result<(), Failure> {
    match suites(bench, args) {
        Ok(_) => Ok(()),
        Err((_, failure)) => Err(failure),
    }
}

/// What `cargo xtask test` runs of it.
pub(crate) fn ci() -> Result<Tally, (Tally, Failure)> {
    let bench = Bench::open().map_err(|failure| (Tally::default(), failure))?;
    let args = TestArgs {
        all: false,
        kernel: Vec::new(),
        arch: arch::here(),
        suite: Vec::new(),
    };
    suites(&bench, &args)
}

/// What is booted: a machine for each suite.
fn boots(bench: &Bench, suite: &Suite, args: &TestArgs) -> Result<Vec<RunArgs>, Failure> {
    for name in &args.kernel {
        bench.catalog.kernel_for(name, args.arch).map_err(text)?;
    }
    let wanted = |kernel: &str| args.kernel.is_empty() || args.kernel.iter().any(|k| k == kernel);
    let names: Vec<&str> = match (args.suite.as_slice(), args.all) {
        ([], true) => suite.names(),
        ([], false) => vec![DEFAULT],
        (some, _) => some.iter().map(String::as_str).collect(),
    };
    let mut boots = Vec::new();
    let mut boot = |mut run: RunArgs, name: &str| {
        run.suite = name.to_owned();
        run.arch = args.arch;
        run.release = name == BENCH;
        boots.push(run);
    };
    // No change is tested on another architecture's: a call that asks for that asks for all of them.
    let every = args.all || !args.kernel.is_empty() || !args.arch.is_here();
    let kernels = bench.catalog.kernels_for(args.arch);
    for entry in kernels.filter(|k| (every || k.ci) && wanted(&k.name)) {
        for name in &names {
            boot(RunArgs::on(&entry.name, RELEASE), name);
        }
    }
    if args.all && args.arch.is_here() && wanted("6.1") && names.contains(&DEFAULT) {
        // As on a kernel that has no HMM_MIRROR.
        let mut run = RunArgs::on("6.1", RELEASE);
        run.make = vec!["NO_HMM=1".to_owned()];
        boot(run, DEFAULT);
    }
    let profiles = bench.catalog.profiles.iter();
    let built = args.all && args.arch.is_here();
    for profile in profiles.filter(|p| built && wanted(&p.kernel)) {
        for name in &names {
            boot(RunArgs::on(&profile.kernel, &profile.name), name);
        }
    }
    Ok(boots)
}

fn suites(bench: &Bench, args: &TestArgs) -> Result<Tally, (Tally, Failure)> {
    let mut tally = Tally::default();
    let load = || {
        let suite = Suite::load(&root())?;
        let boots = boots(bench, &suite, args)?;
        Ok((suite, boots))
    };
    let (suite, boots) = load().map_err(|failure| (tally, failure))?;
    let mut failed = Vec::new();
    let mut details = Vec::new();
    for args in &boots {
        if !suite.has_any(&args.suite, &args.profile) {
            continue;
        }
        match on(bench, &suite, args, &Choice::Suite(&args.suite)) {
            Ok(verdict) => {
                report::verdict(&verdict, false);
                let tests = verdict.report.console.tests();
                let good = tests.iter().filter(|test| test.code == Some(0)).count();
                tally.passed += good as u64;
                tally.failed += (tests.len() - good) as u64;
                if verdict.report.outcome != Outcome::Passed {
                    // A complaint of the kernel fails the run where every test passed.
                    tally.failed += u64::from(good == tests.len());
                    failed.push(format!("{} ({})", verdict.kernel, args.suite));
                    details.extend(report::failures(&verdict));
                }
            }
            Err(failure) => {
                tally.failed += 1;
                let kernel = args.arch.tag(&args.kernel);
                let name = format!("{kernel} {} ({})", args.profile, args.suite);
                say::warn(&format!("vm: {name}: {failure}"));
                details.push(format!("{name}: {failure}"));
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        Ok(tally)
    } else {
        let failure = format!("failed on {}", failed.join(", "));
        Err((tally, explained(failure, details)))
    }
}
