// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two processes, so that a killed launcher leaves nothing behind.
//!
//! [`enter`] runs the program once more below itself. The first process, which the user sees, becomes the guardian: it
//! passes signals and terminal input on, waits, and ends with the same code. The second, in a process group of its own,
//! is the launcher. If the launcher is killed, its descendants become the guardian's children (it is a subreaper) and
//! are killed. If the guardian is killed, the launcher sees the connection between them close, and kills everything.
//! Neither a signal to one of them nor one to the terminal's process group can hit both.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use onecopy_shm::fdpass;
use onecopy_shm::process::{self, Setup};

use super::signals::{ENDING, forwarded};
use super::{LaunchError, sweep, system};

/// Tells the second process the number of its end of the connection.
pub(super) const ENV_GUARD: &str = "ONECOPY_JOB_GUARD";

/// The launcher's end of the connection to its guardian: readable when the guardian is gone.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Role {
    /// The launcher: do the work.
    Launcher(Link),
    /// The guardian, and the launcher has ended: exit with this code.
    Guardian {
        /// The exit code.
        code: i32,
    },
}

/// Whether this is the second process, in which [`enter`] will return [`Role::Launcher`]: what the first has said need
/// not be said again.
#[must_use]
pub fn is_second() -> bool {
    std::env::var_os(ENV_GUARD).is_some()
}

/// Splits this process in two; see the module's description. To be called before there are other threads. The program
/// is started again with the same arguments, and gets here again.
pub fn enter() -> Result<Role, LaunchError> {
    if let Some(value) = std::env::var_os(ENV_GUARD) {
        let number = value.to_str().and_then(|text| text.parse().ok());
        let link = process::take_inherited_socket(number.unwrap_or(-1))
            .map_err(system("connection to the guardian (ONECOPY_JOB_GUARD)"))?;
        return Ok(Role::Launcher(Link(link)));
    }
    process::keep_ends_of_children().map_err(system("take the default action of SIGCHLD"))?;
    nix::sys::prctl::set_child_subreaper(true).map_err(system("become a subreaper"))?;
    // The process that became us by exec may have left children; they are none of our business.
    let before = sweep::children();
    let signals = catch_signals()?;
    // The launcher sees its end close when this process is gone.
    let (launcher, _ours) = start_launcher()?;
    let code = watch(launcher, &signals)?;
    sweep::kill_descendants(&before, complain);
    Ok(Role::Guardian { code })
}

/// Takes the signals that are passed on, and hears of ends.
fn catch_signals() -> Result<SignalFd, LaunchError> {
    let mut caught = forwarded();
    let mut blocked = caught;
    blocked.add(Signal::SIGCHLD);
    // Reading from a terminal in the background then is an error instead of a stop.
    blocked.add(Signal::SIGTTIN);
    blocked.add(Signal::SIGTTOU);
    blocked
        .thread_block()
        .map_err(system("block signals for forwarding"))?;
    caught.add(Signal::SIGCHLD);
    SignalFd::with_flags(&caught, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(system("signalfd"))
}

/// Runs this program once more below itself. Gives this side's end of the connection to it.
fn start_launcher() -> Result<(Pid, OwnedFd), LaunchError> {
    let (ours, theirs) = fdpass::pair().map_err(|error| LaunchError::System {
        what: "connection to the launcher",
        source: io::Error::other(error),
    })?;
    let terminal = io::stdin().is_terminal();
    let pump = match terminal {
        true => Some(io::pipe().map_err(system("pipe for standard input"))?),
        false => None,
    };
    let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| OsString::from("onecopy"));
    let mut command = Command::new(own);
    command.arg0(name).args(args);
    command.env(ENV_GUARD, theirs.as_raw_fd().to_string());
    let pump = match pump {
        Some((reader, writer)) => {
            command.stdin(Stdio::from(reader));
            Some(writer)
        }
        None => None,
    };
    let setup = Setup {
        keep: vec![theirs.as_fd()],
        own_group: true,
        ..Setup::default()
    };
    let child = process::spawn(command, &setup).map_err(system("start the launcher process"))?;
    drop(theirs);
    if let Some(writer) = pump {
        // Ends with the process at the latest.
        std::thread::spawn(move || pump_terminal(writer));
    }
    Ok((Pid::from_raw(child.id().cast_signed()), ours))
}

/// The same request to end from the same process within this time is not a second one. Chosen by magnitude: a person
/// does not type Ctrl-C twice in that time. A terminal and a launcher above may each pass the same one on.
const ONE_REQUEST: Duration = Duration::from_millis(100);

/// Passes signals on until `launcher` has ended.
fn watch(launcher: Pid, signals: &SignalFd) -> Result<i32, LaunchError> {
    let mut last: Option<((Signal, u32), Instant)> = None;
    loop {
        match waitpid(launcher, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => {
                complain(&format!(
                    "the launcher (pid {launcher}) was killed by {signal}; ended all its processes"
                ));
                return Ok(128 + signal as i32);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("waitpid")(errno)),
        }
        // SIGCHLD ends this wait; the limit is for the case that another child's swallowed the launcher's.
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(1000_u16)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("poll")(errno)),
        }
        while let Ok(Some(info)) = signals.read_signal() {
            let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed()) else {
                continue;
            };
            if signal == Signal::SIGCHLD {
                continue;
            }
            // Some that end a program signal it and then its group (timeout of coreutils): one request, not the second
            // that kills.
            if ENDING.contains(&signal) {
                let (now, request) = (Instant::now(), (signal, info.ssi_pid));
                let again = last.is_some_and(|(before, then)| {
                    before == request && now.duration_since(then) < ONE_REQUEST
                });
                last = Some((request, now));
                // 0: the kernel, for a key that was typed at the terminal.
                if again && info.ssi_pid != 0 {
                    continue;
                }
            }
            // It was not waited for, so the number is still its own.
            let _ = kill(launcher, signal);
            if signal == Signal::SIGTSTP {
                // The shell expects us to stop.
                let _ = raise(Signal::SIGSTOP);
            }
        }
    }
}

/// Hands on what is typed, whenever this job is in the foreground.
fn pump_terminal(mut writer: io::PipeWriter) {
    let mut block = [0; 4096];
    loop {
        match io::stdin().lock().read(&mut block) {
            Ok(0) => return,
            Ok(count) => {
                if writer.write_all(&block[..count]).is_err() {
                    return;
                }
            }
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn complain(text: &str) {
    // A message that cannot be written has no other place to go.
    let _ = writeln!(io::stderr(), "onecopy run: {text}");
}
