// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy vm --rdma`: one machine, or two that are joined.

use std::process::ExitCode;
use std::time::Duration;

use onecopy_vm::cache::Cache;
use onecopy_vm::catalog::{Catalog, RELEASE};
use onecopy_vm::initramfs::Initramfs;
use onecopy_vm::progress::Progress;
use onecopy_vm::qemu::{self, Machine};
use onecopy_vm::rdma::{self, Bed};

use super::super::CliError;
use super::{Args, failed, interactive, one_test, tell, usage, with_programs};

/// Of a machine, unless the person says otherwise.
const MEMORY: u32 = 512;

pub(super) fn run(
    args: &Args,
    cache: &Cache,
    catalog: &Catalog,
    progress: &Progress,
) -> Result<ExitCode, CliError> {
    if args.profile != RELEASE {
        let text = format!(
            "--rdma with --profile {}: there is {RELEASE} only",
            args.profile
        );
        return Err(CliError::Usage(text));
    }
    catalog.bed(&args.kernel).map_err(usage)?;
    let (kernel, tools) = rdma::prepare(cache, catalog, &args.kernel, progress).map_err(failed)?;
    let run = cache.new_run(&kernel.name).map_err(failed)?;
    let bed = if args.nodes == 2 {
        Bed::Pair
    } else {
        Bed::Loop
    };
    let machine = |script: String, name: &str| -> Result<Machine, CliError> {
        let mut guest = Initramfs::new().map_err(failed)?;
        tools.fill(&mut guest, &kernel).map_err(failed)?;
        with_programs(&mut guest, &args.copy)?;
        guest.bytes("payload/run", 0o755, script);
        let initramfs = run.join(format!("{name}.gz"));
        guest.write(&initramfs).map_err(failed)?;
        let mut machine = Machine::new(&kernel, initramfs);
        machine.processors = args.cpus;
        machine.memory = args.memory.unwrap_or(MEMORY);
        Ok(machine)
    };
    let begin = rdma::setting_up(bed);
    let mut first = machine(
        format!(
            "{begin}{}",
            one_test(&args.command, args.timeout, "/bin/dash")
        ),
        "initramfs",
    )?;
    // The cable and the machine at its other end are there until this one has ended.
    let (_cable, _second);
    if bed == Bed::Pair {
        let cable = qemu::cable().map_err(failed)?;
        let mut second = machine(rdma::serving(), "initramfs-b")?;
        first.plug(&cable, 1);
        second.plug(&cable, 2);
        let log = run.join("console-b.log");
        _second = qemu::beside(cache, &second, &log, progress).map_err(failed)?;
        _cable = cable;
    }
    if args.command.is_empty() {
        return interactive(cache, &first, &run, progress);
    }
    let limit = Duration::from_secs(args.timeout.saturating_add(300));
    let report = qemu::run(cache, &first, limit, &run, &kernel.name, progress).map_err(failed)?;
    progress.finish();
    tell(&kernel, &report, args)
}
