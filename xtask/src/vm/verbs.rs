// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm verbs`: RDMA on the kernel's software device, in test beds of one and of two machines.

use std::time::Duration;

use onecopy_vm::console::Outcome;
use onecopy_vm::initramfs::Initramfs;
use onecopy_vm::qemu;
use onecopy_vm::rdma::{self, Bed, Plan};
use serde::Deserialize;

use super::build::{Builder, BuiltPackage, Programs};
use super::suite::Program;
use super::{Bench, Verdict, report, text};
use crate::steps::{Tally, explained};
use crate::{Failure, root, say};

/// Of each machine, in MiB. Two registered buffers of 64 MiB fit.
const MEMORY: u32 = 512;

#[derive(Debug, Default, clap::Args)]
pub(super) struct Args {
    /// Every test on every bed; else those that each change runs
    #[arg(long)]
    all: bool,
    /// Only beds of this kernel: 6.1 or newest
    #[arg(long, value_name = "K")]
    kernel: Option<String>,
    /// Only beds of this kind: loop, spaces, rails or pair
    #[arg(long, value_name = "BED")]
    bed: Option<String>,
    /// Write what the tests write
    #[arg(long, short)]
    verbose: bool,
    /// Only tests of these names
    #[arg(last = true, value_name = "TEST")]
    tests: Vec<String>,
}

impl Args {
    /// The tests of a boot that are wanted.
    fn chosen<'a>(&self, boot: &'a Boot) -> Vec<&'a BedTest> {
        let other = |wanted: &Option<String>, is: &str| wanted.as_ref().is_some_and(|w| w != is);
        if other(&self.kernel, &boot.kernel) || other(&self.bed, boot.bed.word()) {
            return Vec::new();
        }
        let named = |test: &&BedTest| self.tests.is_empty() || self.tests.contains(&test.name);
        let every = self.all || !self.tests.is_empty();
        let due = |test: &&BedTest| every || (boot.reduced && !test.all);
        boot.tests.iter().filter(named).filter(due).collect()
    }
}

