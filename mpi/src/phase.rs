// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far this process's part in the job has come, and what every call asks of that. What begins and ends it is in
//! `job.rs`.

use crate::failure::{Failure, Outcome, fail};
use crate::{c, end};
use nix::unistd::Pid;
use onecopy::wireup::{Emergency, exit_code};
use onecopy_shm::fork;
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
static THREADS: OnceLock<(i32, Pid)> = OnceLock::new();
static EMERGENCY: OnceLock<Arc<dyn Emergency>> = OnceLock::new();
/// The thread that aborted the job.
static ABORTED: OnceLock<i32> = OnceLock::new();
/// The link by which everything is moved: there is one engine.
static ENGINE: OnceLock<onecopy::Comm> = OnceLock::new();

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the job has begun and is not over.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    PHASE.load(Ordering::Relaxed) == ACTIVE
}

/// The link by which everything is moved.
#[inline(always)]
pub(crate) fn engine() -> Outcome<&'static onecopy::Comm> {
    if is_active()
        && let Some(link) = ENGINE.get()
    {
        return Ok(link);
    }
    Err(not_active())
}

/// Whether arguments are checked from now on.
pub(crate) fn set_checks(checks: bool) {
    CHECKS.store(checks, Ordering::Relaxed);
}

/// How the job can be ended at any time.
pub(crate) fn set_emergency(emergency: Arc<dyn Emergency>) {
    let _ = EMERGENCY.set(emergency);
}

/// The job has begun, with this thread level.
pub(crate) fn begin(level: i32, link: &onecopy::Comm) {
    let _ = ENGINE.set(link.clone());
    SHARED.store(level == c::THREAD_MULTIPLE, Ordering::Relaxed);
    let _ = THREADS.set((level, nix::unistd::gettid()));
    PHASE.store(ACTIVE, Ordering::Release);
    fork::set_in_child(&PHASE, FORKED);
}

/// The job is over.
pub(crate) fn finish() {
    PHASE.store(OVER, Ordering::Release);
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
            "this process was forked from a rank and is no rank itself. Only the rank may call MPI. The launcher must start whatever is to take part in the job"
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
    // A child has no part in the job: a library that asks before it finalizes at exit is told that there is nothing to
    // do.
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

/// Whether the job was aborted here.
pub(crate) fn is_aborted() -> bool {
    ABORTED.get().is_some()
}

/// Ends the whole job with `code`. This takes no lock and does not enter the engine: the program may call it from a
/// function that the engine has called.
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
        finish();
        if let Some(emergency) = EMERGENCY.get() {
            let _ = emergency.abort(code);
        }
    }
    std::process::exit(exit_code(code))
}
