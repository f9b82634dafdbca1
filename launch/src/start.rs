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

use super::{Input, Job, LaunchError, Output, pmi, system};
use onecopy::wireup::{self, Death, ENV_FD, ENV_JOB, ENV_RANK, ENV_SIZE};

/// A process of the job.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) pid: Pid,
    /// None if the kernel refuses it: then the process is asked for again and again.
    pub(super) pidfd: Option<Arc<OwnedFd>>,
    pub(super) death: Option<Death>,
    /// It is no member of the job any more, and did not say that it leaves.
    pub(super) deserted: bool,
    /// The user knows that it gets no signal.
    pub(super) refusal_said: bool,
    /// Standard output and standard error.
    pub(super) streams: [Option<PipeReader>; 2],
}

/// Raises the soft limit of descriptors as far as this job needs it. It is not raised further, since ranks inherit it
/// and some programs behave badly under a high limit.
pub(super) fn make_room(ranks: usize) -> Result<(), LaunchError> {
    // The launcher has two sockets, two process descriptors, segment and two pipes per rank; a rank has segment and
    // process of each peer.
    let needed = 64 + 7 * ranks as u64;
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

/// Our ends of a rank's connections.
#[derive(Debug)]
pub(super) struct Sockets {
    /// To the [`broker`](onecopy::wireup::broker).
    pub(super) broker: OwnedFd,
    /// To the [`pmi`] server.
    pub(super) pmi: OwnedFd,
}

/// What outer launchers may have left, and would lead a program of another library past our PMI server.
const FOREIGN: [&str; 5] = [
    "PMI_PORT",
    "PMI_ID",
    "PMI_CONTROL_PORT",
    "PMI_CONTROL_FD",
    "HYDI_CONTROL_FD",
];

/// Starts rank number `rank`; returns it and our ends of its connections.
pub(super) fn start(
    job: &mut Job,
    rank: usize,
    processors: Option<CpuSet>,
) -> Result<(Rank, Sockets), LaunchError> {
    let ranks = job.ranks;
    let failed = |source| LaunchError::Start {
        rank,
        ranks,
        source,
    };
    let (ours, theirs) = fdpass::pair().map_err(|error| failed(plain(error)))?;
    fdpass::ask_for_credentials(ours.as_fd()).map_err(|error| failed(plain(error)))?;

    let (pmi, pmi_theirs) = pmi::pair().map_err(|errno| failed(errno.into()))?;

    let mut command = command(job, rank);
    command.env(ENV_FD, theirs.as_raw_fd().to_string());
    command.env(wireup::pmi::ENV_FD, pmi_theirs.as_raw_fd().to_string());
    let mut streams = [None, None];
    if !matches!(job.output, Output::Inherit) {
        let (out, writer) = std::io::pipe().map_err(failed)?;
        command.stdout(writer);
        let (err, writer) = std::io::pipe().map_err(failed)?;
        command.stderr(writer);
        streams = [Some(out), Some(err)];
    }
    let setup = Setup {
        keep: vec![theirs.as_fd(), pmi_theirs.as_fd()],
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
        deserted: false,
        refusal_said: false,
        streams,
    };
    Ok((rank, Sockets { broker: ours, pmi }))
}

/// The program with its arguments, its input, and all of its environment but the numbers of descriptors.
fn command(job: &mut Job, rank: usize) -> Command {
    let (rank, ranks) = (rank.to_string(), job.ranks.to_string());
    // As long as it runs no other job of this process lies there.
    let id = wireup::job_number(std::ptr::from_ref(&*job).addr());
    let mut command = Command::new(&job.program);
    command
        .args(&job.args)
        .env_remove(super::guard::ENV_GUARD)
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .env(ENV_RANK, &rank)
        .env(ENV_SIZE, &ranks)
        .env(ENV_JOB, id.to_string());
    for name in FOREIGN {
        command.env_remove(name);
    }
    command
        .env(wireup::pmi::ENV_RANK, &rank)
        .env(wireup::pmi::ENV_SIZE, &ranks)
        // As hydra tells ranks how many of them are on the node: here all.
        .env("MPI_LOCALRANKID", &rank)
        .env("MPI_LOCALNRANKS", &ranks)
        .stdin(match std::mem::take(&mut job.input) {
            Input::Inherit => Stdio::inherit(),
            Input::From(fd) => Stdio::from(fd),
            Input::Null => Stdio::null(),
        });
    command
}

fn plain(error: FdPassError) -> std::io::Error {
    match error {
        FdPassError::System { source, .. } => source,
        other => std::io::Error::other(other),
    }
}
