// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a launcher needs from the kernel and the standard library does not offer safely. That is children with
//! descriptors, processors and a death signal of their own, descriptors of processes, and the descriptor that a
//! launcher left to us.
//!
//! # Safety
//!
//! Three promises are made here. What runs before `main` makes only system calls. So does what runs between `fork` and
//! `exec` ([`spawn`]), which allocates nothing either. It is sound even if other threads held locks at the moment of
//! the fork. And a descriptor number that came through the environment ([`take_inherited_socket`]) becomes owned at
//! most once, after the kernel confirmed what it is.
#![allow(
    unsafe_code,
    reason = "pre_exec, sigaction, pidfd_open and adopting an inherited descriptor have no safe interface"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Mutex;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::socket::{SockType, getsockopt, sockopt};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getppid};

use crate::sync::{AtomicU64, Ordering};

/// Has the kernel keep the ends of children until they are waited for. The parent of this process may have had
/// SIGCHLD ignored, which `exec` keeps; then children vanish, and how they ended with them. A handler of the program
/// stays.
///
/// # Errors
/// Those of `sigaction`.
pub fn keep_ends_of_children() -> io::Result<()> {
    let mut now = action_of(libc::SIGCHLD)?;
    if now.sa_sigaction != libc::SIG_IGN && now.sa_flags & libc::SA_NOCLDWAIT == 0 {
        return Ok(());
    }
    if now.sa_sigaction == libc::SIG_IGN {
        now.sa_sigaction = libc::SIG_DFL;
    }
    now.sa_flags &= !libc::SA_NOCLDWAIT;
    // SAFETY: no function is installed but one that was there, under the flags and the mask that it had.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, &raw const now, std::ptr::null_mut()) })?;
    Ok(())
}

/// What a signal does now. Makes only a system call.
fn action_of(signal: libc::c_int) -> nix::Result<libc::sigaction> {
    // SAFETY: sigaction consists of integers and a set of bits; zeroes are a value of it.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set; `now` lives through the call.
    Errno::result(unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) })?;
    Ok(now)
}

/// Signals that this process was started to ignore, as bits; only of those that are changed in every program.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// The language's runtime ignores SIGPIPE, and gives children the default; [`keep_ends_of_children`] changes SIGCHLD.
const CHANGED: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGCHLD];

/// Looks before anybody has changed them.
extern "C" fn look_at_ignored() {
    for signal in CHANGED {
        if action_of(signal).is_ok_and(|now| now.sa_sigaction == libc::SIG_IGN) {
            IGNORED.fetch_or(1 << signal, Ordering::Relaxed);
        }
    }
}

// SAFETY: the loader calls what stands in this section, once, before `main` and the language's runtime. The function
// takes none of the arguments that it passes, needs nothing of that runtime, and makes only system calls.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look_at_ignored;

