// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that is followed: it waits when it is started, so that nothing of it is missed; its end.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::Pid;
use onecopy_shm::{fdpass, process};

use crate::command::CliError;
use crate::signals::Got;
use crate::started;

/// The hidden subcommand that waits before it becomes the program.
pub(crate) const COMMAND: &str = "__gate";

/// What is sent by the socket: to go on; that it becomes the program now; that it could not.
const GO: u8 = 1;
const BEGINS: u8 = 2;
const FAILED: u8 = 3;

/// What becomes the program.
#[derive(clap::Args, Debug)]
pub(crate) struct GateArgs {
    /// The socket that it waits at
    socket: i32,

    /// What becomes of it, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Waits; goes on as the program once it is observed. It does not stop: the kernel ends stopped processes of a group
/// that nobody controls.
pub(crate) fn run_gate(args: GateArgs) -> Result<ExitCode, CliError> {
    let gate = process::take_inherited_socket(args.socket)
        .map_err(CliError::io("the socket of the tracer"))?;
    let mut word = [0];
    let got = loop {
        match recv(gate.as_raw_fd(), &mut word, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            got => break got,
        }
    };
    match got {
        Ok(0) => return Ok(ExitCode::from(137)),
        Ok(_) => {}
        Err(errno) => return Err(CliError::io("waiting to be observed")(errno.into())),
    }
    let mut words = args.program.into_iter();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(&program);
    started::pass_on(&mut command);
    // A tracer that has ended needs no word.
    let send = |word| {
        let _ = send(gate.as_raw_fd(), &[word], MsgFlags::MSG_NOSIGNAL);
    };
    send(BEGINS);
    let error = command.args(words).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    send(FAILED);
    crate::command::complain(&format!("cannot start {program:?}: {error}"));
    Ok(ExitCode::from(code))
}

/// A started program.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
    /// Where it waits, and says how it goes on. One that waits ends when this does.
    gate: OwnedFd,
    is_over: bool,
}

impl Program {
    /// Starts it, and has it wait. To be called before there are other threads.
    pub(super) fn prepare(words: &[OsString]) -> Result<Self, CliError> {
        let own = std::env::current_exe().map_err(CliError::io("/proc/self/exe"))?;
        let (ours, theirs) = fdpass::pair().map_err(|error| CliError::Failed(error.into()))?;
        // No other thread can start something that would have it, too. Of signals, the program holds back what it would
        // without this command.
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))
            .map_err(|errno| CliError::io("the socket of the program")(errno.into()))?;
        let mut command = Command::new(own);
        started::pass_on(&mut command);
        let child = command
            .arg(COMMAND)
            .arg(theirs.as_raw_fd().to_string())
            .arg("--")
            .args(words)
            .spawn()
            .map_err(CliError::io("starting the program"))?;
        Ok(Self {
            child,
            gate: ours,
            is_over: false,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn nix_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Lets it begin.
    pub(super) fn go(&self) -> Result<(), CliError> {
        match send(self.gate.as_raw_fd(), &[GO], MsgFlags::MSG_NOSIGNAL) {
            // One that has ended says so by its code.
            Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
            Err(errno) => Err(CliError::io("continuing the program")(errno.into())),
        }
    }

    /// Whether it was ended while it waited, or there is no such program or it cannot be started. To be asked once,
    /// when it has ended.
    pub(super) fn has_failed_to_begin(&self) -> bool {
        let mut last = [0];
        let next = |word: &mut [u8]| recv(self.gate.as_raw_fd(), word, MsgFlags::MSG_DONTWAIT);
        while next(&mut last).is_ok_and(|bytes| bytes > 0) {}
        last != [BEGINS]
    }

    /// Its code, once it has ended: 128 + number if a signal ended it.
    pub(super) fn ended(&mut self) -> Result<Option<ExitCode>, CliError> {
        let status = self
            .child
            .try_wait()
            .map_err(CliError::io("waiting for the program"))?;
        Ok(status.map(|status| {
            self.is_over = true;
            let code = status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal));
            ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }))
    }

    /// Gives it a signal that this command got. The terminal gives its own ones to both.
    pub(super) fn pass_on(&self, got: &Got) {
        if !got.by_kernel {
            // One that has ended needs none.
            let _ = kill(self.nix_pid(), got.signal);
        }
    }

    /// Asks it to end, and waits for that.
    pub(super) fn stop(&mut self) -> Result<ExitCode, CliError> {
        let _ = kill(self.nix_pid(), Signal::SIGTERM);
        // A stopped one would not see it.
        let _ = kill(self.nix_pid(), Signal::SIGCONT);
        // Five seconds, by magnitude: one that does not end by then ignores the signal.
        for _ in 0..100 {
            if let Some(code) = self.ended()? {
                return Ok(code);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.is_over = true;
        Ok(ExitCode::from(137))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.is_over {
            // This command has failed: nothing of it stays.
            let _ = kill(self.nix_pid(), Signal::SIGTERM);
            let _ = kill(self.nix_pid(), Signal::SIGCONT);
        }
    }
}