/// `vm-images/beds.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beds {
    #[serde(rename = "program")]
    programs: Vec<Program>,
    #[serde(rename = "boot")]
    boots: Vec<Boot>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Boot {
    kernel: String,
    bed: Bed,
    #[serde(default)]
    reduced: bool,
    #[serde(rename = "test")]
    tests: Vec<BedTest>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BedTest {
    name: String,
    command: String,
    /// What of `[[program]]` the guests have for it.
    programs: Vec<String>,
    seconds: u32,
    /// Not with every change.
    #[serde(default)]
    all: bool,
}

impl Beds {
    fn load() -> Result<Self, Failure> {
        let path = root().join("vm-images/beds.toml");
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
        let beds: Self =
            toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        beds.check()?;
        Ok(beds)
    }

    fn check(&self) -> Result<(), Failure> {
        for test in self.boots.iter().flat_map(|boot| &boot.tests) {
            let listed = |name: &&String| self.programs.iter().any(|p| p.name == **name);
            if let Some(unknown) = test.programs.iter().find(|name| !listed(name)) {
                return Err(format!(
                    "beds.toml: test {} wants the program {unknown}, which is not listed",
                    test.name
                ));
            }
        }
        Ok(())
    }

    /// The programs of these tests.
    fn used(&self, tests: &[&BedTest]) -> Vec<&Program> {
        let used = |program: &&Program| tests.iter().any(|test| test.uses(&program.name));
        self.programs.iter().filter(used).collect()
    }
}

impl BedTest {
    fn uses(&self, program: &str) -> bool {
        self.programs.iter().any(|name| name == program)
    }
}

pub(super) fn run(bench: &Bench, args: &Args) -> Result<(), Failure> {
    let tally = beds(bench, args, false).map_err(|(_, failure)| failure)?;
    say::line(&format!("verbs: {} tests passed", tally.passed));
    Ok(())
}

/// What `cargo xtask test` runs of it.
pub(crate) fn ci() -> Result<Tally, (Tally, Failure)> {
    let bench = Bench::open().map_err(|failure| (Tally::default(), failure))?;
    beds(&bench, &Args::default(), true)
}

/// `among_tests`: the whole workspace's tests are built already, and the programs are theirs. Else each is built by
/// itself, which is less for a person who waits.
fn beds(bench: &Bench, args: &Args, among_tests: bool) -> Result<Tally, (Tally, Failure)> {
    let mut tally = Tally::default();
    let build = || {
        let beds = Beds::load()?;
        bench.progress.step("building programs");
        let mut tests = Vec::new();
        for boot in &beds.boots {
            tests.extend(args.chosen(boot));
        }
        let (used, builder) = (beds.used(&tests), Builder::new(false, None));
        let programs = match among_tests {
            true => Programs::only(&used, builder),
            false => Programs::alone(&used, builder),
        }?;
        Ok((beds, programs))
    };
    let (beds, programs) = build().map_err(|failure| (tally, failure))?;
    let mut failed = Vec::new();
    let mut details = Vec::new();
    for boot in &beds.boots {
        let tests = args.chosen(boot);
        if tests.is_empty() {
            continue;
        }
        let verdict = match on(bench, boot, &tests, &programs) {
            Ok(verdict) => verdict,
            Err(failure) => {
                tally.failed += 1;
                failed.push(format!("{} ({}): {failure}", boot.kernel, boot.bed.word()));
                continue;
            }
        };
        report::verdict(&verdict, args.verbose);
        let ran = verdict.report.console.tests();
        let good = ran.iter().filter(|test| test.code == Some(0)).count();
        tally.passed += good as u64;
        tally.failed += (tests.len() - good) as u64;
        let outcome = &verdict.report.outcome;
        if *outcome != Outcome::Passed {
            // A complaint of the kernel fails the run where every test passed.
            tally.failed += u64::from(good == tests.len());
            failed.push(format!("{} ({}): {outcome}", verdict.kernel, verdict.suite));
            details.extend(report::failures(&verdict));
        }
    }
    if !failed.is_empty() {
        return Err((tally, explained(failed.join("; "), details)));
    }
    if tally.passed == 0 {
        let failure = "no such bed or test; vm-images/beds.toml has them".to_owned();
        return Err((tally, failure));
    }
    Ok(tally)
}

fn on(
    bench: &Bench,
    boot: &Boot,
    tests: &[&BedTest],
    programs: &Programs,
) -> Result<Verdict, Failure> {
    let (cache, progress) = (&bench.cache, &bench.progress);
    let prepared = rdma::prepare(cache, &bench.catalog, &boot.kernel, progress);
    let (kernel, tools) = prepared.map_err(text)?;
    let run = cache.new_run(&kernel.name).map_err(text)?;
    let slower = qemu::crowd();
    let fill = |guest: &mut Initramfs| {
        let used = |program: &&BuiltPackage| tests.iter().any(|test| test.uses(&program.name));
        let mut built = programs.built.iter().filter(used);
        built.try_for_each(|program| {
            let place = format!("payload/bin/{}", program.name);
            guest.program(&program.path, &place)
        })
    };
    let plan = Plan {
        bed: boot.bed,
        // The tests sleep. With several, translated guests of newer kernels die at boot now and then.
        processors: 1,
        memory: MEMORY,
        script: script(tests, slower),
        with: &fill,
    };
    let machines = rdma::pack(&kernel, &tools, &plan, &run).map_err(text)?;
    let second = machines.start_second(cache, &run, progress).map_err(text)?;
    let seconds: u32 = tests.iter().map(|test| test.seconds * slower).sum();
    let limit = Duration::from_secs(u64::from(seconds + slower * 180));
    let report = qemu::run(cache, &machines.first, limit, &run, &kernel.name, progress);
    drop(second);
    Ok(Verdict {
        kernel: kernel.name,
        suite: format!("verbs, {}", boot.bed.word()),
        release: kernel.release,
        report: report.map_err(text)?,
        left_out: Vec::new(),
    })
}

fn script(tests: &[&BedTest], slower: u32) -> String {
    // For tests that have limits of their own.
    let mut script = format!("export SLOWER={slower}\n");
    for test in tests {
        let seconds = test.seconds * slower;
        let command = test.command.replace('\'', "'\\''");
        script.push_str(&format!(
            "test_ {} {seconds} /bin/dash -c '{command}'\n",
            test.name
        ));
    }
    script.push_str("exit $failed\n");
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_file_is_in_order() {
        let beds = Beds::load().expect("beds.toml");
        let kernels = onecopy_vm::catalog::Catalog::load().expect("kernels.toml");
        for boot in &beds.boots {
            kernels.bed(&boot.kernel).expect("a kernel with the device");
            // Only the newest knows spaces of the network.
            assert!(boot.bed != Bed::Spaces || boot.kernel == "newest");
        }
        let count =
            |args: Args| -> usize { beds.boots.iter().map(|boot| args.chosen(boot).len()).sum() };
        let (reduced, all) = (
            count(Args::default()),
            count(Args {
                all: true,
                ..Args::default()
            }),
        );
        assert!(0 < reduced && reduced < all);
        let netem = Args {
            tests: vec!["netem".to_owned()],
            ..Args::default()
        };
        assert_eq!(count(netem), 1, "a test that is named runs");
    }

    #[test]
    fn a_guest_has_the_programs_of_its_tests() {
        let mut beds = Beds::load().expect("beds.toml");
        let hydra: Vec<&BedTest> = beds.boots.iter().flat_map(|boot| &boot.tests).collect();
        let hydra: Vec<&BedTest> = hydra.into_iter().filter(|t| t.name == "hydra").collect();
        let names: Vec<&str> = beds.used(&hydra).iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["mpiexec", "hydra_pmi_proxy", "mpi-hosts"]);
        beds.programs.retain(|program| program.name != "mpiexec");
        let error = beds.check().expect_err("no such program");
        assert!(error.contains("hydra wants the program mpiexec"), "{error}");
    }

    #[test]
    fn commands_are_quoted() {
        let test = BedTest {
            name: "a".to_owned(),
            command: "echo 'x'".to_owned(),
            programs: Vec::new(),
            seconds: 2,
            all: false,
        };
        let wanted = "export SLOWER=3\ntest_ a 6 /bin/dash -c 'echo '\\''x'\\'''\nexit $failed\n";
        assert_eq!(script(&[&test], 3), wanted);
    }
}
