// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the processes of a job.

use std::io::PipeReader;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sched::CpuSet;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use onecopy_shm::fdpass::{self, FdPassError};
use onecopy_shm::process::{self, Setup};

use super::{Input, Job, LaunchError, Output, system};
use crate::wireup::{Death, ENV_FD, ENV_RANK, ENV_SIZE};

/// A process of the job.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) pid: Pid,
    /// None if the kernel refuses it: then the process is asked for again and again.
    pub(super) pidfd: Option<Arc<OwnedFd>>,
    pub(super) death: Option<Death>,
    /// Standard output and standard error.
    pub(super) streams: [Option<PipeReader>; 2],
}

/// Raises the soft limit of descriptors as far as this job needs it. It is not raised further, since ranks inherit it and some programs
/// behave badly under a high limit.
pub(super) fn make_room(ranks: usize) -> Result<(), LaunchError> {
    // The launcher has socket, two process descriptors, segment and two pipes per rank; a rank has segment and process of each peer.
    let needed = 64 + 6 * ranks as u64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(system("getrlimit"))?;
    if soft >= needed {
        return Ok(());
    }
    if hard < needed {
        return Err(LaunchError::Descriptors {
            ranks,
            needed,
            hard,
        });
    }
    setrlimit(Resource::RLIMIT_NOFILE, needed, hard).map_err(system("setrlimit(RLIMIT_NOFILE)"))
}

/// Starts rank number `rank`; returns it and our end of its socket.
pub(super) fn start(
    job: &mut Job,
    rank: usize,
    processors: Option<CpuSet>,
) -> Result<(Rank, OwnedFd), LaunchError> {
    let ranks = job.ranks;
    let failed = |source| LaunchError::Start {
        rank,
        ranks,
        source,
    };
    let (ours, theirs) = fdpass::pair().map_err(|error| failed(plain(error)))?;
    fdpass::ask_for_credentials(ours.as_fd()).map_err(|error| failed(plain(error)))?;

    let mut command = Command::new(&job.program);
    command.args(&job.args);
    command.env_remove(super::guard::ENV_GUARD);
    command.envs(job.env.iter().map(|(name, value)| (name, value)));
    command.env(ENV_FD, theirs.as_raw_fd().to_string());
    command.env(ENV_RANK, rank.to_string());
    command.env(ENV_SIZE, ranks.to_string());
    command.stdin(match std::mem::take(&mut job.input) {
        Input::Inherit => Stdio::inherit(),
        Input::From(fd) => Stdio::from(fd),
        Input::Null => Stdio::null(),
    });
    let mut streams = [None, None];
    if !matches!(job.output, Output::Inherit) {
        let (out, writer) = std::io::pipe().map_err(failed)?;
        command.stdout(writer);
        let (err, writer) = std::io::pipe().map_err(failed)?;
        command.stderr(writer);
        streams = [Some(out), Some(err)];
    }
    let setup = Setup {
        keep: vec![theirs.as_fd()],
        processors,
        death_signal: Some(Signal::SIGKILL),
        own_group: true,
    };
    let child = process::spawn(command, &setup).map_err(|source| {
        let program = job.program.clone();
        match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT | Errno::ENOTDIR) => LaunchError::NotFound { program },
            Some(Errno::EACCES | Errno::ENOEXEC | Errno::EISDIR | Errno::ELOOP) => {
                LaunchError::NotExecutable { program, source }
            }
            _ => failed(source),
        }
    })?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let rank = Rank {
        pid,
        // Our own child that was not waited for: the number is still its.
        pidfd: process::pidfd_open(pid).ok().map(Arc::new),
        death: None,
        streams,
    };
    Ok((rank, ours))
}

fn plain(error: FdPassError) -> std::io::Error {
    match error {
        FdPassError::System { source, .. } => source,
        other => std::io::Error::other(other),
    }
}
