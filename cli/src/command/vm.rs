// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy vm`.

mod bed;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use onecopy_vm::cache::Cache;
use onecopy_vm::catalog::{Catalog, RELEASE};
use onecopy_vm::console::Outcome;
use onecopy_vm::initramfs::Initramfs;
use onecopy_vm::kernel::{self, Kernel};
use onecopy_vm::module::{self, Sources};
use onecopy_vm::progress::Progress;
use onecopy_vm::qemu::{self, Machine};
use onecopy_vm::{arch, shell, source};

use super::{CliError, print};

const AFTER_HELP: &str = "The kernel is fetched once, unpacked in ~/.cache/onecopy/vm (ONECOPY_VM_CACHE names another place, \
    ONECOPY_VM_MIRROR another mirror of Debian) and never installed; nothing on this machine changes. Under translation a guest is some ten times slower than the machine: of its times \
    only ratios mean something.\n\nExamples:\n  onecopy vm\n  onecopy vm --kernel newest\n  onecopy vm -- onecopy info\n  \
    onecopy vm --out graphs -- 'onecopy bench --quick --svg /results'\n  onecopy vm --rdma --nodes 2 --copy ./ping -- 'ping $BED_DEVICE'\n\n\
    With --rdma the guest has the kernel's software device for RoCE, and our kernel module is not loaded. The device is on the guest's \
    loopback or, with --nodes 2, on the cable between two guests. COMMAND runs on node a. 'at b COMMAND' runs one on the other, with its output and exit code; \
    /etc/hosts has a and b. BED_SELF is the own node, BED_DEVICE the own device, BED_PEER_DEVICE the other's.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The kernel
    #[arg(long, value_name = "K", default_value = "6.1")]
    kernel: String,

    /// The distribution's build of it, or one that finds mistakes (built here in about ten minutes)
    #[arg(long, value_name = "P", default_value = RELEASE)]
    profile: String,

    /// Processors of a machine; 2 if not given, 1 of each of two machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: Option<u32>,

    /// Memory of a machine in MiB; 3072 if not given, 512 with --rdma
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(256..))]
    memory: Option<u32>,

    /// A machine with a software device for RDMA; kernel 6.1 or newest
    #[arg(long)]
    rdma: bool,

    /// How many machines with such a device: 2 are joined by a cable
    #[arg(long, value_name = "N", default_value = "1", requires = "rdma", value_parser = clap::value_parser!(u32).range(1..=2))]
    nodes: u32,

    /// Copy this program, library or folder into the guest's path; may be given several times
    #[arg(long, value_name = "FILE")]
    copy: Vec<PathBuf>,

    /// Copy what the command leaves in the guest's /results into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Stop the command after so many seconds
    #[arg(long, value_name = "S", default_value = "600")]
    timeout: u64,

    /// List the kernels and profiles, and what of them is in the cache
    #[arg(long)]
    list: bool,

    /// A command for the guest's shell instead of a person at it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let catalog = Catalog::load().map_err(failed)?;
    let cache = Cache::open().map_err(failed)?;
    if args.list {
        return list(&catalog, &cache);
    }
    let progress = Progress::new();
    if args.rdma {
        return bed::run(args, &cache, &catalog, &progress);
    }
    let entry = catalog.kernel(&args.kernel).map_err(usage)?;
    let profile = catalog
        .profile(&args.profile, &args.kernel)
        .map_err(usage)?;
    let kernel = match profile {
        None => kernel::fetch(&cache, &catalog, entry, false, &progress),
        Some(profile) => source::build(&cache, &catalog, profile, &progress),
    }
    .map_err(failed)?;
    let run = cache.new_run(&kernel.name).map_err(failed)?;
    let objects = module::build(&kernel, &Sources::Own, &[], &run, &progress).map_err(failed)?;
    let mut guest = Initramfs::new().map_err(failed)?;
    for object in &objects {
        let name = object.file_name().unwrap_or_default().to_string_lossy();
        let place = format!("payload/{name}");
        guest.copy(object, &place).map_err(failed)?;
    }
    let own = std::env::current_exe().map_err(CliError::io("the path of this program"))?;
    with_programs(&mut guest, &own, &args.copy).map_err(failed)?;
    guest.bytes("payload/run", 0o755, script(&args.command, args.timeout));
    let initramfs = run.join("initramfs.gz");
    guest.write(&initramfs).map_err(failed)?;
    let mut machine = Machine::new(&kernel, initramfs);
    machine.processors = args.cpus.unwrap_or(2);
    machine.memory = args.memory.unwrap_or(3072);
    if args.command.is_empty() {
        return interactive(&cache, &machine, &run, &progress);
    }
    let limit = Duration::from_secs(args.timeout.saturating_add(180));
    let report =
        qemu::run(&cache, &machine, limit, &run, &kernel.name, &progress).map_err(failed)?;
    progress.finish();
    print_report(&kernel, &report, args)
}

