// SPDX-License-Identifier: MIT OR Apache-2.0
//! What makes layers fail: system calls that a filter refuses, a process that must not be traced, low limits.

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

/// A cause, made by the rank itself.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cause {
    None,
    /// These system calls return this error from now on.
    Filter(&'static [i64], i32),
    /// Not traceable any more.
    NotDumpable,
    Descriptors(u64),
    AddressSpace(u64),
}

const READ: i64 = 310;
const WRITE: i64 = 311;
const BOTH: &[i64] = &[READ, WRITE];
const IOCTL: i64 = 16;
const PIDFD_OPEN: i64 = 434;
const FUTEX: &[i64] = &[202, 449, 454, 455, 456];
const MEMBARRIER: i64 = 324;
const MEMFD_CREATE: i64 = 319;

const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const EFAULT: i32 = 14;
const ENOSYS: i32 = 38;

/// The causes by the names that roles use.
pub(crate) fn named(name: &str) -> Cause {
    match name {
        "none" => Cause::None,
        "eperm" => Cause::Filter(BOTH, EPERM),
        "enosys" => Cause::Filter(BOTH, ENOSYS),
        "esrch" => Cause::Filter(BOTH, ESRCH),
        "efault" => Cause::Filter(BOTH, EFAULT),
        "read-eperm" => Cause::Filter(&[READ], EPERM),
        "write-eperm" => Cause::Filter(&[WRITE], EPERM),
        "no-ioctl" => Cause::Filter(&[IOCTL], EPERM),
        "no-pidfd" => Cause::Filter(&[PIDFD_OPEN], ENOSYS),
        "no-futex" => Cause::Filter(FUTEX, ENOSYS),
        "no-membarrier" => Cause::Filter(&[MEMBARRIER], ENOSYS),
        "no-memfd" => Cause::Filter(&[MEMFD_CREATE], EPERM),
        "not-dumpable" => Cause::NotDumpable,
        "few-descriptors" => Cause::Descriptors(24),
        "no-descriptors" => Cause::Descriptors(3),
        "small-address-space" => Cause::AddressSpace(1 << 30),
        other => panic!("no cause {other}"),
    }
}

impl Cause {
    /// Makes it so for this thread and those that it starts.
    pub(crate) fn make(self) {
        match self {
            Self::None => {}
            Self::Filter(calls, errno) => crate::refuse::refuse(calls, errno),
            Self::NotDumpable => {
                nix::sys::prctl::set_dumpable(false).expect("prctl(PR_SET_DUMPABLE)")
            }
            Self::Descriptors(limit) => {
                setrlimit(Resource::RLIMIT_NOFILE, limit, limit).expect("setrlimit")
            }
            Self::AddressSpace(limit) => {
                setrlimit(Resource::RLIMIT_AS, limit, limit).expect("setrlimit")
            }
        }
    }
}

/// Becomes a user without any capability: root may read what is not dumpable. The process can be traced by others of
/// that user again.
pub(crate) fn become_nobody() {
    let (uid, gid) = (Uid::from_raw(65534), Gid::from_raw(65534));
    setgroups(&[gid]).expect("setgroups");
    setgid(gid).expect("setgid");
    setuid(uid).expect("setuid");
    nix::sys::prctl::set_dumpable(true).expect("prctl(PR_SET_DUMPABLE)");
}