/// Has a program ignore SIGPIPE and SIGCHLD if this process was started to: it gets the actions that it would have
/// without us.
pub fn ignore_as_started(command: &mut Command) {
    let ignored = IGNORED.load(Ordering::Relaxed);
    if ignored == 0 {
        return;
    }
    let ignore = move || {
        for signal in CHANGED {
            if ignored & 1 << signal != 0 {
                // SAFETY: no function of ours is installed.
                let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
                if before == libc::SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(())
    };
    // SAFETY: `ignore` runs in the child between fork and exec. It makes only system calls, and reads a number that was
    // copied into it. It allocates nothing and takes no lock: errors are built from their number.
    unsafe { command.pre_exec(ignore) };
}

/// What a child does to itself before it becomes its program.
#[derive(Debug, Default)]
pub struct Setup<'fd> {
    /// Descriptors that stay open in the program, under the same number.
    pub keep: Vec<BorrowedFd<'fd>>,
    /// Processors that it may run on; all of ours if none.
    pub processors: Option<CpuSet>,
    /// Signal that it gets when the thread that spawned it ends.
    pub death_signal: Option<Signal>,
    /// Leads a process group of its own, so that it and its children can be signalled together.
    pub own_group: bool,
}

/// Starts `command` after `setup`. The child's signal mask is empty.
///
/// # Errors
/// That of `fork`, of a step of the setup, or of `exec`. `ECANCELED` if the parent ended before the child asked for its
/// `death_signal`.
pub fn spawn(mut command: Command, setup: &Setup<'_>) -> io::Result<Child> {
    let keep: Vec<RawFd> = setup.keep.iter().map(AsRawFd::as_raw_fd).collect();
    let processors = setup.processors;
    let death_signal = setup.death_signal;
    let parent = Pid::this();
    if setup.own_group {
        command.process_group(0);
    }
    ignore_as_started(&mut command);
    let prepare = move || -> io::Result<()> {
        if let Some(signal) = death_signal {
            prctl::set_pdeathsig(signal)?;
            // The parent may have died before the request was made: then no signal would come.
            if getppid() != parent {
                return Err(Errno::ECANCELED.into());
            }
        }
        if let Some(set) = &processors {
            sched_setaffinity(Pid::from_raw(0), set)?;
        }
        for &fd in &keep {
            // SAFETY: fcntl(F_SETFD) touches no memory. The number is that of a descriptor which the caller lends to
            // `spawn` until the child has executed its program. In the child it is a copy of it.
            let done = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
            Errno::result(done)?;
        }
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        Ok(())
    };
    // SAFETY: `prepare` runs in the child between fork and exec. It makes only system calls (prctl, getppid,
    // sched_setaffinity, fcntl, sigprocmask) and reads values that were copied into it. It allocates nothing and takes
    // no lock: errors are built from their number.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// A descriptor of the process `pid` that becomes readable when it ends.
///
/// The caller sees to it that `pid` still is the process that it means. That is its own child that was not waited for,
/// or a process that has just proved to be alive.
///
/// # Errors
/// `ESRCH` if there is no such process; `EMFILE` at the limit on descriptors.
pub fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    crate::failing::attempt("pidfd.open")?;
    // SAFETY: the call takes two integers and touches no memory of ours.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let raw = Errno::result(got)?;
    let raw = RawFd::try_from(raw).map_err(|_| io::Error::from(Errno::EBADF))?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// A descriptor of ours for what descriptor `fd` of another process names, as a duplicate of it would be.
///
/// # Errors
/// `EPERM` if this process may not trace that one, `ENOSYS` on a kernel before 5.6 or where a filter of system calls
/// says so. `EBADF` if that process has no such descriptor, `ESRCH` if it has ended, `EMFILE` at the limit on
/// descriptors.
pub fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes three integers and touches no memory of ours.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
    let raw = Errno::result(got)?;
    let raw = RawFd::try_from(raw).map_err(|_| io::Error::from(Errno::EBADF))?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Whether a descriptor that came from elsewhere names a process: of another kind, one that is readable would look
/// like an end.
pub fn is_pidfd(fd: BorrowedFd<'_>) -> bool {
    // Nothing is waited for: the process is as a rule no child of ours, which the kernel says after it has looked at
    // the descriptor.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::PIDFd(fd), look), Err(Errno::EBADF))
}

/// The process id behind a pidfd as our own pid namespace sees it: none if the process is not visible here or was
/// waited for.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok().filter(|&pid| pid > 0)
}

/// A descriptor of the process at the other end of a Unix socket, from when the two were connected. It names that very
/// process, whatever pid namespaces lie between. None where the kernel does not know how (before 6.5), or the process
/// is gone and was waited for.
pub fn peer_process(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    /// From the kernel's asm-generic/socket.h.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut raw: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `raw`; both live through the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut raw).cast(),
            &raw mut len,
        )
    };
    if done != 0 || raw < 0 {
        return None;
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Some(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Sockets that [`take_inherited_socket`] and [`take_inherited_stream`] have given out.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Owns the sequenced-packet Unix socket that was left open for us under `number`, and makes it close-on-exec.
///
/// # Errors
/// `EALREADY` if it was taken before; another one if that number is no such socket.
pub fn take_inherited_socket(number: RawFd) -> io::Result<OwnedFd> {
    take_inherited(number, check_packets)
}

/// Owns the stream socket (of any family) that was left open for us under `number`, and makes it close-on-exec.
///
/// # Errors
/// `EALREADY` if it was taken before; another one if that number is no such socket.
pub fn take_inherited_stream(number: RawFd) -> io::Result<OwnedFd> {
    take_inherited(number, |fd| check_kind(fd, SockType::Stream))
}

fn take_inherited(
    number: RawFd,
    check: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return Err(Errno::EBADF.into());
    }
    let mut taken = TAKEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if taken.contains(&number) {
        return Err(Errno::EALREADY.into());
    }
    check_inherited(number, check)?;
    taken.push(number);
    // SAFETY: `number` is an open descriptor (checked above), of the kind that the launcher left to this program from
    // its start. By the contract of the job's environment it belongs to the first caller that takes it. The list above
    // lets it be taken once, so it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    nix::fcntl::fcntl(
        &fd,
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC),
    )?;
    Ok(fd)
}

