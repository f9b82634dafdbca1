// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other processes of a test.
//!
//! # Safety
//!
//! `fork` is called while the process has one thread only, or its child does nothing but what is written here and in
//! the test. glibc keeps its own locks sound across a fork.
#![allow(unsafe_code, reason = "fork, and a clone that shares memory")]

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::outcome::{At, Fault, Outcome};
use crate::system;

/// How long one side waits for the other before it calls it a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Exit codes, by which a process tells its kind of fault.
pub(crate) const FAILED: i32 = 1;
pub(crate) const SHORT: i32 = 75;
pub(crate) const WRONG: i32 = 76;
pub(crate) const SKIPPED: i32 = 77;

/// A line between two processes: words and descriptors.
pub(crate) struct Link(UnixStream);

impl Link {
    /// Two ends.
    pub(crate) fn pair() -> Outcome<(Self, Self)> {
        let (left, right) = UnixStream::pair().at("socketpair")?;
        for end in [&left, &right] {
            end.set_read_timeout(Some(PATIENCE))
                .at("a socket's timeout")?;
        }
        Ok((Self(left), Self(right)))
    }

    pub(crate) fn send(&self, word: u64) -> Outcome {
        (&self.0)
            .write_all(&word.to_ne_bytes())
            .at("sending to the peer")
    }

