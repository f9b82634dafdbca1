// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process's part in the job: from `MPI_Init` to `MPI_Finalize`.

use crate::comm::CommObject;
use crate::failure::{Outcome, fail};
use crate::group::GroupObject;
use crate::{attributes, c, codes, comm, device, phase, request, store};
use onecopy::{Options, Runtime, Threads};
use onecopy_shm::gate::{self, Misuse};
use std::sync::{Arc, Mutex};

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// Ends the job of a program that calls as it may not, where no call can give an error.
fn end_for_misuse(misuse: Misuse) {
    let rank = comm::world().map_or(0, |world| world.rank);
    let level = match phase::thread_level() {
        Some((c::THREAD_SINGLE, _)) => "MPI_THREAD_SINGLE, as MPI_Init asks",
        _ => "MPI_THREAD_FUNNELED",
    };
    codes::report(&match misuse {
        Misuse::SecondThread => format!(
            "onecopy: rank {rank}: a second thread called MPI, which was initialized with {level}. \
             Call MPI_Init_thread with MPI_THREAD_MULTIPLE, or MPI_THREAD_SERIALIZED if one thread calls at a time"
        ),
        Misuse::Reentered => format!("onecopy: rank {rank}: {misuse}"),
    });
    phase::abort(1);
}

/// Joins the job.
pub(crate) fn start(required: i32) -> Outcome<i32> {
    if phase::is_forked() {
        return Err(phase::not_active());
    }
    let mut slot = phase::lock(&RUNTIME);
    if phase::is_finalized() && !phase::is_aborted() {
        let what = "MPI_Finalize was called already: a process can initialize MPI once";
        return Err(fail(c::ERR_OTHER, what));
    }
    if phase::is_initialized() {
        return Err(fail(c::ERR_OTHER, "MPI was initialized already"));
    }
    let level = [c::THREAD_MULTIPLE, c::THREAD_SERIALIZED, c::THREAD_FUNNELED]
        .into_iter()
        .find(|&level| required >= level)
        .unwrap_or(c::THREAD_SINGLE);
    let mut options = Options::from_env()?;
    // One thread at a time is several threads for the engine's lock.
    options.threads = if level >= c::THREAD_SERIALIZED {
        Threads::Multiple
    } else {
        Threads::Single
    };
    phase::set_checks(options.knobs.mpi_checks);
    device::set_bounds(options.knobs.device_staging, options.knobs.device_mappings);
    let runtime = Runtime::init_with(options)?;
    let (rank, size) = (runtime.rank(), runtime.size());
    phase::set_emergency(runtime.emergency());
    let world = Arc::new(GroupObject::new((0..size as u32).collect(), rank as u32));
    let alone = Arc::new(GroupObject::new(vec![rank as u32], rank as u32));
    let comm = runtime.world();
    comm::set_predefined(
        CommObject::predefined(&comm, c::COMM_WORLD, world, 0, "MPI_COMM_WORLD"),
        CommObject::predefined(&comm, c::COMM_SELF, alone, 2, "MPI_COMM_SELF"),
    );
    gate::on_misuse(end_for_misuse);
    *slot = Some(runtime);
    phase::begin(level, &comm);
    Ok(level)
}

/// Leaves the job.
pub(crate) fn finish() -> Outcome<()> {
    if phase::is_forked() {
        // At its exit a child runs what its parent has left for that.
        return Ok(());
    }
    if !phase::is_active() {
        return Err(phase::not_active());
    }
    if let Some(own) = comm::own() {
        attributes::delete_all(&own.attributes, c::COMM_SELF.0)?;
    }
    if let Some(world) = comm::world() {
        attributes::delete_all(&world.attributes, c::COMM_WORLD.0)?;
    }
    store::drain_all();
    request::settle_orphans();
    let runtime = phase::lock(&RUNTIME).take();
    phase::finish();
    device::end();
    match runtime {
        Some(runtime) => Ok(runtime.finalize()?),
        None => Err(phase::not_active()),
    }
}

/// Runs `f` with the runtime.
pub(crate) fn with_runtime<R>(f: impl FnOnce(&Runtime) -> Outcome<R>) -> Outcome<R> {
    if phase::is_forked() {
        return Err(phase::not_active());
    }
    match &*phase::lock(&RUNTIME) {
        Some(runtime) => f(runtime),
        None => Err(phase::not_active()),
    }
}
