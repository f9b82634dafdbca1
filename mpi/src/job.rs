// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process's part in the job: from `MPI_Init` to `MPI_Finalize`.

use crate::comm::CommObject;
use crate::failure::{Failure, Outcome, fail};
use crate::group::GroupObject;
use crate::{attr, buffer, c, end, errors, request};
use nix::unistd::Pid;
use onecopy::wireup::{Emergency, exit_code};
use onecopy::{Options, Runtime, Threads};
use onecopy_shm::fork;
use onecopy_shm::gate::{self, Misuse};
use onecopy_shm::sync::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

const BEFORE: u32 = 0;
const ACTIVE: u32 = 1;
const OVER: u32 = 2;
/// A child of a fork of a rank: it is none.
const FORKED: u32 = 3;

static PHASE: AtomicU32 = AtomicU32::new(BEFORE);
static CHECKS: AtomicBool = AtomicBool::new(true);
static SHARED: AtomicBool = AtomicBool::new(false);
static WORLD: OnceLock<Arc<CommObject>> = OnceLock::new();
static SELF: OnceLock<Arc<CommObject>> = OnceLock::new();
static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
static THREADS: OnceLock<(i32, Pid)> = OnceLock::new();
static EMERGENCY: OnceLock<Arc<dyn Emergency>> = OnceLock::new();
/// The thread that aborted the job.
static ABORTED: OnceLock<i32> = OnceLock::new();

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The communicator of all ranks, during the job.
#[inline(always)]
pub(crate) fn world() -> Option<&'static Arc<CommObject>> {
    if PHASE.load(Ordering::Relaxed) == ACTIVE {
        WORLD.get()
    } else {
        None
    }
}

/// The communicator of this rank alone, during the job.
pub(crate) fn own() -> Option<&'static Arc<CommObject>> {
    if PHASE.load(Ordering::Relaxed) == ACTIVE {
        SELF.get()
    } else {
        None
    }
}

/// Whether several threads may be in calls at the same time.
#[inline(always)]
pub(crate) fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// Whether arguments are checked.
#[inline(always)]
pub(crate) fn checks() -> bool {
    CHECKS.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn not_active() -> Box<Failure> {
    let what = match PHASE.load(Ordering::Relaxed) {
        BEFORE => "MPI_Init was not called yet",
        FORKED => {
            "this process was forked from a rank and is none itself; only the rank may call MPI. What is to take part in the job must be started by the launcher"
        }
        _ => "MPI_Finalize was called already",
    };
    fail(c::ERR_OTHER, what)
}

#[cold]
pub(crate) fn too_many() -> Box<Failure> {
    fail(c::ERR_INTERN, "too many objects of this kind exist")
}

pub(crate) fn is_initialized() -> bool {
    PHASE.load(Ordering::Acquire) != BEFORE
}

pub(crate) fn is_finalized() -> bool {
    // A child has no part in the job: a library that asks before it finalizes at exit is told that there is nothing to do.
    matches!(PHASE.load(Ordering::Acquire), OVER | FORKED)
}

/// Whether this is a child of a fork of a rank.
#[inline(always)]
pub(crate) fn is_forked() -> bool {
    PHASE.load(Ordering::Relaxed) == FORKED
}

/// The thread level given.
pub(crate) fn thread_level() -> Option<(i32, Pid)> {
    THREADS.get().copied()
}

/// Ends the job of a program that calls as it may not, where no call can give an error.
fn end_for_misuse(how: Misuse) {
    let rank = world().map_or(0, |world| world.rank);
    let level = match thread_level() {
        Some((c::THREAD_SINGLE, _)) => "MPI_THREAD_SINGLE, as MPI_Init asks",
        _ => "MPI_THREAD_FUNNELED",
    };
    errors::report(&match how {
        Misuse::SecondThread => format!(
            "onecopy: rank {rank}: a second thread called MPI, which was initialized with {level}: \
             call MPI_Init_thread with MPI_THREAD_MULTIPLE, or MPI_THREAD_SERIALIZED if one thread calls at a time"
        ),
        Misuse::Reentered => format!("onecopy: rank {rank}: {how}"),
    });
    abort(1);
}

/// Joins the job.
pub(crate) fn start(required: i32) -> Outcome<i32> {
    if is_forked() {
        return Err(not_active());
    }
    let mut slot = lock(&RUNTIME);
    if PHASE.load(Ordering::Acquire) != BEFORE {
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
    CHECKS.store(options.knobs.mpi_checks, Ordering::Relaxed);
    let runtime = Runtime::init_with(options)?;
    let (rank, size) = (runtime.rank(), runtime.size());
    let _ = EMERGENCY.set(runtime.emergency());
    let world = Arc::new(GroupObject::new((0..size as u32).collect(), rank as u32));
    let alone = Arc::new(GroupObject::new(vec![rank as u32], rank as u32));
    let comm = runtime.world();
    let _ = WORLD.set(CommObject::predefined(
        &comm,
        c::COMM_WORLD,
        world,
        0,
        "MPI_COMM_WORLD",
    ));
    let _ = SELF.set(CommObject::predefined(
        &comm,
        c::COMM_SELF,
        alone,
        2,
        "MPI_COMM_SELF",
    ));
    gate::on_misuse(end_for_misuse);
    SHARED.store(level == c::THREAD_MULTIPLE, Ordering::Relaxed);
    let _ = THREADS.set((level, nix::unistd::gettid()));
    *slot = Some(runtime);
    PHASE.store(ACTIVE, Ordering::Release);
    fork::set_in_child(&PHASE, FORKED);
    Ok(level)
}

/// Leaves the job.
pub(crate) fn finish() -> Outcome<()> {
    if is_forked() {
        // At its exit a child runs what its parent has left for that.
        return Ok(());
    }
    if PHASE.load(Ordering::Acquire) != ACTIVE {
        return Err(not_active());
    }
    if let Some(own) = own() {
        attr::delete_all(own, c::COMM_SELF.0)?;
    }
    if let Some(world) = world() {
        attr::delete_all(world, c::COMM_WORLD.0)?;
    }
    buffer::drain_all();
    request::settle_orphans();
    let runtime = lock(&RUNTIME).take();
    PHASE.store(OVER, Ordering::Release);
    match runtime {
        Some(runtime) => Ok(runtime.finalize()?),
        None => Err(not_active()),
    }
}

/// Runs `f` with the runtime.
pub(crate) fn with_runtime<R>(f: impl FnOnce(&Runtime) -> Outcome<R>) -> Outcome<R> {
    if is_forked() {
        return Err(not_active());
    }
    match &*lock(&RUNTIME) {
        Some(runtime) => f(runtime),
        None => Err(not_active()),
    }
}

/// Whether the job was aborted here.
pub(crate) fn is_aborted() -> bool {
    ABORTED.get().is_some()
}

/// Ends the whole job with `code`. This takes no lock and does not enter the engine: the program may call it from a function that the engine has called.
pub(crate) fn abort(code: i32) -> ! {
    let here = end::thread();
    if ABORTED.set(here).is_err() {
        if ABORTED.get() == Some(&here) {
            // From what the program does at its exit.
            end::now(exit_code(code));
        }
        // A child of a process that was aborted has the number of a thread that is not there.
        while !is_forked() {
            std::thread::park();
        }
    }
    // A child that a rank has forked ends itself alone.
    if !is_forked() {
        // Nothing is possible any more: what the program does at its exit must not find an engine that is in use.
        PHASE.store(OVER, Ordering::Release);
        if let Some(emergency) = EMERGENCY.get() {
            let _ = emergency.abort(code);
        }
    }
    std::process::exit(exit_code(code))
}