/// Is `number` an open descriptor that passes `check`?
fn check_inherited(
    number: RawFd,
    check: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<()> {
    // SAFETY: fcntl(F_GETFD) touches no memory and changes nothing, whatever the number is.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) };
    Errno::result(open)?;
    // SAFETY: the descriptor was open a moment ago and belongs to nobody in this process who would close it (see the
    // callers). It is borrowed for getsockopt calls only, which change nothing.
    check(unsafe { BorrowedFd::borrow_raw(number) })
}

fn check_kind(fd: BorrowedFd<'_>, wanted: SockType) -> io::Result<()> {
    if getsockopt(&fd, sockopt::SockType)? == wanted {
        Ok(())
    } else {
        Err(Errno::EPROTOTYPE.into())
    }
}

/// A Unix socket that keeps packets apart: only a Unix socket knows its peer's credentials.
fn check_packets(fd: BorrowedFd<'_>) -> io::Result<()> {
    check_kind(fd, SockType::SeqPacket)?;
    getsockopt(&fd, sockopt::PeerCredentials)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;
    use std::os::fd::AsFd;
    use std::process::Stdio;

    extern "C" fn of_the_program(_: libc::c_int) {}

    /// A number for what `owned` is, that no other test here has had.
    ///
    /// A number that was taken stays so when its owner closes it, and the kernel gives it to the next test's socket.
    fn never_taken(owned: OwnedFd) -> RawFd {
        static NEXT: AtomicU32 = AtomicU32::new(700);
        let lowest = NEXT.fetch_add(1, Ordering::Relaxed) as RawFd;
        nix::fcntl::fcntl(&owned, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(lowest)).expect("dup")
    }

    /// That one which is ignored is not: tests/launch, where it is a process's own.
    #[test]
    fn a_handler_of_the_program_stays() {
        let handler = of_the_program as *const () as libc::sighandler_t;
        // SAFETY: the function does nothing.
        let before = unsafe { libc::signal(libc::SIGCHLD, handler) };
        keep_ends_of_children().expect("sigaction");
        // SAFETY: what was there.
        let during = unsafe { libc::signal(libc::SIGCHLD, before) };
        assert_eq!(during, handler);
    }

    #[test]
    fn only_descriptors_of_processes_are_taken_for_some() {
        let own = pidfd_open(Pid::this()).expect("pidfd");
        assert!(is_pidfd(own.as_fd()));
        let mut child = Command::new("true").spawn().expect("a child");
        let pid = Pid::from_raw(child.id().cast_signed());
        let ended = pidfd_open(pid).expect("pidfd");
        child.wait().expect("wait");
        assert!(is_pidfd(ended.as_fd()), "one that has ended");
        let null = std::fs::File::open("/dev/null").expect("null");
        let (pipe, _other) = nix::unistd::pipe().expect("pipe");
        let (socket, _end) = crate::fdpass::pair().expect("pair");
        for other in [null.as_fd(), pipe.as_fd(), socket.as_fd()] {
            assert!(!is_pidfd(other), "{other:?}");
        }
    }

    #[test]
    fn a_child_keeps_what_it_was_given() {
        let (ours, theirs) = crate::fdpass::pair().expect("pair");
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "readlink /proc/$$/fd/*; grep Cpus_allowed_list /proc/self/status",
            ])
            .stdout(Stdio::piped());
        let all = nix::sched::sched_getaffinity(Pid::from_raw(0)).expect("affinity");
        let first = (0..CpuSet::count())
            .find(|&cpu| all.is_set(cpu).unwrap_or(false))
            .expect("a processor");
        let mut one = CpuSet::new();
        one.set(first).expect("set");
        let setup = Setup {
            keep: vec![theirs.as_fd()],
            processors: Some(one),
            death_signal: Some(Signal::SIGKILL),
            own_group: true,
        };
        let child = spawn(command, &setup).expect("spawn");
        let output = child.wait_with_output().expect("wait");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let inode = |fd: &OwnedFd| nix::sys::stat::fstat(fd).expect("stat").st_ino;
        assert!(
            text.contains(&format!("socket:[{}]", inode(&theirs))),
            "{text}"
        );
        assert!(
            !text.contains(&format!("socket:[{}]", inode(&ours))),
            "{text}"
        );
        assert!(
            text.contains(&format!("Cpus_allowed_list:\t{first}\n")),
            "{text}"
        );
    }

    #[test]
    fn a_missing_program_is_told_apart() {
        let command = Command::new("/nonexistent/program");
        let error = spawn(command, &Setup::default()).expect_err("no such program");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_pidfd_knows_its_process() {
        let own = pidfd_open(Pid::this()).expect("pidfd");
        assert_eq!(pid_of(own.as_fd()), Some(Pid::this().as_raw()));
    }

    #[test]
    fn the_process_at_the_other_end_of_a_socket_is_known() {
        let (ours, _theirs) = crate::fdpass::pair().expect("pair");
        // Kernels before 6.5 do not say.
        if let Some(process) = peer_process(ours.as_fd()) {
            assert_eq!(pid_of(process.as_fd()), Some(Pid::this().as_raw()));
        }
    }

    #[test]
    fn only_a_stream_is_taken_as_one() {
        let (packets, _peer) = crate::fdpass::pair().expect("pair");
        let refused = take_inherited_stream(packets.as_raw_fd()).expect_err("packets");
        assert_eq!(refused.raw_os_error(), Some(libc::EPROTOTYPE));
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().expect("pair");
        let number = never_taken(stream.into());
        let _owned = take_inherited_stream(number).expect("first");
        assert!(take_inherited_stream(number).is_err());
    }

    #[test]
    fn an_inherited_socket_is_taken_once_and_checked() {
        assert!(take_inherited_socket(0).is_err());
        assert!(take_inherited_socket(1_000_000).is_err());
        let memfd = nix::sys::memfd::memfd_create("x", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
            .expect("memfd");
        assert!(take_inherited_socket(memfd.as_raw_fd()).is_err());
        let (socket, _peer) = crate::fdpass::pair().expect("pair");
        let number = never_taken(socket);
        let _owned = take_inherited_socket(number).expect("first");
        let again = take_inherited_socket(number).expect_err("second");
        assert_eq!(again.raw_os_error(), Some(libc::EALREADY));
    }
}