/// This program, and what the person wants beside it.
fn with_programs(guest: &mut Initramfs, own: &Path, copies: &[PathBuf]) -> onecopy_vm::Result<()> {
    guest.program(own, "payload/bin/onecopy")?;
    for copy in copies {
        let name = copy.file_name().unwrap_or_default().to_string_lossy();
        if copy.is_dir() {
            guest.copy(copy, &format!("payload/bin/{name}"))?;
        } else if name.contains(".so") {
            guest.program(copy, &format!("payload/lib/{name}"))?;
        } else {
            guest.program(copy, &format!("payload/bin/{name}"))?;
        }
    }
    Ok(())
}

/// The machine for a person.
fn interactive(
    cache: &Cache,
    machine: &Machine,
    run: &Path,
    progress: &Progress,
) -> Result<ExitCode, CliError> {
    let log = run.join("console.log");
    let status = shell::run(cache, machine, &log, progress).map_err(failed)?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the command wrote, and its exit code.
fn print_report(kernel: &Kernel, report: &qemu::Report, args: &Args) -> Result<ExitCode, CliError> {
    let test = report.console.tests().first();
    if let Some(test) = test {
        print(|out| out.write_all(test.output.as_bytes()))?;
    }
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).map_err(CliError::io(folder.display().to_string()))?;
        for file in &report.files {
            let place = folder.join(file.file_name().unwrap_or_default());
            std::fs::copy(file, &place).map_err(CliError::io(place.display().to_string()))?;
        }
    }
    match (&report.outcome, test.and_then(|test| test.code)) {
        (Outcome::Passed, _) => Ok(ExitCode::SUCCESS),
        // The command itself failed, and said why.
        (_, Some(code)) if code != 0 => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        (other, _) => {
            let text = format!(
                "kernel {}: {other}; its console: {}",
                kernel.release,
                report.log.display()
            );
            Err(CliError::Failed(text.into()))
        }
    }
}

/// What the guest runs.
fn script(command: &[String], seconds: u64) -> String {
    let begin = ". /payload/lib.sh\ninsmod /payload/onecopy.ko || exit 1\n";
    format!("{begin}{}", one_test(command, seconds, "sh"))
}

/// The lines that run the command with a shell, and end with whether it failed.
fn one_test(command: &[String], seconds: u64, shell: &str) -> String {
    let command = command.join(" ").replace('\'', "'\\''");
    format!("test_ command {seconds} {shell} -c '{command}'\nexit $failed\n")
}

fn list(catalog: &Catalog, cache: &Cache) -> Result<ExitCode, CliError> {
    print(|out| {
        for entry in catalog.kernels_for(arch::here()) {
            let fetched = kernel::fetched(cache, &entry.name, entry.arch);
            let release = fetched.map_or("not in the cache".to_owned(), |f| f.release);
            writeln!(out, "{:<8} {:<10} {release}", entry.name, RELEASE)?;
            for profile in catalog.profiles.iter().filter(|p| p.kernel == entry.name) {
                let built = source::is_built(cache, profile);
                let word = if built { "built" } else { "not built" };
                writeln!(out, "{:<8} {:<10} {word}", entry.name, profile.name)?;
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn failed(error: onecopy_vm::Error) -> CliError {
    CliError::Failed(error.into())
}

fn usage(error: onecopy_vm::Error) -> CliError {
    CliError::Usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_quoted_for_the_guest() {
        let text = script(&["echo".to_owned(), "'a b'".to_owned()], 9);
        assert!(
            text.contains("test_ command 9 sh -c 'echo '\\''a b'\\'''\n"),
            "{text}"
        );
    }

    #[test]
    fn a_wrong_kernel_is_wrong_usage() {
        let catalog = Catalog::load().expect("catalogue");
        let error = catalog.kernel("2.6").map_err(usage).expect_err("none");
        assert_eq!(error.exit_code(), 2);
    }
}
