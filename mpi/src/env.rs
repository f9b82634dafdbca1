// SPDX-License-Identifier: MIT OR Apache-2.0
//! Environment: beginning and end, versions, time.

use crate::failure::{Outcome, fail};
use crate::ffi::{Addr, Comm, Info, Out, OutText};
use crate::{c, comm, info, job, phase};
use std::sync::OnceLock;
use std::time::Instant;

pub(crate) fn init(_argc: Out<i32>, _argv: Addr) -> Outcome<()> {
    job::start(c::THREAD_SINGLE).map(drop)
}

pub(crate) fn init_thread(
    _argc: Out<i32>,
    _argv: Addr,
    required: i32,
    provided: Out<i32>,
) -> Outcome<()> {
    provided.set(job::start(required)?)
}

pub(crate) fn initialized(flag: Out<i32>) -> Outcome<()> {
    flag.set(i32::from(phase::is_initialized()))
}

pub(crate) fn finalize() -> Outcome<()> {
    job::finish()
}

pub(crate) fn finalized(flag: Out<i32>) -> Outcome<()> {
    flag.set(i32::from(phase::is_finalized()))
}

pub(crate) fn abort(comm: Comm, code: i32) -> Outcome<()> {
    // Whatever the communicator, the whole job ends: the standard allows it.
    let _ = comm::get(comm);
    phase::abort(code)
}

pub(crate) fn is_thread_main(flag: Out<i32>) -> Outcome<()> {
    let (_, main) = phase::thread_level().ok_or_else(phase::not_active)?;
    flag.set(i32::from(main == nix::unistd::gettid()))
}

pub(crate) fn query_thread(provided: Out<i32>) -> Outcome<()> {
    let (level, _) = phase::thread_level().ok_or_else(phase::not_active)?;
    provided.set(level)
}

static START: OnceLock<Instant> = OnceLock::new();

/// Seconds since the first call.
pub(crate) fn wtime() -> f64 {
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

pub(crate) fn wtick() -> f64 {
    1e-9
}

pub(crate) fn get_processor_name(name: OutText, len: Out<i32>) -> Outcome<()> {
    let host = std::fs::read("/proc/sys/kernel/hostname")
        .map_err(|error| fail(c::ERR_OTHER, format!("the host's name: {error}")))?;
    len.set(name.set(host.trim_ascii(), c::MAX_PROCESSOR_NAME as usize)? as i32)
}

pub(crate) fn get_version(version: Out<i32>, subversion: Out<i32>) -> Outcome<()> {
    version.set(c::VERSION)?;
    subversion.set(c::SUBVERSION)
}

pub(crate) fn get_library_version(version: OutText, len: Out<i32>) -> Outcome<()> {
    let text = concat!("onecopy ", env!("CARGO_PKG_VERSION"));
    len.set(version.set(text, c::MAX_LIBRARY_VERSION_STRING as usize)? as i32)
}

pub(crate) fn get_hw_resource_info(hw_info: Out<Info>) -> Outcome<()> {
    hw_info.set(info::make(Vec::new())?)
}
