// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy vm --rdma`: one machine, or two that are joined.

use std::process::ExitCode;
use std::time::Duration;

use onecopy_vm::cache::Cache;
use onecopy_vm::catalog::{Catalog, RELEASE};
use onecopy_vm::progress::Progress;
use onecopy_vm::qemu;
use onecopy_vm::rdma::{self, Bed, Plan};

use super::super::CliError;
use super::{Args, failed, interactive, one_test, print_report, usage, with_programs};

/// Of a machine, unless the person says otherwise. In MiB. Chosen by magnitude: several machines of a bed run at once.
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
    let own = std::env::current_exe().map_err(CliError::io("the path of this program"))?;
    let pair = args.nodes == 2;
    let plan = Plan {
        bed: if pair { Bed::Pair } else { Bed::Loop },
        // Of two machines, each has one: they share the processors of this one.
        processors: args.cpus.unwrap_or(if pair { 1 } else { 2 }),
        memory: args.memory.unwrap_or(MEMORY),
        script: one_test(&args.command, args.timeout, "/bin/dash"),
        with: &|guest| with_programs(guest, &own, &args.copy),
    };
    let machines = rdma::pack(&kernel, &tools, &plan, &run).map_err(failed)?;
    let second = machines
        .start_second(cache, &run, progress)
        .map_err(failed)?;
    if args.command.is_empty() {
        return interactive(cache, &machines.first, &run, progress);
    }
    let limit = Duration::from_secs(args.timeout.saturating_add(300));
    let report = qemu::run(cache, &machines.first, limit, &run, &kernel.name, progress);
    drop(second);
    progress.finish();
    print_report(&kernel, &report.map_err(failed)?, args)
}