    pub(crate) fn receive(&self) -> Outcome<u64> {
        let mut word = [0; 8];
        (&self.0)
            .read_exact(&mut word)
            .at("receiving from the peer")?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Sends that a step is done, and waits for the other's next.
    pub(crate) fn turn(&self) -> Outcome {
        self.send(1)?;
        self.receive().map(|_| ())
    }

    pub(crate) fn give(&self, fd: BorrowedFd<'_>) -> Outcome {
        let fds: [RawFd; 1] = [fd.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        sendmsg::<()>(
            self.0.as_raw_fd(),
            &[IoSlice::new(b"f")],
            &rights,
            MsgFlags::empty(),
            None,
        )
        .at("giving a descriptor")?;
        Ok(())
    }

    pub(crate) fn take(&self) -> Outcome<OwnedFd> {
        let mut byte = [0];
        let mut slices = [IoSliceMut::new(&mut byte)];
        let mut space = nix::cmsg_space!(RawFd);
        let message = recvmsg::<()>(
            self.0.as_raw_fd(),
            &mut slices,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )
        .at("taking a descriptor")?;
        for control in message.cmsgs().at("taking a descriptor")? {
            if let ControlMessageOwned::ScmRights(fds) = control
                && let Some(fd) = fds.first()
            {
                // SAFETY: the kernel has just made the descriptor for this receiver.
                return Ok(unsafe { OwnedFd::from_raw_fd(*fd) });
            }
        }
        Err(Fault::Fail("the peer gave no descriptor".to_owned()))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A forked process. Killed and awaited when it is dropped.
pub(crate) struct Peer {
    pid: Pid,
    /// What it says at its end if it fails.
    report: UnixStream,
    /// The line to it.
    pub(crate) link: Link,
    reaped: bool,
}

/// Runs the body in a forked process.
pub(crate) fn peer(body: impl FnOnce(&Link) -> Outcome) -> Outcome<Peer> {
    let (link, theirs) = Link::pair()?;
    let (report, mut write) = UnixStream::pair().at("socketpair")?;
    report
        .set_read_timeout(Some(PATIENCE))
        .at("a socket's timeout")?;
    // SAFETY: see the module.
    match unsafe { fork() }.at("fork")? {
        ForkResult::Parent { child } => Ok(Peer {
            pid: child,
            report,
            link,
            reaped: false,
        }),
        ForkResult::Child => {
            drop(link);
            drop(report);
            let code = finish(
                || body(&theirs),
                |text| {
                    let _ = write.write_all(text.as_bytes());
                },
            );
            system::leave(code)
        }
    }
}

/// Runs the body in a forked process that has no line to this one.
pub(crate) fn fork_plain(body: impl FnOnce() -> Outcome) -> Outcome<Pid> {
    // SAFETY: see the module.
    match unsafe { fork() }.at("fork")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let code = finish(body, |text| {
                let _ = writeln!(std::io::stderr().lock(), "  {text}");
            });
            system::leave(code)
        }
    }
}

/// Sends a descriptor with a mark.
pub(crate) fn send(to: &UnixDatagram, fd: BorrowedFd<'_>, mark: u8) -> std::io::Result<()> {
    let fds: [RawFd; 1] = [fd.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(
        to.as_raw_fd(),
        &[IoSlice::new(&[mark])],
        &rights,
        MsgFlags::empty(),
        None,
    )?;
    Ok(())
}

/// A descriptor that was sent, with its mark.
pub(crate) fn receive(from: &UnixDatagram) -> std::io::Result<(OwnedFd, u8)> {
    let mut mark = [0];
    let mut slices = [IoSliceMut::new(&mut mark)];
    let mut space = nix::cmsg_space!(RawFd);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(from.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut found = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control
            && let Some(fd) = fds.first()
        {
            // SAFETY: the kernel has just made the descriptor for this receiver.
            found = Some(unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    let fd = found.ok_or_else(|| std::io::Error::from_raw_os_error(libc::EMFILE))?;
    Ok((fd, mark[0]))
}

/// Reads what a device has to say, if it has anything.
pub(crate) fn poll_read(fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO)? == 0 {
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
    let mut bytes = [0; 4];
    nix::unistd::read(fd, &mut bytes)?;
    Ok(())
}

/// Runs a body, hands its failure to `say`, and returns the exit status that tells it.
pub(crate) fn finish(body: impl FnOnce() -> Outcome, say: impl FnOnce(&str)) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(fault)) => {
            say(&fault.to_string());
            match fault {
                Fault::Fail(_) => FAILED,
                Fault::Short(_) => SHORT,
                Fault::Wrong(_) => WRONG,
                Fault::Skip(_) => SKIPPED,
            }
        }
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned().or_else(|| {
                payload
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
            });
            say(&format!("panic: {}", text.unwrap_or_default()));
            FAILED
        }
    }
}

impl Peer {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Receives the next word. If the peer has ended instead, the error says why.
    pub(crate) fn receive(self) -> Outcome<(Self, u64)> {
        match self.link.receive() {
            Ok(word) => Ok((self, word)),
            Err(fault) => Err(self.join().err().unwrap_or(fault)),
        }
    }

    /// Sends the word for which the peer waits before it ends, and waits for its end, which must be a good one.
    pub(crate) fn dismiss(self) -> Outcome {
        self.link.send(0)?;
        self.join()
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn join(self) -> Outcome {
        self.join_within(PATIENCE)
    }

    /// The same, and soon.
    pub(crate) fn join_within(mut self, patience: Duration) -> Outcome {
        let status = self.wait(patience)?;
        let mut reason = String::new();
        let _ = self.report.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = self.report.read_to_string(&mut reason);
        match status {
            WaitStatus::Exited(_, 0) => Ok(()),
            WaitStatus::Exited(_, SKIPPED) => Err(Fault::Skip(reason)),
            WaitStatus::Exited(_, SHORT) => Err(Fault::Short(format!("peer: {reason}"))),
            // Nothing here kills a process whose good end it waits for: that is the kernel, for want of memory.
            WaitStatus::Signaled(_, Signal::SIGKILL, _) => {
                Err(Fault::Fail(format!("peer: {reason} ({status:?})")))
            }
            WaitStatus::Exited(_, WRONG) | WaitStatus::Signaled(..) => {
                Err(Fault::Wrong(format!("peer: {reason} ({status:?})")))
            }
            other => Err(Fault::Fail(format!("peer: {reason} ({other:?})"))),
        }
    }

    /// Ends it by force. Its end must come soon, wherever in the kernel it is.
    pub(crate) fn kill(mut self) -> Outcome {
        self.signal(Signal::SIGKILL)?;
        self.wait(Duration::from_secs(20)).map(|_| ())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Outcome {
        kill(self.pid, signal).at(format_args!("kill({})", self.pid))
    }

    /// How it ended.
    pub(crate) fn wait(&mut self, patience: Duration) -> Outcome<WaitStatus> {
        let status = wait_for(self.pid, patience)?;
        self.reaped = true;
        Ok(status)
    }

    /// Whether it has not ended yet. Its end remains to be waited for.
    pub(crate) fn runs(&self) -> Outcome<bool> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.pid), flags).at("waitid")?;
        Ok(status == WaitStatus::StillAlive)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        let _ = kill(self.pid, Signal::SIGKILL);
        if let Ok(WaitStatus::Exited(..)) = wait_for(self.pid, Duration::from_secs(20)) {
            // It ended before, and the test, which fails for that, may not know why.
            let _ = self.report.set_read_timeout(Some(Duration::from_secs(1)));
            let mut reason = String::new();
            let _ = self.report.read_to_string(&mut reason);
            if !reason.is_empty() {
                let _ = writeln!(
                    std::io::stderr().lock(),
                    "  a process of the test: {reason}"
                );
            }
        }
    }
}

/// Waits for a child's end, and says where in the kernel it hangs if it does not come.
pub(crate) fn wait_for(pid: Pid, patience: Duration) -> Outcome<WaitStatus> {
    let begin = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        let status = waitpid(pid, Some(WaitPidFlag::WNOHANG)).at("waitpid")?;
        if status != WaitStatus::StillAlive {
            return Ok(status);
        }
        if begin.elapsed() > patience {
            let place = system::where_is(pid);
            let reason = format!("process {pid} did not end within {patience:?}: {place}");
            // Elsewhere it may wait for another process or thread that ended early.
            return Err(if system::waits_in_the_module(pid) {
                Fault::Wrong(reason)
            } else {
                Fault::Fail(reason)
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Runs a body in a task of its own that shares this process's memory, and waits for it.
pub(crate) fn in_sharing_task(body: &mut dyn FnMut()) -> Outcome {
    extern "C" fn start(argument: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the argument is the address of the caller's reference, which waits for this task.
        let body = unsafe { &mut *argument.cast::<&mut dyn FnMut()>() };
        body();
        0
    }
    const STACK: usize = 256 * 1024;
    let stack = crate::mem::Area::new(STACK)?;
    let mut body = body;
    let argument: *mut &mut dyn FnMut() = &raw mut body;
    // SAFETY: the stack is a mapping of its own, the argument outlives the task, which is awaited below.
    let pid = unsafe {
        libc::clone(
            start,
            std::ptr::with_exposed_provenance_mut(stack.end() - 16),
            libc::CLONE_VM | libc::SIGCHLD,
            argument.cast(),
        )
    };
    if pid < 0 {
        return Err(std::io::Error::last_os_error()).at("clone");
    }
    match wait_for(Pid::from_raw(pid), PATIENCE)? {
        WaitStatus::Exited(_, 0) => Ok(()),
        other => Err(Fault::Fail(format!("a task that shares memory: {other:?}"))),
    }
}
