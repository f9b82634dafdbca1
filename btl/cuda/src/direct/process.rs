// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors of peers: what one has shown by the number of a descriptor is taken from its process.
//!
//! Which process that is says the runtime, and no offer. The kernel permits it to who may trace that process, as it
//! does for reads of its memory.

use crate::error::{Error, STAGED};
use crate::pipeline::lock;
use onecopy_shm::process::pidfd_getfd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Why a mapping was not opened.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The driver does not open it.
    Driver(Error),
    /// The kernel gives out no descriptor of that process.
    Process(Error),
    /// Its message did not wait.
    Late(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl Refusal {
    pub(super) fn error(&self) -> &Error {
        match self {
            Self::Driver(error) | Self::Process(error) | Self::Late(error) => error,
        }
    }
}

/// The process of each peer that has shown something so.
static PROCESSES: Mutex<Vec<(u32, Arc<OwnedFd>)>> = Mutex::new(Vec::new());

/// Keeps a descriptor of a peer's process.
pub(super) fn know(peer: u32, process: Option<BorrowedFd<'_>>) {
    let mut processes = lock(&PROCESSES);
    if processes.iter().any(|(known, _)| *known == peer) {
        return;
    }
    if let Some(Ok(process)) = process.map(|process| process.try_clone_to_owned()) {
        processes.push((peer, Arc::new(process)));
    }
}

/// The peer is gone.
pub(super) fn forget(peer: u32) {
    lock(&PROCESSES).retain(|(known, _)| *known != peer);
}

/// All are.
pub(super) fn forget_all() {
    lock(&PROCESSES).clear();
}

/// Takes a peer's descriptor.
pub(super) fn take(peer: u32, fd: i32) -> Result<OwnedFd, Refusal> {
    let processes = lock(&PROCESSES);
    let known = processes.iter().find(|(known, _)| *known == peer);
    let process = known.map(|(_, process)| Arc::clone(process));
    drop(processes);
    let about = format!("descriptor {fd} of rank {peer}");
    let Some(process) = process else {
        return Err(Refusal::Process(Error::ours(
            "pidfd_getfd",
            about,
            "its process is not known",
            STAGED,
        )));
    };
    pidfd_getfd(process.as_fd(), fd).map_err(|error| {
        let name = error.to_string();
        let error_of = |remedy| Error::ours("pidfd_getfd", about, &name, remedy);
        match error.raw_os_error() {
            // It is about this message: its owner has closed it, or has ended.
            Some(libc::EBADF | libc::ESRCH) => {
                Refusal::Late(error_of("nothing is lost: its message is over"))
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                Refusal::Process(error_of("raise the limit on open files (ulimit -n)"))
            }
            Some(libc::ENOSYS) => Refusal::Process(error_of(
                "allow pidfd_getfd in the container's profile; it wants Linux 5.6 or later",
            )),
            _ => Refusal::Process(error_of(
                "permit ranks to trace one another: what onecopy info says of cma helps here, too",
            )),
        }
    })
}
